//! Rebuilding a lost node through the switch: survivors stream, the switch XORs, the replacement
//! stores.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::block::{ShardKey, content, parity_of, xor_into};
use super::kernel::{ParityTiming, PortId, UnitId, VirtualTime};
use super::layout::{ParityLayout, RaidLevel};
use super::world::per_second;

/// Stripes that the switch has asked for and not passed on.
const STRIPES_UNDER_WAY: u64 = 8;

/// The node that is lost.
const LOST: usize = 1;

/// A rebuild.
#[derive(Clone, Copy, Debug)]
pub(super) struct RebuildRun {
    pub(super) nodes: usize,
    pub(super) stripes: u64,
    pub(super) block: usize,
    pub(super) timing: ParityTiming,
    pub(super) seed: u64,
}

/// What came of a rebuild.
#[derive(Clone, Copy, Debug)]
pub(super) struct RebuildOutcome {
    /// Bytes of the replacement per second.
    pub(super) rate: f64,
    /// Blocks that are missing or wrong.
    pub(super) flaws: u64,
}

enum RebuildEvent {
    Departed,
    /// The switch asks a survivor for its block.
    Requested {
        node: usize,
        stripe: u64,
    },
    /// A block of a survivor is in the switch.
    Collected {
        node: usize,
        stripe: u64,
        words: Rc<[u64]>,
    },
    /// The XOR unit of its port has had the time for it.
    Combined {
        stripe: u64,
        words: Rc<[u64]>,
    },
    /// A block is at the replacement.
    Replaced {
        stripe: u64,
        words: Rc<[u64]>,
    },
}

/// A block that the switch restores.
#[derive(Default)]
struct RestoredBlock {
    words: Vec<u64>,
    combined: usize,
}

struct RebuildWorld {
    run: RebuildRun,
    layout: ParityLayout,
    time: VirtualTime<RebuildEvent>,
    survivors: Vec<PortId>,
    /// Ports of the switch, each with an XOR unit, by node.
    switch: Vec<(PortId, UnitId)>,
    replacement: PortId,
    asked: u64,
    restored: BTreeMap<u64, RestoredBlock>,
    replaced: BTreeMap<u64, Rc<[u64]>>,
}

impl RebuildRun {
    /// Rebuilds, and compares.
    pub(super) fn run(self) -> RebuildOutcome {
        let mut time = VirtualTime::new(self.timing);
        let survivors = (0..self.nodes).map(|_| time.add_port()).collect();
        let switch = (0..self.nodes).map(|_| (time.add_port(), time.add_unit())).collect();
        let replacement = time.add_port();
        let layout = ParityLayout { level: RaidLevel::Rotated, nodes: self.nodes };
        let (restored, replaced) = (BTreeMap::new(), BTreeMap::new());
        let mut world = RebuildWorld {
            run: self,
            layout,
            time,
            survivors,
            switch,
            replacement,
            asked: 0,
            restored,
            replaced,
        };
        for _ in 0..STRIPES_UNDER_WAY {
            world.ask();
        }
        while let Some(event) = world.time.next() {
            world.step(event);
        }
        world.outcome()
    }
}

impl RebuildWorld {
    fn block(&self, stripe: u64, node: usize) -> Rc<[u64]> {
        let block = |index| {
            content(self.run.seed, ShardKey { writer: 0, stripe, index }, 0, self.run.block)
        };
        let index = self.layout.index_at(stripe, node);
        if index < self.layout.data_blocks() {
            return block(index);
        }
        let data: Vec<Rc<[u64]>> = (0..index).map(block).collect();
        parity_of(data.iter().map(AsRef::as_ref)).into()
    }

    /// Asks the survivors for their blocks of the next stripe.
    fn ask(&mut self) {
        if self.asked == self.run.stripes {
            return;
        }
        let stripe = self.asked;
        self.asked += 1;
        for node in (0..self.run.nodes).filter(|node| *node != LOST) {
            self.time.control(RebuildEvent::Requested { node, stripe });
        }
    }

    fn step(&mut self, event: RebuildEvent) {
        let bytes = self.run.block as u64;
        match event {
            RebuildEvent::Departed => {}
            RebuildEvent::Requested { node, stripe } => {
                let words = self.block(stripe, node);
                let (from, to) = (self.survivors[node], self.switch[node].0);
                let arrived = RebuildEvent::Collected { node, stripe, words };
                self.time.transmit(from, to, bytes, RebuildEvent::Departed, arrived);
            }
            RebuildEvent::Collected { node, stripe, words } => {
                let duration_ps = ParityTiming::duration_ps(bytes, self.run.timing.xor_rate);
                let combined = RebuildEvent::Combined { stripe, words };
                self.time.work(self.switch[node].1, duration_ps, combined);
            }
            RebuildEvent::Combined { stripe, words } => self.combine(stripe, &words),
            RebuildEvent::Replaced { stripe, words } => {
                self.replaced.insert(stripe, words);
            }
        }
    }

    fn combine(&mut self, stripe: u64, words: &[u64]) {
        let restored = self.restored.entry(stripe).or_default();
        if restored.words.is_empty() {
            restored.words.resize(words.len(), 0);
        }
        xor_into(&mut restored.words, words);
        restored.combined += 1;
        if restored.combined + 1 < self.run.nodes {
            return;
        }
        let words = Rc::from(std::mem::take(&mut restored.words));
        self.restored.remove(&stripe);
        let arrived = RebuildEvent::Replaced { stripe, words };
        let from = self.switch[LOST].0;
        let bytes = self.run.block as u64;
        self.time.transmit(from, self.replacement, bytes, RebuildEvent::Departed, arrived);
        self.ask();
    }

    fn outcome(&self) -> RebuildOutcome {
        let is_wrong = |stripe: &u64| {
            self.replaced.get(stripe).is_none_or(|words| *words != self.block(*stripe, LOST))
        };
        let flaws = (0..self.run.stripes).filter(is_wrong).count() as u64;
        let bytes = self.run.stripes * self.run.block as u64;
        RebuildOutcome { rate: per_second(bytes, self.time.now_ps()), flaws }
    }
}
