//! A volume that several processes serve together (design D1): each hosts the nodes that the node map
//! gives it, and takes over those of a process that dies.
//!
//! | file | holds |
//! | --- | --- |
//! | `found.rs` | a new cluster: the shape of its volume, and the first node map |
//! | `seat.rs` | the keeper of a process and its coordination engine, at a node of their own |
//! | `member.rs` | a process: what it does when the map changes |

mod found;
mod handed;
mod member;
mod seat;

pub use self::found::{ClusterShape, Known, found, status};
pub use self::member::{Ended, Member, MemberOptions};

use runtime::coordination::{CoordinationError, EtcdConfig};
use runtime::membership::CommandError;

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
    /// Nobody has made it.
    #[error(
        "there is no cluster under this prefix of the coordination engine; `mdfs cluster init`"
    )]
    NoCluster,
    /// What the engine holds is not ours, or of another version.
    #[error("the shape of the volume in the coordination engine cannot be read")]
    Unreadable,
}

/// The engine of a cluster.
pub type Engine = EtcdConfig;
