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
use super::log::format::SegmentPair;

mod closed;
mod copies;
mod emptying;
mod search;
mod set_search;

pub use closed::MoveReason;
pub(crate) use closed::{ClosedDisks, SpaceOnDisks};
pub(crate) use copies::CopyPlaces;
pub(crate) use emptying::{EmptyingGroups, set_emptying};
use search::{GROUPS_SEARCHED_MAX, whole_in};
use set_search::SetSearches;

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
    pub(crate) whole_stripes: u64,
    /// Blocks handed out and not yet named.
    pub(crate) loaned_blocks: u64,
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
            whole_stripes: 0,
            loaned_blocks: 0,
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

    /// Owned groups without a busy block that are not being emptied, in order.
    pub(crate) fn free_groups(&self) -> impl Iterator<Item = u64> + '_ {
        let free = self.groups.iter().filter(|(_, group)| group.busy.ones() == 0);
        free.filter(|(_, group)| !group.emptying).map(|(&number, _)| number)
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
        let Some(group) = self.groups.remove(&number) else { return };
        debug_assert_eq!(group.used_blocks(), 0, "only a free group is given away");
        self.owned_blocks -= u64::from(group.busy.length());
        if !group.emptying {
            self.free_blocks -= u64::from(group.free_blocks());
            self.count_whole(group.start, -i64::from(group.whole_stripes));
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
        let start = group.start;
        let was_whole = group.busy.ones_in(stripe.clone()) == 0;
        let changed = u64::from(group.busy.fill(group.local(blocks), busy));
        let is_whole = group.busy.ones_in(stripe.clone()) == 0;
        // While blocks of a partly used stripe become busy, the bound stays one.
        if !is_whole && (was_whole || !busy) {
            let longest = group.busy.runs(stripe, false).map(|run| run.end - run.start).max();
            group.fit_max = group.fit_max.max(longest.unwrap_or(0));
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
                self.count_whole(start, -is_counted);
            }
            (false, true) => {
                group.whole_stripes += 1;
                self.count_whole(start, is_counted);
                self.searches.of(self.layout.map(), first).note_freed(first);
            }
            _ => {}
        }
        self.note_free(number);
    }

    /// `more` whole stripes more may be taken in the disk set of `block`.
    fn count_whole(&mut self, block: u64, more: i64) {
        self.whole_stripes = self.whole_stripes.saturating_add_signed(more);
        let stripe = self.layout.stripe_of(block);
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
        let stripe = self.layout.stripe_of(run.start);
        let freed = self.searches.of(self.layout.map(), stripe).freed;
        self.end_loan(run);
        self.set_busy(run.blocks(), false);
        // Perhaps they could not be written: a retry shall not begin with the same ones.
        self.searches.of(self.layout.map(), stripe).freed = freed;
    }

    fn end_loan(&mut self, run: Run) {
        if let Some(group) = self.groups.get_mut(&self.layout.group_of(run.start)) {
            let local = group.local(run.blocks());
            self.loaned_blocks -= u64::from(group.loaned.fill(local, false));
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

    /// Blocks that [`allocate`](Self::allocate) could hand out with this floor.
    pub(crate) fn available(&self, floor: u64) -> u64 {
        let Some(spare) = self.whole_stripes.checked_sub(floor) else { return 0 };
        let per_stripe = self.layout.blocks_per_stripe();
        let partial = self.free_blocks - self.whole_stripes * per_stripe;
        partial + spare * per_stripe
    }

    /// Hands out `blocks` blocks, all or none, and leaves at least `floor` whole stripes: whole
    /// stripes one after the other (they go round the disks), the rest as `near` says or else from
    /// a stripe that is partly used already, pieces if there is nothing better.
    /// The process of [`Near::On`] caches those stripes for which `caches` is true.
    pub(crate) fn allocate(
        &mut self,
        blocks: u32,
        floor: u64,
        near: Near,
        caches: &dyn Fn(u64) -> bool,
    ) -> Option<Vec<Run>> {
        let mut left = u64::from(blocks);
        if self.whole_stripes < floor || left > self.available(floor) {
            return None;
        }
        let mut runs = Vec::with_capacity(1);
        while left > 0 {
            let near = if runs.is_empty() { self.near(near, left, floor, caches) } else { None };
            let run = near.or_else(|| self.piece(left, floor))?;
            self.set_busy(run.blocks(), true);
            left -= u64::from(run.count);
            runs.push(run);
        }
        for &run in &runs {
            if let Some(group) = self.groups.get_mut(&self.layout.group_of(run.start)) {
                let local = group.local(run.blocks());
                self.loaned_blocks += u64::from(group.loaned.fill(local, true));
            }
        }
        Some(runs)
    }

    /// Allocates a page of `blocks` blocks, and leaves at least `floor` whole stripes.
    pub(crate) fn allocate_page(&mut self, blocks: u32, floor: u64) -> Option<Run> {
        let run = self
            .fitting(blocks, GROUPS_SEARCHED_MAX)
            .or_else(|| self.broken_stripe(blocks, floor))
            .or_else(|| self.fitting(blocks, usize::MAX))?;
        self.set_busy(run.blocks(), true);
        Some(run)
    }

    /// Takes two stripes for a segment of the log, on different disks if there are several; near
    /// the segment before, `after`: a log that is strewn over groups keeps all of them from being
    /// given away.
    pub(crate) fn allocate_pair(&mut self, after: Option<SegmentPair>) -> Option<SegmentPair> {
        let group = after.map(|after| self.layout.group_of_stripe(after.b));
        let a = self.allocate_stripe(group, |_| true)?;
        let group = Some(self.layout.group_of_stripe(a));
        let map = self.layout.map().clone();
        let (first, one_node) = (map.place(a).disk, map.disk_nodes() == 1);
        let b = self.allocate_stripe(group, |stripe| {
            let second = map.place(stripe).disk;
            second.disk_node != first.disk_node || one_node && second.disk != first.disk
        });
        if b.is_none() {
            self.set_busy(self.layout.stripe_run(a).blocks(), false);
        }
        b.map(|b| SegmentPair { a, b })
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

    /// Takes a whole stripe, one that `accept`s if there is such a one, best of this group.
    fn allocate_stripe(&mut self, group: Option<u64>, accept: impl Fn(u64) -> bool) -> Option<u64> {
        let stripe = group
            .and_then(|group| whole_in(self, group, &accept))
            .or_else(|| self.next_whole(accept))
            .or_else(|| group.and_then(|group| whole_in(self, group, |_| true)))
            .or_else(|| self.next_whole(|_| true))?;
        self.set_busy(self.layout.stripe_run(stripe).blocks(), true);
        Some(stripe)
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
mod tests {
    use std::cell::Cell;

    use blockio::{Geometry, VolumeMap};
    use runtime::VolumeId;
    use runtime::seed::{Rng, with_seed};

    use super::set_search::FREED_MIN;
    use super::*;

    const STRIPES: u64 = 96;
    const PER_STRIPE: u64 = 16;
    const NOWHERE: &dyn Fn(u64) -> bool = &|_| false;

    fn space() -> BlockAllocator {
        space_of(STRIPES)
    }

    fn space_of(stripes: u64) -> BlockAllocator {
        let geometry = Geometry { volume: VolumeId(1), stripe_size: 65536, fs_nodes: 3 };
        let map = VolumeMap::grid(geometry, 2, 1, stripes / 2).expect("a small volume");
        let layout = GroupLayout::of(&map);
        let mut space = BlockAllocator::new(layout.clone());
        for group in layout.born(1) {
            let blocks = layout.blocks_of(group);
            space.add_group(group, &Rc::new(Bits::new((blocks.end - blocks.start) as u32, false)));
        }
        space
    }

    #[test]
    fn the_first_stripes_of_all_nodes_are_held_by_different_caches() {
        let geometry = Geometry { volume: VolumeId(1), stripe_size: 65536, fs_nodes: 64 };
        let map = VolumeMap::grid(geometry, 2, 2, 1 << 20).expect("a large volume");
        let layout = GroupLayout::of(&map);
        let first = |node: u32| {
            let mut space = BlockAllocator::new(layout.clone());
            for group in layout.born(node).take(2) {
                let blocks = layout.blocks_of(group);
                let bits = Bits::new((blocks.end - blocks.start) as u32, false);
                space.add_group(group, &Rc::new(bits));
            }
            space.begin_at(node);
            let all = space.whole_stripes;
            let first = space.allocate_stripe(None, |_| true).unwrap();
            assert_eq!(
                (1..all).filter_map(|_| space.allocate_stripe(None, |_| true)).count() as u64,
                all - 1
            );
            first
        };
        assert!((0..64).all(|node| first(node) % 64 == u64::from(node)));
    }

    fn check(space: &BlockAllocator, used: &BTreeSet<u64>) {
        let busy: BTreeSet<u64> = space.busy_runs().iter().flat_map(Run::blocks).collect();
        assert_eq!(&busy, used);
        let owned: Vec<u64> =
            space.groups().flat_map(|group| space.layout.stripes_of(group)).collect();
        let whole = owned.iter().filter(|&&stripe| {
            space.layout.stripe_run(stripe).blocks().all(|block| !used.contains(&block))
        });
        assert_eq!(space.whole_stripes, whole.count() as u64);
        assert_eq!(space.free_blocks, owned.len() as u64 * PER_STRIPE - used.len() as u64);
    }

    fn size(rng: &mut Rng) -> u32 {
        if rng.chance(1, 2) { 1 + rng.below(8) as u32 } else { 1 + rng.below(70) as u32 }
    }

    fn near(rng: &mut Rng) -> Near {
        match rng.below(4) {
            0 => Near::Anywhere {},
            1 => Near::On { process: rng.below(3) as u32, skip: rng.below(PER_STRIPE + 4) as u32 },
            // Perhaps of another node, or of none.
            2 => Near::At {
                block: rng.below((STRIPES + 4) * PER_STRIPE),
                or_apart: rng.chance(1, 2),
            },
            _ => Near::Apart { skip: rng.below(PER_STRIPE + 4) as u32 },
        }
    }

    #[test]
    fn blocks_are_handed_out_where_they_are_wished_for_if_these_are_free() {
        let mut space = space();
        let mut allocate = |blocks, near| space.allocate(blocks, 0, near, NOWHERE).unwrap();
        let apart = allocate(5, Near::Apart { skip: 3 });
        let [Run { start, count: 5 }] = apart[..] else { panic!("{apart:?}") };
        assert_eq!(start % PER_STRIPE, 3);
        assert_eq!(
            allocate(3, Near::At { block: start - 3, or_apart: true }),
            [Run { start: start - 3, count: 3 }]
        );
        assert_eq!(
            allocate(8, Near::At { block: start + 5, or_apart: true }),
            [Run { start: start + 5, count: 8 }]
        );
        // In use; across the end of a stripe; not owned.
        for block in [start, start + PER_STRIPE - 4, u64::MAX - 1, STRIPES * PER_STRIPE] {
            let elsewhere = allocate(2, Near::At { block, or_apart: false });
            assert_ne!(elsewhere[0].start, block);
        }
        let own = allocate(3, Near::At { block: start, or_apart: true });
        assert_eq!(own[0].start % PER_STRIPE, start % PER_STRIPE);
    }

    #[test]
    fn each_process_gets_stripes_in_a_row_of_those_that_it_caches() {
        let mut space = space();
        let of_process = |process: u64| move |stripe: u64| stripe % 3 == process;
        let on = |space: &mut BlockAllocator, process: u64, blocks, skip| {
            let near = Near::On { process: process as u32, skip };
            let runs = space.allocate(blocks, 0, near, &of_process(process)).unwrap();
            let [run] = runs[..] else { panic!("{runs:?}") };
            (space.layout.stripe_of(run.start), run.start % PER_STRIPE)
        };
        let first: Vec<_> = [0, 1, 0, 2, 0, 1].map(|process| on(&mut space, process, 16, 0)).into();
        assert_eq!(first, [6, 4, 18, 5, 30, 7].map(|stripe| (stripe, 0)));
        assert_eq!(on(&mut space, 2, 5, 3), (17, 3), "a part of a chunk gets a stripe of its own");
        // What others have left out is not lost.
        let rest: u64 = space.free_blocks;
        let mut got = 0;
        while let Some(runs) = space.allocate(1, 0, Near::Anywhere {}, NOWHERE) {
            got += runs.len() as u64;
        }
        assert_eq!(got, rest);
        // None of its own: any.
        space.set_busy(space.layout.stripe_run(4).blocks(), false);
        let near = Near::On { process: 0, skip: 0 };
        let other = space.allocate(16, 0, near, &of_process(0)).unwrap();
        assert_eq!(space.layout.stripe_of(other[0].start), 4);
    }

    #[test]
    fn the_search_for_stripes_of_one_process_is_bounded_and_goes_on_where_it_stopped() {
        let mut space = space_of(61_440);
        let groups = space.groups.len();
        let last = *space.groups.last_key_value().unwrap().0;
        let only = space.layout.stripes_of(last).start;
        let looked_at = Cell::new(0);
        let near = Near::On { process: 0, skip: 0 };
        let mut searches = 0;
        while space
            .near(near, PER_STRIPE, 0, &|stripe| {
                looked_at.set(looked_at.get() + 1);
                stripe == only
            })
            .is_none_or(|run| space.layout.stripe_of(run.start) != only)
        {
            searches += 1;
            assert!(looked_at.take() <= GROUPS_SEARCHED_MAX as u64 * 256);
            assert!(searches <= groups, "what there is must be found in the end");
        }
        assert!(searches > 1);
    }

    #[test]
    fn a_bound_of_what_fits_never_hides_room() {
        with_seed(|rng| {
            let mut space = space();
            let mut out = Vec::new();
            for _ in 0..2000 {
                if rng.chance(2, 3) {
                    out.extend(
                        space
                            .allocate(1 + rng.below(15) as u32, 0, near(rng), NOWHERE)
                            .into_iter()
                            .flatten(),
                    );
                } else if !out.is_empty() {
                    space.return_loan(out.swap_remove(rng.index(out.len())));
                }
                for (&number, group) in &space.groups {
                    let fits = space.layout.stripes_of(number).filter_map(|stripe| {
                        let local = group.local(space.layout.stripe_run(stripe).blocks());
                        let is_whole = group.busy.ones_in(local.clone()) == 0;
                        let longest = group.busy.runs(local, false).map(|run| run.end - run.start);
                        if is_whole { None } else { longest.max() }
                    });
                    assert!(fits.max().unwrap_or(0) <= group.fit_max);
                }
            }
        });
    }

    #[test]
    fn blocks_are_handed_out_once_and_all_or_none() {
        with_seed(|rng| {
            let (mut space, mut used, mut out) = (space(), BTreeSet::new(), Vec::<Run>::new());
            for _ in 0..2000 {
                if rng.chance(3, 5) {
                    let (blocks, floor) = (size(rng), rng.below(4));
                    let free = space.free_blocks;
                    let whole = space.whole_stripes;
                    let near = near(rng);
                    let caches = |stripe| matches!(near, Near::On { process, .. } if stripe % 3 == u64::from(process));
                    let Some(runs) = space.allocate(blocks, floor, near, &caches) else {
                        let limit = free.saturating_sub(floor.min(whole) * PER_STRIPE);
                        assert!(whole < floor || u64::from(blocks) > limit);
                        check(&space, &used);
                        continue;
                    };
                    assert_eq!(runs.iter().map(|run| run.count).sum::<u32>(), blocks);
                    assert!(space.whole_stripes >= floor);
                    for run in &runs {
                        assert!(space.layout.is_run(*run) && space.is_loaned(*run));
                        assert!(run.blocks().all(|block| used.insert(block)));
                    }
                    out.extend(runs);
                } else if !out.is_empty() {
                    let run = out.swap_remove(rng.index(out.len()));
                    if rng.chance(1, 2) {
                        space.keep_loan(run);
                        assert!(space.is_kept(run));
                        space.set_kept(run, false);
                        space.set_busy(run.blocks(), false);
                    } else {
                        space.return_loan(run);
                    }
                    run.blocks().for_each(|block| assert!(used.remove(&block)));
                }
                check(&space, &used);
            }
        });
    }

    #[test]
    fn large_requests_get_stripes_in_a_row_and_small_ones_share_one() {
        let mut space = space();
        let runs = space.allocate(64, 0, Near::Anywhere {}, NOWHERE).unwrap();
        let stripes: Vec<u64> = runs.iter().map(|run| space.layout.stripe_of(run.start)).collect();
        assert_eq!(stripes, [4, 5, 6, 7]);
        let small: Vec<Run> = (0..4)
            .flat_map(|_| space.allocate(4, 0, Near::Anywhere {}, NOWHERE).unwrap())
            .collect();
        assert!(small.iter().all(|run| space.layout.stripe_of(run.start) == 16));
        let next = space.allocate(16, 0, Near::Anywhere {}, NOWHERE).unwrap();
        assert_eq!(space.layout.stripe_of(next[0].start), 17);
    }

    #[test]
    fn what_was_freed_is_used_again_before_what_never_was_used() {
        let mut space = space_of(30 * FREED_MIN);
        let mut used = BTreeSet::new();
        let mut file = |space: &mut BlockAllocator| {
            let runs = space
                .allocate((FREED_MIN * PER_STRIPE) as u32, 0, Near::Anywhere {}, NOWHERE)
                .unwrap();
            used.extend(runs.iter().map(|run| run.start));
            runs
        };
        let (mut old, _live) = (file(&mut space), file(&mut space));
        for _ in 0..20 {
            let new = file(&mut space);
            for run in std::mem::replace(&mut old, new) {
                space.keep_loan(run);
                space.set_kept(run, false);
                space.set_busy(run.blocks(), false);
            }
        }
        let all = space.owned_stripes();
        assert!(
            used.len() as u64 <= 4 * FREED_MIN && all > 8 * FREED_MIN,
            "{} of {all}",
            used.len()
        );
    }

    #[test]
    fn a_group_that_was_taken_is_used_only_once_it_is_released() {
        let mut space = space();
        let free = space.free_blocks;
        space.add_blocked_group(0);
        assert_eq!(space.free_blocks, free);
        assert!(!space.is_kept(Run { start: 0, count: 1 }));
        space.set_busy(space.layout.blocks_of(0), false);
        assert_eq!(space.free_blocks, free + 64);
        assert!(space.is_free_group(0));
        space.remove_group(0);
        assert_eq!(space.free_blocks, free);
        assert_eq!(space.owned_stripes(), 32);
    }
}
