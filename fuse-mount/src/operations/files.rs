//! Content: open files, reads, writes, syncs.

use std::sync::Arc;

use bytes::Bytes;
use client::protocol::{
    Commit, Credentials, Error, Handle, Kind, Read, Settle, TRANSFER_MAX, Write,
};
use futures::future::try_join_all;
use runtime::{NodeId, Spawn};

use super::{Operations, Wanted};
use crate::caller::Caller;
use crate::known::OpenFile;
use crate::translate::Failure;

impl<S: Spawn> Operations<S> {
    /// Opens a regular file; its number.
    pub(crate) async fn open(
        &self,
        caller: Caller,
        ino: u64,
        wanted: Wanted,
    ) -> Result<u64, Failure> {
        let file = self.check(caller, ino, wanted).await?;
        match file.kind {
            Kind::File {} => Ok(self.known.open(self.handle(ino)?)),
            Kind::Directory {} => Err(Failure(libc::EISDIR)),
            // The kernel opens all others itself.
            _ => Err(Failure(libc::EINVAL)),
        }
    }

    fn open_file(&self, number: u64) -> Result<Arc<OpenFile>, Failure> {
        self.known.file(number).ok_or(Failure(libc::EBADF))
    }

    /// Bytes from `offset`, fewer than `length` at the end of the file only. Whoever asks has opened
    /// the file for that.
    pub(crate) async fn read(
        &self,
        number: u64,
        offset: u64,
        length: u32,
    ) -> Result<Vec<Bytes>, Failure> {
        let file = self.open_file(number)?.handle;
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
        let open = self.open_file(number)?;
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

    /// Makes all names durable: those of a directory are spread over all nodes.
    pub(crate) async fn sync_names(&self) -> Result<(), Failure> {
        let nodes = (0..self.machine.fs_nodes()).map(NodeId::fs);
        try_join_all(nodes.map(|node| self.settle(node))).await?;
        Ok(())
    }

    async fn settle(&self, node: NodeId) -> Result<(), Error> {
        const PAUSE: std::time::Duration = std::time::Duration::from_millis(20);
        const TRIES_MAX: u32 = 500;
        for _ in 1..TRIES_MAX {
            match self.machine.spawn(node, Settle {}).await {
                Err(error) if error.is_busy() => self.machine.sleep(PAUSE).await,
                answer => return answer,
            }
        }
        self.machine.spawn(node, Settle {}).await
    }
}

/// The pieces as one.
pub(crate) fn joined(mut parts: Vec<Bytes>) -> Bytes {
    match parts.len() {
        1 => parts.swap_remove(0),
        _ => parts.concat().into(),
    }
}

/// What [`Operations::open`] needs to be told of a file that was just made.
pub(crate) fn handle_of(file: &client::Attributes) -> Handle {
    Handle { ino: file.ino, generation: file.generation }
}
