//! Which clients have which files of this node open. A client keeps its files open by renewing its
//! lease, which covers all of them at this node. All of this is in memory. Durable is only the fact
//! that files may be open, so that a restarted node waits for their clients (ADR 10).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

use meta::partition::order_of;

use super::hand_over::{ClientHandover, FilesHandover, ReplayHandover};
use crate::locks::{LockRefusal, LockTable};
use crate::protocol::{ByteRange, CallId, FileLock, LEASE, LockKind, LockOwner};

/// Files that all clients together have open at one node, at most; past it the answer is `Busy`. A
/// file that is open in each process of a parallel program counts once for each.
const OPEN_FILES_MAX: usize = 1 << 18;
/// Clients with a lease at one node, at most. Past it those without open files are forgotten.
const CLIENTS_MAX: usize = 1 << 16;

/// One client at this node.
pub(super) struct LeaseClient {
    /// Drawn when the client became known.
    lease: u64,
    /// When the lease ends, unless it is renewed.
    until: Duration,
    /// The files that it has open, each with the number of the call that opened it last.
    pub(super) files: BTreeMap<u64, u64>,
}

/// The clients of one node.
#[derive(Default)]
pub(super) struct LeaseTable {
    clients: RefCell<BTreeMap<u64, LeaseClient>>,
    /// For each open file the number of clients that have it open.
    holders: RefCell<BTreeMap<u64, usize>>,
    /// Open files of all clients, in sum.
    open_count: Cell<usize>,
    /// The end of the grace period, in which clients reopen what they had open before the restart.
    grace_end: Cell<Option<Duration>>,
    /// The grace period has ended.
    is_grace_over: Cell<bool>,
    /// Inodes from this number on are new since the restart; `None` before that is known.
    young_from: Cell<Option<u64>>,
    /// Locks on open files.
    locks: RefCell<LockTable>,
}

impl LeaseTable {
    /// Renews the lease of a known client and returns it.
    pub(super) fn renewed(&self, client: u64, now: Duration) -> Option<u64> {
        let mut clients = self.clients.borrow_mut();
        let client = clients.get_mut(&client)?;
        client.until = now + LEASE;
        Some(client.lease)
    }

    /// Notes that the client of `call` has opened a file. False if its lease has expired.
    pub(super) fn note(&self, call: CallId, lease: u64, ino: u64) -> bool {
        let mut clients = self.clients.borrow_mut();
        let known = clients.get_mut(&call.client).filter(|client| client.lease == lease);
        let Some(client) = known else { return false };
        let last = client.files.insert(ino, call.number);
        if last.is_none() {
            *self.holders.borrow_mut().entry(ino).or_default() += 1;
            self.open_count.set(self.open_count.get() + 1);
        } else if let Some(last) = last.filter(|last| *last > call.number) {
            client.files.insert(ino, last);
        }
        true
    }

    /// Closes a file for a client, unless it has opened it again since `call`. True if it was open.
    pub(super) fn take(&self, call: CallId, ino: u64) -> bool {
        let mut clients = self.clients.borrow_mut();
        let Some(client) = clients.get_mut(&call.client) else { return false };
        let is_held = client.files.get(&ino).is_some_and(|held| *held <= call.number);
        if is_held {
            client.files.remove(&ino);
            self.locks.borrow_mut().release(ino, call.client);
        }
        is_held
    }

    /// Counts one client less that has the file open.
    pub(super) fn leave(&self, ino: u64) {
        self.open_count.set(self.open_count.get().saturating_sub(1));
        let mut holders = self.holders.borrow_mut();
        if let Some(count) = holders.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                holders.remove(&ino);
            }
        }
    }

    /// Adds a client.
    pub(super) fn add(&self, client: u64, lease: u64, now: Duration) {
        let known = LeaseClient { lease, until: now + LEASE, files: BTreeMap::new() };
        self.clients.borrow_mut().insert(client, known);
    }

    /// Has the client this lease?
    pub(super) fn knows(&self, client: u64, lease: u64) -> bool {
        self.clients.borrow().get(&client).is_some_and(|known| known.lease == lease)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.clients.borrow().is_empty()
    }

    /// Is a file open, or may a client reopen what it had before the restart?
    pub(super) fn has_opens(&self) -> bool {
        self.open_count.get() > 0 || self.is_in_grace() && self.young_from.get() != Some(0)
    }

    /// There are as many open files as there may be.
    pub(super) fn has_too_many_files(&self) -> bool {
        self.open_count.get() >= OPEN_FILES_MAX
    }

    /// Is there room for one more client? Idle ones may be forgotten for it.
    pub(super) fn has_room(&self) -> bool {
        self.clients.borrow().len() < CLIENTS_MAX || self.make_room()
    }

    /// Has the client the file open?
    pub(super) fn has_open(&self, client: u64, ino: u64) -> bool {
        self.clients.borrow().get(&client).is_some_and(|known| known.files.contains_key(&ino))
    }

    /// Has the client the file open under this lease? Then the lease is renewed.
    pub(super) fn is_held_under(&self, client: u64, lease: u64, ino: u64, now: Duration) -> bool {
        let mut clients = self.clients.borrow_mut();
        let known = clients.get_mut(&client).filter(|known| known.lease == lease);
        let Some(known) = known else { return false };
        known.until = now + LEASE;
        known.files.contains_key(&ino)
    }

    /// Begins the grace period, for inodes below `young_from`; returns the rest of it.
    pub(super) fn begin_grace(&self, young_from: u64, now: Duration) -> Duration {
        self.young_from.set(Some(young_from));
        if young_from == 0 {
            return Duration::ZERO;
        }
        let end = self.grace_end.get().unwrap_or(now + LEASE);
        self.grace_end.set(Some(end));
        end.saturating_sub(now)
    }

    pub(super) fn end_grace(&self) {
        self.is_grace_over.set(true);
    }

    /// Has the grace period not ended yet?
    pub(super) fn is_in_grace(&self) -> bool {
        !self.is_grace_over.get()
    }

    /// Does the grace period apply to this file?
    pub(super) fn is_in_grace_for(&self, ino: u64) -> bool {
        self.is_in_grace() && self.young_from.get().is_none_or(|young| order_of(ino) < young)
    }

    pub(super) fn is_held(&self, ino: u64) -> bool {
        self.holders.borrow().contains_key(&ino)
    }

    /// Clients whose leases have expired at `now`.
    pub(super) fn over(&self, now: Duration) -> Vec<u64> {
        let clients = self.clients.borrow();
        clients.iter().filter(|(_, known)| known.until <= now).map(|(&client, _)| client).collect()
    }

    /// Removes a client, unless it has renewed its lease.
    pub(super) fn remove_over(&self, client: u64, now: Duration) -> Option<LeaseClient> {
        let mut clients = self.clients.borrow_mut();
        let is_over = clients.get(&client).is_some_and(|known| known.until <= now);
        is_over.then(|| clients.remove(&client)).flatten()
    }

    /// Forgets the less recent half of the clients without open files. False if there are none.
    fn make_room(&self) -> bool {
        let mut clients = self.clients.borrow_mut();
        let idle = clients.iter().filter(|(_, known)| known.files.is_empty());
        let mut idle: Vec<(Duration, u64)> =
            idle.map(|(&client, known)| (known.until, client)).collect();
        idle.sort_unstable();
        idle.truncate(idle.len().div_ceil(2));
        for (_, client) in &idle {
            clients.remove(client);
        }
        !idle.is_empty()
    }

    /// Locks bytes of a file, in place of what the owner has locked of them.
    pub(super) fn lock(
        &self,
        ino: u64,
        owner: LockOwner,
        range: ByteRange,
        kind: LockKind,
    ) -> Result<(), LockRefusal> {
        self.locks.borrow_mut().lock(ino, owner, range, kind)
    }

    pub(super) fn unlock(
        &self,
        ino: u64,
        owner: LockOwner,
        range: ByteRange,
    ) -> Result<(), LockRefusal> {
        self.locks.borrow_mut().unlock(ino, owner, range)
    }

    /// The lock of another owner that conflicts with such a lock.
    pub(super) fn conflict(
        &self,
        ino: u64,
        owner: LockOwner,
        range: ByteRange,
        kind: LockKind,
    ) -> Option<FileLock> {
        self.locks.borrow().conflict(ino, owner, range, kind)
    }

    /// Has any client an exclusive lock on bytes of the file?
    pub(super) fn is_locked_exclusively(&self, ino: u64) -> bool {
        let exclusive = LockKind::Exclusive {};
        self.locks.borrow().of(ino).iter().any(|lock| lock.kind == exclusive)
    }

    /// Releases all locks of a client on a file.
    pub(super) fn release_locks(&self, ino: u64, client: u64) {
        self.locks.borrow_mut().release(ino, client);
    }

    /// Open files and locks, for the successor of this node.
    pub(super) fn handed(&self, now: Duration) -> FilesHandover {
        let clients = self.clients.borrow();
        let clients = clients.iter().map(|(&client, known)| ClientHandover {
            client,
            lease: known.lease,
            files: known.files.iter().map(|(&ino, &number)| (ino, number)).collect(),
        });
        let locks = self.locks.borrow().all().collect();
        let grace_left = match self.grace_end.get() {
            _ if !self.is_in_grace() => Duration::ZERO,
            Some(end) => end.saturating_sub(now),
            None => LEASE,
        };
        let grace_left_ms = grace_left.as_millis() as u64;
        FilesHandover {
            clients: clients.collect(),
            locks,
            grace_left_ms,
            replays: ReplayHandover::default(),
            rights: Vec::new(),
            delegations: Vec::new(),
            delay_left_ms: 0,
        }
    }

    /// Continues with the state of the predecessor. All leases are renewed: a move of the node must
    /// not cost a client its open files.
    pub(super) fn resume(&self, handed: FilesHandover, now: Duration) {
        self.grace_end.set(Some(now + Duration::from_millis(handed.grace_left_ms)));
        for ClientHandover { client, lease, files } in handed.clients {
            self.add(client, lease, now);
            for (ino, number) in files {
                self.note(CallId { client, number }, lease, ino);
            }
        }
        for (file, FileLock { owner, range, kind }) in handed.locks {
            // They fitted into the table of the predecessor.
            let _ = self.locks.borrow_mut().lock(file, owner, range, kind);
        }
    }
}
