//! The parts of a world, and the loop. First everything that can run at this instant runs; when
//! nothing can, time advances to the next event. There is no other time.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll};

use futures::FutureExt as _;
use runtime::seed::Rng;
use runtime::{Epoch, NodeId, NodeKind, SharedServers};

use crate::clock::Clock;
use crate::disk::EmulatedDisks;
use crate::events::WorldEvent;
use crate::kernel::{Kernel, rng_for};
use crate::link::MeshDriver;
use crate::network::EmulatedNetwork;
use crate::node::{NextStep, NodeInstance, WorldShape};
use crate::slab::SlabKey;
use crate::stream::EmulatedStreams;
use crate::tasks::{MAIN, TaskKind};
use crate::trace::TraceTag;

/// Steps without any progress of time, at most: more can only be a task that wakes itself for ever.
const STEPS_AT_ONE_INSTANT_MAX: u64 = 2_000_000;

/// Bytes of buffers per node, by default.
const POOL_LIMIT_BYTES: usize = 256 << 20;

/// A world: its kernel and what builds on it.
pub(crate) struct Core {
    pub(crate) kernel: Rc<Kernel>,
    pub(crate) network: Rc<EmulatedNetwork>,
    pub(crate) mesh: MeshDriver,
    pub(crate) disks: Rc<EmulatedDisks>,
    pub(crate) streams: Rc<EmulatedStreams>,
    pub(crate) epoch: Cell<Epoch>,
    pub(crate) pool_limit_bytes: Cell<usize>,
    /// See [`World::set_processes`](crate::World::set_processes).
    pub(crate) processes: Cell<u32>,
    /// See [`World::set_hosts`](crate::World::set_hosts).
    pub(crate) hosts: Cell<u32>,
    /// By memory; see [`World::share_memory`](crate::World::share_memory).
    pub(crate) memories: OnceCell<Vec<SharedServers>>,
    rng: RefCell<Rng>,
    /// The generation of the future that `World::run` drives, and whether it was woken.
    pub(crate) main: Cell<(u32, bool)>,
    steps_at_this_instant: Cell<u64>,
    woken: RefCell<Vec<SlabKey>>,
}

impl Core {
    pub(crate) fn new(seed: u64, shape: WorldShape) -> Rc<Self> {
        let kernel = Rc::new(Kernel::new(seed, shape));
        let network = Rc::new(EmulatedNetwork::new(kernel.clone()));
        let core = Rc::new(Self {
            mesh: MeshDriver::new(kernel.clone(), network.clone()),
            network,
            disks: EmulatedDisks::new(kernel.clone()),
            streams: EmulatedStreams::new(kernel.clone()),
            kernel,
            epoch: Cell::new(Epoch(1)),
            pool_limit_bytes: Cell::new(POOL_LIMIT_BYTES),
            processes: Cell::new(0),
            hosts: Cell::new(0),
            memories: OnceCell::new(),
            rng: RefCell::new(rng_for(seed, "world", 0)),
            main: Cell::new((0, false)),
            steps_at_this_instant: Cell::new(0),
            woken: RefCell::default(),
        });
        for index in 0..shape.fs_nodes {
            core.add_node(NodeId::fs(index));
        }
        for index in 0..shape.disk_nodes {
            core.add_node(NodeId::disk(index));
        }
        core
    }

    /// A fresh incarnation of a node.
    fn instance(&self, id: NodeId, node: u32, incarnation: u32) -> Rc<NodeInstance> {
        let boot = u64::from(id.0) << 32 | u64::from(incarnation);
        let rng = rng_for(self.kernel.seed, "node", boot);
        let epoch = self.epoch.get();
        NodeInstance::new(id, (node, incarnation), epoch, self.pool_limit_bytes.get(), rng)
    }

    /// Adds the next node of the world; its place.
    pub(crate) fn add_node(&self, id: NodeId) -> u32 {
        let mut nodes = self.kernel.nodes.borrow_mut();
        let node = nodes.len();
        let clock = Clock::new(&mut rng_for(self.kernel.seed, "clock", u64::from(id.0)));
        nodes.add(self.instance(id, node, 0), clock);
        if let Some(machine) = &*self.kernel.machine.borrow() {
            nodes.get_mut(node).cpu.load(machine.costs_of(id));
        }
        node
    }

    /// The place of a node in the tables; an application node is created on first use.
    pub(crate) fn place(&self, node: NodeId) -> u32 {
        let place = self.kernel.nodes.borrow().index(node);
        match (place, node.kind()) {
            (Some(place), _) => place,
            (None, NodeKind::Application(_)) => self.add_node(node),
            (None, _) => panic!("this world has no {node}: {:?}", self.kernel.shape),
        }
    }

    /// Whether these two end together. See [`World::set_processes`](crate::World::set_processes).
    pub(crate) fn is_one_process(&self, node: NodeId, other: NodeId) -> bool {
        let process = |node: NodeId| match (node.kind(), self.processes.get()) {
            (_, 0) | (NodeKind::Application(_), _) => None,
            (NodeKind::Fs(index) | NodeKind::Disk(index), processes) => Some(index % processes),
        };
        process(node).is_some() && process(node) == process(other)
    }

    /// The number of the process that hosts a node, if that is set.
    pub(crate) fn process_of(&self, node: NodeId) -> Option<u32> {
        match (node.kind(), self.hosts.get()) {
            (_, 0) | (NodeKind::Application(_), _) => None,
            (NodeKind::Fs(index) | NodeKind::Disk(index), hosts) => Some(index % hosts + 1),
        }
    }

    /// The shared servers of the memory of a node, if it shares any.
    pub(crate) fn shared_servers_of(&self, node: NodeId) -> Option<&SharedServers> {
        let (NodeKind::Fs(index) | NodeKind::Disk(index) | NodeKind::Application(index)) =
            node.kind();
        let memories = self.memories.get()?;
        memories.get(index as usize % memories.len())
    }

    /// Runs one step of one task, at this instant. False if nothing can run now.
    pub(crate) fn step(&self) -> bool {
        self.queue_woken();
        loop {
            let next = self.kernel.nodes.borrow_mut().next(self.kernel.now_ns());
            match next {
                NextStep::NoneReady => return false,
                NextStep::Busy(node, until_ns) => {
                    self.kernel.events.borrow_mut().push(until_ns, WorldEvent::Free(node));
                }
                NextStep::Run(node, task) => {
                    if self.poll(node, task) {
                        return true;
                    }
                }
            }
        }
    }

    fn queue_woken(&self) {
        let mut woken = self.woken.borrow_mut();
        let tasks = self.kernel.tasks.borrow();
        tasks.take_woken(&mut woken);
        if woken.is_empty() {
            return;
        }
        let mut nodes = self.kernel.nodes.borrow_mut();
        for key in woken.drain(..) {
            if key.index == MAIN {
                if key.generation == self.main.get().0 {
                    self.main.set((key.generation, true));
                }
            } else if let Some((node, class)) = tasks.place(key) {
                nodes.enqueue(node, class, key);
            }
        }
    }

    /// Polls a task; false if it no longer exists.
    fn poll(&self, node: u32, task: SlabKey) -> bool {
        let taken = self.kernel.tasks.borrow_mut().take(task);
        let Some((mut work, waker)) = taken else { return false };
        self.count_step();
        self.kernel.note(node, TraceTag::Step, u64::from(task.index));
        let mut cx = Context::from_waker(&waker);
        let done = match &mut work {
            TaskKind::Plain(future) => future.poll_unpin(&mut cx).is_ready(),
            TaskKind::Answer { handler, caller, call } => match handler.poll_unpin(&mut cx) {
                Poll::Pending => false,
                Poll::Ready(reply) => {
                    self.network.reply(node, *caller, *call, reply);
                    true
                }
            },
        };
        let over = if done {
            drop((work, waker));
            self.kernel.tasks.borrow_mut().finish(task);
            None
        } else {
            self.kernel.nodes.borrow_mut().get_mut(node).cpu.suspend(self.kernel.now_ns());
            self.kernel.tasks.borrow_mut().put_back(task, work, waker)
        };
        // Runs destructors: nothing may be borrowed here.
        drop(over);
        true
    }

    fn count_step(&self) {
        let steps = self.steps_at_this_instant.get() + 1;
        self.steps_at_this_instant.set(steps);
        assert!(
            steps < STEPS_AT_ONE_INSTANT_MAX,
            "the world of seed {} stands still at {} ns of virtual time: after {steps} steps tasks \
             still wake each other, so some task polls instead of waiting",
            self.kernel.seed,
            self.kernel.now_ns(),
        );
    }

    /// Advances time to the next event and lets it happen. False if there is none until `limit_ns`.
    pub(crate) fn fire(&self, limit_ns: u64) -> bool {
        let (time_ns, event) = {
            let mut events = self.kernel.events.borrow_mut();
            if events.next_ns().is_none_or(|next_ns| next_ns > limit_ns) {
                return false;
            }
            let Some(next) = events.pop() else { return false };
            next
        };
        if time_ns > self.kernel.now_ns() {
            self.kernel.now_ns.set(time_ns);
            self.steps_at_this_instant.set(0);
        }
        self.kernel.trace.event();
        match event {
            WorldEvent::Alarm(key) => self.kernel.ring(key),
            WorldEvent::Arrive(key) => self.network.arrive(key),
            WorldEvent::Enter(key) => self.mesh.enter(key),
            WorldEvent::Mesh => self.mesh.advance(limit_ns),
            WorldEvent::Refuse(call, why) => self.network.refuse(call, why),
            WorldEvent::Disk(key) => self.disks.finish(key),
            WorldEvent::Bus(node, disk) => self.disks.advance_bus(node, disk),
            WorldEvent::Free(node) => self.kernel.nodes.borrow_mut().freed(node),
            WorldEvent::Idle(node) => self.kernel.check_idle(node),
        }
        true
    }

    /// Ends the present incarnation of a node: its tasks, servers, calls and streams. Nothing of it
    /// can act on another node any more. False if it was dead already.
    pub(crate) fn kill(&self, node: u32) -> bool {
        let Some(instance) = self.kernel.living(node) else { return false };
        // First of all: what follows runs destructors, and a dead node sends nothing.
        let host = instance.die();
        self.kernel.note(node, TraceTag::Crash, u64::from(instance.incarnation));
        self.kernel.nodes.borrow_mut().clear(node);
        let tasks = self.kernel.tasks.borrow_mut().evict(node);
        let calls = self.network.abandon_calls(node);
        self.streams.reset(node);
        drop((tasks, calls, host));
        true
    }

    /// Starts a fresh incarnation of a node, ending the present one if it lives.
    pub(crate) fn restart(&self, node: u32) {
        self.kill(node);
        let mut nodes = self.kernel.nodes.borrow_mut();
        let state = nodes.get_mut(node);
        state.clock.restart(&mut self.rng.borrow_mut());
        state.cpu.thaw();
        let incarnation = state.instance.incarnation + 1;
        state.instance = self.instance(state.id, node, incarnation);
        self.kernel.note(node, TraceTag::Restart, u64::from(incarnation));
        nodes.freed(node);
    }

    /// Frees what refers to itself in circles.
    pub(crate) fn dissolve(&self) {
        let count = self.kernel.nodes.borrow().len();
        for node in 0..count {
            self.kill(node);
        }
        self.kernel.events.borrow_mut().clear();
        let nodes = self.kernel.nodes.borrow_mut().dissolve();
        drop(nodes);
    }
}
