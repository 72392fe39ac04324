//! The constants of a volume, and how a disk is divided.
//!
//! A disk holds, in this order: the superblock, the root slots, the stripes (aligned to their
//! size), and the copy of the superblock in its last whole block. The thesis (2.3.4) gives the last
//! stripe of a disk whatever is left; here only whole stripes exist, and the rest stays unused.

use crate::redundancy::{CLASSES_MAX, RedundancyClass};
use runtime::VolumeId;
use runtime::ids::FS_NODES_MAX;

use crate::protocol::SLOT_SIZE;

/// Bytes of one block: the unit of allocation and of checksums.
pub const BLOCK_SIZE: usize = 4096;

/// Smallest stripe, in bytes.
pub const STRIPE_SIZE_MIN: u32 = 16 << 10;
/// Largest stripe, in bytes.
pub const STRIPE_SIZE_MAX: u32 = 1 << 20;

/// Disks of one disk node, at most.
pub const DISKS_PER_NODE_MAX: u32 = 256;

/// Disk sets of a volume, at most: each disk names them all in its superblock.
pub const SETS_MAX: usize = 64;

/// Disks that are not simply in use, at most: their states have room in each superblock.
pub const STATES_MAX: usize = 64;

/// Stripes of one allocation group, at most: its bitmap then has at most 8 KiB.
pub const STRIPES_PER_GROUP_MAX: u32 = 256;

/// Root slots that each file-system node has on each disk: the ring in which its roots rotate.
pub const SLOTS_PER_NODE: u32 = 8;

/// Stripes of a volume per file-system node, at least: each node needs allocation groups and a log
/// of its own.
pub const STRIPES_PER_FS_NODE_MIN: u64 = 16;

/// Bytes of a logical disk, at most.
pub const VOLUME_SIZE_MAX: u64 = 1 << 62;

runtime::record! {
    /// What is fixed for the life of a volume. Which disks it has is in its
    /// [`VolumeMap`](crate::VolumeMap).
    #[derive(Copy)]
    pub struct Geometry {
        /// The volume.
        volume: VolumeId,
        /// Bytes per stripe, a power of two.
        stripe_size: u32,
        /// File-system nodes.
        fs_nodes: u32,
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
    /// A disk set that cannot be.
    #[error("the disk set that begins at stripe {first} is not possible")]
    Set {
        /// Its first stripe.
        first: u64,
    },
    /// There are as many disk sets as there may be.
    #[error("a volume has at most {SETS_MAX} disk sets")]
    TooManySets,
    /// There are as many disks that are drained or retired as there may be.
    #[error("a volume has at most {STATES_MAX} disks that are drained or retired")]
    TooManyStates,
    /// There are not enough disks for the copies.
    #[error("redundancy {class} needs at least {needed} disks; there {} {found}",
        if *found == 1 { "is" } else { "are" })]
    TooFewDisks {
        /// What was asked for.
        class: RedundancyClass,
        /// Disks that it needs.
        needed: u32,
        /// Disks that there are.
        found: u32,
    },
    /// There are several disk nodes, and not enough for the shards of a wide stripe.
    #[error(
        "redundancy {class} needs at least {needed} disk nodes, or all disks at one; there \
             are {found}"
    )]
    TooFewDiskNodes {
        /// What was asked for.
        class: RedundancyClass,
        /// Disk nodes that it needs.
        needed: u32,
        /// Disk nodes that there are.
        found: u32,
    },
    /// The description of a wide stripe would be too long.
    #[error("redundancy {class} needs stripes of at most {largest_bytes} bytes")]
    WideStripe {
        /// What was asked for.
        class: RedundancyClass,
        /// The longest stripes with it.
        largest_bytes: u32,
    },
    /// More data than metadata would survive.
    #[error(
        "redundancy {class} needs {needed} copies of the metadata; the volume has {found}: choose \
         a class that survives the loss of {} disks at most", found - 1
    )]
    MetadataCopies {
        /// What was asked for.
        class: RedundancyClass,
        /// Copies of metadata that it needs.
        needed: u32,
        /// Those that the volume has.
        found: u32,
    },
    /// Data would not survive what the volume goes on after.
    #[error(
        "redundancy {class} is weaker than that of the volume, whose files survive the loss of {} \
         disks", copies - 1
    )]
    WeakerClass {
        /// What was asked for.
        class: RedundancyClass,
        /// Copies of the volume's data.
        copies: u32,
    },
    /// There are as many classes as there may be.
    #[error("directories of a volume have at most {CLASSES_MAX} classes besides its own")]
    TooManyClasses,
    /// A newer program made it.
    #[error("redundancy {class} is not known to this program: use a newer one")]
    Redundancy {
        /// As the volume has it.
        class: RedundancyClass,
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
        /// The same, on disks that fail together: chunks in a row that are each on others can be a
        /// wide stripe.
        5 InDomain {
            /// The number of these disks, modulo the number of failure domains in use.
            domain: u32,
            /// If possible, in a stripe that a node of this process caches.
            process: Option<u32>,
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

impl Geometry {
    /// Checks constants that come from a disk or from outside.
    pub fn check(&self) -> Result<(), GeometryError> {
        let found = self.stripe_size;
        if !found.is_power_of_two() || !(STRIPE_SIZE_MIN..=STRIPE_SIZE_MAX).contains(&found) {
            return Err(GeometryError::StripeSize { found });
        }
        check_count("file-system nodes", self.fs_nodes, FS_NODES_MAX)
    }

    /// Blocks per stripe.
    pub fn blocks_per_stripe(&self) -> u32 {
        self.stripe_size / BLOCK_SIZE as u32
    }

    /// Can a logical block have this number of blocks? A stripe consists of whole ones.
    pub fn is_unit(&self, blocks: u32) -> bool {
        blocks.is_power_of_two() && blocks <= self.blocks_per_stripe()
    }

    /// The stripe and the byte within it of block number `block` of the logical disk.
    pub fn block(&self, block: u64) -> (u64, u32) {
        let per_stripe = u64::from(self.blocks_per_stripe());
        (block / per_stripe, (block % per_stripe) as u32 * BLOCK_SIZE as u32)
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

    /// Bytes that a disk with `stripes` stripes needs, both superblocks included.
    pub fn disk_length(&self, stripes: u64) -> u64 {
        self.stripe_offset(stripes) + BLOCK_SIZE as u64
    }

    /// Whole stripes for which a disk of `length` bytes has room.
    pub fn stripes_on_disk(&self, length: u64) -> u64 {
        length.saturating_sub(self.disk_length(0)) / u64::from(self.stripe_size)
    }
}

/// Refuses a number that is not from 1 to `max`.
pub(crate) fn check_count(what: &'static str, found: u32, max: u32) -> Result<(), GeometryError> {
    if (1..=max).contains(&found) { Ok(()) } else { Err(GeometryError::Count { what, found, max }) }
}
