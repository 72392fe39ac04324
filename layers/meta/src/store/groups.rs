//! Allocation groups: how the logical disk is divided, and which node owns each group at first.

use std::ops::Range;

pub use blockio::geometry::Run;

use blockio::Geometry;

/// Groups that each node owns at first, if there are enough stripes.
const GROUPS_PER_NODE: u64 = 8;
/// Stripes of one group, at most: its bitmap then has at most 8 KiB.
const STRIPES_PER_GROUP_MAX: u64 = 256;

/// How a volume is cut into allocation groups: group `g` is the stripes
/// `g * stripes_per_group .. (g + 1) * stripes_per_group`; the last one may be shorter.
///
/// A group has `clamp(stripes / (fs_nodes * 8), 1, 256)` stripes. Frozen: part of the disk format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupLayout {
    stripes: u64,
    stripes_per_group: u64,
    blocks_per_stripe: u64,
    fs_nodes: u32,
}

impl GroupLayout {
    /// The groups of a volume of this shape.
    pub fn of(geometry: &Geometry) -> Self {
        let stripes = geometry.stripes();
        let wanted = stripes / (u64::from(geometry.fs_nodes).max(1) * GROUPS_PER_NODE);
        Self {
            stripes,
            stripes_per_group: wanted.clamp(1, STRIPES_PER_GROUP_MAX),
            blocks_per_stripe: u64::from(geometry.blocks_per_stripe()),
            fs_nodes: geometry.fs_nodes.max(1),
        }
    }

    /// How many groups there are.
    pub fn count(&self) -> u64 {
        self.stripes.div_ceil(self.stripes_per_group)
    }

    /// The groups that `node` owns at birth.
    pub fn born(&self, node: u32) -> impl Iterator<Item = u64> + use<> {
        (u64::from(node)..self.count()).step_by(self.fs_nodes as usize)
    }

    /// The stripes of `group`.
    pub fn stripes_of(&self, group: u64) -> Range<u64> {
        let start = group.saturating_mul(self.stripes_per_group).min(self.stripes);
        start..start.saturating_add(self.stripes_per_group).min(self.stripes)
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
        stripe / self.stripes_per_group
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
            && run.start < self.stripes * self.blocks_per_stripe
            && self.stripe_of(run.start) == self.stripe_of(run.blocks().end - 1)
    }
}

#[cfg(test)]
mod tests {
    use runtime::VolumeId;

    use super::*;

    fn geometry(stripes: u64) -> Geometry {
        Geometry {
            volume: VolumeId(1),
            stripe_size: 65536,
            fs_nodes: 4,
            disk_nodes: 2,
            disks_per_node: 1,
            stripes_per_disk: stripes / 2,
        }
    }

    #[test]
    fn every_stripe_is_in_one_group_and_every_group_has_one_owner() {
        for stripes in [2, 30, 64, 1000, 100_000] {
            let layout = GroupLayout::of(&geometry(stripes));
            let mut owned: Vec<u64> = (0..4).flat_map(|node| layout.born(node)).collect();
            owned.sort_unstable();
            assert!(owned.iter().copied().eq(0..layout.count()));
            let covered: u64 = owned.iter().map(|&g| layout.blocks_of(g).count() as u64).sum();
            assert_eq!(covered, stripes * 16);
            for group in owned {
                assert!(layout.stripes_of(group).all(|s| layout.group_of_stripe(s) == group));
            }
        }
    }

    #[test]
    fn the_cut_is_frozen() {
        let size = |stripes| GroupLayout::of(&geometry(stripes)).stripes_per_group;
        assert_eq!([2, 64, 1000, 100_000].map(size), [1, 2, 31, 256]);
    }

    #[test]
    fn a_run_never_crosses_a_stripe() {
        let layout = GroupLayout::of(&geometry(64));
        assert!(layout.is_run(Run { start: 16, count: 16 }));
        assert!(!layout.is_run(Run { start: 17, count: 16 }));
        assert!(!layout.is_run(Run { start: 17, count: 0 }));
        assert!(!layout.is_run(Run { start: 1024, count: 1 }));
        assert!(!layout.is_run(Run { start: u64::MAX, count: 4 }));
    }
}
