//! The keys under file handles (ADR 12).
//!
//! They are extended attributes of the volume's root, `trusted.mdfs.handle-key.N` with `N` from 1 on:
//! as durable as the files that handles name, the same for all gateways, and for root alone. Each is
//! made once and never changed. The newest makes handles, and the one before it is still good.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use constant_time_eq::{constant_time_eq_16, constant_time_eq_64};
use fileio::client;
use fileio::protocol::{
    CallId, Credentials, Error, GetXattr, ListXattrs, ROOT, RemoveXattr, SetXattr, XattrMode,
    XattrName,
};
use runtime::{Context, Spawn};

/// What an attribute's name begins with; its number follows.
const PREFIX: &str = "trusted.mdfs.handle-key.";

/// Bytes of a key, and of the randomness that one is made of.
pub(crate) const KEY_BYTES: usize = 32;

/// Bytes under a handle that only a holder of the key can know.
pub(crate) const MAC_BYTES: usize = 16;

/// Keys are looked at again when they are so old: rotation reaches every gateway in this time.
const REFRESH_AFTER: Duration = Duration::from_secs(30);

/// A number that is not known makes a gateway look again, but not more often than this.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// Other gateways may make the next key at the same time; so often somebody else is first.
const RACES_MAX: u32 = 8;

/// One key.
#[derive(Clone, PartialEq, Eq)]
struct HandleKey {
    id: u32,
    bytes: [u8; KEY_BYTES],
}

/// Messages that were made here, or found to be, and are known again without the key: as many handles as
/// clients use at a time, or are told in a listing. In a table of this size, by a hash; a new one takes
/// the place of an old one.
const PROVEN_MAX: usize = 4096;
/// Bytes of such a message with its proof, at most: a file handle.
const PROVEN_BYTES: usize = 64;

/// The keys that count.
pub(crate) struct HandleKeys {
    newest: HandleKey,
    before: Option<HandleKey>,
    /// With new keys it is empty again.
    proven: RefCell<Vec<[u8; PROVEN_BYTES]>>,
}

impl std::fmt::Debug for HandleKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").field("newest", &self.newest.id).finish_non_exhaustive()
    }
}

/// Whether a message was made with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MacCheck {
    /// With one that counts.
    Good,
    /// With none.
    Forged,
    /// Perhaps with one that does not count any more.
    Retired,
}

fn mac(key: &[u8; KEY_BYTES], message: &[u8]) -> [u8; MAC_BYTES] {
    let hash = blake3::keyed_hash(key, message);
    std::array::from_fn(|index| hash.as_bytes()[index])
}

/// A message as it is kept, without its proof: itself, and in the last byte how long it is with one; `None` if
/// it is too long to be kept. And where.
fn place_of(message: &[u8]) -> Option<(usize, [u8; PROVEN_BYTES])> {
    let mut kept = [0; PROVEN_BYTES];
    let end = message.len() + MAC_BYTES;
    if end >= PROVEN_BYTES {
        return None;
    }
    kept[..message.len()].copy_from_slice(message);
    kept[PROVEN_BYTES - 1] = end as u8;
    Some((runtime::hash::xxh3(message) as usize % PROVEN_MAX, kept))
}

impl HandleKeys {
    #[cfg(test)]
    pub(crate) fn of_test(newest: u32) -> Self {
        let key = |id: u32| HandleKey { id, bytes: [id as u8; KEY_BYTES] };
        Self::of(key(newest), (newest > 1).then(|| key(newest - 1)))
    }

    fn of(newest: HandleKey, before: Option<HandleKey>) -> Self {
        Self { newest, before, proven: RefCell::default() }
    }

    /// The number of the key that [`seal`](Self::seal) uses.
    pub(crate) fn newest_id(&self) -> u32 {
        self.newest.id
    }

    /// What proves that `message` was made here; `message` names the key.
    pub(crate) fn seal(&self, message: &[u8]) -> [u8; MAC_BYTES] {
        let Some((at, mut kept)) = place_of(message) else {
            return mac(&self.newest.bytes, message);
        };
        let proof = message.len()..message.len() + MAC_BYTES;
        let known = self.proven.borrow().get(at).and_then(|known| {
            let is_same = known[..proof.start] == kept[..proof.start]
                && known[proof.end..] == kept[proof.end..];
            let proof = known[proof.clone()].first_chunk().copied();
            proof.filter(|_| is_same)
        });
        known.unwrap_or_else(|| {
            let made = mac(&self.newest.bytes, message);
            kept[proof].copy_from_slice(&made);
            self.note_proven(at, kept);
            made
        })
    }

    /// Was `told` made of `message` by key `id`? Takes the same time wherever they differ.
    pub(crate) fn check(&self, id: u32, message: &[u8], told: &[u8; MAC_BYTES]) -> MacCheck {
        let key = match &self.before {
            _ if id == self.newest.id => &self.newest,
            Some(before) if id == before.id => before,
            _ if id < self.newest.id => return MacCheck::Retired,
            _ => return MacCheck::Forged,
        };
        let place = place_of(message).map(|(at, mut whole)| {
            whole[message.len()..message.len() + MAC_BYTES].copy_from_slice(told);
            (at, whole)
        });
        if place.as_ref().is_some_and(|(at, whole)| self.is_proven(*at, whole)) {
            return MacCheck::Good;
        }
        if !constant_time_eq_16(&mac(&key.bytes, message), told) {
            return MacCheck::Forged;
        }
        if let Some((at, whole)) = place {
            self.note_proven(at, whole);
        }
        MacCheck::Good
    }

    /// Compared in constant time: who guesses a seal learns nothing of one that is kept.
    fn is_proven(&self, at: usize, whole: &[u8; PROVEN_BYTES]) -> bool {
        let proven = self.proven.borrow();
        proven.get(at).is_some_and(|kept| constant_time_eq_64(kept, whole))
    }

    fn note_proven(&self, at: usize, whole: [u8; PROVEN_BYTES]) {
        let mut proven = self.proven.borrow_mut();
        if proven.is_empty() {
            proven.resize(PROVEN_MAX, [0; PROVEN_BYTES]);
        }
        proven[at] = whole;
    }
}

/// The keys as a gateway knows them.
pub(crate) struct KeyRing {
    ctx: Context,
    entropy: [u8; KEY_BYTES],
    /// And when looking at them began, the last time.
    known: RefCell<Option<(Rc<HandleKeys>, Duration)>>,
}

impl std::fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyRing").finish_non_exhaustive()
    }
}

impl KeyRing {
    /// A volume without a key gets one made of `entropy`.
    pub(crate) fn new(ctx: Context, entropy: [u8; KEY_BYTES]) -> Self {
        Self { ctx, entropy, known: RefCell::default() }
    }

    /// The keys; looked at once more for a handle made by key `wanted`, if that one is not known:
    /// another gateway may have made it just now.
    pub(crate) async fn keys(
        self: &Rc<Self>,
        wanted: Option<u32>,
    ) -> Result<Rc<HandleKeys>, Error> {
        let asked = self.ctx.now();
        loop {
            let known = self.known.borrow().clone();
            let Some((keys, looked)) = known else { return self.look().await };
            let is_newer = wanted.is_some_and(|id| id > keys.newest.id);
            if !is_newer || looked >= asked {
                self.refresh(asked, looked);
                return Ok(keys);
            }
            let age = self.ctx.now().saturating_sub(looked);
            match LOOK_PAUSE.checked_sub(age) {
                Some(rest) if !rest.is_zero() => self.ctx.sleep(rest).await,
                _ => return self.look().await,
            }
        }
    }

    /// Looks again, beside everything else, if the last time was long ago.
    fn refresh(self: &Rc<Self>, now: Duration, looked: Duration) {
        if now.saturating_sub(looked) >= REFRESH_AFTER {
            if let Some((_, looked)) = &mut *self.known.borrow_mut() {
                // Others need not look too.
                *looked = now;
            }
            let ring = self.clone();
            self.ctx.task(async move {
                if let Err(error) = ring.look().await {
                    tracing::warn!(target: "mdfs::nfs", %error, "the keys cannot be looked at");
                }
            });
        }
    }

    /// `keys`, or what is known if they are the same: that knows what was proven.
    fn unless_known(&self, keys: HandleKeys) -> Rc<HandleKeys> {
        match &*self.known.borrow() {
            Some((known, _)) if known.newest == keys.newest && known.before == keys.before => {
                known.clone()
            }
            _ => Rc::new(keys),
        }
    }

    async fn look(&self) -> Result<Rc<HandleKeys>, Error> {
        let began = self.ctx.now();
        for _ in 0..RACES_MAX {
            if let Some(keys) = read(&self.ctx).await? {
                let keys = self.unless_known(keys);
                *self.known.borrow_mut() = Some((keys.clone(), began));
                return Ok(keys);
            }
            make(&self.ctx, 1, &self.entropy).await?;
        }
        Err(Error::Changed {})
    }
}

/// Makes a new key of `entropy`, 32 bytes from a source of secrets, used for nothing else; returns its
/// number. Handles made by the key before it stay good, those of older ones do not. Gateways follow
/// within half a minute.
pub async fn rotate_keys<S: Spawn>(from: &S, entropy: [u8; KEY_BYTES]) -> Result<u32, Error> {
    for _ in 0..RACES_MAX {
        let ids = ids(from).await?;
        let newest = ids.last().copied().unwrap_or(0);
        let next = newest.checked_add(1).ok_or(Error::Invalid {})?;
        if !make(from, next, &entropy).await? {
            continue;
        }
        for id in ids.into_iter().filter(|id| *id < newest) {
            remove(from, id, &entropy).await?;
        }
        return Ok(next);
    }
    Err(Error::Changed {})
}

fn root() -> Credentials {
    Credentials { uid: 0, gid: 0, groups: Vec::new() }
}

fn name(id: u32) -> Result<XattrName, Error> {
    XattrName::new(format!("{PREFIX}{id}")).map_err(|_| Error::Invalid {})
}

/// The numbers of all keys, in order.
async fn ids<S: Spawn>(from: &S) -> Result<Vec<u32>, Error> {
    let names = client::ask(from, ListXattrs { who: root(), file: ROOT }).await?;
    let id = |name: &XattrName| {
        let digits = name.as_bytes().strip_prefix(PREFIX.as_bytes())?;
        std::str::from_utf8(digits).ok()?.parse().ok()
    };
    let mut ids: Vec<u32> = names.iter().filter_map(id).collect();
    ids.sort_unstable();
    Ok(ids)
}

/// The keys that count; `None` if there are none yet, or if they have just changed.
async fn read<S: Spawn>(from: &S) -> Result<Option<HandleKeys>, Error> {
    let Some(newest) = ids(from).await?.pop() else { return Ok(None) };
    let Some(newest) = read_one(from, newest).await? else { return Ok(None) };
    let before = match newest.id.checked_sub(1) {
        Some(id) if id > 0 => read_one(from, id).await?,
        _ => None,
    };
    Ok(Some(HandleKeys::of(newest, before)))
}

async fn read_one<S: Spawn>(from: &S, id: u32) -> Result<Option<HandleKey>, Error> {
    let value = client::ask(from, GetXattr { who: root(), file: ROOT, name: name(id)? }).await;
    match value {
        Ok(value) => {
            let bytes = value.try_into().map_err(|_| Error::Damaged {})?;
            Ok(Some(HandleKey { id, bytes }))
        }
        Err(Error::NoXattr {}) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes key `id` durable; false if there is one already.
async fn make<S: Spawn>(from: &S, id: u32, entropy: &[u8; KEY_BYTES]) -> Result<bool, Error> {
    let value = derived(entropy, "key", id).to_vec();
    let made = SetXattr {
        who: root(),
        call: call(entropy, "make", id),
        file: ROOT,
        name: name(id)?,
        value,
        mode: XattrMode::Create {},
        durable: true,
    };
    match client::ask(from, made).await {
        Ok(_) => Ok(true),
        Err(Error::Exists {}) => Ok(false),
        Err(error) => Err(error),
    }
}

async fn remove<S: Spawn>(from: &S, id: u32, entropy: &[u8; KEY_BYTES]) -> Result<(), Error> {
    let call = call(entropy, "remove", id);
    let gone = RemoveXattr { who: root(), call, file: ROOT, name: name(id)?, durable: true };
    match client::ask(from, gone).await {
        Ok(_) | Err(Error::NoXattr {}) => Ok(()),
        Err(error) => Err(error),
    }
}

/// A secret for one purpose: none tells anything of the others.
fn derived(entropy: &[u8; KEY_BYTES], purpose: &str, id: u32) -> [u8; KEY_BYTES] {
    let message = [purpose.as_bytes(), &id.to_le_bytes()].concat();
    *blake3::keyed_hash(entropy, &message).as_bytes()
}

/// The same when it is sent again, and nobody else's.
fn call(entropy: &[u8; KEY_BYTES], purpose: &str, id: u32) -> CallId {
    let client = runtime::hash::xxh3(&derived(entropy, purpose, id));
    CallId { client, number: u64::from(id) }
}
