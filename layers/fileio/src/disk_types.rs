//! Space and disks of a volume, and how its operator changes the disks.

pub use meta::protocol::WriteObstacle;

runtime::record! {
    /// Space of the volume, in bytes and inodes.
    #[derive(Copy, Default)]
    pub struct Space {
        /// Bytes for data and metadata together, each copy of the data once.
        total_bytes: u64,
        /// Bytes that are free, in all nodes together.
        free_bytes: u64,
        /// Of these, bytes that one file can allocate, whatever its node.
        available_bytes: u64,
        /// Files, directories and other inodes in existence.
        inodes: u64,
        /// Bytes of the disks for data and metadata, with all copies.
        raw_total_bytes: u64,
        /// Of these, bytes that are free.
        raw_free_bytes: u64,
    }
}

runtime::choice! {
    /// How a disk is.
    #[derive(Copy)]
    pub enum DiskCondition {
        /// It is in use.
        1 Online {},
        /// Its disk node does not answer, or it has failed.
        2 Offline {},
        /// What it holds moves to other disks.
        3 Draining {},
        /// It was drained: nothing is on it any more.
        4 Drained {},
        /// It is not part of the volume any more.
        5 Retired {},
        /// It is gone; what was on it is made anew on other disks, from other copies.
        6 Lost {},
        /// Its host was away, and is back: it gets what it has missed.
        7 Returning {},
    }
}

runtime::record! {
    /// A disk of a volume.
    pub struct DiskReport {
        /// The disk node.
        disk_node: u32,
        /// The disk within the node.
        disk: u32,
        /// How it is.
        condition: DiskCondition,
        /// Bytes of the logical disk on it.
        bytes: u64,
        /// Of these, in use.
        used_bytes: u64,
        /// It holds roots of file-system nodes.
        has_roots: bool,
        /// Where its host has it; empty if its disk node does not answer, or for who may not know.
        path: String,
        /// Why it takes no writes for now.
        obstacle: Option<WriteObstacle>,
        /// When a scrub of it ended last: seconds since 1970; 0 for never.
        scrubbed: u64,
        /// Blocks that were made anew.
        repairs: u64,
        /// Of these, in the last 24 hours.
        repairs_in_day: u64,
        /// Blocks that the last scrub could not make anew.
        damaged: u64,
    }
}

runtime::record! {
    /// The disks of a volume.
    pub struct DiskList {
        /// The version of the record of the volume.
        version: u64,
        /// All disks.
        disks: Vec<DiskReport>,
        /// The number of the next disk of each disk node.
        next: Vec<u32>,
        /// How fast data moves between disks: `gentle`, `balanced` or `fast`.
        pace: String,
        /// Data moves from fuller disks to emptier ones.
        balancing: bool,
        /// How data survives the loss of disks, as `mdfs format` was told.
        redundancy: String,
        /// What directories and files may have in place of it.
        classes: Vec<String>,
        /// Pieces of files that wait to be stored as their redundancy wants.
        waiting_pieces: u64,
        /// How many more disks may be lost now without a loss of data; those that do not answer
        /// count as lost.
        losses_left: u32,
        /// See [`DiskChange::SetLossDelay`].
        loss_delay_seconds: u32,
        /// Bytes that the nodes have moved since they started.
        moved_bytes: u64,
        /// Bytes that move per second; 0 if unknown.
        moved_per_second: u64,
        /// What the scrub under way has read.
        scrubbed_bytes: Option<u64>,
        /// Why something could not be moved, the last time.
        trouble: String,
        /// File-system nodes that do not answer. What they have on the disks is not counted.
        silent_nodes: u32,
    }
}

runtime::record! {
    /// A disk that a volume is to get.
    #[derive(Copy)]
    pub struct AddedDisk {
        /// The disk node.
        disk_node: u32,
        /// The disk within the node: the next one.
        disk: u32,
        /// Its length.
        bytes: u64,
    }
}

/// Disks are not given up, however long their host is away.
pub const NEVER_LOST: u32 = u32::MAX;

runtime::choice! {
    /// What the operator of a volume wants of its disks.
    pub enum DiskChange {
        /// New disks. They are in their places in the directory of their process, and what they
        /// hold may be overwritten.
        1 Add {
            /// In any order.
            disks: Vec<AddedDisk>,
        },
        /// Move all that a disk holds to others.
        2 Drain {
            /// The disk node.
            disk_node: u32,
            /// The disk within the node.
            disk: u32,
        },
        /// Use a disk again that is being drained.
        3 Keep {
            /// The disk node.
            disk_node: u32,
            /// The disk within the node.
            disk: u32,
        },
        /// Take a disk that was drained out of the volume, for good.
        4 Retire {
            /// The disk node.
            disk_node: u32,
            /// The disk within the node.
            disk: u32,
        },
        /// Move data from fuller disks to emptier ones.
        5 Balance {},
        /// Stop that.
        6 StopBalance {},
        /// Move data at another pace from now on.
        7 SetPace {
            /// `gentle`, `balanced` or `fast`.
            pace: String,
        },
        /// Go on for good without a disk that has failed, or whose host is away. What was on it is
        /// made anew from other copies.
        8 DeclareLost {
            /// The disk node.
            disk_node: u32,
            /// The disk within the node.
            disk: u32,
        },
        /// Do so with the disks of each host that is away for this long.
        9 SetLossDelay {
            /// How long, or [`NEVER_LOST`].
            seconds: u32,
        },
        /// Let directories and files have this redundancy in place of the volume's.
        10 AllowClass {
            /// As `mdfs format` has it.
            class: String,
        },
    }
}

runtime::choice! {
    /// Why the disks of a volume are not changed as the operator wants.
    #[derive(Copy, thiserror::Error)]
    pub enum DiskRefusal {
        /// There is no such disk, or it is retired.
        #[error("there is no such disk in use")]
        1 NoSuchDisk {},
        /// It is not being drained.
        #[error("the disk is not being drained: drain it first")]
        2 NotDraining {},
        /// It is not empty yet.
        #[error("the disk is not empty yet: {left_bytes} bytes are left to move")]
        3 NotDrained {
            /// Bytes on it; 0 if only roots are left.
            left_bytes: u64,
        },
        /// The other disks have no room for what it holds.
        #[error(
            "the other disks have no room: {needed_bytes} bytes would move, {free_bytes} are free \
             there"
        )]
        4 NoRoom {
            /// Bytes on the disk.
            needed_bytes: u64,
            /// Bytes that are free on others.
            free_bytes: u64,
        },
        /// As many are being drained as can be at once.
        #[error("{max} disks are being drained, which is as many as can be at once")]
        5 TooMany {
            /// How many.
            max: u32,
        },
        /// Another disk was expected.
        #[error("the next disk of the disk node is n{disk_node}d{disk}")]
        6 OtherNumber {
            /// The disk node.
            disk_node: u32,
            /// The disk within the node.
            disk: u32,
        },
        /// The disks together cannot become part of the volume.
        #[error("a disk is too small, or the disks together are too large")]
        7 BadSize {},
        /// A disk node did not do its part. Its log says why.
        #[error("a disk node did not do its part; its log says why")]
        8 NotReady {},
        /// The coordination engine did not take it. The log says why.
        #[error("the record of the volume was not changed; the log of the server says why")]
        9 NoRecord {},
        /// There is no such pace.
        #[error("there is no such pace")]
        10 NoPace {},
        /// The volume has had as many disk sets as it can have.
        #[error("the volume has {max} disk sets, which is as many as it can ever have")]
        11 TooManySets {
            /// How many.
            max: u32,
        },
        /// As many disks were drained or retired as can be.
        #[error("{max} disks are drained or retired, which is as many as a volume can ever have")]
        12 TooManyStates {
            /// How many.
            max: u32,
        },
        /// The copies of a block would have no disks of their own.
        #[error("redundancy needs at least {needed} disks in use")]
        13 TooFewDisks {
            /// How many.
            needed: u32,
        },
        /// It is there, and in order.
        #[error("the disk has not failed, and its host is not away: drain it")]
        14 NotFailed {},
        /// Of some data there would be no copy.
        #[error(
            "some of what is on the disk may be nowhere else: data has one copy, or another disk \
             is lost or away"
        )]
        15 OnlyCopy {},
        /// There is no such redundancy.
        #[error("there is no such redundancy")]
        16 NoClass {},
        /// Data would survive what metadata does not.
        #[error(
            "data would survive the loss of more disks than metadata, of which the volume has \
             {copies} copies"
        )]
        17 FewerMetadataCopies {
            /// How many.
            copies: u32,
        },
        /// As many were allowed as can be.
        #[error("{max} kinds of redundancy are allowed besides the volume's, which is all there can be")]
        18 TooManyClasses {
            /// How many.
            max: u32,
        },
        /// Their description would be too long.
        #[error("the stripes of the volume are too long for it: {largest_bytes} bytes at most")]
        19 LongStripes {
            /// How long they may be.
            largest_bytes: u32,
        },
        /// The volume goes on without disks by its own class.
        #[error("it survives the loss of fewer disks than the redundancy of the volume")]
        20 Weaker {},
        /// The shards of a wide stripe would have no disk nodes of their own.
        #[error("redundancy needs at least {needed} disk nodes, or all disks at one")]
        21 TooFewDiskNodes {
            /// How many.
            needed: u32,
        },
    }
}

impl DiskRefusal {
    /// Will the same disks be refused however often they are to be added?
    pub fn is_of_these_disks(self) -> bool {
        matches!(
            self,
            Self::OtherNumber { .. }
                | Self::BadSize {}
                | Self::TooManySets { .. }
                | Self::TooFewDiskNodes { .. }
        )
    }
}

#[cfg(feature = "server")]
pub use administration::DiskAdministration;

#[cfg(feature = "server")]
mod administration {
    use futures::future::LocalBoxFuture;

    use super::{DiskChange, DiskList};
    use crate::protocol::Error;

    /// Who changes the disks of a volume, at the node of the root directory.
    pub trait DiskAdministration {
        /// The disks as they are.
        fn list(&self) -> LocalBoxFuture<'_, Result<DiskList, Error>>;

        /// Changes them. Idempotent: what was begun and not finished goes on.
        fn change(&self, change: DiskChange) -> LocalBoxFuture<'_, Result<(), Error>>;
    }
}
