//! Reading all metadata of nodes, to check it: what each node holds, whether its space is exact,
//! and whether all nodes together make one tree. The same for nodes that run
//! ([`MetaServer::audit`](crate::MetaServer::audit)) and for a volume that is not served
//! ([`read_node`]).

mod files;
mod flaw;
mod node;
mod read;
mod space;
mod volume;
mod wide_stripes;

pub use self::files::{UnreadableFile, UnreadableFiles};
pub use self::flaw::{FLAWS_MAX, Flaw, Flaws};
pub use self::node::NodeAudit;
pub use self::read::{Data, read_node};
pub use self::volume::{PendingWork, Summary};

pub(crate) use self::read::{bad_blocks, count_per_block};
pub(crate) use self::space::{BlockOwner, UsedBlocks, compare};
