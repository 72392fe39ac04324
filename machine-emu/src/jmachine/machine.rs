//! The world as a J-Machine: from then on its processors, links and disks take the time of a
//! profile.

use std::rc::Rc;
use std::time::Duration;

use runtime::{NodeId, NodeKind};

use super::emulated::Emulated;
use super::{NodeCoordinates, NodeCosts, PriorityLevel, Profile, Topology, ZeroLoad};
use crate::network::{LinkTiming, NetworkTiming};
use crate::world::World;

/// A machine: its shape, and what it costs.
#[derive(Clone, Debug)]
pub struct JMachine {
    /// What everything costs.
    pub profile: Profile,
    /// Which nodes there are, and where.
    pub topology: Topology,
    /// The node that is the host: it stands behind its interface, beyond the edge. Messages find it
    /// through a mesh only.
    pub host: Option<NodeId>,
}

/// What the parts of one node have worked so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeLoad {
    /// Its processor, for messages that overtake and for the others.
    pub processor: [Duration; 2],
    /// Its bus.
    pub bus: Duration,
    /// The arms and surfaces of its disks.
    pub disks: Vec<Duration>,
}

impl JMachine {
    fn place(&self, node: NodeId) -> NodeCoordinates {
        match node.kind() {
            NodeKind::Fs(index) => self.topology.fs_node(index),
            NodeKind::Disk(index) => self.topology.disk_node(index),
            NodeKind::Application(_) if self.host == Some(node) => self.topology.host(),
            NodeKind::Application(index) => self.topology.application(index),
        }
    }
}

impl World {
    /// From now on the world is this machine with `applications` application nodes: sending,
    /// receiving and each step cost time of a node's processor, on which control overtakes bulk;
    /// messages take the time of the mesh without traffic, unless
    /// [`use_mesh`](crate::NetworkControl::use_mesh) is called afterwards; disks opened from now on
    /// are the disks of the profile, those of one node on one bus. No time is drawn any more.
    ///
    /// Panics if the machine has fewer disk nodes or processors than the world has nodes.
    pub fn emulate(&self, machine: &JMachine, applications: u32) {
        let kernel = &self.core().kernel;
        let shape = kernel.shape;
        let processors = shape.fs_nodes + applications;
        let fits = shape.disk_nodes <= machine.topology.disk_nodes
            && processors <= machine.topology.processors();
        assert!(
            fits,
            "{shape:?} and {applications} applications do not fit on {}",
            machine.topology
        );
        let numbers = machine.profile.numbers();
        let costs = Rc::new(NodeCosts::new(numbers));
        let emulated = Rc::new(Emulated {
            costs: costs.clone(),
            host: machine.host,
            host_costs: Rc::new(NodeCosts::host(numbers)),
            numbers: numbers.clone(),
        });
        *kernel.machine.borrow_mut() = Some(emulated.clone());
        (0..applications).for_each(|index| drop(self.context(NodeId::application(index))));
        let mut nodes = kernel.nodes.borrow_mut();
        for place in 0..nodes.len() {
            let node = nodes.get_mut(place);
            node.cpu.load(emulated.costs_of(node.id));
        }
        let mut network = self.core().network.state.borrow_mut();
        let transit = ZeroLoad::new(&machine.topology, &numbers.network);
        let picoseconds_per_byte = costs.cycles_ns(transit.tail_cycles(1) as f64) * 1000 / 4;
        let latency_ns = costs.cycles_ns(machine.topology.sides.iter().sum::<u32>().into());
        network.timing =
            NetworkTiming { latency_ns, picoseconds_per_byte, jitter_ns: 0, ..network.timing };
        for from in 0..nodes.len() {
            for to in 0..nodes.len() {
                let [start, end] = [from, to].map(|place| machine.place(nodes.get(place).id));
                let latency_ns = costs.cycles_ns(transit.head_cycles(start, end) as f64);
                let timing = LinkTiming { latency_ns, picoseconds_per_byte, tcp: None };
                network.set_link_timing(from, to, timing);
            }
        }
    }

    /// What the parts of `node` have worked since the world is a J-Machine.
    pub fn load(&self, node: NodeId) -> NodeLoad {
        let core = self.core();
        let place = core.place(node);
        let worked = |level| {
            let nodes = core.kernel.nodes.borrow();
            Duration::from_nanos(nodes.get(place).cpu.worked_ns(level))
        };
        let disks = core.disks.table.borrow();
        let bus = disks.bus(place);
        NodeLoad {
            processor: [PriorityLevel::P1, PriorityLevel::P0].map(worked),
            bus: Duration::from_nanos(bus.map_or(0, super::Bus::occupied_ns)),
            disks: bus
                .map_or_else(Vec::new, |bus| bus.moved_ns().map(Duration::from_nanos).collect()),
        }
    }
}
