//! Space of a file: allocation, holes, seeking data and holes.

use client::protocol::{Allocate, Seek, SeekTarget};
use runtime::Spawn;

use super::MountOperations;
use crate::inode_table::OpenFile;
use crate::translate::{KernelError, KernelResult};

/// What `fallocate` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fallocation {
    /// Allocates space.
    Allocate {
        /// The file does not become longer.
        keep_size: bool,
    },
    /// Makes a hole.
    PunchHole,
    /// Zeros the range by a hole.
    ZeroRange {
        /// The file does not become longer.
        keep_size: bool,
    },
}

impl<S: Spawn> MountOperations<S> {
    /// Applies `what` to a range: offset and length.
    pub(crate) async fn fallocate(
        &self,
        number: u64,
        range: (u64, u64),
        what: Fallocation,
    ) -> KernelResult<()> {
        let open = self.usable_file(number)?;
        match what {
            Fallocation::Allocate { keep_size } => self.allocate(&open, range, keep_size).await,
            Fallocation::PunchHole => self.punch_hole(&open, range).await,
            Fallocation::ZeroRange { keep_size } => {
                self.allocate(&open, range, keep_size).await?;
                self.punch_hole(&open, range).await
            }
        }
    }

    async fn allocate(
        &self,
        open: &OpenFile,
        (offset, length): (u64, u64),
        keep_size: bool,
    ) -> KernelResult<()> {
        let (who, file) = ((*open.opener).clone(), open.handle);
        let durable = !keep_size && self.volume.unsynced.is_keeping();
        let call = Allocate { who, file, offset, length, keep_size, durable };
        self.volume.request(call).await?;
        Ok(())
    }

    async fn punch_hole(&self, open: &OpenFile, (offset, length): (u64, u64)) -> KernelResult<()> {
        let (machine, place) = (&self.volume.machine, (open.handle, offset, length));
        self.volume.unsynced.punch(machine, &open.unsynced, &open.opener, place).await?;
        Ok(())
    }

    /// The first byte at or after `offset` that is data, or in a hole.
    pub(crate) async fn seek(
        &self,
        number: u64,
        offset: i64,
        target: SeekTarget,
    ) -> KernelResult<i64> {
        let open = self.open_file(number)?;
        let file = open.handle;
        let offset = u64::try_from(offset).map_err(|_| KernelError(libc::ENXIO))?;
        self.volume.refresh(file).await;
        let who = (*open.opener).clone();
        let found = self.volume.request(Seek { who, file, offset, target }).await?;
        found.and_then(|found| found.try_into().ok()).ok_or(KernelError(libc::ENXIO))
    }
}
