//! Where stripes are: first over disk nodes, then over the disks within a node (thesis section
//! 2.3.4). Pure, so that every node agrees without asking.

use runtime::{NodeId, VolumeId};

/// Bytes of one block: the unit of allocation and of checksums.
pub const BLOCK_SIZE: usize = 4096;

/// Root slots of each file-system node on each disk: the ring in which its roots rotate.
pub const SLOTS_PER_NODE: u32 = 8;

/// Smallest stripe, in bytes.
pub const STRIPE_SIZE_MIN: u32 = 16 << 10;
/// Largest stripe, in bytes.
pub const STRIPE_SIZE_MAX: u32 = 1 << 20;

runtime::record! {
    /// The shape of a volume, fixed at format time.
    #[derive(Copy)]
    pub struct Geometry {
        /// The volume.
        volume: VolumeId,
        /// Bytes per stripe, a power of two.
        stripe_size: u32,
        /// File-system nodes.
        fs_nodes: u32,
        /// Disk nodes.
        disk_nodes: u32,
        /// Disks per disk node.
        disks_per_node: u32,
        /// Whole stripes on each disk.
        stripes_per_disk: u64,
    }
}

/// The place of a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The disk node's index.
    pub disk_node: u32,
    /// The disk within the node.
    pub disk: u32,
    /// The stripe within the disk.
    pub index: u64,
}

impl Geometry {
    /// Stripes of the logical disk.
    pub fn stripes(&self) -> u64 {
        self.stripes_per_disk * u64::from(self.disk_nodes) * u64::from(self.disks_per_node)
    }

    /// Blocks per stripe.
    pub fn blocks_per_stripe(&self) -> u32 {
        self.stripe_size / BLOCK_SIZE as u32
    }

    /// Bytes of the logical disk.
    pub fn bytes(&self) -> u64 {
        self.stripes() * u64::from(self.stripe_size)
    }

    /// Root slots at the start of each disk.
    pub fn slots_per_disk(&self) -> u32 {
        self.fs_nodes * SLOTS_PER_NODE
    }

    /// Where `stripe` is: neighbouring stripes are on different disk nodes; once round all nodes,
    /// on the next disk of each.
    pub fn place(&self, stripe: u64) -> Place {
        let (nodes, disks) = (u64::from(self.disk_nodes), u64::from(self.disks_per_node));
        Place {
            disk_node: (stripe % nodes) as u32,
            disk: (stripe / nodes % disks) as u32,
            index: stripe / (nodes * disks),
        }
    }

    /// The disk node that holds `stripe`.
    pub fn disk_node(&self, stripe: u64) -> NodeId {
        NodeId::disk(self.place(stripe).disk_node)
    }

    /// The stripe and the byte within it of block number `block` of the logical disk.
    pub fn block(&self, block: u64) -> (u64, u32) {
        let per_stripe = u64::from(self.blocks_per_stripe());
        (block / per_stripe, (block % per_stripe) as u32 * BLOCK_SIZE as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_go_over_nodes_first_then_over_disks() {
        let geometry = Geometry {
            volume: VolumeId(1),
            stripe_size: 65536,
            fs_nodes: 4,
            disk_nodes: 3,
            disks_per_node: 2,
            stripes_per_disk: 10,
        };
        let places: Vec<_> = (0..7)
            .map(|stripe| geometry.place(stripe))
            .map(|place| (place.disk_node, place.disk, place.index))
            .collect();
        assert_eq!(
            places,
            [(0, 0, 0), (1, 0, 0), (2, 0, 0), (0, 1, 0), (1, 1, 0), (2, 1, 0), (0, 0, 1)]
        );
        assert_eq!(geometry.block(17), (1, 4096));
    }
}
