//! Moving the content of a node to other places: out of groups that are being emptied, off disks
//! that are being drained or are fuller than others.
//!
//! Files with blocks there that no record names are committed. Chunks are read, checked, written
//! elsewhere, synced and recorded, with the file locked. Pages of the tree, the space map and the
//! log follow with a checkpoint.

mod copies;
pub(super) mod wide_stripes;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::rc::Rc;

use blockio::BLOCK_SIZE;
use blockio::protocol::Unsynced;
use bytes::{Bytes, BytesMut};
use futures::FutureExt as _;
use futures::future::{LocalBoxFuture, join_all, ready, try_join_all};
use futures::stream::{self, Stream, StreamExt as _};
use runtime::sync::KeyGuard;

use super::reclaim::Reclaim;
use crate::chunks::BlockSlot;
use crate::information::FileLocks;
use crate::keys;
use crate::protocol::{BlockRun, Chunk, Error, Run, Seal};
use crate::server::base::NodeBase;
use crate::server::content::FileContent;
use crate::server::content::chunk_records::{
    RESERVE_CHUNKS_MAX, add_runs, chunks_per_record, put_chunk,
};
use crate::server::inode_cache::Pinned;
use crate::server::record_log::decode;
use crate::server::wide_stripe_table::WideStripeTable;
use crate::store::{Batch, StoreError};

/// Files of which chunks move at a time.
const FILES_MAX: usize = 8;
/// Bytes of a file that move before others get to it, unless they are few chunks.
const PIECE_BYTES: u32 = 4 << 20;
/// Bytes of it that are read and written at a time, unless a chunk has more.
const READ_BYTES: u32 = 512 << 10;
/// Keys that are looked at before others get their turn.
const SCANNED_MAX: usize = 256;

/// Chunks of one file that move.
type FileChunks = (u64, Vec<u64>);

/// Runs of a chunk that move. They are decided upon once: what moves may change meanwhile.
type MovingRuns = Vec<Run>;

/// A chunk in a new place.
struct MovedChunk {
    index: u64,
    chunk: Chunk,
    taken: Vec<Run>,
    freed: Vec<Run>,
}

/// What became of a chunk that was to move.
#[derive(Default)]
struct ChunkMove {
    /// If some of it moves.
    moved: Option<MovedChunk>,
    /// What has to be synced first.
    written: Vec<Unsynced>,
    /// Why some of it cannot be read, and stays.
    unread: Option<Error>,
    /// Why none of it moves.
    failure: Option<Error>,
}

/// How content moves for one reason.
pub(super) trait MovePlan {
    /// Does what begins at `block` move?
    fn is_moving(&self, block: u64) -> bool;

    /// Waits until `bytes` of chunks may move. False if it is to stay.
    fn begin(&self, _bytes: u64) -> LocalBoxFuture<'_, bool> {
        ready(true).boxed_local()
    }

    /// New places for `blocks` blocks, which are logical blocks of `unit` blocks; `None` if what
    /// was to move stays, as it does where only what is elsewhere, too, can move. The file is
    /// locked: to wait for space is for [`begin`](Self::begin).
    fn allocate(
        &self,
        _blocks: u32,
        _unit: u32,
    ) -> LocalBoxFuture<'_, Result<Option<Vec<Run>>, Error>> {
        ready(Ok(None)).boxed_local()
    }

    /// New places for one more copy of blocks that have `copies` on other disks.
    fn allocate_beside(
        &self,
        copies: Vec<Vec<Run>>,
        unit: u32,
    ) -> LocalBoxFuture<'_, Result<Option<Vec<Run>>, Error>>;

    /// Blocks have moved away from these runs.
    fn moved(&self, freed: &[Run]);

    /// Wide stripes for whose shards there are too few disks now are dissolved: what they have gets
    /// copies.
    fn dissolves_wide_stripes(&self) -> bool {
        false
    }

    /// The same of those for a shard of which there is no room apart from the others.
    fn dissolves_for_room(&self) -> bool {
        false
    }
}

/// Nothing of a file changes, moves or is read while this is held, and all of it is committed.
pub(super) struct QuietFile {
    _locks: [KeyGuard<u64>; 3],
    _kept: Pinned,
}

/// Moves content of one node.
pub(super) struct ContentMover {
    base: Rc<NodeBase>,
    reclaim: Rc<Reclaim>,
    content: Rc<FileContent>,
    wide_stripes: Rc<WideStripeTable>,
    files: FileLocks,
    /// A file of which some data cannot be read, so that it cannot move.
    unreadable: Cell<Option<u64>>,
}

impl ContentMover {
    pub(super) fn new(
        base: &Rc<NodeBase>,
        reclaim: Rc<Reclaim>,
        content: Rc<FileContent>,
        wide_stripes: Rc<WideStripeTable>,
        files: FileLocks,
    ) -> Self {
        let (base, unreadable) = (base.clone(), Cell::default());
        Self { base, reclaim, content, wide_stripes, files, unreadable }
    }

    /// A file that the last round could not move, since some of its data cannot be read.
    pub(super) fn unreadable(&self) -> Option<u64> {
        self.unreadable.get()
    }

    /// Commits files that have blocks there which no record names yet.
    pub(super) async fn commit_files(&self, plan: &dyn MovePlan) -> Result<(), Error> {
        let files = self.base.inodes.dirty(|active| active.takes(|block| plan.is_moving(block)));
        let commits = files.into_iter().map(|ino| self.move_chunks(plan, (ino, Vec::new())));
        finish(stream::iter(commits).buffer_unordered(FILES_MAX)).await
    }

    /// Moves all chunks that are there now.
    pub(super) async fn move_files(&self, plan: &dyn MovePlan) -> Result<(), Error> {
        self.unreadable.set(None);
        let (start, end) = keys::all(keys::KeyTable::Chunk);
        let (mut from, mut outcome) = (Bound::Included(start), Ok(()));
        loop {
            let after = from.as_ref().map(Vec::as_slice);
            let found = self.base.store.scan(after, &end, SCANNED_MAX).await?;
            let mut files: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
            for (key, value) in &found {
                let ino = keys::chunk_ino(key).ok_or(Error::Damaged {})?;
                let index = keys::chunk_index(key).ok_or(Error::Damaged {})?;
                let moving = moving(plan, &decode(value)?);
                if !moving.is_empty() {
                    let blocks = moving.iter().map(|run| u64::from(run.count)).sum();
                    files.entry(ino).or_default().push((index, blocks));
                }
            }
            let pieces = files.iter().flat_map(|(&ino, chunks)| {
                chunks.chunks(self.piece_chunks()).map(move |part| (ino, part))
            });
            let moves = pieces.map(|(ino, part)| async move {
                let blocks: u64 = part.iter().map(|(_, blocks)| blocks).sum();
                // The file is in use meanwhile.
                if !plan.begin(blocks * BLOCK_SIZE as u64).await {
                    return Ok(());
                }
                let indices = part.iter().map(|(index, _)| *index).collect();
                self.move_chunks(plan, (ino, indices)).await
            });
            // What cannot be moved does not keep the rest where it is.
            let parts = Box::pin(stream::iter(moves).buffer_unordered(FILES_MAX));
            outcome = outcome.and(finish(parts).await);
            let Some((last, _)) = found.last().filter(|_| found.len() == SCANNED_MAX) else {
                return outcome.and(self.move_wide_stripes(plan).await);
            };
            from = Bound::Excluded(last.to_vec());
        }
    }

    /// Commits one file and moves chunks of it: their content is written elsewhere and durable
    /// before a record names the new place. The file is neither read nor written meanwhile.
    pub(super) async fn move_chunks(
        &self,
        plan: &dyn MovePlan,
        (ino, indices): FileChunks,
    ) -> Result<(), Error> {
        // What is cut off or was not committed is freed, or moves in the next round.
        let Some(_quiet) = self.quiet(ino).await? else { return Ok(()) };
        let mut moved = Vec::with_capacity(indices.len());
        let mut unread = None;
        let written = self.write_all(plan, (ino, &indices), &mut moved, &mut unread).await;
        if let Err(error) = written {
            self.give_back(moved).await?;
            return Err(error);
        }
        self.record_all(plan, ino, moved).await?;
        unread.map_or(Ok(()), Err)
    }

    /// Records chunks in their new places, as many together as one record holds. What those have
    /// taken that are not recorded is given back.
    async fn record_all(
        &self,
        plan: &dyn MovePlan,
        ino: u64,
        mut moved: Vec<MovedChunk>,
    ) -> Result<(), Error> {
        let blocks = self.base.stripes.geometry().blocks_per_stripe();
        let most = chunks_per_record(&self.base.store, blocks).min(RESERVE_CHUNKS_MAX);
        let (mut recorded, mut outcome) = (0, Ok(()));
        while outcome.is_ok() && recorded < moved.len() {
            let part = &moved[recorded..moved.len().min(recorded + most)];
            outcome = self.record(ino, part).await;
            if outcome.is_ok() {
                for chunk in part {
                    plan.moved(&chunk.freed);
                }
                recorded += part.len();
            }
        }
        self.give_back(moved.split_off(recorded)).await?;
        outcome
    }

    /// Gives back what chunks have taken that are not recorded.
    async fn give_back(&self, moved: Vec<MovedChunk>) -> Result<(), Error> {
        let taken: Vec<Run> = moved.into_iter().flat_map(|chunk| chunk.taken).collect();
        if !taken.is_empty() {
            self.reclaim.discard_and_release(taken).await?;
        }
        Ok(())
    }

    /// Commits a file, and keeps all others from it. `None` if some of it is not committed.
    pub(super) async fn quiet(&self, ino: u64) -> Result<Option<QuietFile>, Error> {
        let alone = self.files.exclusive(ino).await;
        let kept = self.base.inodes.keep(ino);
        self.base.inodes.load(ino, 0).await?;
        self.content.installer.seal(&Seal { ino }).await?;
        self.content.commits.commit(ino).await?;
        let uncommitted = self.content.commit_locks.exclusive(ino).await;
        let untrimmed = self.reclaim.lock_trims(ino).await;
        let is_clean = self.base.inodes.with(ino, |active| Ok(active.is_clean()))?;
        let locks = [alone, uncommitted, untrimmed];
        Ok(is_clean.then_some(QuietFile { _locks: locks, _kept: kept }))
    }

    /// Chunks of a file that move before others get to it.
    fn piece_chunks(&self) -> usize {
        let stripe = self.base.stripes.geometry().stripe_size;
        RESERVE_CHUNKS_MAX.max((PIECE_BYTES / stripe) as usize)
    }

    /// Writes the blocks that move to new places, durably.
    async fn write_all(
        &self,
        plan: &dyn MovePlan,
        (ino, indices): (u64, &[u64]),
        moved: &mut Vec<MovedChunk>,
        unread: &mut Option<Error>,
    ) -> Result<(), Error> {
        let at_a_time = (READ_BYTES / self.base.stripes.geometry().stripe_size).max(1) as usize;
        let work = indices.iter().map(|&index| self.move_chunk(plan, (ino, index)));
        // All of them end before the blocks of one that failed are given back.
        let done: Vec<ChunkMove> = stream::iter(work).buffered(at_a_time).collect().await;
        let (mut written, mut failure) = (Vec::new(), None);
        for chunk in done {
            moved.extend(chunk.moved);
            written.extend(chunk.written);
            *unread = unread.or(chunk.unread);
            failure = failure.or(chunk.failure);
        }
        if unread.is_some() {
            self.unreadable.set(Some(ino));
        }
        if let Some(failure) = failure {
            return Err(failure);
        }
        if written.is_empty() {
            return Ok(());
        }
        self.base.stripes.sync(written).await.map_err(StoreError::from)?;
        Ok(())
    }

    async fn move_chunk(&self, plan: &dyn MovePlan, chunk: (u64, u64)) -> ChunkMove {
        let mut outcome = ChunkMove::default();
        outcome.failure = self.write_chunk(plan, chunk, &mut outcome).await.err();
        outcome
    }

    /// Writes the blocks of a chunk that move to new places.
    async fn write_chunk(
        &self,
        plan: &dyn MovePlan,
        (ino, index): (u64, u64),
        outcome: &mut ChunkMove,
    ) -> Result<(), Error> {
        if self.reclaim.is_cut_off(ino, index) {
            return Ok(());
        }
        let value = self.base.store.get(&keys::chunk(ino, index)).await?;
        let Some(value) = value else { return Ok(()) };
        let old: Chunk = decode(&value)?;
        if !old.is_valid(self.base.stripes.geometry().blocks_per_stripe()) {
            return Err(Error::Damaged {});
        }
        let freed = moving(plan, &old);
        if freed.is_empty() {
            return Ok(());
        }
        if old.runs.iter().any(BlockRun::is_mirrored) {
            let change = MovedChunk { index, chunk: old, taken: Vec::new(), freed };
            let change = outcome.moved.insert(change);
            outcome.unread = self.move_copies(plan, change, &mut outcome.written).await?;
            outcome.moved.take_if(|change| change.taken.is_empty());
            return Ok(());
        }
        // What finds no place is not read.
        let count = freed.iter().map(|run| run.count).sum();
        let Some(taken) = plan.allocate(count, old.unit_or(1)).await? else { return Ok(()) };
        let content = match self.read(&old, &freed).await {
            Ok(content) => content,
            Err(error) => {
                self.base.store.space().release(&taken)?;
                outcome.unread = Some(error);
                return Ok(());
            }
        };
        let chunk = self.replaced(&old, &freed, &taken);
        outcome.moved = Some(MovedChunk { index, chunk, taken: taken.clone(), freed });
        outcome.written = self.write(&taken, &content).await?;
        Ok(())
    }

    /// Writes those copies of a chunk that move to new places, each on another disk than the other
    /// copies. Returns why some of it cannot be read, and stays.
    async fn move_copies(
        &self,
        plan: &dyn MovePlan,
        moved: &mut MovedChunk,
        written: &mut Vec<Unsynced>,
    ) -> Result<Option<Error>, Error> {
        let blocks = self.base.stripes.geometry().blocks_per_stripe();
        let old = moved.chunk.clone();
        let unit = old.unit_or(1);
        let mut slots = old.slots(blocks as usize, unit);
        let mut unread = None;
        let wanted = std::mem::take(&mut moved.freed);
        for run in &old.runs {
            let mut copies: Vec<Vec<Run>> = run.places().map(|place| vec![place]).collect();
            for (number, place) in run.places().enumerate() {
                if !wanted.contains(&place) {
                    continue;
                }
                copies.remove(number);
                // Where the class of a file has changed, some of a chunk may have one copy yet.
                let taken = if copies.is_empty() {
                    plan.allocate(place.count, unit).await?
                } else {
                    plan.allocate_beside(copies.clone(), unit).await?
                };
                let Some(taken) = taken else {
                    copies.insert(number, vec![place]);
                    continue;
                };
                let content = match self.read_any(run).await {
                    Ok(content) => content,
                    Err(error) => {
                        self.base.store.space().release(&taken)?;
                        unread = Some(error);
                        break;
                    }
                };
                copies.insert(number, taken.clone());
                moved.taken.extend(&taken);
                moved.freed.push(place);
                written.extend(self.write(&taken, &[content]).await?);
                replace_copy(&mut slots, number, place, (&taken, unit));
            }
        }
        moved.chunk = Chunk::from_slots(&slots, blocks, unit);
        Ok(unread)
    }

    /// The content of a run, checked, of any of its copies.
    pub(super) async fn read_any(&self, run: &BlockRun) -> Result<Bytes, Error> {
        let count = run.checksums.len();
        match self.read_blocks(run, 0..count).await {
            Err(_) if count > 1 => {}
            whole => return whole,
        }
        // Each copy may be bad somewhere else.
        let mut content = BytesMut::with_capacity(run.count() as usize * BLOCK_SIZE);
        for at in 0..count {
            content.extend_from_slice(&self.read_blocks(run, at..at + 1).await?);
        }
        Ok(content.freeze())
    }

    /// These logical blocks of a run, of any of its copies that has them all.
    async fn read_blocks(&self, run: &BlockRun, blocks: Range<usize>) -> Result<Bytes, Error> {
        let geometry = self.base.stripes.geometry();
        let unit = run.count() / run.checksums.len().max(1) as u32;
        let length = blocks.len() as u32 * unit * BLOCK_SIZE as u32;
        let mut failure = None;
        for place in run.places() {
            let first = place.start + blocks.start as u64 * u64::from(unit);
            let (stripe, offset) = geometry.block(first);
            let checksums = run.checksums[blocks.clone()].to_vec();
            match self.base.stripes.read(stripe, offset, length, checksums).await {
                Ok(content) => return Ok(content),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        Err(failure.map_or(Error::Damaged {}, |error| StoreError::from(error).into()))
    }

    /// The content of the runs that move, in order, checked.
    async fn read(&self, chunk: &Chunk, moving: &MovingRuns) -> Result<Vec<Bytes>, Error> {
        let geometry = self.base.stripes.geometry();
        let is_moving = |start| moving.iter().any(|run| run.start == start);
        let runs = chunk.runs.iter().filter(|run| is_moving(run.start));
        let reads = runs.map(|run| {
            let (stripe, offset) = geometry.block(run.start);
            let length = run.count() * BLOCK_SIZE as u32;
            self.base.stripes.read(stripe, offset, length, run.checksums.clone())
        });
        Ok(try_join_all(reads).await.map_err(StoreError::from)?)
    }

    pub(super) async fn write(
        &self,
        taken: &[Run],
        content: &[Bytes],
    ) -> Result<Vec<Unsynced>, Error> {
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

    /// The chunk with the blocks `taken` in place of those that move.
    fn replaced(&self, old: &Chunk, moving: &MovingRuns, taken: &[Run]) -> Chunk {
        let blocks = self.base.stripes.geometry().blocks_per_stripe();
        let unit = old.unit_or(1);
        let moves = |block| moving.iter().any(|run| run.blocks().contains(&block));
        let mut fresh = taken.iter().flat_map(|run| run.blocks().step_by(unit as usize));
        let slots = old.slots(blocks as usize, unit).into_iter().map(|slot| {
            slot.map(|slot| match moves(slot.block).then(|| fresh.next()).flatten() {
                Some(block) => BlockSlot { block, ..slot },
                None => slot,
            })
        });
        let slots: Vec<_> = slots.collect();
        Chunk::from_slots(&slots, blocks, unit)
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

/// The runs of a chunk that move.
fn moving(plan: &dyn MovePlan, chunk: &Chunk) -> MovingRuns {
    chunk.disk_runs().into_iter().filter(|run| plan.is_moving(run.start)).collect()
}

/// Puts the blocks `taken` in the place of copy `number` of the logical blocks whose copy is in
/// `place`.
fn replace_copy(
    slots: &mut [Option<BlockSlot>],
    number: usize,
    place: Run,
    (taken, unit): (&[Run], u32),
) {
    let mut fresh = taken.iter().flat_map(|run| run.blocks().step_by(unit as usize));
    for slot in slots.iter_mut().flatten() {
        let start = match number.checked_sub(1) {
            None => Some(&mut slot.block),
            Some(mirror) => slot.mirrors.starts_mut().get_mut(mirror),
        };
        if let Some(start) = start.filter(|start| place.blocks().contains(*start))
            && let Some(new) = fresh.next()
        {
            *start = new;
        }
    }
}

/// Waits for what is done to several files, all of it: what is half done holds blocks. Returns the
/// first failure.
async fn finish(mut work: impl Stream<Item = Result<(), Error>> + Unpin) -> Result<(), Error> {
    let mut outcome = Ok(());
    while let Some(done) = work.next().await {
        match done {
            // Removed meanwhile; lost, and rolled back by the next who writes it.
            Ok(()) | Err(Error::Stale {} | Error::LostWrites {}) => {}
            failed => outcome = outcome.and(failed),
        }
    }
    outcome
}
