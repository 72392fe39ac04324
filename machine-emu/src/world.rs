//! The world, as a test holds it in its hands.

use std::fmt::Write as _;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use futures::channel::oneshot;
use runtime::net::{Address, ByteStream};
use runtime::{Context, Epoch, NodeId, SharedServers};

use crate::control::{NetworkControl, NodeControl, nanos};
use crate::core::Core;
use crate::disk::{DiskControl, DiskEvent};
use crate::kernel::rng_for;
use crate::machine::NodeMachine;
use crate::mesh::Mesh;
use crate::node::WorldShape;
use crate::stream::StreamFaults;
use crate::trace::{FaultKind, WorldCounters};

/// One [`World::run`] may take so much virtual time; what takes longer is taken for a livelock.
const RUN_TIME_MAX: Duration = Duration::from_hours(1);

/// A machine with virtual time, in one thread, from one seed. Cheap to clone.
///
/// Each node is a process of its own: requests to other nodes go through the network as bytes.
/// Use it from the future given to [`run`](Self::run); a task of a node that keeps a handle keeps
/// the world from being freed.
#[derive(Clone)]
pub struct World {
    owner: Rc<WorldOwner>,
}

/// Frees the world with its last handle.
struct WorldOwner {
    core: Rc<Core>,
}

impl Drop for WorldOwner {
    fn drop(&mut self) {
        // In a panic something is borrowed just now: leave it to the end of the process.
        if !std::thread::panicking() {
            self.core.dissolve();
        }
    }
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World")
            .field("seed", &self.seed())
            .field("now", &self.now())
            .finish_non_exhaustive()
    }
}

impl World {
    /// The world of `seed`: all nodes of `shape` live and serve nothing yet.
    pub fn new(seed: u64, shape: WorldShape) -> Self {
        Self { owner: Rc::new(WorldOwner { core: Core::new(seed, shape) }) }
    }

    pub(crate) fn core(&self) -> &Rc<Core> {
        &self.owner.core
    }

    /// The seed of everything.
    pub fn seed(&self) -> u64 {
        self.core().kernel.seed
    }

    /// Virtual time since the world began.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.core().kernel.now_ns())
    }

    /// A hash of all that has happened: equal for equal seeds and equal programs.
    pub fn trace_hash(&self) -> u64 {
        self.core().kernel.trace.hash()
    }

    /// What has happened, counted.
    pub fn counters(&self) -> WorldCounters {
        self.core().kernel.trace.counters()
    }

    // --- Nodes ---

    /// The context of the present incarnation of `node`.
    pub fn context(&self, node: NodeId) -> Context {
        let place = self.core().place(node);
        let instance = self.core().kernel.nodes.borrow().get(place).instance.clone();
        Context::new(node, NodeMachine::new(self.core().clone(), instance))
    }

    /// Runs `work` as a task of `node`, so that it ends with the node: `None` if the node died
    /// before it was done.
    pub async fn on<F: Future + 'static>(
        &self,
        node: NodeId,
        work: impl FnOnce(Context) -> F,
    ) -> Option<F::Output> {
        let context = self.context(node);
        let (sender, outcome) = oneshot::channel();
        let work = work(context.clone());
        context.task(async move {
            // Waiters may have been cut off.
            let _ = sender.send(work.await);
        });
        outcome.await.ok()
    }

    /// True unless `node` was killed or has crashed.
    pub fn is_alive(&self, node: NodeId) -> bool {
        self.core().kernel.living(self.core().place(node)).is_some()
    }

    /// The process of `node` dies; the power stays on, so its disks keep what they were given.
    pub fn kill(&self, node: NodeId) {
        let place = self.core().place(node);
        if self.core().kill(place) {
            self.core().kernel.fault(place, FaultKind::NodeKilled);
        }
    }

    /// `node` dies, and the power of all disks that it opened goes: of each write that was not
    /// flushed the seed decides whether it survives whole, in part, or not at all.
    pub fn crash(&self, node: NodeId) {
        let place = self.core().place(node);
        if self.core().kill(place) {
            self.core().kernel.fault(place, FaultKind::NodeCrashed);
        }
        self.core().disks.cut_power_of(place);
    }

    /// The power of the whole machine goes: all file-system and disk nodes crash at one instant.
    /// Applications live on, elsewhere.
    pub fn crash_everything(&self) {
        let WorldShape { fs_nodes, disk_nodes } = self.core().kernel.shape;
        let nodes = (0..fs_nodes).map(NodeId::fs).chain((0..disk_nodes).map(NodeId::disk));
        nodes.for_each(|node| self.crash(node));
    }

    /// Starts a fresh incarnation of `node`, with no servers, in the epoch of the world. If it
    /// lives it is killed first.
    pub fn restart(&self, node: NodeId) -> Context {
        let place = self.core().place(node);
        self.core().restart(place);
        self.context(node)
    }

    /// Nodes live in `processes` processes: those of one kind whose indices leave the same
    /// rest end together; the owner of the world ends them. 0 if each ends alone.
    pub fn set_processes(&self, processes: u32) {
        self.core().processes.set(processes);
    }

    /// A node map that says: node `i` of a kind is hosted by process `i % hosts + 1`. What the
    /// processes have in common beside that is not changed.
    pub fn set_hosts(&self, hosts: u32) {
        self.core().hosts.set(hosts);
    }

    /// From now on the nodes, applications too, share memory in groups: node `i` of a kind that of
    /// group `i % memories.len()`, with its shared servers. They do not end together for that.
    pub fn share_memory(&self, memories: Vec<SharedServers>) {
        assert!(self.core().memories.set(memories).is_ok(), "memory is shared once");
    }

    /// The nodes that end with `node`, itself among them.
    pub fn process_of(&self, node: NodeId) -> Vec<NodeId> {
        let core = self.core();
        let WorldShape { fs_nodes, disk_nodes } = core.kernel.shape;
        let nodes = (0..fs_nodes).map(NodeId::fs).chain((0..disk_nodes).map(NodeId::disk));
        nodes.filter(|other| *other == node || core.is_one_process(node, *other)).collect()
    }

    /// The clocks and the processor of `node`; an application node is created on first use.
    pub fn node(&self, node: NodeId) -> NodeControl<'_> {
        NodeControl { core: self.core(), place: self.core().place(node) }
    }

    /// The network between the nodes.
    pub fn network(&self) -> NetworkControl<'_> {
        NetworkControl { core: self.core() }
    }

    /// The epoch in which nodes start from now on; those that live keep theirs.
    pub fn set_epoch(&self, epoch: Epoch) {
        self.core().epoch.set(epoch);
    }

    /// The limit of the buffer pools of nodes that start from now on.
    pub fn set_pool_limit_bytes(&self, limit_bytes: usize) {
        self.core().pool_limit_bytes.set(limit_bytes);
    }

    // --- Disks and streams ---

    /// A new disk of zeros. Any node may open it by its path, one at a time.
    pub fn create_disk(&self, path: &str, length_bytes: u64) {
        self.core().disks.create(path, length_bytes, false);
    }

    /// A disk that was used before: what was never written is noise.
    pub fn create_used_disk(&self, path: &str, length_bytes: u64) {
        self.core().disks.create(path, length_bytes, true);
    }

    /// The disk at `path`, to break it.
    pub fn disk(&self, path: &str) -> DiskControl {
        DiskControl::new(self.core().disks.clone(), path)
    }

    /// The paths of all disks.
    pub fn disks(&self) -> Vec<String> {
        self.core().disks.table.borrow().paths()
    }

    /// From now on all writes and flushes of all disks are recorded, as they were asked for; a
    /// flush that a fault lets the disk ignore has no writes. Of other faults the record does not
    /// tell.
    pub fn record_disks(&self) {
        self.core().disks.table.borrow_mut().start_record();
    }

    /// Events recorded so far.
    pub fn disk_events_count(&self) -> usize {
        self.core().disks.table.borrow().events().len()
    }

    /// All that was recorded.
    pub fn disk_events(&self) -> Vec<DiskEvent> {
        self.core().disks.table.borrow().events().to_vec()
    }

    /// A stream from outside to the listener at `address`.
    pub fn connect(&self, address: &Address) -> io::Result<ByteStream> {
        self.core().streams.connect(address, None)
    }

    /// The same from `peer`, as `10.0.0.1:700`: a client that comes back from where it was.
    pub fn connect_from(&self, peer: &str, address: &Address) -> io::Result<ByteStream> {
        self.core().streams.connect(address, Some(peer))
    }

    /// How often streams suffer from now on.
    pub fn set_stream_faults(&self, faults: StreamFaults) {
        self.core().streams.table.borrow_mut().faults = faults;
    }

    // --- Time ---

    /// From now on the seed decides which ready node runs next, and which of its ready tasks;
    /// otherwise nodes take turns and tasks run in the order in which they were woken.
    pub fn shuffle_steps(&self) {
        self.core().kernel.nodes.borrow_mut().shuffle(rng_for(self.seed(), "steps", 0));
    }

    /// Lets the world run until `future` resolves. Panics if it never can: if nothing is left to
    /// happen, or if it takes more than an hour of virtual time.
    pub fn run<F: Future>(&self, future: F) -> F::Output {
        self.run_within(RUN_TIME_MAX, future).unwrap_or_else(|| panic!("{}", self.describe_stall()))
    }

    /// Lets the world run until `future` resolves; `None` if it does not within `limit`, or if
    /// nothing is left to happen before: for checks that everything ends in bounded time.
    pub fn run_within<F: Future>(&self, limit: Duration, future: F) -> Option<F::Output> {
        let core = self.core();
        let mut future = pin!(future);
        let (key, flag) = core.kernel.tasks.borrow_mut().main_waker();
        let waker = Waker::from(flag.clone());
        let limit_ns = core.kernel.now_ns().saturating_add(nanos(limit));
        let outer = core.main.replace((key.generation, true));
        assert!(outer.0 == 0, "World::run within World::run: await instead");
        loop {
            if core.main.get().1 {
                core.main.set((key.generation, false));
                flag.begin();
                let polled = future.as_mut().poll(&mut TaskContext::from_waker(&waker));
                if let Poll::Ready(output) = polled {
                    core.main.set((0, false));
                    return Some(output);
                }
            }
            if !core.step() && !core.main.get().1 && !core.fire(limit_ns) {
                core.main.set((0, false));
                return None;
            }
        }
    }

    /// Lets `duration` of virtual time pass.
    pub fn advance(&self, duration: Duration) {
        let core = self.core();
        assert!(core.main.get().0 == 0, "World::advance within World::run: sleep instead");
        let end_ns = core.kernel.now_ns() + nanos(duration);
        while core.step() || core.fire(end_ns) {}
        core.kernel.now_ns.set(end_ns);
    }

    /// Lets the world run until nothing is left to happen. Panics if that takes more than an hour
    /// of virtual time, as it does if some task keeps a timer: use [`advance`](Self::advance) then.
    pub fn run_until_idle(&self) {
        let core = self.core();
        assert!(core.main.get().0 == 0, "World::run_until_idle within World::run");
        let limit_ns = core.kernel.now_ns() + nanos(RUN_TIME_MAX);
        while core.step() || core.fire(limit_ns) {}
        let over = core.kernel.events.borrow().next_ns().is_none();
        assert!(over, "{}", self.describe_stall());
    }

    /// Why nothing goes on.
    fn describe_stall(&self) -> String {
        let core = self.core();
        let mut text = match core.kernel.events.borrow().next_ns() {
            None => format!(
                "deadlock in the world of seed {} at {:?}: nothing can run and nothing is to come",
                core.kernel.seed,
                self.now()
            ),
            Some(_) => format!(
                "the world of seed {} is not done after {RUN_TIME_MAX:?} of virtual time",
                core.kernel.seed
            ),
        };
        let nodes = core.kernel.nodes.borrow();
        let tasks = core.kernel.tasks.borrow();
        for place in 0..nodes.len() {
            let node = nodes.get(place);
            let count = tasks.count(place);
            if count > 0 || !node.instance.alive() {
                let dead = if node.instance.alive() { "" } else { " (dead)" };
                let _ = write!(text, "\n  {}{dead}: {count} tasks wait", node.id);
            }
        }
        for (from, to) in core.network.state.borrow().waiting() {
            let (from, to) = (nodes.get(from).id, nodes.get(to).id);
            let _ = write!(text, "\n  {from} waits for the reply of {to}");
        }
        if let Some(deadlock) = self.network().mesh(Mesh::find_deadlock).flatten() {
            let _ = write!(text, "\n  in the mesh: {deadlock}");
        }
        text
    }
}
