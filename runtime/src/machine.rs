//! The only interface to the outside. Two machines implement it: the embedded one (`embedded`),
//! alone or as a process of a cluster, and the emulated J-Machine (`machine-emu`), which is also
//! the simulator.
//!
//! Layers never see this trait; they see the [`Context`](crate::Context) of their node.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, LocalBoxFuture};

use crate::buffer::Pool;
use crate::client_handle::CallNumbers;
use crate::delivery::Transfers;
use crate::disk::Disk;
use crate::host::Host;
use crate::ids::{Epoch, NodeId};
use crate::mail::Envelope;
use crate::net::{Address, Listener};
use crate::shared_server::SharedServers;

/// What a machine gives to the nodes that it hosts. One instance serves one thread.
pub trait Machine: 'static {
    /// File-system nodes of the volume.
    fn fs_nodes(&self) -> u32;
    /// Disk nodes of the volume.
    fn disk_nodes(&self) -> u32;
    /// The epoch of the node map by which this machine lives.
    fn epoch(&self) -> Epoch;
    /// The node, if it lives on this thread and may be called directly.
    fn host(&self, node: NodeId) -> Option<Rc<Host>>;
    /// Brings a request to a node that is not on this thread. Never blocks; a full queue refuses
    /// the envelope with `Busy`.
    fn send(&self, envelope: Envelope);
    /// Time since an arbitrary start, on the clock of `node`; never goes back.
    fn now(&self, node: NodeId) -> Duration;
    /// Time since 1970 on the clock of `node`; may jump.
    fn unix_time(&self, node: NodeId) -> Duration;
    /// Resolves after `duration`.
    fn sleep(&self, node: NodeId, duration: Duration) -> LocalBoxFuture<'static, ()>;
    /// 64 random bits.
    fn random(&self, node: NodeId) -> u64;
    /// Runs `task` on the thread of `node`, beside everything else.
    fn task(&self, node: NodeId, task: LocalBoxFuture<'static, ()>);
    /// Resolves once `node` has nothing else to do (the MDP's background context).
    fn idle(&self, node: NodeId) -> LocalBoxFuture<'static, ()>;
    /// The buffers of this machine.
    fn pool(&self) -> &Pool;
    /// Is the node in this process?
    fn is_here(&self, _node: NodeId) -> bool {
        true
    }
    /// The number of the process that hosts a node, by the node map; `None` if none does, or if
    /// this machine is all in one process.
    fn process_of(&self, _node: NodeId) -> Option<u32> {
        None
    }
    /// Which life of that process it is: a process that comes back is another.
    fn incarnation_of(&self, _node: NodeId) -> Option<u64> {
        None
    }
    /// Do these two nodes end together, whatever ends them? Machines that do not know say no.
    fn shares_failure_domain(&self, _node: NodeId, _other: NodeId) -> bool {
        false
    }
    /// The shared servers of this process, if its nodes share memory.
    fn shared_servers(&self) -> Option<&SharedServers> {
        None
    }
    /// From now on the nodes of this process answer until then, on the clock of `node`, and not
    /// later. Machines without take-over ignore it.
    fn answer_until(&self, _node: NodeId, _until: Duration) {}
    /// How threads outside of this machine send requests to it, if they can.
    fn ingress(&self) -> Option<Arc<dyn Ingress>> {
        None
    }
    /// Makes an application node of this thread one that can be sent requests from within the
    /// process. None if it cannot.
    fn open_port(&self, _node: NodeId) -> Option<Rc<Host>> {
        None
    }
    /// Opens a disk of `node` by its path (a file or a block device), exclusively.
    fn open_disk(
        &self,
        node: NodeId,
        path: &str,
    ) -> LocalBoxFuture<'static, io::Result<Rc<dyn Disk>>>;
    /// Accepts byte streams at `address`.
    fn listen(
        &self,
        node: NodeId,
        address: &Address,
    ) -> LocalBoxFuture<'static, io::Result<Box<dyn Listener>>>;
}

/// How a machine lets ordinary threads in.
pub trait Ingress: Send + Sync {
    /// Brings a request to a node; a full queue refuses it with `Busy`.
    fn send(&self, envelope: Envelope);
    /// Resolves after `duration`.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
    /// File-system nodes of the volume.
    fn fs_nodes(&self) -> u32;
    /// The epoch of the node map.
    fn epoch(&self) -> Epoch;
    /// Is the node in this process?
    fn is_here(&self, _node: NodeId) -> bool {
        false
    }
    /// The shared servers of this process, if the machine is in it.
    fn shared_servers(&self) -> Option<&SharedServers> {
        None
    }
    /// The number of the client and of its calls, if all who use this are one client of a server.
    fn call_numbers(&self) -> Option<Arc<CallNumbers>> {
        None
    }
    /// Do requests wait for servers that are away without a limit?
    fn waits_for_ever(&self) -> bool {
        false
    }
    /// How many times a server has come back that knows nothing of this client any more; `None` if
    /// that is not noticed here.
    fn restarts(&self) -> Option<u64> {
        None
    }
    /// The transfers of the client, if processes can deliver bytes to it that do not answer it.
    fn transfers(&self) -> Option<Arc<Transfers>> {
        None
    }
    /// The directory at which this client begins, if it is limited to a subtree: the inode number
    /// and the generation by which it may name it.
    fn root(&self) -> Option<(u64, u64)> {
        None
    }
    /// The time since an arbitrary start, if it is known here; never goes back.
    fn now(&self) -> Option<Duration> {
        None
    }
    /// Runs `work` on a thread of the machine, beside everything else, until the machine stops.
    fn run(&self, work: LocalTask);
}

/// What a thread of the machine shall run.
pub type LocalTask = Box<dyn FnOnce() -> LocalBoxFuture<'static, ()> + Send>;
