//! The kernel of the simulation: virtual time and its events, the nodes and their tasks, the trace.
//! The network, the disks and the streams of a world build on it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use runtime::seed::Rng;

use crate::alarm::{Alarm, AlarmState, AlarmTable};
use crate::events::{Events, WorldEvent};
use crate::jmachine::Emulated;
use crate::node::{EmulatedNode, NodeInstance, Nodes, WorldShape};
use crate::slab::SlabKey;
use crate::tasks::TaskTable;
use crate::trace::{FaultKind, TraceTag, WorldTrace};

/// A generator for one purpose, so that drawing more for one does not change the others.
pub(crate) fn rng_for(seed: u64, purpose: &str, id: u64) -> Rng {
    let mut bytes = purpose.as_bytes().to_vec();
    bytes.extend_from_slice(&seed.to_le_bytes());
    bytes.extend_from_slice(&id.to_le_bytes());
    Rng::new(runtime::hash::xxh3(&bytes))
}

/// Nothing here is borrowed while a task or a destructor runs.
pub(crate) struct Kernel {
    pub(crate) seed: u64,
    pub(crate) shape: WorldShape,
    pub(crate) now_ns: Cell<u64>,
    pub(crate) events: RefCell<Events>,
    alarms: Rc<AlarmTable>,
    pub(crate) tasks: RefCell<TaskTable>,
    pub(crate) nodes: RefCell<Nodes>,
    /// The J-Machine that the world emulates, if any.
    pub(crate) machine: RefCell<Option<Rc<Emulated>>>,
    pub(crate) trace: WorldTrace,
}

impl Kernel {
    pub(crate) fn new(seed: u64, shape: WorldShape) -> Self {
        Self {
            seed,
            shape,
            now_ns: Cell::new(0),
            events: RefCell::default(),
            alarms: Rc::default(),
            tasks: RefCell::default(),
            nodes: RefCell::new(Nodes::new(shape)),
            machine: RefCell::default(),
            trace: WorldTrace::default(),
        }
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }

    pub(crate) fn note(&self, node: u32, what: TraceTag, detail: u64) {
        let now_ns = self.now_ns();
        // Two runs of one seed that differ are compared by these lines.
        tracing::trace!(target: "mdfs::world", now_ns, node, ?what, detail);
        self.trace.note(now_ns, node, what, detail);
    }

    pub(crate) fn fault(&self, node: u32, fault: FaultKind) {
        self.note(node, TraceTag::FaultKind, fault as u64);
        self.trace.fault(fault);
    }

    pub(crate) fn push(&self, due_ns: u64, event: WorldEvent) {
        self.events.borrow_mut().push(due_ns, event);
    }

    pub(crate) fn push_in(&self, delay_ns: u64, event: WorldEvent) {
        self.push(self.now_ns().saturating_add(delay_ns), event);
    }

    /// An alarm that rings after `delay_ns`, at the next nanosecond at the earliest, so that time
    /// goes on whatever a layer does.
    pub(crate) fn alarm_in(&self, delay_ns: u64) -> Alarm {
        let alarm = Alarm::new(self.alarms.clone());
        self.push_in(delay_ns.max(1), WorldEvent::Alarm(alarm.key()));
        alarm
    }

    /// An alarm that rings once the node is idle.
    pub(crate) fn idle_alarm(&self, node: u32) -> Alarm {
        let alarm = Alarm::new(self.alarms.clone());
        let due_ns = self.nodes.borrow_mut().await_idle(node, alarm.key(), self.now_ns());
        if let Some(due_ns) = due_ns {
            self.push(due_ns, WorldEvent::Idle(node));
        }
        alarm
    }

    pub(crate) fn request_arrived(&self, node: u32) {
        let due_ns = self.nodes.borrow_mut().request_arrived(node, self.now_ns());
        if let Some(due_ns) = due_ns {
            self.push(due_ns, WorldEvent::Idle(node));
        }
    }

    pub(crate) fn ring(&self, alarm: SlabKey) {
        // An alarm without a waiter is no event.
        let Some(waker) = self.alarms.borrow_mut().get_mut(alarm).map(AlarmState::ring) else {
            return;
        };
        self.note(0, TraceTag::Alarm, u64::from(alarm.index));
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Rings the alarms that wait for `node` to be idle, if it is.
    pub(crate) fn check_idle(&self, node: u32) {
        let found = self.nodes.borrow_mut().idle(node, self.now_ns());
        match found {
            Ok(waiting) => {
                self.note(node, TraceTag::Idle, waiting.len() as u64);
                for alarm in waiting {
                    self.ring(alarm);
                }
            }
            Err(Some(due_ns)) => self.push(due_ns, WorldEvent::Idle(node)),
            Err(None) => {}
        }
    }

    /// What `read` returns for a node; `None` once the world is dropped.
    pub(crate) fn with_node<T>(
        &self,
        node: u32,
        read: impl FnOnce(&EmulatedNode) -> T,
    ) -> Option<T> {
        let nodes = self.nodes.borrow();
        (node < nodes.len()).then(|| read(nodes.get(node)))
    }

    /// The present incarnation of a node, if it is alive.
    pub(crate) fn living(&self, node: u32) -> Option<Rc<NodeInstance>> {
        let instance = self.with_node(node, |node| node.instance.clone())?;
        instance.alive().then_some(instance)
    }
}
