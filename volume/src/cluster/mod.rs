//! A volume that several processes serve together: each hosts the nodes that the node
//! map gives it, and takes over those of a process that dies.
//!
//! | file | holds |
//! | --- | --- |
//! | `bootstrap.rs` | a new cluster: the shape of its volume, and the first node map |
//! | `supervisor.rs` | the keeper of a process and its coordination engine, at their own node |
//! | `records.rs` | records of the engine that several of these read |
//! | `recover.rs` | a cluster whose etcd was lost, or is an older copy |
//! | `joining.rs` | a process whose disks become part of the volume |
//! | `decommission.rs` | processes that are taken out for good, and in again |
//! | `peers.rs` | watching the other processes |
//! | `member.rs` | a process: what it does when the map changes |
//! | `node_start.rs` | a node that begins at a process, serves, and is handed over |

mod absence;
mod bootstrap;
mod decommission;
mod handed;
mod joining;
mod member;
mod node_start;
mod peers;
mod records;
mod recover;
mod supervisor;

pub use self::bootstrap::{ClusterShape, ClusterStatus, bootstrap, status};
pub use self::decommission::{add, disks_in_use, remove};
pub use self::joining::MemberDisks;
pub use self::member::{ClusterMember, MemberOptions};
pub use self::recover::{RecoveredCluster, formatted_disk, recover};

use blockio::superblock::UnknownMap;
use cluster::coordination::{CoordinationError, EtcdConfig};
use cluster::membership::{CommandError, ProcessId};
use std::path::PathBuf;

use runtime::VolumeId;

/// The key of the shape of the volume.
const VOLUME_KEY: &str = "volume";

/// A cluster could not be made, or asked.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The coordination engine failed.
    #[error(transparent)]
    Engine(#[from] CoordinationError),
    /// The node map does not allow it.
    #[error(transparent)]
    Map(#[from] CommandError),
    /// There is a cluster at this place already.
    #[error(
        "there is a cluster under this prefix of the coordination engine; choose another prefix"
    )]
    Exists,
    /// There is none.
    #[error(
        "there is no cluster under this prefix of the coordination engine; `mdfs cluster init`"
    )]
    NoCluster,
    /// There is none, and there are disks of one.
    #[error(
        "etcd holds no cluster under this prefix, and disk {disk} holds volume {1}: if etcd was lost, \
         stop all processes and rebuild it with `mdfs cluster recover`",
        disk = .0.display()
    )]
    Lost(PathBuf, VolumeId),
    /// Nothing to rebuild it from.
    #[error(
        "no directory of the machine file that is on this host has a formatted disk; run it on a \
         host with disks"
    )]
    NoDisks,
    /// The disks do not tell what it is.
    #[error(
        "what the volume is cannot be found out from the disks seen so far: {0}; give this command \
         on the hosts of the other processes, too: what it has seen here is kept in etcd"
    )]
    Disks(UnknownMap),
    /// The disks know more than the record.
    #[error(
        "disk {disk} knows a later record of the volume than etcd, which is an older copy: stop all \
         processes, and `mdfs cluster recover`",
        disk = .0.display()
    )]
    OldRecord(PathBuf),
    /// The machine file was changed.
    #[error(
        "the machine file names {given} disks of {process}, which has {needed}; disks are added by \
         `mdfs disk add` once it has made those it was given"
    )]
    DiskCount {
        /// Whose.
        process: ProcessId,
        /// Paths in the machine file.
        given: usize,
        /// Disks by the record of the volume.
        needed: usize,
    },
    /// Its disks cannot be part of the volume.
    #[error("the disks of {0} are not added to the volume: {1}")]
    NotJoined(ProcessId, fileio::protocol::Error),
    /// Disks of two volumes.
    #[error("disk {disk} holds volume {1}, other disks another one; put the right one back", disk = .0.display())]
    OtherVolume(PathBuf, VolumeId),
    /// A disk is with the wrong process.
    #[error(
        "disk {disk} is of disk node {2}, which the machine file does not give to {1}; write \
         `disk-node = {2}` there, or use the file by which the cluster was made",
        disk = .0.display()
    )]
    OtherProcess(PathBuf, ProcessId, u32),
    /// The machine file is of another cluster.
    #[error(
        "the disks are of a volume of {0} file-system nodes, which the machine file is not of; use \
         the machine file by which the cluster was made"
    )]
    OtherShape(u32),
    /// The machine file lacks a process.
    #[error(
        "disk node {0} has disks in use, and the machine file gives it to no process; write \
         `disk-node = {0}` for the one that has them"
    )]
    NoProcess(u32),
    /// A process runs.
    #[error("{0} runs; stop all processes first, or wait until its lease is over")]
    Runs(ProcessId),
    /// The prefix is that of another volume.
    #[error("etcd holds volume {0} under this prefix, the disks volume {1}; use another prefix")]
    Shadowed(VolumeId, VolumeId),
    /// What the engine holds is not ours, or of another version.
    #[error("the shape of the volume in the coordination engine cannot be read")]
    Unreadable,
    /// It was taken out of the cluster.
    #[error("{0} was removed; `mdfs cluster add` takes it in again")]
    Removed(ProcessId),
    /// It cannot be removed.
    #[error("{0} has disks in use ({1}): drain and retire them first")]
    HasDisks(ProcessId, String),
    /// It cannot be removed now.
    #[error("no other process runs that could have the nodes of {0}; start one first")]
    Last(ProcessId),
    /// It takes its time.
    #[error(
        "{0} still has {1} nodes, which go on moving; look at `mdfs cluster status`, and remove it again to wait for them"
    )]
    StillLeaving(ProcessId, usize),
}

pub use cluster::membership::LEASE;

/// The engine of a cluster.
pub type Engine = EtcdConfig;
