//! The writer of updates.

use std::collections::BTreeMap;
use std::rc::Rc;

use runtime::seed::Rng;

use super::super::block::{ShardKey, content, xor_into};
use super::super::layout::ParityLayout;
use super::{StripeUpdate, UpdateBody, UpdateEvent, UpdateMessage, UpdateNet, UpdateRun};
use super::{UpdateWay, WRITER};

/// After these timeouts of the machine an update is sent again: others are before it.
const TIMEOUTS: u64 = 10;

/// An update under way.
#[derive(Debug)]
struct RunningUpdate {
    update: StripeUpdate,
    /// Old blocks that have been read, to modify them.
    old: BTreeMap<usize, Rc<[u64]>>,
    written: usize,
}

/// The writer.
#[derive(Debug)]
pub(super) struct UpdateWriter {
    layout: ParityLayout,
    run: UpdateRun,
    rng: Rng,
    started: u64,
    pub(super) finished: u64,
    pub(super) resent: u64,
    /// Blocks of new data that are stored.
    pub(super) blocks: u64,
    pub(super) last_ps: u64,
    running: BTreeMap<u64, RunningUpdate>,
    sequences: BTreeMap<u64, u64>,
    versions: BTreeMap<(u64, usize), u64>,
}

impl UpdateWriter {
    pub(super) fn new(layout: ParityLayout, run: &UpdateRun) -> Self {
        Self {
            layout,
            run: run.clone(),
            rng: Rng::new(run.seed ^ 1),
            started: 0,
            finished: 0,
            resent: 0,
            blocks: 0,
            last_ps: 0,
            running: BTreeMap::new(),
            sequences: BTreeMap::new(),
            versions: BTreeMap::new(),
        }
    }

    /// The last update of a block.
    pub(super) fn version(&self, stripe: u64, index: usize) -> u64 {
        self.versions.get(&(stripe, index)).copied().unwrap_or_default()
    }

    /// Begins updates as long as the window has room.
    pub(super) fn fill(&mut self, net: &mut UpdateNet) {
        while self.started < self.run.updates && self.running.len() < self.run.window {
            let stripe = self.rng.below(self.run.stripes);
            if self.running.contains_key(&stripe) {
                continue;
            }
            self.started += 1;
            let sequence = self.sequences.entry(stripe).or_default();
            *sequence += 1;
            let (sequence, indices) = (*sequence, self.choose(stripe));
            for index in indices.iter() {
                self.versions.insert((stripe, *index), sequence);
            }
            let update = StripeUpdate { stripe, sequence, indices };
            let running =
                RunningUpdate { update: update.clone(), old: BTreeMap::new(), written: 0 };
            self.running.insert(stripe, running);
            self.send(net, &update);
        }
    }

    /// Which blocks, in the order of the ring.
    fn choose(&mut self, stripe: u64) -> Rc<[usize]> {
        let data = self.layout.data_blocks();
        let count = self.run.blocks.unwrap_or_else(|| 1 + self.rng.index(data));
        let mut rest: Vec<usize> = (0..data).collect();
        while rest.len() > count {
            rest.remove(self.rng.index(rest.len()));
        }
        rest.sort_by_key(|index| self.layout.place_of(stripe, self.layout.node_of(stripe, *index)));
        rest.into()
    }

    fn new_block(&self, update: &StripeUpdate, index: usize) -> Rc<[u64]> {
        let key = ShardKey { writer: 0, stripe: update.stripe, index };
        content(self.run.seed, key, update.sequence, self.run.block)
    }

    fn node(&self, update: &StripeUpdate, index: usize) -> usize {
        1 + self.layout.node_of(update.stripe, index)
    }

    fn send(&mut self, net: &mut UpdateNet, update: &StripeUpdate) {
        for (at, index) in update.indices.iter().enumerate() {
            let body = match self.run.way {
                UpdateWay::Chain => UpdateBody::New { at, words: self.new_block(update, *index) },
                UpdateWay::ReadModifyWrite => UpdateBody::Read { index: *index },
            };
            let to = self.node(update, *index);
            net.send(WRITER, to, &UpdateMessage { update: update.clone(), body });
        }
        if self.run.way == UpdateWay::ReadModifyWrite {
            let index = self.layout.data_blocks();
            let (to, body) = (self.node(update, index), UpdateBody::Read { index });
            net.send(WRITER, to, &UpdateMessage { update: update.clone(), body });
        }
        let timeout_ps = TIMEOUTS * net.time.timing.timeout_ps;
        net.time.after(timeout_ps, UpdateEvent::Timeout { update: update.clone() });
    }

    /// Nothing has been heard of an update.
    pub(super) fn timeout(&mut self, net: &mut UpdateNet, update: &StripeUpdate) {
        let running = self.running.get(&update.stripe);
        if running.is_some_and(|running| running.update.sequence == update.sequence) {
            self.resent += 1;
            self.send(net, update);
        }
    }

    /// A message has come.
    pub(super) fn hear(&mut self, net: &mut UpdateNet, message: UpdateMessage) {
        let UpdateMessage { update, body } = message;
        let Some(running) = self.running.get_mut(&update.stripe) else { return };
        if running.update.sequence != update.sequence {
            return;
        }
        let is_finished = match body {
            UpdateBody::Done => true,
            UpdateBody::Old { index, words } => {
                running.old.insert(index, words);
                if running.old.len() > update.indices.len() {
                    self.modify(net, &update);
                }
                false
            }
            UpdateBody::WriteDone => {
                running.written += 1;
                running.written > update.indices.len()
            }
            _ => false,
        };
        if is_finished {
            self.running.remove(&update.stripe);
            self.finished += 1;
            self.blocks += update.indices.len() as u64;
            self.last_ps = net.time.now_ps();
            self.fill(net);
        }
    }

    /// All old blocks are here: makes the new parity, and writes.
    fn modify(&mut self, net: &mut UpdateNet, update: &StripeUpdate) {
        let Some(running) = self.running.get_mut(&update.stripe) else { return };
        let old = std::mem::take(&mut running.old);
        let parity_index = self.layout.data_blocks();
        let mut parity = old.get(&parity_index).map_or_else(Vec::new, |words| words.to_vec());
        for index in update.indices.iter() {
            let new = self.new_block(update, *index);
            xor_into(&mut parity, &new);
            if let Some(old) = old.get(index) {
                xor_into(&mut parity, old);
            }
            let body = UpdateBody::Write { words: new };
            let to = self.node(update, *index);
            net.send(WRITER, to, &UpdateMessage { update: update.clone(), body });
        }
        let body = UpdateBody::Write { words: Rc::from(parity) };
        let message = UpdateMessage { update: update.clone(), body };
        let (xors, to) = (2 * update.indices.len() as u64, self.node(update, parity_index));
        net.send_after(xors, WRITER, to, message);
    }
}
