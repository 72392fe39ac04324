//! Reading all metadata of nodes, to check it: what each node holds, whether its space is exact,
//! and whether all nodes together make one tree. The same for nodes that run
//! ([`MetaServer::audit`](crate::MetaServer::audit)) and for a volume that is not served
//! ([`read_node`]).
//!
//! | file | holds |
//! | --- | --- |
//! | `flaw.rs` | what is wrong, in words |
//! | `node.rs` | what one node holds, by its keys |
//! | `space.rs` | blocks against the space map |
//! | `volume.rs` | names against inodes, over all nodes; what is still to be done |
//! | `read.rs` | reading a node that is not served; data against its checksums |

mod flaw;
mod node;
mod read;
mod space;
mod volume;

pub use self::flaw::{FLAWS_MAX, Flaw, Flaws};
pub use self::node::NodeAudit;
pub use self::read::{Data, read_node};
pub use self::volume::{PendingWork, Summary};

pub(crate) use self::space::{BlockOwner, UsedBlocks, compare};
