//! Why a disk that is lost is not given up, in words.

use blockio::DiskName;

/// Why a disk is not given up. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum LostDiskRefusal {
    /// The volume has no such disk, or it is retired.
    #[error("there is no disk {0} in use: `mdfs disk list` of the volume names its disks")]
    NoSuchDisk(DiskName),
    /// What is on it is nowhere else.
    #[error(
        "the volume has one copy of its data (no --redundancy): what is on disk {0} is nowhere \
         else; put the disk back, or copy out what can be read (`mdfs serve --degraded`)"
    )]
    OneCopy(DiskName),
    /// A host is away.
    #[error(
        "some of what is on disk {0} has its only other copies on disks of hosts that were away: \
         serve the volume until `mdfs disk list` calls these online"
    )]
    HostAway(DiskName),
    /// Of some data all copies would be gone.
    #[error(
        "disk {0} is lost, and some of what was on it has its last copies on other disks until \
         `mdfs disk list` calls it retired: put back the disk that is missing now, and serve the \
         volume until then"
    )]
    OtherLost(DiskName),
}
