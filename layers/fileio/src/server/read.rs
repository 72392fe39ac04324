//! Reading: the map of the chunks, then the stripes that hold them, all at once.

use std::rc::Rc;
use std::time::Duration;

use meta::attributes::access;
use runtime::delivery::{DeliveryTarget, PORTS_MAX};

use super::base::MetadataAccess;
use super::commit::{ContentComponents, FileCommits};
use super::content::{ContentAccess, RangeData, block_sources};
use super::direct::ReadDelivery;
use super::readahead::ReadAhead;
use crate::protocol::{Attributes, DirectData, Error, Read, ReadData, ReadDirect, TRANSFER_MAX};
use crate::rules;

/// Answers [`Read`] and [`ReadDirect`].
pub(super) struct FileReader {
    base: MetadataAccess,
    content: Rc<ContentAccess>,
    commits: Rc<FileCommits>,
    readahead: Rc<ReadAhead>,
}

impl FileReader {
    pub(super) fn new((base, content, commits): ContentComponents) -> Self {
        let readahead = Rc::new(ReadAhead::new(base.clone(), content.clone()));
        Self { base, content, commits, readahead }
    }

    /// Answers [`Read`] if it need not wait: the map is in memory, the bytes are cached on this
    /// thread, and no write of them runs or waits.
    pub(super) fn try_read_now(&self, request: &Read) -> Option<ReadData> {
        let &Read { ref who, file, offset, length } = request;
        if length > TRANSFER_MAX || !self.content.files.is_open(&file.ino) {
            return None;
        }
        let read = self.base.information.look(file.ino, file.generation, |known| {
            let attributes = *known.attributes();
            self.base.check_transfer(who, &attributes, access::READ).ok()?;
            if !self.base.is_read_only && rules::notes_access(&attributes, self.base.now()) {
                return None;
            }
            let end = end_of_read(&attributes, offset, length);
            let chunk_size = u64::from(self.content.geometry.stripe_size);
            let chunks = offset / chunk_size..end.div_ceil(chunk_size);
            let mut data = Vec::with_capacity(chunks.clone().count());
            for index in chunks {
                let start = index * chunk_size;
                let (from, to) = (offset.max(start), end.min(start + chunk_size));
                if from < to && !self.content.chunks.is_open(&(file.ino, index)) {
                    return None;
                }
                let chunk = ((file.ino, index), known.chunk(index)?);
                for place in block_sources(chunk, from - start, to - start) {
                    data.push(self.content.try_take_now(&place)?);
                }
            }
            let write_verifier = self.base.information.write_verifier(file.ino);
            Some(ReadData { data, end: end >= attributes.size, attributes, write_verifier })
        })?;
        let end = end_of_read(&read.attributes, offset, length);
        self.readahead.note_read(file, &(offset..end), read.attributes.size, Duration::ZERO);
        Some(read)
    }

    pub(super) async fn read(&self, request: Read) -> Result<ReadData, Error> {
        Ok(self.read_with(&request, None).await?.read)
    }

    /// Answers [`ReadDirect`].
    pub(super) async fn read_direct(&self, request: ReadDirect) -> Result<DirectData, Error> {
        let ReadDirect { who, file, offset, length, deliver } = request;
        if deliver.ports.len() > PORTS_MAX {
            return Err(Error::Invalid {});
        }
        self.read_with(&Read { who, file, offset, length }, Some(&deliver)).await
    }

    async fn read_with(
        &self,
        request: &Read,
        target: Option<&DeliveryTarget>,
    ) -> Result<DirectData, Error> {
        let outcome = self.read_once(request, target).await;
        if outcome != Err(Error::Damaged {}) || self.base.is_read_only {
            return outcome;
        }
        // Boxed, to keep the future of the usual case small.
        Box::pin(self.commits.recover_lost_writes(request.file)).await;
        Box::pin(self.read_once(request, target)).await
    }

    async fn read_once(
        &self,
        request: &Read,
        target: Option<&DeliveryTarget>,
    ) -> Result<DirectData, Error> {
        let &Read { ref who, file, offset, length } = request;
        if length > TRANSFER_MAX {
            return Err(Error::Invalid {});
        }
        let _reading = self.content.files.shared(file.ino).await;
        let before = self.base.attributes(file).await?;
        // As long as the file is read nothing of it is rolled back.
        let write_verifier = self.base.information.write_verifier(file.ino);
        self.base.check_transfer(who, &before, access::READ)?;
        let end = end_of_read(&before, offset, length);
        let mut read = RangeData { data: Vec::new(), delivered: Vec::new() };
        let mut execution = 0;
        if end > offset {
            let start = self.base.context.now();
            let delivery = target.map(|target| {
                execution = self.base.context.random();
                ReadDelivery { target, execution }
            });
            read = self.content.read_or_deliver(file, (offset, end), delivery).await?;
            self.readahead.note_read(
                file,
                &(offset..end),
                before.size,
                self.base.context.now().saturating_sub(start),
            );
        }
        let RangeData { data, delivered } = read;
        let is_empty = data.is_empty() && delivered.is_empty();
        let attributes = if is_empty { before } else { self.base.note_access(&before).await? };
        let read = ReadData { data, end: end >= before.size, attributes, write_verifier };
        Ok(DirectData { read, execution, delivered })
    }
}

/// Where a read of `length` bytes ends, no earlier than it begins.
fn end_of_read(file: &Attributes, offset: u64, length: u32) -> u64 {
    file.size.min(offset.saturating_add(u64::from(length))).max(offset)
}
