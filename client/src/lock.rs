//! Locks of byte ranges of open files: advisory, as POSIX has them.
//!
//! They last as long as the leases of open files (ADR 10). If a client is cut off for longer than a
//! lease, or returns too late after a node has restarted, its locks are lost. [`Lock::is_held`]
//! shows it: check it before a change of what the lock guards.

use std::time::Duration;

use fileio::protocol::{ByteRange, FileLock, LockKind, TestLock};
use runtime::Spawn;

use crate::error::Error;
use crate::file::File;

/// The first and the longest pause between two attempts to lock; each pause is twice the one
/// before.
pub const LOCK_PAUSE: Duration = Duration::from_millis(1);
/// See [`LOCK_PAUSE`].
pub const LOCK_PAUSE_MAX: Duration = Duration::from_millis(500);

/// What came of trying to lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockAttempt {
    /// The bytes are locked.
    Granted,
    /// Another owner has this lock.
    Conflict(FileLock),
    /// A node has restarted and grants only reclaimed locks for now. Try again.
    Later,
    /// It is too late to reclaim a lock: others may have had the bytes.
    Late,
}

/// Locked bytes of an open file. Dropping it unlocks them in the background.
///
/// Its owner is the opening of the file: bytes that it locks again are still locked once, and free
/// when the first of its locks on them is dropped.
#[derive(Debug)]
pub struct Lock<S: Spawn> {
    file: File<S>,
    range: ByteRange,
}

impl<S: Spawn> Lock<S> {
    /// What is locked.
    pub fn range(&self) -> ByteRange {
        self.range
    }

    /// Is the lock still there, as far as this client knows? Not after a lease ended: others may
    /// have had the bytes since.
    pub fn is_held(&self) -> bool {
        !self.file.has_lost_locks()
    }
}

impl<S: Spawn> Drop for Lock<S> {
    fn drop(&mut self) {
        let &File { ref session, handle, id, .. } = &self.file;
        let (unsynced, who) = (session.unsynced().clone(), session.user().clone());
        // The next owner of a lock finds what was written, also if it was lost.
        let before = move |machine| async move {
            if let Err(error) = unsynced.refresh(&machine, handle, &who).await {
                tracing::warn!(%error, "unlocking before lost writes are sent again");
            }
        };
        session.leases().unlock_later(session.machine(), (handle, id, self.range), before);
    }
}

impl<S: Spawn> File<S> {
    /// Locks bytes; waits as long as others have them.
    pub async fn lock(&self, range: ByteRange, kind: LockKind) -> Result<Lock<S>, Error> {
        let mut pause = LOCK_PAUSE;
        loop {
            if let Some(lock) = self.try_lock(range, kind).await? {
                return Ok(lock);
            }
            self.machine().sleep(pause).await;
            pause = (2 * pause).min(LOCK_PAUSE_MAX);
        }
    }

    /// Locks bytes if no other owner has them.
    pub async fn try_lock(
        &self,
        range: ByteRange,
        kind: LockKind,
    ) -> Result<Option<Lock<S>>, Error> {
        let (leases, id) = (self.session.leases(), self.id);
        let tried = leases.lock(self.machine(), self.handle, (id, range, kind)).await;
        let tried = tried.map_err(Error::of("lock", self.path()))?;
        self.note_change();
        Ok((tried == LockAttempt::Granted).then(|| Lock { file: self.clone(), range }))
    }

    /// A lock of another owner that conflicts with such a lock.
    pub async fn test_lock(
        &self,
        range: ByteRange,
        kind: LockKind,
    ) -> Result<Option<FileLock>, Error> {
        let (file, owner) = (self.handle, self.session.leases().owner(self.id));
        let tested = self.session.ask(TestLock { file, owner, range, kind }).await;
        tested.map_err(Error::of("test the locks of", self.path()))
    }
    /// Were locks of this client on the file lost since it was opened?
    pub fn has_lost_locks(&self) -> bool {
        self.session.leases().has_lost_locks(self.handle)
    }
}
