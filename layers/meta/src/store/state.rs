//! All that changes in a store. Nothing here waits: every method leaves the state whole.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use blockio::{DiskName, Geometry, has_lost_disk, is_behind};
use bytes::Bytes;

use super::batch::{Batch, BatchOp, BatchRoom};
use super::blocked_records::BlockedRecords;
use super::error::{StoreError, StoreResult};
use super::limits;
use super::log::Log;
use super::log::format::SegmentCopies;
use super::overlay::Overlay;
use super::page::PageRef;
use super::recent::Recent;
use super::root::Root;
use super::space::{
    BlockAllocator, EmptyingGroups, MoveReason, SpaceOnDisks, count_free_group,
    floor_with_partners, open_stripes, stripes_without_partner, usable_stripes,
};
use crate::memory::{MemoryKind, MemoryShare};

/// Bytes that may wait for the log, at most; past it commits are `Busy`.
pub const PENDING_BYTES_MAX: usize = 1 << 20;

/// Segments that the log leaves early, at most, to get out of groups that are being emptied.
pub(crate) const LEFT_SEGMENTS_MAX: u64 = 2;

/// How far inode numbers may run ahead of what a record has said; a mount skips as many.
pub(crate) const NUMBERS_AHEAD: u64 = 1024;

/// Why a batch is not admitted.
pub(crate) enum CommitRefusal {
    /// It can be once the pending records are written.
    LogBehind,
    /// It can be after a checkpoint.
    TreeBehind,
    /// As things are, it cannot.
    Error(StoreError),
}

impl From<StoreError> for CommitRefusal {
    fn from(error: StoreError) -> Self {
        Self::Error(error)
    }
}

/// Where the changes of a store go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeMode {
    /// Into the log, and later into the tree.
    Logged,
    /// Nowhere but into memory: the store is only read, and its recovery is under way.
    InMemory,
    /// They are refused.
    Refused,
}

/// Blocks that a record has freed.
#[derive(Debug)]
struct FreedBlocks {
    position: u64,
    blocks: Range<u64>,
}

/// The state of a store.
#[derive(Debug)]
pub(crate) struct StoreState {
    pub(crate) geometry: Geometry,
    pub(crate) space: BlockAllocator,
    pub(crate) log: Log,
    pub(crate) active: Overlay,
    /// What a running checkpoint is writing.
    pub(crate) frozen: Option<Rc<Overlay>>,
    /// The last record in `frozen`.
    pub(crate) frozen_position: Option<u64>,
    /// The newest durable root.
    pub(crate) root: Root,
    /// The disks that have it.
    pub(crate) root_holders: Vec<DiskName>,
    /// The pages of its space map.
    pub(crate) map_pages: Vec<PageRef>,
    /// The next inode number.
    pub(crate) counter: u64,
    /// The counter in the last record.
    pub(crate) recorded: u64,
    waiting: VecDeque<FreedBlocks>,
    /// Blocks that were freed and may not be handed out yet.
    pub(crate) waiting_blocks: u64,
    /// What records change that are not durable yet.
    pub(crate) recent: Recent,
    /// Records that wait for records of other nodes.
    pub(crate) blocked_records: BlockedRecords,
    /// The log is wanted durable up to this LSN.
    pub(crate) wanted: u64,
    pub(crate) writing: bool,
    pub(crate) timer: bool,
    pub(crate) checkpointing: bool,
    /// How the last checkpoint went wrong, if it did.
    pub(crate) checkpoint_error: Option<StoreError>,
    /// Why nothing is accepted any more.
    pub(crate) stopped: Option<StoreError>,
    /// Where changes go.
    pub(crate) changes: ChangeMode,
    /// The part of the memory that the node has.
    share: Rc<MemoryShare>,
}

impl StoreState {
    pub(crate) fn new(
        geometry: Geometry,
        (space, active): (BlockAllocator, Overlay),
        log: Log,
        (root, map_pages): (Root, Vec<PageRef>),
        share: Rc<MemoryShare>,
    ) -> Self {
        let wanted = log.durable;
        Self {
            geometry,
            space,
            log,
            active,
            frozen: None,
            frozen_position: None,
            counter: root.counter,
            recorded: root.counter,
            root,
            root_holders: Vec::new(),
            map_pages,
            waiting: VecDeque::new(),
            waiting_blocks: 0,
            recent: Recent::default(),
            blocked_records: BlockedRecords::default(),
            wanted,
            writing: false,
            timer: false,
            checkpointing: false,
            checkpoint_error: None,
            stopped: None,
            changes: ChangeMode::Logged,
            share,
        }
    }

    /// Bytes of the changes that are not in the tree.
    fn changes_bytes(&self) -> usize {
        let frozen = self.frozen.as_ref().map_or(0, |frozen| frozen.memory_bytes);
        self.active.memory_bytes + frozen
    }

    /// The changes have become more or fewer.
    pub(crate) fn note_changes(&self) {
        self.share.set(MemoryKind::Changes, self.changes_bytes());
    }

    /// The newest value of `key` that is not in the tree: `Some(None)` if it was deleted.
    pub(crate) fn changed(&self, key: &[u8]) -> Option<&Option<Bytes>> {
        let frozen = || self.frozen.as_ref().and_then(|frozen| frozen.get(key));
        self.active.get(key).or_else(frozen)
    }

    /// Is the log long enough that a checkpoint should start?
    pub(crate) fn checkpoint_is_due(&self) -> bool {
        let is_long = self.log_is_long() || self.changes_are_many();
        !self.checkpointing && is_long && self.root.position < self.log.last
    }

    /// Do the changes take so much memory that a checkpoint should start? The nodes of a process
    /// fill alike, so each has another threshold, as for the log.
    fn changes_are_many(&self) -> bool {
        let due = self.share.changes_due();
        let early = due / 2 * limits::spread(self.log.id.owner.node) as usize / 256;
        self.active.memory_bytes > due - early
    }

    fn log_is_long(&self) -> bool {
        let node = self.log.id.owner.node;
        self.log.segments() >= limits::log_segments_checkpoint(self.space.layout.map(), node)
    }

    /// Whole stripes that the log may still take, those for the next mount included.
    fn log_stripes(&self) -> u64 {
        let most = limits::log_segments_max(self.space.layout.map());
        limits::copies(self.space.layout.map())
            * (most + limits::MOUNT_SEGMENTS).saturating_sub(self.log.segments())
    }

    /// The least number of whole stripes that lets the log grow and a checkpoint take `blocks`.
    fn floor(&self, blocks: u64) -> u64 {
        self.log_stripes() + blocks.div_ceil(u64::from(self.geometry.blocks_per_stripe()))
    }

    /// The least number of whole stripes that pages of a checkpoint must leave.
    pub(crate) fn page_floor(&self) -> u64 {
        self.log_stripes()
    }

    /// Blocks that are kept back from data while there is little to do for a checkpoint.
    pub(crate) fn reserve_blocks(&self) -> u64 {
        limits::reserve_blocks(self.space.layout.map())
    }

    /// What is left of that beside the tree: a part of it is for what every tree has in the end,
    /// with the replies to calls, so that removing everything brings everything back.
    pub(crate) fn data_reserve_blocks(&self) -> u64 {
        limits::data_reserve_blocks(self.space.layout.map(), &self.root.tree)
    }

    /// Blocks that checkpoints of all that is not in the tree take, with `keys` and `bytes` more.
    pub(crate) fn checkpoint_blocks(&self, keys: u64, bytes: u64) -> u64 {
        let map_blocks = self.map_pages.iter().map(|page| u64::from(page.blocks)).sum();
        let tree = &self.root.tree;
        let need = |keys, bytes| limits::checkpoint_blocks(tree, keys, bytes, map_blocks);
        let frozen = self.frozen.as_ref().map_or(0, |frozen| need(frozen.keys(), frozen.bytes));
        let first_copies = frozen + need(self.active.keys() + keys, self.active.bytes + bytes);
        limits::copies(self.space.layout.map()) * first_copies
    }

    /// Whole stripes that data must leave. What is handed out already needs records.
    pub(crate) fn data_floor(&self) -> u64 {
        let records = limits::record_blocks(self.space.record_bytes);
        let floor = self.floor(records + self.least_reserve().max(self.data_reserve_blocks()));
        floor_with_partners(&self.space, floor)
    }

    /// Blocks that are kept back from data for a checkpoint and deletions after it.
    fn least_reserve(&self) -> u64 {
        self.checkpoint_blocks(0, 0) + self.reserve_blocks() / 2
    }

    /// Would data have more space after a checkpoint?
    pub(crate) fn checkpoint_keeps_space(&self) -> bool {
        !self.active.is_empty() && self.least_reserve() > self.data_reserve_blocks()
    }

    /// Lets a checkpoint write the page of `key` anew, which has `value` in the tree. False if that
    /// would take more space than there is.
    pub(crate) fn touch(&mut self, key: Bytes, value: Bytes) -> bool {
        if self.changed(&key).is_some() {
            return true;
        }
        let need = self.checkpoint_blocks(1, (key.len() + value.len()) as u64);
        if self.space.whole.total() < self.floor(need) {
            return false;
        }
        self.active.set(key, Some(value));
        self.note_changes();
        true
    }

    /// Blocks that are kept back from [data of changes that free space](Self::deletion_floor):
    /// batches of such changes need them. Batches of accepted data leave them too.
    pub(crate) fn deletion_reserve_blocks(&self) -> u64 {
        self.reserve_blocks() / 4
    }

    /// Whole stripes that data of a change that frees space must leave; in pairs where data has
    /// copies. Less than what other batches leave ([`admit`](Self::admit)).
    pub(crate) fn deletion_floor(&self) -> u64 {
        self.floor(self.checkpoint_blocks(0, 0) + self.deletion_reserve_blocks())
    }

    /// The groups that cannot be emptied since the log is in them: none if it can go on elsewhere,
    /// for which it leaves its current segment and the next one.
    pub(crate) fn log_groups(&self) -> BTreeSet<u64> {
        if self.log.segments() + 2 * LEFT_SEGMENTS_MAX
            <= limits::log_segments_max(self.space.layout.map())
        {
            return BTreeSet::new();
        }
        let segments = [self.log.current_copies(), self.log.next_copies()];
        let stripes = segments.iter().flat_map(SegmentCopies::stripes);
        stripes.map(|stripe| self.space.layout.group_of_stripe(*stripe)).collect()
    }

    /// Lets the log leave its current segment if that or the next one moves for this reason, or has
    /// a copy on a disk that is behind, or, while a disk is lost, two on one disk.
    pub(crate) fn leave_moving_segment(&mut self, reason: MoveReason) -> bool {
        let layout = &self.space.layout;
        let segments = [self.log.current_copies(), self.log.next_copies()];
        let mut stripes = segments.iter().flat_map(SegmentCopies::stripes).copied();
        let on_disks = SpaceOnDisks(&self.space);
        let moves = |stripe| on_disks.moves(layout.stripe_run(stripe).start, reason);
        let leaves = stripes.any(|stripe| moves(stripe) || is_behind(layout.map(), stripe))
            || has_lost_disk(layout.map()) && self.log.segments_to_spread(layout.map()) > 0;
        if leaves {
            self.log.leave_segment();
        }
        leaves
    }

    /// The blocks of each owned group that could be emptied, if the others have room for what is in
    /// it: those that could be handed out then.
    pub(crate) fn movable_groups(&self) -> Vec<u64> {
        let log = self.log_groups();
        let movable = self.space.groups().filter(|group| !log.contains(group));
        let per_stripe = self.space.layout.blocks_per_stripe();
        movable.map(|group| open_stripes(&self.space, group) * per_stripe).collect()
    }

    /// Could more space be free in a moment, without anybody deleting anything? So that `kept_back`
    /// blocks are left. It is to be had in logical blocks of `unit` blocks.
    pub(crate) fn may_find(&self, (blocks, unit): (u32, u32), kept_back: u64) -> bool {
        let per_stripe = u64::from(self.geometry.blocks_per_stripe());
        let floor = self.floor(kept_back + limits::record_blocks(self.space.record_bytes));
        let floor = floor_with_partners(&self.space, floor);
        let mut coming = self.waiting_blocks;
        if self.checkpointing {
            coming += self.checkpoint_blocks(0, 0);
        }
        self.space.whole.total() + coming / per_stripe >= floor
            && self.space.available(0, unit) + coming >= u64::from(blocks) + floor * per_stripe
    }

    /// Checks a batch against everything it could break.
    pub(crate) fn admit(&self, batch: &Batch) -> Result<(), CommitRefusal> {
        if let Some(stopped) = self.stopped {
            return Err(stopped.into());
        }
        batch.check(limits::batch_bytes_max(&self.geometry))?;
        batch.ops.iter().try_for_each(|op| self.check_op(op))?;
        let length = batch.length_bytes();
        if self.log.pending_bytes() + length > PENDING_BYTES_MAX {
            return Err(CommitRefusal::LogBehind);
        }
        let segments_max = limits::log_segments_max(self.space.layout.map());
        if self.log.segments_after(length) > segments_max {
            return Err(if self.log_is_long() {
                CommitRefusal::TreeBehind
            } else {
                CommitRefusal::LogBehind
            });
        }
        if self.changes_bytes() > self.share.changes_max() {
            return Err(CommitRefusal::TreeBehind);
        }
        self.admit_groups(batch)?;
        self.admit_growth(batch)
    }

    fn admit_groups(&self, batch: &Batch) -> StoreResult<()> {
        let given = batch.ops.iter().filter_map(|op| match *op {
            BatchOp::GiveGroup { group } => Some(group),
            _ => None,
        });
        let mut given =
            given.filter(|group| !EmptyingGroups(&self.space).is_empty(*group)).peekable();
        if given.peek().is_none() {
            return Ok(());
        }
        let mut left = self.space.whole.clone();
        given.for_each(|group| count_free_group(&self.space, &mut left, (group, -1)));
        let enough = usable_stripes(&self.space, &left) >= usable_floor(self);
        if enough { Ok(()) } else { Err(StoreError::NoSpace) }
    }

    /// Whole stripes that a batch brings, once it is durable.
    fn taken_stripes(&self, batch: &Batch) -> u64 {
        let taken = batch.ops.iter().filter_map(|op| match *op {
            BatchOp::TakeGroup { group } => Some(open_stripes(&self.space, group)),
            _ => None,
        });
        taken.sum()
    }

    fn admit_growth(&self, batch: &Batch) -> Result<(), CommitRefusal> {
        let keys = batch.ops.iter();
        let keys =
            keys.filter(|op| matches!(op, BatchOp::Put { .. } | BatchOp::Delete { .. })).count();
        let margin = match batch.room {
            BatchRoom::Usual => {
                self.reserve_blocks() / 2 + limits::record_blocks(self.space.record_bytes)
            }
            BatchRoom::Accepted => self.deletion_reserve_blocks(),
            BatchRoom::Reserve => 0,
        };
        let need = self.checkpoint_blocks(keys as u64, batch.length_bytes() as u64) + margin;
        let stripes = self.space.whole.total() + self.taken_stripes(batch);
        let floor = match batch.room {
            BatchRoom::Usual => floor_with_partners(&self.space, self.floor(need)),
            BatchRoom::Accepted | BatchRoom::Reserve => self.floor(need),
        };
        if keys == 0 || stripes >= floor {
            return Ok(());
        }
        let idle = self.active.is_empty() && self.frozen.is_none() && self.waiting_blocks == 0;
        Err(if idle { StoreError::NoSpace.into() } else { CommitRefusal::TreeBehind })
    }

    fn check_op(&self, op: &BatchOp) -> StoreResult<()> {
        let bad = |what| Err(StoreError::BadBatch(what));
        match *op {
            BatchOp::Allocated { run } if !self.space.is_loaned(run) => {
                bad("the allocated blocks were not handed out")
            }
            BatchOp::Freed { run } if !self.space.is_kept(run) => {
                bad("the freed blocks are not in use")
            }
            BatchOp::GiveGroup { group } if !self.space.is_free_group(group) => {
                bad("the group is not free")
            }
            BatchOp::TakeGroup { group }
                if self.space.owns_group(group) || group >= self.space.layout.count() =>
            {
                bad("the group cannot be taken")
            }
            _ => Ok(()),
        }
    }

    /// Applies an admitted batch and buffers its record; the record's position.
    pub(crate) fn apply(&mut self, batch: Batch) -> u64 {
        let position = self.log.append(self.counter, &batch);
        self.recorded = self.counter;
        self.blocked_records.hold(position, &batch.after);
        for op in batch.into_ops() {
            self.apply_op(op, position);
        }
        self.note_changes();
        position
    }

    fn apply_op(&mut self, op: BatchOp, position: u64) {
        match op {
            BatchOp::Put { key, value } => self.change(key, Some(value), position),
            BatchOp::Delete { key } => self.change(key, None, position),
            BatchOp::Allocated { run } => self.space.keep_loan(run),
            BatchOp::Freed { run } => {
                self.space.set_kept(run, false);
                self.wait(position, run.blocks());
            }
            BatchOp::GiveGroup { group } => self.space.remove_group(group),
            BatchOp::TakeGroup { group } => {
                self.space.add_blocked_group(group);
                self.wait(position, self.space.layout.blocks_of(group));
            }
        }
    }

    fn change(&mut self, key: Bytes, value: Option<Bytes>, position: u64) {
        self.recent.note(position, key.clone());
        self.active.set(key, value);
    }

    fn wait(&mut self, position: u64, blocks: Range<u64>) {
        self.waiting_blocks += blocks.end - blocks.start;
        self.waiting.push_back(FreedBlocks { position, blocks });
    }

    /// Some records more are durable. Hands freed blocks on to the allocator, as far as that is
    /// safe: their record is durable, and no checkpoint is running that still knows them as used.
    /// (A replay from the root that it writes would free them once more, and they could hold a page
    /// of its tree by then.)
    pub(crate) fn flush(&mut self) {
        self.recent.flush(self.log.durable);
        let limit = self.log.durable.min(self.frozen_position.unwrap_or(u64::MAX));
        while let Some(waiting) = self.waiting.pop_front_if(|waiting| waiting.position <= limit) {
            self.waiting_blocks -= waiting.blocks.end - waiting.blocks.start;
            self.space.set_busy(waiting.blocks, false);
        }
    }

    /// Applies the keys of a batch in memory, and nothing else.
    pub(crate) fn apply_in_memory(&mut self, batch: Batch) {
        for op in batch.into_ops() {
            match op {
                BatchOp::Put { key, value } => self.active.set(key, Some(value)),
                BatchOp::Delete { key } => self.active.set(key, None),
                _ => {}
            }
        }
        self.note_changes();
    }

    /// A stripe of the log is not needed any more.
    pub(crate) fn free_stripe(&mut self, stripe: u64) {
        let run = self.space.layout.stripe_run(stripe);
        self.space.set_busy(run.blocks(), false);
    }

    /// A page of an old tree or an old space map is not needed any more.
    pub(crate) fn free_page(&mut self, page: &PageRef) {
        for run in page.runs() {
            // A reference with a good checksum may name a second place that cannot be.
            if self.space.owns(run) {
                self.space.set_kept(run, false);
                self.space.set_busy(run.blocks(), false);
            }
        }
    }
}

/// Of the whole stripes that [data may take](usable_stripes), those that it must leave.
pub(crate) fn usable_floor(state: &StoreState) -> u64 {
    state.data_floor() - stripes_without_partner(&state.space)
}
