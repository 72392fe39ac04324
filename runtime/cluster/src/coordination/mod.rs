//! Small records that all processes of a volume agree on: who opened it, in which
//! epoch, who is there, who serves which node. One small trait, so that engines can be changed.
//!
//! | file | holds |
//! | --- | --- |
//! | `records.rs` | the rules of records, versions, leases and watches, without I/O |
//! | `sled.rs` | the engine of one process: `records.rs` over sled |
//! | `etcd/` | the engine of a cluster (cargo feature `etcd`) |
//!
//! The simulated engine is in `machine-emu/src/engine.rs`: `records.rs` behind the emulated
//! network. One test for all three: `machine-emu/tests/coordination`.
//!
//! # Promise
//!
//! - What was answered with success is durable, and each call takes effect at one instant between
//!   its beginning and its answer (linearizable; reads too).
//! - A call that fails with [`CoordinationError::Unknown`] may have taken effect, may do so later,
//!   or never. So does one whose store failed. Any other error: it had no effect and will have
//!   none.
//! - A record bound to a lease is gone once the lease is over. A lease is over at its length after
//!   the last [`keep_alive`](Coordination::keep_alive) that the engine took, by the engine's clock,
//!   or later.
//! - A watch brings all changes, each once, in the order of their versions, or says that it missed
//!   some.

#[cfg(feature = "etcd")]
mod etcd;
mod records;
mod sled;

use std::time::Duration;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;

use runtime::ids::Epoch;
use runtime::wire::{Decoder, Encoder, Malformed, Wire, from_bytes, to_bytes};

#[cfg(feature = "etcd")]
pub use etcd::{Etcd, EtcdConfig, Tls};
pub use records::{CHANGES_KEPT_MAX, Records};
pub use sled::Sled;

/// Bytes of a key, at most.
pub const KEY_LENGTH_MAX: usize = 256;
/// Bytes of a record, at most: etcd takes requests of 1.5 MiB, in which JSON makes 4 of 3 bytes.
pub const VALUE_LENGTH_MAX: usize = 1 << 20;

/// The key of the last epoch that was given.
const EPOCH_KEY: &str = "epoch";
/// Attempts to take an epoch before the caller gets `Busy`.
const EPOCH_TRIES_MAX: u32 = 64;

/// A place in the order of all changes of a store. Grows with each; 0 is before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

/// A lease, as the engine numbers it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

macro_rules! wire_number {
    ($($name:ident),+) => {$(
        impl Wire for $name {
            fn put(&self, out: &mut Encoder) {
                self.0.put(out);
            }
            fn take(input: &mut Decoder) -> Result<Self, Malformed> {
                Wire::take(input).map(Self)
            }
            fn sample(rng: &mut runtime::seed::Rng) -> Self {
                Self(Wire::sample(rng))
            }
        }
    )+};
}
wire_number!(Version, LeaseId);

runtime::record! {
    /// What a key holds.
    pub struct Record {
        /// The bytes.
        value: Vec<u8>,
        /// The change that put them there.
        version: Version,
    }
}

runtime::record! {
    /// All records of a prefix at one instant.
    pub struct Listing {
        /// The last change of the whole store up to that instant: watch from here.
        version: Version,
        /// Keys with their records, in the order of the keys.
        records: Vec<(String, Record)>,
    }
}

runtime::choice! {
    /// What must be there for a change to be done.
    #[derive(Copy)]
    pub enum Expect {
        /// Anything.
        1 Any {},
        /// No record.
        2 Absent {},
        /// The record that this change put there.
        3 Unchanged { /// See [`Record::version`].
            since: Version },
    }
}

impl Expect {
    /// That the record is still as it was seen: `None` if there was none.
    pub fn still(seen: Option<&Record>) -> Self {
        seen.map_or(Self::Absent {}, |record| Self::Unchanged { since: record.version })
    }
}

runtime::choice! {
    /// What came of a write.
    pub enum WriteOutcome {
        /// It is done, and durable.
        1 Done { /// The version of the record now.
            version: Version },
        /// Nothing was done: what was expected is not there.
        2 Differs { /// What is there.
            found: Option<Record> },
    }
}

runtime::choice! {
    /// What a watch tells.
    pub enum RecordChange {
        /// A record is new, or has changed.
        1 Put { /// Its key.
            key: String, /// What it holds now.
            record: Record },
        /// A record was removed, or its lease is over.
        2 Removed { /// Its key.
            key: String, /// The change that removed it.
            version: Version },
        /// Some changes are no longer known: read all again, and watch from there.
        3 Missed {},
    }
}

/// Why a call failed, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CoordinationError {
    /// The engine did not get the call. Nothing was done.
    #[error("the coordination engine cannot be reached ({0}); nothing was done; try again")]
    Unreachable(String),
    /// The answer was lost, or did not come in time.
    #[error(
        "the coordination engine did not answer ({0}); it may have done it: read before doing it again"
    )]
    Unknown(String),
    /// The lease is over, and all records that were bound to it are gone.
    #[error("the lease is over, and what was bound to it is gone; take a new one")]
    LeaseOver,
    /// Too many do this at the same time. Nothing was done.
    #[error("too many change the same record; nothing was done; try again")]
    Busy,
    /// The engine refuses.
    #[error("the coordination engine refuses: {0}; see its settings, rights and space")]
    Refused(String),
    /// The key or the value is too long.
    #[error(
        "a key has at most {KEY_LENGTH_MAX} bytes and a value {VALUE_LENGTH_MAX}; this one: {0}"
    )]
    TooLong(usize),
    /// The store of one process failed. What it held can be rebuilt from the disks.
    #[error("the coordination store failed: {0}; the next start puts it aside if it is damaged")]
    Store(String),
    /// The host file system below the store of one process takes no writes.
    #[error(
        "the host file system of the coordination store takes no writes ({0}); make space there"
    )]
    HostFull(String),
}

impl CoordinationError {
    /// It may have had its effect, or have it later.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown(_) | Self::Store(_) | Self::HostFull(_))
    }

    /// The same call may succeed later.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Unknown(_) | Self::Busy)
    }
}

/// The answer to come. A call whose answer is dropped is a call whose outcome is unknown.
pub type CoordinationFuture<'a, T> = LocalBoxFuture<'a, Result<T, CoordinationError>>;

/// An engine that keeps small records. What each of them promises is in [the module](self).
pub trait Coordination {
    /// The record of `key`.
    fn get<'a>(&'a self, key: &'a str) -> CoordinationFuture<'a, Option<Record>>;

    /// All records whose keys begin with `prefix`, as they are at one instant.
    fn list<'a>(&'a self, prefix: &'a str) -> CoordinationFuture<'a, Listing>;

    /// Makes the record of `key` be `value`, if what is `expect`ed is there. The record goes with
    /// `lease`, if one is given, and else stays.
    fn write<'a>(
        &'a self,
        key: &'a str,
        value: &'a [u8],
        expect: Expect,
        lease: Option<LeaseId>,
    ) -> CoordinationFuture<'a, WriteOutcome>;

    /// Removes the record of `key`, if what is `expect`ed is there. `Done` also if there was none
    /// and that is no contradiction; its version is then any.
    fn remove<'a>(&'a self, key: &'a str, expect: Expect) -> CoordinationFuture<'a, WriteOutcome>;

    /// A lease of this length. Engines may make it longer, and count in whole seconds.
    fn grant(&self, length: Duration) -> CoordinationFuture<'_, LeaseId>;

    /// The lease begins anew. `LeaseOver` if there is none.
    fn keep_alive(&self, lease: LeaseId) -> CoordinationFuture<'_, ()>;

    /// Ends a lease, and removes its records. Also if it is over.
    fn revoke(&self, lease: LeaseId) -> CoordinationFuture<'_, ()>;

    /// The changes after `after` of records whose keys begin with `prefix`.
    fn watch(&self, prefix: &str, after: Version) -> Box<dyn Watch>;

    /// Makes the record of `key` be `value`, whatever was there.
    fn put<'a>(&'a self, key: &'a str, value: &'a [u8]) -> CoordinationFuture<'a, Version> {
        async move {
            match self.write(key, value, Expect::Any {}, None).await? {
                WriteOutcome::Done { version } => Ok(version),
                WriteOutcome::Differs { .. } => Err(CoordinationError::Refused(
                    "it answered that a record differs, and none was expected".to_owned(),
                )),
            }
        }
        .boxed_local()
    }
}

/// A stream of changes.
pub trait Watch {
    /// The next change. After an error the watch is over: watch again from the last version seen
    /// (before an error that is not safe: changes that were made at once have one version). The
    /// connection may be gone without a sign, so who watches also reads now and then. Dropping the
    /// future loses nothing.
    fn next(&mut self) -> CoordinationFuture<'_, RecordChange>;
}

/// A new epoch, later than any that was given before and than `after`; durable when it returns. No
/// two callers are given the same.
pub async fn next_epoch(
    engine: &dyn Coordination,
    after: Epoch,
) -> Result<Epoch, CoordinationError> {
    for _ in 0..EPOCH_TRIES_MAX {
        let seen = engine.get(EPOCH_KEY).await?;
        let next = Epoch(epoch_in(seen.as_ref()).max(after).0 + 1);
        let expect = Expect::still(seen.as_ref());
        match engine.write(EPOCH_KEY, &to_bytes(&next), expect, None).await {
            Ok(WriteOutcome::Done { .. }) => return Ok(next),
            // Another caller took it, or we did and lost the reply: it is skipped.
            Ok(WriteOutcome::Differs { .. }) | Err(CoordinationError::Unknown(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Err(CoordinationError::Busy)
}

/// The last epoch that was given, 0 if none was.
pub async fn last_epoch(engine: &dyn Coordination) -> Result<Epoch, CoordinationError> {
    Ok(epoch_in(engine.get(EPOCH_KEY).await?.as_ref()))
}

fn epoch_in(record: Option<&Record>) -> Epoch {
    record.and_then(|record| from_bytes(&record.value).ok()).unwrap_or_default()
}

/// Refuses what no engine may be given.
pub fn check_lengths(key: &str, value: &[u8]) -> Result<(), CoordinationError> {
    match (key.len(), value.len()) {
        (length, _) if length > KEY_LENGTH_MAX => Err(CoordinationError::TooLong(length)),
        (_, length) if length > VALUE_LENGTH_MAX => Err(CoordinationError::TooLong(length)),
        _ => Ok(()),
    }
}
