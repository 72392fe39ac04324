//! Reading: the map of the chunks, then the stripes that hold them, all at once.

use std::rc::Rc;
use std::time::Duration;

use meta::attributes::access;

use super::base::MetadataAccess;
use super::commit::{ContentComponents, FileCommits};
use super::content::{ContentAccess, block_sources};
use super::readahead::ReadAhead;
use crate::protocol::{Attributes, Error, Read, ReadData, TRANSFER_MAX};
use crate::rules;

/// Answers [`Read`].
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
            rules::check_transfer(who, &attributes, access::READ).ok()?;
            if rules::notes_access(&attributes, self.base.now()) {
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
                for place in block_sources(known.chunk(index)?, from - start, to - start) {
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
        let outcome = self.read_once(&request).await;
        if outcome != Err(Error::Damaged {}) {
            return outcome;
        }
        // Boxed, to keep the future of the usual case small.
        Box::pin(self.commits.recover_lost_writes(request.file)).await;
        Box::pin(self.read_once(&request)).await
    }

    async fn read_once(&self, request: &Read) -> Result<ReadData, Error> {
        let &Read { ref who, file, offset, length } = request;
        if length > TRANSFER_MAX {
            return Err(Error::Invalid {});
        }
        let _reading = self.content.files.shared(file.ino).await;
        let before = self.base.attributes(file).await?;
        // As long as the file is read nothing of it is rolled back.
        let write_verifier = self.base.information.write_verifier(file.ino);
        rules::check_transfer(who, &before, access::READ)?;
        let end = end_of_read(&before, offset, length);
        let mut data = Vec::new();
        if end > offset {
            let start = self.base.context.now();
            data = self.content.read_range(file, offset, end).await?;
            self.readahead.note_read(
                file,
                &(offset..end),
                before.size,
                self.base.context.now().saturating_sub(start),
            );
        }
        let attributes =
            if data.is_empty() { before } else { self.base.note_access(&before).await? };
        Ok(ReadData { data, end: end >= before.size, attributes, write_verifier })
    }
}

/// Where a read of `length` bytes ends, no earlier than it begins.
fn end_of_read(file: &Attributes, offset: u64, length: u32) -> u64 {
    file.size.min(offset.saturating_add(u64::from(length))).max(offset)
}
