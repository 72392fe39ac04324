//! The machine inside one process: actix runs the threads, tokio gives timers, sockets and the
//! blocking pool. Actix is named nowhere outside this folder (ADR 2).
//!
//! Many lightweight nodes share one thread, one thread per core; the nodes of each kind are dealt
//! to the threads in turn, and stay there for good. Nodes of one thread call each other directly;
//! between threads a request goes through the `inbox` of the thread (ADR 42).
//!
//! A process of a cluster is such a machine with some of the nodes: [`Embedded::start_part`].
//! Requests to the others leave by the [links](crate::remote_nodes) of the thread on which they
//! were made.

mod disk;
mod inbox;
mod net;
mod open_files;
mod peer;
mod shared;
mod spin;
mod thread;
mod unpredictable;

use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use actix::{Arbiter, ArbiterHandle, System};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

pub use self::disk::{DISK_ACCESS_VARIABLE, DiskAccess};
use self::inbox::Inbox;
pub use self::net::stream;
pub use self::open_files::{connections_within_limit, raise_open_files};
pub use self::shared::Config;
use self::shared::MachineShared;
use crate::buffer::Pool;
use crate::client_handle::ClientHandle;
use crate::context::Context;
use crate::ids::{Epoch, NodeId, NodeKind};
use crate::machine::{Ingress, LocalTask};
use crate::mail::Envelope;
use crate::protocol::{Protocol, Undelivered};
use crate::remote_nodes::RemoteNodes;
use crate::shared_server::{SharedServer, SharedServers};

/// Application nodes of one process, at most: the distance between the first numbers of two
/// processes.
const APPLICATIONS_MAX: u32 = 1 << 16;

/// A running machine. Dropping it stops the threads; what the layers hold is lost like in a crash,
/// so settle them first.
#[derive(Debug)]
pub struct Embedded {
    shared: Arc<MachineShared>,
    /// Ends the system thread.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    applications: AtomicU32,
}

impl Embedded {
    /// Starts the threads and all nodes of the volume; these serve nothing yet.
    pub fn start(config: Config) -> io::Result<Self> {
        let fs = (0..config.fs_nodes).map(NodeId::fs);
        let nodes: Vec<NodeId> = fs.chain((0..config.disk_nodes).map(NodeId::disk)).collect();
        let machine = Self::start_part(config, 0, None)?;
        for node in nodes {
            machine.start_node(node);
        }
        Ok(machine)
    }

    /// Starts the threads of process `number` of a cluster. It hosts no node yet: see
    /// [`start_node`](Self::start_node). The nodes of other processes are those of `remote`.
    pub fn start_part(
        config: Config,
        number: u32,
        remote: Option<Arc<dyn RemoteNodes>>,
    ) -> io::Result<Self> {
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
            // The owner of the machine may be dropped without stopping it.
            let _ = runner.block_on(stopped);
            // These first: their tasks must not find the timers gone.
            for arbiter in arbiters {
                arbiter.stop();
                let _ = arbiter.join();
            }
        })?;
        let (timers, arbiters) =
            wait.recv().map_err(|_| io::Error::other("the machine's threads did not start"))?;

        let shared = Arc::new(MachineShared {
            pool: Pool::new(config.pool_bytes),
            epoch: AtomicU64::new(config.epoch.0),
            disk_nodes: AtomicU32::new(config.disk_nodes),
            config,
            inboxes: arbiters.iter().map(|_| Inbox::default()).collect(),
            arbiters,
            nodes: RwLock::default(),
            ports: RwLock::default(),
            remote,
            timers,
            stopping: AtomicBool::new(false),
            deadline: Mutex::default(),
            shared_servers: SharedServers::default(),
        });
        let machine = Self {
            shared,
            stop: Some(stop),
            thread: Some(thread),
            applications: AtomicU32::new(number.saturating_mul(APPLICATIONS_MAX)),
        };
        for (number, arbiter) in machine.shared.arbiters.iter().enumerate() {
            let shared = machine.shared.clone();
            arbiter.spawn_fn(move || thread::enter(shared, number));
        }
        Ok(machine)
    }

    /// Makes `server` answer requests of `P` on all threads of this process.
    pub fn serve_shared<P: Protocol>(&self, server: Arc<dyn SharedServer<P>>) {
        self.shared.shared_servers.serve(server);
    }

    /// Starts a node in this process; it serves nothing yet.
    pub fn start_node(&self, node: NodeId) {
        let epoch = self.epoch();
        let mut nodes = self.shared.nodes.write().unwrap_or_else(PoisonError::into_inner);
        let is_disk = |node: NodeId| matches!(node.kind(), NodeKind::Disk(_));
        let alike = nodes.keys().filter(|other| is_disk(**other) == is_disk(node)).count();
        let thread = alike % self.shared.arbiters.len();
        nodes.insert(node, thread);
        self.shared.arbiters[thread].spawn_fn(move || thread::add_host(node, epoch));
    }

    /// Ends the life of a node of this process. What it holds is lost like in a crash: let it
    /// settle first.
    pub fn stop_node(&self, node: NodeId) {
        let place = {
            let mut nodes = self.shared.nodes.write().unwrap_or_else(PoisonError::into_inner);
            nodes.remove(&node)
        };
        if let Some(thread) = place {
            self.shared.arbiters[thread].spawn_fn(move || thread::remove_host(node));
        }
    }

    /// The epoch by which this process lives.
    pub fn epoch(&self) -> Epoch {
        Epoch(self.shared.epoch.load(Relaxed))
    }

    /// Moves the nodes of this process to `epoch`, unless they are further, and makes the links
    /// follow the node map. Returns when no node answers requests of earlier epochs any more.
    pub fn begin_epoch(&self, epoch: Epoch) {
        let epoch = Epoch(self.shared.epoch.fetch_max(epoch.0, Relaxed)).max(epoch);
        let (done, all_done) = mpsc::channel::<()>();
        for arbiter in &self.shared.arbiters {
            let done = done.clone();
            arbiter.spawn_fn(move || {
                thread::begin_epoch(epoch);
                drop(done);
            });
        }
        drop(done);
        // Returns when each thread has dropped its sender.
        let _ = all_done.recv();
    }

    /// The volume has this number of disk nodes by now, unless it has more.
    pub fn know_disk_nodes(&self, count: u32) {
        self.shared.disk_nodes.fetch_max(count, Relaxed);
    }

    /// The nodes of this process, in their order.
    pub fn nodes(&self) -> Vec<NodeId> {
        let nodes = self.shared.nodes.read().unwrap_or_else(PoisonError::into_inner);
        let mut nodes: Vec<NodeId> = nodes.keys().copied().collect();
        nodes.sort_unstable();
        nodes
    }

    /// The thread of `node`.
    fn arbiter(&self, node: NodeId) -> &ArbiterHandle {
        let arbiters = &self.shared.arbiters;
        match (self.shared.place(node), node.kind()) {
            (Some(thread), _) => &arbiters[thread],
            (None, NodeKind::Application(index)) => &arbiters[index as usize % arbiters.len()],
            (None, kind) => panic!("{kind:?} is not in this process"),
        }
    }

    /// Runs `work` on the thread of `node`. The future resolves to its result; `Err` if it
    /// panicked, or the node or the machine ends.
    pub fn on_node<F: Future<Output: Send> + 'static>(
        &self,
        node: NodeId,
        work: impl FnOnce(Context) -> F + Send + 'static,
    ) -> impl Future<Output = Result<F::Output, Undelivered>> + Send + 'static {
        let (done, result) = oneshot::channel();
        self.arbiter(node).spawn_fn(move || {
            let context = thread::context(node);
            let work = work(context.clone());
            context.task(async move {
                // The caller may be gone.
                let _ = done.send(work.await);
            });
        });
        result.map(|result| result.map_err(|_| Undelivered::Lost))
    }

    /// A new application node: a place inside the machine for a gateway or the like.
    pub fn application(&self) -> NodeId {
        NodeId::application(self.applications.fetch_add(1, Relaxed))
    }

    /// A new handle for an ordinary thread.
    pub fn client_handle(&self) -> ClientHandle {
        ClientHandle::new(self.application(), self.shared.clone())
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
                // There is no receiver if the machine could not start.
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

impl MachineShared {
    /// Gives the envelope to the node's thread; back if the node is not in this process.
    fn send_here(&self, envelope: Envelope) -> Result<(), Envelope> {
        let to = envelope.to;
        let Some(thread) = self.place(to).or_else(|| self.port(to)) else { return Err(envelope) };
        if self.inboxes[thread].push(envelope) {
            self.arbiters[thread].spawn_fn(thread::note_work);
        }
        Ok(())
    }
}

impl Ingress for MachineShared {
    fn send(&self, envelope: Envelope) {
        let Err(envelope) = self.send_here(envelope) else { return };
        if !self.remote.as_ref().is_some_and(|remote| remote.reaches(envelope.to)) {
            return envelope.message.refuse(Undelivered::Unreachable);
        }
        // Links belong to the threads of the machine, and an ordinary thread has none.
        self.arbiters[0].spawn_fn(move || thread::send_away(envelope));
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        sleep_on(&self.timers, duration)
    }

    fn fs_nodes(&self) -> u32 {
        self.config.fs_nodes
    }

    fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Relaxed))
    }

    fn is_here(&self, node: NodeId) -> bool {
        self.place(node).is_some()
    }

    fn shared_servers(&self) -> Option<&SharedServers> {
        Some(&self.shared_servers)
    }

    fn run(&self, work: LocalTask) {
        // All threads are alike, and a machine has one.
        self.arbiters[0].spawn_fn(move || shared::spawn(work()));
    }
}

/// A sleep that any executor may wait for; `timers` drives it. It ends early if that ends: a timer
/// itself would panic then.
#[allow(clippy::disallowed_methods, reason = "the machine itself gives the time")]
pub fn sleep_on(timers: &Handle, duration: Duration) -> BoxFuture<'static, ()> {
    let (ended, wait) = oneshot::channel();
    timers.spawn(async move {
        tokio::time::sleep(duration).await;
        // The caller may be gone.
        let _ = ended.send(());
    });
    wait.map(drop).boxed()
}
