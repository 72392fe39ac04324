//! Clients that wait for a lock (RFC 8881 section 9.6). Their requests were denied, and are sent
//! again when the client hears that the lock is free.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use fileio::protocol::{ByteRange, Handle, LockKind, LockOwner};
use runtime::sync::Event;

use crate::v4::limits::{LOCK_WAIT_MAX, LOCK_WAITERS_MAX};

/// Who waits: a client, for a file, as this lock owner. It waits for one lock at a time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LockWaiter {
    pub(crate) client: u64,
    pub(crate) file: Handle,
    /// The name of the lock owner.
    pub(crate) owner: Bytes,
}

/// The lock that a client waits for.
#[derive(Clone, Debug)]
pub(crate) struct AwaitedLock {
    /// The lock owner at the nodes.
    pub(crate) owner: LockOwner,
    pub(crate) range: ByteRange,
    pub(crate) kind: LockKind,
    /// The file handle.
    pub(crate) handle: Vec<u8>,
    /// The client has given up by then.
    pub(crate) until: Duration,
}

/// All clients that wait for a lock.
#[derive(Debug, Default)]
pub(crate) struct LockWaiters {
    waiters: BTreeMap<LockWaiter, AwaitedLock>,
    /// Files with locks that were released.
    released: BTreeSet<Handle>,
    /// A lock was released.
    pub(crate) lock_released: Event,
}

impl LockWaiters {
    /// Adds one, unless there are too many: that client asks again by itself.
    pub(crate) fn add(&mut self, waiter: LockWaiter, lock: AwaitedLock) {
        if self.waiters.len() < LOCK_WAITERS_MAX || self.waiters.contains_key(&waiter) {
            self.waiters.insert(waiter, lock);
        }
    }

    /// Removes one; false if it is not there.
    pub(crate) fn remove(&mut self, waiter: &LockWaiter) -> bool {
        self.waiters.remove(waiter).is_some()
    }

    /// Removes those of a client.
    pub(super) fn remove_of(&mut self, client: u64) {
        self.waiters.retain(|waiter, _| waiter.client != client);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// A lock on `file` was released here.
    pub(crate) fn note_release(&mut self, file: Handle) {
        if self.waiters.keys().any(|waiter| waiter.file == file) {
            self.released.insert(file);
            self.lock_released.tell();
        }
    }

    /// Those whose locks may be free: all, or those on files with a lock that was released here.
    /// Removes those that have waited for too long.
    pub(crate) fn take_due(
        &mut self,
        now: Duration,
        only_released: bool,
    ) -> Vec<(LockWaiter, AwaitedLock)> {
        self.waiters.retain(|_, lock| lock.until > now);
        let released = std::mem::take(&mut self.released);
        let is_due = |waiter: &LockWaiter| !only_released || released.contains(&waiter.file);
        let due = self.waiters.iter().filter(|(waiter, _)| is_due(waiter));
        due.map(|(waiter, lock)| (waiter.clone(), lock.clone())).collect()
    }

    /// When a client that waits from now on has given up.
    pub(crate) fn deadline(now: Duration) -> Duration {
        now + LOCK_WAIT_MAX
    }
}
