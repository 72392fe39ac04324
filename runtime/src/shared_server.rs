//! Servers that all threads of a process may call without a message (ADR 59).

use std::any::Any;
use std::sync::{Arc, OnceLock};

use crate::protocol::{PROTOCOLS, Protocol};

/// Answers requests of `P` from memory that the nodes of a process publish to all its threads.
pub trait SharedServer<P: Protocol>: Send + Sync + 'static {
    /// The reply that the node of the request would give now; `None` if a message must be sent.
    fn try_now(&self, request: &P::Request) -> Option<P::Reply>;
}

/// The shared servers of a process, at most one for each protocol.
#[derive(Default)]
pub struct SharedServers([OnceLock<Box<dyn Any + Send + Sync>>; PROTOCOLS]);

impl std::fmt::Debug for SharedServers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedServers").finish_non_exhaustive()
    }
}

impl SharedServers {
    /// Makes `server` answer requests of `P` from now on. The first server stays if there is one.
    pub fn serve<P: Protocol>(&self, server: Arc<dyn SharedServer<P>>) {
        self.0[usize::from(P::ID)].get_or_init(|| Box::new(server));
    }

    /// The reply of the shared server of `P`, if there is one and it can answer.
    pub fn try_now<P: Protocol>(&self, request: &P::Request) -> Option<P::Reply> {
        let server = self.0[usize::from(P::ID)].get()?;
        server.downcast_ref::<Arc<dyn SharedServer<P>>>()?.try_now(request)
    }
}
