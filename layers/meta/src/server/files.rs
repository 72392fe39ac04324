//! Content of files: where it is, and how a change of it becomes durable (design D6): data first,
//! then the record that names the new blocks with their checksums.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use blockio::protocol::Unsynced;
use runtime::wire::to_bytes;

use super::trims::Cause;
use super::{MetaServer, REMEMBERED_MAX, decode};
use crate::active::Uncommitted;
use crate::attributes::{Attributes, WccAttr, WriteResult};
use crate::chunks::Slot;
use crate::keys;
use crate::memory::Kind as Memory;
use crate::protocol::{
    Chunk, ChunkPage, Error, FOUND_MAX, FindChunks, IndexedChunk, Inode, Install, Map, NewBlock,
    Run, Seal, Time, Truncate,
};
use crate::store::{Batch, Position, StoreError};

/// Bytes that the chunks of one record may take, at most, and half of what the store takes: small stripes
/// have short records.
const RECORD_BYTES: usize = 20 << 10;
/// Bytes that one block of a chunk takes in a record, at most: a run of its own, taken and freed.
const RECORD_BYTES_PER_BLOCK: usize = 48;

/// Chunks in one record of a change that frees space, at most: on a full volume it must fit the
/// reserve.
pub(super) const RESERVE_CHUNKS_MAX: usize = 16;

/// Uncommitted chunks after which a file counts as dirty however young they are.
const UNCOMMITTED_MAX: usize = 1024;

impl MetaServer {
    pub(super) async fn map(&self, request: Map) -> Result<Vec<Chunk>, Error> {
        let Map { ino, generation, first, count } = request;
        let _kept = self.keep(ino);
        self.load(ino, generation).await?;
        let mut chunks = Vec::with_capacity(count.min(1024) as usize);
        for index in first..first.saturating_add(u64::from(count)) {
            chunks.push(self.chunk(ino, index).await?);
        }
        // Unless the file was removed meanwhile.
        self.with(ino, |_| Ok(chunks))
    }

    /// The present state of a chunk.
    async fn chunk(&self, ino: u64, index: u64) -> Result<Chunk, Error> {
        let known = self.with(ino, |active| Ok(active.chunk(index).cloned()))?;
        if let Some(chunk) = known {
            return Ok(chunk);
        }
        let chunk = self.stored_chunk(ino, index).await?;
        self.note_remembered(1);
        // The caller holds the chunk: nobody has changed it meanwhile.
        self.with(ino, |active| {
            active.remember(index, chunk.clone());
            Ok(chunk)
        })
    }

    /// So many chunks are about to be remembered. At the limit all are forgotten: that costs each of
    /// them a constant time, and those in use come back.
    fn note_remembered(&self, count: usize) {
        let remembered = self.remembered.get() + count;
        self.remembered.set(remembered);
        if remembered > REMEMBERED_MAX {
            self.forget_chunks();
            self.remembered.set(count);
        }
    }

    /// Forgets the chunks that the store has too.
    pub(super) fn forget_chunks(&self) {
        for active in self.inodes.borrow_mut().values_mut() {
            let before = active.memory_bytes();
            active.forget_recent();
            let less = active.memory_bytes().wrapping_sub(before).cast_signed();
            self.share.add(Memory::Inodes, less);
        }
        self.remembered.set(0);
    }

    async fn stored_chunk(&self, ino: u64, index: u64) -> Result<Chunk, Error> {
        if self.trims.is_cut_off(ino, index) {
            self.finish_cut(ino).await?;
        }
        let value = self.store.get(&keys::chunk(ino, index)).await?;
        Ok(value.map(|value| self.decode_chunk(&value)).transpose()?.unwrap_or_default())
    }

    fn decode_chunk(&self, value: &[u8]) -> Result<Chunk, Error> {
        let chunk: Chunk = decode(value)?;
        let blocks = self.stripes.geometry().blocks_per_stripe();
        if chunk.is_valid(blocks) { Ok(chunk) } else { Err(Error::Damaged {}) }
    }

    pub(super) async fn find_chunks(&self, request: FindChunks) -> Result<ChunkPage, Error> {
        let FindChunks { ino, generation, first, count_max } = request;
        let count = count_max.clamp(1, FOUND_MAX) as usize;
        self.load(ino, generation).await?;
        self.finish_cut(ino).await?;
        // Looked at before the store: what a commit moves there meanwhile is in one of the two.
        let mut changed = self.with(ino, |active| Ok(active.changed_chunks(first, count)))?;
        let mut next = None;
        if changed.len() == count {
            next = changed.last_key_value().map(|(index, _)| index + 1);
        }
        let (from, end) = (keys::chunk(ino, first), keys::chunks_end(ino));
        let stored = self.store.scan(Bound::Included(&from), &end, count).await?;
        let mut found = BTreeMap::new();
        for (key, value) in &stored {
            let index = keys::chunk_index(key).ok_or(Error::Damaged {})?;
            found.insert(index, self.decode_chunk(value)?);
        }
        if stored.len() == count {
            let after = found.last_key_value().map(|(index, _)| index + 1);
            next = next.into_iter().chain(after).min();
        }
        found.append(&mut changed);
        let is_within = |index: u64| next.is_none_or(|next| index < next);
        let chunks = found
            .into_iter()
            .filter(|(index, chunk)| is_within(*index) && !chunk.runs.is_empty())
            .map(|(index, chunk)| IndexedChunk { index, chunk });
        let found = ChunkPage { chunks: chunks.collect(), next };
        // Unless the file was removed meanwhile.
        self.load(ino, generation).await?;
        Ok(found)
    }

    pub(super) async fn install(&self, request: Install) -> Result<WriteResult, Error> {
        let Install { ino, updates, size_min, time, drop_setid } = request;
        let _kept = self.keep(ino);
        self.load(ino, 0).await?;
        let blocks = self.stripes.geometry().blocks_per_stripe() as usize;
        let mut released = Vec::new();
        for update in updates {
            let old = self.chunk(ino, update.index).await?;
            self.with(ino, |active| {
                released.extend(active.install(&old, update, blocks));
                Ok(())
            })?;
        }
        let verified = self.note_installed(ino, size_min, time, drop_setid)?;
        self.forget_and_release(released).await?;
        Ok(verified)
    }

    /// Answers [`Install`], if all of it is known here and nothing has to be given back: as it is for most
    /// writes.
    pub(super) fn try_install_now(&self, request: &Install) -> Option<WriteResult> {
        let &Install { ino, ref updates, size_min, time, drop_setid } = request;
        let blocks = self.stripes.geometry().blocks_per_stripe() as usize;
        let installed = self.with(ino, |active| {
            active.used.set(true);
            Ok(active.install_known(updates, blocks))
        });
        installed.ok()??;
        self.share.note_use();
        self.note_installed(ino, size_min, time, drop_setid).ok()
    }

    /// The size and times of a file to which something was written.
    fn note_installed(
        &self,
        ino: u64,
        size_min: u64,
        time: Time,
        drop_setid: bool,
    ) -> Result<WriteResult, Error> {
        let (before, attributes) = self.with_dirty(ino, |active| {
            let attributes = &mut active.inode.attributes;
            let before = WccAttr::of(attributes);
            attributes.size = attributes.size.max(size_min);
            attributes.mtime = time;
            attributes.ctime = time;
            if drop_setid {
                attributes.mode &= !drop_setid_bits(attributes.mode);
            }
            (before, *attributes)
        })?;
        let write_verifier = self.verifiers.get(ino);
        Ok(WriteResult { attributes, write_verifier, before: Some(before) })
    }

    pub(super) async fn seal(&self, request: &Seal) -> Result<(), Error> {
        let blocks = self.stripes.geometry().blocks_per_stripe() as usize;
        // One that is clean may have left memory since.
        self.load(request.ino, 0).await?;
        let dropped = self.with(request.ino, |active| Ok(active.seal(blocks)))?;
        self.forget_and_release(dropped).await
    }

    pub(super) async fn commit(&self, ino: u64) -> Result<WriteResult, Error> {
        let (position, verified) = {
            let _alone = self.commits.exclusive(ino).await;
            let _kept = self.keep(ino);
            self.load(ino, 0).await?;
            let position = if self.with(ino, |active| Ok(active.is_clean() && !active.lost))? {
                // The log has it: only its own records are waited for, not what came after them.
                self.recorded_at(ino)
            } else {
                self.commit_locked(ino, false).await?
            };
            // A later loss is of what was written later.
            let write_verifier = self.verifiers.get(ino);
            let attributes = self.with(ino, |active| Ok(active.inode.attributes))?;
            (position, WriteResult { attributes, write_verifier, before: None })
        };
        // Whoever commits the same next rides in the same flush.
        self.store.durable(position).await?;
        Ok(verified)
    }

    /// The place of the last record of an inode: what it has beside it (its chunks, its extended attributes)
    /// was recorded before that or with it. The start if that is durable.
    fn recorded_at(&self, ino: u64) -> Position {
        let (from, to) = keys::only(&keys::inode(ino));
        self.store.last_change(&from, &to)
    }

    pub(super) async fn roll_back(&self, ino: u64) -> Result<(), Error> {
        let _alone = self.commits.exclusive(ino).await;
        let _kept = self.keep(ino);
        self.load(ino, 0).await?;
        let (is_past_end, end) = self.with(ino, |active| {
            Ok((active.lost && active.is_past_end, active.stored.attributes.size))
        })?;
        if is_past_end {
            // A commit that failed had recorded chunks past the end to which the file goes back.
            self.trim_chunks(ino, first_gone(end, self), Cause::Cut).await?;
        }
        let Some(unnamed) = self.with(ino, |active| Ok(active.roll_back()))? else {
            return Ok(());
        };
        tracing::warn!(ino, "writes to a file were lost before they were committed");
        self.dirty.borrow_mut().remove(&ino);
        self.verifiers.change(ino);
        self.forget_and_release(unnamed).await
    }

    /// Commits what is sealed; returns the position after which it is durable. With `from_reserve` it is
    /// a part of something that frees space.
    async fn commit_locked(&self, ino: u64, from_reserve: bool) -> Result<Position, Error> {
        // The intent to free what was cut off ends with a commit.
        self.finish_cut(ino).await?;
        let blocks = self.stripes.geometry().blocks_per_stripe() as usize;
        let dropped = self.with(ino, |active| {
            if active.lost { Err(Error::LostWrites {}) } else { Ok(active.begin_commit(blocks)) }
        })?;
        self.forget_and_release(dropped).await?;
        let (snapshot, changes) = self.with(ino, |active| {
            // What was written since the seal waits for the next commit.
            if active.pending.is_empty() && active.sealed.is_empty() {
                active.dirty_since = None;
            }
            active.is_being_committed = true;
            let changes: Vec<(u64, Uncommitted)> =
                active.committing.iter().map(|(&index, change)| (index, change.clone())).collect();
            Ok((active.inode.clone(), changes))
        })?;
        let outcome = self.record_changes(ino, snapshot, changes, from_reserve).await;
        if let Err(error) = &outcome {
            // Still uncommitted: the next commit tries again, unless the file is gone.
            let lost = *error == Error::LostWrites {};
            let _ = self.with_dirty(ino, |active| {
                active.is_being_committed = false;
                active.lost |= lost;
            });
        }
        outcome
    }

    async fn record_changes(
        &self,
        ino: u64,
        snapshot: Inode,
        changes: Vec<(u64, Uncommitted)>,
        from_reserve: bool,
    ) -> Result<Position, Error> {
        let written = changes.iter().flat_map(|(_, change)| &change.written);
        let written: BTreeSet<Unsynced> = written.copied().collect();
        if !written.is_empty() {
            let synced = self.stripes.sync(written.into_iter().collect()).await;
            synced.map_err(StoreError::from)?;
        }
        // Holes too must find their way into the log of a full volume.
        let from_reserve = from_reserve || count_freed(&changes) > count_taken(&changes);
        let most = if from_reserve { RESERVE_CHUNKS_MAX } else { usize::MAX };
        let most = self.chunks_per_record().min(most);
        let end = self.with(ino, |active| Ok(active.stored.attributes.size))?;
        let changes = end_last(changes, end / u64::from(self.stripes.geometry().stripe_size));
        // The inode goes with the last part: its size must not promise content that no record names.
        let early = changes.len().saturating_sub(1) / most * most;
        let (early, last) = changes.split_at(early);
        for part in early.chunks(most) {
            self.record_early(ino, part, first_gone(end, self), from_reserve).await?;
        }
        let (position, stored) = self
            .record(|| {
                self.with(ino, |active| {
                    // Links, owner and the like may have changed, in records of their own, while the
                    // content became durable.
                    let mut stored = active.inode.clone();
                    stored.attributes.size = snapshot.attributes.size;
                    stored.attributes.used_bytes = snapshot.attributes.used_bytes;
                    let mut batch = batch_of(ino, last, from_reserve);
                    batch.put(keys::inode(ino), to_bytes(&stored));
                    if active.is_past_end {
                        batch.delete(keys::trim_intent(ino));
                    }
                    Ok((batch, stored))
                })
            })
            .await?;
        self.note_remembered(last.len());
        self.with(ino, |active| {
            for (index, _) in last {
                active.committed(*index);
            }
            active.is_past_end = false;
            active.stored = stored;
            active.is_being_committed = false;
            if active.dirty_since.is_none() {
                self.dirty.borrow_mut().remove(&ino);
            }
            Ok(position)
        })
    }

    /// Records changed chunks before the inode that goes with them. What is past the end of the file as
    /// the store knows it, from chunk `first_gone` on, must not be found there after a crash: the file would show
    /// it when it grows. So an intent frees that, unless the inode is recorded.
    async fn record_early(
        &self,
        ino: u64,
        part: &[(u64, Uncommitted)],
        first_gone: u64,
        from_reserve: bool,
    ) -> Result<(), Error> {
        let is_past_end = part.iter().any(|(index, _)| *index >= first_gone);
        self.record(|| {
            let mut batch = batch_of(ino, part, from_reserve);
            if is_past_end {
                batch.put(keys::trim_intent(ino), to_bytes(&first_gone));
            }
            Ok((batch, ()))
        })
        .await?;
        self.note_remembered(part.len());
        self.with(ino, |active| {
            for (index, _) in part {
                active.committed(*index);
            }
            active.is_past_end |= is_past_end;
            Ok(())
        })
    }

    pub(super) async fn truncate(&self, request: Truncate) -> Result<Attributes, Error> {
        let Truncate { ino, generation, size, time, durable, last } = request;
        let _alone = self.commits.exclusive(ino).await;
        let _kept = self.keep(ino);
        self.load(ino, generation).await?;
        // Of a cut before this one, which could not free all.
        self.finish_cut(ino).await?;
        let chunk_size = u64::from(self.stripes.geometry().stripe_size);
        let block_size = blockio::BLOCK_SIZE as u64;
        let shrinks = self.with(ino, |active| Ok(size < active.inode.attributes.size))?;
        if shrinks {
            // What is cut off whole never needs to be written.
            let unnamed =
                self.with(ino, |active| Ok(active.forget_chunks(first_gone(size, self))))?;
            self.forget_and_release(unnamed).await?;
            self.seal(&Seal { ino }).await?;
            self.commit_locked(ino, true).await?;
        }
        let boundary = shrinks.then(|| Boundary {
            index: size / chunk_size,
            kept_blocks: (size % chunk_size).div_ceil(block_size) as u32,
            last,
        });
        if let Some(last) = last {
            self.stripes.sync(vec![last.written]).await.map_err(StoreError::from)?;
        }
        let mut position = self.cut(ino, size, time, boundary).await?;
        if shrinks {
            position = self.finish_cut(ino).await?;
        }
        self.settle_record(position, durable).await?;
        self.with(ino, |active| Ok(active.inode.attributes))
    }

    /// Records the new size, together with the chunk at the cut and the count of what is left.
    async fn cut(
        &self,
        ino: u64,
        size: u64,
        time: crate::attributes::Time,
        boundary: Option<Boundary>,
    ) -> Result<Position, Error> {
        let mut left_blocks = match &boundary {
            Some(boundary) => Some(self.count_blocks(ino, boundary.index).await?),
            None => None,
        };
        let mut cut_chunk = None;
        if let Some(boundary) = boundary.as_ref().filter(|boundary| boundary.kept_blocks > 0) {
            let chunk = self.stored_chunk(ino, boundary.index).await?;
            let chunk = boundary.cut(chunk, self.stripes.geometry().blocks_per_stripe());
            left_blocks = left_blocks.map(|blocks| blocks + chunk.chunk.count());
            cut_chunk = Some((boundary.index, chunk)).filter(|(_, chunk)| !chunk.freed.is_empty());
        }
        let used_bytes = left_blocks.map(|blocks| blocks * blockio::BLOCK_SIZE as u64);
        let (position, stored) = self
            .record(|| {
                self.with(ino, |active| {
                    let mut batch = Batch::new();
                    if boundary.is_some() {
                        batch.take_from_reserve();
                    }
                    let mut stored = active.stored.clone();
                    stored.attributes.size = size;
                    stored.attributes.mtime = time;
                    stored.attributes.ctime = time;
                    let used = &mut stored.attributes.used_bytes;
                    *used = used_bytes.unwrap_or(*used);
                    batch.put(keys::inode(ino), to_bytes(&stored));
                    if let Some((index, cut)) = &cut_chunk {
                        put_chunk(&mut batch, ino, *index, &cut.chunk);
                        add_runs(&mut batch, &cut.taken, &cut.freed);
                    }
                    if boundary.is_some() {
                        batch.put(keys::trim_intent(ino), to_bytes(&first_gone(size, self)));
                    }
                    Ok((batch, stored))
                })
            })
            .await?;
        if boundary.is_some() {
            self.trims.was_cut(ino, first_gone(size, self));
        }
        self.note_remembered(1);
        self.with(ino, |active| {
            active.stored = stored;
            active.inode.attributes.size = size;
            active.inode.attributes.mtime = time;
            active.inode.attributes.ctime = time;
            let used = &mut active.inode.attributes.used_bytes;
            *used = used_bytes.unwrap_or(*used);
            if let Some((index, cut)) = cut_chunk {
                active.remember(index, cut.chunk);
            }
            Ok(position)
        })
    }

    /// Counts the blocks of a file in its chunks before `end_chunk`.
    async fn count_blocks(&self, ino: u64, end_chunk: u64) -> Result<u64, Error> {
        let mut from = Bound::Included(keys::chunk(ino, 0));
        let end = keys::chunk(ino, end_chunk);
        let mut blocks = 0;
        loop {
            let found = self.store.scan(from.as_ref().map(Vec::as_slice), &end, 256).await?;
            let Some((last, _)) = found.last() else { return Ok(blocks) };
            from = Bound::Excluded(last.to_vec());
            for (_, value) in &found {
                blocks += decode::<Chunk>(value)?.count();
            }
        }
    }

    pub(super) fn chunks_per_record(&self) -> usize {
        let blocks = self.stripes.geometry().blocks_per_stripe() as usize;
        let room = RECORD_BYTES.min(self.store.batch_bytes_max() / 2);
        (room / (RECORD_BYTES_PER_BLOCK * blocks)).max(1)
    }

    /// Files with changes that wait for a commit for `age_ms`, or with very many; of any age, those
    /// too whose commit is under way: they are not in the log yet. Asked for now and then, so this is also
    /// when the node gives memory back.
    pub(super) fn dirty(&self, age_ms: u64) -> Vec<u64> {
        let now = self.context.now();
        self.give_back();
        // What is not committed cannot be given back.
        let age_ms = if self.share.is_short() { 0 } else { age_ms };
        let age = Duration::from_millis(age_ms);
        let inodes = self.inodes.borrow();
        let waits = |ino: &u64| {
            inodes.get(ino).is_some_and(|active| {
                let old = active.dirty_since.is_some_and(|since| since + age <= now);
                let under_way = age_ms == 0 && active.is_being_committed;
                old || under_way || active.uncommitted() > UNCOMMITTED_MAX
            })
        };
        self.dirty.borrow().iter().copied().filter(waits).collect()
    }
}

/// Where a file is cut.
struct Boundary {
    /// The chunk.
    index: u64,
    /// Its blocks that stay.
    kept_blocks: u32,
    /// What takes the place of the last of them.
    last: Option<NewBlock>,
}

/// A chunk after a cut.
struct CutChunk {
    chunk: Chunk,
    taken: Vec<Run>,
    freed: Vec<Run>,
}

impl Boundary {
    /// Cuts the chunk, all of which is committed.
    fn cut(&self, mut chunk: Chunk, blocks_per_stripe: u32) -> CutChunk {
        chunk.seal();
        let (mut taken, mut freed) = (Vec::new(), chunk.cut(self.kept_blocks));
        let mut slots = chunk.slots(blocks_per_stripe as usize);
        let place = slots.get_mut(self.kept_blocks as usize - 1);
        if let (Some(fresh), Some(Some(place))) = (self.last, place)
            // Asked once more, after an answer that said that it was busy, it is there already.
            && place.block != fresh.block
        {
            freed.push(Run { start: place.block, count: 1 });
            taken.push(Run { start: fresh.block, count: 1 });
            *place = Slot { block: fresh.block, checksum: fresh.checksum, sealed: true };
            chunk = Chunk::from_slots(&slots, blocks_per_stripe);
        }
        CutChunk { chunk, taken, freed }
    }
}

/// The changes in another order: that of chunk `end`, in which the file ends, last.
fn end_last(mut changes: Vec<(u64, Uncommitted)>, end: u64) -> Vec<(u64, Uncommitted)> {
    changes.sort_by_key(|(index, _)| *index == end);
    changes
}

/// A record of changed chunks, or a part of one.
fn batch_of(ino: u64, changes: &[(u64, Uncommitted)], from_reserve: bool) -> Batch {
    let mut batch = Batch::new();
    if from_reserve {
        batch.take_from_reserve();
    }
    for (index, change) in changes {
        put_chunk(&mut batch, ino, *index, &change.chunk);
        add_runs(&mut batch, &change.taken, &change.freed);
    }
    batch
}

fn count_taken(changes: &[(u64, Uncommitted)]) -> u64 {
    changes.iter().flat_map(|(_, change)| &change.taken).map(|run| u64::from(run.count)).sum()
}

fn count_freed(changes: &[(u64, Uncommitted)]) -> u64 {
    changes.iter().flat_map(|(_, change)| &change.freed).map(|run| u64::from(run.count)).sum()
}

fn first_gone(size: u64, server: &MetaServer) -> u64 {
    size.div_ceil(u64::from(server.stripes.geometry().stripe_size))
}

/// An executable file loses setuid and setgid (the latter only if the group may execute it).
fn drop_setid_bits(mode: u32) -> u32 {
    if mode & 0o010 != 0 { 0o6000 } else { 0o4000 }
}

fn put_chunk(batch: &mut Batch, ino: u64, index: u64, chunk: &Chunk) {
    if chunk.runs.is_empty() {
        batch.delete(keys::chunk(ino, index));
    } else {
        batch.put(keys::chunk(ino, index), to_bytes(chunk));
    }
}

pub(super) fn add_runs(batch: &mut Batch, taken: &[Run], freed: &[Run]) {
    for &run in taken {
        batch.allocated(run);
    }
    for &run in freed {
        batch.freed(run);
    }
}
