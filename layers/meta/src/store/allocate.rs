//! The space of a store: what is free, and who gets it.

use std::collections::{BTreeMap, BTreeSet};

use blockio::geometry::Near;
use blockio::{DiskName, DiskStage, VolumeMap, has_lost_disk};

use super::Store;
use super::error::{StoreError, StoreResult};
use super::groups::Run;
use super::root::holders;
use super::space::{
    BlockAllocator, ClosedDisks, CopyWishes, EmptyingGroups, IsOfKind, MirrorPlaces, MoveReason,
    SpaceOnDisks, WholeStripes, count_free_group, floor_with_partners, needs_partners,
    set_emptying, usable_stripes,
};
use super::state::usable_floor;

/// The space of a node, in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceStatus {
    /// In its allocation groups.
    pub owned_blocks: u64,
    /// What [`StoreSpace::allocate`] could hand out now, were no group being emptied.
    pub free_blocks: u64,
    /// Free, but kept back for deletions, checkpoints and the log.
    pub reserved_blocks: u64,
    /// Free, and on disks of which nothing is handed out.
    pub withheld_blocks: u64,
    /// Freed, and free again soon.
    pub waiting_blocks: u64,
    /// Handed out, and not yet named by a batch.
    pub loaned_blocks: u64,
}

/// Blocks that a node needs to move the content of groups elsewhere, besides those of the content.
const MOVES_BLOCKS: u64 = 64;

/// The disks of which nothing is to be handed out: all, or only those that are not there.
pub(super) fn closed_disks(map: &VolumeMap, only_gone: bool) -> BTreeSet<DiskName> {
    let states = map.states().into_iter();
    let is_closed = |state| match state {
        DiskStage::Online {} => false,
        DiskStage::Draining {} | DiskStage::Returning {} => !only_gone,
        DiskStage::Retired {} | DiskStage::Lost {} | DiskStage::Offline {} => true,
    };
    states.filter(|entry| is_closed(entry.state)).map(|entry| entry.disk).collect()
}

/// Closes disks as the map says, and opens the others. Those that are there stay as they are, and
/// the answer is false, unless `floor` whole stripes are left without them: a store that closed
/// all that it could still write to would not even delete, nor be opened again.
pub(super) fn close_disks(space: &mut BlockAllocator, map: &VolumeMap, floor: u64) -> bool {
    let wanted = closed_disks(map, false);
    let newly: BTreeSet<DiskName> =
        wanted.iter().copied().filter(|disk| !SpaceOnDisks(space).is_closed(*disk)).collect();
    let has_room = has_room_without(space, &newly, floor);
    let mut closed = wanted;
    if !has_room {
        let is_there = |disk| !map.state(disk).is_gone() && !map.state(disk).is_absent();
        closed.retain(|disk| !newly.contains(disk) || !is_there(*disk));
    }
    ClosedDisks(space).set(closed);
    has_room
}

/// Are `floor` whole stripes left without those of `disks`, or do these have none?
pub(super) fn has_room_without(
    space: &BlockAllocator,
    disks: &BTreeSet<DiskName>,
    floor: u64,
) -> bool {
    let lost = space.whole.on(disks);
    lost == 0 || space.whole.total() >= floor + lost
}

/// What is left while free groups are given away.
struct SpareGroups<'a> {
    space: &'a BlockAllocator,
    left: WholeStripes,
    /// Stripes that data may take and that stay, at least.
    floor: u64,
}

impl SpareGroups<'_> {
    /// Takes a group, if enough stays; if told so, only if its stripes have partners.
    fn take(&mut self, group: u64, only_paired: bool) -> bool {
        let before = usable_stripes(self.space, &self.left);
        count_free_group(self.space, &mut self.left, (group, -1));
        let after = usable_stripes(self.space, &self.left);
        let is_spare = after >= self.floor && (after < before || !only_paired);
        if !is_spare {
            count_free_group(self.space, &mut self.left, (group, 1));
        }
        is_spare
    }
}

/// The allocation groups of one store, and the blocks in them.
#[derive(Debug)]
pub struct StoreSpace<'a>(pub(super) &'a Store);

impl StoreSpace<'_> {
    /// How much space there is.
    pub fn status(&self) -> SpaceStatus {
        let state = self.0.state.borrow();
        let free = state.space.free_blocks;
        let usable = state.space.available(state.data_floor(), 1);
        SpaceStatus {
            owned_blocks: state.space.owned_blocks,
            free_blocks: usable + EmptyingGroups(&state.space).free_blocks(1),
            reserved_blocks: free - usable,
            withheld_blocks: SpaceOnDisks(&state.space).withheld(),
            waiting_blocks: state.waiting_blocks,
            loaned_blocks: state.space.loaned_blocks,
        }
    }

    /// Blocks that could be handed out now in logical blocks of `unit` blocks, were no group being
    /// emptied.
    pub fn free_blocks(&self, unit: u32) -> u64 {
        let state = self.0.state.borrow();
        let usable = state.space.available(state.data_floor(), unit);
        usable + EmptyingGroups(&state.space).free_blocks(unit)
    }

    /// Hands out `blocks` blocks, all or none: whole stripes one after the other, so that they go
    /// round the disks, and the rest from a stripe that is partly used already. They are the
    /// caller's until a batch names them ([`Batch::allocated`](super::Batch::allocated)) or they
    /// are given back ([`release`](Self::release)); a crash gives them back.
    pub fn allocate(&self, blocks: u32) -> StoreResult<Vec<Run>> {
        self.allocate_near(blocks, 1, Near::Anywhere {})
    }

    /// As [`allocate`](Self::allocate), at a preferred place, if it is free, and in runs of whole
    /// logical blocks of `unit` blocks. That is a power of two, and `blocks` a multiple of it.
    pub fn allocate_near(&self, blocks: u32, unit: u32, near: Near) -> StoreResult<Vec<Run>> {
        self.allocate_for(blocks, unit, near, &|_, _| false)
    }

    /// The same, where `is_of` tells which stripes [`Near::On`] and [`Near::InDomain`] are.
    pub(crate) fn allocate_for(
        &self,
        blocks: u32,
        unit: u32,
        near: Near,
        is_of: IsOfKind<'_>,
    ) -> StoreResult<Vec<Run>> {
        let (floor, kept_back) = {
            let state = self.0.state.borrow();
            (state.data_floor(), state.data_reserve_blocks())
        };
        self.allocate_above((blocks, unit), (near, is_of), floor, kept_back)
    }

    /// As [`allocate_near`](Self::allocate_near), for a few blocks of a change that frees space (a
    /// cut inside of a block, a hole): on a full volume they come from the reserve, of which the
    /// batches of such changes ([`Batch::take_from_reserve`](super::Batch::take_from_reserve)) keep
    /// a part of their own.
    pub fn allocate_from_reserve(&self, blocks: u32, unit: u32) -> StoreResult<Vec<Run>> {
        let (floor, kept_back) = {
            let state = self.0.state.borrow();
            let floor = floor_with_partners(&state.space, state.deletion_floor());
            (floor, state.deletion_reserve_blocks())
        };
        self.allocate_above((blocks, unit), (Near::Anywhere {}, &|_, _| false), floor, kept_back)
    }

    /// Hands out blocks for further copies of logical blocks of `unit` blocks that have `copies`:
    /// for each of `mirrors` copies runs with as many blocks, in their order. Every copy of a block
    /// is on another disk node, or on another disk if there are not enough nodes.
    pub fn allocate_mirrors(
        &self,
        copies: &[Vec<Run>],
        (unit, mirrors): (u32, u32),
        from_reserve: bool,
    ) -> StoreResult<Vec<Vec<Run>>> {
        self.allocate_mirrors_for(copies, (unit, mirrors), from_reserve, &CopyWishes::NONE)
    }

    /// The same, at preferred places, if they are free.
    pub(crate) fn allocate_mirrors_for(
        &self,
        copies: &[Vec<Run>],
        (unit, mirrors): (u32, u32),
        from_reserve: bool,
        wishes: &CopyWishes<'_>,
    ) -> StoreResult<Vec<Vec<Run>>> {
        let mut state = self.0.state.borrow_mut();
        if let Some(stopped) = state.stopped {
            return Err(stopped);
        }
        let floor = if from_reserve {
            floor_with_partners(&state.space, state.deletion_floor())
        } else {
            state.data_floor()
        };
        let mut places = MirrorPlaces { space: &mut state.space, wishes };
        let found = places.allocate(copies.to_vec(), (unit, mirrors), floor);
        let is_freed = state.waiting_blocks > 0;
        drop(state);
        match found {
            Some(runs) => Ok(runs),
            None if is_freed => {
                self.0.write_now();
                self.0.start_checkpoint();
                Err(StoreError::Busy)
            }
            None => Err(StoreError::NoSpace),
        }
    }

    /// Little is left above what data must leave: less than what
    /// [`spare_groups`](Self::spare_groups) leaves to a node that looks ahead, so that nodes that
    /// look for more do not take it from each other in turn.
    pub fn is_short(&self) -> bool {
        let state = self.0.state.borrow();
        let usable = usable_stripes(&state.space, &state.space.whole);
        2 * usable < 3 * usable_floor(&state)
    }

    /// Leaves `floor` whole stripes; `kept_back` blocks once checkpoints have little to do.
    fn allocate_above(
        &self,
        (blocks, unit): (u32, u32),
        (near, is_of): (Near, IsOfKind<'_>),
        floor: u64,
        kept_back: u64,
    ) -> StoreResult<Vec<Run>> {
        let mut state = self.0.state.borrow_mut();
        if let Some(stopped) = state.stopped {
            return Err(stopped);
        }
        if let Some(runs) = state.space.allocate((blocks, unit), floor, near, is_of) {
            return Ok(runs);
        }
        let may_find = state.may_find((blocks, unit), kept_back);
        drop(state);
        if !may_find {
            return Err(StoreError::NoSpace);
        }
        self.0.write_now();
        self.0.start_checkpoint();
        Err(StoreError::Busy)
    }

    /// Takes back blocks that were handed out and that no batch has named, whole runs or parts.
    ///
    /// No write to them may be in flight.
    pub fn release(&self, runs: &[Run]) -> StoreResult<()> {
        let mut state = self.0.state.borrow_mut();
        for &run in runs {
            if !state.space.is_loaned(run) {
                return Err(StoreError::BadBatch("the released blocks were not handed out"));
            }
            state.space.return_loan(run);
        }
        Ok(())
    }

    /// Up to `count` wholly free groups that this node could give away
    /// ([`Batch::give_group`](super::Batch::give_group)) and still have what data must leave; to a
    /// node that looks `ahead`, twice that.
    pub fn spare_groups(&self, count: usize, ahead: bool) -> Vec<u64> {
        self.spare_groups_of(count, ahead, None)
    }

    /// The same, only groups of this disk set.
    pub fn spare_groups_of(&self, count: usize, ahead: bool, set: Option<u32>) -> Vec<u64> {
        let state = self.0.state.borrow();
        let (space, layout) = (&state.space, &state.space.layout);
        let floor = usable_floor(&state) * if ahead { 2 } else { 1 };
        let emptied = EmptyingGroups(&state.space).list().filter(|&(_, busy)| busy == 0);
        let emptied = emptied.map(|(group, _)| group);
        let wanted = set.map_or(0..u64::MAX, |set| layout.groups_of_set(set as usize));
        let free = state.space.free_groups().filter(|group| wanted.contains(group));
        let emptied = emptied.filter(|group| wanted.contains(group));
        let mut chosen: Vec<u64> = emptied.take(count).collect();
        let mut rest = SpareGroups { space, left: space.whole.clone(), floor };
        if needs_partners(space) {
            let free: Vec<u64> = free.collect();
            let all = |only_paired| free.iter().copied().map(move |group| (group, only_paired));
            // What has no partner here seldom has one at others: they get it if there is no more.
            let tried = all(true).chain(all(false).take_while(|_| !ahead));
            for (group, only_paired) in tried {
                let is_enough = chosen.len() >= count || (!only_paired && !chosen.is_empty());
                if !is_enough && rest.take(group, only_paired) {
                    chosen.push(group);
                }
            }
        } else {
            chosen.extend(free.take_while(|group| rest.take(*group, false)).take(count));
        }
        chosen.truncate(count);
        chosen
    }

    /// Blocks of all groups that [`spare_groups`](Self::spare_groups) would name to a node that has
    /// none: now, or with `emptying` once as many as possible are emptied of logical blocks of
    /// `unit` blocks.
    pub fn spare_blocks(&self, emptying: bool, unit: u32) -> u64 {
        let state = self.0.state.borrow();
        let space = &state.space;
        let floor = usable_floor(&state);
        let mut left = usable_stripes(space, &space.whole);
        // A group on one disk takes as much from what has a partner once more, for each partner.
        let copies = space.layout.map().redundancy().copies() as usize;
        let share = if needs_partners(space) { copies } else { 1 };
        let free = space.free_groups().map(|group| space.whole_stripes_in(group));
        let given = free.step_by(share).map(|stripes| stripes * share as u64);
        let given = given.take_while(|stripes| {
            left = left.saturating_sub(*stripes);
            left >= floor
        });
        let emptied = EmptyingGroups(space).list().filter(|&(_, busy)| busy == 0);
        let emptied = emptied.map(|(group, _)| space.whole_stripes_in(group));
        let now = given.chain(emptied).sum::<u64>() * space.layout.blocks_per_stripe();
        if !emptying {
            return now;
        }
        let usable = state.space.available(state.data_floor(), unit);
        let free = usable + EmptyingGroups(&state.space).free_blocks(unit);
        let free = free.saturating_sub(MOVES_BLOCKS);
        // The last group of the volume may be shorter.
        let mut lengths = state.movable_groups();
        lengths.sort_unstable_by(|one, other| other.cmp(one));
        let mut emptied = 0;
        for length in lengths.into_iter().step_by(share) {
            let length = length * share as u64;
            if emptied + length <= free {
                emptied += length;
            }
        }
        now.max(emptied)
    }

    /// Chooses up to `count` partly used groups of which everything shall move into the others, so
    /// that they can be given away, and takes nothing from them any more. Those with the fewest
    /// blocks to move, and not many more than `moved_max` blocks in all. What moves is for the
    /// caller: chunks ([`moves`](Self::moves)), and [`move_pages`](Self::move_pages).
    pub fn begin_emptying(&self, count: usize, moved_max: u64) -> usize {
        let mut state = self.0.state.borrow_mut();
        let log = state.log_groups();
        let floor = state.data_floor();
        let (mut chosen, mut moved) = (0, MOVES_BLOCKS);
        for (group, busy) in EmptyingGroups(&state.space).candidates() {
            if chosen == count || moved > moved_max {
                break;
            }
            if log.contains(&group) {
                continue;
            }
            set_emptying(&mut state.space, group, true);
            if state.space.available(floor, 1) < moved + busy {
                set_emptying(&mut state.space, group, false);
                continue;
            }
            (chosen, moved) = (chosen + 1, moved + busy);
        }
        chosen
    }

    /// Does what is in the block move elsewhere, for this reason?
    pub fn moves(&self, block: u64, reason: MoveReason) -> bool {
        SpaceOnDisks(&self.0.state.borrow().space).moves(block, reason)
    }

    /// Nothing is handed out any more of the disks that are not simply in use, as the map of the
    /// volume says now; of all others it is. False if one that is being drained goes on
    /// as before, since log, checkpoints and deletions have no room elsewhere.
    pub fn follow_map(&self) -> bool {
        let map = self.0.pages.device.map();
        let mut state = self.0.state.borrow_mut();
        let floor = state.deletion_floor();
        close_disks(&mut state.space, &map, floor)
    }

    /// Lets a checkpoint begin if other disks are to have the root than those that have it.
    pub fn move_root(&self) {
        let wanted = holders(&self.0.pages.device.map(), self.0.pages.owner.node);
        let is_there = |disk| self.0.state.borrow().root_holders.contains(disk);
        if !wanted.iter().all(is_there) {
            self.0.start_checkpoint();
        }
    }

    /// Is nothing handed out of all these disks?
    pub fn is_closed_as_told(&self) -> bool {
        let closed = closed_disks(&self.0.pages.device.map(), false);
        closed.iter().all(|disk| self.is_closed(*disk))
    }

    /// Is nothing handed out of this disk?
    pub fn is_closed(&self, disk: DiskName) -> bool {
        SpaceOnDisks(&self.0.state.borrow().space).is_closed(disk)
    }

    /// Some of what is on these disks shall move to others ([`MoveReason::Balance`]).
    pub fn set_shedding(&self, disks: BTreeSet<DiskName>) {
        ClosedDisks(&mut self.0.state.borrow_mut().space).set_shedding(disks);
    }

    /// Blocks of this node on each disk: in use, and in all.
    pub fn blocks_on_disks(&self) -> BTreeMap<DiskName, (u64, u64)> {
        SpaceOnDisks(&self.0.state.borrow().space).blocks()
    }

    /// While a disk is lost: pages with too few copies, and segments of the log with two copies on
    /// one disk.
    pub fn copies_to_make(&self) -> u64 {
        let state = self.0.state.borrow();
        if !has_lost_disk(state.space.layout.map()) {
            return 0;
        }
        let copies = self.0.pages.device.copies;
        let map_pages = state.map_pages.iter().filter(|page| page.has_fewer_than(copies));
        state.root.tree.incomplete
            + map_pages.count() as u64
            + state.log.segments_to_spread(state.space.layout.map())
    }

    /// The disks with the newest root.
    pub fn root_holders(&self) -> Vec<DiskName> {
        self.0.state.borrow().root_holders.clone()
    }

    /// Groups that are being emptied and not empty yet.
    pub fn emptying(&self) -> usize {
        EmptyingGroups(&self.0.state.borrow().space).list().filter(|&(_, busy)| busy > 0).count()
    }

    /// Ends the emptying of groups: of all, or of those that are not empty.
    pub fn end_emptying(&self, all: bool) {
        let mut state = self.0.state.borrow_mut();
        let ended: Vec<(u64, u64)> = EmptyingGroups(&state.space).list().collect();
        for (group, busy) in ended {
            if all || busy > 0 {
                set_emptying(&mut state.space, group, false);
            }
        }
    }

    /// The groups that this node owns, in order.
    pub fn groups(&self) -> Vec<u64> {
        self.0.state.borrow().space.groups().collect()
    }
}
