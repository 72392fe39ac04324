//! The NFS gateway: `NFSv3`, `MOUNTv3`, `NFSv4.1` and `NFSv4.2` over TCP, in user space, on one
//! port.
//!
//! # Guarantees
//!
//! - Each of the 22 procedures of RFC 1813 behaves as the RFC requires; lines `//= rfc1813 3.3.7`
//!   name the section that the code below them implements (`grep -r '//='` is the list).
//! - Of RFC 8881 (version 4.1) all that workstations use: sessions with exactly-once semantics,
//!   open files, share reservations, byte-range locks, leases, reclaim, read delegations with their
//!   callbacks; of RFC 7862 (4.2) sparse files and copies.
//! - The result of a stable WRITE, a COMMIT, or a change of a directory is durable before the reply
//!   (the last one unless the export has `sync = false`).
//! - File handles are persistent: they stay valid as long as the file exists, also over a restart.
//! - A request has the rights that the export in its handle grants to its peer; a handle that no
//!   gateway of the volume made is refused.
//! - Any bytes on the wire result in a reply or a closed connection: never in a panic, and never in
//!   memory out of proportion to the bytes received. Every queue has a limit, and so have
//!   the bytes of each peer and of all; at the limit the gateway stops reading, and closes
//!   connections that hold up others.
//! - Payloads are not copied: a WRITE passes on slices of the receive buffers, a READ is sent from
//!   the slices that file I/O returned.
//!
//! # Uses
//!
//! The applications interface of file I/O ([`fileio::protocol`]) like any other application (thesis
//! section 2.7), the leases and delegations of the client library ([`client::leases`],
//! [`client::delegations`]), and the byte streams, tasks and timers of its node's
//! [`runtime::Context`].
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `server.rs` | accepts and counts connections |
//! | `connection.rs` | one connection: records in, replies out in any order |
//! | `callback_link.rs` | calls to a client over its connection |
//! | `dispatch.rs` | dispatches a call to its program |
//! | `mount3.rs` | the MOUNT program (RFC 1813 section 5) |
//! | `nfs3/` | NFS version 3 (RFC 1813 section 3), one file per procedure or small family |
//! | `v4/` | NFS version 4, one file per family of operations |
//! | `call_context.rs` | the context of one call: caller, rights, outcome |
//! | `lookup.rs` | lookups that all programs share |
//! | `exported_volume.rs` | the volume, and calls of unknown outcome |
//! | `handle.rs`, `handle_keys.rs` | file handles, and the keys that authenticate them |
//! | `exports/`, `current_exports.rs` | exports, clients and their rights; the table in force |
//! | `nested_exports.rs` | crossing into an export that lies inside another one |
//! | `groups.rs` | groups of users that the host knows |
//! | `config.rs`, `settings.rs`, `limits.rs` | the configuration, its TOML form, default limits |
//! | `record.rs` | record marking (RFC 5531 section 11) |
//! | `placement.rs`, `write_data.rs` | direct placement of the data of WRITEs |
//! | `recv_buffers.rs` | the pool of receive buffers |
//! | `rpc.rs` | headers of calls and replies (RFC 5531 section 9) |
//! | `xdr.rs` | decoding of arguments, encoding of results |
//! | `peer.rs` | the client at the other end of a connection |
//! | `peer_log.rs` | bounds the log lines about a peer |
//! | `peer_usage.rs`, `byte_quota.rs` | what each peer uses; bounds of bytes |
//! | `metrics/` | metrics of operations, log lines about slow calls |
//! | `translate.rs` | attributes, errors, times and names of NFS |
//! | `signal.rs` | a one-shot event |
//! | `zeros.rs` | holes in data |

mod byte_quota;
mod call_context;
mod callback_link;
mod config;
mod connection;
mod current_exports;
mod dispatch;
mod exported_volume;
mod exports;
mod groups;
mod handle;
mod handle_keys;
pub mod limits;
mod lookup;
mod metrics;
mod mount3;
mod nested_exports;
mod nfs3;
mod peer;
mod peer_log;
mod peer_usage;
mod placement;
mod record;
mod recv_buffers;
mod rpc;
mod server;
mod settings;
mod signal;
mod translate;
mod v4;
mod write_data;
mod xdr;
mod zeros;

pub use config::Config;
pub use exports::{CallerGroups, ClientNetwork, Clients, Export, Exports, Squash};
pub use groups::GroupLookup;
pub use handle_keys::rotate_keys;
pub use server::{Error, Gateway};
pub use settings::{Settings, SettingsError};
