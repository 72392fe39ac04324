//! Which node caches a stripe. Frozen: a volume's nodes must all agree, in every build.
//!
//! The choice stands in one place, [`DISTRIBUTION`]; `cargo xtask bench balance` compares it with
//! the others.

use blockio::Geometry;
use runtime::NodeId;

/// A way to spread stripes over nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// `stripe mod nodes` (thesis section 2.4.4): neighbouring stripes are cached by different
    /// nodes.
    Modulo,
    /// The stripe's number is mixed first (the finisher of `SplitMix64`), so that no stride hits
    /// few nodes; neighbours then fall on nodes like raindrops.
    Mixed,
    /// As modulo within each row of as many stripes as there are nodes, but each row begins
    /// elsewhere: at the next multiple of the golden ratio (Knuth, TAOCP 3, 6.4), which spreads any
    /// rows that follow each other at equal steps. So files in sequence are spread as by modulo,
    /// and the first stripes of all allocation groups do not fall on the same few nodes.
    Skewed,
}

/// How stripes are spread.
pub const DISTRIBUTION: Distribution = Distribution::Modulo;

impl Distribution {
    /// The node, below `nodes`, that caches `stripe`.
    pub fn node(self, stripe: u64, nodes: u32) -> u32 {
        let number = match self {
            Self::Modulo => stripe,
            Self::Mixed => mixed(stripe),
            Self::Skewed => {
                let row = stripe / u64::from(nodes);
                (stripe % u64::from(nodes)) + skew(row, nodes)
            }
        };
        (number % u64::from(nodes)) as u32
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
pub fn owner(geometry: &Geometry, stripe: u64) -> NodeId {
    NodeId::fs(DISTRIBUTION.node(stripe, geometry.fs_nodes))
}

#[cfg(test)]
mod tests {
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
            let geometry = Geometry {
                volume: VolumeId(1),
                stripe_size: 65536,
                fs_nodes,
                disk_nodes: 2,
                disks_per_node: 2,
                stripes_per_disk: 1 << 62,
            };
            assert_eq!(owner(&geometry, stripe), NodeId::fs(index), "{stripe} mod {fs_nodes}");
        }
    }

    #[test]
    fn skewed_rows_have_each_node_once_and_begin_elsewhere() {
        for nodes in [1, 3, 24, 64, 4096] {
            let node = |stripe| Distribution::Skewed.node(stripe, nodes);
            for row in [0, 1, 2, 1000, u64::MAX / u64::from(nodes) - 1] {
                let stripes = (0..u64::from(nodes)).map(|i| row * u64::from(nodes) + i);
                let mut row: Vec<u32> = stripes.map(node).collect();
                row.sort_unstable();
                assert!(row.into_iter().eq(0..nodes), "{nodes} nodes");
            }
        }
        // The first stripes of 64 groups of 256 stripes, of which modulo puts all on one node.
        let firsts = (0..64).map(|group| Distribution::Skewed.node(group * 256, 64));
        let used: std::collections::BTreeSet<u32> = firsts.collect();
        assert!(used.len() >= 40, "{} nodes", used.len());
    }

    #[test]
    fn the_mixed_numbers_are_those_of_splitmix() {
        // The first outputs of the generator with seed 0.
        assert_eq!(mixed(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(mixed(0x9e37_79b9_7f4a_7c15), 0x6e78_9e6a_a1b9_65f4);
    }
}
