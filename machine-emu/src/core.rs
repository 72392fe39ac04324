//! The heart of the world: all state, and the loop. First everything that can run at this instant
//! runs; when nothing can, time advances to the next event. There is no other time.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll};

use futures::FutureExt as _;
use runtime::seed::Rng;
use runtime::{Epoch, NodeId, NodeKind, SharedServers};

use crate::alarm::{Alarm, AlarmState};
use crate::clock::Clock;
use crate::disk::EmulatedDisks;
use crate::events::{Events, WorldEvent};
use crate::jmachine::Emulated;
use crate::link::MeshLink;
use crate::network::EmulatedNetwork;
use crate::node::{NextStep, NodeMachine, Nodes};
use crate::slab::{KeyedSlab, SlabKey};
use crate::stream::Streams;
use crate::tasks::{MAIN, TaskKind, TaskTable};
use crate::trace::{FaultKind, TraceTag, WorldTrace};

/// Steps without any progress of time, at most: more can only be a task that wakes itself for ever.
const STEPS_AT_ONE_INSTANT_MAX: u64 = 2_000_000;

/// Bytes of buffers per node, by default.
const POOL_LIMIT_BYTES: usize = 256 << 20;

/// How many nodes a world has. Application nodes come into being when first asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorldShape {
    /// File-system nodes.
    pub fs_nodes: u32,
    /// Disk nodes.
    pub disk_nodes: u32,
}

/// A generator for one purpose, so that drawing more for one does not change the others.
pub(crate) fn rng_for(seed: u64, purpose: &str, id: u64) -> Rng {
    let mut bytes = purpose.as_bytes().to_vec();
    bytes.extend_from_slice(&seed.to_le_bytes());
    bytes.extend_from_slice(&id.to_le_bytes());
    Rng::new(runtime::hash::xxh3(&bytes))
}

/// All state of a world. Nothing here is borrowed while a task or a destructor runs.
pub(crate) struct Core {
    pub(crate) seed: u64,
    pub(crate) shape: WorldShape,
    pub(crate) now_ns: Cell<u64>,
    pub(crate) epoch: Cell<Epoch>,
    pub(crate) pool_limit_bytes: Cell<usize>,
    /// See [`World::set_processes`](crate::World::set_processes).
    pub(crate) processes: Cell<u32>,
    /// By memory; see [`World::share_memory`](crate::World::share_memory).
    pub(crate) memories: OnceCell<Vec<SharedServers>>,
    pub(crate) rng: RefCell<Rng>,
    pub(crate) events: RefCell<Events>,
    pub(crate) alarms: RefCell<KeyedSlab<AlarmState>>,
    pub(crate) tasks: RefCell<TaskTable>,
    pub(crate) nodes: RefCell<Nodes>,
    pub(crate) network: RefCell<EmulatedNetwork>,
    /// The mesh under the network, if it is one.
    pub(crate) link: RefCell<Option<MeshLink>>,
    pub(crate) disks: RefCell<EmulatedDisks>,
    pub(crate) streams: RefCell<Streams>,
    /// The J-Machine that this world is, if it is one.
    pub(crate) machine: RefCell<Option<Rc<Emulated>>>,
    pub(crate) trace: WorldTrace,
    /// The generation of the future that `World::run` drives, and whether it was woken.
    pub(crate) main: Cell<(u32, bool)>,
    steps_at_this_instant: Cell<u64>,
    woken: RefCell<Vec<SlabKey>>,
}

impl Core {
    pub(crate) fn new(seed: u64, shape: WorldShape) -> Rc<Self> {
        let core = Rc::new(Self {
            seed,
            shape,
            now_ns: Cell::new(0),
            epoch: Cell::new(Epoch(1)),
            pool_limit_bytes: Cell::new(POOL_LIMIT_BYTES),
            processes: Cell::new(0),
            memories: OnceCell::new(),
            rng: RefCell::new(rng_for(seed, "world", 0)),
            events: RefCell::default(),
            alarms: RefCell::default(),
            tasks: RefCell::default(),
            nodes: RefCell::new(Nodes::new(shape)),
            network: RefCell::new(EmulatedNetwork::new(rng_for(seed, "network", 0))),
            link: RefCell::default(),
            disks: RefCell::default(),
            streams: RefCell::new(Streams::new(rng_for(seed, "streams", 0))),
            machine: RefCell::default(),
            trace: WorldTrace::default(),
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

    /// Adds the next node of the world; its place.
    pub(crate) fn add_node(self: &Rc<Self>, id: NodeId) -> u32 {
        let mut nodes = self.nodes.borrow_mut();
        let node = nodes.len();
        let clock = Clock::new(&mut rng_for(self.seed, "clock", u64::from(id.0)));
        nodes.add(NodeMachine::new(self.clone(), id, node, 0), clock);
        if let Some(machine) = &*self.machine.borrow() {
            nodes.get_mut(node).cpu.load(machine.costs_of(id));
        }
        node
    }

    /// Do these two end together? See [`World::set_processes`](crate::World::set_processes).
    pub(crate) fn is_one_process(&self, node: NodeId, other: NodeId) -> bool {
        let process = |node: NodeId| match (node.kind(), self.processes.get()) {
            (_, 0) | (NodeKind::Application(_), _) => None,
            (NodeKind::Fs(index) | NodeKind::Disk(index), processes) => Some(index % processes),
        };
        process(node).is_some() && process(node) == process(other)
    }

    /// The shared servers of the memory of a node, if it shares any.
    pub(crate) fn shared_servers_of(&self, node: NodeId) -> Option<&SharedServers> {
        let (NodeKind::Fs(index) | NodeKind::Disk(index) | NodeKind::Application(index)) =
            node.kind();
        let memories = self.memories.get()?;
        memories.get(index as usize % memories.len())
    }

    pub(crate) fn note(&self, node: u32, what: TraceTag, detail: u64) {
        let now_ns = self.now_ns.get();
        // Two runs of one seed that differ are compared by these lines.
        tracing::trace!(target: "mdfs::world", now_ns, node, ?what, detail);
        self.trace.note(now_ns, node, what, detail);
    }

    pub(crate) fn fault(&self, node: u32, fault: FaultKind) {
        self.note(node, TraceTag::FaultKind, fault as u64);
        self.trace.fault(fault);
    }

    pub(crate) fn push_in(&self, delay_ns: u64, event: WorldEvent) {
        let due_ns = self.now_ns.get().saturating_add(delay_ns);
        self.events.borrow_mut().push(due_ns, event);
    }

    /// An alarm that rings after `delay_ns`, at the next nanosecond at the earliest, so that time
    /// goes on whatever a layer does.
    pub(crate) fn alarm_in(self: &Rc<Self>, delay_ns: u64) -> Alarm {
        let alarm = Alarm::new(self.clone());
        self.push_in(delay_ns.max(1), WorldEvent::Alarm(alarm.key()));
        alarm
    }

    /// An alarm that rings once the node is idle.
    pub(crate) fn idle_alarm(self: &Rc<Self>, node: u32) -> Alarm {
        let alarm = Alarm::new(self.clone());
        let due_ns = self.nodes.borrow_mut().await_idle(node, alarm.key(), self.now_ns.get());
        if let Some(due_ns) = due_ns {
            self.events.borrow_mut().push(due_ns, WorldEvent::Idle(node));
        }
        alarm
    }

    /// A request has come to `node`.
    pub(crate) fn stir(&self, node: u32) {
        if let Some(due_ns) = self.nodes.borrow_mut().stir(node, self.now_ns.get()) {
            self.events.borrow_mut().push(due_ns, WorldEvent::Idle(node));
        }
    }

    /// Runs one step of one task, at this instant. False if nothing can run now.
    pub(crate) fn step(self: &Rc<Self>) -> bool {
        self.queue_woken();
        loop {
            let next = self.nodes.borrow_mut().next(self.now_ns.get());
            match next {
                NextStep::NoneReady => return false,
                NextStep::Busy(node, until_ns) => {
                    self.events.borrow_mut().push(until_ns, WorldEvent::Free(node));
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
        let tasks = self.tasks.borrow();
        tasks.take_woken(&mut woken);
        if woken.is_empty() {
            return;
        }
        let mut nodes = self.nodes.borrow_mut();
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
    fn poll(self: &Rc<Self>, node: u32, task: SlabKey) -> bool {
        let taken = self.tasks.borrow_mut().take(task);
        let Some((mut work, waker)) = taken else { return false };
        self.count_step();
        self.note(node, TraceTag::Step, u64::from(task.index));
        let mut cx = Context::from_waker(&waker);
        let done = match &mut work {
            TaskKind::Plain(future) => future.poll_unpin(&mut cx).is_ready(),
            TaskKind::Answer { handler, caller, call } => match handler.poll_unpin(&mut cx) {
                Poll::Pending => false,
                Poll::Ready(reply) => {
                    self.reply(node, *caller, *call, reply);
                    true
                }
            },
        };
        let over = if done {
            drop((work, waker));
            self.tasks.borrow_mut().finish(task);
            None
        } else {
            self.nodes.borrow_mut().get_mut(node).cpu.suspend(self.now_ns.get());
            self.tasks.borrow_mut().put_back(task, work, waker)
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
            self.seed,
            self.now_ns.get(),
        );
    }

    /// Advances time to the next event and lets it happen. False if there is none until `limit_ns`.
    pub(crate) fn fire(self: &Rc<Self>, limit_ns: u64) -> bool {
        let (time_ns, event) = {
            let mut events = self.events.borrow_mut();
            if events.next_ns().is_none_or(|next_ns| next_ns > limit_ns) {
                return false;
            }
            let Some(next) = events.pop() else { return false };
            next
        };
        if time_ns > self.now_ns.get() {
            self.now_ns.set(time_ns);
            self.steps_at_this_instant.set(0);
        }
        self.trace.event();
        match event {
            WorldEvent::Alarm(key) => self.ring(key),
            WorldEvent::Arrive(key) => self.arrive(key),
            WorldEvent::Enter(key) => self.enter_mesh(key),
            WorldEvent::Mesh => self.advance_mesh(limit_ns),
            WorldEvent::Refuse(call, why) => self.refuse(call, why),
            WorldEvent::Disk(key) => self.finish_disk_operation(key),
            WorldEvent::Bus(node, disk) => self.advance_bus(node, disk),
            WorldEvent::Free(node) => self.nodes.borrow_mut().freed(node),
            WorldEvent::Idle(node) => self.look_idle(node),
        }
        true
    }

    fn ring(&self, alarm: SlabKey) {
        // An alarm without a waiter is no event.
        let Some(waker) = self.alarms.borrow_mut().get_mut(alarm).map(AlarmState::ring) else {
            return;
        };
        self.note(0, TraceTag::Alarm, u64::from(alarm.index));
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn look_idle(&self, node: u32) {
        let found = self.nodes.borrow_mut().idle(node, self.now_ns.get());
        match found {
            Ok(waiting) => {
                self.note(node, TraceTag::Idle, waiting.len() as u64);
                for alarm in waiting {
                    self.ring(alarm);
                }
            }
            Err(Some(due_ns)) => self.events.borrow_mut().push(due_ns, WorldEvent::Idle(node)),
            Err(None) => {}
        }
    }

    /// Frees what refers to itself in circles.
    pub(crate) fn dissolve(&self) {
        let count = self.nodes.borrow().len();
        for node in 0..count {
            self.kill(node);
        }
        self.events.borrow_mut().clear();
        let nodes = self.nodes.borrow_mut().dissolve();
        drop(nodes);
    }
}
