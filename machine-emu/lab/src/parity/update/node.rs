//! A node that updates its blocks.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::super::block::{ShardKey, content, parity_of};
use super::super::layout::ParityLayout;
use super::{StripeUpdate, UpdateBody, UpdateMessage, UpdateNet, UpdateRun, WRITER};

/// A block as it is on disk. All of it changes at once.
#[derive(Debug)]
struct UpdatedBlock {
    words: Rc<[u64]>,
    /// Of the last update.
    sequence: u64,
    /// What was there before that.
    before: Rc<[u64]>,
}

/// The parts of a chain that are here; lost in a crash.
#[derive(Debug, Default)]
struct ChainParts {
    is_applied: bool,
    delta: Option<Rc<[u64]>>,
}

/// A node.
#[derive(Debug)]
pub(super) struct UpdateNode {
    node: usize,
    layout: ParityLayout,
    is_up: bool,
    forgets_sequences: bool,
    blocks: BTreeMap<u64, UpdatedBlock>,
    parts: BTreeMap<(u64, u64), ChainParts>,
    /// Deltas that were there already.
    pub(super) repeated: u64,
}

fn xor(a: &[u64], b: &[u64]) -> Rc<[u64]> {
    parity_of([a, b]).into()
}

impl UpdateNode {
    /// The node, with the first version of its blocks.
    pub(super) fn new(node: usize, layout: ParityLayout, run: &UpdateRun, forgets: bool) -> Self {
        let block = |stripe| {
            let data =
                |index| content(run.seed, ShardKey { writer: 0, stripe, index }, 0, run.block);
            let index = layout.index_at(stripe, node);
            let words: Rc<[u64]> = if index < layout.data_blocks() {
                data(index)
            } else {
                let data: Vec<Rc<[u64]>> = (0..index).map(data).collect();
                parity_of(data.iter().map(AsRef::as_ref)).into()
            };
            let before = Rc::clone(&words);
            (stripe, UpdatedBlock { words, sequence: 0, before })
        };
        Self {
            node,
            layout,
            is_up: true,
            forgets_sequences: forgets,
            blocks: (0..run.stripes).map(block).collect(),
            parts: BTreeMap::new(),
            repeated: 0,
        }
    }

    pub(super) fn words(&self, stripe: u64) -> &[u64] {
        self.blocks.get(&stripe).map_or(&[], |block| &block.words)
    }

    /// The node dies, or is up again.
    pub(super) fn crash(&mut self, is_up: bool) {
        self.is_up = is_up;
        self.parts.clear();
    }

    /// A message has come.
    pub(super) fn hear(&mut self, net: &mut UpdateNet, message: UpdateMessage) {
        let UpdateMessage { update, body } = message;
        if !self.is_up {
            return;
        }
        match body {
            UpdateBody::New { at, words } => self.apply(net, &update, at, words),
            UpdateBody::Delta { at, words } if at == update.indices.len() => {
                self.fold(net, update, &words);
            }
            UpdateBody::Delta { at, words } => {
                let parts = self.parts.entry((update.stripe, update.sequence)).or_default();
                parts.delta = Some(words);
                self.pass_on(net, &update, at);
            }
            UpdateBody::Read { index } => {
                let Some(block) = self.blocks.get(&update.stripe) else { return };
                let body = UpdateBody::Old { index, words: Rc::clone(&block.words) };
                net.send(self.node + 1, WRITER, &UpdateMessage { update, body });
            }
            UpdateBody::Write { words } => {
                if let Some(block) = self.blocks.get_mut(&update.stripe) {
                    block.words = words;
                }
                let body = UpdateBody::WriteDone;
                net.send(self.node + 1, WRITER, &UpdateMessage { update, body });
            }
            // The rest is for the writer.
            UpdateBody::Done | UpdateBody::Old { .. } | UpdateBody::WriteDone => {}
        }
    }

    /// Stores a new block once, and keeps the old one.
    fn apply(&mut self, net: &mut UpdateNet, update: &StripeUpdate, at: usize, words: Rc<[u64]>) {
        let Some(block) = self.blocks.get_mut(&update.stripe) else { return };
        if block.sequence > update.sequence {
            return;
        }
        if block.sequence < update.sequence {
            block.before = std::mem::replace(&mut block.words, words);
            block.sequence = update.sequence;
            self.parts.retain(|(stripe, sequence), _| {
                *stripe != update.stripe || *sequence >= update.sequence
            });
        }
        let parts = self.parts.entry((update.stripe, update.sequence)).or_default();
        parts.is_applied = true;
        self.pass_on(net, update, at);
    }

    /// Sends the delta of this block and of those before it, when both are known.
    fn pass_on(&mut self, net: &mut UpdateNet, update: &StripeUpdate, at: usize) {
        let key = (update.stripe, update.sequence);
        let Some(block) = self.blocks.get(&update.stripe) else { return };
        let is_whole = |parts: &ChainParts| parts.is_applied && (at == 0 || parts.delta.is_some());
        if block.sequence != update.sequence || !self.parts.get(&key).is_some_and(is_whole) {
            return;
        }
        let parts = self.parts.remove(&key).unwrap_or_default();
        let own = xor(&block.before, &block.words);
        let words = parts.delta.as_ref().map_or_else(|| Rc::clone(&own), |delta| xor(delta, &own));
        let following = at + 1;
        let index = update.indices.get(following).copied().unwrap_or(self.layout.data_blocks());
        let to = 1 + self.layout.node_of(update.stripe, index);
        let body = UpdateBody::Delta { at: following, words };
        let message = UpdateMessage { update: update.clone(), body };
        net.send_after(1 + u64::from(at > 0), self.node + 1, to, message);
    }

    /// Folds the delta of all blocks into the parity, once.
    fn fold(&mut self, net: &mut UpdateNet, update: StripeUpdate, delta: &[u64]) {
        let Some(parity) = self.blocks.get_mut(&update.stripe) else { return };
        let is_new = parity.sequence < update.sequence;
        if is_new || self.forgets_sequences {
            parity.words = xor(&parity.words, delta);
            parity.sequence = update.sequence;
        }
        self.repeated += u64::from(!is_new);
        net.send_after(1, self.node + 1, WRITER, UpdateMessage { update, body: UpdateBody::Done });
    }
}
