//! Allocation groups: how the logical disk is divided, and which node owns each group at first.

use std::ops::Range;

pub use blockio::geometry::Run;

use blockio::{DiskSet, VolumeMap};

/// How a volume is cut into allocation groups. Each disk set is cut by itself, from its beginning,
/// into groups of as many stripes as it says; the last one may be shorter. Groups are numbered over
/// all sets. Part of the disk format.
#[derive(Clone, Debug)]
pub struct GroupLayout {
    map: VolumeMap,
    blocks_per_stripe: u64,
    fs_nodes: u32,
}

impl GroupLayout {
    /// The groups of this volume.
    pub fn of(map: &VolumeMap) -> Self {
        let geometry = map.geometry();
        Self {
            map: map.clone(),
            blocks_per_stripe: u64::from(geometry.blocks_per_stripe()),
            fs_nodes: geometry.fs_nodes,
        }
    }

    /// The disks of the volume.
    pub(crate) fn map(&self) -> &VolumeMap {
        &self.map
    }

    /// How many groups there are.
    pub fn count(&self) -> u64 {
        self.map.groups()
    }

    /// The number of groups of all sets up to each.
    pub(crate) fn set_ends(&self) -> Vec<u64> {
        self.map.sets().map(|placed| placed.first_group + placed.set.groups()).collect()
    }

    /// The groups of set number `set`.
    pub(crate) fn groups_of_set(&self, set: usize) -> Range<u64> {
        let placed = self.map.sets().nth(set);
        placed.map_or(0..0, |placed| placed.first_group..placed.first_group + placed.set.groups())
    }

    /// The groups that `node` owns from the birth of the volume on.
    pub fn born(&self, node: u32) -> impl Iterator<Item = u64> + use<> {
        let me = self.clone();
        (0..self.map.born_sets()).flat_map(move |set| me.born_of_set(node, set))
    }

    /// The groups of set number `set` that `node` owns at first.
    ///
    /// In a set with lanes each row of groups is given out from one node further on, so that the
    /// groups of a node, which may be one unit each, are not all on the same disk. Where data has
    /// copies, they are on all disks: a node whose groups were on two disk nodes would have one to
    /// go on with while the other is away.
    pub fn born_of_set(&self, node: u32, set: usize) -> impl Iterator<Item = u64> + use<> {
        let (node, nodes) = (u64::from(node), u64::from(self.fs_nodes));
        let placed = self.map.sets().nth(set);
        let (first, groups, is_skewed) = placed.as_ref().map_or((0, 0, false), |placed| {
            (placed.first_group, placed.set.groups(), placed.set.lanes > 0)
        });
        // Volumes without copies were given out without further turns.
        let rows = placed.filter(|_| self.map.redundancy().copies() > 1);
        let rows = rows.map_or(u64::MAX, |placed| rows_until_repeat(&placed.set, nodes));
        let in_row = move |row: u64| {
            let turned = if is_skewed { row + row / rows } else { first };
            first + row * nodes + (node + nodes - turned % nodes) % nodes
        };
        (0..groups.div_ceil(nodes)).map(in_row).filter(move |&group| group < first + groups)
    }

    /// The stripes of `group`.
    pub fn stripes_of(&self, group: u64) -> Range<u64> {
        let placed = self.map.set_of_group(group);
        let (set, end) = (&placed.set, placed.set.end());
        let before = (group - placed.first_group).saturating_mul(set.group_stripes.into());
        let start = set.first.saturating_add(before).min(end);
        start..start.saturating_add(set.group_stripes.into()).min(end)
    }

    /// How many stripes `group` has.
    pub(crate) fn stripe_count(&self, group: u64) -> u64 {
        let stripes = self.stripes_of(group);
        stripes.end - stripes.start
    }

    /// The blocks of `group`.
    pub fn blocks_of(&self, group: u64) -> Range<u64> {
        let stripes = self.stripes_of(group);
        stripes.start * self.blocks_per_stripe..stripes.end * self.blocks_per_stripe
    }

    /// The group that `stripe` is in.
    pub fn group_of_stripe(&self, stripe: u64) -> u64 {
        let placed = self.map.set_of(stripe);
        placed.first_group + (stripe - placed.set.first) / u64::from(placed.set.group_stripes)
    }

    /// The group that `block` is in.
    pub fn group_of(&self, block: u64) -> u64 {
        self.group_of_stripe(self.stripe_of(block))
    }

    /// The stripe that `block` is in.
    pub fn stripe_of(&self, block: u64) -> u64 {
        block / self.blocks_per_stripe
    }

    /// File-system nodes of the volume.
    pub fn fs_nodes(&self) -> u32 {
        self.fs_nodes
    }

    /// Blocks in one stripe.
    pub fn blocks_per_stripe(&self) -> u64 {
        self.blocks_per_stripe
    }

    /// The whole of `stripe`.
    pub fn stripe_run(&self, stripe: u64) -> Run {
        Run {
            start: stripe.saturating_mul(self.blocks_per_stripe),
            count: self.blocks_per_stripe as u32,
        }
    }

    /// Is `run` a run at all: not empty, on the disk, within one stripe?
    pub fn is_run(&self, run: Run) -> bool {
        run.count > 0
            && run.start < self.map.stripes() * self.blocks_per_stripe
            && self.stripe_of(run.start) == self.stripe_of(run.blocks().end - 1)
    }
}

/// After how many rows of groups, of which each begins one node further on, all nodes have got
/// groups on the same disks again.
fn rows_until_repeat(set: &DiskSet, nodes: u64) -> u64 {
    let units = u64::from((set.group_stripes / set.unit_stripes).max(1));
    let disks = u64::from(set.members.count().max(1));
    let groups_until_same_disk = disks / gcd(units, disks);
    let rows_until_same_disk = groups_until_same_disk / gcd(nodes, groups_until_same_disk);
    rows_until_same_disk / gcd(rows_until_same_disk, nodes) * nodes
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use blockio::plan::{FreeDisk, Spread, plan_redundancy, plan_sets};
    use blockio::{DiskName, Geometry, RedundancyClass, SetMember, SetMembers};
    use runtime::VolumeId;

    use super::*;

    fn map(stripes: u64) -> VolumeMap {
        let geometry = Geometry { volume: VolumeId(1), stripe_size: 65536, fs_nodes: 4 };
        VolumeMap::grid(geometry, 2, 1, stripes / 2).expect("a small volume")
    }

    /// The same with a second set of three disks.
    fn grown(stripes: u64) -> VolumeMap {
        let map = map(stripes);
        let member = |disk| SetMember { disk: DiskName { disk_node: 5, disk }, base: 7 };
        let set = DiskSet {
            first: map.stripes(),
            stripes_per_disk: 33,
            group_stripes: 4,
            unit_stripes: 1,
            lanes: 0,
            members: SetMembers::List { disks: (0..3).map(member).collect() },
        };
        map.append(set.clone()).expect("it begins where the first one ends");
        let first = map.stripes();
        map.append(DiskSet { first, lanes: 2, ..set }).expect("it begins where that one ends");
        map
    }

    #[test]
    fn every_stripe_is_in_one_group_and_every_group_has_one_owner() {
        for map in
            [64, 1000, 100_000].into_iter().flat_map(|stripes| [map(stripes), grown(stripes)])
        {
            let layout = GroupLayout::of(&map);
            let mut owned = Vec::new();
            for set in 0..map.sets().count() {
                owned.extend((0..4).flat_map(|node| layout.born_of_set(node, set)));
            }
            owned.sort_unstable();
            assert!(owned.iter().copied().eq(0..layout.count()));
            let stripes = owned.iter().flat_map(|&group| layout.stripes_of(group));
            assert!(stripes.eq(0..map.stripes()));
            for group in owned {
                assert!(layout.stripes_of(group).all(|s| layout.group_of_stripe(s) == group));
                assert!(layout.stripe_count(group) > 0);
            }
            assert!(layout.stripes_of(layout.count()).is_empty());
            assert!(layout.stripes_of(u64::MAX).is_empty());
        }
    }

    #[test]
    fn groups_of_one_unit_put_a_node_on_all_disks() {
        let geometry = Geometry { volume: VolumeId(1), stripe_size: 65536, fs_nodes: 64 };
        let free =
            |disk_node| FreeDisk { disk: DiskName { disk_node, disk: 0 }, base: 0, stripes: 16384 };
        let disks: Vec<FreeDisk> = (0..4).map(free).collect();
        let sets = plan_sets(&geometry, 0, &disks, Spread::Units).expect("they fit");
        assert_eq!(sets[0].group_stripes, sets[0].unit_stripes);
        let map = VolumeMap::new(geometry, sets).expect("a volume");
        let layout = GroupLayout::of(&map);
        for node in 0..64 {
            assert_eq!(stripes_on_disks(&layout, node), [256; 4], "node {node}");
        }
    }

    /// How many stripes of `node` are on each of the disk nodes.
    fn stripes_on_disks(layout: &GroupLayout, node: u32) -> Vec<u32> {
        let mut on = vec![0; layout.map.disks().len()];
        for stripe in layout.born(node).flat_map(|group| layout.stripes_of(group)) {
            on[layout.map.place(stripe).disk.disk_node as usize] += 1;
        }
        on
    }

    #[test]
    fn where_data_has_copies_a_node_is_on_all_disks_however_many_there_are() {
        for (fs_nodes, disk_nodes) in
            [(1, 2), (2, 2), (2, 3), (2, 4), (2, 8), (3, 9), (4, 4), (4, 6), (4, 16), (64, 4)]
        {
            let geometry = Geometry { volume: VolumeId(1), stripe_size: 65536, fs_nodes };
            let disk = |disk_node| DiskName { disk_node, disk: 0 };
            let free = |disk_node| FreeDisk { disk: disk(disk_node), base: 0, stripes: 16384 };
            let disks: Vec<FreeDisk> = (0..disk_nodes).map(free).collect();
            let sets = plan_sets(&geometry, 0, &disks, Spread::Units).expect("they fit");
            let map = VolumeMap::new(geometry, sets).expect("a volume");
            let class = RedundancyClass::Copies { count: 2 };
            let map = plan_redundancy(&map, class).expect("there are several disks");
            let layout = GroupLayout::of(&map);
            for node in 0..fs_nodes {
                let on = stripes_on_disks(&layout, node);
                let even = on.iter().sum::<u32>() / disk_nodes;
                let is_even = on.iter().all(|count| (even * 2 / 3..=even * 4 / 3).contains(count));
                assert!(is_even, "node {node} of {fs_nodes}: {on:?}");
            }
        }
    }

    #[test]
    fn the_cut_of_a_volume_of_version_1_is_frozen() {
        let size = |stripes| GroupLayout::of(&map(stripes)).stripe_count(0);
        assert_eq!([64, 1000, 100_000].map(size), [2, 31, 256]);
    }

    #[test]
    fn a_run_never_crosses_a_stripe() {
        let layout = GroupLayout::of(&map(64));
        assert!(layout.is_run(Run { start: 16, count: 16 }));
        assert!(!layout.is_run(Run { start: 17, count: 16 }));
        assert!(!layout.is_run(Run { start: 17, count: 0 }));
        assert!(!layout.is_run(Run { start: 1024, count: 1 }));
        assert!(!layout.is_run(Run { start: u64::MAX, count: 4 }));
        assert!(GroupLayout::of(&grown(64)).is_run(Run { start: 1024, count: 16 }));
    }
}
