//! Blocks of files that could not be read where they are: from their further copies, or made of the
//! other shards of their wide stripe.

use std::ops::Range;
use std::rc::Rc;

use blockio::protocol::Error as BlockError;
use blockio::{BLOCK_SIZE, Stripes};
use bytes::{Bytes, BytesMut};
use meta::protocol::{FindWideStripe, HealChunk, PlacedWideStripe, Run};

use super::base::MetadataAccess;
use super::content::ChunkId;

/// Where else logical blocks of a chunk are.
pub(super) struct OtherSource {
    pub(super) base: MetadataAccess,
    pub(super) stripes: Rc<dyn Stripes>,
    pub(super) chunk: ChunkId,
    /// The first block at the place that could not be read.
    pub(super) first: u64,
    /// Blocks of a logical block.
    pub(super) unit: u32,
    /// The checksum of each logical block.
    pub(super) expect: Vec<u32>,
    pub(super) kind: OtherKind,
}

/// In which form.
pub(super) enum OtherKind {
    /// Copies that begin at these blocks.
    Copies(Vec<u64>),
    /// The other shards of a wide stripe.
    WideStripe,
    /// Nowhere before the next commit.
    NotYet,
}

impl OtherSource {
    /// Reads it there, after the first place could not be read for this `reason`, which is the
    /// answer if no other can.
    pub(super) async fn read(&self, reason: BlockError) -> Result<Bytes, BlockError> {
        if let OtherKind::NotYet = self.kind {
            // Lost with its disk, which that commit finds out.
            let (stripe, offset) = self.stripes.geometry().block(self.first);
            return Err(match reason {
                BlockError::Missing { .. } => {
                    BlockError::Corrupt { stripe, block: offset / BLOCK_SIZE as u32 }
                }
                reason => reason,
            });
        }
        let all = 0..self.expect.len();
        let read = match self.read_elsewhere(all.clone()).await {
            Ok(read) => read,
            Err(_) if all.len() < 2 => return Err(reason),
            Err(_) => self.read_each(reason).await?,
        };
        let (ino, index) = self.chunk;
        tracing::debug!(%reason, ino, index, "blocks are read from elsewhere");
        self.heal(reason);
        Ok(read)
    }

    /// Reads block by block: others may be bad elsewhere than here.
    async fn read_each(&self, reason: BlockError) -> Result<Bytes, BlockError> {
        let mut whole = BytesMut::with_capacity(self.expect.len() * self.bytes(1) as usize);
        for block in 0..self.expect.len() {
            let here = self.read_at(self.first, block..block + 1).await;
            let read = match here {
                Ok(read) => read,
                Err(_) => self.read_elsewhere(block..block + 1).await.map_err(|_| reason)?,
            };
            whole.extend_from_slice(&read);
        }
        Ok(whole.freeze())
    }

    async fn read_elsewhere(&self, range: Range<usize>) -> Result<Bytes, BlockError> {
        let OtherKind::Copies(starts) = &self.kind else { return self.reconstruct(range).await };
        let mut last = BlockError::Corrupt { stripe: 0, block: 0 };
        for &start in starts {
            match self.read_at(start, range.clone()).await {
                Ok(read) => return Ok(read),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Reads logical blocks of the copy that begins at block `start`.
    async fn read_at(&self, start: u64, range: Range<usize>) -> Result<Bytes, BlockError> {
        let block = start + range.start as u64 * u64::from(self.unit);
        let (stripe, offset) = self.stripes.geometry().block(block);
        let expect = self.expect[range.clone()].to_vec();
        self.stripes.read(stripe, offset, self.bytes(range.len()), expect).await
    }

    /// Makes logical blocks of the other shards.
    async fn reconstruct(&self, range: Range<usize>) -> Result<Bytes, BlockError> {
        let (ino, index) = self.chunk;
        let start = self.first + range.start as u64 * u64::from(self.unit);
        let found = self.base.meta_here(FindWideStripe { ino, index }).await;
        let Ok(Some(PlacedWideStripe { first, wide })) = found else {
            tracing::debug!(ino, index, ?found, "there is no wide stripe");
            let (stripe, offset) = self.stripes.geometry().block(start);
            return Err(BlockError::Corrupt { stripe, block: offset / BLOCK_SIZE as u32 });
        };
        let number = (index - first) as usize;
        let run = Run { start, count: range.len() as u32 * self.unit };
        let range = wide.range_of(number, run, self.stripes.geometry().blocks_per_stripe());
        wide.reconstruct(&*self.stripes, number, range).await
    }

    /// Has what is bad on its disk made anew, in the background.
    fn heal(&self, reason: BlockError) {
        let is_bad = matches!(reason, BlockError::Corrupt { .. } | BlockError::Unreadable { .. });
        if !is_bad || self.base.is_read_only {
            return;
        }
        let (base, (ino, index)) = (self.base.clone(), self.chunk);
        self.base.context.task(async move {
            if let Err(error) = base.meta_here(HealChunk { ino, index }).await {
                tracing::debug!(%error, ino, index, "a bad block stays until the next scrub");
            }
        });
    }

    fn bytes(&self, logical_blocks: usize) -> u32 {
        logical_blocks as u32 * self.unit * BLOCK_SIZE as u32
    }
}
