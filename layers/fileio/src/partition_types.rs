//! Partitions of the logical disk (thesis section 2.5.1), in messages and as they are stored.
//!
//! A partition is a file system of its own on the disks of the volume. Its root is a directory in
//! the root directory of the volume, with the name of the partition; nothing has names in two
//! partitions. The table of partitions is the value of an extended attribute of the root directory,
//! and each node has a copy of it.

use crate::protocol::Name;

/// Partitions of a volume besides partition 0, at most. The table must fit an extended attribute.
pub const PARTITIONS_MAX: usize = 100;

/// The extended attribute of the root directory that holds the table. Clients do not see it.
pub const TABLE_XATTR: &str = "trusted.mdfs.partitions";

runtime::record! {
    /// A partition.
    pub struct Partition {
        /// Its number, which no other one ever gets. In the inode numbers of its files
        /// ([`meta::partition`]).
        number: u16,
        /// Its name in the root directory.
        name: Name,
        /// Bytes of a logical block: files get space and checksums in such blocks.
        block_bytes: u32,
        /// Bytes that its files may have together, if they are limited.
        limit_bytes: Option<u64>,
        /// Whether it stays.
        state: PartitionState,
    }
}

runtime::choice! {
    /// Whether a partition stays.
    #[derive(Copy)]
    pub enum PartitionState {
        /// It is in use.
        1 Online {},
        /// It is removed if it is empty, and takes nothing new until that is known.
        2 Closing {},
        /// It is removed with all that is in it.
        3 Removing {},
    }
}

impl Partition {
    /// Does it take nothing new, because it is removed, or may be?
    pub fn is_going(&self) -> bool {
        self.state != PartitionState::Online {}
    }
}

runtime::record! {
    /// The partitions of a volume besides partition 0.
    pub struct PartitionTable {
        /// Raised with each change.
        version: u64,
        /// The number of the next partition.
        next: u16,
        /// In the order of their numbers.
        partitions: Vec<Partition>,
    }
}

impl Default for PartitionTable {
    fn default() -> Self {
        Self { version: 0, next: 1, partitions: Vec::new() }
    }
}

impl PartitionTable {
    /// The partition with this number.
    pub fn find(&self, number: u16) -> Option<&Partition> {
        self.partitions.iter().find(|partition| partition.number == number)
    }

    /// The partition with this name.
    pub fn named(&self, name: &Name) -> Option<&Partition> {
        self.partitions.iter().find(|partition| partition.name == *name)
    }
}

runtime::record! {
    /// What one node has of a partition.
    #[derive(Copy, Default)]
    pub struct PartitionShare {
        /// Bytes of the blocks of its files there.
        used_bytes: u64,
        /// Its inodes there.
        inodes: u64,
        /// Bytes that the node may use, of the size limit: at least those that it uses.
        claimed_bytes: u64,
    }
}

runtime::choice! {
    /// What the operator of a volume wants of its partitions.
    pub enum PartitionChange {
        /// A new one. One that is there, and as it is wanted, is completed.
        1 Create {
            /// Its name in the root directory.
            name: Name,
            /// Bytes of a logical block: 4096 times a power of two, and at most a stripe.
            block_bytes: u32,
            /// Bytes that its files may have together, if they are limited.
            limit_bytes: Option<u64>,
        },
        /// Another size limit. One below what is used lets nothing grow.
        2 SetLimit {
            /// The partition.
            name: Name,
            /// The new one, or none.
            limit_bytes: Option<u64>,
        },
        /// Remove it, in the background.
        3 Remove {
            /// The partition.
            name: Name,
            /// Also if it is not empty.
            with_content: bool,
        },
    }
}

runtime::choice! {
    /// Why partitions do not let something be done, or are not changed.
    #[derive(Copy, thiserror::Error)]
    pub enum PartitionRefusal {
        /// EXDEV.
        #[error("a file has names in one partition only; copy it")]
        1 Crossing {},
        /// EBUSY.
        #[error("it is the root of a partition: `mdfs partition remove` removes it")]
        2 IsRoot {},
        /// EBUSY.
        #[error("the partition is being removed")]
        3 IsGoing {},
        /// ENOENT.
        #[error("there is no such partition")]
        4 NotFound {},
        /// EEXIST.
        #[error("something else has this name, or the partition has another block size or limit")]
        5 Exists {},
        /// EINVAL.
        #[error("blocks have 4096 bytes or 2, 4, 8, ... times as many, and at most {max_bytes}")]
        6 BadBlock {
            /// Bytes of the largest one.
            max_bytes: u32,
        },
        /// ENOSPC.
        #[error("there are {max} partitions already, which is as many as can be")]
        7 TooMany {
            /// How many.
            max: u32,
        },
        /// ENOTEMPTY.
        #[error("the partition is not empty")]
        8 NotEmpty {},
        /// EAGAIN.
        #[error("not all nodes have answered: do the same again")]
        9 NotReady {},
    }
}
