//! Workers: each runs the operations of one thread concurrently.

use std::fmt;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use client::leases::Leases;
use client::unsynced::{RETAINED_BYTES_MAX, UnsyncedWrites};
use futures::StreamExt as _;
use futures::channel::mpsc::{self, UnboundedReceiver, UnboundedSender};
use futures::future::{LocalBoxFuture, select};
use runtime::Spawn;
use runtime::client_handle::CallNumbers;

use crate::inode_table::InodeTable;
use crate::operations::MountOperations;

/// One operation, to be run by a worker.
type WorkerTask<S> = Box<dyn FnOnce(Rc<MountOperations<S>>) -> LocalBoxFuture<'static, ()> + Send>;

/// The sending side of a worker. After it is dropped the worker ends with its last task.
pub struct Worker<S> {
    // Bounded by the kernel: each task is a request that a process waits for, or has to do with one
    // of the open files with collected writes, which have a limit.
    tasks: UnboundedSender<WorkerTask<S>>,
    inodes: Arc<InodeTable>,
}

/// The tasks of a worker.
pub struct WorkerTasks<S> {
    queue: UnboundedReceiver<WorkerTask<S>>,
    inodes: Arc<InodeTable>,
    unsynced: Arc<UnsyncedWrites>,
}

/// Creates `count` workers of one mount, each with its tasks for [`serve`]. `calls` numbers the
/// calls, open files and locks of the mount: no other client of the volume may have its number.
pub fn workers<S>(count: usize, calls: Arc<CallNumbers>) -> Vec<(Worker<S>, WorkerTasks<S>)> {
    let (inodes, leases) = (Arc::<InodeTable>::default(), Arc::new(Leases::new(calls)));
    let unsynced = Arc::new(UnsyncedWrites::new(RETAINED_BYTES_MAX, leases));
    let worker = |_| {
        let (sender, receiver) = mpsc::unbounded();
        let worker = Worker { tasks: sender, inodes: inodes.clone() };
        (
            worker,
            WorkerTasks { queue: receiver, inodes: inodes.clone(), unsynced: unsynced.clone() },
        )
    };
    (0..count).map(worker).collect()
}

/// Runs a worker until the mount has ended. `machine` sends requests to the volume.
pub async fn serve<S: Spawn>(machine: S, tasks: WorkerTasks<S>) {
    let WorkerTasks { queue, inodes, unsynced } = tasks;
    let operations = Rc::new(MountOperations::new(machine, unsynced, inodes));
    let tasks = queue.for_each_concurrent(None, |task| task(operations.clone()));
    let callers = operations.callers.look(&operations.volume.machine);
    select(pin!(tasks), pin!(callers)).await;
}

impl<S> Clone for Worker<S> {
    fn clone(&self) -> Self {
        Self { tasks: self.tasks.clone(), inodes: self.inodes.clone() }
    }
}

impl<S> Worker<S> {
    pub(crate) fn submit<F>(&self, work: impl FnOnce(Rc<MountOperations<S>>) -> F + Send + 'static)
    where
        F: Future<Output = ()> + 'static,
    {
        // If the worker has ended the task is dropped with its reply, which then sends EIO.
        let _ = self.tasks.unbounded_send(Box::new(move |operations| Box::pin(work(operations))));
    }

    /// The inode table that all workers of the mount share.
    pub(crate) fn inodes(&self) -> &Arc<InodeTable> {
        &self.inodes
    }
}

impl<S> fmt::Debug for Worker<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").finish_non_exhaustive()
    }
}

impl<S> fmt::Debug for WorkerTasks<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerTasks").finish_non_exhaustive()
    }
}
