//! Which node caches a stripe. Frozen: a volume's nodes must all agree, in every build.

use blockio::Geometry;
use runtime::NodeId;

/// The file-system node that caches `stripe`: `stripe mod nodes` (thesis section 2.4.4), so
/// neighbouring stripes are cached by different nodes.
pub fn owner(geometry: &Geometry, stripe: u64) -> NodeId {
    NodeId::fs((stripe % u64::from(geometry.fs_nodes)) as u32)
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
}
