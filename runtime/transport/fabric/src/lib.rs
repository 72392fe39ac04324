//! Messages and bulk data between processes over libfabric: RDMA where there is some, shared memory
//! and TCP where not.
//!
//! | module | holds |
//! | --- | --- |
//! | `sys` | the binding, made once from the headers; the library is loaded at run time |
//! | [`link`] | the one safe wrapper: endpoint, addresses, completions, memory |
//! | [`transport`] | connections, frames, and the mechanisms that move messages |
//! | [`policy`] | which mechanism moves a message, from measured costs |
//!
//! Nothing needs libfabric to build or to start: without it, opening a [`link::Fabric`] is an
//! error.

mod error;
pub mod link;
pub mod policy;
mod shared_names;
mod sys;
pub mod transport;

pub use error::FabricError;
pub use sys::exit::ExitGate;

/// Unguessable bytes.
pub fn random_bytes<const N: usize>() -> Result<[u8; N], FabricError> {
    let mut bytes = [0; N];
    for part in bytes.chunks_mut(size_of::<u64>()) {
        part.copy_from_slice(&link::random()?.to_ne_bytes()[..part.len()]);
    }
    Ok(bytes)
}
