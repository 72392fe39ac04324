//! The one safe wrapper of the binding: an endpoint for reliable datagrams and remote memory, its
//! addresses, its completions, and the memory they work on.
//!
//! What makes it safe:
//! - Every operation holds its buffers by count until it has completed, or until the endpoint is
//!   closed, whatever becomes of the peer (see `memory`).
//! - Regions hold their memory; they are closed before it can be unmapped.
//! - Objects are closed in the order that libfabric asks for, the endpoint first.
//! - All of it stays on the thread that opened it (`FI_THREAD_DOMAIN`); buffers may travel.

mod endpoint;
mod in_use;
mod memory;
mod objects;
mod operations;
mod options;
mod regions;

pub use endpoint::{Completion, Fabric, OperationKind, PeerAddress};
pub use in_use::FabricUse;
pub use memory::{Arena, FabricBuffer, PAGE};
pub use operations::{BufferSegment, RemoteSegment};
pub use options::{EndpointOptions, Limits, Provider};
pub(crate) use regions::random;
pub use regions::{Exposure, RegionOwner};
