//! The mesh of a machine: its nodes and links from the topology, its times from the profile.

use super::{JMachine, Number};
use crate::link::{LinkError, MeshSetup};
use crate::mesh::{Coordinates, ForwardPolicy, MeshGeometry, MeshTiming};

impl MeshSetup {
    /// The mesh of `machine`, with the numbers of its profile. In a world that
    /// [is](crate::World::emulate) the machine each message enters the mesh when the sender's
    /// processor has fed it, and its room in the queue is free once the receiver's processor has
    /// taken it out.
    pub fn machine(machine: &JMachine, policy: ForwardPolicy) -> Result<Self, LinkError> {
        let JMachine { profile, topology, host } = machine;
        let numbers = profile.numbers();
        let network = &numbers.network;
        let usual = MeshTiming::default();
        let whole = |name: &'static str, number: &Number, least: f64, most: f64| {
            let value = number.value.round();
            if (least..=most).contains(&value) {
                Ok(value as u64)
            } else {
                Err(LinkError::Number { name, value: number.value.to_string(), least, most })
            }
        };
        let hop_cycles = whole("network.hop", &network.hop, 1.0, 7.0)?;
        let inside = hop_cycles + u64::from(usual.header_flits);
        let ends = whole("network.ends", &network.ends, inside as f64, 1e6)?;
        whole("network.word", &network.word, 2.0, 2.0)?;
        let queue_words = whole("node.queue", &numbers.node.queue, 4.0, 1e6)? as u32;
        let block_words = whole("node.piece", &numbers.node.piece, 1.0, 1000.0)? as u32;
        let timing = MeshTiming {
            hop_cycles,
            interface_cycles: ends - inside,
            queue_words: Some(queue_words),
            forward_cycles: whole("network.forward", &network.forward, 0.0, 1e6)?,
            cycle_ns: (1000.0 / numbers.node.clock.value).round().max(1.0) as u64,
            ..usual
        };
        let boards: Vec<u8> = topology.boards.iter().map(|&board| board as u8).collect();
        let size = topology.sides.map(|side| side as u8);
        let at = |place: super::NodeCoordinates| {
            let [x, y, z] = [place.x, place.y, place.z].map(|along| along as i8);
            Coordinates::new(x, y, z)
        };
        let place = host.map(|_| at(topology.host()));
        Ok(Self {
            geometry: MeshGeometry::new(size, topology.disk_nodes, &boards, place)?,
            timing,
            policy,
            block_words,
            dispatch_cycles: 4,
            receive_cycles_per_word: 2,
            recorder: None,
            host: *host,
        })
    }
}
