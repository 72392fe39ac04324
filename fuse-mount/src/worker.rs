//! Where operations run: a seat is one thread's share of them, as many at once as there are.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use client::leases::Leases;
use futures::StreamExt as _;
use futures::channel::mpsc::{self, UnboundedReceiver, UnboundedSender};
use futures::future::LocalBoxFuture;
use runtime::Spawn;

use crate::known::Known;
use crate::operations::Operations;

/// One operation, to be done at the seat that gets it.
type Task<S> = Box<dyn FnOnce(Rc<Operations<S>>) -> LocalBoxFuture<'static, ()> + Send>;

/// The way to a seat. When it is dropped the seat ends once it has done what it was handed.
pub struct Worker<S> {
    // Bounded by the kernel: each task is a request that a process waits for.
    tasks: UnboundedSender<Task<S>>,
    known: Arc<Known>,
}

/// What a seat has to do.
pub struct Tasks<S> {
    queue: UnboundedReceiver<Task<S>>,
    known: Arc<Known>,
    leases: Arc<Leases>,
}

/// `count` seats of one mount, each with what [`serve`] needs to do its work. `client` marks the calls
/// of the mount, and what is open and locked through it: no two clients of a volume may have the same,
/// so draw it at random.
pub fn workers<S>(count: usize, client: u64) -> Vec<(Worker<S>, Tasks<S>)> {
    let (known, leases) = (Arc::<Known>::default(), Arc::new(Leases::new(client)));
    let worker = |_| {
        let (sender, receiver) = mpsc::unbounded();
        let worker = Worker { tasks: sender, known: known.clone() };
        (worker, Tasks { queue: receiver, known: known.clone(), leases: leases.clone() })
    };
    (0..count).map(worker).collect()
}

/// Does the work of a seat, until the mount has ended. `machine` asks the volume.
pub async fn serve<S: Spawn>(machine: S, tasks: Tasks<S>) {
    let Tasks { queue, known, leases } = tasks;
    let operations = Rc::new(Operations::new(machine, leases, known));
    queue.for_each_concurrent(None, |task| task(operations.clone())).await;
}

impl<S> Worker<S> {
    /// Hands on an operation.
    pub(crate) fn hand_on<F>(&self, work: impl FnOnce(Rc<Operations<S>>) -> F + Send + 'static)
    where
        F: Future<Output = ()> + 'static,
    {
        // A seat that is gone drops the task, and with it the reply, which then says EIO.
        let _ = self.tasks.unbounded_send(Box::new(move |operations| Box::pin(work(operations))));
    }

    /// What all seats of the mount share.
    pub(crate) fn known(&self) -> &Arc<Known> {
        &self.known
    }
}

impl<S> fmt::Debug for Worker<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat").finish_non_exhaustive()
    }
}

impl<S> fmt::Debug for Tasks<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tasks").finish_non_exhaustive()
    }
}
