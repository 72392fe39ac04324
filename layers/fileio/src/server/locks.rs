//! Locks of byte ranges, kept under the leases of their clients.

use runtime::protocol::Undelivered;

use super::open_files::OpenFiles;
use crate::locks::LockRefusal;
use crate::protocol::{ByteRange, Error, FileLock, Lock, LockResult, TestLock, Unlock};

impl OpenFiles {
    pub(super) fn lock(&self, request: &Lock) -> Result<LockResult, Error> {
        let &Lock { file, owner, range, kind, lease, reclaim } = request;
        check_range(range)?;
        if !self.leases.is_held_under(owner.client, lease, file.ino, self.base.context.now()) {
            return Ok(LockResult::Unheld {});
        }
        // During the grace period only locks from before the restart are granted.
        match (self.leases.is_in_grace_for(file.ino), reclaim) {
            (true, false) => return Ok(LockResult::Grace {}),
            (false, true) => return Ok(LockResult::Late {}),
            (true, true) | (false, false) => {}
        }
        match self.leases.lock(file.ino, owner, range, kind) {
            Ok(()) => Ok(LockResult::Granted {}),
            Err(LockRefusal::Conflict(lock)) => Ok(LockResult::Conflict { lock }),
            Err(LockRefusal::Full) => Err(Undelivered::Busy.into()),
        }
    }

    pub(super) fn test_lock(&self, request: &TestLock) -> Result<Option<FileLock>, Error> {
        let &TestLock { file, owner, range, kind } = request;
        check_range(range)?;
        Ok(self.leases.conflict(file.ino, owner, range, kind))
    }

    pub(super) fn unlock(&self, request: &Unlock) -> Result<(), Error> {
        let &Unlock { file, owner, range } = request;
        check_range(range)?;
        let unlocked = self.leases.unlock(file.ino, owner, range);
        unlocked.map_err(|_| Undelivered::Busy.into())
    }
}

fn check_range(range: ByteRange) -> Result<(), Error> {
    if range.first <= range.last { Ok(()) } else { Err(Error::Invalid {}) }
}
