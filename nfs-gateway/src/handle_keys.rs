//! The keys that authenticate file handles (ADR 12).
//!
//! They are extended attributes of the volume's root, `trusted.mdfs.handle-key.N` with `N` from 1
//! on: as durable as the files that handles name, the same for all gateways, and for root only. A
//! key is created once and never changed. The newest key makes handles; the one before it is still
//! valid.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use client::FileSystem;
use client::root_keys::{KeyFamily, KeysKept, RootKey, RootKeys};
use constant_time_eq::{constant_time_eq_16, constant_time_eq_64};
use fileio::protocol::{CallId, Error};
use runtime::{Context, Spawn};

/// The attributes that hold them.
const FAMILY: KeyFamily = KeyFamily("trusted.mdfs.handle-key.");

/// Bytes of a key, and of the entropy that it is derived from.
pub(crate) const KEY_BYTES: usize = 32;

/// Bytes of the message authentication code of a handle.
pub(crate) const MAC_BYTES: usize = 16;

/// Keys are read again after this time: a rotation reaches every gateway within it.
const REFRESH_AFTER: Duration = Duration::from_secs(30);

/// An unknown key number makes a gateway read the keys again, but not more often than this.
const READ_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// Attempts to create the next key, if other gateways create one at the same time.
const RACES_MAX: u32 = 8;

/// One key.
#[derive(Clone, PartialEq, Eq)]
struct HandleKey {
    id: u32,
    bytes: [u8; KEY_BYTES],
}

impl HandleKey {
    fn of(key: RootKey) -> Result<Self, Error> {
        let bytes = key.value.try_into().map_err(|_| Error::Damaged {})?;
        Ok(Self { id: key.number, bytes })
    }
}

/// Entries of the cache of verified messages: about as many as the handles that clients use at a
/// time, or receive in a listing. It is indexed by a hash; a new entry replaces an old one.
const VERIFIED_MAX: usize = 4096;
/// Bytes of a cached message with its MAC, at most: a file handle.
const VERIFIED_BYTES: usize = 64;

/// The valid keys.
pub(crate) struct HandleKeys {
    newest: HandleKey,
    before: Option<HandleKey>,
    /// The cache of verified messages; new keys have an empty one.
    verified: RefCell<Vec<[u8; VERIFIED_BYTES]>>,
}

impl std::fmt::Debug for HandleKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").field("newest", &self.newest.id).finish_non_exhaustive()
    }
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MacCheck {
    /// The MAC is of a valid key.
    Good,
    /// The MAC is wrong.
    Forged,
    /// The key is retired, so the MAC cannot be checked.
    Retired,
}

fn keyed_mac(key: &[u8; KEY_BYTES], message: &[u8]) -> [u8; MAC_BYTES] {
    let hash = blake3::keyed_hash(key, message);
    std::array::from_fn(|index| hash.as_bytes()[index])
}

/// The cache entry of a message, without its MAC but with its length in the last byte, and its
/// index; `None` if it is too long.
fn cache_entry(message: &[u8]) -> Option<(usize, [u8; VERIFIED_BYTES])> {
    let mut kept = [0; VERIFIED_BYTES];
    let end = message.len() + MAC_BYTES;
    if end >= VERIFIED_BYTES {
        return None;
    }
    kept[..message.len()].copy_from_slice(message);
    kept[VERIFIED_BYTES - 1] = end as u8;
    Some((runtime::hash::xxh3(message) as usize % VERIFIED_MAX, kept))
}

impl HandleKeys {
    #[cfg(test)]
    pub(crate) fn of_test(newest: u32) -> Self {
        let key = |id: u32| HandleKey { id, bytes: [id as u8; KEY_BYTES] };
        Self::of(key(newest), (newest > 1).then(|| key(newest - 1)))
    }

    fn of(newest: HandleKey, before: Option<HandleKey>) -> Self {
        Self { newest, before, verified: RefCell::default() }
    }

    /// The number of the key that [`mac`](Self::mac) uses.
    pub(crate) fn newest_id(&self) -> u32 {
        self.newest.id
    }

    /// The MAC of `message`, which names the key.
    pub(crate) fn mac(&self, message: &[u8]) -> [u8; MAC_BYTES] {
        let Some((at, mut entry)) = cache_entry(message) else {
            return keyed_mac(&self.newest.bytes, message);
        };
        let range = message.len()..message.len() + MAC_BYTES;
        let known = self.verified.borrow().get(at).and_then(|known| {
            let is_same = known[..range.start] == entry[..range.start]
                && known[range.end..] == entry[range.end..];
            let mac = known[range.clone()].first_chunk().copied();
            mac.filter(|_| is_same)
        });
        known.unwrap_or_else(|| {
            let made = keyed_mac(&self.newest.bytes, message);
            entry[range].copy_from_slice(&made);
            self.cache_verified(at, entry);
            made
        })
    }

    /// Is `mac` the MAC of `message` by key `id`? Takes constant time.
    pub(crate) fn check(&self, id: u32, message: &[u8], mac: &[u8; MAC_BYTES]) -> MacCheck {
        let key = match &self.before {
            _ if id == self.newest.id => &self.newest,
            Some(before) if id == before.id => before,
            _ if id < self.newest.id => return MacCheck::Retired,
            _ => return MacCheck::Forged,
        };
        let entry = cache_entry(message).map(|(at, mut whole)| {
            whole[message.len()..message.len() + MAC_BYTES].copy_from_slice(mac);
            (at, whole)
        });
        if entry.as_ref().is_some_and(|(at, whole)| self.is_cached(*at, whole)) {
            return MacCheck::Good;
        }
        if !constant_time_eq_16(&keyed_mac(&key.bytes, message), mac) {
            return MacCheck::Forged;
        }
        if let Some((at, whole)) = entry {
            self.cache_verified(at, whole);
        }
        MacCheck::Good
    }

    /// Compares in constant time: a guess reveals nothing of a cached MAC.
    fn is_cached(&self, at: usize, whole: &[u8; VERIFIED_BYTES]) -> bool {
        let verified = self.verified.borrow();
        verified.get(at).is_some_and(|entry| constant_time_eq_64(entry, whole))
    }

    fn cache_verified(&self, at: usize, whole: [u8; VERIFIED_BYTES]) {
        let mut verified = self.verified.borrow_mut();
        if verified.is_empty() {
            verified.resize(VERIFIED_MAX, [0; VERIFIED_BYTES]);
        }
        verified[at] = whole;
    }
}

/// The keys that a gateway has read.
pub(crate) struct KeyRing {
    ctx: Context,
    entropy: [u8; KEY_BYTES],
    /// When they were last read.
    known: RefCell<Option<(Rc<HandleKeys>, Duration)>>,
}

impl std::fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyRing").finish_non_exhaustive()
    }
}

impl KeyRing {
    /// A volume without a key gets one derived from `entropy`.
    pub(crate) fn new(ctx: Context, entropy: [u8; KEY_BYTES]) -> Self {
        Self { ctx, entropy, known: RefCell::default() }
    }

    /// The keys; read once more for a handle of key `wanted`, if that is unknown: another gateway
    /// may have created it.
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
            match READ_INTERVAL_MIN.checked_sub(age) {
                Some(rest) if !rest.is_zero() => self.ctx.sleep(rest).await,
                _ => return self.look().await,
            }
        }
    }

    /// Reads the keys again in a task, if they are old.
    fn refresh(self: &Rc<Self>, now: Duration, looked: Duration) {
        if now.saturating_sub(looked) >= REFRESH_AFTER {
            if let Some((_, looked)) = &mut *self.known.borrow_mut() {
                // No other call needs to read them.
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

    /// `keys`, or the known ones if they are the same, with their cache.
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
            let value = derived(&self.entropy, "key", 1).to_vec();
            let call = call(&self.entropy, "make", 1);
            FAMILY.create(&self.ctx, &RootKey { number: 1, value }, call).await?;
        }
        Err(Error::Changed {})
    }
}

/// Creates a new key from `entropy`, 32 secret random bytes used for nothing else; returns its
/// number. Handles of the key before it stay valid, those of older ones do not. Gateways use it
/// within half a minute.
pub async fn rotate_keys<S: Spawn>(
    volume: &FileSystem<S>,
    entropy: [u8; KEY_BYTES],
) -> Result<u32, Error> {
    let make = |id| derived(&entropy, "key", id).to_vec();
    RootKeys::new(volume, FAMILY).rotate(KeysKept::Newest, make).await
}

/// The valid keys; `None` if there are none yet, or if they have just changed.
async fn read(from: &Context) -> Result<Option<HandleKeys>, Error> {
    let mut keys = FAMILY.valid(from).await?.into_iter().map(HandleKey::of);
    let Some(newest) = keys.next().transpose()? else { return Ok(None) };
    Ok(Some(HandleKeys::of(newest, keys.next().transpose()?)))
}

/// Derives a secret for one purpose, independent of the others.
fn derived(entropy: &[u8; KEY_BYTES], purpose: &str, id: u32) -> [u8; KEY_BYTES] {
    let message = [purpose.as_bytes(), &id.to_le_bytes()].concat();
    *blake3::keyed_hash(entropy, &message).as_bytes()
}

/// The call id of the creation of a key: unique, and the same in retries.
fn call(entropy: &[u8; KEY_BYTES], purpose: &str, id: u32) -> CallId {
    let client = runtime::hash::xxh3(&derived(entropy, purpose, id));
    CallId { client, number: u64::from(id) }
}
