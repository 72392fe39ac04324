//! Open files: open, read, write, sync, close.

use std::sync::Arc;

use bytes::Bytes;
use client::leases::OpenFileGuard;
use client::protocol::{Credentials, Read, SyncDirectory, TRANSFER_MAX};
use runtime::Spawn;

use super::MountOperations;
use crate::caller::CallerProcess;
use crate::inode_table::OpenFile;
use crate::page_version::ContentVersion;
use crate::translate::{KernelError, KernelResult};
use crate::volume_client::OpenTarget;

/// A file that was opened for the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenedNumber {
    pub(crate) number: u64,
    /// The kernel's pages of it are up to date.
    pub(crate) keeps_pages: bool,
}

/// Why the kernel writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteSource {
    /// A program writes, and the kernel changes its pages with it.
    CachedWrite,
    /// A program writes past the page cache.
    DirectWrite,
    /// A page that a program has mapped is written back.
    MappedPage,
}

impl<S: Spawn> MountOperations<S> {
    /// Opens a regular file or a directory at its node.
    pub(crate) async fn open(
        &self,
        caller: CallerProcess,
        ino: u64,
        target: OpenTarget,
    ) -> KernelResult<OpenedNumber> {
        let (file, opener) = (self.handle(ino)?, caller.credentials());
        self.volume.send_collected(ino).await;
        let (holding, version) = self.volume.open(&opener, file, target).await?;
        if let OpenTarget::File(_) = target {
            return Ok(self.add_open_file(holding, opener, version));
        }
        let number = self.inodes.open_directory(file, opener);
        holding.keep();
        Ok(OpenedNumber { number, keeps_pages: false })
    }

    /// The number of an open file, until it is [closed](Self::close).
    pub(super) fn add_open_file(
        &self,
        holding: OpenFileGuard<S>,
        opener: Credentials,
        version: Option<ContentVersion>,
    ) -> OpenedNumber {
        let file = holding.file();
        let (number, verdict) = self.inodes.open(file, opener, version);
        holding.keep();
        if verdict.has_old_attributes {
            // Before the program has the file: it must see the size.
            self.inodes.invalidate(file.ino);
        }
        OpenedNumber { number, keeps_pages: verdict.keeps_pages }
    }

    /// Closes an open file and releases the locks made through it.
    pub(crate) async fn close(&self, number: u64) {
        if let Some(open) = self.inodes.file(number) {
            self.volume.send_collected(open.handle.ino).await;
        }
        let Some(open) = self.inodes.close(number) else { return };
        for owner in open.lockers() {
            if let Err(KernelError(number)) = self.unlock_all(&open, owner).await {
                tracing::warn!(number, "cannot unlock before the last close of the file");
            }
        }
        self.volume.leases.close(&self.volume.machine, open.handle);
    }

    pub(super) fn open_file(&self, number: u64) -> KernelResult<Arc<OpenFile>> {
        self.inodes.used_file(number).ok_or(KernelError(libc::EBADF))
    }

    /// The open file with this number, to read or change it. It fails if locks made through it were
    /// lost, since others may have changed what they guarded: the program must open it again.
    pub(super) fn usable_file(&self, number: u64) -> KernelResult<Arc<OpenFile>> {
        let open = self.open_file(number)?;
        if self.volume.leases.has_lost_locks(open.handle) && !open.lockers().is_empty() {
            return Err(KernelError(libc::EIO));
        }
        Ok(open)
    }

    /// Reads from `offset`; returns fewer than `length` bytes at the end of the file only. The file
    /// is open for reading. Of large reads each process of the volume sends what it has (ADR 86).
    pub(crate) async fn read(
        &self,
        number: u64,
        offset: u64,
        length: u32,
    ) -> KernelResult<Vec<Bytes>> {
        let open = self.usable_file(number)?;
        let file = open.handle;
        let mut parts = Vec::new();
        let mut done: u32 = 0;
        while done < length {
            let offset = offset + u64::from(done);
            let length = (length - done).min(TRANSFER_MAX);
            let who = (*open.opener).clone();
            let read = Read { who, file, offset, length };
            let read = self.volume.unsynced.read_large(&self.volume.machine, file, read).await?;
            self.inodes.note_read(file, self.volume.version(&read.attributes));
            let count: usize = read.data.iter().map(Bytes::len).sum();
            if count > length as usize {
                return Err(KernelError(libc::EIO));
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
        number: u64,
        offset: u64,
        data: Bytes,
        source: WriteSource,
    ) -> KernelResult<()> {
        let open = match source {
            // The kernel chooses any file of those that are open, or are being opened.
            WriteSource::MappedPage => self.inodes.file(number).ok_or(KernelError(libc::EBADF))?,
            _ => self.usable_file(number)?,
        };
        if source != WriteSource::MappedPage {
            open.behind.report_to_write()?;
        }
        let (machine, place) = (&self.volume.machine, (open.handle, offset, vec![data]));
        let written = self.volume.unsynced.write(machine, &open.unsynced, &open.opener, place);
        let written = written.await?;
        if source == WriteSource::CachedWrite {
            let after = self.volume.version(&written.attributes);
            self.inodes.note_own_write(open.handle, written.before, after);
        }
        Ok(())
    }

    /// Writes `data`, at most [`TRANSFER_MAX`] bytes, at the end of the file, which the kernel
    /// takes to be `end`. It may be old: other clients append too.
    pub(crate) async fn append(
        &self,
        number: u64,
        end: u64,
        data: Bytes,
        source: WriteSource,
    ) -> KernelResult<()> {
        let open = self.usable_file(number)?;
        open.behind.report_to_write()?;
        let (machine, unsynced) = (&self.volume.machine, &self.volume.unsynced);
        let place = (open.handle, vec![data]);
        let appended =
            client::append(machine, unsynced, &open.unsynced, &open.opener, place).await?;
        if appended.offset != end {
            self.inodes.invalidate(open.handle.ino);
        } else if source == WriteSource::CachedWrite {
            let after = self.volume.version(&appended.written.attributes);
            self.inodes.note_own_write(open.handle, appended.written.before, after);
        }
        Ok(())
    }

    /// Makes all writes to the file durable, and sends again what a server has lost. Reports once
    /// if writes through this open file are lost.
    pub(crate) async fn sync(&self, number: u64) -> KernelResult<()> {
        let open = self.open_file(number)?;
        let machine = &self.volume.machine;
        let synced = self.volume.unsynced.sync(machine, &open.unsynced, open.handle).await;
        open.behind.report()?;
        Ok(synced?)
    }

    /// A program closes the file. Fails if writes through it have failed since they were answered.
    /// POSIX: the locks of `owner` on the file end, whichever descriptor made them.
    pub(crate) async fn flush(&self, number: u64, owner: u64) -> KernelResult<()> {
        let open = self.open_file(number)?;
        self.volume.send_collected(open.handle.ino).await;
        let shown = open.behind.shown();
        if self.inodes.has_locked(open.handle.ino, number, owner) {
            self.unlock_all(&open, owner).await?;
        }
        shown
    }

    /// Makes the entries of a directory durable.
    pub(crate) async fn sync_names(&self, ino: u64) -> KernelResult<()> {
        Ok(self.volume.request(SyncDirectory { directory: self.handle(ino)? }).await?)
    }
}

/// Joins the pieces.
pub(crate) fn joined(mut parts: Vec<Bytes>) -> Bytes {
    match parts.len() {
        1 => parts.swap_remove(0),
        _ => parts.concat().into(),
    }
}
