//! What the threads of a machine share.

use std::cell::OnceCell;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use actix::ArbiterHandle;
use tokio::runtime::Handle;

use super::disk::DiskAccess;
use super::inbox::Inbox;
use crate::Table;
use crate::buffer::Pool;
use crate::deadline::Deadline;
use crate::ids::{Epoch, NodeId};
use crate::remote_nodes::RemoteNodes;
use crate::shared_server::SharedServers;

thread_local! {
    static SHARED: OnceCell<Arc<MachineShared>> = const { OnceCell::new() };
}

/// The shape of an embedded machine.
#[derive(Clone, Debug)]
pub struct Config {
    /// Threads that host nodes.
    pub threads: usize,
    /// File-system nodes of the volume.
    pub fs_nodes: u32,
    /// Disk nodes of the volume, at first.
    pub disk_nodes: u32,
    /// The epoch in which the volume was opened.
    pub epoch: Epoch,
    /// Bytes of buffers that may be in use at a time.
    pub pool_bytes: usize,
    /// How the disks are driven.
    pub disk_access: DiskAccess,
}

/// What the threads of one machine share.
#[derive(Debug)]
pub(super) struct MachineShared {
    pub(super) config: Config,
    pub(super) pool: Pool,
    /// The threads.
    pub(super) arbiters: Vec<ArbiterHandle>,
    /// What waits for each of them.
    pub(super) inboxes: Vec<Inbox>,
    /// The nodes of this process, and the thread of each.
    pub(super) nodes: RwLock<Table<NodeId, usize>>,
    /// Application nodes of this process that serve something, and the thread of each.
    pub(super) ports: RwLock<Table<NodeId, usize>>,
    /// Only grows.
    pub(super) epoch: AtomicU64,
    /// Disk nodes of the volume. Only grows.
    pub(super) disk_nodes: AtomicU32,
    /// The nodes of other processes; `None` if there are no others.
    pub(super) remote: Option<Arc<dyn RemoteNodes>>,
    /// Drives the timers of ordinary threads.
    pub(super) timers: Handle,
    pub(super) stopping: AtomicBool,
    /// Until when its nodes may answer.
    pub(super) deadline: Mutex<Arc<Deadline>>,
    pub(super) shared_servers: SharedServers,
}

impl MachineShared {
    /// The thread of a node of this process.
    pub(super) fn place(&self, node: NodeId) -> Option<usize> {
        self.nodes.read().unwrap_or_else(PoisonError::into_inner).get(&node).copied()
    }

    /// The thread of an application node that serves something.
    pub(super) fn port(&self, node: NodeId) -> Option<usize> {
        self.ports.read().unwrap_or_else(PoisonError::into_inner).get(&node).copied()
    }
}

/// Makes the current thread one of the machine.
pub(super) fn bind(shared: Arc<MachineShared>) {
    SHARED.with(|own| drop(own.set(shared)));
}

/// Runs `task` on the current thread. Dropped unfinished when the machine stops.
#[allow(clippy::disallowed_methods, reason = "the machine itself runs the tasks")]
pub(super) fn spawn(task: impl Future<Output = ()> + 'static) {
    // A task that is being dropped with its thread may try to start another.
    let stopping = SHARED
        .try_with(|shared| shared.get().is_none_or(|shared| shared.stopping.load(Relaxed)))
        .unwrap_or(true);
    if !stopping {
        actix::spawn(task);
    }
}
