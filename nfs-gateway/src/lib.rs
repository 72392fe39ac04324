//! The NFS gateway: `NFSv3`, `MOUNTv3`, `NFSv4.1` and `NFSv4.2` over TCP, in user space, on one port.
//!
//! # Promise
//!
//! - Each of the 22 procedures of RFC 1813 is answered as the RFC says; lines `//= rfc1813 3.3.7`
//!   name the section that the code below them obeys (`grep -r '//='` is the list).
//! - Of RFC 8881 (version 4.1) all that workstations use: sessions that do each request once, open files,
//!   share modes, locks, leases, reclaim; of RFC 7862 (4.2) the finding and making of holes.
//! - What a stable write, COMMIT, or a change of a directory answered is durable (the latter unless the
//!   export says `sync = false`).
//! - File handles stay valid as long as the file exists, also after a restart.
//! - A request does what the export in its handle allows the peer that sent it, and nothing else; a
//!   handle that no gateway of the volume made is refused.
//! - Any bytes on the wire end in an answer or a closed connection: never in a panic, and never in
//!   memory out of proportion to the bytes that really came (a length is believed only once its
//!   bytes are there). Every queue has a limit; past it the gateway stops reading.
//! - Payloads are not copied: a WRITE hands on slices of the receive buffers, a READ is sent from
//!   the slices that file I/O returned.
//!
//! # Asks below
//!
//! File I/O's applications interface ([`fileio::protocol`]) like any other application (thesis
//! section 2.7), the client's leases for what is open ([`client::leases`]), and byte streams, tasks and timers of its node's [`runtime::Context`].
//!
//! # Rooms
//!
//! | file | holds |
//! | --- | --- |
//! | `config.rs` | identity of the volume, limits |
//! | `exports/` | who may use what; the operators' table |
//! | `server.rs` | accepts streams, counts them, stops |
//! | `connection.rs` | one stream: records in, replies out in any order |
//! | `record.rs` | record marking (RFC 5531 section 11) |
//! | `landing.rs` | the data of a WRITE, received where the cache keeps them |
//! | `spares.rs` | receive buffers that are used again |
//! | `rpc.rs` | the head of a call, the head of a reply (RFC 5531 section 9) |
//! | `xdr.rs` | arguments, each length checked against the bytes that are there |
//! | `dispatch.rs` | which program answers a call |
//! | `mount3.rs` | the MOUNT program (RFC 1813 section 5) |
//! | `nfs3/` | the NFS program (RFC 1813 section 3), one file per procedure or small family |
//! | `v4/` | the NFS program in version 4, one file per family of operations |
//! | `handle.rs` | file handles |
//! | `keys.rs` | the keys under them |
//! | `metrics/` | what is counted, and the lines about slow calls |
//! | `translate.rs` | attributes, errors, times, names: NFS's words and ours |
//! | `signal.rs` | something that happens once |

mod config;
mod connection;
mod dispatch;
mod exports;
mod handle;
mod keys;
mod landing;
mod metrics;
mod mount3;
mod nfs3;
mod record;
mod rpc;
mod server;
mod signal;
mod spares;
mod translate;
mod v4;
mod xdr;

pub use config::{Config, limits};
pub use exports::{Clients, Export, Exports, Network, Settings, SettingsError, Squash};
pub use keys::rotate_keys;
pub use server::{Error, Gateway};
