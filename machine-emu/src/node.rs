//! The nodes: their processors, clocks and run queues, and their incarnations.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::rc::Rc;

use bytes::Bytes;
use runtime::buffer::Pool;
use runtime::seed::Rng;
use runtime::{Class, Epoch, Host, NodeId, NodeKind};

use crate::clock::Clock;
use crate::cpu::Cpu;
use crate::slab::SlabKey;

/// How many nodes a world has. Application nodes are created on first use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorldShape {
    /// File-system nodes.
    pub fs_nodes: u32,
    /// Disk nodes.
    pub disk_nodes: u32,
}

/// A node counts as idle once no request runs or waits there and it has run nothing for this time.
const IDLE_AFTER_NS: u64 = 20_000;
/// A node whose requests wait for something is looked at again after this.
const IDLE_RETRY_NS: u64 = 500_000;
/// While nothing is asked of an idle node its background work runs ever less often, down to once
/// in this time; so a loop over `idle` costs the simulation next to nothing.
const IDLE_PAUSE_MAX_NS: u64 = 10_000_000;

/// What a node knows about being idle.
#[derive(Debug)]
struct Idle {
    waiting: Vec<SlabKey>,
    pause_ns: u64,
    /// When to look next. An event for another time is out of date.
    due_ns: Option<u64>,
}

/// One node, alive or dead.
pub(crate) struct EmulatedNode {
    pub(crate) id: NodeId,
    /// The present incarnation, or the last one.
    pub(crate) instance: Rc<NodeInstance>,
    pub(crate) cpu: Cpu,
    pub(crate) clock: Clock,
    /// Factor by which messages from and to this node are slower.
    pub(crate) slowness: u64,
    /// Tasks to run, by class: control first.
    ready: [VecDeque<SlabKey>; 2],
    /// In the list of ready nodes, or waiting for its processor.
    listed: bool,
    /// Waiting for its processor.
    parked: bool,
    last_step_ns: u64,
    idle: Idle,
}

/// What to do next among the ready nodes.
pub(crate) enum NextStep {
    /// Poll this task of this node.
    Run(u32, SlabKey),
    /// This node's processor is busy until then.
    Busy(u32, u64),
    NoneReady,
}

/// All nodes of a world.
pub(crate) struct Nodes {
    shape: WorldShape,
    all: Vec<EmulatedNode>,
    applications: BTreeMap<u32, u32>,
    ready: VecDeque<u32>,
    /// Chooses among what is ready, if the order shall be any.
    shuffle: Option<Rng>,
}

impl Nodes {
    pub(crate) fn new(shape: WorldShape) -> Self {
        Self {
            shape,
            all: Vec::new(),
            applications: BTreeMap::new(),
            ready: VecDeque::new(),
            shuffle: None,
        }
    }

    /// The place of a node in the tables of the world, if the node exists.
    pub(crate) fn index(&self, node: NodeId) -> Option<u32> {
        let WorldShape { fs_nodes, disk_nodes } = self.shape;
        match node.kind() {
            NodeKind::Fs(index) => (index < fs_nodes).then_some(index),
            NodeKind::Disk(index) => (index < disk_nodes).then_some(fs_nodes + index),
            NodeKind::Application(index) => self.applications.get(&index).copied(),
        }
    }

    /// Adds the next node. File-system nodes come first, then disk nodes, then applications.
    pub(crate) fn add(&mut self, instance: Rc<NodeInstance>, clock: Clock) {
        let id = instance.id;
        if let NodeKind::Application(application) = id.kind() {
            self.applications.insert(application, self.all.len() as u32);
        }
        self.all.push(EmulatedNode {
            id,
            instance,
            cpu: Cpu::default(),
            clock,
            slowness: 1,
            ready: Default::default(),
            listed: false,
            parked: false,
            last_step_ns: 0,
            idle: Idle { waiting: Vec::new(), pause_ns: IDLE_AFTER_NS, due_ns: None },
        });
    }

    /// From now on the order of what is ready at one instant is any.
    pub(crate) fn shuffle(&mut self, rng: Rng) {
        self.shuffle = Some(rng);
    }

    pub(crate) fn len(&self) -> u32 {
        self.all.len() as u32
    }

    pub(crate) fn get(&self, node: u32) -> &EmulatedNode {
        &self.all[node as usize]
    }

    pub(crate) fn get_mut(&mut self, node: u32) -> &mut EmulatedNode {
        &mut self.all[node as usize]
    }

    /// Puts a woken task into the run queue of its node.
    pub(crate) fn enqueue(&mut self, node: u32, class: Class, task: SlabKey) {
        let state = &mut self.all[node as usize];
        let queue = match class {
            Class::Control => &mut state.ready[0],
            Class::Bulk => &mut state.ready[1],
        };
        queue.push_back(task);
        let overtakes = class == Class::Control && state.parked && state.cpu.has_levels();
        if overtakes {
            state.parked = false;
        }
        if !state.listed || overtakes {
            state.listed = true;
            self.ready.push_back(node);
        }
    }

    /// The next task to run: nodes take turns, a step each.
    pub(crate) fn next(&mut self, now_ns: u64) -> NextStep {
        while let Some(node) = pick(&mut self.ready, &mut self.shuffle) {
            let state = &mut self.all[node as usize];
            let class = if state.ready[0].is_empty() { Class::Bulk } else { Class::Control };
            if let Some(until_ns) = state.cpu.busy_until_ns(now_ns, class) {
                state.parked = true;
                return NextStep::Busy(node, until_ns);
            }
            let [control, bulk] = &mut state.ready;
            let first = if control.is_empty() { &mut *bulk } else { &mut *control };
            let task = pick(first, &mut self.shuffle);
            state.listed = !(control.is_empty() && bulk.is_empty());
            if state.listed {
                self.ready.push_back(node);
            }
            if let Some(task) = task {
                state.cpu.begin_step(now_ns, class);
                state.last_step_ns = now_ns;
                return NextStep::Run(node, task);
            }
        }
        NextStep::NoneReady
    }

    /// The processor of a node that was [`NextStep::Busy`] may be free.
    pub(crate) fn freed(&mut self, node: u32) {
        if std::mem::take(&mut self.all[node as usize].parked) {
            self.ready.push_back(node);
        }
    }

    /// Wakes `waiter` when `node` is idle. Returns when to look, if that is not planned yet.
    pub(crate) fn await_idle(&mut self, node: u32, waiter: SlabKey, now_ns: u64) -> Option<u64> {
        let idle = &mut self.all[node as usize].idle;
        idle.waiting.push(waiter);
        if idle.due_ns.is_some() {
            return None;
        }
        idle.due_ns = Some(now_ns + idle.pause_ns);
        idle.due_ns
    }

    /// A request has arrived at `node`: background work has a reason to look soon.
    pub(crate) fn request_arrived(&mut self, node: u32, now_ns: u64) -> Option<u64> {
        let idle = &mut self.all[node as usize].idle;
        idle.pause_ns = IDLE_AFTER_NS;
        let due_ns = now_ns + IDLE_AFTER_NS;
        if idle.due_ns.is_none_or(|planned_ns| planned_ns <= due_ns) {
            return None;
        }
        idle.due_ns = Some(due_ns);
        idle.due_ns
    }

    /// The waiters to wake because `node` is idle, or when to look again.
    pub(crate) fn idle(&mut self, node: u32, now_ns: u64) -> Result<Vec<SlabKey>, Option<u64>> {
        let state = &mut self.all[node as usize];
        if state.idle.due_ns != Some(now_ns) {
            return Err(None);
        }
        let quiet_ns = state.last_step_ns + IDLE_AFTER_NS;
        let requests = state.instance.living_host().map_or(0, |host| host.running());
        if requests > 0 || state.listed {
            state.idle.due_ns = Some(now_ns + IDLE_RETRY_NS);
            return Err(state.idle.due_ns);
        }
        if quiet_ns > now_ns {
            state.idle.due_ns = Some(quiet_ns);
            return Err(state.idle.due_ns);
        }
        state.idle.due_ns = None;
        state.idle.pause_ns = (2 * state.idle.pause_ns).min(IDLE_PAUSE_MAX_NS);
        Ok(std::mem::take(&mut state.idle.waiting))
    }

    /// Forgets what a dead node was about to do.
    pub(crate) fn clear(&mut self, node: u32) {
        let state = &mut self.all[node as usize];
        state.ready = Default::default();
        state.idle.waiting.clear();
    }

    /// Breaks the circles of references between the world and its nodes.
    pub(crate) fn dissolve(&mut self) -> Vec<EmulatedNode> {
        self.applications.clear();
        self.ready.clear();
        std::mem::take(&mut self.all)
    }
}

/// The next of a queue, or any of it.
fn pick<T>(queue: &mut VecDeque<T>, shuffle: &mut Option<Rng>) -> Option<T> {
    if let Some(rng) = shuffle
        && queue.len() > 1
    {
        queue.swap(0, rng.index(queue.len()));
    }
    queue.pop_front()
}

/// Payloads from this size on come in buffers of the receiving node.
const OWN_BUFFER_MIN: usize = 4096;

/// One incarnation of a node: what is lost when the node dies.
pub(crate) struct NodeInstance {
    pub(crate) id: NodeId,
    pub(crate) node: u32,
    pub(crate) incarnation: u32,
    pub(crate) epoch: Cell<Epoch>,
    pub(crate) rng: RefCell<Rng>,
    pub(crate) pool: Pool,
    /// Absent once this incarnation is dead.
    host: RefCell<Option<Rc<Host>>>,
}

impl NodeInstance {
    pub(crate) fn new(
        id: NodeId,
        (node, incarnation): (u32, u32),
        epoch: Epoch,
        pool_limit_bytes: usize,
        rng: Rng,
    ) -> Rc<Self> {
        Rc::new(Self {
            id,
            node,
            incarnation,
            epoch: Cell::new(epoch),
            rng: RefCell::new(rng),
            pool: Pool::new(pool_limit_bytes),
            host: RefCell::new(Some(Host::new(id, epoch))),
        })
    }

    pub(crate) fn alive(&self) -> bool {
        self.host.borrow().is_some()
    }

    /// The payload of a message, in a buffer of this node if it is large and there is space: a
    /// receiver of all of it may keep the buffer.
    pub(crate) fn take_in(&self, bulk: Bytes) -> Bytes {
        let spare = (bulk.len() >= OWN_BUFFER_MIN).then(|| self.pool.take_spare(bulk.len()));
        let Some(mut buffer) = spare.flatten() else { return bulk };
        buffer.copy_from_slice(&bulk);
        buffer.lend()
    }

    /// The servers of a node that lives.
    pub(crate) fn living_host(&self) -> Option<Rc<Host>> {
        self.host.borrow().clone()
    }

    /// Ends this incarnation; to be dropped by the caller, once nothing is borrowed.
    pub(crate) fn die(&self) -> Option<Rc<Host>> {
        let host = self.host.borrow_mut().take()?;
        host.invalidate_published();
        Some(host)
    }

    pub(crate) fn set_epoch(&self, epoch: Epoch) {
        self.epoch.set(epoch);
        if let Some(host) = self.living_host() {
            host.set_epoch(epoch);
        }
    }
}

/// The error that a crashed node gets from the machine.
pub(crate) fn dead() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "this incarnation of the node has crashed")
}
