//! Space of a file: set in order before it is written, given back, and found.

use client::protocol::{Allocate, Credentials, PunchHole, Seek, SeekTarget};
use runtime::Spawn;

use super::Operations;
use crate::caller::Caller;
use crate::known::OpenFile;
use crate::translate::Failure;

/// What `fallocate` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fallocation {
    /// Prepares for writes.
    Allocate {
        /// The file does not become longer.
        keep_size: bool,
    },
    /// Makes a hole.
    PunchHole,
    /// Makes all of it zeros, by a hole.
    ZeroRange {
        /// The file does not become longer.
        keep_size: bool,
    },
}

impl<S: Spawn> Operations<S> {
    /// Does `what` to the range from an offset, with a length.
    pub(crate) async fn fallocate(
        &self,
        caller: Caller,
        number: u64,
        range: (u64, u64),
        what: Fallocation,
    ) -> Result<(), Failure> {
        let open = self.usable(number)?;
        match what {
            Fallocation::Allocate { keep_size } => {
                self.allocate(caller, &open, range, keep_size).await
            }
            Fallocation::PunchHole => self.punch_hole(caller, &open, range).await,
            Fallocation::ZeroRange { keep_size } => {
                self.allocate(caller, &open, range, keep_size).await?;
                self.punch_hole(caller, &open, range).await
            }
        }
    }

    async fn allocate(
        &self,
        caller: Caller,
        open: &OpenFile,
        (offset, length): (u64, u64),
        keep_size: bool,
    ) -> Result<(), Failure> {
        let file = open.handle;
        let call = |who| Allocate { who, file, offset, length, keep_size, durable: false };
        self.ask_opened(caller, file, call).await?;
        Ok(())
    }

    async fn punch_hole(
        &self,
        caller: Caller,
        open: &OpenFile,
        (offset, length): (u64, u64),
    ) -> Result<(), Failure> {
        let file = open.handle;
        let call = |who| PunchHole { who, file, offset, length, durable: false };
        let punched = self.ask_opened(caller, file, call).await?;
        open.note(punched.write_verifier);
        Ok(())
    }

    /// The first byte at or after `offset` that is data, or in a hole.
    pub(crate) async fn seek(
        &self,
        number: u64,
        offset: i64,
        target: SeekTarget,
    ) -> Result<i64, Failure> {
        let file = self.open_file(number)?.handle;
        // Whoever asks has opened the file.
        let who = Credentials::root();
        let offset = u64::try_from(offset).map_err(|_| Failure(libc::ENXIO))?;
        let found = self.ask(Seek { who, file, offset, target }).await?;
        found.and_then(|found| found.try_into().ok()).ok_or(Failure(libc::ENXIO))
    }
}
