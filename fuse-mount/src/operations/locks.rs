//! Locks, of all processes of this host and of all other clients of the volume.
//!
//! They are in the volume's table of locks, under this mount's leases. `flock` locks all bytes of a file,
//! so it excludes those who lock bytes (`fcntl`), too, as over NFS. Deadlocks are not found out.

use client::lock::{LOCK_PAUSE, LOCK_PAUSE_MAX, Tried};
use client::protocol::TestLock;
use client::{ByteRange, FileLock, LockKind, PATIENT_ROUNDS_MAX};
use runtime::Spawn;

use super::Operations;
use crate::caller::Caller;
use crate::known::OpenFile;
use crate::translate::Failure;

/// A lock that is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockAsked {
    /// The kernel's number of a process, or of an opening of a file.
    pub(crate) owner: u64,
    pub(crate) range: ByteRange,
    pub(crate) kind: LockKind,
}

/// A lock that somebody has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockFound {
    pub(crate) lock: FileLock,
    /// The process that has it; 0 if it came through another client.
    pub(crate) pid: u32,
}

impl<S: Spawn> Operations<S> {
    /// Locks bytes of an open file for the process `pid`; if it `waits`, as long as others have them and no
    /// signal comes.
    pub(crate) async fn lock(
        &self,
        caller: Caller,
        number: u64,
        asked: LockAsked,
        pid: u32,
        waits: bool,
    ) -> Result<(), Failure> {
        let open = self.usable(number)?;
        let LockAsked { owner, range, kind } = asked;
        self.known.note_locker(&open, owner, pid);
        let (mut pause, mut busy) = (LOCK_PAUSE, 0_u32);
        loop {
            match self.leases.lock(&self.machine, open.handle, (owner, range, kind)).await {
                Ok(Tried::Granted) => {
                    // Others may have changed what the lock guards.
                    self.known.outdate(open.handle.ino);
                    return Ok(());
                }
                Ok(Tried::Conflict(_)) if !waits => return Err(Failure(libc::EAGAIN)),
                Ok(Tried::Conflict(_) | Tried::Later) => {}
                // The answer to who had the lock before; the kernel never says so.
                Ok(Tried::Late) => return Err(Failure(libc::EIO)),
                Err(error) if error.not_applied() && (waits || busy < PATIENT_ROUNDS_MAX) => {
                    busy = busy.saturating_add(1);
                }
                Err(error) if error.is_busy() => return Err(Failure(libc::ENOLCK)),
                Err(error) => return Err(error.into()),
            }
            if caller.is_interrupted() {
                return Err(Failure(libc::EINTR));
            }
            self.machine.sleep(pause).await;
            pause = (2 * pause).min(LOCK_PAUSE_MAX);
        }
    }

    /// Gives up what `owner` has locked of some bytes.
    pub(crate) async fn unlock(
        &self,
        number: u64,
        owner: u64,
        range: ByteRange,
    ) -> Result<(), Failure> {
        let open = self.open_file(number)?;
        if range == ByteRange::ALL {
            return self.unlock_all(&open, owner).await;
        }
        Ok(self.leases.unlock(&self.machine, open.handle, owner, range).await?)
    }

    /// Gives up all that `owner` has locked of a file.
    pub(super) async fn unlock_all(&self, open: &OpenFile, owner: u64) -> Result<(), Failure> {
        self.leases.unlock(&self.machine, open.handle, owner, ByteRange::ALL).await?;
        self.known.forget_locker(open, owner);
        Ok(())
    }

    /// A lock of somebody else that would be in the way of such a lock.
    pub(crate) async fn test_lock(
        &self,
        number: u64,
        asked: LockAsked,
    ) -> Result<Option<LockFound>, Failure> {
        let file = self.open_file(number)?.handle;
        let LockAsked { owner, range, kind } = asked;
        let owner = self.leases.owner(owner);
        let found = self.ask(TestLock { file, owner, range, kind }).await?;
        Ok(found.map(|lock| {
            let is_here = lock.owner.client == owner.client;
            let pid = self.known.locker(file.ino, lock.owner.id).filter(|_| is_here);
            LockFound { lock, pid: pid.unwrap_or(0) }
        }))
    }
}
