//! Requests between processes over byte streams: the plain path that every host has.
//! Where both processes have libfabric, requests and replies take that way instead (`fabric/`, with the feature
//! of this name); the link stays as the control connection.
//!
//! A frame is a fixed header, a head and a bulk (see [`wire`](crate::wire)), described byte by byte
//! in docs/protocol.md. The server greets first, then both sides send as they like; replies come in
//! any order and name their call.
//!
//! Between processes of a cluster all of it goes over TLS (`tls/`, with the feature `tls`), unless
//! somebody has said that it shall not.

mod client;
#[cfg(feature = "fabric")]
pub mod fabric;
mod fast_path;
mod frame;
mod guard;
mod server;
#[cfg(feature = "tls")]
pub mod tls;

pub use client::connect;
pub(crate) use client::{Watch, dial, talk};
pub(crate) use fast_path::FastPath;
pub use frame::{FRAME_HEADER_SIZE, FRAME_VERSION, Grant, Greeting, Header, Hello, Offer};
pub use guard::{Guard, Refusal, Security};
pub use server::{Me, serve, serve_processes};
