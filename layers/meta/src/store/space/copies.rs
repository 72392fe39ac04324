//! Where further copies of pages go: to other disks, into stripes that they fill one after the
//! other.

use blockio::{DiskName, has_lost_disk};

use super::BlockAllocator;
use super::search::{GROUPS_SEARCHED_MAX, fit_in_stripe};
use super::whole::CopyDisks;
use crate::store::groups::Run;

/// Two stripes are far from each other with this part of the volume between them.
const FAR_PART: u64 = 8;

/// Places for further copies of pages.
#[derive(Debug)]
pub(crate) struct CopyPlaces<'a>(pub(crate) &'a mut BlockAllocator);

impl CopyPlaces<'_> {
    /// Allocates the places of the further copies of a page whose first one is at `first`, as far
    /// as there are some, and leaves at least `floor` whole stripes. Each is on another disk node
    /// if there are enough, else on another disk; if there is none, or nothing is free on others,
    /// far away on one of them, so that one damaged range does not have both, or at least in
    /// another stripe. While a disk is lost there is no such place: a page with too few copies gets
    /// more as soon as there is a disk for them.
    pub(crate) fn allocate(&mut self, first: Run, floor: u64) -> Vec<Run> {
        let copies = self.0.layout.map().redundancy().metadata_copies() as usize;
        let mut runs = vec![first];
        while runs.len() < copies
            && let Some(run) = self.next_copy(&runs, floor)
        {
            runs.push(run);
        }
        runs.split_off(1)
    }

    /// The place of one more copy beside `copies`.
    fn next_copy(&mut self, copies: &[Run], floor: u64) -> Option<Run> {
        let map = self.0.layout.map().clone();
        let stripes: Vec<u64> =
            copies.iter().map(|run| self.0.layout.stripe_of(run.start)).collect();
        let mut away = CopyDisks::default();
        for stripe in &stripes {
            away.add(map.place(*stripe).disk);
        }
        let has_nodes = map.disks().iter().any(|disk| away.is_on_other_node(*disk));
        let has_disks = map.disks().iter().any(|disk| away.is_on_other_disk(*disk));
        let last = map.place(*stripes.last()?).disk;
        let key = if has_nodes { last.disk_node } else { last.disk };
        let is_apart = |disk: DiskName| {
            if has_nodes { away.is_on_other_node(disk) } else { away.is_on_other_disk(disk) }
        };
        let missing = map.redundancy().metadata_copies() as usize - copies.len();
        let largest = self.0.whole.largest_part(&map, missing, is_apart);
        let disk_of = |stripe: u64| map.place(stripe).disk;
        let is_best = |other: u64| largest == Some(disk_of(other));
        let on_other_node = |other: u64| away.is_on_other_node(disk_of(other));
        let on_other_disk = |other: u64| away.is_on_other_disk(disk_of(other));
        let is_far = |other: u64| {
            stripes.iter().all(|stripe| other.abs_diff(*stripe) >= map.stripes() / FAR_PART)
        };
        let is_other = |other: u64| !stripes.contains(&other);
        let can_wait = has_lost_disk(&map);
        let kinds: [(bool, &dyn Fn(u64) -> bool); 5] = [
            (largest.is_some(), &is_best),
            (has_nodes, &on_other_node),
            (has_disks, &on_other_disk),
            (!can_wait, &is_far),
            (!can_wait, &is_other),
        ];
        let wanted = (copies[0].count, 1);
        let copy = kinds
            .into_iter()
            .filter(|(has_some, _)| *has_some)
            .find_map(|(_, kind)| self.place_of_copy(wanted, key, floor, kind))?;
        self.0.set_busy(copy.blocks(), true);
        self.0.copy_cursors.insert(key, self.0.layout.stripe_of(copy.start));
        Some(copy)
    }

    /// `wanted` blocks in a row in a stripe of a kind, which begin at a multiple of `unit`: after
    /// the last one for the same `key`.
    pub(super) fn place_of_copy(
        &self,
        (wanted, unit): (u32, u32),
        key: u32,
        floor: u64,
        accept: &dyn Fn(u64) -> bool,
    ) -> Option<Run> {
        let cursor = self.0.copy_cursors.get(&key).copied();
        let whole = |cursor: Option<u64>| {
            let (searches, map) = (&self.0.searches, self.0.layout.map());
            let own = cursor.map(|stripe| map.set_number(stripe));
            let others = searches.order().into_iter().filter(|set| Some(*set) != own);
            let mut sets = own.into_iter().chain(others);
            let stripe = sets.find_map(|set| {
                let from = cursor.filter(|_| Some(set) == own);
                let from = from.unwrap_or_else(|| searches.begin(set));
                self.0.whole_from(set, from, usize::MAX, accept).ok()
            })?;
            Some(Run { start: self.0.layout.stripe_run(stripe).start, count: wanted })
        };
        cursor
            .filter(|&stripe| accept(stripe))
            .and_then(|stripe| self.fitting_in(stripe, (wanted, unit)))
            .or_else(|| self.fitting_at(cursor, (wanted, unit), GROUPS_SEARCHED_MAX, accept))
            .or_else(|| (self.0.whole.total() > floor).then(|| whole(cursor)).flatten())
            .or_else(|| self.fitting_at(cursor, (wanted, unit), usize::MAX, accept))
    }

    /// `wanted` blocks in a row in a partly used stripe of a kind, from that of the cursor on.
    fn fitting_at(
        &self,
        cursor: Option<u64>,
        (wanted, unit): (u32, u32),
        groups_max: usize,
        accept: &dyn Fn(u64) -> bool,
    ) -> Option<Run> {
        let first = self.0.layout.group_of_stripe(cursor.unwrap_or(self.0.small_cursor));
        let ahead = self.0.with_partial.range(first..);
        let candidates = ahead.chain(self.0.with_partial.range(..first)).take(groups_max);
        candidates
            .filter(|number| self.0.groups.get(number).is_some_and(|group| group.fit_max >= wanted))
            .flat_map(|&number| self.0.layout.stripes_of(number))
            .filter(|&stripe| accept(stripe))
            .find_map(|stripe| self.fitting_in(stripe, (wanted, unit)))
    }

    /// The same in this stripe.
    fn fitting_in(&self, stripe: u64, (wanted, unit): (u32, u32)) -> Option<Run> {
        let number = self.0.layout.group_of_stripe(stripe);
        let group = self.0.groups.get(&number).filter(|_| self.0.with_partial.contains(&number))?;
        fit_in_stripe(group, self.0.layout.stripe_run(stripe), wanted, unit)
    }
}

#[cfg(test)]
mod tests {
    use runtime::seed::with_seed;

    use super::super::tests::space_on;
    use super::*;

    /// All of a volume of 64 stripes.
    fn space(disk_nodes: u32, disks: u32) -> BlockAllocator {
        space_on((disk_nodes, disks), 64, (1, 0))
    }

    #[test]
    fn copies_fill_stripes_of_other_disks_as_long_as_these_have_some() {
        with_seed(|rng| {
            for (disk_nodes, disks) in [(1, 1), (1, 2), (2, 1), (2, 2), (4, 1)] {
                let mut space = space(disk_nodes, disks);
                let map = space.layout.map().clone();
                let (mut pages, mut apart, mut far, all) = (0, 0, 0, space.free_blocks);
                while let Some(first) = space.allocate_page(1 + rng.below(4) as u32, 0) {
                    pages += 1;
                    let copies = CopyPlaces(&mut space).allocate(first, 0);
                    let [copy] = copies[..] else { break };
                    assert_eq!((copy.count, space.layout.is_run(copy)), (first.count, true));
                    let [a, b] = [first, copy].map(|run| space.layout.stripe_of(run.start));
                    assert_ne!(a, b);
                    far += u64::from(a.abs_diff(b) >= map.stripes() / FAR_PART);
                    let [a, b] = [a, b].map(|stripe| map.place(stripe).disk);
                    let is_apart = if disk_nodes > 1 {
                        a.disk_node != b.disk_node
                    } else {
                        a != b || disks == 1
                    };
                    apart += u64::from(is_apart);
                }
                assert!(apart * 20 > pages * 19, "{apart} of {pages}");
                let is_alone = disk_nodes * disks == 1;
                assert!(!is_alone || far * 10 > pages * 9, "{far} of {pages} are far away");
                assert!(space.free_blocks < all / 14, "{} of {all} are left", space.free_blocks);
            }
        });
    }

    #[test]
    fn a_copy_leaves_whole_stripes_and_takes_what_fits_elsewhere() {
        let mut space = space(2, 1);
        let first = space.allocate_page(4, 0).unwrap();
        let whole = space.whole.total();
        assert_eq!(CopyPlaces(&mut space).allocate(first, whole), []);
        let copy = CopyPlaces(&mut space).allocate(first, whole - 1)[0];
        assert_eq!(space.whole.total(), whole - 1);
        let next = CopyPlaces(&mut space).allocate(first, whole)[0];
        assert_eq!(next.start, copy.blocks().end, "beside the copy before");
    }
}
