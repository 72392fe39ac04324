//! Emptying of partly used allocation groups, so that a node without space can have them: their
//! blocks move to other groups of this node. Without that, free space that is strewn over the
//! groups of a node could be used by no other one: one file got 189 of 484 MiB on a volume of 1 GiB
//! from which every second file of 1 MiB had been removed.
//!
//! Nothing more is taken from the chosen groups. Files with blocks there that no record names are
//! committed. Chunks are read, checked, written elsewhere, synced and recorded, with the file
//! locked. Pages of the tree, the space map and the log follow with a checkpoint.
//!
//! What a volume calls available counts this: what all nodes would give, and the least that a node
//! has beyond that, is what any one file can have. Blocks of the groups of other nodes in a file
//! would make two nodes of each allocation.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;
use std::time::Duration;

use blockio::BLOCK_SIZE;
use blockio::protocol::Unsynced;
use bytes::Bytes;
use futures::future::{join_all, try_join_all};
use futures::stream::{self, Stream, StreamExt as _};

use super::reclaim::Reclaim;
use crate::chunks::BlockSlot;
use crate::information::FileLocks;
use crate::keys;
use crate::protocol::{Chunk, Error, Run, Seal};
use crate::server::base::NodeBase;
use crate::server::content::FileContent;
use crate::server::content::chunk_records::{RESERVE_CHUNKS_MAX, add_runs, put_chunk};
use crate::server::record_log::decode;
use crate::store::{Batch, StoreError};

/// Blocks that are moved for one request of another node, about: 16 MiB.
const MOVED_BLOCKS_MAX: u64 = 4096;
/// Rounds of moves until groups are empty. What is written while one runs, or waits for a commit,
/// moves in the next.
const ROUNDS_MAX: u32 = 8;
/// The pause before the next.
const ROUND_PAUSE: Duration = Duration::from_millis(100);
/// Files of which chunks move at a time.
const FILES_MAX: usize = 8;
/// Keys that are looked at before others get their turn.
const SCANNED_MAX: usize = 256;
/// A group that is empty waits this long for the node that needs it.
const EMPTIED_STAY: Duration = Duration::from_secs(5);
/// After groups could not be emptied it is not tried again for this long.
const FAILURE_PAUSE: Duration = Duration::from_secs(10);

/// Chunks of one file that have blocks in groups that are being emptied.
type FileChunks = (u64, Vec<u64>);

/// A chunk in a new place.
struct MovedChunk {
    index: u64,
    chunk: Chunk,
    taken: Vec<Run>,
    freed: Vec<Run>,
}

/// Empties groups of one node.
pub(crate) struct GroupEmptier {
    base: Rc<NodeBase>,
    reclaim: Rc<Reclaim>,
    content: Rc<FileContent>,
    files: FileLocks,
    running: Cell<bool>,
    failed_at: Cell<Option<Duration>>,
}

impl GroupEmptier {
    pub(crate) fn new(
        base: &Rc<NodeBase>,
        reclaim: Rc<Reclaim>,
        content: Rc<FileContent>,
        files: FileLocks,
    ) -> Self {
        let (running, failed_at) = (Cell::default(), Cell::default());
        Self { base: base.clone(), reclaim, content, files, running, failed_at }
    }

    /// Has it not failed just now?
    pub(crate) fn is_usable(&self) -> bool {
        let now = self.base.context.now();
        self.failed_at.get().is_none_or(|failed_at| failed_at + FAILURE_PAUSE <= now)
    }

    /// Begins to empty up to `count` groups in the background; false if none can be emptied.
    pub(crate) fn start(self: &Rc<Self>, count: usize) -> bool {
        if self.running.get() {
            return true;
        }
        if !self.is_usable() || self.base.store.space().begin_emptying(count, MOVED_BLOCKS_MAX) == 0
        {
            return false;
        }
        self.running.set(true);
        let me = self.clone();
        self.base.context.task(async move {
            let emptied = me.run().await;
            let space = me.base.store.space();
            if emptied.is_err() || space.emptying() > 0 {
                tracing::debug!(?emptied, left = space.emptying(), "groups could not be emptied");
                me.failed_at.set(Some(me.base.context.now()));
            }
            space.end_emptying(false);
            me.running.set(false);
            me.base.context.sleep(EMPTIED_STAY).await;
            if !me.running.get() {
                me.base.store.space().end_emptying(true);
            }
        });
        true
    }

    async fn run(&self) -> Result<(), Error> {
        for round in 0..ROUNDS_MAX {
            if round > 0 {
                self.base.context.sleep(ROUND_PAUSE).await;
            }
            self.commit_files().await?;
            self.move_files().await?;
            self.base.store.space().move_pages().await?;
            if self.base.store.space().emptying() == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Commits files that have blocks in the groups which no record names yet.
    async fn commit_files(&self) -> Result<(), Error> {
        let is_wanted = |block| self.base.store.space().is_emptying(block);
        let files = self.base.inodes.dirty(|active| active.takes(is_wanted));
        let commits = files.into_iter().map(|ino| self.move_chunks((ino, Vec::new())));
        finish(stream::iter(commits).buffer_unordered(FILES_MAX)).await
    }

    /// Moves all chunks that are there now.
    async fn move_files(&self) -> Result<(), Error> {
        let (start, end) = keys::all(keys::KeyTable::Chunk);
        let mut from = Bound::Included(start);
        loop {
            let after = from.as_ref().map(Vec::as_slice);
            let found = self.base.store.scan(after, &end, SCANNED_MAX).await?;
            let mut files: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
            for (key, value) in &found {
                let ino = keys::chunk_ino(key).ok_or(Error::Damaged {})?;
                let index = keys::chunk_index(key).ok_or(Error::Damaged {})?;
                if self.moves(&decode(value)?) {
                    files.entry(ino).or_default().push(index);
                }
            }
            let parts = files.iter().flat_map(|(&ino, indices)| {
                indices.chunks(RESERVE_CHUNKS_MAX).map(move |part| (ino, part.to_vec()))
            });
            let moves = parts.map(|file| self.move_chunks(file));
            finish(stream::iter(moves).buffer_unordered(FILES_MAX)).await?;
            let Some((last, _)) = found.last() else { return Ok(()) };
            if found.len() < SCANNED_MAX {
                return Ok(());
            }
            from = Bound::Excluded(last.to_vec());
        }
    }

    fn moves(&self, chunk: &Chunk) -> bool {
        chunk.runs.iter().any(|run| self.base.store.space().is_emptying(run.start))
    }

    /// Commits one file and moves chunks of it: their content is written elsewhere and durable
    /// before a record names the new place. The file is neither read nor written meanwhile.
    async fn move_chunks(&self, (ino, indices): FileChunks) -> Result<(), Error> {
        let _alone = self.files.exclusive(ino).await;
        let _kept = self.base.inodes.keep(ino);
        self.base.inodes.load(ino, 0).await?;
        self.content.installer.seal(&Seal { ino }).await?;
        self.content.commits.commit(ino).await?;
        let _uncommitted = self.content.commit_locks.exclusive(ino).await;
        let _untrimmed = self.reclaim.lock_trims(ino).await;
        // What is cut off or was not committed is freed, or moves in the next round.
        if !self.base.inodes.with(ino, |active| Ok(active.is_clean()))? {
            return Ok(());
        }
        let mut moved = Vec::with_capacity(indices.len());
        let outcome = self.write_all(ino, &indices, &mut moved).await;
        let outcome = match outcome {
            Ok(()) => self.record(ino, &moved).await,
            failed => failed,
        };
        if outcome.is_err() {
            let taken = moved.into_iter().flat_map(|moved| moved.taken).collect();
            self.reclaim.discard_and_release(taken).await?;
        }
        outcome
    }

    /// Writes the blocks that move to new places, durably.
    async fn write_all(
        &self,
        ino: u64,
        indices: &[u64],
        moved: &mut Vec<MovedChunk>,
    ) -> Result<(), Error> {
        let mut written = Vec::new();
        for &index in indices {
            if self.reclaim.is_cut_off(ino, index) {
                continue;
            }
            let value = self.base.store.get(&keys::chunk(ino, index)).await?;
            let Some(value) = value else { continue };
            let old: Chunk = decode(&value)?;
            let blocks = self.base.stripes.geometry().blocks_per_stripe();
            if !old.is_valid(blocks) {
                return Err(Error::Damaged {});
            }
            if !self.moves(&old) {
                continue;
            }
            let content = self.read(&old).await?;
            let count: usize = content.iter().map(|data| data.len() / BLOCK_SIZE).sum();
            let taken = self.base.store.space().allocate(count as u32)?;
            let (chunk, freed) = self.replaced(&old, &taken);
            moved.push(MovedChunk { index, chunk, taken: taken.clone(), freed });
            written.extend(self.write(&taken, &content).await?);
        }
        if written.is_empty() {
            return Ok(());
        }
        self.base.stripes.sync(written).await.map_err(StoreError::from)?;
        Ok(())
    }

    /// The content of the runs that move, in order, checked.
    async fn read(&self, chunk: &Chunk) -> Result<Vec<Bytes>, Error> {
        let geometry = self.base.stripes.geometry();
        let space = self.base.store.space();
        let runs = chunk.runs.iter().filter(|run| space.is_emptying(run.start));
        let reads = runs.map(|run| {
            let (stripe, offset) = geometry.block(run.start);
            let length = run.count() * BLOCK_SIZE as u32;
            self.base.stripes.read(stripe, offset, length, run.checksums.clone())
        });
        Ok(try_join_all(reads).await.map_err(StoreError::from)?)
    }

    async fn write(&self, taken: &[Run], content: &[Bytes]) -> Result<Vec<Unsynced>, Error> {
        let geometry = self.base.stripes.geometry();
        let mut blocks = content.iter().flat_map(|data| {
            (0..data.len()).step_by(BLOCK_SIZE).map(|at| data.slice(at..at + BLOCK_SIZE))
        });
        let writes = taken.iter().map(|run| {
            let (stripe, offset) = geometry.block(run.start);
            let data: Vec<Bytes> = blocks.by_ref().take(run.count as usize).collect();
            let write = self.base.stripes.write(stripe, offset, data);
            async move { write.await.map(|boot_id| Unsynced { stripe, boot_id }) }
        });
        // All of them end before the blocks of one that failed are given back.
        let written = join_all(writes.collect::<Vec<_>>()).await;
        let written: Result<Vec<Unsynced>, _> = written.into_iter().collect();
        Ok(written.map_err(StoreError::from)?)
    }

    /// The chunk with the blocks `taken` in place of those that move, and those.
    fn replaced(&self, old: &Chunk, taken: &[Run]) -> (Chunk, Vec<Run>) {
        let blocks = self.base.stripes.geometry().blocks_per_stripe();
        let space = self.base.store.space();
        let mut fresh = taken.iter().flat_map(Run::blocks);
        let slots = old.slots(blocks as usize).into_iter().map(|slot| {
            slot.map(|slot| match space.is_emptying(slot.block).then(|| fresh.next()).flatten() {
                Some(block) => BlockSlot { block, ..slot },
                None => slot,
            })
        });
        let slots: Vec<_> = slots.collect();
        let moving = old.disk_runs().into_iter().filter(|run| space.is_emptying(run.start));
        (Chunk::from_slots(&slots, blocks), moving.collect())
    }

    /// Records the new places.
    async fn record(&self, ino: u64, moved: &[MovedChunk]) -> Result<(), Error> {
        if moved.is_empty() {
            return Ok(());
        }
        let make = || {
            let mut batch = Batch::new();
            batch.take_from_reserve();
            for MovedChunk { index, chunk, taken, freed } in moved {
                put_chunk(&mut batch, ino, *index, chunk);
                add_runs(&mut batch, taken, freed);
            }
            Ok((batch, ()))
        };
        self.base.records.record_within(make).await?;
        self.base.inodes.with(ino, |active| {
            for MovedChunk { index, chunk, .. } in moved {
                active.moved(*index, chunk);
            }
            Ok(())
        })
    }
}

/// Waits for what is done to several files.
async fn finish(mut work: impl Stream<Item = Result<(), Error>> + Unpin) -> Result<(), Error> {
    while let Some(done) = work.next().await {
        match done {
            // Removed meanwhile; lost, and rolled back by the next who writes it.
            Ok(()) | Err(Error::Stale {} | Error::LostWrites {}) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
