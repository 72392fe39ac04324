//! The content of files: locks, maps of chunks, and bytes of the blocks that they name.

use std::ops::Range;
use std::rc::Rc;
use std::sync::LazyLock;

use blockio::protocol::Error as BlockError;
use blockio::volume_map::classes_of;
use blockio::{DiskName, Geometry, RedundancyClass, Stripes};
use bytes::Bytes;
use futures::future::try_join_all;
use meta::protocol::{BlockRun, Chunk, GetInode, Map, Release, Run};
use runtime::Context;
use runtime::delivery::DeliveredRange;
use runtime::sync::{KeyGuard, KeyedLock};

use super::base::MetadataAccess;
use super::direct::ReadDelivery;
use super::other_source::{OtherKind, OtherSource};
use crate::protocol::{Error, Handle};

const BLOCK: u64 = blockio::BLOCK_SIZE as u64;

/// A chunk: the inode number of its file, and its index in it.
pub(super) type ChunkId = (u64, u64);

/// A stripe of zeros, in memory that is never touched: a constant would be part of every program.
static ZEROS: LazyLock<Vec<u8>> = LazyLock::new(|| vec![0; 1 << 20]);

/// The content of the files of one node.
pub(super) struct ContentAccess {
    pub(super) base: MetadataAccess,
    pub(super) stripes: Rc<dyn Stripes>,
    pub(super) geometry: Geometry,
    /// Shared by reads and writes of a file; exclusive to cut, seal or free it. The metadata server
    /// has them too, to move blocks.
    pub(super) files: KeyedLock<u64>,
    /// Shared by reads of a chunk, exclusive to write it.
    pub(super) chunks: KeyedLock<(u64, u64)>,
}

impl ContentAccess {
    pub(super) fn new(base: MetadataAccess, stripes: Rc<dyn Stripes>) -> Self {
        let geometry = stripes.geometry();
        let (files, chunks) = (base.information.file_locks(), KeyedLock::default());
        Self { base, stripes, geometry, files, chunks }
    }

    /// How new content of a file survives the loss of disks.
    pub(super) async fn class_of(&self, ino: u64) -> Result<RedundancyClass, Error> {
        if let Some(known) = self.class_at_hand(ino) {
            return Ok(known);
        }
        let inode = self.base.meta_here(GetInode { ino, generation: 0 }).await?;
        let own = inode.attributes.redundancy;
        Ok(own.unwrap_or_else(|| self.stripes.map().redundancy()))
    }

    /// The same, unless the file has to be asked for.
    pub(super) fn class_at_hand(&self, ino: u64) -> Option<RedundancyClass> {
        let own = match self.base.information.class(ino) {
            None if classes_of(&self.stripes.map()).differ() => return None,
            known => known.flatten(),
        };
        Some(own.unwrap_or_else(|| self.stripes.map().redundancy()))
    }

    /// Bytes `from..to` of the file, at least one: one request for the map, then all stripes at
    /// once.
    pub(super) async fn read_range(
        &self,
        file: Handle,
        from: u64,
        to: u64,
    ) -> Result<Vec<Bytes>, Error> {
        Ok(self.read_or_deliver(file, (from, to), None).await?.data)
    }

    /// As [`read_range`](Self::read_range); with `delivery` other processes send the client what
    /// they have of the bytes.
    pub(super) async fn read_or_deliver(
        &self,
        file: Handle,
        (from, to): (u64, u64),
        delivery: Option<ReadDelivery<'_>>,
    ) -> Result<RangeData, Error> {
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
            block_sources(((file.ino, index), chunk), from - start, to - start)
        });
        match delivery {
            None => Ok(RangeData { data: self.take_all(parts).await?, delivered: Vec::new() }),
            Some(delivery) => delivery.send(self, parts.collect()).await,
        }
    }

    /// Locks chunks to write them: in ascending order, so that two writers never wait for each
    /// other.
    pub(super) async fn lock_chunks(
        &self,
        ino: u64,
        indices: impl IntoIterator<Item = u64>,
    ) -> Vec<KeyGuard<(u64, u64)>> {
        let indices = indices.into_iter();
        let mut held = Vec::with_capacity(indices.size_hint().0);
        for index in indices {
            held.push(self.chunks.exclusive((ino, index)).await);
        }
        held
    }

    /// The node that calls for the content.
    pub(super) fn context(&self) -> &Context {
        &self.base.context
    }

    /// The present maps of chunks, which the caller has locked.
    pub(super) async fn map(&self, file: Handle, indices: Range<u64>) -> Result<Vec<Chunk>, Error> {
        let Handle { ino, generation } = file;
        self.base.partitions.learn(ino).await?;
        if let Some(known) = self.base.information.chunks(ino, generation, indices.clone()) {
            return Ok(known);
        }
        let count = (indices.end - indices.start) as u32;
        let call = Map { ino, generation, first: indices.start, count };
        let chunks = self.base.meta_here(call).await?;
        if chunks.len() == count as usize { Ok(chunks) } else { Err(Error::Damaged {}) }
    }

    /// Blocks of a logical block of `chunk`, one of the file `ino`.
    pub(super) fn unit(&self, ino: u64, chunk: &Chunk) -> usize {
        chunk.unit_or(self.base.unit_of(ino)) as usize
    }

    /// Bytes of one logical block of a chunk, which the caller has locked; holes are zeros.
    pub(super) async fn read_in_block(
        &self,
        chunk: (ChunkId, &Chunk),
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

    /// The bytes, if they are in memory of this thread.
    pub(super) fn try_take_now(&self, place: &BlockSource<'_>) -> Option<Bytes> {
        match *place {
            BlockSource::Hole { length } => Some(zeros(length)),
            BlockSource::Stored { run, ref blocks, skip, keep, .. } => {
                let (stripe, offset, length) = self.bytes_of(run, blocks);
                let expect = &run.checksums[blocks.clone()];
                let read = self.stripes.try_read_now(stripe, offset, length, expect)?;
                Some(read.slice(skip..skip + keep))
            }
        }
    }

    /// The bytes. The request is sent when this is called, not when the future is polled.
    pub(super) fn take(
        &self,
        place: &BlockSource<'_>,
    ) -> impl Future<Output = Result<Bytes, Error>> + use<> {
        let part = match *place {
            BlockSource::Hole { length } => ReadPart::Hole(length),
            BlockSource::Stored { chunk, run, ref blocks, skip, keep } => {
                let (stripe, offset, length) = self.bytes_of(run, blocks);
                let expect = run.checksums[blocks.clone()].to_vec();
                let reading = self.stripes.read(stripe, offset, length, expect);
                let disk = self.base.is_read_only.then(|| self.stripes.map().place(stripe).disk);
                let others = self.other_source(chunk, run, blocks);
                ReadPart::Stored { reading, skip, keep, disk, others }
            }
        };
        part.fetch()
    }

    /// The stripe of these logical blocks of a run, where they begin there, and their bytes.
    pub(super) fn bytes_of(&self, run: &BlockRun, blocks: &Range<usize>) -> (u64, u32, u32) {
        let unit = run.unit() as usize;
        let (stripe, offset) = self.geometry.block(run.start + (blocks.start * unit) as u64);
        (stripe, offset, (blocks.len() * unit) as u32 * BLOCK as u32)
    }

    /// Where else the content of these logical blocks of a run is, if it is anywhere else.
    fn other_source(
        &self,
        chunk: ChunkId,
        run: &BlockRun,
        blocks: &Range<usize>,
    ) -> Option<Box<OtherSource>> {
        let first = run.start + (blocks.start * run.unit() as usize) as u64;
        let kind = if run.form.covered {
            OtherKind::WideStripe
        } else if run.form.deferred {
            OtherKind::NotYet
        } else {
            let starts = run.mirrors.after(first - run.start).starts().to_vec();
            if starts.is_empty() {
                return None;
            }
            OtherKind::Copies { starts, expect: run.checksums[blocks.clone()].to_vec() }
        };
        let (base, stripes) = (self.base.clone(), self.stripes.clone());
        let (unit, count) = (run.unit(), blocks.len() as u32);
        Some(Box::new(OtherSource { base, stripes, chunk, first, unit, count, kind }))
    }

    /// Releases reserved blocks that nothing names.
    pub(super) async fn give_back(&self, runs: Vec<Run>) {
        if let Err(error) = self.base.meta_here(Release { runs }).await {
            tracing::warn!(%error, "reserved blocks stay in use until the next start");
        }
    }
}

/// What was read of a range.
pub(super) struct RangeData {
    /// The bytes that were not delivered, in order.
    pub(super) data: Vec<Bytes>,
    /// Those that were.
    pub(super) delivered: Vec<DeliveredRange>,
}

/// Where some bytes of a chunk are.
pub(super) enum BlockSource<'a> {
    /// In no block: zeros.
    Hole { length: usize },
    /// In these logical blocks of a run: whole ones, so that their checksums can be verified. The
    /// bytes are the `keep` ones after the first `skip`.
    Stored { chunk: ChunkId, run: &'a BlockRun, blocks: Range<usize>, skip: usize, keep: usize },
}

impl BlockSource<'_> {
    /// How many bytes.
    pub(super) fn length(&self) -> usize {
        match *self {
            Self::Hole { length } => length,
            Self::Stored { keep, .. } => keep,
        }
    }
}

/// Where bytes `from..to` of a chunk are, in order.
pub(super) fn block_sources(
    (id, chunk): (ChunkId, &Chunk),
    from: u64,
    to: u64,
) -> impl Iterator<Item = BlockSource<'_>> {
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
        let block = u64::from(run.unit()) * BLOCK;
        let first = ((lo - run_start) / block) as usize;
        let end = (hi - run_start).div_ceil(block) as usize;
        let skip = (lo - run_start) as usize - first * block as usize;
        at = hi;
        let (blocks, keep) = (first..end, (hi - lo) as usize);
        Some(BlockSource::Stored { chunk: id, run, blocks, skip, keep })
    })
}

/// `length` zeros, at most a stripe of them.
pub(super) fn zeros(length: usize) -> Bytes {
    Bytes::from_static(&ZEROS[..length])
}

/// A piece of an answer.
enum ReadPart {
    Hole(usize),
    Stored {
        reading: blockio::Answer<Bytes>,
        skip: usize,
        keep: usize,
        /// The disk to be named if it cannot be read.
        disk: Option<DiskName>,
        others: Option<Box<OtherSource>>,
    },
}

impl ReadPart {
    async fn fetch(self) -> Result<Bytes, Error> {
        match self {
            Self::Hole(length) => Ok(zeros(length)),
            Self::Stored { reading, skip, keep, disk, others } => {
                let read = match (reading.await, others) {
                    (Err(error), Some(others)) => others.read(error).await,
                    (read, _) => read,
                };
                let read = read.map_err(|error| unreadable_at(disk, error))?;
                Ok(read.slice(skip..skip + keep))
            }
        }
    }
}

/// An error of the logical disk, which names `disk` if what it holds cannot be read.
fn unreadable_at(disk: Option<DiskName>, error: BlockError) -> Error {
    match (disk, Error::from(error)) {
        (Some(DiskName { disk_node, disk }), Error::Damaged {}) => {
            Error::Unreadable { disk_node, disk }
        }
        (_, error) => error,
    }
}
