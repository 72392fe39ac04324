//! Links between the processes of a volume, and between its servers and the clients of the same
//! host.
//!
//! A frame is a fixed header, a head and a bulk (see [`wire`](runtime::wire)), described byte by
//! byte in docs/protocol.md. The server greets first, then both sides send as they like; replies
//! come in any order and name their call.
//!
//! Each thread of a process has a link of its own to each other process: a request leaves from the
//! thread that made it, and its reply returns there. Links speak TLS over TCP (`tls/`, feature
//! `tls`) unless the configuration turns it off. Where both processes have libfabric, requests and
//! replies go over that (`fabric/`, feature `fabric`); the TCP link stays as the control
//! connection.
//!
//! | file | holds |
//! | --- | --- |
//! | `routes.rs` | which process hosts which node, in one epoch |
//! | `links.rs` | the links of one thread |
//! | `pending.rs` | connections that have not introduced themselves yet |
//! | `peer_watch.rs` | finding out that another process is dead |
//! | `client.rs`, `server.rs` | the two sides of a connection |
//! | `frame.rs` | the bytes of a frame |
//! | `guard.rs` | who may connect; counts of refused connections |
//! | `identity/` | who a client is: tokens |
//! | `fast_path.rs` | the choice between the connection and libfabric |

mod client;
#[cfg(feature = "fabric")]
pub mod fabric;
mod fast_path;
mod frame;
mod guard;
#[cfg(feature = "tls")]
pub mod identity;
mod ingress;
mod links;
mod peer_watch;
mod pending;
mod remote;
mod replies;
mod routes;
mod server;
mod time_limit;
#[cfg(feature = "tls")]
pub mod tls;

pub use frame::{
    ClientHello, ClientMap, ClientProcess, FRAME_HEADER_SIZE, FRAME_VERSION, FabricAnswer,
    FabricOffer, FrameHeader, PeerHello, ServerHello,
};
pub use guard::{Guard, PeerIdentity, Refusal, Security};
pub use ingress::{
    Authentication, ClientBudget, ClientCount, ClientPort, Subtree, SubtreeRefused, Subtrees, serve,
};
pub use links::Router;
pub use peer_watch::{PeerLoss, WATCH_LINK, watch_peer};
pub use remote::{
    ClientEnvironment, ClientFabric, ClientOptions, ClientSecurity, ClientState, LinkHandle,
    OUTAGE_MIN, Outage, Outages, ServerAddress, TIMEOUT, VolumeLinks, WAITING_MAX, connect,
};
pub use routes::{ProcessAddress, Routes};
pub use server::{LocalProcess, serve_processes};
