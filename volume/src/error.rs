//! Why a volume cannot be made, opened or stopped.

use std::path::PathBuf;

use fileio::protocol::Error;
use runtime::NodeId;
use runtime::protocol::Undelivered;

use crate::directory::DirectoryError;
use crate::used_disks::UsedDisks;

/// A volume could not be made or opened. Nothing that was stored is changed by that.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// Its directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The coordination store failed.
    #[error(transparent)]
    Coordination(#[from] ::cluster::coordination::CoordinationError),
    /// No volume can have this shape.
    #[error("{0}")]
    Shape(#[from] blockio::geometry::GeometryError),
    /// The disks are too small for this number of nodes.
    #[error(
        "the volume would have {stripes} stripes for {fs_nodes} nodes, one of which gets {share} \
         and needs {needed}; choose fewer nodes (--nodes) or larger disks (--disk-size)"
    )]
    TooSmall {
        /// Stripes of all disks.
        stripes: u64,
        /// The nodes.
        fs_nodes: u32,
        /// Stripes of the node that would get the fewest.
        share: u64,
        /// Stripes that it needs.
        needed: u64,
    },
    /// The number of disks given does not fit.
    #[error(
        "{given} disks were named, but {disk_nodes} disk nodes of {disks_per_node} disks need {needed}"
    )]
    DiskCount {
        /// As given.
        given: usize,
        /// As needed.
        needed: u32,
        /// The disk nodes.
        disk_nodes: u32,
        /// Disks of each.
        disks_per_node: u32,
    },
    /// A disk cannot be opened.
    #[error("disk {}: {error}; {}", path.display(), open_advice(error))]
    OpenDisk {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// A disk is not what it should be.
    #[error("disk {}: {error}; {}", path.display(), disk_advice(error))]
    Disk {
        /// Which.
        path: PathBuf,
        /// Why.
        error: blockio::DiskError,
    },
    /// Several disks are not there.
    #[error("{first}; missing are {}", in_words(missing))]
    MissingDisks {
        /// What happened with the first of them.
        first: Box<VolumeError>,
        /// All of them.
        missing: Vec<PathBuf>,
    },
    /// A disk is not given up.
    #[error("{0}")]
    LostDisk(#[from] crate::lost_disk_refusal::LostDiskRefusal),
    /// Disks to be formatted hold something.
    #[error("{0}")]
    UsedDisks(UsedDisks),
    /// The disks that are there cannot tell what the volume is.
    #[error("no disk in the volume's directory could be identified: {0}")]
    Unknown(String),
    /// A disk node cannot start.
    #[error("{0}")]
    DiskNode(#[from] blockio::DiskNodeError),
    /// The metadata of a node cannot be read.
    #[error("the metadata of {node}: {error}{}", metadata_advice(error))]
    Metadata {
        /// Which node.
        node: NodeId,
        /// Why.
        error: meta::store::StoreError,
    },
    /// A disk is older than what was durable on it.
    #[error(
        "disk {}: it is an older image of itself, or has lost writes: {what} of {node} are missing \
         that were durable on it; put the newest copy of the disk back",
        path.display()
    )]
    OldDisk {
        /// Which.
        path: PathBuf,
        /// A node that misses something.
        node: NodeId,
        /// What is missing.
        what: &'static str,
    },
    /// Metadata cannot be read, and this disk holds the place where it should be.
    #[error(
        "disk {}: {what} of {node} at block {block} of the volume is damaged, or the disk is an older \
         image of itself; put the newest copy of the disk back, or copy out what can be read \
         (`mdfs serve --degraded`)",
        path.display()
    )]
    DamagedDisk {
        /// The disk.
        path: PathBuf,
        /// Whose metadata.
        node: NodeId,
        /// Which part of it.
        what: &'static str,
        /// The block of the logical disk.
        block: u64,
    },
    /// What a crash has left half done cannot be brought to its end.
    #[error("recovery at {node}: {error}; nothing is lost, open the volume again")]
    Recovery {
        /// Which node.
        node: NodeId,
        /// Why.
        error: meta::protocol::Error,
    },
    /// The cluster has no place for this process, or cannot be asked.
    #[cfg(feature = "cluster")]
    #[error(transparent)]
    Cluster(#[from] crate::cluster::ClusterError),
    /// The threads of the machine cannot run.
    #[error("cannot start the machine: {0}")]
    Machine(#[from] std::io::Error),
    /// A node ended while it was brought up.
    #[error("a node ended while it was brought up: {0}")]
    Node(#[from] Undelivered),
    /// The last data could not be made durable.
    #[error("not everything could be made durable: {0}")]
    Flush(Error),
}

/// What the operator can do about a disk that cannot be opened.
fn open_advice(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::ResourceBusy => {
            "another program has it open, or the host has mounted it: end that use of it first"
        }
        std::io::ErrorKind::PermissionDenied => "run this as a user who may read and write it",
        _ => {
            "put the disk back in its place; or, if it is lost and the volume has two copies of its \
             data (`mdfs format --redundancy 2x`), go on without it (`mdfs disk lost`), else copy \
             out what the others have (`mdfs serve --degraded`)"
        }
    }
}

fn in_words(paths: &[PathBuf]) -> String {
    let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    paths.join(", ")
}

/// What the operator can do about metadata that cannot be read.
fn metadata_advice(error: &meta::store::StoreError) -> &'static str {
    use meta::store::StoreError as E;
    match error {
        E::Damaged { .. } | E::Disk(_) | E::NoRoot => {
            "; `mdfs serve --degraded` lets what can be read be copied out"
        }
        _ => "",
    }
}

/// What the operator can do about a disk that is not what it should be.
fn disk_advice(error: &blockio::DiskError) -> &'static str {
    use blockio::DiskError as E;
    match error {
        E::Unformatted | E::Foreign { .. } | E::WrongPosition { .. } => {
            "put the volume's own disk back in its place"
        }
        E::OtherShape { .. } => "use all disks of the volume, or all of its copy",
        E::NewerRecord { .. } => "use the newest copy of all of the volume",
        E::Truncated { .. } | E::Damaged => {
            "bring the whole disk back, from a copy if need be, or copy out what can be read \
             (`mdfs serve --degraded`)"
        }
        E::FutureVersion { .. } | E::UnknownFeatures { .. } => "nothing on it was changed",
        E::Outdated { .. } => {
            "put the newest copy of the disk back; older copies of all disks need the volume's \
             directory of their time"
        }
        E::Fenced { .. } => "stop this process",
        E::TooSmall { .. } => "use larger disks, or fewer",
        E::Io(_) => {
            "look at the host's log, and check the disk; `mdfs serve --degraded` lets what can be \
             read be copied out"
        }
    }
}
