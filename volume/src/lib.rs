//! The layers put on one another in one process: thesis Fig. 1.1 on the embedded machine.
//!
//! This is the only place that knows all layers at once. [`node`] holds what a node does on any
//! machine.

mod access;
mod added_disk;
mod boot;
mod check;
#[cfg(feature = "cluster")]
pub mod cluster;
mod degraded;
mod directory;
pub mod disk_manager;
mod error;
mod hand_over;
mod host_disk;
mod impaired;
mod lost_disk;
mod lost_disk_refusal;
pub mod new_disks;
pub mod node;
mod options;
mod record;
mod running_volume;
mod subtrees;
mod superblocks;
#[cfg(feature = "cluster")]
mod token_keys;
mod upgrade;
mod used_disks;
mod volume;
mod volume_status;

pub use self::access::{ExposedFile, ExposedFiles};
pub use self::added_disk::{NewPlaces, PlacedDisk, disk_nodes_in, lock_additions, volume_in};
pub use self::check::{CheckOptions, CheckResult, CheckStep, check};
pub use self::degraded::open_degraded;
pub use self::directory::{DirectoryError, own_directory};
pub use self::error::VolumeError;
pub use self::hand_over::NodeHandover;
pub use self::host_disk::BadDisk;
pub use self::impaired::{ImpairedDisk, ImpairedNode, MissingParts};
pub use self::lost_disk::{DataLoss, give_up_disk};
pub use self::lost_disk_refusal::LostDiskRefusal;
pub use self::options::{
    CACHE_BYTES, DISK_BYTES, FS_NODES, FormatOptions, RunOptions, STRIPE_SIZE,
};
pub use self::running_volume::RunningVolume;
pub use self::subtrees::VolumeSubtrees;
#[cfg(feature = "cluster")]
pub use self::token_keys::refresh_token_keys;
pub use self::upgrade::{UpgradeSummary, upgrade};
pub use self::used_disks::{UsedDisk, UsedDisks};
pub use self::volume::{format, open};
pub use self::volume_status::{VolumeStatus, disk_list, volume_status};
pub use blockio::disk_state::DRAINING_MAX;
pub use blockio::plan::Spread;
pub use blockio::protocol::{DiskStatus, WriteObstacle};
pub use blockio::{DiskName, Geometry, RedundancyClass, VolumeMap};
pub use cache::protocol::CacheStatus;
pub use meta::audit::{Flaw, PendingWork, Summary, UnreadableFile, UnreadableFiles};
pub use meta::memory::MemoryBudget;
pub use meta::{RootOwner, SCRUB_INTERVAL};
