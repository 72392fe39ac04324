//! Metadata: inodes, names, block maps, space and log of each node (thesis sections 2.5.1, 2.5.2).
//!
//! # Guarantees
//!
//! - One request is one record: it is done whole or not at all, also after a crash.
//! - What was answered to a request that says `durable`, or to a [`Commit`](protocol::Commit),
//!   survives; anything else follows within about two seconds.
//! - A block that a record names is never rewritten; the record holds its checksum.
//! - What touches names and inodes of several nodes is decided by one record of one node, and done
//!   at all of them, once each ([`Execute`](protocol::Execute), ADR 7). The volume may be shown to
//!   clients when all nodes have answered [`FinishIntents`](protocol::FinishIntents). A node that
//!   restarts while others stay up learns what it lost before it answers (ADR 13).
//! - What a process keeps in memory of its nodes is bounded by one budget ([`memory`], ADR 41).
//! - Nodes do not wait for one another, except for that, and for space when one has run dry.
//!
//! # Depends on
//!
//! [`blockio::Stripes`]: the cache, or block I/O itself.
//!
//! # Features
//!
//! `server` (default): the server and its store. Without it there are the table of requests with
//! its types, placement, and the shared attribute cache.
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `protocol.rs` | every request and reply; `chunk_types.rs`: records of blocks |
//! | `attributes.rs` | types for files that all layers above share |
//! | `effect.rs` | sets of effects |
//! | `operations.rs` | intents of operations, stored replies to calls, what a scrub finds |
//! | `audit/` | reading all metadata, of nodes that run or of a volume at rest, to check it |
//! | `marks.rs` | which changes of a file are there, over losses |
//! | `hash.rs` | which node owns an inode, a name; `partition.rs`: its partition |
//! | `client.rs` | calls from the layer above |
//! | `server.rs`, `server/` | the server: components, one file for each family of requests |
//! | `active.rs` | inodes in use, with what of them is not in the store yet |
//! | `information.rs` | what the file layer of the same node may look at without a message |
//! | `shared_attrs.rs` | what all threads of the process may look at without a message |
//! | `memory.rs` | the memory that the nodes of a process share |
//! | `chunks.rs` | arithmetic on the blocks of a chunk |
//! | `wide_stripe.rs` | chunks that are covered by parity, and how one is made of the others |
//! | `erasure.rs` | the code of the parity |
//! | `keys.rs` | keys of the store |
//! | `store/` | one node's store: redo log, copy-on-write tree, space, roots |

#[cfg(feature = "server")]
mod active;
pub mod attributes;
#[cfg(feature = "server")]
pub mod audit;
mod chunk_types;
#[cfg(feature = "server")]
pub mod chunks;
#[cfg(feature = "server")]
pub mod client;
pub mod disk_types;
#[cfg(feature = "server")]
mod effect;
pub mod erasure;
pub mod hash;
#[cfg(feature = "server")]
mod information;
#[cfg(feature = "server")]
mod keys;
mod marks;
#[cfg(feature = "server")]
pub mod memory;
#[cfg(feature = "server")]
mod move_pace;
pub mod operations;
pub mod partition;
pub mod protocol;
#[cfg(feature = "server")]
mod scrub_progress;
#[cfg(feature = "server")]
mod server;
mod shared_attrs;
#[cfg(feature = "server")]
pub mod store;
mod stored_inode;
#[cfg(feature = "server")]
pub mod wide_stripe;

pub use operations::{REPLIES_MAX, REPLY_AGE_MAX};
pub use shared_attrs::SharedAttrCache;
#[cfg(feature = "server")]
pub use {
    audit::NodeAudit,
    information::{FileInformation, InodeView},
    move_pace::{MovePace, OtherWork},
    server::{LostMetadata, MetaHandover, MetaServer, RootOwner, SCRUB_INTERVAL},
};
