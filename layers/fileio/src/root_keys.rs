//! Numbered keys in extended attributes of the volume's root directory: as durable as the files,
//! the same for all processes, and for root only (ADR 12).
//!
//! A key is created once and never changed. The newest one and the one before it are valid.

use runtime::Spawn;

use crate::client::ask;
use crate::protocol::{
    CallId, Credentials, Error, GetXattr, ListXattrs, ROOT, RemoveXattr, SetXattr, XattrMode,
    XattrName,
};

/// Attempts to create the next key, if others create one at the same time.
const RACES_MAX: u32 = 8;

/// The keys of one purpose, by the prefix of their attributes' names; the number follows.
#[derive(Clone, Copy, Debug)]
pub struct KeyFamily(pub &'static str);

/// The keys that sign the tokens of users (ADR 77).
pub const TOKEN_KEYS: KeyFamily = KeyFamily("trusted.mdfs.token-key.");

/// The keys that seal the handles of clients of a subtree (ADR 88).
pub const SUBTREE_KEYS: KeyFamily = KeyFamily("trusted.mdfs.subtree-key.");

/// One key.
#[derive(Clone, PartialEq, Eq)]
pub struct RootKey {
    /// Its number, from 1 on.
    pub number: u32,
    /// Its bytes, which may be secret.
    pub value: Vec<u8>,
}

impl std::fmt::Debug for RootKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RootKey").field("number", &self.number).finish_non_exhaustive()
    }
}

/// What a rotation leaves of the keys that were there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeysKept {
    /// The newest of them.
    Newest,
    /// None.
    None,
}

impl KeyFamily {
    fn name(self, number: u32) -> Result<XattrName, Error> {
        XattrName::new(format!("{}{number}", self.0)).map_err(|_| Error::Invalid {})
    }

    /// The numbers of all keys, in order.
    async fn numbers<S: Spawn>(self, from: &S) -> Result<Vec<u32>, Error> {
        let listed = ask(from, ListXattrs { who: Credentials::root(), file: ROOT }).await?;
        let number = |name: &XattrName| {
            let digits = name.as_bytes().strip_prefix(self.0.as_bytes())?;
            std::str::from_utf8(digits).ok()?.parse().ok()
        };
        let mut numbers: Vec<u32> = listed.iter().filter_map(number).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// The valid keys, the newest first; none if there are none, or if they have just changed.
    pub async fn valid<S: Spawn>(self, from: &S) -> Result<Vec<RootKey>, Error> {
        let Some(newest) = self.numbers(from).await?.pop() else { return Ok(Vec::new()) };
        let Some(newest) = self.read(from, newest).await? else { return Ok(Vec::new()) };
        let before = match newest.number.checked_sub(1) {
            Some(number) if number > 0 => self.read(from, number).await?,
            _ => None,
        };
        Ok([newest].into_iter().chain(before).collect())
    }

    async fn read<S: Spawn>(self, from: &S, number: u32) -> Result<Option<RootKey>, Error> {
        let name = self.name(number)?;
        match ask(from, GetXattr { who: Credentials::root(), file: ROOT, name }).await {
            Ok(value) => Ok(Some(RootKey { number, value })),
            Err(Error::NoXattr {}) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates a key durably; false if it exists.
    pub async fn create<S: Spawn>(
        self,
        from: &S,
        key: &RootKey,
        call: CallId,
    ) -> Result<bool, Error> {
        let created = SetXattr {
            who: Credentials::root(),
            call,
            file: ROOT,
            name: self.name(key.number)?,
            value: key.value.clone(),
            mode: XattrMode::CreateNew {},
            durable: true,
        };
        match ask(from, created).await {
            Ok(_) => Ok(true),
            Err(Error::Exists {}) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn remove<S: Spawn>(self, from: &S, number: u32, call: CallId) -> Result<(), Error> {
        let name = self.name(number)?;
        let removed =
            RemoveXattr { who: Credentials::root(), call, file: ROOT, name, durable: true };
        match ask(from, removed).await {
            Ok(_) | Err(Error::NoXattr {}) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The valid keys; the first one is made if there are none.
    pub async fn valid_or_first<S: Spawn>(
        self,
        from: &S,
        make: impl Fn(u32) -> Vec<u8>,
        mut call: impl FnMut() -> CallId,
    ) -> Result<Vec<RootKey>, Error> {
        for _ in 0..RACES_MAX {
            let valid = self.valid(from).await?;
            if !valid.is_empty() {
                return Ok(valid);
            }
            self.create(from, &RootKey { number: 1, value: make(1) }, call()).await?;
        }
        Err(Error::Changed {})
    }

    /// Creates the next key and removes those that are not `kept`; returns its number.
    pub async fn rotate<S: Spawn>(
        self,
        from: &S,
        kept: KeysKept,
        make: impl Fn(u32) -> Vec<u8>,
        mut call: impl FnMut() -> CallId,
    ) -> Result<u32, Error> {
        for _ in 0..RACES_MAX {
            let numbers = self.numbers(from).await?;
            let newest = numbers.last().copied().unwrap_or(0);
            let number = newest.checked_add(1).ok_or(Error::Invalid {})?;
            if !self.create(from, &RootKey { number, value: make(number) }, call()).await? {
                continue;
            }
            let is_dropped = |old: &u32| *old < newest || kept == KeysKept::None;
            for old in numbers.into_iter().filter(is_dropped) {
                self.remove(from, old, call()).await?;
            }
            return Ok(number);
        }
        Err(Error::Changed {})
    }
}
