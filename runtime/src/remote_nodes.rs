//! What the embedded machine needs to know of other processes. The crate `transport` implements
//! both traits.

use std::fmt::Debug;
use std::rc::Rc;
use std::sync::Arc;

use crate::ids::NodeId;
use crate::mail::Envelope;

/// The nodes of other processes, as all threads of this process see them.
pub trait RemoteNodes: Debug + Send + Sync {
    /// The number of the process that hosts `node`, be it this one or another.
    fn process_of(&self, node: NodeId) -> Option<u32>;
    /// Which life of that process it is: a process that comes back is another.
    fn incarnation_of(&self, node: NodeId) -> Option<u64>;
    /// Does another process host `node`?
    fn reaches(&self, node: NodeId) -> bool;
    /// Links for the calling thread. The machine calls this once per thread.
    fn links(self: Arc<Self>) -> Rc<dyn Outbound>;
}

/// The links of one thread to other processes.
pub trait Outbound {
    /// Sends a request to a node of another process, or refuses it. Never blocks.
    fn send(&self, envelope: Envelope);
    /// Follows a change of the node map. Links to processes that are gone are closed, and their
    /// open calls are lost.
    fn update(&self);
}
