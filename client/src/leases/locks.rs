//! Locks of this client, which last as long as its leases.

use std::sync::Arc;
use std::time::Duration;

use fileio::client::{RETRY_ROUNDS_MAX, ask};
use fileio::hash::ino_node;
use fileio::protocol::{
    ByteRange, Error as FileIoError, FileLock, Handle, LEASE, Lock, LockKind, LockOwner,
    LockResult, Unlock,
};
use runtime::protocol::Undelivered;
use runtime::{NodeId, Spawn};

use super::{LeaseState, Leases};
use crate::lock::{LOCK_PAUSE, LOCK_PAUSE_MAX, LockAttempt};

/// Attempts of a lock while its lease changes.
const LEASE_TRIES_MAX: u32 = 8;
/// The longest pause between two looks of who waits for a pending unlock.
const UNLOCK_PAUSE_MAX: Duration = Duration::from_millis(64);
/// How many times it looks: in all about as long as a call is sent again.
const UNLOCK_LOOKS_MAX: u32 = 250;
/// The pause before an unlock that did not get through is sent again.
const UNLOCK_RETRY: Duration = Duration::from_secs(1);

/// An unlock that is under way, until it is dropped.
struct PendingUnlock {
    leases: Arc<Leases>,
    file: Handle,
}

impl Drop for PendingUnlock {
    fn drop(&mut self) {
        let mut open = self.leases.open();
        if let Some(count) = open.unlocking.get_mut(&self.file) {
            *count -= 1;
            if *count == 0 {
                open.unlocking.remove(&self.file);
            }
        }
    }
}

impl LeaseState {
    /// The locks on files at `node` are lost.
    fn lose_locks(&mut self, node: NodeId, fs_nodes: u32) {
        let at_node = |file: &&Handle| ino_node(file.ino, fs_nodes) == node;
        let files: Vec<Handle> = self.files.keys().filter(at_node).copied().collect();
        for file in files {
            self.lose_locks_of(file);
        }
    }

    fn lose_locks_of(&mut self, file: Handle) {
        if let Some(lock) = self.locks.of(file.ino).first() {
            self.locks.release(file.ino, lock.owner.client);
            self.lost.insert(file);
        }
    }
}

impl Leases {
    /// An owner of locks of this client.
    pub fn owner(&self, id: u64) -> LockOwner {
        LockOwner { client: self.client(), id }
    }

    /// Were locks on the file lost since it was opened?
    pub fn has_lost_locks(&self, file: Handle) -> bool {
        self.open().lost.contains(&file)
    }

    /// Has `id` locks on the file, as far as this client knows?
    pub fn has_locks(&self, file: Handle, id: u64) -> bool {
        let owner = self.owner(id);
        self.open().locks.of(file.ino).iter().any(|lock| lock.owner == owner)
    }

    /// Locks bytes of a file that is open for `id`, a number by which the owners of locks of this
    /// client are distinguished, if no one else has them.
    pub async fn lock<S: Spawn>(
        self: &Arc<Self>,
        machine: &S,
        file: Handle,
        wanted: (u64, ByteRange, LockKind),
    ) -> Result<LockAttempt, FileIoError> {
        self.lock_again_or_anew(machine, file, wanted, false).await
    }

    /// The same; with `reclaim` only if `id` had this lock before the node has restarted, as the
    /// holder says whose own memory it is in.
    pub async fn lock_again_or_anew<S: Spawn>(
        self: &Arc<Self>,
        machine: &S,
        file: Handle,
        (id, range, kind): (u64, ByteRange, LockKind),
        reclaim: bool,
    ) -> Result<LockAttempt, FileIoError> {
        let (owner, node) = (self.owner(id), ino_node(file.ino, machine.fs_nodes()));
        let (mut tries, mut losses, mut pause) = (0, 0, LOCK_PAUSE);
        while tries < LEASE_TRIES_MAX {
            // A late unlock would take what is locked now.
            if !self.unlocks_are_over(machine, file).await {
                break;
            }
            let lease = self.open().leases.get(&node).copied().ok_or(FileIoError::Stale {})?;
            let watch = self.watch_unless_watched(machine, node);
            let call = Lock { file, owner, range, kind, lease, reclaim };
            let answer = match ask(machine, call).await {
                // Who has the lock already gets it once more.
                Err(error)
                    if error.is_lost()
                        && (losses < RETRY_ROUNDS_MAX || machine.waits_for_ever()) =>
                {
                    losses += 1;
                    machine.sleep(pause).await;
                    pause = (2 * pause).min(LOCK_PAUSE_MAX);
                    continue;
                }
                answer => answer?,
            };
            tries += 1;
            match answer {
                LockResult::Conflict { lock } => return Ok(LockAttempt::Conflict(lock)),
                LockResult::Grace {} => return Ok(LockAttempt::Later),
                LockResult::Late {} => return Ok(LockAttempt::Late),
                LockResult::Granted {}
                    if self.note_lock(node, lease, watch, (file, owner, range, kind)) =>
                {
                    return Ok(LockAttempt::Granted);
                }
                // The lease is another one by now.
                LockResult::Granted {} => {}
                LockResult::Unheld {} => {
                    self.renew_at(machine, node, lease).await;
                }
            }
        }
        Err(Undelivered::Busy.into())
    }

    /// Waits for unlocks of the file that are under way; false if they do not end. A client of
    /// servers elsewhere waits as long as for any call: its unlocks end in that time.
    async fn unlocks_are_over<S: Spawn>(&self, machine: &S, file: Handle) -> bool {
        let (mut looks, mut pause) = (0, LOCK_PAUSE);
        while looks < UNLOCK_LOOKS_MAX || machine.restarts().is_some() {
            if !self.open().unlocking.contains_key(&file) {
                return true;
            }
            looks += 1;
            machine.sleep(pause).await;
            pause = (2 * pause).min(UNLOCK_PAUSE_MAX);
        }
        false
    }

    /// Notes a lock that was granted; false if the lease has changed since it was asked for, or the
    /// file is not open any more.
    fn note_lock(
        &self,
        node: NodeId,
        lease: u64,
        watch: Option<u64>,
        (file, owner, range, kind): (Handle, LockOwner, ByteRange, LockKind),
    ) -> bool {
        let mut open = self.open();
        let counts = open.leases.get(&node) == Some(&lease) && open.files.contains_key(&file);
        if counts {
            if let Some(watch) = watch {
                open.watched.entry(node).or_insert(watch);
            }
            // The node has granted it, so it is no conflict, and not too much.
            return open.locks.lock(file.ino, owner, range, kind).is_ok();
        }
        false
    }

    /// Gives up what `id` has locked of some bytes.
    pub async fn unlock<S: Spawn>(
        self: &Arc<Self>,
        machine: &S,
        file: Handle,
        id: u64,
        range: ByteRange,
    ) -> Result<(), FileIoError> {
        let owner = self.owner(id);
        let _unlocking = self.begin_unlock(file, owner, range)?;
        loop {
            match ask(machine, Unlock { file, owner, range }).await {
                Err(FileIoError::Undelivered { why }) if why.is_transient() => {
                    machine.sleep(UNLOCK_RETRY).await;
                }
                unlocked => return unlocked,
            }
        }
    }

    /// The same in the background, after what `before` does.
    pub(crate) fn unlock_later<S: Spawn, F: Future<Output = ()> + 'static>(
        self: &Arc<Self>,
        machine: &S,
        (file, id, range): (Handle, u64, ByteRange),
        before: impl FnOnce(S) -> F + Send + 'static,
    ) {
        // The next lock waits for this.
        *self.open().unlocking.entry(file).or_default() += 1;
        let unlocking = PendingUnlock { leases: self.clone(), file };
        machine.task(move |machine| async move {
            before(machine.clone()).await;
            if let Err(error) = unlocking.leases.unlock(&machine, file, id, range).await {
                tracing::warn!(%error, "a lock stays until its file is closed");
            }
        });
    }

    fn begin_unlock(
        self: &Arc<Self>,
        file: Handle,
        owner: LockOwner,
        range: ByteRange,
    ) -> Result<PendingUnlock, FileIoError> {
        let mut open = self.open();
        open.locks.unlock(file.ino, owner, range).map_err(|_| Undelivered::Busy)?;
        *open.unlocking.entry(file).or_default() += 1;
        Ok(PendingUnlock { leases: self.clone(), file })
    }

    /// Gets all locks at `node` again, under a new lease there. Those that others may have had
    /// meanwhile are lost. False if the node has to be asked again.
    pub(super) async fn lock_again<S: Spawn>(&self, machine: &S, node: NodeId, lease: u64) -> bool {
        for file in self.files_at(node, machine.fs_nodes()) {
            // What is being given up must not come back.
            if !self.unlocks_are_over(machine, file).await {
                return false;
            }
            let locks: Vec<FileLock> = self.open().locks.of(file.ino).to_vec();
            for FileLock { owner, range, kind } in locks {
                let call = Lock { file, owner, range, kind, lease, reclaim: true };
                match ask(machine, call).await {
                    Ok(LockResult::Granted {}) => {}
                    Ok(LockResult::Conflict { .. } | LockResult::Late {}) => {
                        self.open().lose_locks_of(file);
                        break;
                    }
                    Ok(LockResult::Unheld {} | LockResult::Grace {}) | Err(_) => return false,
                }
            }
        }
        true
    }

    /// Begins to watch the lease at `node` unless it is watched: locks need it. To be called before
    /// the request that lets the lease begin anew.
    fn watch_unless_watched<S: Spawn>(self: &Arc<Self>, machine: &S, node: NodeId) -> Option<u64> {
        let is_watched = self.open().watched.contains_key(&node);
        (!is_watched).then(|| self.watch(machine, node))
    }

    /// Loses the locks at `node` if the lease has not begun anew a lease's time from now. It has if
    /// another watch was [noted](Self::renewed) meanwhile.
    fn watch<S: Spawn>(self: &Arc<Self>, machine: &S, node: NodeId) -> u64 {
        let (number, leases) = (self.call().number, self.clone());
        machine.task(move |machine| async move {
            machine.sleep(LEASE).await;
            let mut open = leases.open();
            if open.watched.get(&node) == Some(&number) {
                open.watched.remove(&node);
                open.lose_locks(node, machine.fs_nodes());
            }
        });
        number
    }

    /// Before a renewal at `node`: a new watch, if there are locks.
    pub(super) fn watch_again<S: Spawn>(
        self: &Arc<Self>,
        machine: &S,
        node: NodeId,
    ) -> Option<u64> {
        let fs_nodes = machine.fs_nodes();
        let has_locks = {
            let mut open = self.open();
            let at_node = |file: &&Handle| ino_node(file.ino, fs_nodes) == node;
            let mut files = open.files.keys().filter(at_node);
            let has_locks = files.any(|file| !open.locks.of(file.ino).is_empty());
            if !has_locks {
                open.watched.remove(&node);
            }
            has_locks
        };
        has_locks.then(|| self.watch(machine, node))
    }

    /// The lease has begun anew; `watch` was begun before.
    pub(super) fn renewed(&self, node: NodeId, watch: Option<u64>) {
        if let Some(watch) = watch {
            self.open().watched.insert(node, watch);
        }
    }
}
