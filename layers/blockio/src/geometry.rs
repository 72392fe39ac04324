//! Where stripes are: first over disk nodes, then over the disks within a node (thesis section
//! 2.3.4). Pure, so that every node agrees without asking.
//!
//! A disk holds, in this order: the superblock, the root slots, the stripes (aligned to their
//! size), and the copy of the superblock in its last whole block. The thesis gives the last
//! stripe of a disk whatever is left; here only whole stripes exist, and the rest stays unused.

use runtime::ids::{DISK_NODES_MAX, FS_NODES_MAX};
use runtime::{NodeId, VolumeId};

use crate::protocol::SLOT_SIZE;

/// Bytes of one block: the unit of allocation and of checksums.
pub const BLOCK_SIZE: usize = 4096;

/// Smallest stripe, in bytes.
pub const STRIPE_SIZE_MIN: u32 = 16 << 10;
/// Largest stripe, in bytes.
pub const STRIPE_SIZE_MAX: u32 = 1 << 20;

/// Disks of one disk node, at most.
pub const DISKS_PER_NODE_MAX: u32 = 256;

/// Root slots that each file-system node has on each disk: the ring in which its roots rotate.
pub const SLOTS_PER_NODE: u32 = 8;

/// Stripes of a volume per file-system node, at least: each node needs allocation groups and a log
/// of its own.
pub const STRIPES_PER_FS_NODE_MIN: u64 = 16;

/// Bytes of a logical disk, at most.
pub const VOLUME_SIZE_MAX: u64 = 1 << 62;

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

/// Why a volume cannot have this shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// The stripe size is no power of two, or out of its limits.
    #[error(
        "a stripe of {found} bytes is not possible: \
         choose a power of two from {STRIPE_SIZE_MIN} to {STRIPE_SIZE_MAX}"
    )]
    StripeSize {
        /// The size asked for, in bytes.
        found: u32,
    },
    /// Too few or too many of something.
    #[error("{found} {what} are not possible: choose 1 to {max}")]
    Count {
        /// What is counted.
        what: &'static str,
        /// How many were asked for.
        found: u32,
        /// How many are possible.
        max: u32,
    },
    /// The disks have no room for the smallest volume of this shape.
    #[error(
        "a disk of {found_bytes} bytes is too small: \
         a volume of this shape needs at least {needed_bytes} bytes on each disk"
    )]
    TooSmall {
        /// Bytes of one disk.
        found_bytes: u64,
        /// Bytes that one disk needs.
        needed_bytes: u64,
    },
    /// The disks together are larger than a logical disk may be.
    #[error("the disks together hold more than {VOLUME_SIZE_MAX} bytes: use fewer or smaller ones")]
    TooLarge,
}

runtime::choice! {
    /// Where reserved blocks had best be: together with the rest of their chunk, so that this is in
    /// one stripe, however it was written. A wish, and not more.
    #[derive(Copy)]
    pub enum Near {
        /// Wherever there is room.
        1 Anywhere {},
        /// From this block on.
        2 At {
            /// Its number on the logical disk.
            block: u64,
            /// If that is in use: as with `Apart`, and not where it would be in the way of others.
            or_apart: bool,
        },
        /// In a stripe of which nothing is used yet.
        3 Apart {
            /// This many of its blocks stay free before them.
            skip: u32,
        },
        /// The same, in a stripe that a node of this process caches.
        4 On {
            /// The number of the process.
            process: u32,
            /// This many blocks of the stripe stay free before them.
            skip: u32,
        },
    }
}

runtime::record! {
    /// Consecutive blocks of the logical disk, all within one stripe.
    #[derive(Copy, PartialOrd, Ord)]
    pub struct Run {
        /// The first block.
        start: u64,
        /// How many, at least one.
        count: u32,
    }
}

impl Run {
    /// The blocks.
    pub fn blocks(&self) -> std::ops::Range<u64> {
        self.start..self.start.saturating_add(u64::from(self.count))
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
    /// The largest volume of this shape on disks of `disk_length` bytes each.
    pub fn for_disks(
        volume: VolumeId,
        stripe_size: u32,
        fs_nodes: u32,
        disk_nodes: u32,
        disks_per_node: u32,
        disk_length: u64,
    ) -> Result<Self, GeometryError> {
        let mut geometry =
            Self { volume, stripe_size, fs_nodes, disk_nodes, disks_per_node, stripes_per_disk: 0 };
        geometry.check_counts()?;
        let fixed = geometry.disk_length();
        let room = disk_length.saturating_sub(fixed);
        geometry.stripes_per_disk = room / u64::from(stripe_size);
        let least = geometry.stripes_per_disk_min();
        if geometry.stripes_per_disk < least {
            let needed_bytes = fixed + least * u64::from(stripe_size);
            return Err(GeometryError::TooSmall { found_bytes: disk_length, needed_bytes });
        }
        geometry.check()?;
        Ok(geometry)
    }

    /// Checks a shape that comes from a disk or from outside.
    pub fn check(&self) -> Result<(), GeometryError> {
        self.check_counts()?;
        let disks = u64::from(self.disk_nodes) * u64::from(self.disks_per_node);
        let bytes = (disks * u64::from(self.stripe_size)).checked_mul(self.stripes_per_disk);
        if bytes.is_none_or(|bytes| bytes > VOLUME_SIZE_MAX) {
            return Err(GeometryError::TooLarge);
        }
        if self.stripes_per_disk < self.stripes_per_disk_min() {
            let found_bytes = self.disk_length();
            let missing = self.stripes_per_disk_min() - self.stripes_per_disk;
            let needed_bytes = found_bytes + missing * u64::from(self.stripe_size);
            return Err(GeometryError::TooSmall { found_bytes, needed_bytes });
        }
        Ok(())
    }

    fn check_counts(&self) -> Result<(), GeometryError> {
        let found = self.stripe_size;
        if !found.is_power_of_two() || !(STRIPE_SIZE_MIN..=STRIPE_SIZE_MAX).contains(&found) {
            return Err(GeometryError::StripeSize { found });
        }
        let counts = [
            ("file-system nodes", self.fs_nodes, FS_NODES_MAX),
            ("disk nodes", self.disk_nodes, DISK_NODES_MAX),
            ("disks per disk node", self.disks_per_node, DISKS_PER_NODE_MAX),
        ];
        match counts.into_iter().find(|(_, found, max)| !(1..=*max).contains(found)) {
            Some((what, found, max)) => Err(GeometryError::Count { what, found, max }),
            None => Ok(()),
        }
    }

    fn stripes_per_disk_min(&self) -> u64 {
        let stripes = STRIPES_PER_FS_NODE_MIN * u64::from(self.fs_nodes);
        stripes.div_ceil(u64::from(self.disk_nodes) * u64::from(self.disks_per_node))
    }

    /// Stripes of the logical disk.
    pub fn stripes(&self) -> u64 {
        self.stripes_per_disk * u64::from(self.disks())
    }

    /// Disks of the volume.
    pub fn disks(&self) -> u32 {
        self.disk_nodes * self.disks_per_node
    }

    /// Blocks per stripe.
    pub fn blocks_per_stripe(&self) -> u32 {
        self.stripe_size / BLOCK_SIZE as u32
    }

    /// Bytes of the logical disk.
    pub fn bytes(&self) -> u64 {
        self.stripes() * u64::from(self.stripe_size)
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

    /// Whether bytes `offset..offset + length` of `stripe` exist.
    pub fn contains(&self, stripe: u64, offset: u32, length: u64) -> bool {
        let end = u64::from(offset).checked_add(length);
        stripe < self.stripes() && end.is_some_and(|end| end <= u64::from(self.stripe_size))
    }

    /// Root slots on each disk: [`SLOTS_PER_NODE`] for each file-system node.
    pub fn slots_per_disk(&self) -> u32 {
        self.fs_nodes * SLOTS_PER_NODE
    }

    /// The byte of a disk where root slot `slot` starts.
    pub fn slot_offset(&self, slot: u32) -> u64 {
        BLOCK_SIZE as u64 + u64::from(slot) * SLOT_SIZE as u64
    }

    /// The byte of a disk where its stripe number `index` starts.
    pub fn stripe_offset(&self, index: u64) -> u64 {
        let stripe_size = u64::from(self.stripe_size);
        let slots_end = self.slot_offset(self.slots_per_disk());
        slots_end.next_multiple_of(stripe_size) + index * stripe_size
    }

    /// Bytes that each disk needs, both superblocks included.
    pub fn disk_length(&self) -> u64 {
        self.stripe_offset(self.stripes_per_disk) + BLOCK_SIZE as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Geometry {
        Geometry::for_disks(VolumeId(1), 65536, 4, 3, 2, 1 << 20).expect("11 stripes per disk")
    }

    #[test]
    fn stripes_go_over_nodes_first_then_over_disks() {
        let places: Vec<_> = (0..7)
            .map(|stripe| small().place(stripe))
            .map(|place| (place.disk_node, place.disk, place.index))
            .collect();
        assert_eq!(
            places,
            [(0, 0, 0), (1, 0, 0), (2, 0, 0), (0, 1, 0), (1, 1, 0), (2, 1, 0), (0, 0, 1)]
        );
        assert_eq!(small().block(17), (1, 4096));
    }

    #[test]
    fn a_disk_is_superblock_slots_aligned_stripes_and_copy() {
        let geometry = small();
        assert_eq!(geometry.slots_per_disk(), 32);
        assert_eq!(geometry.slot_offset(0), 4096);
        assert_eq!(geometry.slot_offset(32), 33 * 4096);
        assert_eq!(geometry.stripe_offset(0), 3 * 65536, "33 blocks, rounded up to a stripe");
        assert_eq!(geometry.stripe_offset(1), 4 * 65536);
        assert_eq!(geometry.stripes_per_disk, 12, "of 13, the last has to give room to the copy");
        assert_eq!(geometry.disk_length(), 15 * 65536 + 4096);
    }

    #[test]
    fn impossible_shapes_are_refused_with_the_limits() {
        let shape = |stripe, fs, nodes, disks, length| {
            Geometry::for_disks(VolumeId(1), stripe, fs, nodes, disks, length)
        };
        for found in [0, 8192, 65535, 2 << 20] {
            let refused = shape(found, 4, 1, 1, 1 << 30);
            assert_eq!(refused, Err(GeometryError::StripeSize { found }));
        }
        for (fs, nodes, disks) in
            [(0, 1, 1), (4097, 1, 1), (1, 0, 1), (1, 1025, 1), (1, 1, 0), (1, 1, 257)]
        {
            let refused = shape(65536, fs, nodes, disks, 1 << 40);
            assert!(matches!(refused, Err(GeometryError::Count { .. })), "{refused:?}");
        }
        let needed_bytes = 65536 + 16 * 65536 + 4096;
        let refused = shape(65536, 1, 1, 1, needed_bytes - 1);
        assert!(matches!(refused, Err(GeometryError::TooSmall { .. })), "{refused:?}");
        assert_eq!(shape(65536, 1, 1, 1, u64::MAX), Err(GeometryError::TooLarge));
    }

    #[test]
    fn the_smallest_disk_that_the_error_names_is_large_enough() {
        for (fs, nodes, disks) in [(1, 1, 1), (64, 2, 2), (4096, 3, 5)] {
            let shape = |length| Geometry::for_disks(VolumeId(1), 16384, fs, nodes, disks, length);
            let Err(GeometryError::TooSmall { needed_bytes, .. }) = shape(0) else {
                panic!("an empty disk was accepted");
            };
            assert!(shape(needed_bytes - 1).is_err());
            let geometry = shape(needed_bytes).expect("as large as was asked for");
            assert_eq!(geometry.disk_length(), needed_bytes);
            assert!(geometry.stripes() >= 16 * u64::from(fs));
        }
    }

    #[test]
    fn only_bytes_of_existing_stripes_exist() {
        let geometry = small();
        assert!(geometry.contains(0, 0, 65536));
        assert!(geometry.contains(geometry.stripes() - 1, 65535, 1));
        assert!(!geometry.contains(geometry.stripes(), 0, 0));
        assert!(!geometry.contains(0, 1, 65536));
        assert!(!geometry.contains(0, u32::MAX, u64::MAX));
    }
}
