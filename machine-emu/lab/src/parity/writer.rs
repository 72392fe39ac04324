//! A writer: it cuts a file into stripes, sends blocks in the order of its policy, and keeps them
//! until it need not send them again.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use super::block::{ShardKey, content, xor_into};
use super::layout::{ParityLayout, in_stripe_order};
use super::message::{ActorMap, StripeMessage, StripeNotice};
use super::transport::{ActorId, PutSource, RingKey, RingKind, RingTransport, XorWork};
use super::window::AckWindow;

/// Blocks that a writer has at its port: one that leaves and the next.
const POSTED_MAX: usize = 2;

/// A timeout doubles this often, at most.
const DOUBLINGS_MAX: u32 = 10;

/// Who makes the parity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParityPolicy {
    /// There is no parity.
    Absent,
    /// The writer, which sends parity as it sends data.
    Writer,
    /// The storage nodes, in turn round the ring.
    Ring,
    /// One process of the storage for each stripe, as in MDFS.
    Process,
    /// A switch on the way.
    Switch,
}

/// A block that has not left. Parity has no words until it is made.
#[derive(Debug)]
struct PendingBlock {
    to: ActorId,
    kind: RingKind,
    key: ShardKey,
    is_ready: bool,
}

/// What a writer writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct WriterTask {
    pub(super) stripes: u64,
    pub(super) block: usize,
    pub(super) seed: u64,
    /// Blocks for the ring are sent in the order of the thesis, else one stripe after the other.
    pub(super) in_waves: bool,
}

/// A writer.
#[derive(Debug)]
pub(super) struct StripeWriter {
    writer: usize,
    map: ActorMap,
    layout: ParityLayout,
    pub(super) maker: ParityPolicy,
    task: WriterTask,
    /// Blocks that may wait to be sent: enough for the rings of all nodes.
    pending_max: usize,
    next: u64,
    again: Vec<u64>,
    pending: VecDeque<PendingBlock>,
    /// Blocks that may have to be sent, or sent again.
    kept: BTreeMap<ShardKey, Rc<[u64]>>,
    /// Blocks at the port.
    posted: usize,
    pub(super) epoch: u32,
    window: Option<AckWindow>,
    /// When something was heard last.
    news_ps: u64,
    /// How often it has sent again since a stripe was acknowledged. The timeout doubles with each
    /// time: media that are behind would get ever more to do.
    repeats: u32,
    /// The switch was asked since whether it is up, and whether it has answered.
    probe: Option<bool>,
    pub(super) kept_max: usize,
}

impl StripeWriter {
    pub(super) fn new(
        writer: usize,
        (map, layout): (ActorMap, ParityLayout),
        maker: ParityPolicy,
        task: WriterTask,
        slots: usize,
        window: Option<AckWindow>,
    ) -> Self {
        Self {
            writer,
            map,
            layout,
            maker,
            task,
            pending_max: slots * layout.nodes,
            next: 0,
            again: Vec::new(),
            pending: VecDeque::new(),
            kept: BTreeMap::new(),
            posted: 0,
            epoch: 1,
            window,
            news_ps: 0,
            repeats: 0,
            probe: None,
            kept_max: 0,
        }
    }

    /// The writer begins.
    pub(super) fn begin(&mut self, transport: &mut RingTransport<StripeMessage>) {
        if self.window.is_some() {
            self.news_ps = transport.now_ps();
            transport.timer(self.writer, transport.timing().timeout_ps, 0);
        }
        self.fill(transport);
    }

    /// A block has left the port.
    pub(super) fn departed(&mut self, transport: &mut RingTransport<StripeMessage>) {
        self.posted -= 1;
        self.fill(transport);
    }

    /// Sends what can be sent: the first block, in the order of the policy, whose receiver has a
    /// slot.
    pub(super) fn fill(&mut self, transport: &mut RingTransport<StripeMessage>) {
        self.plan(transport);
        while self.posted < POSTED_MAX {
            let Some(at) = self.first_sendable(transport) else { return };
            let Some(block) = self.pending.remove(at) else { return };
            let Some(words) = self.kept.get(&block.key).cloned() else { return };
            if self.window.is_none() {
                self.kept.remove(&block.key);
            }
            let ring = self.ring(block.kind);
            self.posted += 1;
            transport.send(self.writer, block.to, ring, block.key, PutSource::Memory(words));
            self.plan(transport);
        }
    }

    fn ring(&self, kind: RingKind) -> RingKey {
        RingKey { writer: self.writer, epoch: self.epoch, from: self.writer, kind }
    }

    fn first_sendable(&self, transport: &mut RingTransport<StripeMessage>) -> Option<usize> {
        let mut is_full = vec![false; self.map.switch() + 1];
        for (at, block) in self.pending.iter().enumerate() {
            if is_full[block.to] || !block.is_ready {
                continue;
            }
            if transport.has_credit(self.writer, block.to, self.ring(block.kind)) {
                return Some(at);
            }
            is_full[block.to] = true;
        }
        None
    }

    /// Puts the blocks of more stripes into the queue.
    fn plan(&mut self, transport: &mut RingTransport<StripeMessage>) {
        loop {
            let stripes = if self.again.is_empty() {
                let group = if self.maker == ParityPolicy::Ring { self.layout.nodes } else { 1 };
                let end = (self.next + group as u64).min(self.task.stripes);
                let has_room = self.window.as_ref().is_none_or(|window| window.has_room(group));
                if self.next == end || !has_room || self.pending.len() >= self.pending_max {
                    return;
                }
                (std::mem::replace(&mut self.next, end)..end).collect()
            } else {
                std::mem::take(&mut self.again)
            };
            self.plan_stripes(transport, &stripes);
        }
    }

    fn plan_stripes(&mut self, transport: &mut RingTransport<StripeMessage>, stripes: &[u64]) {
        let (data, shards) = (self.layout.data_blocks(), self.layout.shards());
        for stripe in stripes {
            if let Some(window) = &mut self.window {
                window.sent(*stripe);
            }
            for index in 0..data {
                let key = ShardKey { writer: self.writer, stripe: *stripe, index };
                let words = || content(self.task.seed, key, 0, self.task.block);
                self.kept.entry(key).or_insert_with(words);
            }
        }
        let order = match self.maker {
            ParityPolicy::Ring if self.task.in_waves => self.layout.waves(stripes),
            ParityPolicy::Writer => in_stripe_order(stripes, shards),
            _ => in_stripe_order(stripes, data),
        };
        for (stripe, index) in order {
            let key = ShardKey { writer: self.writer, stripe, index };
            let is_ready = self.kept.contains_key(&key);
            if !is_ready {
                self.encode(transport, key);
            }
            let (to, kind) = self.address(key);
            self.pending.push_back(PendingBlock { to, kind, key, is_ready });
        }
        self.kept_max = self.kept_max.max(self.kept.len());
    }

    fn address(&self, key: ShardKey) -> (ActorId, RingKind) {
        let owner = self.map.storage(self.layout.node_of(key.stripe, key.index));
        match self.maker {
            ParityPolicy::Absent | ParityPolicy::Writer => (owner, RingKind::Store),
            ParityPolicy::Ring => (owner, RingKind::Pipeline),
            // Wide stripes in a row go to processes in turn.
            ParityPolicy::Process => {
                let node = (key.stripe % self.layout.nodes as u64) as usize;
                (self.map.storage(node), RingKind::Deposit)
            }
            ParityPolicy::Switch => (self.map.switch(), RingKind::Deposit),
        }
    }

    /// Lets the processor of the writer make the parity of a stripe.
    fn encode(&mut self, transport: &mut RingTransport<StripeMessage>, parity: ShardKey) {
        for index in 1..parity.index {
            let key = ShardKey { index, ..parity };
            transport.compute(self.writer, XorWork { partial: None, data: None, key });
        }
    }

    /// The processor has had the time for one XOR. With the last one parity may be sent.
    pub(super) fn computed(&mut self, transport: &mut RingTransport<StripeMessage>, key: ShardKey) {
        transport.count_xor();
        let data = self.layout.data_blocks();
        let parity = ShardKey { index: data, ..key };
        if key.index + 1 < data {
            return;
        }
        let mut words = Vec::new();
        for index in 0..data {
            // Without a window a block is let go when it is sent; the program still has it.
            let block = match self.kept.get(&ShardKey { index, ..key }) {
                Some(block) => Rc::clone(block),
                None => content(self.task.seed, ShardKey { index, ..key }, 0, self.task.block),
            };
            if words.is_empty() {
                words = block.to_vec();
            } else {
                xor_into(&mut words, &block);
            }
        }
        self.kept.insert(parity, Rc::from(words));
        if let Some(block) = self.pending.iter_mut().find(|block| block.key == parity) {
            block.is_ready = true;
        }
        self.fill(transport);
    }

    /// A control message has come. Answers with the stripes that are acknowledged by it.
    pub(super) fn hear(
        &mut self,
        transport: &mut RingTransport<StripeMessage>,
        message: StripeMessage,
    ) -> Vec<u64> {
        let Some(window) = self.window.as_mut().filter(|_| message.epoch == self.epoch) else {
            return Vec::new();
        };
        if matches!(message.body, StripeNotice::Present) {
            self.probe = Some(true);
            return Vec::new();
        }
        (self.news_ps, self.probe) = (transport.now_ps(), None);
        let outcome = match message.body {
            StripeNotice::Stored { stripe, boots } => {
                window.stored(stripe, boots);
                None
            }
            StripeNotice::Flushed { number, node } => window.flushed(number, node),
            StripeNotice::Unable => {
                self.maker = ParityPolicy::Writer;
                self.send_again(transport);
                None
            }
            _ => None,
        };
        let Some(window) = &mut self.window else { return Vec::new() };
        let flush = window.start_flush();
        if let Some(number) = flush {
            self.tell_nodes(transport, &StripeNotice::Flush { number });
        }
        let Some(outcome) = outcome else { return Vec::new() };
        for stripe in &outcome.acknowledged {
            for index in 0..self.layout.shards() {
                self.kept.remove(&ShardKey { writer: self.writer, stripe: *stripe, index });
            }
        }
        if !outcome.acknowledged.is_empty() {
            self.repeats = 0;
        }
        if outcome.has_lost {
            self.send_again(transport);
        }
        self.fill(transport);
        outcome.acknowledged
    }

    fn tell_nodes(&self, transport: &mut RingTransport<StripeMessage>, body: &StripeNotice) {
        for node in 0..self.map.nodes {
            let message =
                StripeMessage { writer: self.writer, epoch: self.epoch, body: body.clone() };
            transport.tell(self.map.storage(node), message);
        }
    }

    /// A new epoch: nodes drop what they have of the old one, and all that is not acknowledged is
    /// sent again.
    fn send_again(&mut self, transport: &mut RingTransport<StripeMessage>) {
        let Some(window) = &mut self.window else { return };
        self.again = window.restart();
        self.epoch += 1;
        self.pending.clear();
        transport.leave_epochs_before(self.writer, self.writer, self.epoch);
        self.tell_nodes(transport, &StripeNotice::NewEpoch);
        self.fill(transport);
    }

    /// The timer has ticked. After half of the timeout without news the switch is asked whether it
    /// is up: a node may be dead as well.
    pub(super) fn timeout(&mut self, transport: &mut RingTransport<StripeMessage>) {
        let Some(window) = &self.window else { return };
        if window.is_empty() && self.next == self.task.stripes {
            return;
        }
        let now_ps = transport.now_ps();
        let timeout_ps = transport.timing().timeout_ps << self.repeats.min(DOUBLINGS_MAX);
        let silent_ps = now_ps - self.news_ps;
        if silent_ps >= timeout_ps {
            if self.maker == ParityPolicy::Switch && self.probe == Some(false) {
                self.maker = ParityPolicy::Writer;
            }
            (self.news_ps, self.probe) = (now_ps, None);
            self.repeats += 1;
            self.send_again(transport);
        } else if silent_ps >= timeout_ps / 2 && self.probe.is_none() {
            self.probe = Some(false);
            let (writer, epoch) = (self.writer, self.epoch);
            let probe = StripeMessage { writer, epoch, body: StripeNotice::Probe };
            transport.tell(self.map.switch(), probe);
        }
        let timeout_ps = transport.timing().timeout_ps << self.repeats.min(DOUBLINGS_MAX);
        let wait_ps = if self.probe.is_some() { timeout_ps } else { timeout_ps / 2 };
        transport.timer(self.writer, self.news_ps + wait_ps - now_ps, 0);
    }
}
