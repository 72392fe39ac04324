//! The blocks of the allocation groups that this node owns.
//!
//! Three bits per block: *busy* (not to be handed out), *kept* (in use by what is committed: this
//! is what a checkpoint writes down) and *loaned* (handed out, not yet named by a batch). What is
//! busy and neither kept nor loaned belongs to the log, to a space map, to a running checkpoint, or
//! waits until the record that freed it is durable, or is *withheld*: free, on a closed disk, of
//! which nothing is handed out.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use blockio::DiskName;
use blockio::geometry::Near;

use super::bits::Bits;
use super::groups::{GroupLayout, Run};
use super::limits;
use super::log::format::SegmentCopies;

mod closed;
mod copies;
mod emptying;
mod mirrors;
mod partners;
mod search;
mod set_search;
mod whole;

pub use closed::MoveReason;
pub(crate) use closed::{ClosedDisks, SpaceOnDisks};
pub(crate) use copies::CopyPlaces;
pub(crate) use emptying::{EmptyingGroups, set_emptying};
pub(crate) use mirrors::{CopyWishes, MirrorPlaces};
pub(crate) use partners::{
    count_free_group, floor_with_partners, needs_partners, stripes_without_partner, usable_stripes,
};
use search::{GROUPS_SEARCHED_MAX, whole_in};
use set_search::SetSearches;
pub(crate) use set_search::{IsOfKind, StripeKind};
use whole::CopyDisks;
pub(crate) use whole::WholeStripes;

/// What a checkpoint writes down: the kept blocks of each owned group.
pub(crate) type KeptBlocks = BTreeMap<u64, Rc<Bits>>;

/// The blocks of the owned groups.
#[derive(Debug)]
pub(crate) struct BlockAllocator {
    /// The cut of the volume.
    pub(crate) layout: GroupLayout,
    groups: BTreeMap<u64, GroupBlocks>,
    /// Groups with a wholly free stripe.
    with_whole: BTreeSet<u64>,
    /// Groups with a free block in a partly used stripe.
    with_partial: BTreeSet<u64>,
    /// Blocks in all owned groups.
    pub(crate) owned_blocks: u64,
    /// Blocks that are not busy, in groups that are not being emptied.
    pub(crate) free_blocks: u64,
    /// Stripes without a busy block, likewise.
    pub(crate) whole: WholeStripes,
    /// Blocks handed out and not yet named.
    pub(crate) loaned_blocks: u64,
    /// Bytes that the tree grows by, at most, once all of them are named.
    pub(crate) record_bytes: u64,
    /// The search for whole stripes in each disk set.
    searches: SetSearches,
    /// The stripe that small requests are filling.
    small_cursor: u64,
    /// The stripes that second copies of pages are filling, by the disk node, or the disk, of the
    /// first copies.
    copy_cursors: BTreeMap<u32, u64>,
    /// Disks of which nothing is handed out.
    closed: BTreeSet<DiskName>,
    /// Disks of which some moves to others.
    shedding: BTreeSet<DiskName>,
}

#[derive(Debug)]
struct GroupBlocks {
    /// Its first block.
    start: u64,
    busy: Bits,
    kept: Rc<Bits>,
    loaned: Bits,
    whole_stripes: u32,
    /// No partly used stripe of it has more free blocks in a row.
    fit_max: u32,
    /// No partly used stripe of it has a larger free logical block, at a multiple of its size.
    unit_max: u32,
    /// Nothing is taken from it: what is in it moves elsewhere, so that it can be given away.
    emptying: bool,
    /// What is withheld, if anything.
    withheld: Option<Bits>,
}

impl GroupBlocks {
    fn local(&self, blocks: Range<u64>) -> Range<u32> {
        (blocks.start - self.start) as u32..(blocks.end - self.start) as u32
    }

    fn free_blocks(&self) -> u32 {
        self.busy.length() - self.busy.ones()
    }

    /// Free logical blocks of `unit` blocks in partly used stripes.
    fn partial_units(&self, unit: u32, per_stripe: u32) -> u32 {
        self.busy.clear_rows(unit) - self.whole_stripes * (per_stripe / unit)
    }

    fn withheld_blocks(&self) -> u32 {
        self.withheld.as_ref().map_or(0, Bits::ones)
    }

    /// Blocks that are in use, for whatever.
    fn used_blocks(&self) -> u32 {
        self.busy.ones() - self.withheld_blocks()
    }
}

impl BlockAllocator {
    /// No groups yet.
    pub(crate) fn new(layout: GroupLayout) -> Self {
        Self {
            layout,
            groups: BTreeMap::new(),
            with_whole: BTreeSet::new(),
            with_partial: BTreeSet::new(),
            owned_blocks: 0,
            free_blocks: 0,
            whole: WholeStripes::default(),
            loaned_blocks: 0,
            record_bytes: 0,
            searches: SetSearches::default(),
            small_cursor: 0,
            copy_cursors: BTreeMap::new(),
            closed: BTreeSet::new(),
            shedding: BTreeSet::new(),
        }
    }

    /// Stripes in all owned groups.
    pub(crate) fn owned_stripes(&self) -> u64 {
        self.owned_blocks / self.layout.blocks_per_stripe()
    }

    /// Owned groups, in order.
    pub(crate) fn groups(&self) -> impl Iterator<Item = u64> + '_ {
        self.groups.keys().copied()
    }

    /// Owned groups without a block in use that are not being emptied, in order: those of which
    /// something can be handed out.
    pub(crate) fn free_groups(&self) -> impl Iterator<Item = u64> + '_ {
        let free = self.groups.iter().filter(|(_, group)| group.used_blocks() == 0);
        let free = free.filter(|(_, group)| !group.emptying && group.whole_stripes > 0);
        free.map(|(&number, _)| number)
    }

    /// Stripes of an owned group of which nothing is busy.
    pub(crate) fn whole_stripes_in(&self, group: u64) -> u64 {
        self.groups.get(&group).map_or(0, |group| group.whole_stripes.into())
    }

    /// Is `group` owned and without a block in use?
    pub(crate) fn is_free_group(&self, group: u64) -> bool {
        self.groups.get(&group).is_some_and(|group| group.used_blocks() == 0)
    }

    /// Is `group` owned?
    pub(crate) fn owns_group(&self, group: u64) -> bool {
        self.groups.contains_key(&group)
    }

    /// Is `run` a run in an owned group?
    pub(crate) fn owns(&self, run: Run) -> bool {
        self.layout.is_run(run) && self.owns_group(self.layout.group_of(run.start))
    }

    /// Was all of `run` handed out and not yet named?
    pub(crate) fn is_loaned(&self, run: Run) -> bool {
        self.count_in(run, |group| &group.loaned) == Some(run.count)
    }

    /// Is all of `run` in use by what is committed?
    pub(crate) fn is_kept(&self, run: Run) -> bool {
        self.count_in(run, |group| &group.kept) == Some(run.count)
    }

    fn count_in(&self, run: Run, bits: impl Fn(&GroupBlocks) -> &Bits) -> Option<u32> {
        if !self.layout.is_run(run) {
            return None;
        }
        let group = self.groups.get(&self.layout.group_of(run.start))?;
        Some(bits(group).ones_in(group.local(run.blocks())))
    }

    /// Takes a group over; what is kept in it is busy.
    pub(crate) fn add_group(&mut self, number: u64, kept: &Rc<Bits>) {
        let blocks = self.layout.blocks_of(number);
        let length = kept.length();
        debug_assert_eq!(u64::from(length), blocks.end - blocks.start);
        let group = GroupBlocks {
            start: blocks.start,
            busy: Bits::new(length, true),
            kept: kept.clone(),
            loaned: Bits::new(length, false),
            whole_stripes: 0,
            fit_max: 0,
            unit_max: 0,
            emptying: false,
            withheld: None,
        };
        self.owned_blocks += u64::from(length);
        self.groups.insert(number, group);
        for free in kept.runs(0..length, false) {
            self.set_busy(
                blocks.start + u64::from(free.start)..blocks.start + u64::from(free.end),
                false,
            );
        }
    }

    /// Takes over a group of which nothing is kept, and which is not yet to be used.
    pub(crate) fn add_blocked_group(&mut self, number: u64) {
        let blocks = self.layout.blocks_of(number);
        let length = (blocks.end - blocks.start) as u32;
        self.add_group(number, &Rc::new(Bits::new(length, true)));
        if let Some(group) = self.groups.get_mut(&number) {
            group.kept = Rc::new(Bits::new(length, false));
        }
    }

    /// Gives a group without a block in use away.
    pub(crate) fn remove_group(&mut self, number: u64) {
        if self.groups.get(&number).is_some_and(|group| !group.emptying) {
            count_group(self, number, -1);
        }
        let Some(group) = self.groups.remove(&number) else { return };
        debug_assert_eq!(group.used_blocks(), 0, "only a free group is given away");
        self.owned_blocks -= u64::from(group.busy.length());
        if !group.emptying {
            self.free_blocks -= u64::from(group.free_blocks());
        }
        self.with_whole.remove(&number);
        self.with_partial.remove(&number);
    }

    /// Makes blocks busy or free. They may fill several stripes of one or more owned groups.
    pub(crate) fn set_busy(&mut self, blocks: Range<u64>, busy: bool) {
        let mut start = blocks.start;
        while start < blocks.end {
            let stripe = self.layout.stripe_run(self.layout.stripe_of(start)).blocks();
            let end = stripe.end.min(blocks.end);
            if !withhold(self, start..end, busy) {
                self.set_busy_in_stripe(start..end, &stripe, busy);
            }
            start = end;
        }
    }

    fn set_busy_in_stripe(&mut self, blocks: Range<u64>, stripe: &Range<u64>, busy: bool) {
        let number = self.layout.group_of(blocks.start);
        let first = self.layout.stripe_of(blocks.start);
        let Some(group) = self.groups.get_mut(&number) else { return };
        let stripe = group.local(stripe.clone());
        let was_whole = group.busy.ones_in(stripe.clone()) == 0;
        let changed = u64::from(group.busy.fill(group.local(blocks), busy));
        let is_whole = group.busy.ones_in(stripe.clone()) == 0;
        // While blocks of a partly used stripe become busy, the bound stays one.
        if !is_whole && (was_whole || !busy) {
            let longest = group.busy.runs(stripe, false).map(|run| run.end - run.start).max();
            group.fit_max = group.fit_max.max(longest.unwrap_or(0));
            group.unit_max = u32::MAX;
        }
        let (counts, is_counted) = (u64::from(!group.emptying), i64::from(!group.emptying));
        if busy {
            self.free_blocks -= changed * counts;
        } else {
            self.free_blocks += changed * counts;
        }
        match (was_whole, is_whole) {
            (true, false) => {
                group.whole_stripes -= 1;
                self.count_whole(first, -is_counted);
            }
            (false, true) => {
                group.whole_stripes += 1;
                self.count_whole(first, is_counted);
                self.searches.of(self.layout.map(), first).note_freed(first);
            }
            _ => {}
        }
        self.note_free(number);
    }

    /// This stripe may be taken whole (1), or no longer (-1).
    fn count_whole(&mut self, stripe: u64, more: i64) {
        self.whole.add(self.layout.map().place(stripe).disk, more);
        let search = self.searches.of(self.layout.map(), stripe);
        search.whole = search.whole.saturating_add_signed(more);
    }

    /// Notes whether the group has blocks to take.
    fn note_free(&mut self, number: u64) {
        let Some(group) = self.groups.get(&number) else { return };
        let whole_blocks = u64::from(group.whole_stripes) * self.layout.blocks_per_stripe();
        let has_partial = u64::from(group.free_blocks()) > whole_blocks && !group.emptying;
        let has_whole = group.whole_stripes > 0 && !group.emptying;
        set_member(&mut self.with_whole, number, has_whole);
        set_member(&mut self.with_partial, number, has_partial);
    }

    /// Marks blocks as in use by what is committed, or not.
    pub(crate) fn set_kept(&mut self, run: Run, kept: bool) {
        if let Some(group) = self.groups.get_mut(&self.layout.group_of(run.start)) {
            let local = group.local(run.blocks());
            Rc::make_mut(&mut group.kept).fill(local, kept);
        }
    }

    /// A batch names blocks that were handed out: they are kept from now on.
    pub(crate) fn keep_loan(&mut self, run: Run) {
        self.end_loan(run);
        self.set_kept(run, true);
    }

    /// Blocks that were handed out come back unused.
    pub(crate) fn return_loan(&mut self, run: Run) {
        self.end_loan(run);
        self.take_back(run);
    }

    fn take_back(&mut self, run: Run) {
        let stripe = self.layout.stripe_of(run.start);
        let freed = self.searches.of(self.layout.map(), stripe).freed;
        self.set_busy(run.blocks(), false);
        // Perhaps they could not be written: a retry shall not begin with the same ones.
        self.searches.of(self.layout.map(), stripe).freed = freed;
    }

    fn end_loan(&mut self, run: Run) {
        if let Some(group) = self.groups.get_mut(&self.layout.group_of(run.start)) {
            let local = group.local(run.blocks());
            let ended = u64::from(group.loaned.fill(local, false));
            // Which chunk it is of is not known here: all have the same part.
            self.record_bytes -= self.record_bytes * ended / self.loaned_blocks.max(1);
            self.loaned_blocks -= ended;
        }
    }

    /// The kept blocks of each group, as they are now.
    pub(crate) fn kept(&self) -> KeptBlocks {
        self.groups.iter().map(|(&number, group)| (number, group.kept.clone())).collect()
    }

    /// The runs in use, in order; neighbours across a stripe's end are not joined.
    pub(crate) fn busy_runs(&self) -> Vec<Run> {
        let mut used = Vec::new();
        for (number, group) in &self.groups {
            let mut busy = group.busy.clone();
            for withheld in group.withheld.iter().flat_map(|bits| bits.runs(0..bits.length(), true))
            {
                busy.fill(withheld, false);
            }
            used.extend(runs_in(&self.layout, *number, group, &busy));
        }
        used
    }

    /// The kept runs, likewise.
    pub(crate) fn kept_runs(&self) -> Vec<Run> {
        self.runs(|group| &group.kept)
    }

    fn runs(&self, bits: impl Fn(&GroupBlocks) -> &Bits) -> Vec<Run> {
        let groups = self.groups.iter();
        groups
            .flat_map(|(&number, group)| runs_in(&self.layout, number, group, bits(group)))
            .collect()
    }

    /// Blocks that [`allocate`](Self::allocate) could hand out with this floor, in logical blocks
    /// of `unit` blocks.
    pub(crate) fn available(&self, floor: u64, unit: u32) -> u64 {
        let whole = self.whole.total();
        let Some(spare) = whole.checked_sub(floor) else { return 0 };
        let per_stripe = self.layout.blocks_per_stripe();
        let partial = if unit == 1 {
            self.free_blocks - whole * per_stripe
        } else {
            let groups = self.with_partial.iter().filter_map(|group| self.groups.get(group));
            let units = groups.map(|group| group.partial_units(unit, per_stripe as u32));
            units.map(|units| u64::from(units * unit)).sum()
        };
        partial + spare * per_stripe
    }

    /// Hands out `blocks` blocks, all or none, and leaves at least `floor` whole stripes: whole
    /// stripes one after the other (they go round the disks), the rest as `near` says or else from
    /// a stripe that is partly used already, pieces if there is nothing better.
    /// For [`Near::On`] and [`Near::InDomain`], `is_of` tells which stripes that are.
    ///
    /// Each run has whole logical blocks of `unit` blocks, at multiples of their size; `blocks` is
    /// a multiple of that.
    pub(crate) fn allocate(
        &mut self,
        (blocks, unit): (u32, u32),
        floor: u64,
        near: Near,
        is_of: IsOfKind<'_>,
    ) -> Option<Vec<Run>> {
        let mut left = u64::from(blocks);
        if self.whole.total() < floor || left > self.available(floor, 1) {
            return None;
        }
        let mut runs = Vec::with_capacity(1);
        while left > 0 {
            let near =
                if runs.is_empty() { self.near(near, (left, unit), floor, is_of) } else { None };
            let Some(run) = near.or_else(|| self.piece(left, unit, floor)) else {
                // What is free is in smaller pieces.
                for run in runs {
                    self.take_back(run);
                }
                return None;
            };
            self.set_busy(run.blocks(), true);
            left -= u64::from(run.count);
            runs.push(run);
        }
        self.record_bytes += match near {
            Near::At { block, .. } => {
                let new_runs = runs.iter().filter(|run| run.start != block).count();
                limits::record_bytes(self.layout.map(), 0, new_runs as u64, blocks.into())
            }
            _ => limits::record_bytes(self.layout.map(), 1, runs.len() as u64, blocks.into()),
        };
        lend(self, &runs);
        Some(runs)
    }

    /// Allocates a page of `blocks` blocks, and leaves at least `floor` whole stripes.
    pub(crate) fn allocate_page(&mut self, blocks: u32, floor: u64) -> Option<Run> {
        let run = self
            .fitting(blocks, 1, GROUPS_SEARCHED_MAX)
            .or_else(|| self.broken_stripe(blocks, floor))
            .or_else(|| self.fitting(blocks, 1, usize::MAX))?;
        self.set_busy(run.blocks(), true);
        Some(run)
    }

    /// Takes stripes for the copies of a segment of the log, on different disk nodes, or else on
    /// different disks, if there are several that have some; near the segment before, `after`: a
    /// log that is strewn over groups keeps all of them from being given away.
    pub(crate) fn allocate_segment(
        &mut self,
        after: Option<SegmentCopies>,
    ) -> Option<SegmentCopies> {
        let last = after.and_then(|after| after.stripes().last().copied());
        let mut group = last.map(|stripe| self.layout.group_of_stripe(stripe));
        let map = self.layout.map().clone();
        let (mut stripes, mut away) = (Vec::new(), CopyDisks::default());
        let copies = map.redundancy().metadata_copies() as usize;
        while stripes.len() < copies {
            let missing = copies - stripes.len();
            let is_apart = |disk| away.is_on_other_node(disk);
            let largest = self.whole.largest_part(&map, missing, is_apart);
            let disk_of = |stripe: u64| map.place(stripe).disk;
            let found = largest
                .and_then(|disk| self.find_whole(group, |stripe| disk_of(stripe) == disk))
                .or_else(|| self.find_whole(group, |at| away.is_on_other_node(disk_of(at))))
                .or_else(|| self.find_whole(group, |at| away.is_on_other_disk(disk_of(at))))
                .or_else(|| self.find_whole(group, |_| true));
            let Some(stripe) = found else {
                for stripe in stripes {
                    self.set_busy(self.layout.stripe_run(stripe).blocks(), false);
                }
                return None;
            };
            self.set_busy(self.layout.stripe_run(stripe).blocks(), true);
            group = Some(self.layout.group_of_stripe(stripe));
            away.add(disk_of(stripe));
            stripes.push(stripe);
        }
        Some(SegmentCopies::new(&stripes))
    }

    /// Lets the search for whole stripes of `node` begin elsewhere than those of other nodes; by
    /// modulo, at the first that its own cache holds (`cache::hash`). Groups begin at multiples of
    /// a power of two, so the first stripes of all nodes would be held by the same few caches, and
    /// lie on the same few disks.
    pub(crate) fn begin_at(&mut self, node: u32) {
        let nodes = u64::from(self.layout.fs_nodes());
        let map = self.layout.map().clone();
        for placed in map.sets() {
            let groups = placed.first_group..placed.first_group + placed.set.groups();
            let Some(&group) = self.with_whole.range(groups).next() else { continue };
            let stripes = self.layout.stripes_of(group);
            let skip = if placed.set.lanes > 0 {
                u64::from(node) * u64::from(placed.set.unit_stripes)
            } else {
                (u64::from(node) + nodes - stripes.start % nodes) % nodes
            };
            let begin = stripes.start + skip % (stripes.end - stripes.start);
            self.searches.of(&map, stripes.start).begin_at(begin);
        }
    }

    /// A whole stripe of a kind, best of this group.
    fn find_whole(&mut self, group: Option<u64>, accept: impl Fn(u64) -> bool) -> Option<u64> {
        let near = group.and_then(|group| whole_in(self, group, &accept));
        near.or_else(|| self.next_whole(accept))
    }
}

/// Withholds blocks of one stripe that become free, if their disk is closed; or, if they become
/// busy again, not any more. False if the disk is open.
fn withhold(space: &mut BlockAllocator, blocks: Range<u64>, busy: bool) -> bool {
    if space.closed.is_empty() {
        return false;
    }
    let stripe = space.layout.stripe_of(blocks.start);
    let number = space.layout.group_of_stripe(stripe);
    if !space.closed.contains(&space.layout.map().place(stripe).disk) {
        return false;
    }
    if let Some(group) = space.groups.get_mut(&number) {
        let (local, length) = (group.local(blocks), group.busy.length());
        let withheld = group.withheld.get_or_insert_with(|| Bits::new(length, false));
        withheld.fill(local, !busy);
    }
    true
}

/// Stripes of a group that are not on closed disks.
pub(crate) fn open_stripes(space: &BlockAllocator, group: u64) -> u64 {
    let (layout, map) = (&space.layout, space.layout.map());
    if space.closed.is_empty() {
        return layout.stripe_count(group);
    }
    let is_open = |stripe: &u64| !space.closed.contains(&map.place(*stripe).disk);
    layout.stripes_of(group).filter(is_open).count() as u64
}

/// These blocks, which are busy already, are handed out.
fn lend(space: &mut BlockAllocator, runs: &[Run]) {
    for &run in runs {
        if let Some(group) = space.groups.get_mut(&space.layout.group_of(run.start)) {
            let local = group.local(run.blocks());
            space.loaned_blocks += u64::from(group.loaned.fill(local, true));
        }
    }
}

/// Counts, or no longer counts, the whole stripes of a group.
fn count_group(space: &mut BlockAllocator, number: u64, more: i64) {
    let layout = space.layout.clone();
    let Some(group) = space.groups.get(&number) else { return };
    let is_whole =
        |stripe: &u64| group.busy.ones_in(group.local(layout.stripe_run(*stripe).blocks())) == 0;
    let whole: Vec<u64> = layout.stripes_of(number).filter(is_whole).collect();
    for stripe in whole {
        space.count_whole(stripe, more);
    }
}

/// The runs of set bits in a group, in order.
fn runs_in(layout: &GroupLayout, number: u64, group: &GroupBlocks, bits: &Bits) -> Vec<Run> {
    let mut runs = Vec::new();
    for stripe in layout.stripes_of(number) {
        let local = group.local(layout.stripe_run(stripe).blocks());
        runs.extend(bits.runs(local, true).map(|run| Run {
            start: group.start + u64::from(run.start),
            count: run.end - run.start,
        }));
    }
    runs
}

fn set_member(set: &mut BTreeSet<u64>, number: u64, member: bool) {
    if member {
        set.insert(number);
    } else {
        set.remove(&number);
    }
}

#[cfg(test)]
mod tests;
