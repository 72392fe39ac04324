//! Updates of some blocks of a stripe: by a chain of deltas, or by the writer that reads, modifies
//! and writes.
//!
//! XOR deltas are not idempotent: one that is applied twice cancels itself. So updates of a stripe
//! have sequence numbers. A node keeps a block as it was before its last update, so that it can
//! send the same delta again; the node of the parity applies each number once.

mod node;
mod writer;

use std::rc::Rc;

use runtime::seed::Rng;

use self::node::UpdateNode;
use self::writer::UpdateWriter;
use super::block::{ShardKey, content, parity_of};
use super::kernel::{MICROSECOND_PS, ParityTiming, PortId, UnitId, VirtualTime};
use super::layout::{ParityLayout, RaidLevel};
use super::plant::ParityPlant;
use super::world::per_second;

/// Who computes the new parity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpdateWay {
    /// The nodes of the updated blocks, one after the other, and that of the parity.
    Chain,
    /// The writer, which reads the old blocks and the old parity first.
    ReadModifyWrite,
}

/// A run.
#[derive(Clone, Debug)]
pub(super) struct UpdateRun {
    pub(super) nodes: usize,
    pub(super) way: UpdateWay,
    /// Blocks of an update; none for a random number.
    pub(super) blocks: Option<usize>,
    pub(super) stripes: u64,
    pub(super) updates: u64,
    /// Updates under way, each of another stripe.
    pub(super) window: usize,
    pub(super) block: usize,
    pub(super) timing: ParityTiming,
    /// Messages of a hundred that arrive twice.
    pub(super) doubled_percent: u64,
    /// When nodes die and for how long, in microseconds.
    pub(super) crashes: Vec<(u64, usize, u64)>,
    pub(super) plant: Option<ParityPlant>,
    pub(super) seed: u64,
}

/// What came of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct UpdateOutcome {
    /// Bytes of new data per second.
    pub(super) rate: f64,
    /// Blocks that the writer sent and received, for each block of new data.
    pub(super) sent: f64,
    pub(super) received: f64,
    /// Updates that were sent again.
    pub(super) resent: u64,
    /// Deltas that were applied already.
    pub(super) repeated: u64,
    pub(super) unfinished: u64,
    pub(super) flaws: u64,
}

/// An update of a stripe.
#[derive(Clone, Debug)]
struct StripeUpdate {
    stripe: u64,
    sequence: u64,
    /// The blocks that are updated, in the order of the ring, from the right of the parity.
    indices: Rc<[usize]>,
}

#[derive(Clone, Debug)]
enum UpdateBody {
    /// A new block, which takes part in a chain.
    New {
        at: usize,
        words: Rc<[u64]>,
    },
    /// The deltas of the blocks before this one.
    Delta {
        at: usize,
        words: Rc<[u64]>,
    },
    /// The parity has all deltas.
    Done,
    Read {
        index: usize,
    },
    Old {
        index: usize,
        words: Rc<[u64]>,
    },
    Write {
        words: Rc<[u64]>,
    },
    WriteDone,
}

#[derive(Clone, Debug)]
struct UpdateMessage {
    update: StripeUpdate,
    body: UpdateBody,
}

/// The writer, or the node behind it.
type Party = usize;
const WRITER: Party = 0;

enum UpdateEvent {
    Departed,
    Message {
        to: Party,
        message: UpdateMessage,
    },
    /// A processor has had the time to make the message.
    Made {
        from: Party,
        boot: u32,
        to: Party,
        message: UpdateMessage,
    },
    Timeout {
        update: StripeUpdate,
    },
    Crash {
        node: usize,
        is_up: bool,
    },
}

/// Time, ports and processors.
struct UpdateNet {
    time: VirtualTime<UpdateEvent>,
    ports: Vec<PortId>,
    processors: Vec<UnitId>,
    boots: Vec<u32>,
    block: u64,
    doubled_percent: u64,
    rng: Rng,
}

impl UpdateNet {
    fn send(&mut self, from: Party, to: Party, message: &UpdateMessage) {
        let copies = 1 + u64::from(self.rng.chance(self.doubled_percent, 100));
        for _ in 0..copies {
            let event = UpdateEvent::Message { to, message: message.clone() };
            match message.body {
                UpdateBody::Done | UpdateBody::Read { .. } | UpdateBody::WriteDone => {
                    self.time.control(event);
                }
                _ => {
                    let (from, to) = (self.ports[from], self.ports[to]);
                    self.time.transmit(from, to, self.block, UpdateEvent::Departed, event);
                }
            }
        }
    }

    /// Sends what a processor makes by some XORs.
    fn send_after(&mut self, xors: u64, from: Party, to: Party, message: UpdateMessage) {
        let rate = self.time.timing.xor_rate;
        let duration_ps = xors * ParityTiming::duration_ps(self.block, rate);
        let made = UpdateEvent::Made { from, boot: self.boots[from], to, message };
        self.time.work(self.processors[from], duration_ps, made);
    }
}

struct UpdateWorld {
    net: UpdateNet,
    writer: UpdateWriter,
    nodes: Vec<UpdateNode>,
}

impl UpdateRun {
    /// Runs all updates, and compares.
    pub(super) fn run(&self) -> UpdateOutcome {
        let layout = ParityLayout { level: RaidLevel::Rotated, nodes: self.nodes };
        let mut time = VirtualTime::new(self.timing);
        for (at_us, node, down_us) in &self.crashes {
            let at_ps = at_us * MICROSECOND_PS;
            time.after(at_ps, UpdateEvent::Crash { node: *node, is_up: false });
            let until_ps = at_ps + down_us * MICROSECOND_PS;
            time.after(until_ps, UpdateEvent::Crash { node: *node, is_up: true });
        }
        let parties = 0..=self.nodes;
        let net = UpdateNet {
            ports: parties.clone().map(|_| time.add_port()).collect(),
            processors: parties.map(|_| time.add_unit()).collect(),
            boots: vec![1; self.nodes + 1],
            time,
            block: self.block as u64,
            doubled_percent: self.doubled_percent,
            rng: Rng::new(self.seed),
        };
        let forgets = self.plant == Some(ParityPlant::ForgottenSequence);
        let node = |node| UpdateNode::new(node, layout, self, forgets);
        let nodes = (0..self.nodes).map(node).collect();
        let mut world = UpdateWorld { net, writer: UpdateWriter::new(layout, self), nodes };
        world.writer.fill(&mut world.net);
        while let Some(event) = world.net.time.next() {
            world.step(event);
        }
        world.outcome(self, layout)
    }
}

impl UpdateWorld {
    fn step(&mut self, event: UpdateEvent) {
        let net = &mut self.net;
        match event {
            UpdateEvent::Departed => {}
            UpdateEvent::Message { to: WRITER, message } => self.writer.hear(net, message),
            UpdateEvent::Message { to, message } => self.nodes[to - 1].hear(net, message),
            UpdateEvent::Made { from, boot, to, message } => {
                if net.boots[from] != boot {
                    // The processor died before it was done.
                } else if to == from {
                    self.nodes[to - 1].hear(net, message);
                } else {
                    net.send(from, to, &message);
                }
            }
            UpdateEvent::Timeout { update } => self.writer.timeout(net, &update),
            UpdateEvent::Crash { node, is_up } => {
                net.boots[node + 1] += u32::from(!is_up);
                self.nodes[node].crash(is_up);
            }
        }
    }

    fn outcome(&self, run: &UpdateRun, layout: ParityLayout) -> UpdateOutcome {
        let mut flaws = 0;
        for stripe in 0..run.stripes {
            let key = |index| ShardKey { writer: 0, stripe, index };
            let version = |index| self.writer.version(stripe, index);
            let data = (0..layout.data_blocks())
                .map(|index| content(run.seed, key(index), version(index), run.block));
            let mut expected: Vec<Vec<u64>> = data.map(|block| block.to_vec()).collect();
            expected.push(parity_of(expected.iter().map(AsRef::as_ref)));
            let wrong = (0..).zip(&expected).filter(|(index, words)| {
                self.nodes[layout.node_of(stripe, *index)].words(stripe) != words.as_slice()
            });
            flaws += wrong.count() as u64;
        }
        let bytes = self.writer.blocks * run.block as u64;
        let traffic = self.net.time.traffic(self.net.ports[WRITER]);
        let part = |moved: u64| moved as f64 / bytes.max(1) as f64;
        UpdateOutcome {
            rate: per_second(bytes, self.writer.last_ps),
            sent: part(traffic.sent),
            received: part(traffic.received),
            resent: self.writer.resent,
            repeated: self.nodes.iter().map(|node| node.repeated).sum(),
            unfinished: run.updates - self.writer.finished,
            flaws,
        }
    }
}
