//! The machine inside one process: actix hosts the nodes, tokio gives timers, sockets and the
//! blocking pool. Actix is named nowhere outside this folder (ADR 2).
//!
//! Many lightweight nodes share one thread, one thread per core: file-system node `i` and disk
//! node `i` live on thread `i mod threads` for good. Nodes of one thread call each other directly;
//! between threads a request goes through the mailbox of the node's actor.

mod alert;
mod disk;
mod net;
mod node;
mod thread;
mod volume_directory;

use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use actix::{Actor as _, Addr, Arbiter, ArbiterHandle, System};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

pub use self::disk::{DISK_ACCESS_VARIABLE, DiskAccess};
pub(crate) use self::net::stream;
use self::node::{Mail, NodeActor};
pub use self::volume_directory::{DirectoryError, VolumeDirectory, new_volume_id};
use crate::buffer::Pool;
use crate::context::Context;
use crate::door::{Door, Entrance, Work};
use crate::ids::{Epoch, NodeId, NodeKind};
use crate::mail::Envelope;
use crate::protocol::{Class, Undelivered};

/// Bulk requests from other threads that wait in one node's mailbox, at most.
const MAILBOX_MAX: usize = 4096;

/// The shape of an embedded machine.
#[derive(Clone, Debug)]
pub struct Config {
    /// Threads that host nodes.
    pub threads: usize,
    /// File-system nodes of the volume.
    pub fs_nodes: u32,
    /// Disk nodes of the volume.
    pub disk_nodes: u32,
    /// The epoch in which the volume was opened.
    pub epoch: Epoch,
    /// Bytes of buffers that may be in use at a time.
    pub pool_bytes: usize,
    /// How the disks are driven.
    pub disk_access: DiskAccess,
}

/// A running machine. Dropping it stops the threads; what the layers hold is lost like in a crash,
/// so settle them first.
#[derive(Debug)]
pub struct Embedded {
    shared: Arc<Shared>,
    /// Ends the system thread.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    applications: AtomicU32,
}

/// What the threads of one machine share.
#[derive(Debug)]
struct Shared {
    config: Config,
    pool: Pool,
    /// The threads.
    arbiters: Vec<ArbiterHandle>,
    /// Of the file-system nodes, then of the disk nodes.
    nodes: OnceLock<Box<[Addr<NodeActor>]>>,
    /// Drives the timers of ordinary threads.
    timers: Handle,
    stopping: AtomicBool,
}

impl Embedded {
    /// Starts the threads and the nodes; these serve nothing yet.
    pub fn start(config: Config) -> io::Result<Self> {
        assert!(config.threads > 0, "a machine has a thread");
        let (started, wait) = mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let threads = config.threads;
        #[allow(clippy::disallowed_methods, reason = "the machine itself makes the threads")]
        let thread = std::thread::Builder::new().name("mdfs-machine".into()).spawn(move || {
            let runner = System::new();
            let arbiters: Vec<Arbiter> = (0..threads).map(|_| Arbiter::new()).collect();
            let handles: Vec<ArbiterHandle> = arbiters.iter().map(Arbiter::handle).collect();
            let timers = runner.block_on(async { Handle::current() });
            // The other side waits for exactly this message.
            let _ = started.send((timers, handles));
            // Whoever is to stop the machine may be gone without a word.
            let _ = runner.block_on(stopped);
            // These first: their tasks must not find the timers gone.
            for arbiter in arbiters {
                arbiter.stop();
                let _ = arbiter.join();
            }
        })?;
        let (timers, arbiters) =
            wait.recv().map_err(|_| io::Error::other("the machine's threads did not start"))?;

        let shared = Arc::new(Shared {
            pool: Pool::new(config.pool_bytes),
            config,
            arbiters,
            nodes: OnceLock::new(),
            timers,
            stopping: AtomicBool::new(false),
        });
        let machine = Self {
            shared,
            stop: Some(stop),
            thread: Some(thread),
            applications: AtomicU32::new(0),
        };
        machine.start_nodes();
        Ok(machine)
    }

    fn start_nodes(&self) {
        for arbiter in &self.shared.arbiters {
            let shared = self.shared.clone();
            arbiter.spawn_fn(move || thread::enter(shared));
        }
        let config = &self.shared.config;
        let fs = (0..config.fs_nodes).map(NodeId::fs);
        let disk = (0..config.disk_nodes).map(NodeId::disk);
        let start = |node: NodeId| {
            let epoch = config.epoch;
            NodeActor::start_in_arbiter(self.arbiter(node), move |context| {
                context.set_mailbox_capacity(MAILBOX_MAX);
                NodeActor::new(thread::add_host(node, epoch))
            })
        };
        let addresses = fs.chain(disk).map(start).collect();
        self.shared.nodes.set(addresses).expect("nodes are started once");
    }

    /// The thread of `node`.
    fn arbiter(&self, node: NodeId) -> &ArbiterHandle {
        let (NodeKind::Fs(index) | NodeKind::Disk(index) | NodeKind::Application(index)) =
            node.kind();
        let arbiters = &self.shared.arbiters;
        &arbiters[index as usize % arbiters.len()]
    }

    /// Runs `work` on the thread of `node`. The future resolves to its result; `Err` if it
    /// panicked or the machine stops.
    pub fn on_node<F: Future<Output: Send> + 'static>(
        &self,
        node: NodeId,
        work: impl FnOnce(Context) -> F + Send + 'static,
    ) -> impl Future<Output = Result<F::Output, Undelivered>> + Send + 'static {
        let (done, result) = oneshot::channel();
        self.arbiter(node).spawn_fn(move || {
            let work = work(thread::context(node));
            thread::spawn(async move {
                // Nobody may wait for the result any more.
                let _ = done.send(work.await);
            });
        });
        result.map(|result| result.map_err(|_| Undelivered::Lost))
    }

    /// A new application node: a place inside the machine for a gateway or the like.
    pub fn application(&self) -> NodeId {
        NodeId::application(self.applications.fetch_add(1, Relaxed))
    }

    /// A new seat for an ordinary thread.
    pub fn door(&self) -> Door {
        Door::new(self.application(), self.shared.clone())
    }

    /// The buffers of the machine.
    pub fn pool(&self) -> &Pool {
        &self.shared.pool
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Relaxed);
        let (left, all_left) = mpsc::channel();
        for arbiter in &self.shared.arbiters {
            let left = left.clone();
            arbiter.spawn_fn(move || {
                thread::leave();
                // Nobody waits if the machine could not start.
                let _ = left.send(());
            });
        }
        drop(left);
        // Ends when each thread has left: a thread that is gone has dropped its sender.
        while all_left.recv().is_ok() {}
        // Its end of the channel says as much.
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the system thread was reported by itself.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn node(&self, node: NodeId) -> Option<&Addr<NodeActor>> {
        let index = match node.kind() {
            NodeKind::Fs(index) if index < self.config.fs_nodes => index,
            NodeKind::Disk(index) if index < self.config.disk_nodes => self.config.fs_nodes + index,
            _ => return None,
        };
        self.nodes.get()?.get(index as usize)
    }
}

impl Entrance for Shared {
    fn send(&self, envelope: Envelope) {
        let Some(address) = self.node(envelope.to) else {
            return envelope.message.refuse(Undelivered::Unreachable);
        };
        match envelope.class {
            // Bounded by the limits of those who send them.
            Class::Control => address.do_send(Mail(envelope)),
            Class::Bulk => match address.try_send(Mail(envelope)) {
                Ok(()) => {}
                Err(actix::dev::SendError::Full(Mail(envelope))) => {
                    envelope.message.refuse(Undelivered::Busy);
                }
                Err(actix::dev::SendError::Closed(Mail(envelope))) => {
                    envelope.message.refuse(Undelivered::Unreachable);
                }
            },
        }
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        sleep_on(&self.timers, duration)
    }

    fn fs_nodes(&self) -> u32 {
        self.config.fs_nodes
    }

    fn epoch(&self) -> Epoch {
        self.config.epoch
    }

    fn run(&self, work: Work) {
        // All threads are alike, and a machine has one.
        self.arbiters[0].spawn_fn(move || thread::spawn(work()));
    }
}

/// A sleep that any executor may wait for; `timers` drives it. It ends early if that ends: a timer
/// itself would panic then.
#[allow(clippy::disallowed_methods, reason = "the machine itself gives the time")]
pub(crate) fn sleep_on(timers: &Handle, duration: Duration) -> BoxFuture<'static, ()> {
    let (ended, wait) = oneshot::channel();
    timers.spawn(async move {
        tokio::time::sleep(duration).await;
        // Nobody may wait any more.
        let _ = ended.send(());
    });
    wait.map(drop).boxed()
}
