//! Reading: the map of the chunks, then the stripes that hold them, all at once.

use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::try_join_all;
use meta::attributes::access;
use meta::protocol::{BlockRun, Chunk, Map};

use super::FileServer;
use crate::protocol::{Attributes, Error, Handle, Read, ReadData, TRANSFER_MAX};
use crate::rules;

const BLOCK: u64 = blockio::BLOCK_SIZE as u64;

static ZEROS: [u8; 1 << 20] = [0; 1 << 20];

runtime::handlers! { FileServer;
    Read => |server, _, request| server.read(request).await;
}

impl FileServer {
    /// Answers [`Read`], if nothing has to be waited for: the map is at hand, the bytes are cached on
    /// this thread, and no write of them runs or waits.
    pub(super) fn try_read_now(self: &Rc<Self>, request: &Read) -> Option<ReadData> {
        let &Read { ref who, file, offset, length } = request;
        if length > TRANSFER_MAX || !self.files.is_open(&file.ino) {
            return None;
        }
        let read = self.information.look(file.ino, file.generation, |known| {
            let attributes = *known.attributes();
            rules::check_transfer(who, &attributes, access::READ).ok()?;
            if rules::notes_access(&attributes, self.now()) {
                return None;
            }
            let end = end_of_read(&attributes, offset, length);
            let chunk_size = u64::from(self.geometry.stripe_size);
            let chunks = offset / chunk_size..end.div_ceil(chunk_size);
            let mut data = Vec::with_capacity(chunks.clone().count());
            for index in chunks {
                let start = index * chunk_size;
                let (from, to) = (offset.max(start), end.min(start + chunk_size));
                if from < to && !self.chunks.is_open(&(file.ino, index)) {
                    return None;
                }
                for place in block_sources(known.chunk(index)?, from - start, to - start) {
                    data.push(self.try_take_now(&place)?);
                }
            }
            Some(ReadData { data, end: end >= attributes.size, attributes })
        })?;
        let end = end_of_read(&read.attributes, offset, length);
        self.note_read(file, &(offset..end), read.attributes.size, Duration::ZERO);
        Some(read)
    }

    pub(super) async fn read(self: &Rc<Self>, request: Read) -> Result<ReadData, Error> {
        let outcome = self.read_once(&request).await;
        if outcome != Err(Error::Damaged {}) {
            return outcome;
        }
        // Boxed: what is rare would be moved with each read.
        Box::pin(self.recover_lost_writes(request.file)).await;
        Box::pin(self.read_once(&request)).await
    }

    async fn read_once(self: &Rc<Self>, request: &Read) -> Result<ReadData, Error> {
        let &Read { ref who, file, offset, length } = request;
        if length > TRANSFER_MAX {
            return Err(Error::Invalid {});
        }
        let _reading = self.files.shared(file.ino).await;
        let before = self.attributes(file).await?;
        rules::check_transfer(who, &before, access::READ)?;
        let end = end_of_read(&before, offset, length);
        let mut data = Vec::new();
        if end > offset {
            let start = self.context.now();
            data = self.read_range(file, offset, end).await?;
            self.note_read(
                file,
                &(offset..end),
                before.size,
                self.context.now().saturating_sub(start),
            );
        }
        let attributes = if data.is_empty() { before } else { self.note_access(&before).await? };
        Ok(ReadData { data, end: end >= before.size, attributes })
    }

    /// Bytes `from..to` of the file, at least one: one look at the map, then all stripes at once.
    pub(super) async fn read_range(
        &self,
        file: Handle,
        from: u64,
        to: u64,
    ) -> Result<Vec<Bytes>, Error> {
        let chunk_size = u64::from(self.geometry.stripe_size);
        let indices = from / chunk_size..to.div_ceil(chunk_size);
        let mut held = Vec::with_capacity((indices.end - indices.start) as usize);
        for index in indices.clone() {
            held.push(self.chunks.shared((file.ino, index)).await);
        }
        let chunks = self.map(file, indices.clone()).await?;
        let parts = indices.zip(&chunks).flat_map(|(index, chunk)| {
            let start = index * chunk_size;
            let (from, to) = (from.max(start), to.min(start + chunk_size));
            block_sources(chunk, from - start, to - start)
        });
        self.take_all(parts).await
    }

    /// The present state of chunks. The caller holds them.
    pub(super) async fn map(&self, file: Handle, indices: Range<u64>) -> Result<Vec<Chunk>, Error> {
        let Handle { ino, generation } = file;
        if let Some(known) = self.information.chunks(ino, generation, indices.clone()) {
            return Ok(known);
        }
        let count = (indices.end - indices.start) as u32;
        let call = Map { ino, generation, first: indices.start, count };
        let chunks = self.meta_here(call).await?;
        if chunks.len() == count as usize { Ok(chunks) } else { Err(Error::Damaged {}) }
    }

    /// Bytes of one block of a chunk; holes are zeros. The caller holds the chunk.
    pub(super) async fn read_in_block(
        &self,
        chunk: &Chunk,
        range: Range<usize>,
    ) -> Result<Bytes, Error> {
        let mut block_sources = block_sources(chunk, range.start as u64, range.end as u64);
        // A block is in one place.
        let place = block_sources.next().ok_or(Error::Damaged {})?;
        match self.try_take_now(&place) {
            Some(known) => Ok(known),
            None => self.take(&place).await,
        }
    }

    async fn take_all(
        &self,
        block_sources: impl Iterator<Item = BlockSource<'_>>,
    ) -> Result<Vec<Bytes>, Error> {
        try_join_all(block_sources.map(|place| self.take(&place))).await
    }

    /// What is there, if it is at hand.
    fn try_take_now(&self, place: &BlockSource<'_>) -> Option<Bytes> {
        match *place {
            BlockSource::Hole { length } => Some(zeros(length)),
            BlockSource::Stored { run, ref blocks, skip, keep } => {
                let (stripe, offset) = self.geometry.block(run.start + blocks.start as u64);
                let length = blocks.len() as u32 * BLOCK as u32;
                let expect = &run.checksums[blocks.clone()];
                let read = self.stripes.try_read_now(stripe, offset, length, expect)?;
                Some(read.slice(skip..skip + keep))
            }
        }
    }

    /// What is there. Asked for when this is called.
    fn take(&self, place: &BlockSource<'_>) -> impl Future<Output = Result<Bytes, Error>> + use<> {
        let part = match *place {
            BlockSource::Hole { length } => ReadPart::Hole(length),
            BlockSource::Stored { run, ref blocks, skip, keep } => {
                let (stripe, offset) = self.geometry.block(run.start + blocks.start as u64);
                let length = blocks.len() as u32 * BLOCK as u32;
                let expect = run.checksums[blocks.clone()].to_vec();
                let reading = self.stripes.read(stripe, offset, length, expect);
                ReadPart::Stored { reading, skip, keep }
            }
        };
        part.fetch()
    }
}

/// Where a read of `length` bytes ends, no earlier than it begins.
fn end_of_read(file: &Attributes, offset: u64, length: u32) -> u64 {
    file.size.min(offset.saturating_add(u64::from(length))).max(offset)
}

/// Where some bytes of a chunk are.
enum BlockSource<'a> {
    /// In no block: zeros.
    Hole { length: usize },
    /// In these blocks of a run: whole blocks, so that their checksums can be checked. Of their bytes
    /// `skip` are left out, and then `keep` are meant.
    Stored { run: &'a BlockRun, blocks: Range<usize>, skip: usize, keep: usize },
}

/// Where bytes `from..to` of a chunk are, in order.
fn block_sources(chunk: &Chunk, from: u64, to: u64) -> impl Iterator<Item = BlockSource<'_>> {
    let bytes_of = |run: &BlockRun| u64::from(run.at) * BLOCK..u64::from(run.end()) * BLOCK;
    let is_touched = move |run: &&BlockRun| {
        let bytes = bytes_of(run);
        bytes.start.max(from) < bytes.end.min(to)
    };
    let mut runs = chunk.runs.iter().filter(is_touched).peekable();
    let mut at = from;
    std::iter::from_fn(move || {
        let next = runs.peek().map_or(to, |run| bytes_of(run).start.max(from));
        if at < next {
            let length = (next - at) as usize;
            at = next;
            return Some(BlockSource::Hole { length });
        }
        let run = runs.next()?;
        let Range { start: run_start, end: run_end } = bytes_of(run);
        let (lo, hi) = (from.max(run_start), to.min(run_end));
        let first = ((lo - run_start) / BLOCK) as usize;
        let end = (hi - run_start).div_ceil(BLOCK) as usize;
        let skip = (lo - run_start) as usize - first * BLOCK as usize;
        at = hi;
        Some(BlockSource::Stored { run, blocks: first..end, skip, keep: (hi - lo) as usize })
    })
}

/// `length` zeros, at most a stripe of them.
pub(super) fn zeros(length: usize) -> Bytes {
    Bytes::from_static(&ZEROS[..length])
}

/// A piece of an answer.
enum ReadPart {
    Hole(usize),
    Stored { reading: blockio::Answer<Bytes>, skip: usize, keep: usize },
}

impl ReadPart {
    async fn fetch(self) -> Result<Bytes, Error> {
        match self {
            Self::Hole(length) => Ok(zeros(length)),
            Self::Stored { reading, skip, keep } => Ok(reading.await?.slice(skip..skip + keep)),
        }
    }
}
