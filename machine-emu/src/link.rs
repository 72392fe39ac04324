//! Between the frames of a world and the words of a mesh.
//!
//! A frame becomes a row of messages, each with the runtime's envelope and a block of data. Each
//! node of the world stands at a place of the mesh: file-system nodes in the slice next to the
//! disks (MDFS thesis 3.1), disk nodes on the edge, applications at the far side. What the mesh
//! delivers happens in the world's virtual time. Faults of the network hit frames before they enter
//! the mesh.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use runtime::{Class, NodeId};
use thiserror::Error;

use crate::events::WorldEvent;
use crate::kernel::Kernel;
use crate::mesh::{
    Delivery, ForwardPolicy, Letter, Mesh, MeshGeometry, MeshGeometryError, MeshTiming, Priority,
    Recorder, SendError,
};
use crate::network::EmulatedNetwork;
use crate::node::WorldShape;
use crate::slab::SlabKey;

/// Bytes of a word that hold data; its tag holds none.
const WORD_BYTES: usize = 4;
/// Words of a message besides its data: the envelope of the runtime's remote call has seven
/// (header, function, receiver, length and place of the result, number of arguments), and the block
/// its length.
const ENVELOPE_WORDS: u32 = 8;

/// The network of a world is a mesh.
#[derive(Debug)]
pub struct MeshSetup {
    /// Its nodes and links.
    pub geometry: MeshGeometry,
    /// Its parameters.
    pub timing: MeshTiming,
    /// Who passes on what cannot be sent directly.
    pub policy: ForwardPolicy,
    /// Words of data in a message, at most; longer frames become several.
    pub block_words: u32,
    /// Cycles from a message's arrival to the first word that its handler takes out.
    pub dispatch_cycles: u64,
    /// Cycles per word to take a message out of its queue.
    pub receive_cycles_per_word: u64,
    /// Takes down load and messages.
    pub recorder: Option<Recorder>,
    /// The node of the world that stands where the host of the geometry is.
    pub host: Option<NodeId>,
}

impl MeshSetup {
    /// The J-Machine of the thesis' chapter 4 with `disk_nodes` disk nodes: 8x8x8, 10 MHz, blocks
    /// of 128 words; messages leave their queue as fast as they come in.
    pub fn thesis(disk_nodes: u32) -> Result<Self, MeshGeometryError> {
        Ok(Self {
            geometry: MeshGeometry::thesis(disk_nodes)?,
            timing: MeshTiming::default(),
            policy: ForwardPolicy::Canonical,
            block_words: 128,
            dispatch_cycles: 4,
            receive_cycles_per_word: 2,
            recorder: None,
            host: None,
        })
    }
}

/// A world does not fit on a mesh.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum LinkError {
    /// There is no such mesh.
    #[error(transparent)]
    MeshGeometry(#[from] MeshGeometryError),
    /// The mesh cannot be as slow or as fast as a profile says.
    #[error("{name} is {value}: the mesh takes {least} to {most}; change the profile")]
    Number {
        /// Table and name.
        name: &'static str,
        /// Of the profile.
        value: String,
        /// The least that can be.
        least: f64,
        /// The most that can be.
        most: f64,
    },
    /// A host is named, but the mesh has no place for it, or the other way round.
    #[error("the host needs both a node of the world and a place beyond an edge of the mesh")]
    Host,
    /// More nodes than places.
    #[error(
        "{fs_nodes} file-system and {disk_nodes} disk nodes do not fit on {main} main places, one \
         of them for applications, and {disk} disk places: choose a larger mesh"
    )]
    Nodes {
        /// Of the world.
        fs_nodes: u32,
        /// Of the world.
        disk_nodes: u32,
        /// Of the mesh.
        main: u32,
        /// Of the mesh.
        disk: u32,
    },
    /// Blocks that no message can hold.
    #[error("blocks of {block_words} words cannot be sent: {error}")]
    Block {
        /// Asked for.
        block_words: u32,
        /// Why.
        error: SendError,
    },
}

/// A mesh in a world.
pub(crate) struct MeshLink {
    pub(crate) mesh: Mesh,
    shape: WorldShape,
    block_words: u32,
    dispatch_cycles: u64,
    receive_cycles_per_word: u64,
    /// When the world looks at the mesh next. An event for another time is out of date.
    planned_ns: Option<u64>,
    /// Until when the handlers of a queue take out what has arrived: two for each node of the mesh.
    busy_until: Vec<u64>,
    /// The place of the host in the tables of the world.
    host: Option<u32>,
    /// Frames of which each message is sent, and counted, by itself: see [`FrameMessages`].
    rows: BTreeMap<u64, FrameMessages>,
    arrived: Vec<Delivery>,
}

/// The messages of one frame whose sender's processor feeds them one after the other.
#[derive(Clone, Copy, Debug, Default)]
struct FrameMessages {
    sent: u32,
    taken_out: u32,
    /// When the last of those was.
    done_ns: u64,
}

impl MeshLink {
    /// `host` is the place of the host in the tables of the world.
    pub(crate) fn new(
        setup: MeshSetup,
        shape: WorldShape,
        host: Option<u32>,
    ) -> Result<Self, LinkError> {
        let MeshSetup { geometry, timing, block_words, recorder, .. } = setup;
        let WorldShape { fs_nodes, disk_nodes } = shape;
        if host.is_some() != geometry.host().is_some() {
            return Err(LinkError::Host);
        }
        let (main, disk) = (geometry.main_nodes(), geometry.disk_nodes());
        if fs_nodes >= main || disk_nodes > disk {
            return Err(LinkError::Nodes { fs_nodes, disk_nodes, main, disk });
        }
        let nodes = geometry.nodes() as usize;
        let mut mesh = Mesh::new(geometry, timing, setup.policy);
        // The longest message of a frame, with a header for a forwarder.
        let longest = Letter::new(0, 0, block_words.saturating_add(ENVELOPE_WORDS), 0);
        let fits = if block_words == 0 {
            Err(SendError::Words { words: 0 })
        } else {
            mesh.check(&longest, true)
        };
        fits.map_err(|error| LinkError::Block { block_words, error })?;
        if let Some(recorder) = recorder {
            mesh.record(recorder);
        }
        Ok(Self {
            mesh,
            shape,
            block_words,
            dispatch_cycles: setup.dispatch_cycles,
            receive_cycles_per_word: setup.receive_cycles_per_word,
            planned_ns: None,
            busy_until: vec![0; nodes * 2],
            host,
            rows: BTreeMap::new(),
            arrived: Vec::new(),
        })
    }

    /// Where the node of the world with this place in its tables stands in the mesh. Applications
    /// share places once there are more of them.
    fn stands(&self, node: u32) -> u32 {
        let WorldShape { fs_nodes, disk_nodes } = self.shape;
        let geometry = self.mesh.geometry();
        let [x, y, z] = geometry.size().map(u32::from);
        // Planes of constant Y, counted from the disks; rows along X in each.
        let at = |number: u32, plane: u32| number % x + x * (plane + y * (number / x % z));
        match node {
            node if node < fs_nodes => at(node, y - 1 - node / (x * z)),
            node if node < fs_nodes + disk_nodes => geometry.main_nodes() + (node - fs_nodes),
            node if self.host == Some(node) => geometry.host().unwrap_or_default(),
            node => {
                let free = geometry.main_nodes() - fs_nodes;
                let number = (node - fs_nodes - disk_nodes) % free;
                at(number, number / (x * z))
            }
        }
    }

    /// The row of messages for a frame of `bytes` bytes.
    fn letter(&self, from: u32, to: u32, class: Class, bytes: usize, frame: SlabKey) -> Letter {
        let block_bytes = self.block_words as usize * WORD_BYTES;
        let count = bytes.div_ceil(block_bytes).max(1);
        let rest = bytes - (count - 1) * block_bytes;
        let priority = match class {
            Class::Control => Priority::High,
            Class::Bulk => Priority::Normal,
        };
        Letter {
            from: self.stands(from),
            to: self.stands(to),
            priority,
            words: ENVELOPE_WORDS + self.block_words,
            count: count as u32,
            last_words: ENVELOPE_WORDS + rest.div_ceil(WORD_BYTES) as u32,
            tag: u64::from(frame.index) << 32 | u64::from(frame.generation),
        }
    }

    fn cycle_ns(&self) -> u64 {
        self.mesh.timing().cycle_ns
    }

    /// Handlers take a message out of its queue, one after the other; when they are done. A node
    /// whose processor stands still until `frozen_until_ns` begins after that.
    fn take_out(&mut self, delivery: &Delivery, frozen_until_ns: u64, slowness: u64) -> u64 {
        let Delivery { cycle, to, priority, words, .. } = *delivery;
        let thawed = frozen_until_ns.div_ceil(self.cycle_ns());
        let queue = &mut self.busy_until[to as usize * 2 + priority as usize];
        let takes = self.dispatch_cycles + u64::from(words) * self.receive_cycles_per_word;
        *queue = cycle.max(*queue).max(thawed) + (takes * slowness).max(1);
        let done = *queue;
        self.mesh.take(delivery, done);
        done
    }
}

/// The mesh under the network of a world, if there is one.
pub(crate) struct MeshDriver {
    kernel: Rc<Kernel>,
    network: Rc<EmulatedNetwork>,
    pub(crate) link: RefCell<Option<MeshLink>>,
}

impl MeshDriver {
    pub(crate) fn new(kernel: Rc<Kernel>, network: Rc<EmulatedNetwork>) -> Self {
        Self { kernel, network, link: RefCell::default() }
    }

    /// From now on frames go through a mesh.
    pub(crate) fn use_mesh(&self, setup: MeshSetup) -> Result<(), LinkError> {
        let host = setup.host.and_then(|host| self.kernel.nodes.borrow().index(host));
        *self.link.borrow_mut() = Some(MeshLink::new(setup, self.kernel.shape, host)?);
        self.network.state.borrow_mut().use_mesh();
        Ok(())
    }

    /// A frame enters the mesh. Panics if it cannot be sent: the machine traps.
    pub(crate) fn enter(&self, frame: SlabKey) {
        let mut link = self.link.borrow_mut();
        let Some(link) = link.as_mut() else { return };
        let envelope = self.network.state.borrow_mut().envelope_of(frame);
        let Some((from, to, class, bytes)) = envelope else { return };
        let mut letter = link.letter(from, to, class, bytes, frame);
        let pace_ns = self.kernel.nodes.borrow().get(from).cpu.pace_ns(bytes);
        if pace_ns > 0 {
            // The processor feeds one message, then the next.
            let row = link.rows.entry(letter.tag).or_default();
            row.sent += 1;
            if row.sent < letter.count {
                letter.last_words = letter.words;
                self.kernel.push_in(pace_ns, WorldEvent::Enter(frame));
            }
            letter.count = 1;
        }
        let cycle = self.kernel.now_ns().div_ceil(link.cycle_ns());
        if let Err(error) = link.mesh.send(cycle, letter) {
            panic!("the world of seed {} traps in node {from}: {error}", self.kernel.seed);
        }
        self.plan(link);
    }

    /// The mesh does what is due, and what no other event of the world can change: all cycles that
    /// end before the next event.
    pub(crate) fn advance(&self, limit_ns: u64) {
        let now_ns = self.kernel.now_ns();
        let mut link = self.link.borrow_mut();
        let Some(link) = link.as_mut().filter(|link| link.planned_ns == Some(now_ns)) else {
            return;
        };
        link.planned_ns = None;
        let next_ns = self.kernel.events.borrow().next_ns().unwrap_or(u64::MAX);
        let horizon_ns = next_ns.min(limit_ns).max(now_ns + 1);
        let horizon = (horizon_ns - 1) / link.cycle_ns();
        let mut arrived = std::mem::take(&mut link.arrived);
        link.mesh.advance_to_delivery(horizon, &mut arrived);
        for delivery in arrived.drain(..) {
            self.hear(link, &delivery);
        }
        link.arrived = arrived;
        self.plan(link);
    }

    /// A message has arrived. With the last of its row the frame has.
    fn hear(&self, link: &mut MeshLink, delivery: &Delivery) {
        let frame = SlabKey { index: (delivery.tag >> 32) as u32, generation: delivery.tag as u32 };
        let envelope = self.network.state.borrow_mut().envelope_of(frame);
        if let Some((from, to, class, bytes)) = envelope
            && let Some(done_ns) = self.processor_takes(link, delivery, to, class)
        {
            let count = link.letter(from, to, class, bytes, frame).count;
            let row = link.rows.entry(delivery.tag).or_default();
            row.taken_out += 1;
            row.done_ns = row.done_ns.max(done_ns);
            if row.taken_out == count {
                let done_ns = row.done_ns;
                link.rows.remove(&delivery.tag);
                self.kernel.push(done_ns, WorldEvent::Arrive(frame));
            }
            return;
        }
        let (frozen_until_ns, slowness) = envelope.map_or((0, 1), |(_, to, class, _)| {
            let nodes = self.kernel.nodes.borrow();
            let node = nodes.get(to);
            (node.cpu.busy_until_ns(self.kernel.now_ns(), class).unwrap_or(0), node.slowness)
        });
        let done = link.take_out(delivery, frozen_until_ns, slowness);
        if delivery.last {
            self.kernel.push(done * link.cycle_ns(), WorldEvent::Arrive(frame));
        }
    }

    /// The processor of the receiver takes a message out of its queue, and has it taken out then;
    /// `None` if processors cost no time. The host looks for messages now and then.
    fn processor_takes(
        &self,
        link: &mut MeshLink,
        delivery: &Delivery,
        to: u32,
        class: Class,
    ) -> Option<u64> {
        let Delivery { cycle, words, .. } = *delivery;
        let cycle_ns = link.cycle_ns();
        let mut from_ns = cycle * cycle_ns;
        if link.host == Some(to) {
            let machine = self.kernel.machine.borrow();
            from_ns = machine.as_ref()?.host_wire().seen_ns(from_ns);
        }
        let data_words = u64::from(words.saturating_sub(ENVELOPE_WORDS));
        let done_ns =
            self.kernel.nodes.borrow_mut().get_mut(to).cpu.take(from_ns, class, data_words)?;
        let done_ns = done_ns.max(from_ns);
        let done = done_ns.div_ceil(cycle_ns);
        link.mesh.take(delivery, done);
        Some(done_ns)
    }

    fn plan(&self, link: &mut MeshLink) {
        let Some(next) = link.mesh.next_cycle() else { return };
        // At the end of the cycle, so that all that is sent at its beginning is in it.
        let due_ns = ((next + 1) * link.cycle_ns() - 1).max(self.kernel.now_ns());
        if link.planned_ns.is_none_or(|planned_ns| due_ns < planned_ns) {
            link.planned_ns = Some(due_ns);
            self.kernel.push(due_ns, WorldEvent::Mesh);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn link(shape: WorldShape) -> MeshLink {
        MeshLink::new(MeshSetup::thesis(8).unwrap(), shape, None).unwrap()
    }

    #[test]
    fn nodes_stand_in_the_slice_on_the_edge_and_at_the_far_side() {
        let link = link(WorldShape { fs_nodes: 64, disk_nodes: 8 });
        let geometry = link.mesh.geometry();
        let stands = |node| geometry.place(link.stands(node));
        assert!((0..64).all(|node| stands(node).y == 7));
        assert!((64..72).all(|node| stands(node).y == 8));
        assert!((72..136).all(|node| stands(node).y == 0));
        let all: BTreeSet<_> = (0..72 + 448).map(stands).collect();
        assert_eq!(all.len(), 520);
        assert_eq!(stands(72), stands(72 + 448));
    }

    #[test]
    fn a_frame_becomes_blocks_with_an_envelope_each() {
        let link = link(WorldShape { fs_nodes: 64, disk_nodes: 8 });
        let frame = SlabKey { index: 3, generation: 9 };
        let rows = |bytes| {
            let letter = link.letter(0, 64, Class::Bulk, bytes, frame);
            (letter.count, letter.words, letter.last_words)
        };
        assert_eq!(rows(0), (1, 136, 8));
        assert_eq!(rows(512), (1, 136, 136));
        assert_eq!(rows(513), (2, 136, 9));
        assert_eq!(rows(64 << 10), (128, 136, 136));
    }

    #[test]
    fn a_world_that_does_not_fit_is_refused() {
        let new = |fs_nodes, disk_nodes, block_words| {
            let setup = MeshSetup { block_words, ..MeshSetup::thesis(8).unwrap() };
            MeshLink::new(setup, WorldShape { fs_nodes, disk_nodes }, None).err()
        };
        let nodes = |fs_nodes, disk_nodes| {
            Some(LinkError::Nodes { fs_nodes, disk_nodes, main: 512, disk: 8 })
        };
        assert_eq!(new(512, 8, 128), nodes(512, 8));
        assert_eq!(new(64, 9, 128), nodes(64, 9));
        let error = SendError::QueueTooSmall { words: 513, queue_words: 512 };
        assert_eq!(new(64, 8, 504), Some(LinkError::Block { block_words: 504, error }));
        assert_eq!(new(64, 8, 500), None);
    }
}
