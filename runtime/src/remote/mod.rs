//! Requests between processes over byte streams: the plain path that every host has.
//! (The RDMA paths of the cluster come with libfabric; the frame is the same.)
//!
//! A frame is a fixed header, a head and a bulk (see [`wire`](crate::wire)), described byte by byte
//! in docs/protocol.md. The server greets first, then both sides send as they like; replies come in
//! any order and name their call.
//!
//! Between processes of a cluster all of it goes over TLS (`tls/`, with the feature `tls`), unless
//! somebody has said that it shall not.

mod client;
mod frame;
mod guard;
mod server;
#[cfg(feature = "tls")]
pub mod tls;

pub use client::connect;
pub(crate) use client::{Watch, dial, talk};
pub use frame::{FRAME_HEADER_SIZE, FRAME_VERSION, Greeting, Header, Hello};
pub use guard::{Guard, Refusal, Security};
pub use server::{Me, serve, serve_processes};
