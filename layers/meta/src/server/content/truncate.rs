//! The size of a file: cutting off its end, and growing it ([`Truncate`]).

use std::rc::Rc;

use runtime::wire::to_bytes;

use super::chunk_map::ChunkMap;
use super::chunk_records::{add_runs, first_gone, put_chunk};
use super::commit::{CommitExtent, CommitLocks, Commits};
use super::install::Installer;
use crate::attributes::{Attributes, Time};
use crate::chunks::BlockSlot;
use crate::keys;
use crate::protocol::{Chunk, CommitMark, Error, NewBlock, Run, Seal, Truncate};
use crate::server::base::NodeBase;
use crate::server::partition_use::UseChange;
use crate::server::space::reclaim::Reclaim;
use crate::store::{Batch, Position, StoreError};

/// Changes the size of the files of one node.
pub(crate) struct Truncation {
    base: Rc<NodeBase>,
    chunks: Rc<ChunkMap>,
    installer: Rc<Installer>,
    committer: Rc<Commits>,
    reclaim: Rc<Reclaim>,
    commits: CommitLocks,
}

impl Truncation {
    pub(crate) fn new(
        base: &Rc<NodeBase>,
        chunks: Rc<ChunkMap>,
        installer: Rc<Installer>,
        committer: Rc<Commits>,
        reclaim: Rc<Reclaim>,
        commits: CommitLocks,
    ) -> Self {
        Self { base: base.clone(), chunks, installer, committer, reclaim, commits }
    }

    pub(crate) async fn truncate(&self, request: Truncate) -> Result<Attributes, Error> {
        let Truncate { ino, generation, size, time, durable, last, mark } = request;
        let _alone = self.commits.exclusive(ino).await;
        let _kept = self.base.inodes.keep(ino);
        self.base.inodes.load(ino, generation).await?;
        // Of a cut before this one, which could not free all.
        self.reclaim.finish_cut(ino).await?;
        let chunk_size = u64::from(self.base.stripes.geometry().stripe_size);
        let block_size = blockio::BLOCK_SIZE as u64;
        let shrinks =
            self.base.inodes.with(ino, |active| Ok(size < active.inode.attributes.size))?;
        if shrinks {
            // What is cut off whole never needs to be written.
            let unnamed = self.base.inodes.with(ino, |active| {
                Ok(active.forget_chunks(first_gone(size, self.base.stripes.geometry().stripe_size)))
            })?;
            self.reclaim.discard_and_release(unnamed).await?;
            self.installer.seal(&Seal { ino }).await?;
            self.committer.commit_locked(ino, CommitExtent::Unchanged, true).await?;
        }
        let written = last.as_ref().map(|last| last.written.clone());
        let boundary = shrinks.then(|| Boundary {
            index: size / chunk_size,
            kept_blocks: (size % chunk_size).div_ceil(block_size) as u32,
            last,
        });
        if let Some(written) = written {
            self.base.stripes.sync(written).await.map_err(StoreError::from)?;
        }
        let mut position = self.cut(ino, (size, time), boundary, mark).await?;
        if shrinks {
            position = self.reclaim.finish_cut(ino).await?;
        }
        self.base.records.ensure_durable(position, durable).await?;
        self.base.inodes.with(ino, |active| Ok(active.inode.attributes))
    }

    /// Records the new size, together with the chunk at the cut and the count of what is left.
    async fn cut(
        &self,
        ino: u64,
        (size, time): (u64, Time),
        boundary: Option<Boundary>,
        mark: CommitMark,
    ) -> Result<Position, Error> {
        let mut left_blocks = match &boundary {
            Some(boundary) => Some(self.chunks.count_blocks(ino, boundary.index).await?),
            None => None,
        };
        let mut cut_chunk = None;
        if let Some(boundary) = boundary.as_ref().filter(|boundary| boundary.kept_blocks > 0) {
            let chunk = self.chunks.stored_chunk(ino, boundary.index).await?;
            let chunk = boundary.cut(chunk, self.base.stripes.geometry().blocks_per_stripe());
            left_blocks = left_blocks.map(|blocks| blocks + chunk.chunk.count());
            cut_chunk = Some((boundary.index, chunk)).filter(|(_, chunk)| chunk.is_changed);
        }
        let used_bytes = left_blocks.map(|blocks| blocks * blockio::BLOCK_SIZE as u64);
        let make = || {
            self.base.inodes.with(ino, |active| {
                let mut batch = Batch::new();
                if boundary.is_some() {
                    batch.take_from_reserve();
                }
                let mut stored = active.stored.clone();
                if boundary.is_some() || active.uncommitted() == 0 {
                    // The store has all that was installed before.
                    stored.committed = mark.clone();
                }
                let time = time.other_than(active.inode.attributes.ctime);
                stored.attributes.size = size;
                stored.attributes.mtime = time;
                stored.attributes.ctime = time;
                let used = &mut stored.attributes.used_bytes;
                *used = used_bytes.unwrap_or(*used);
                batch.put(keys::inode(ino), stored.to_stored());
                let used = UseChange::of(&active.stored, &stored);
                self.base.inodes.uses().put(&[used], &mut batch);
                if let Some((index, cut)) = &cut_chunk {
                    put_chunk(&mut batch, ino, *index, &cut.chunk);
                    add_runs(&mut batch, &cut.taken, &cut.freed);
                }
                if boundary.is_some() {
                    batch.put(
                        keys::trim_intent(ino),
                        to_bytes(&first_gone(size, self.base.stripes.geometry().stripe_size)),
                    );
                }
                Ok((batch, (stored, used)))
            })
        };
        let (position, (stored, used)) = self.base.records.record(make).await?;
        self.base.inodes.uses().committed(&[used]);
        if boundary.is_some() {
            self.reclaim.add_cut(ino, first_gone(size, self.base.stripes.geometry().stripe_size));
        }
        self.base.inodes.note_remembered(1);
        self.base.inodes.with(ino, |active| {
            active.inode.committed = stored.committed.clone();
            active.stored = stored;
            active.sealed_state.size = size;
            if active.stored.committed == mark {
                active.sealed_state.mark = mark.clone();
            }
            active.note_installed(mark, None);
            active.inode.attributes.size = size;
            active.inode.attributes.mtime = active.stored.attributes.mtime;
            active.inode.attributes.ctime = active.stored.attributes.ctime;
            if let Some(used_bytes) = used_bytes {
                active.sealed_state.used_bytes = used_bytes;
                active.inode.attributes.used_bytes = used_bytes;
            }
            if let Some((index, cut)) = cut_chunk {
                active.remember(index, cut.chunk);
            }
            Ok(position)
        })
    }
}

/// Where a file is cut.
struct Boundary {
    /// The chunk.
    index: u64,
    /// Its blocks that stay, with all of the last logical block.
    kept_blocks: u32,
    /// What takes the place of that.
    last: Option<NewBlock>,
}

/// A chunk after a cut.
struct CutChunk {
    chunk: Chunk,
    taken: Vec<Run>,
    freed: Vec<Run>,
    /// It is not as it was.
    is_changed: bool,
}

impl Boundary {
    /// Cuts the chunk, all of which is committed.
    fn cut(&self, mut chunk: Chunk, blocks_per_stripe: u32) -> CutChunk {
        chunk.seal();
        let before = chunk.count();
        let (mut taken, mut freed) = (Vec::new(), chunk.cut(self.kept_blocks));
        let unit = chunk.unit_or(1);
        let mut slots = chunk.slots(blocks_per_stripe as usize, unit);
        let place = slots.get_mut((self.kept_blocks as usize - 1) / unit as usize);
        if let (Some(fresh), Some(Some(place))) = (&self.last, place)
            // Asked once more, after an answer that said that it was busy, it is there already.
            && place.block != fresh.block
        {
            let NewBlock { block, checksum, mirrors, .. } = *fresh;
            let (sealed, covered, deferred) = (true, false, false);
            let fresh = BlockSlot { block, checksum, sealed, covered, deferred, mirrors };
            let run = |start| Run { start, count: unit };
            if !place.covered {
                freed.extend(place.starts().map(run));
            }
            taken.extend(fresh.starts().map(run));
            *place = fresh;
            chunk = Chunk::from_slots(&slots, blocks_per_stripe, unit);
        }
        let is_changed = chunk.count() < before || !taken.is_empty();
        CutChunk { chunk, taken, freed, is_changed }
    }
}
