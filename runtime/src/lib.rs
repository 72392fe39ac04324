//! Lightweight nodes, messages between them, and the node context, the only interface to the
//! machine.
//!
//! # Two columns
//!
//! | the runtime does | a layer does |
//! | --- | --- |
//! | delivers requests: a call on the same thread, mail otherwise | declares its requests ([`protocol!`]) |
//! | bounds every queue and answers `Busy` past it | answers each request in a [`Server`] |
//! | interleaves handlers, one thread per node | keeps its state in cells, no borrow across an await |
//! | encodes and decodes from the same table row | never sees bytes of messages |
//! | gives time, random numbers, disks, sockets, buffers | takes them from its [`Context`] only |
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `context.rs` | the node context: all that a layer may do |
//! | `protocol.rs` | the table of a layer and what follows from a row |
//! | `wire.rs` | bytes on the wire and on disk |
//! | `host.rs` | one node: its servers and their limits; `deadline.rs` until when it may answer |
//! | `mail.rs` | requests on their way between threads |
//! | `machine.rs` | what a machine is; `disk.rs`, `net.rs`, `buffer/` its parts |
//! | `embedded/` | the machine inside one process, on actix and tokio |
//! | `remote_nodes.rs` | what the machine needs to know of other processes (from `transport`) |
//! | `client_handle.rs` | calls from ordinary threads and from other processes |
//! | `delivery.rs` | bytes that go to a client by another process than the one that answers |
//! | `shared_server.rs` | servers that all threads of a process call without a message |
//! | `wait.rs` | how an ordinary thread waits for its answer |
//! | `sync.rs` | waiting within a node; `seed.rs` random numbers; `hash.rs` frozen functions |

pub mod buffer;
pub mod client_handle;
pub mod context;
mod deadline;
pub mod delivery;
pub mod disk;
pub mod embedded;
pub mod hash;
pub mod host;
pub mod http;
pub mod identity;
pub mod ids;
pub mod machine;
pub mod mail;
pub mod metrics;
pub mod net;
pub mod protocol;
pub mod remote_nodes;
pub mod seal;
pub mod seed;
pub mod shared_server;
pub mod sync;
mod wait;
pub mod wire;

pub use client_handle::ClientHandle;
pub use context::{Context, Pending, Spawn};
pub use deadline::ValidityToken;
pub use host::{Host, Server};
pub use identity::{ClientIdentity, Credentials, Principal};
pub use ids::{Epoch, NodeId, NodeKind, VolumeId};
pub use machine::Machine;
pub use protocol::{
    Call, CallId, Caller, Class, Handler, Protocol, RequestInfo, Retry, Route, Senders, Undelivered,
};
pub use shared_server::{SharedServer, SharedServers};
pub use wait::wait;

/// A table in memory for look-ups only: fast, but its order means nothing, so it must not be
/// iterated where the order could be seen.
#[allow(clippy::disallowed_types, reason = "the fenced alias itself")]
pub type Table<K, V> = std::collections::HashMap<K, V, ahash::RandomState>;
