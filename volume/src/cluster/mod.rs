//! A volume that several processes serve together: each hosts the nodes that the node
//! map gives it, and takes over those of a process that dies.
//!
//! | file | holds |
//! | --- | --- |
//! | `bootstrap.rs` | a new cluster: the shape of its volume, and the first node map |
//! | `supervisor.rs` | the keeper of a process and its coordination engine, at their own node |
//! | `decommission.rs` | processes that are taken out for good, and in again |
//! | `member.rs` | a process: what it does when the map changes |

mod bootstrap;
mod decommission;
mod handed;
mod member;
mod supervisor;

pub use self::bootstrap::{ClusterShape, ClusterStatus, bootstrap, status};
pub use self::decommission::{add, remove};
pub use self::member::{ClusterMember, MemberExit, MemberOptions};

use cluster::coordination::{CoordinationError, EtcdConfig};
use cluster::membership::{CommandError, ProcessId};
use runtime::NodeId;

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
    /// What the engine holds is not ours, or of another version.
    #[error("the shape of the volume in the coordination engine cannot be read")]
    Unreadable,
    /// It was taken out of the cluster.
    #[error("{0} was removed; `mdfs cluster add` takes it in again")]
    Removed(ProcessId),
    /// It cannot be removed.
    #[error(
        "{0} has {1}, and its data would be away with it; only processes without disks can be removed"
    )]
    HasDisks(ProcessId, NodeId),
    /// It cannot be removed now.
    #[error("no other process runs that could have the nodes of {0}; start one first")]
    Last(ProcessId),
    /// It takes its time.
    #[error(
        "{0} still has {1} nodes, which go on moving; look at `mdfs cluster status`, and remove it again to wait for them"
    )]
    StillLeaving(ProcessId, usize),
}

/// The engine of a cluster.
pub type Engine = EtcdConfig;
