//! File I/O: files, directories and the applications interface (thesis section 2.5).
//!
//! # Promise
//!
//! - Requests stand alone: any of them can be asked of its node at any time, and several at once.
//! - A write is seen by every later read; it is durable after the next [`Commit`](protocol::Commit)
//!   of the file that is answered with the same write verifier. Another one says that a node has
//!   restarted and that the write is lost: then the file is as last committed. Without a `Commit`
//!   it is durable about two seconds later.
//! - Names are changed one at a time; a request that says `durable` is durable when answered.
//! - Create, link, remove, rename and the like are done whole or not at all, over any crash, and
//!   no reader sees half of them.
//! - Permissions are POSIX', as the [`model`] spells them out.
//!
//! # Needs
//!
//! Metadata for inodes, names and block maps (`meta`), stripes for content (`blockio::Stripes`: the
//! cache, or block I/O itself).
//!
//! # Features
//!
//! `server` (default): the server and the reference. Without it there are the table of requests
//! with its types, placement, and what clients need.
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `protocol.rs` | the applications interface: every request and reply |
//! | `hash.rs` | which node answers a request |
//! | `client.rs` | how the layer above sends requests, and when it sends them again |
//! | `server/` | the server: a component for each family of requests |
//! | `rules.rs` | who may do what: pure |
//! | `locks.rs` | who may lock which bytes: pure |
//! | `*_types.rs` | records in messages: replies, locks, disks, partitions |
//! | `pieces.rs` | bytes in pieces |
//! | `deposits.rs` | how clients cut large writes |
//! | `regions/` | lists of regions that are described and not listed |
//! | `model/` | the executable reference of the interface |

pub mod client;
#[cfg(feature = "server")]
mod deposits;
pub mod disk_types;
pub mod hash;
pub mod lock_types;
pub mod locks;
#[cfg(feature = "server")]
pub mod model;
pub mod partition_types;
pub mod pieces;
pub mod protocol;
pub mod regions;
pub mod reply_types;
pub mod root_keys;
#[cfg_attr(not(feature = "server"), allow(dead_code, reason = "clients check searches only"))]
mod rules;
#[cfg(feature = "server")]
mod server;

#[cfg(feature = "server")]
pub use deposits::deposit_unit;
pub use meta::erasure;
#[cfg(feature = "server")]
pub use server::{ClientHandover, FileServer, FilesHandover, LostFiles};
