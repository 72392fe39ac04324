//! Which node caches a stripe. Frozen: a volume's nodes must all agree, in every build.
//!
//! Each disk set says how ([`Distribution::of`]; ADR 90). `cargo xtask bench balance` compares the
//! ways.

use blockio::{DiskSet, VolumeMap};
use runtime::NodeId;

/// A way to spread stripes over nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// `stripe mod nodes` (thesis section 2.4.4): neighbouring stripes are cached by different
    /// nodes.
    Modulo,
    /// In units of several stripes, which are on one disk and in one cache. As modulo within each
    /// row of as many units as there are nodes, so that units in sequence are spread evenly; but
    /// each row begins elsewhere, at the next multiple of the golden ratio (Knuth, TAOCP 3, 6.4),
    /// which spreads any rows that follow each other at equal steps. It begins at a multiple of the
    /// lanes: unit `u` is cached by a node `n` with `n = u` modulo the lanes, as the disk node of
    /// the unit is. So one process can host a disk and all nodes that cache its stripes.
    Units {
        /// Stripes of a unit.
        unit: u32,
        /// Lanes; they divide the number of nodes.
        lanes: u32,
    },
    /// The stripe's number is mixed first (the finisher of `SplitMix64`), so that no stride hits
    /// few nodes; neighbours then fall on nodes like raindrops. To compare.
    Mixed,
}

impl Distribution {
    /// That of the stripes of `set`, counted from its first for [`Units`](Self::Units).
    pub fn of(set: &DiskSet) -> Self {
        match set.lanes {
            0 => Self::Modulo,
            lanes => Self::Units { unit: set.unit_stripes, lanes },
        }
    }

    /// The node, below `nodes`, that caches `stripe`.
    pub fn node(self, stripe: u64, nodes: u32) -> u32 {
        match self {
            Self::Modulo => (stripe % u64::from(nodes)) as u32,
            Self::Units { unit, lanes } => {
                let unit = stripe / u64::from(unit);
                let (lane, round) = (unit % u64::from(lanes), unit / u64::from(lanes));
                let on_lane = nodes / lanes;
                let row = round / u64::from(on_lane);
                let place = (round + skew(row, on_lane)) % u64::from(on_lane);
                lane as u32 + lanes * place as u32
            }
            Self::Mixed => (mixed(stripe) % u64::from(nodes)) as u32,
        }
    }
}

/// Where a row begins, below `nodes`.
fn skew(row: u64, nodes: u32) -> u64 {
    let part = row.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    (part * u64::from(nodes)) >> 32
}

/// The finisher of `SplitMix64` (Steele, Lea, Flood 2014).
fn mixed(stripe: u64) -> u64 {
    let mut bits = stripe.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// The file-system node that caches `stripe`.
pub fn owner(map: &VolumeMap, stripe: u64) -> NodeId {
    let (set, nodes) = (&map.set_of(stripe).set, map.geometry().fs_nodes);
    let distribution = Distribution::of(set);
    let from = if distribution == Distribution::Modulo { 0 } else { set.first };
    NodeId::fs(distribution.node(stripe - from, nodes))
}

#[cfg(test)]
mod tests {
    use blockio::Geometry;
    use runtime::VolumeId;

    use super::*;

    #[test]
    fn the_owner_of_a_stripe_is_frozen() {
        let vectors = [
            (1, 17, 0),
            (64, 0, 0),
            (64, 63, 63),
            (64, 64, 0),
            (64, 1_000_003, 3),
            (4096, u64::MAX, 4095),
            (3, 1 << 40, 1),
        ];
        for (fs_nodes, stripe, index) in vectors {
            let geometry = Geometry { volume: VolumeId(1), stripe_size: 65536, fs_nodes };
            let map = VolumeMap::grid(geometry, 2, 2, 1 << 40).expect("a large volume");
            assert_eq!(owner(&map, stripe), NodeId::fs(index), "{stripe} mod {fs_nodes}");
        }
    }

    #[test]
    fn rows_of_units_have_each_node_once_and_begin_elsewhere() {
        for (nodes, lanes) in [(1, 1), (3, 1), (24, 4), (64, 1), (64, 8), (4096, 2)] {
            let distribution = Distribution::Units { unit: 16, lanes };
            let node = |unit| distribution.node(unit * 16, nodes);
            for row in [0, 1, 2, 1000, (1 << 50) / u64::from(nodes)] {
                let units = (0..u64::from(nodes)).map(|i| row * u64::from(nodes) + i);
                assert!(
                    units
                        .clone()
                        .all(|unit| node(unit) % lanes == (unit % u64::from(lanes)) as u32)
                );
                assert!(
                    units
                        .clone()
                        .all(|unit| distribution.node(unit * 16 + 15, nodes) == node(unit))
                );
                let mut row: Vec<u32> = units.map(node).collect();
                row.sort_unstable();
                assert!(row.into_iter().eq(0..nodes), "{nodes} nodes");
            }
        }
        // The first stripes of 64 groups of 1024 stripes, of which modulo puts all on one node.
        let units = Distribution::Units { unit: 16, lanes: 1 };
        let used: std::collections::BTreeSet<u32> =
            (0..64).map(|group| units.node(group * 1024, 64)).collect();
        assert!(used.len() >= 40, "{} nodes", used.len());
    }

    #[test]
    fn the_nodes_of_units_are_frozen() {
        let vectors = [
            ((16, 1), 64, 0, 0),
            ((16, 1), 64, 1023, 63),
            ((16, 1), 64, 1024, 39),
            ((16, 4), 64, 1024, 36),
            ((16, 4), 64, 1_000_003, 48),
            ((1, 8), 24, 1 << 40, 8),
        ];
        let found = vectors.map(|((unit, lanes), nodes, stripe, _)| {
            ((unit, lanes), nodes, stripe, Distribution::Units { unit, lanes }.node(stripe, nodes))
        });
        assert_eq!(found, vectors);
    }

    #[test]
    fn a_set_counts_its_units_from_its_first_stripe() {
        let geometry = Geometry { volume: VolumeId(1), stripe_size: 65536, fs_nodes: 64 };
        let map = VolumeMap::grid(geometry, 2, 2, 1023).expect("a small volume");
        let first = map.stripes();
        let disk = blockio::DiskName { disk_node: 2, disk: 0 };
        let disks = vec![blockio::SetMember { disk, base: 0 }];
        let set = DiskSet {
            first,
            stripes_per_disk: 4096,
            group_stripes: 16,
            unit_stripes: 16,
            lanes: 1,
            members: blockio::SetMembers::List { disks },
        };
        map.append(set).expect("it begins where the first one ends");
        let node = |stripe| owner(&map, stripe);
        assert_eq!(node(first - 1), NodeId::fs(((first - 1) % 64) as u32));
        assert_eq!([0, 15, 16].map(|local| node(first + local)), [0, 0, 1].map(NodeId::fs));
    }

    #[test]
    fn the_mixed_numbers_are_those_of_splitmix() {
        // The first outputs of the generator with seed 0.
        assert_eq!(mixed(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(mixed(0x9e37_79b9_7f4a_7c15), 0x6e78_9e6a_a1b9_65f4);
    }
}
