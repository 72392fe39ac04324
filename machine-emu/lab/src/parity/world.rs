//! One run: writers, storage nodes and perhaps a switch, until nothing happens any more.

use std::collections::{BTreeMap, BTreeSet};

use runtime::seed::Rng;

use super::block::{ShardKey, content, parity_of};
use super::kernel::{NANOSECOND_PS, ParityTiming, PortTraffic, SECOND_PS};
use super::layout::{ParityLayout, RaidLevel};
use super::message::{ActorMap, StripeMessage};
use super::plant::ParityPlant;
use super::storage::{ShardMap, StorageNode};
use super::switch::ParitySwitch;
use super::transport::{MemoryCounters, Occurrence, RingShape, RingTransport};
use super::window::AckWindow;
use super::writer::{ParityPolicy, StripeWriter, WriterTask};

/// Something that happens to the machine.
#[derive(Clone, Copy, Debug)]
pub(super) enum ParityFault {
    /// A storage node dies; what was not durable is lost.
    Kill(usize),
    /// It is up again, in another boot.
    Restart(usize),
    /// The switch still forwards but does not encode.
    SwitchUnprogrammed,
    /// The switch is dead. Another way leads to the nodes.
    SwitchDies,
}

/// What is run.
#[derive(Clone, Debug)]
pub(super) struct ParityRun {
    pub(super) layout: ParityLayout,
    pub(super) maker: ParityPolicy,
    /// The ring has a network of its own.
    pub(super) is_dedicated: bool,
    pub(super) writers: usize,
    /// Writers send blocks in the order that hides the depth of the pipelines.
    pub(super) in_waves: bool,
    /// Of each writer.
    pub(super) stripes: u64,
    pub(super) block: usize,
    /// Slots of each ring buffer.
    pub(super) slots: usize,
    pub(super) timing: ParityTiming,
    /// Stripes under way per writer, if writers wait until stripes are durable.
    pub(super) window: Option<usize>,
    /// When things happen to the machine, in nanoseconds.
    pub(super) faults: Vec<(u64, ParityFault)>,
    pub(super) plant: Option<ParityPlant>,
    pub(super) seed: u64,
}

/// Blocks stored in an epoch of writers.
#[derive(Clone, Copy, Debug)]
pub(super) struct EpochSpan {
    pub(super) first_ps: u64,
    pub(super) last_ps: u64,
    pub(super) data_blocks: u64,
}

/// What came of a run.
#[derive(Debug)]
pub(super) struct ParityOutcome {
    /// Bytes of data, of all writers.
    pub(super) bytes: u64,
    /// Until the last block was stored, or acknowledged.
    pub(super) elapsed_ps: u64,
    /// Of the first ports and of the second ones, by actor.
    pub(super) traffic: Vec<Vec<PortTraffic>>,
    pub(super) map: ActorMap,
    pub(super) memory: MemoryCounters,
    pub(super) acknowledged: u64,
    /// Acknowledged stripes that were not durable as a whole when they were acknowledged.
    pub(super) false_acks: u64,
    /// Blocks that are missing or wrong at the end.
    pub(super) flaws: u64,
    pub(super) epochs: BTreeMap<u32, EpochSpan>,
    /// Blocks that a writer kept, at most.
    pub(super) kept_max: usize,
    /// What is on the nodes.
    pub(super) image: Vec<ShardMap>,
}

impl ParityOutcome {
    /// Bytes of data per second.
    pub(super) fn rate(&self) -> f64 {
        per_second(self.bytes, self.elapsed_ps)
    }

    /// Did all go well?
    pub(super) fn is_sound(&self) -> bool {
        self.flaws == 0 && self.false_acks == 0 && self.memory.violations == 0
    }

    /// Traffic of a port of an actor, sent and received, in parts of the data.
    pub(super) fn parts(&self, actor: usize, port: usize) -> (f64, f64) {
        let traffic = self.traffic[actor].get(port).copied().unwrap_or_default();
        let of_data = |bytes: u64| bytes as f64 / self.bytes as f64;
        (of_data(traffic.sent), of_data(traffic.received))
    }
}

/// Bytes per second.
pub(super) fn per_second(bytes: u64, elapsed_ps: u64) -> f64 {
    bytes as f64 * SECOND_PS as f64 / elapsed_ps.max(1) as f64
}

struct ParityWorld {
    run: ParityRun,
    map: ActorMap,
    transport: RingTransport<StripeMessage>,
    writers: Vec<StripeWriter>,
    nodes: Vec<StorageNode>,
    switch: ParitySwitch,
    faults: Vec<ParityFault>,
    last_ps: u64,
    acknowledged: BTreeSet<(usize, u64)>,
    false_acks: u64,
    epochs: BTreeMap<u32, EpochSpan>,
}

impl ParityRun {
    /// Runs until nothing happens any more, and looks at what is stored.
    pub(super) fn run(&self) -> ParityOutcome {
        let mut world = ParityWorld::new(self.clone());
        world.begin();
        while let Some(occurrence) = world.transport.next() {
            world.step(occurrence);
        }
        world.outcome()
    }

    fn window(&self) -> Option<AckWindow> {
        let ignores_boots = self.plant == Some(ParityPlant::IgnoredBoot);
        self.window.map(|size| AckWindow::new(size, self.layout.nodes, ignores_boots))
    }
}

impl ParityWorld {
    fn new(run: ParityRun) -> Self {
        let map = ActorMap { writers: run.writers, nodes: run.layout.nodes };
        let ignores_tails = run.plant == Some(ParityPlant::NoCredit);
        let shape = RingShape { block: run.block, slots: run.slots, ignores_tails };
        let mut transport = RingTransport::new(run.timing, shape);
        // Ports of the switch: storage nodes first, then writers.
        let switch_ports = map.nodes + map.writers;
        let ports = [vec![1; map.writers], vec![2; map.nodes], vec![switch_ports]].concat();
        for ports in ports {
            transport.add(ports);
        }
        for node in 0..map.nodes {
            transport.route(map.switch(), map.storage(node), (node, 0));
            let right = map.storage(run.layout.right_of(node));
            if run.is_dedicated {
                transport.route(map.storage(node), right, (1, 1));
            }
        }
        for writer in 0..map.writers {
            transport.route(writer, map.switch(), (0, map.nodes + writer));
        }
        let ParityRun { stripes, block, seed, in_waves, .. } = run;
        let task = WriterTask { stripes, block, seed, in_waves };
        let both = (map, run.layout);
        let writer =
            |writer| StripeWriter::new(writer, both, run.maker, task, run.slots, run.window());
        let acknowledges = run.window.is_some();
        let node = |node| StorageNode::new(node, map, run.layout, acknowledges, run.plant);
        Self {
            map,
            writers: (0..map.writers).map(writer).collect(),
            nodes: (0..map.nodes).map(node).collect(),
            switch: ParitySwitch::new(map, run.layout),
            transport,
            faults: run.faults.iter().map(|(_, fault)| *fault).collect(),
            run,
            last_ps: 0,
            acknowledged: BTreeSet::new(),
            false_acks: 0,
            epochs: BTreeMap::new(),
        }
    }

    /// Writers begin within a few blocks' time of each other, in an order from the seed.
    fn begin(&mut self) {
        let mut rng = Rng::new(self.run.seed);
        let spread_ps = 1 + 4 * self.run.timing.wire_ps(self.run.block as u64);
        for writer in 0..self.map.writers {
            let delay_ps = if self.map.writers == 1 { 0 } else { rng.below(spread_ps) };
            self.transport.timer(writer, delay_ps, BEGIN);
        }
        for (number, (at_ns, _)) in self.run.faults.iter().enumerate() {
            self.transport.fault(at_ns * NANOSECOND_PS, number);
        }
    }

    fn step(&mut self, occurrence: Occurrence<StripeMessage>) {
        let transport = &mut self.transport;
        let first_node = self.map.writers;
        match occurrence {
            Occurrence::Arrived { slot, key } if slot.actor == self.map.switch() => {
                self.switch.arrived(transport, slot, key);
            }
            Occurrence::Arrived { slot, key } => {
                self.nodes[slot.actor - first_node].arrived(transport, slot, key);
            }
            Occurrence::Departed { actor } if actor < first_node => {
                self.writers[actor].departed(transport);
            }
            Occurrence::Credited { actor } if actor < first_node => {
                self.writers[actor].fill(transport);
            }
            Occurrence::Departed { .. } | Occurrence::Credited { .. } => {}
            Occurrence::Message { to, message } if to < first_node => {
                let acknowledged = self.writers[to].hear(transport, message);
                self.acknowledge(to, &acknowledged);
            }
            Occurrence::Message { to, message } if to == self.map.switch() => {
                ParitySwitch::hear(transport, &message);
            }
            Occurrence::Message { to, message } => {
                self.nodes[to - first_node].hear(transport, message);
            }
            Occurrence::Computed { actor, work } if actor < first_node => {
                self.writers[actor].computed(transport, work.key);
            }
            Occurrence::Computed { actor, work } if actor == self.map.switch() => {
                self.switch.computed(transport, work);
            }
            Occurrence::Computed { actor, work } => {
                self.nodes[actor - first_node].computed(transport, work);
            }
            Occurrence::Stored { actor, epoch, key, words } => {
                self.count_stored(epoch, key);
                let transport = &mut self.transport;
                self.nodes[actor - first_node].stored(transport, epoch, key, words);
            }
            Occurrence::Timer { actor, id } if actor < first_node => {
                let writer = &mut self.writers[actor];
                if id == BEGIN { writer.begin(transport) } else { writer.timeout(transport) }
            }
            Occurrence::Timer { actor, .. } => self.nodes[actor - first_node].flushed(transport),
            Occurrence::Fault { number } => self.suffer(self.faults[number]),
        }
    }

    fn count_stored(&mut self, epoch: u32, key: ShardKey) {
        let now_ps = self.transport.now_ps();
        if self.run.window.is_none() {
            self.last_ps = now_ps;
        }
        let new = EpochSpan { first_ps: now_ps, last_ps: now_ps, data_blocks: 0 };
        let span = self.epochs.entry(epoch).or_insert(new);
        span.last_ps = now_ps;
        span.data_blocks += u64::from(key.index < self.run.layout.data_blocks());
    }

    fn suffer(&mut self, fault: ParityFault) {
        match fault {
            ParityFault::Kill(node) => {
                self.transport.kill(self.map.storage(node));
                self.nodes[node].forget();
            }
            ParityFault::Restart(node) => self.transport.restart(self.map.storage(node)),
            ParityFault::SwitchUnprogrammed => self.switch.is_programmable = false,
            ParityFault::SwitchDies => self.transport.kill(self.map.switch()),
        }
    }

    /// A writer believes that these stripes are durable. Are they?
    fn acknowledge(&mut self, writer: usize, stripes: &[u64]) {
        for stripe in stripes {
            self.last_ps = self.transport.now_ps();
            self.acknowledged.insert((writer, *stripe));
            let is_durable = |index: &usize| {
                let node = &self.nodes[self.run.layout.node_of(*stripe, *index)];
                node.durable.contains_key(&ShardKey { writer, stripe: *stripe, index: *index })
            };
            let is_whole = (0..self.run.layout.shards()).all(|index| is_durable(&index));
            self.false_acks += u64::from(!is_whole);
        }
    }

    /// Compares every block with what was written, and every parity with the reference.
    fn flaws(&self) -> u64 {
        let layout = self.run.layout;
        let mut flaws = 0;
        for writer in 0..self.map.writers {
            for stripe in 0..self.run.stripes {
                let key = |index| ShardKey { writer, stripe, index };
                let data = (0..layout.data_blocks())
                    .map(|index| content(self.run.seed, key(index), 0, self.run.block));
                let mut expected: Vec<Vec<u64>> = data.map(|block| block.to_vec()).collect();
                if layout.level != RaidLevel::Striped {
                    expected.push(parity_of(expected.iter().map(AsRef::as_ref)));
                }
                let wrong = (0..).zip(&expected).filter(|(index, words)| {
                    let node = &self.nodes[layout.node_of(stripe, *index)];
                    node.block(key(*index)) != Some(words.as_slice())
                });
                flaws += wrong.count() as u64;
            }
        }
        flaws
    }

    fn outcome(self) -> ParityOutcome {
        let data = self.run.layout.data_blocks() as u64 * self.run.block as u64;
        let flaws = self.flaws();
        ParityOutcome {
            bytes: self.map.writers as u64 * self.run.stripes * data,
            elapsed_ps: self.last_ps,
            traffic: (0..=self.map.switch()).map(|actor| self.transport.traffic(actor)).collect(),
            map: self.map,
            memory: self.transport.counters(),
            acknowledged: self.acknowledged.len() as u64,
            false_acks: self.false_acks,
            flaws,
            epochs: self.epochs,
            kept_max: self.writers.iter().map(|writer| writer.kept_max).max().unwrap_or_default(),
            image: self.nodes.into_iter().map(StorageNode::into_image).collect(),
        }
    }
}

/// The timer with which a writer begins.
const BEGIN: u64 = 1;
