//! A storage node: it stores blocks, and makes parity with its neighbours in the ring or alone.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use super::block::ShardKey;
use super::encoder::StripeEncoder;
use super::layout::ParityLayout;
use super::message::{ActorMap, BootedNode, StripeMessage, StripeNotice};
use super::plant::ParityPlant;
use super::ring::SlotTail;
use super::transport::{ActorId, PutSource, RingKey, RingKind, RingTransport, SlotRef, XorWork};

/// Blocks by what they are.
pub(super) type ShardMap = BTreeMap<ShardKey, Rc<[u64]>>;

/// The token of a stripe, as a node sees it.
#[derive(Debug, Default)]
struct StripeToken {
    is_stored: bool,
    /// From the nodes before; the head of a pipeline needs none.
    boots: Option<Vec<BootedNode>>,
}

/// What a node has of one epoch of a writer.
#[derive(Debug)]
struct StorageLane {
    epoch: u32,
    /// Blocks that wait for the partial parity of their stripe.
    data: BTreeMap<u64, SlotRef>,
    /// Partial parity that waits for the block.
    partials: BTreeMap<u64, SlotRef>,
    tokens: BTreeMap<u64, StripeToken>,
    encoder: StripeEncoder,
    /// The block of the last XOR, for the fault of a wrong partner.
    last_partner: Option<SlotRef>,
}

/// A storage node.
#[derive(Debug)]
pub(super) struct StorageNode {
    actor: ActorId,
    node: usize,
    map: ActorMap,
    layout: ParityLayout,
    /// Writers want to know what is stored.
    acknowledges: bool,
    plant: Option<ParityPlant>,
    lanes: BTreeMap<usize, StorageLane>,
    /// Stored, and lost with the boot.
    pub(super) stored: ShardMap,
    pub(super) durable: ShardMap,
    /// Flushes that run: writer, epoch, number.
    flushes: VecDeque<(usize, u32, u64)>,
}

impl StorageNode {
    pub(super) fn new(
        node: usize,
        map: ActorMap,
        layout: ParityLayout,
        acknowledges: bool,
        plant: Option<ParityPlant>,
    ) -> Self {
        Self {
            actor: map.storage(node),
            node,
            map,
            layout,
            acknowledges,
            plant,
            lanes: BTreeMap::new(),
            stored: ShardMap::new(),
            durable: ShardMap::new(),
            flushes: VecDeque::new(),
        }
    }

    /// The content of a block.
    pub(super) fn block(&self, key: ShardKey) -> Option<&[u64]> {
        self.stored.get(&key).or_else(|| self.durable.get(&key)).map(AsRef::as_ref)
    }

    /// All blocks.
    pub(super) fn into_image(self) -> ShardMap {
        let mut image = self.durable;
        image.extend(self.stored);
        image
    }

    /// The node dies.
    pub(super) fn forget(&mut self) {
        self.lanes.clear();
        self.stored.clear();
        self.flushes.clear();
    }

    /// The lane of a writer at this epoch; none if a later one has begun.
    fn lane(
        &mut self,
        transport: &mut RingTransport<StripeMessage>,
        writer: usize,
        epoch: u32,
    ) -> Option<&mut StorageLane> {
        let known = self.lanes.get(&writer).map(|lane| lane.epoch);
        if known.is_none_or(|known| known < epoch) {
            transport.leave_epochs_before(self.actor, writer, epoch);
            let encoder = StripeEncoder::new(self.actor, self.map, self.layout);
            let lane = StorageLane {
                epoch,
                data: BTreeMap::new(),
                partials: BTreeMap::new(),
                tokens: BTreeMap::new(),
                encoder,
                last_partner: None,
            };
            self.lanes.insert(writer, lane);
        }
        self.lanes.get_mut(&writer).filter(|lane| lane.epoch == epoch)
    }

    /// A block has come.
    pub(super) fn arrived(
        &mut self,
        transport: &mut RingTransport<StripeMessage>,
        slot: SlotRef,
        key: ShardKey,
    ) {
        let RingKey { writer, epoch, kind, .. } = slot.ring;
        let (place, tail) = (self.layout.place_of(key.stripe, self.node), self.layout.nodes - 1);
        let plant = self.plant;
        let Some(lane) = self.lane(transport, writer, epoch) else { return };
        match kind {
            RingKind::Store => transport.hold(slot, &[SlotTail::Medium]),
            RingKind::Deposit => return lane.encoder.arrived(transport, slot, key),
            RingKind::Pipeline if place == 0 => {
                transport.hold(slot, &[SlotTail::Medium, SlotTail::Relay]);
                lane.tokens.insert(key.stripe, StripeToken::head());
                self.relay(transport, slot, key, 1);
            }
            RingKind::Pipeline => {
                let all = [SlotTail::Medium, SlotTail::Xor];
                let is_dropped = plant == Some(ParityPlant::DroppedTail);
                transport.hold(slot, if is_dropped { &all[..1] } else { &all });
                lane.tokens.entry(key.stripe).or_default();
                lane.data.insert(key.stripe, slot);
            }
            RingKind::Relay(_) if place == tail => {
                transport.hold(slot, &[SlotTail::Medium]);
                lane.tokens.entry(key.stripe).or_default();
            }
            RingKind::Relay(_) => {
                transport.hold(slot, &[SlotTail::Relay]);
                lane.partials.insert(key.stripe, slot);
                return self.join(transport, writer, key);
            }
        }
        let index = self.layout.index_at(key.stripe, self.node);
        let source = PutSource::Slot(slot);
        transport.store(self.actor, epoch, ShardKey { index, ..key }, source);
        self.join(transport, writer, key);
    }

    /// Sends partial parity to the right neighbour, which has this place in the pipeline.
    fn relay(
        &self,
        transport: &mut RingTransport<StripeMessage>,
        slot: SlotRef,
        key: ShardKey,
        place: usize,
    ) {
        let right = self.map.storage(self.layout.right_of(self.node));
        let class = if self.plant == Some(ParityPlant::OneRing) { 1 } else { place };
        let ring = RingKey { from: self.actor, kind: RingKind::Relay(class), ..slot.ring };
        transport.send(self.actor, right, ring, key, PutSource::Slot(slot));
    }

    /// XORs a block with the partial parity of its stripe if both are here.
    fn join(&mut self, transport: &mut RingTransport<StripeMessage>, writer: usize, key: ShardKey) {
        let Some(lane) = self.lanes.get_mut(&writer) else { return };
        let stripe = &key.stripe;
        if !(lane.data.contains_key(stripe) && lane.partials.contains_key(stripe)) {
            return;
        }
        let (partial, data) = (lane.partials.remove(stripe), lane.data.remove(stripe));
        transport.compute(self.actor, XorWork { partial, data, key });
    }

    /// The processor has had the time for an XOR.
    pub(super) fn computed(&mut self, transport: &mut RingTransport<StripeMessage>, work: XorWork) {
        let XorWork { partial, data: Some(data), key } = work else { return };
        let RingKey { writer, epoch, .. } = data.ring;
        let wrong = self.plant == Some(ParityPlant::WrongPartner);
        let place = self.layout.place_of(key.stripe, self.node);
        let Some(lane) = self.lane(transport, writer, epoch) else { return };
        let Some(partial) = partial else { return lane.encoder.computed(transport, data, key) };
        let partner = lane.last_partner.replace(data).filter(|_| wrong).unwrap_or(data);
        transport.xor_slots(partial, partner);
        transport.pass(data, SlotTail::Xor);
        self.relay(transport, partial, key, place + 1);
    }

    /// The medium has taken a block.
    pub(super) fn stored(
        &mut self,
        transport: &mut RingTransport<StripeMessage>,
        epoch: u32,
        key: ShardKey,
        words: Rc<[u64]>,
    ) {
        self.stored.insert(key, words);
        if !self.acknowledges {
            return;
        }
        let boot = (self.actor, transport.boot(self.actor));
        let Some(lane) = self.lane(transport, key.writer, epoch) else { return };
        if let Some(token) = lane.tokens.get_mut(&key.stripe) {
            token.is_stored = true;
            self.pass_token(transport, key.writer, key.stripe);
        } else {
            let body = StripeNotice::Stored { stripe: key.stripe, boots: vec![boot] };
            transport.tell(key.writer, StripeMessage { writer: key.writer, epoch, body });
        }
    }

    /// The token of a stripe goes on when it is here and the block is stored.
    fn pass_token(
        &mut self,
        transport: &mut RingTransport<StripeMessage>,
        writer: usize,
        stripe: u64,
    ) {
        let is_early = self.plant == Some(ParityPlant::EarlyToken);
        let Some(lane) = self.lanes.get_mut(&writer) else { return };
        let ready = |token: &StripeToken| token.boots.is_some() && (token.is_stored || is_early);
        if !lane.tokens.get(&stripe).is_some_and(ready) {
            return;
        }
        let token = lane.tokens.remove(&stripe).unwrap_or_default();
        let mut boots = token.boots.unwrap_or_default();
        boots.push((self.actor, transport.boot(self.actor)));
        let is_last = self.layout.parity_node(stripe) == self.node;
        let (to, body) = if is_last {
            (writer, StripeNotice::Stored { stripe, boots })
        } else {
            let right = self.map.storage(self.layout.right_of(self.node));
            (right, StripeNotice::Token { stripe, boots })
        };
        transport.tell(to, StripeMessage { writer, epoch: lane.epoch, body });
    }

    /// A control message has come.
    pub(super) fn hear(
        &mut self,
        transport: &mut RingTransport<StripeMessage>,
        message: StripeMessage,
    ) {
        let StripeMessage { writer, epoch, body } = message;
        let flush_ps = transport.timing().flush_ps;
        let Some(lane) = self.lane(transport, writer, epoch) else { return };
        match body {
            StripeNotice::Token { stripe, boots } => {
                lane.tokens.entry(stripe).or_default().boots = Some(boots);
                self.pass_token(transport, writer, stripe);
            }
            StripeNotice::Flush { number } => {
                self.flushes.push_back((writer, epoch, number));
                transport.timer(self.actor, flush_ps, number);
            }
            // The lane has been renewed; the rest is for writers.
            _ => {}
        }
    }

    /// A flush has ended.
    pub(super) fn flushed(&mut self, transport: &mut RingTransport<StripeMessage>) {
        let Some((writer, epoch, number)) = self.flushes.pop_front() else { return };
        let (own, rest) = std::mem::take(&mut self.stored)
            .into_iter()
            .partition::<ShardMap, _>(|(key, _)| key.writer == writer);
        self.durable.extend(own);
        self.stored = rest;
        let node = (self.actor, transport.boot(self.actor));
        let body = StripeNotice::Flushed { number, node };
        transport.tell(writer, StripeMessage { writer, epoch, body });
    }
}

impl StripeToken {
    fn head() -> Self {
        Self { is_stored: false, boots: Some(Vec::new()) }
    }
}
