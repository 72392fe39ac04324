//! Blocks of files that could not be read where they are: from their further copies, or made of the
//! other shards of their wide stripe.

use std::ops::Range;
use std::rc::Rc;

use blockio::protocol::Error as BlockError;
use blockio::{BLOCK_SIZE, Stripes};
use bytes::{Bytes, BytesMut};
use meta::protocol::{FindWideStripe, HealChunk, PlacedWideStripe, Run, WideStripe};

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
    /// Logical blocks.
    pub(super) count: u32,
    pub(super) kind: OtherKind,
}

/// In which form.
pub(super) enum OtherKind {
    /// Copies that begin at these blocks, and the checksum of each logical block.
    Copies { starts: Vec<u64>, expect: Vec<u32> },
    /// The other shards of a wide stripe.
    WideStripe,
    /// Nowhere before the next commit.
    NotYet,
}

/// The same, found.
enum Elsewhere<'a> {
    Copies(&'a [u64], &'a [u32]),
    /// This range of shard `number` can be made of the others.
    Shards {
        wide: WideStripe,
        number: usize,
        range: Range<usize>,
    },
}

impl Elsewhere<'_> {
    /// Of each logical block that is read.
    fn checksums(&self) -> &[u32] {
        match self {
            Self::Copies(_, expect) => expect,
            Self::Shards { wide, number, range } => {
                let shard = wide.shards().nth(*number);
                shard.and_then(|shard| shard.checksums.get(range.clone())).unwrap_or_default()
            }
        }
    }
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
        let (ino, index) = self.chunk;
        let Some(elsewhere) = self.find().await else { return Err(reason) };
        let all = 0..self.count as usize;
        let read = match self.read_elsewhere(&elsewhere, all).await {
            Some(read) => read,
            None if self.count < 2 => return Err(reason),
            None => self.read_each(&elsewhere).await.ok_or(reason)?,
        };
        tracing::debug!(%reason, ino, index, "blocks are read from elsewhere");
        self.heal(reason);
        Ok(read)
    }

    /// Where it is; a wide stripe is asked for once.
    async fn find(&self) -> Option<Elsewhere<'_>> {
        if let OtherKind::Copies { starts, expect } = &self.kind {
            return Some(Elsewhere::Copies(starts, expect));
        }
        let (ino, index) = self.chunk;
        let found = self.base.meta_here(FindWideStripe { ino, index }).await;
        let Ok(Some(PlacedWideStripe { first, wide })) = found else {
            tracing::debug!(ino, index, ?found, "there is no wide stripe");
            return None;
        };
        let number = (index - first) as usize;
        let run = Run { start: self.first, count: self.count * self.unit };
        let blocks = self.stripes.geometry().blocks_per_stripe();
        let range = wide.range_of(number, run, blocks);
        Some(Elsewhere::Shards { wide, number, range })
    }

    /// Reads block by block: others may be bad elsewhere than here.
    async fn read_each(&self, elsewhere: &Elsewhere<'_>) -> Option<Bytes> {
        let mut whole = BytesMut::with_capacity(self.bytes(self.count as usize) as usize);
        for block in 0..self.count as usize {
            let range = block..block + 1;
            let here = self.read_at(self.first, range.clone(), elsewhere.checksums()).await;
            let read = match here {
                Ok(read) => read,
                Err(_) => self.read_elsewhere(elsewhere, range).await?,
            };
            whole.extend_from_slice(&read);
        }
        Some(whole.freeze())
    }

    /// These logical blocks, if they can be read in one piece.
    async fn read_elsewhere(
        &self,
        elsewhere: &Elsewhere<'_>,
        range: Range<usize>,
    ) -> Option<Bytes> {
        let (ino, index) = self.chunk;
        let tell = |error: BlockError| tracing::debug!(%error, ino, index, "nor elsewhere");
        match elsewhere {
            Elsewhere::Copies(starts, expect) => {
                for &start in *starts {
                    match self.read_at(start, range.clone(), expect).await {
                        Ok(read) => return Some(read),
                        Err(error) => tell(error),
                    }
                }
                None
            }
            Elsewhere::Shards { wide, number, range: all } => {
                let range = all.start + range.start..all.start + range.end;
                wide.reconstruct(&*self.stripes, *number, range).await.map_err(tell).ok()
            }
        }
    }

    /// Reads logical blocks of the copy that begins at block `start`.
    async fn read_at(
        &self,
        start: u64,
        range: Range<usize>,
        checksums: &[u32],
    ) -> Result<Bytes, BlockError> {
        let block = start + range.start as u64 * u64::from(self.unit);
        let (stripe, offset) = self.stripes.geometry().block(block);
        let length = self.bytes(range.len());
        let Some(expect) = checksums.get(range) else {
            return Err(BlockError::Corrupt { stripe, block: offset / BLOCK_SIZE as u32 });
        };
        self.stripes.read(stripe, offset, length, expect.to_vec()).await
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
