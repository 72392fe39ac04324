//! The distributed stripe cache: stripes in the memory of all file-system nodes (thesis section
//! 2.4).
//!
//! # Promise
//!
//! - It looks like block I/O: [`CacheClient`] is a [`Stripes`](blockio::Stripes), so a volume also
//!   runs without it.
//! - A byte reads back as last written through the cache; a byte that was forgotten is undefined.
//! - A write never reads the disk; rewriting a line any number of times costs one write below.
//! - What was written before a `sync` is durable when the sync succeeds. Bytes whose write-back
//!   failed stay dirty, and the sync fails. If bytes were lost because a cache or a disk node has
//!   restarted it returns [`Error::LostWrites`](protocol::Error::LostWrites).
//! - Bytes from a disk are compared with the checksum that the reader expects, once; damage that
//!   does not heal at a second read is [`Error::Corrupt`](protocol::Error::Corrupt), never data.
//! - Memory is bounded by a budget per node. Once half of it is dirty, writes of further lines are
//!   throttled gradually, at three quarters to the rate of the disks. Beyond the budget a request
//!   waits for half a second and is then answered `Busy`.
//!
//! # Uses
//!
//! A [`Stripes`](blockio::Stripes), usually block I/O's client. Writes there never overlap in place
//! and time: a stripe has at most one write-back under way. A read may overlap one, but what it
//! brings for bytes that are here already is ignored.
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `protocol.rs` | every request and reply: the contract with the layers above |
//! | `hash.rs` | which node caches a stripe |
//! | `client.rs` | the client of the caches |
//! | `server.rs` | the cache of one node: one `match`, the work in `server/` |
//! | `server/lines.rs` | the node's lines: look-up, order of use, victims |
//! | `server/boot_ids.rs` | detection of lost writes |
//! | `server/hand_over.rs` | moving to another process without a loss |
//! | `server/room.rs` | eviction, pins of lines in use |
//! | `server/flusher.rs` | write-back in the background |
//! | `server/pace.rs` | the write throttle |
//! | `line.rs` | one stripe: bytes, and which are valid, dirty, unchecked |
//! | `server/list.rs` | several parts of a stripe in one request |
//! | `sieve.rs` | data sieving: which parts of a stripe are read together; pure |
//! | `replacement.rs` | the replacement policy |
//! | `extents.rs`, `pauses.rs` | byte sets; bounded retries |

pub mod client;
mod extents;
pub mod hash;
mod line;
mod pauses;
pub mod protocol;
pub mod replacement;
mod server;
mod sieve;

pub use client::CacheClient;
pub use server::{Config, HandedBootId, Server, WRITE_BACK_AGE, WRITE_BACK_INTERVAL};
