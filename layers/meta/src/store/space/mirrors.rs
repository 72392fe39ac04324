//! Where further copies of data go: each to another disk.

use blockio::DiskName;

use super::search::of_kind;
use super::set_search::{IsOfKind, StripeKind};
use super::whole::CopyDisks;
use super::{BlockAllocator, CopyPlaces, lend};
use crate::store::groups::Run;
use crate::store::limits;

/// Tells the stripes that copies of data fill from those that second copies of pages fill.
const MIRRORS_KEY: u32 = 1 << 31;

/// Where further copies had best be.
pub(crate) struct CopyWishes<'a> {
    /// For each of the first ones the kinds of stripes, the most wanted ones first.
    pub(crate) kinds: Vec<Vec<StripeKind>>,
    /// Tells which stripes that are.
    pub(crate) is_of: IsOfKind<'a>,
}

impl CopyWishes<'_> {
    /// None.
    pub(crate) const NONE: CopyWishes<'static> =
        CopyWishes { kinds: Vec::new(), is_of: &|_, _| false };
}

/// Places for further copies of data.
pub(crate) struct MirrorPlaces<'a> {
    pub(crate) space: &'a mut BlockAllocator,
    pub(crate) wishes: &'a CopyWishes<'a>,
}

impl MirrorPlaces<'_> {
    /// Hands out `mirrors` further copies of blocks that have `copies`, as
    /// [`allocate_mirrors`](crate::store::StoreSpace::allocate_mirrors) does. All or none; at least
    /// `floor` whole stripes are left.
    pub(crate) fn allocate(
        &mut self,
        mut copies: Vec<Vec<Run>>,
        (unit, mirrors): (u32, u32),
        floor: u64,
    ) -> Option<Vec<Vec<Run>>> {
        let known = copies.len();
        for number in 0..mirrors as usize {
            let kinds = self.wishes.kinds.get(number).map_or(&[][..], Vec::as_slice);
            let (copy, is_whole) = self.mirror((&copies, kinds), unit, floor);
            copies.push(copy);
            if !is_whole {
                for run in copies.into_iter().skip(known).flatten() {
                    self.space.take_back(run);
                }
                return None;
            }
        }
        let found = copies.split_off(known);
        for runs in &found {
            self.space.record_bytes +=
                limits::record_bytes(self.space.layout.map(), 0, runs.len() as u64, 0);
            lend(self.space, runs);
        }
        Some(found)
    }

    /// Takes blocks for one more copy. False if they are not all there.
    fn mirror(
        &mut self,
        (copies, kinds): (&[Vec<Run>], &[StripeKind]),
        unit: u32,
        floor: u64,
    ) -> (Vec<Run>, bool) {
        let (mut copy, mut at) = (Vec::new(), 0);
        // Of a part of the blocks other disks may be away than of the rest.
        while let Some((away, left)) = disks_of(self.space, copies, at) {
            let Some(run) = self.piece((left, unit), (&away, kinds), floor) else {
                return (copy, false);
            };
            self.space.set_busy(run.blocks(), true);
            at += run.count;
            copy.push(run);
        }
        (copy, true)
    }

    /// Up to `wanted` blocks in a row on none of the disks `away`; for a whole stripe one of the
    /// `kinds` is looked for first, unless it has to be on the largest disk.
    fn piece(
        &mut self,
        (wanted, unit): (u32, u32),
        (away, kinds): (&CopyDisks, &[StripeKind]),
        floor: u64,
    ) -> Option<Run> {
        let map = self.space.layout.map().clone();
        let is_open_elsewhere =
            |disk: &DiskName| away.is_on_other_node(*disk) && !self.space.closed.contains(disk);
        let has_nodes = map.disks().iter().any(is_open_elsewhere);
        let key = away.first().map_or(0, |disk| if has_nodes { disk.disk_node } else { disk.disk });
        let is_apart = |disk: DiskName| {
            if has_nodes { away.is_on_other_node(disk) } else { away.is_on_other_disk(disk) }
        };
        let copies = map.redundancy().copies() as usize;
        let missing = copies.saturating_sub(away.count()).max(1);
        let largest = self.space.whole.largest_part(&map, missing, is_apart);
        let is_best = |stripe: u64| largest == Some(map.place(stripe).disk);
        let accept = |stripe: u64| is_apart(map.place(stripe).disk);
        let is_stripe = u64::from(wanted) == self.space.layout.blocks_per_stripe();
        for &kind in kinds.iter().filter(|_| is_stripe && largest.is_none()) {
            let is_it = |stripe| accept(stripe) && (self.wishes.is_of)(kind, stripe);
            if let Some(run) = of_kind(self.space, kind, (wanted, 0), floor, &is_it) {
                return Some(run);
            }
        }
        let mut wanted = wanted;
        loop {
            let key = key | MIRRORS_KEY;
            let places = CopyPlaces(self.space);
            let find = |kind| places.place_of_copy((wanted, unit), key, floor, kind);
            let found = largest.and_then(|_| find(&is_best)).or_else(|| find(&accept));
            if let Some(run) = found {
                self.space.copy_cursors.insert(key, self.space.layout.stripe_of(run.start));
                return Some(run);
            }
            if wanted <= unit {
                return None;
            }
            wanted = (wanted / 2).next_multiple_of(unit);
        }
    }
}

/// The disks that have copies of block `at`, counted from the first, and how many blocks from that
/// one on all copies have in a row; `None` behind the last one.
fn disks_of(space: &BlockAllocator, copies: &[Vec<Run>], at: u32) -> Option<(CopyDisks, u32)> {
    let (mut disks, mut left) = (CopyDisks::default(), u32::MAX);
    for copy in copies {
        let mut start = 0;
        for run in copy {
            if (start..start + run.count).contains(&at) {
                disks.add(space.layout.map().place(space.layout.stripe_of(run.start)).disk);
                left = left.min(start + run.count - at);
            }
            start += run.count;
        }
    }
    (disks.count() > 0).then_some((disks, left))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use blockio::geometry::Near;
    use runtime::seed::with_seed;

    use super::super::tests::space_on;
    use super::*;

    fn space(disk_nodes: u32, disks: u32) -> BlockAllocator {
        space_on((disk_nodes, disks), 96, (1, 0))
    }

    #[test]
    fn every_copy_of_a_block_is_on_another_disk_and_all_space_can_be_used() {
        with_seed(|rng| {
            for (disk_nodes, disks, mirrors) in
                [(2, 1, 1), (3, 1, 1), (3, 1, 2), (1, 3, 2), (2, 2, 1), (2, 2, 2), (4, 1, 2)]
            {
                let mut space = space(disk_nodes, disks);
                let map = space.layout.map().clone();
                let (unit, all) = (1 << rng.below(5), space.free_blocks);
                loop {
                    let blocks = unit * (1 + rng.below(u64::from(40 / unit)) as u32);
                    let none: IsOfKind<'_> = &|_, _| false;
                    let first = space.allocate((blocks, unit), 0, Near::Anywhere {}, none);
                    let Some(first) = first else { break };
                    let known = vec![first.clone()];
                    let free = space.free_blocks;
                    let found = MirrorPlaces { space: &mut space, wishes: &CopyWishes::NONE }
                        .allocate(known, (unit, mirrors), 0);
                    let Some(further) = found else {
                        assert_eq!(space.free_blocks, free, "all or none");
                        break;
                    };
                    let copies: Vec<Vec<u64>> = std::iter::once(&first)
                        .chain(&further)
                        .map(|runs| runs.iter().flat_map(Run::blocks).collect())
                        .collect();
                    for at in 0..blocks as usize {
                        let disk =
                            |copy: &Vec<u64>| map.place(space.layout.stripe_of(copy[at])).disk;
                        let on: BTreeSet<DiskName> = copies.iter().map(disk).collect();
                        assert_eq!(on.len(), copies.len());
                        let nodes: BTreeSet<u32> = on.iter().map(|disk| disk.disk_node).collect();
                        assert_eq!(nodes.len(), copies.len().min(disk_nodes as usize));
                    }
                }
                let is_even = disk_nodes * disks % (1 + mirrors) == 0;
                assert!(!is_even || space.free_blocks * 8 < all, "{} left", space.free_blocks);
            }
        });
    }

    #[test]
    fn a_copy_of_a_whole_stripe_is_where_it_is_wished_but_never_beside_the_first() {
        let mut space = space(4, 1);
        let map = space.layout.map().clone();
        let is_of = |kind, stripe| {
            let node = map.place(stripe).disk.disk_node;
            matches!(kind, StripeKind::InDomain(wanted) if wanted == node)
        };
        let near = Near::InDomain { domain: 0, process: None, skip: 0 };
        for wanted in [3, 1, 2, 3, 1, 0] {
            let first = space.allocate((16, 1), 0, near, &is_of).expect("there is space");
            let wishes =
                CopyWishes { kinds: vec![vec![StripeKind::InDomain(wanted)]], is_of: &is_of };
            let found = MirrorPlaces { space: &mut space, wishes: &wishes }
                .allocate(vec![first.clone()], (1, 1), 0)
                .expect("there is space");
            let node = |run: &Run| map.place(space.layout.stripe_of(run.start)).disk.disk_node;
            let [copy] = &found[0][..] else { panic!("{found:?}") };
            assert_eq!(node(&first[0]), 0);
            assert!(if wanted > 0 { node(copy) == wanted } else { node(copy) > 0 }, "{copy:?}");
        }
    }
}
