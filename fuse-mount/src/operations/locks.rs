//! Locks between processes of this host and all other clients of the volume.
//!
//! They are in the volume's lock table, under this mount's leases. `flock` locks all bytes of a
//! file, so it conflicts with `fcntl` locks, as over NFS. Deadlocks are not detected.

use client::lock::{LOCK_PAUSE, LOCK_PAUSE_MAX, LockAttempt};
use client::protocol::TestLock;
use client::{ByteRange, FileLock, LockKind, RETRY_ROUNDS_MAX};
use runtime::Spawn;

use super::MountOperations;
use crate::caller::CallerProcess;
use crate::inode_table::OpenFile;
use crate::translate::{KernelError, KernelResult};

/// A lock to acquire or test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockRequest {
    /// The kernel's number of a process, or of an open file.
    pub(crate) owner: u64,
    pub(crate) range: ByteRange,
    pub(crate) kind: LockKind,
}

/// A conflicting lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConflictingLock {
    pub(crate) lock: FileLock,
    /// The process that has it; 0 if it belongs to another client.
    pub(crate) pid: u32,
}

impl<S: Spawn> MountOperations<S> {
    /// Locks bytes of an open file for the process `pid`; if it `waits`, until they are free or a
    /// signal arrives.
    pub(crate) async fn lock(
        &self,
        caller: CallerProcess,
        number: u64,
        request: LockRequest,
        pid: u32,
        waits: bool,
    ) -> KernelResult<()> {
        let open = self.usable_file(number)?;
        let LockRequest { owner, range, kind } = request;
        self.inodes.add_locker(&open, owner, pid);
        let (mut pause, mut busy) = (LOCK_PAUSE, 0_u32);
        loop {
            match self
                .volume
                .leases
                .lock(&self.volume.machine, open.handle, (owner, range, kind))
                .await
            {
                Ok(LockAttempt::Granted) => {
                    // Others may have changed what the lock guards.
                    self.inodes.invalidate(open.handle.ino);
                    return Ok(());
                }
                Ok(LockAttempt::Conflict(_)) if !waits => return Err(KernelError(libc::EAGAIN)),
                Ok(LockAttempt::Conflict(_) | LockAttempt::Later) => {}
                // The answer to a reclaim, which the kernel never sends.
                Ok(LockAttempt::Late) => return Err(KernelError(libc::EIO)),
                Err(error) if error.not_applied() && (waits || busy < RETRY_ROUNDS_MAX) => {
                    busy = busy.saturating_add(1);
                }
                Err(error) if error.is_busy() => return Err(KernelError(libc::ENOLCK)),
                Err(error) => return Err(error.into()),
            }
            if caller.is_interrupted() {
                return Err(KernelError(libc::EINTR));
            }
            self.volume.machine.sleep(pause).await;
            pause = (2 * pause).min(LOCK_PAUSE_MAX);
        }
    }

    /// Releases the locks of `owner` on a range.
    pub(crate) async fn unlock(
        &self,
        number: u64,
        owner: u64,
        range: ByteRange,
    ) -> KernelResult<()> {
        let open = self.open_file(number)?;
        if range == ByteRange::ALL {
            return self.unlock_all(&open, owner).await;
        }
        self.volume.send_all_collected().await;
        self.volume.refresh(open.handle).await;
        Ok(self.volume.leases.unlock(&self.volume.machine, open.handle, owner, range).await?)
    }

    /// Releases all locks of `owner` on a file.
    pub(super) async fn unlock_all(&self, open: &OpenFile, owner: u64) -> KernelResult<()> {
        self.volume.send_all_collected().await;
        self.volume.refresh(open.handle).await;
        self.volume.leases.unlock(&self.volume.machine, open.handle, owner, ByteRange::ALL).await?;
        self.inodes.remove_locker(open, owner);
        Ok(())
    }

    /// A lock of another owner that conflicts with this one.
    pub(crate) async fn test_lock(
        &self,
        number: u64,
        request: LockRequest,
    ) -> KernelResult<Option<ConflictingLock>> {
        let file = self.open_file(number)?.handle;
        let LockRequest { owner, range, kind } = request;
        let owner = self.volume.leases.owner(owner);
        let found = self.volume.request(TestLock { file, owner, range, kind }).await?;
        Ok(found.map(|lock| {
            let is_here = lock.owner.client == owner.client;
            let pid = self.inodes.locker(file.ino, lock.owner.id).filter(|_| is_here);
            ConflictingLock { lock, pid: pid.unwrap_or(0) }
        }))
    }
}
