//! The file information cache of one node (thesis section 2.5.2): the inodes in use, with what of
//! them is not in the store yet, and the chunks round the last accesses.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use blockio::protocol::Unsynced;

use crate::attributes::Attributes;
use crate::chunks::{Difference, difference, subtract};
use crate::operations::{CallId, CallOutcome};
use crate::protocol::{AppendRecord, Chunk, ChunkUpdate, CommitMark, Inode, Run, WideStripe};
use crate::shared_attrs::publisher::PublishRound;

/// A change of one chunk that no record names yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Uncommitted {
    /// The chunk after the change.
    pub(crate) chunk: Chunk,
    /// Blocks that the record will take into use.
    pub(crate) taken: Vec<Run>,
    /// Blocks that the record will free.
    pub(crate) freed: Vec<Run>,
    /// Where the content is, and the boot IDs with which it was written there.
    pub(crate) written: BTreeSet<Unsynced>,
    /// Blocks that the chunk has more than in the store, or fewer.
    pub(crate) more_blocks: i64,
    /// See [`ChunkUpdate::wide`].
    pub(crate) wide: Option<Box<WideStripe>>,
    /// What the record makes of this chunk and the next ones.
    pub(crate) encoded: Option<Box<EncodedChunks>>,
}

/// Chunks that are recorded in a wide stripe.
#[derive(Clone, Debug)]
pub(crate) struct EncodedChunks {
    /// The wide stripe.
    pub(crate) wide: WideStripe,
    /// Places that they do not need: they are free once the record is made.
    pub(crate) unused: Vec<Run>,
    /// A place that was found for the parity: it is free if the record is not made.
    pub(crate) found: Vec<Run>,
}

/// A file as it was when it was sealed: a commit says no more than this, since later writes have no
/// record yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SealedState {
    /// The number of the last change that had been installed, and what is missing of earlier ones.
    pub(crate) mark: CommitMark,
    /// The length of the file in bytes.
    pub(crate) size: u64,
    /// Bytes of its blocks.
    pub(crate) used_bytes: u64,
}

impl SealedState {
    fn of(mark: CommitMark, inode: &Inode) -> Self {
        let Attributes { size, used_bytes, .. } = inode.attributes;
        Self { mark, size, used_bytes }
    }
}

/// One inode in use.
#[derive(Debug)]
pub(crate) struct ActiveInode {
    /// As clients see it.
    pub(crate) inode: Inode,
    /// As the store has it.
    pub(crate) stored: Inode,
    /// A commit has begun and is not recorded yet.
    pub(crate) is_being_committed: bool,
    /// Installed chunks; their unsealed blocks may be rewritten in the cache.
    pub(crate) pending: BTreeMap<u64, Uncommitted>,
    /// Sealed chunks that wait for a commit.
    pub(crate) sealed: BTreeMap<u64, Uncommitted>,
    /// Sealed chunks whose commit is under way.
    pub(crate) committing: BTreeMap<u64, Uncommitted>,
    /// When the first of the uncommitted changes was made.
    pub(crate) dirty_since: Option<Duration>,
    /// Some of the uncommitted content is lost: nothing is committed until a
    /// [`roll_back`](Self::roll_back).
    pub(crate) lost: bool,
    /// A commit that has not ended has recorded chunks past the end that the store knows, and the
    /// intent to free them.
    pub(crate) is_past_end: bool,
    /// The changes that are in its content as clients see it.
    pub(crate) installed: CommitMark,
    /// As it was when it was sealed last.
    pub(crate) sealed_state: SealedState,
    /// Changes up to this number are durable, as far as that is known.
    pub(crate) durable_sequence: u64,
    /// Appends that no record names yet, in the order of their numbers.
    pub(crate) appends: Vec<(u64, AppendRecord)>,
    /// It was used since the last eviction scan.
    pub(crate) used: Cell<bool>,
    /// The round in which its attributes were published to the process.
    pub(crate) shown: Cell<PublishRound>,
    recent: BTreeMap<u64, Chunk>,
    /// Bytes of these.
    recent_bytes: usize,
}

/// Bytes of an inode in use, with its slot in the table and its allocation.
const ACTIVE_BYTES: usize = size_of::<ActiveInode>() + 48;
/// Bytes of a chunk besides its runs and checksums, with its slot in its table.
const CHUNK_BYTES: usize = 96;
/// Bytes of a change of a chunk that no record names yet: the chunk, and lists of a few runs.
const UNCOMMITTED_BYTES: usize = 640;

/// Bytes that a chunk takes in memory.
fn chunk_bytes(chunk: &Chunk) -> usize {
    let runs = chunk.runs.iter().map(|run| size_of_val(run) + size_of_val(&run.checksums[..]) + 16);
    CHUNK_BYTES + runs.sum::<usize>()
}

impl ActiveInode {
    /// An inode as the store has it.
    pub(crate) fn new(stored: Inode) -> Box<Self> {
        Box::new(Self {
            inode: stored.clone(),
            installed: stored.committed.clone(),
            sealed_state: SealedState::of(stored.committed.clone(), &stored),
            durable_sequence: 0,
            appends: Vec::new(),
            stored,
            is_being_committed: false,
            pending: BTreeMap::new(),
            sealed: BTreeMap::new(),
            committing: BTreeMap::new(),
            dirty_since: None,
            lost: false,
            is_past_end: false,
            used: Cell::new(false),
            shown: Cell::default(),
            recent: BTreeMap::new(),
            recent_bytes: 0,
        })
    }

    /// Bytes that it takes in memory, with all that is known of its chunks.
    pub(crate) fn memory_bytes(&self) -> usize {
        let targets = self.inode.target.capacity() + self.stored.target.capacity();
        let appends = self.appends.capacity() * size_of::<(u64, AppendRecord)>();
        ACTIVE_BYTES
            + targets
            + appends
            + self.recent_bytes
            + self.uncommitted() * UNCOMMITTED_BYTES
    }

    /// The store has all of it.
    pub(crate) fn is_clean(&self) -> bool {
        let is_recorded = !self.is_being_committed && !self.is_past_end;
        self.dirty_since.is_none() && is_recorded && self.uncommitted() == 0
    }

    /// Chunks with changes that no record names.
    pub(crate) fn uncommitted(&self) -> usize {
        self.pending.len() + self.sealed.len() + self.committing.len()
    }

    /// The chunk, if it is known here.
    pub(crate) fn chunk(&self, index: u64) -> Option<&Chunk> {
        let changed = self.pending.get(&index).or_else(|| self.sealed.get(&index));
        let changed = changed.or_else(|| self.committing.get(&index));
        changed.map(|change| &change.chunk).or_else(|| self.recent.get(&index))
    }

    /// The first `count` chunks from `first` on with changes that no record names, as they are now.
    pub(crate) fn changed_chunks(&self, first: u64, count: usize) -> BTreeMap<u64, Chunk> {
        let mut changed = BTreeMap::new();
        // The newest state of a chunk replaces older ones.
        for changes in [&self.committing, &self.sealed, &self.pending] {
            let from = changes.range(first..).take(count);
            changed.extend(from.map(|(&index, change)| (index, change.chunk.clone())));
        }
        while changed.len() > count {
            changed.pop_last();
        }
        changed
    }

    /// Remembers a chunk of the store, until [`forget_recent`](Self::forget_recent).
    pub(crate) fn remember(&mut self, index: u64, chunk: Chunk) {
        self.recent_bytes += chunk_bytes(&chunk);
        if let Some(before) = self.recent.insert(index, chunk) {
            self.recent_bytes -= chunk_bytes(&before);
        }
    }

    /// Does a change that no record names take blocks for which `is_wanted` is true?
    pub(crate) fn takes(&self, is_wanted: impl Fn(u64) -> bool) -> bool {
        let changes = [&self.pending, &self.sealed, &self.committing];
        let mut changes = changes.into_iter().flat_map(BTreeMap::values);
        changes.any(|change| change.taken.iter().any(|run| is_wanted(run.start)))
    }

    /// The blocks of a chunk are elsewhere now, in the store too.
    pub(crate) fn moved(&mut self, index: u64, chunk: &Chunk) {
        if self.recent.contains_key(&index) {
            self.remember(index, chunk.clone());
        }
    }

    /// Forgets the chunks that the store has too.
    pub(crate) fn forget_recent(&mut self) {
        self.recent.clear();
        self.recent_bytes = 0;
    }

    /// Replaces a chunk whose present state is `old`; returns blocks that can be given back at
    /// once, because no record ever named them.
    pub(crate) fn install(
        &mut self,
        old: &Chunk,
        mut update: ChunkUpdate,
        blocks: usize,
    ) -> Vec<Run> {
        follow_commit(&mut update, old, blocks);
        let change = difference(old, &update.chunk, blocks);
        self.install_change(old.count(), change, update, blocks)
    }

    /// As [`install`](Self::install), if that gives nothing back and the chunks are known here:
    /// else nothing is changed, and `None`.
    pub(crate) fn install_known(&mut self, updates: &[ChunkUpdate], blocks: usize) -> Option<()> {
        let change = |update: &ChunkUpdate| {
            let (old, mut update) = (self.chunk(update.index)?, update.clone());
            follow_commit(&mut update, old, blocks);
            let change = difference(old, &update.chunk, blocks);
            change.released.is_empty().then_some((old.count(), change, update))
        };
        // Each once.
        if !updates.is_sorted_by(|before, next| before.index < next.index) {
            return None;
        }
        let changes: Vec<_> = updates.iter().map(change).collect::<Option<_>>()?;
        for (old_count, change, update) in changes {
            self.install_change(old_count, change, update, blocks);
        }
        Some(())
    }

    fn install_change(
        &mut self,
        old_count: u64,
        change: Difference,
        update: ChunkUpdate,
        blocks: usize,
    ) -> Vec<Run> {
        let more_blocks = update.chunk.count().cast_signed() - old_count.cast_signed();
        add_blocks(&mut self.inode, more_blocks);
        let pending = self.pending.entry(update.index).or_default();
        pending.more_blocks += more_blocks;
        if !change.released.is_empty() {
            pending.taken = subtract(&pending.taken, &change.released, blocks);
        }
        pending.taken.extend(change.taken);
        pending.freed.extend(change.freed);
        pending.chunk = update.chunk;
        pending.written.extend(update.written);
        if let Some(wide) = update.wide {
            pending.wide = Some(Box::new(wide));
        }
        change.released
    }

    /// From now on nothing installed so far is rewritten in place. Returns blocks that no record
    /// will name: they were sealed before, and replaced before they were committed.
    pub(crate) fn seal(&mut self, blocks: usize) -> Vec<Run> {
        let dropped = merge_into(&mut self.sealed, std::mem::take(&mut self.pending), blocks);
        for change in self.sealed.values_mut() {
            change.chunk.seal();
        }
        self.sealed_state = SealedState::of(self.installed.clone(), &self.inode);
        dropped
    }

    /// A change was installed; `append` if it was one.
    pub(crate) fn note_installed(&mut self, mark: CommitMark, append: Option<AppendRecord>) {
        let sequence = mark.sequence;
        self.installed.join(mark);
        let Some(append) = append else { return };
        let AppendRecord { call, acknowledged, .. } = append;
        self.appends.retain(|(_, known)| {
            known.call.client != call.client || known.call.number >= acknowledged
        });
        self.appends.push((sequence, append));
    }

    /// The appends among the changes up to `sequence`, for the record that covers these.
    pub(crate) fn appends_up_to(&self, sequence: u64) -> Vec<(CallId, CallOutcome)> {
        let covered = self.appends.iter().take_while(|(number, _)| *number <= sequence);
        let outcome = |append: &AppendRecord| CallOutcome::Appended { offset: append.offset };
        covered.map(|(_, append)| (append.call, outcome(append))).collect()
    }

    /// Everything that was installed is sealed.
    pub(crate) fn is_sealed(&self) -> bool {
        let is_covered = self.installed.sequence == self.sealed_state.mark.sequence;
        self.pending.is_empty() && self.sealed.is_empty() && is_covered
    }

    /// What is sealed is being committed (with what an earlier commit could not finish). Returns
    /// blocks as [`seal`](Self::seal) does.
    pub(crate) fn begin_commit(&mut self, blocks: usize) -> Vec<Run> {
        merge_into(&mut self.committing, std::mem::take(&mut self.sealed), blocks)
    }

    /// The changes whose commit is under way.
    pub(crate) fn committing_changes(&self) -> Vec<(u64, Uncommitted)> {
        self.committing.iter().map(|(&index, change)| (index, change.clone())).collect()
    }

    /// A record has this chunk of `blocks` blocks now: what was being committed, or the same after
    /// it was protected. Later changes follow it.
    pub(crate) fn committed(&mut self, index: u64, chunk: &Chunk, blocks: usize) {
        let Some(change) = self.committing.remove(&index) else { return };
        if change.chunk != *chunk {
            let mut before = chunk;
            for changes in [&mut self.sealed, &mut self.pending] {
                let Some(later) = changes.get_mut(&index) else { continue };
                later.chunk = later.chunk.following(before, blocks);
                let Difference { taken, freed, .. } = difference(before, &later.chunk, blocks);
                (later.taken, later.freed) = (taken, freed);
                before = &later.chunk;
            }
        }
        self.remember(index, chunk.clone());
    }

    /// After a loss: the inode and its chunks are as the store has them. Returns blocks that no
    /// record named; `None` if nothing was lost.
    pub(crate) fn roll_back(&mut self) -> Option<Vec<Run>> {
        if !std::mem::take(&mut self.lost) {
            return None;
        }
        let unnamed = self.forget_chunks(0);
        self.inode = self.stored.clone();
        self.dirty_since = None;
        self.is_past_end = false;
        self.appends.clear();
        // What was lost may be sent again, with numbers of its own.
        let lost = self.installed.sequence;
        self.installed = self.stored.committed.after_loss(lost);
        // The next commit records it.
        self.sealed_state = SealedState::of(self.installed.clone(), &self.stored);
        Some(unnamed)
    }

    /// The parity that was written for this chunk and the next ones may be overwritten.
    pub(crate) fn forget_parity(&mut self, index: u64) {
        for changes in [&mut self.pending, &mut self.sealed, &mut self.committing] {
            if let Some(change) = changes.get_mut(&index) {
                change.wide = None;
            }
        }
    }

    /// Forgets all that is known of chunks from `first` on: they are as the store has them. Returns
    /// blocks that no record named.
    pub(crate) fn forget_chunks(&mut self, first: u64) -> Vec<Run> {
        let mut taken = Vec::new();
        for changes in [&mut self.pending, &mut self.sealed, &mut self.committing] {
            for change in changes.split_off(&first).into_values() {
                add_blocks(&mut self.inode, -change.more_blocks);
                taken.extend(change.taken);
            }
        }
        let gone = self.recent.split_off(&first);
        self.recent_bytes -= gone.values().map(chunk_bytes).sum::<usize>();
        taken
    }
}

/// A commit may have protected blocks of a chunk while it was written to: what the update has left
/// as it was is as in `old` now.
fn follow_commit(update: &mut ChunkUpdate, old: &Chunk, blocks: usize) {
    let has_deferred = update.chunk.runs.iter().any(|run| run.form.deferred);
    if has_deferred && old.runs.iter().any(|run| !run.form.deferred) {
        update.chunk = update.chunk.following(old, blocks);
    }
}

/// A file has `more` blocks more than before, or fewer.
pub(crate) fn add_blocks(inode: &mut Inode, more: i64) {
    let used = &mut inode.attributes.used_bytes;
    *used = used.saturating_add_signed(more * (blockio::BLOCK_SIZE as u64).cast_signed());
}

/// Puts later changes of chunks of `blocks` blocks behind earlier ones, so that one record does for
/// both. What the later ones free of what the earlier ones took is returned: no record names it.
fn merge_into(
    older: &mut BTreeMap<u64, Uncommitted>,
    newer: BTreeMap<u64, Uncommitted>,
    blocks: usize,
) -> Vec<Run> {
    let mut dropped = Vec::new();
    for (index, mut change) in newer {
        let before = older.remove(&index).unwrap_or_default();
        let still_taken = subtract(&before.taken, &change.freed, blocks);
        let still_freed = subtract(&change.freed, &before.taken, blocks);
        dropped.extend(subtract(&before.taken, &still_taken, blocks));
        change.written.extend(before.written);
        change.wide = change.wide.or(before.wide);
        change.more_blocks += before.more_blocks;
        change.taken.splice(0..0, still_taken);
        change.freed = before.freed.into_iter().chain(still_freed).collect();
        older.insert(index, change);
    }
    dropped
}

#[cfg(test)]
mod tests {
    use runtime::seed::Rng;
    use runtime::wire::Wire as _;

    use super::*;
    use crate::chunks::BlockSlot;
    use crate::protocol::{Mirrors, RunForm};

    #[test]
    fn a_block_that_two_unfinished_commits_take_and_free_is_named_by_no_record() {
        let change = |taken, freed| Uncommitted {
            chunk: Chunk::default(),
            taken: vec![Run { start: taken, count: 1 }],
            freed: vec![Run { start: freed, count: 1 }],
            written: BTreeSet::from([Unsynced { stripe: 0, boot_id: taken }]),
            more_blocks: 2,
            wide: None,
            encoded: None,
        };
        let mut older = BTreeMap::from([(0, change(7, 3))]);
        let dropped = merge_into(&mut older, BTreeMap::from([(0, change(9, 7))]), 16);
        assert_eq!(dropped, [Run { start: 7, count: 1 }]);
        assert_eq!(older[&0].taken, [Run { start: 9, count: 1 }]);
        assert_eq!(older[&0].freed, [Run { start: 3, count: 1 }]);
        assert_eq!(older[&0].written.len(), 2, "both have to be synced");
        assert_eq!(older[&0].more_blocks, 4);
    }

    #[test]
    fn a_change_that_follows_a_commit_frees_what_its_record_has_and_nothing_else() {
        let slot = |block, mirror, deferred| {
            let mut mirrors = Mirrors::default();
            mirrors.push(mirror);
            let (sealed, covered) = (true, false);
            Some(BlockSlot { block, checksum: block as u32, sealed, covered, deferred, mirrors })
        };
        let slots: Vec<_> = (0..16).map(|at| slot(160 + at, 320 + at, true)).collect();
        let committing = Chunk::from_slots(&slots, 16, 1);
        let mut later = slots.clone();
        later[3] = slot(500, 600, false);
        let later = Chunk::from_slots(&later, 16, 1);
        let mut mirrored = committing.clone();
        mirrored.runs[0].form.deferred = false;
        let mut covered = committing.clone();
        covered.runs[0].form = RunForm::covered(1);
        covered.runs[0].mirrors = Mirrors::default();
        let one = |start| Run { start, count: 1 };
        for (recorded, freed) in [(&mirrored, vec![one(163), one(323)]), (&covered, vec![])] {
            let mut active = ActiveInode::new(Inode::sample(&mut Rng::new(1)));
            let change =
                |chunk: &Chunk| Uncommitted { chunk: chunk.clone(), ..Uncommitted::default() };
            active.committing.insert(7, change(&committing));
            let (taken, before) = (vec![one(500), one(600)], vec![one(163), one(323)]);
            active.pending.insert(7, Uncommitted { taken, freed: before, ..change(&later) });
            active.committed(7, recorded, 16);
            let pending = &active.pending[&7];
            assert_eq!((&pending.taken, &pending.freed), (&vec![one(500), one(600)], &freed));
            let runs = &pending.chunk.runs;
            assert_eq!((runs.len(), runs[1].start, runs[1].is_mirrored()), (3, 500, true));
            for (run, start) in [(&runs[0], 160), (&runs[2], 164)] {
                assert_eq!((run.start, run.form), (start, recorded.runs[0].form));
            }
            // The same if it is installed after the commit.
            let mut late = ActiveInode::new(Inode::sample(&mut Rng::new(1)));
            let chunk = later.clone();
            let update = ChunkUpdate { index: 7, chunk, written: Vec::new(), wide: None };
            assert_eq!(late.install(recorded, update, 16), []);
            let late = &late.pending[&7];
            assert_eq!((&late.taken, &late.freed), (&pending.taken, &freed));
            assert_eq!(late.chunk, pending.chunk);
        }
    }
}
