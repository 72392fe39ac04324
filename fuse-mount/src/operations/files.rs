//! Content: open files, reads, writes, syncs.

use std::sync::Arc;

use bytes::Bytes;
use client::leases::{Answered, Holding};
use client::protocol::{
    Attributes, Commit, Credentials, Error, Handle, Kind, OpenHandle, OpenedFile, Read,
    SyncDirectory, TRANSFER_MAX, Write,
};
use runtime::Spawn;

use super::attributes::permitted;
use super::{Operations, Wanted};
use crate::caller::Caller;
use crate::known::OpenFile;
use crate::translate::Failure;

impl<S: Spawn> Operations<S> {
    /// Opens a regular file, which is held at its node; its number.
    pub(crate) async fn open(
        &self,
        caller: Caller,
        ino: u64,
        wanted: Wanted,
    ) -> Result<u64, Failure> {
        let file = self.handle(ino)?;
        let _opening = self.leases.opening();
        let call = self.call();
        let OpenedFile { attributes, lease } = self.ask(OpenHandle { call, file }).await?;
        let holding = self.held(&attributes, Answered { call, lease }).await?;
        permitted(&attributes, caller, wanted)?;
        Ok(self.open_held(holding))
    }

    /// A node has answered that it holds the file.
    pub(super) async fn held(
        &self,
        file: &Attributes,
        answered: Answered,
    ) -> Result<Holding<S>, Failure> {
        match file.kind {
            Kind::File {} => Ok(self.leases.held(&self.machine, handle_of(file), answered).await?),
            Kind::Directory {} => Err(Failure(libc::EISDIR)),
            // The kernel opens all others itself.
            _ => Err(Failure(libc::EINVAL)),
        }
    }

    /// The number of a file that was opened, until it is [closed](Self::close).
    pub(super) fn open_held(&self, holding: Holding<S>) -> u64 {
        let number = self.known.open(holding.file());
        holding.keep();
        number
    }

    /// Nobody uses the open file any more, nor the locks that came through it.
    pub(crate) async fn close(&self, number: u64) {
        let Some(open) = self.known.close(number) else { return };
        for owner in open.lockers() {
            if let Err(Failure(number)) = self.unlock_all(&open, owner).await {
                tracing::warn!(number, "a lock stays until its file is closed everywhere");
            }
        }
        self.leases.close(&self.machine, open.handle);
    }

    pub(super) fn open_file(&self, number: u64) -> Result<Arc<OpenFile>, Failure> {
        self.known.file(number).ok_or(Failure(libc::EBADF))
    }

    /// The open file of a number, to read or change it. Not if locks that came through it are lost, since
    /// others may have changed what they guarded: the program has to open it again.
    pub(super) fn usable(&self, number: u64) -> Result<Arc<OpenFile>, Failure> {
        let open = self.open_file(number)?;
        if self.leases.has_lost_locks(open.handle) && !open.lockers().is_empty() {
            return Err(Failure(libc::EIO));
        }
        Ok(open)
    }

    /// Bytes from `offset`, fewer than `length` at the end of the file only. Whoever asks has opened
    /// the file for that.
    pub(crate) async fn read(
        &self,
        number: u64,
        offset: u64,
        length: u32,
    ) -> Result<Vec<Bytes>, Failure> {
        let file = self.usable(number)?.handle;
        let mut parts = Vec::new();
        let mut done: u32 = 0;
        while done < length {
            let (who, offset) = (Credentials::root(), offset + u64::from(done));
            let length = (length - done).min(TRANSFER_MAX);
            let read = self.ask(Read { who, file, offset, length }).await?;
            let count: usize = read.data.iter().map(Bytes::len).sum();
            if count > length as usize {
                return Err(Failure(libc::EIO));
            }
            done += count as u32;
            parts.extend(read.data);
            if read.end || count == 0 {
                break;
            }
        }
        Ok(parts)
    }

    /// Writes `data`, at most [`TRANSFER_MAX`] bytes, at `offset`.
    pub(crate) async fn write(
        &self,
        caller: Caller,
        number: u64,
        offset: u64,
        data: Bytes,
    ) -> Result<(), Failure> {
        let open = self.usable(number)?;
        let file = open.handle;
        let call = |who| Write { who, file, offset, data: vec![data.clone()], durable: false };
        let written = self.ask_opened(caller, file, call).await?;
        open.note(written.write_verifier);
        Ok(())
    }

    /// Makes all that was written to the file durable. Tells once if something that was written
    /// through this opening of the file is lost.
    pub(crate) async fn sync(&self, number: u64) -> Result<(), Failure> {
        let open = self.open_file(number)?;
        let first = open.take_unsynced();
        match self.ask(Commit { file: open.handle }).await {
            Ok(done) if first.is_none_or(|first| first == done.write_verifier) => Ok(()),
            Ok(_) => Err(Error::LostWrites {}.into()),
            Err(error) => {
                open.put_back(first);
                Err(error.into())
            }
        }
    }

    /// Makes all names of a directory durable.
    pub(crate) async fn sync_names(&self, ino: u64) -> Result<(), Failure> {
        Ok(self.ask(SyncDirectory { directory: self.handle(ino)? }).await?)
    }
}

/// The pieces as one.
pub(crate) fn joined(mut parts: Vec<Bytes>) -> Bytes {
    match parts.len() {
        1 => parts.swap_remove(0),
        _ => parts.concat().into(),
    }
}

fn handle_of(file: &Attributes) -> Handle {
    Handle { ino: file.ino, generation: file.generation }
}
