//! Reading: the map of the chunks, then the stripes that hold them, all at once.

use std::ops::Range;

use bytes::Bytes;
use futures::future::try_join_all;
use meta::attributes::access;
use meta::protocol::{Chunk, Map};

use super::FileServer;
use crate::protocol::{Error, Handle, Read, ReadData, TRANSFER_MAX};
use crate::rules;

const BLOCK: u64 = blockio::BLOCK_SIZE as u64;

static ZEROS: [u8; 1 << 20] = [0; 1 << 20];

impl FileServer {
    pub(super) async fn read(&self, request: Read) -> Result<ReadData, Error> {
        match self.read_once(&request).await {
            Err(Error::Damaged {}) => {
                self.look_for_loss(request.file).await;
                self.read_once(&request).await
            }
            outcome => outcome,
        }
    }

    async fn read_once(&self, request: &Read) -> Result<ReadData, Error> {
        let &Read { ref who, file, offset, length } = request;
        if length > TRANSFER_MAX {
            return Err(Error::Invalid {});
        }
        let _reading = self.files.shared(file.ino).await;
        let before = self.inode(file).await?.attributes;
        rules::check_transfer(who, &before, access::READ)?;
        let end = before.size.min(offset.saturating_add(u64::from(length))).max(offset);
        let mut data = Vec::new();
        if end > offset {
            data = self.read_range(file, offset, end).await?;
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
        let parts = indices.zip(&chunks).map(|(index, chunk)| {
            let start = index * chunk_size;
            let (from, to) = (from.max(start), to.min(start + chunk_size));
            self.read_mapped(chunk, from - start, to - start)
        });
        Ok(try_join_all(parts).await?.concat())
    }

    /// The present state of chunks. The caller holds them.
    pub(super) async fn map(&self, file: Handle, indices: Range<u64>) -> Result<Vec<Chunk>, Error> {
        let count = (indices.end - indices.start) as u32;
        let Handle { ino, generation } = file;
        let call = Map { ino, generation, first: indices.start, count };
        let chunks = self.meta_here(call).await?;
        if chunks.len() == count as usize { Ok(chunks) } else { Err(Error::Damaged {}) }
    }

    /// Bytes `from..to` of a chunk; holes are zeros. The caller holds the chunk.
    pub(super) async fn read_mapped(
        &self,
        chunk: &Chunk,
        from: u64,
        to: u64,
    ) -> Result<Vec<Bytes>, Error> {
        let mut parts = Vec::new();
        let mut at = from;
        for run in &chunk.runs {
            let run_start = u64::from(run.at) * BLOCK;
            let run_end = u64::from(run.end()) * BLOCK;
            let (lo, hi) = (from.max(run_start), to.min(run_end));
            if lo >= hi {
                continue;
            }
            if at < lo {
                parts.push(Part::Hole((lo - at) as usize));
            }
            // Whole blocks are asked for, so that their checksums can be checked.
            let first = ((lo - run_start) / BLOCK) as usize;
            let end = (hi - run_start).div_ceil(BLOCK) as usize;
            let (stripe, offset) = self.geometry.block(run.start + first as u64);
            let length = (end - first) as u32 * BLOCK as u32;
            let expect = run.checksums[first..end].to_vec();
            let skip = (lo - run_start) as usize - first * BLOCK as usize;
            let keep = (hi - lo) as usize;
            let reading = self.stripes.read(stripe, offset, length, expect);
            parts.push(Part::Stored { reading, skip, keep });
            at = hi;
        }
        if at < to {
            parts.push(Part::Hole((to - at) as usize));
        }
        try_join_all(parts.into_iter().map(Part::fetch)).await
    }
}

/// So many zeros, at most a stripe of them.
pub(super) fn zeros(length: usize) -> Bytes {
    Bytes::from_static(&ZEROS[..length])
}

/// A piece of an answer.
enum Part {
    Hole(usize),
    Stored { reading: blockio::Answer<Bytes>, skip: usize, keep: usize },
}

impl Part {
    async fn fetch(self) -> Result<Bytes, Error> {
        match self {
            Self::Hole(length) => Ok(zeros(length)),
            Self::Stored { reading, skip, keep } => Ok(reading.await?.slice(skip..skip + keep)),
        }
    }
}
