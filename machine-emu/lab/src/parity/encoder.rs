//! Who gets whole stripes encodes them: a process of the storage, or a switch.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::block::{ShardKey, xor_into};
use super::layout::ParityLayout;
use super::message::{ActorMap, StripeMessage};
use super::ring::SlotTail;
use super::transport::{ActorId, PutSource, RingKey, RingKind, RingTransport, SlotRef, XorWork};

/// The parity of a stripe, as far as its blocks have come.
#[derive(Debug, Default)]
struct GrowingParity {
    /// The first block waits for the second, so that nothing need be copied.
    first: Option<SlotRef>,
    words: Vec<u64>,
    xors: usize,
}

/// Encodes the stripes of one epoch of a writer, and sends blocks to their nodes.
#[derive(Debug)]
pub(super) struct StripeEncoder {
    actor: ActorId,
    map: ActorMap,
    layout: ParityLayout,
    growing: BTreeMap<u64, GrowingParity>,
}

impl StripeEncoder {
    pub(super) fn new(actor: ActorId, map: ActorMap, layout: ParityLayout) -> Self {
        Self { actor, map, layout, growing: BTreeMap::new() }
    }

    /// A block of data has come.
    pub(super) fn arrived(
        &mut self,
        transport: &mut RingTransport<StripeMessage>,
        slot: SlotRef,
        key: ShardKey,
    ) {
        let is_own = self.owner(key) == self.actor;
        let reader = if is_own { SlotTail::Medium } else { SlotTail::Relay };
        transport.hold(slot, &[reader, SlotTail::Xor]);
        self.place(transport, slot.ring, key, PutSource::Slot(slot));
        let growing = self.growing.entry(key.stripe).or_default();
        if growing.first.is_none() {
            growing.first = Some(slot);
        } else {
            transport.compute(self.actor, XorWork { partial: None, data: Some(slot), key });
        }
    }

    fn owner(&self, key: ShardKey) -> ActorId {
        self.map.storage(self.layout.node_of(key.stripe, key.index))
    }

    /// Stores a block here or sends it to its node.
    fn place(
        &self,
        transport: &mut RingTransport<StripeMessage>,
        ring: RingKey,
        key: ShardKey,
        source: PutSource,
    ) {
        let owner = self.owner(key);
        if owner == self.actor {
            transport.store(self.actor, ring.epoch, key, source);
        } else {
            let ring = RingKey { from: self.actor, kind: RingKind::Store, ..ring };
            transport.send(self.actor, owner, ring, key, source);
        }
    }

    /// The processor has had the time to XOR one block more.
    pub(super) fn computed(
        &mut self,
        transport: &mut RingTransport<StripeMessage>,
        slot: SlotRef,
        key: ShardKey,
    ) {
        let Some(growing) = self.growing.get_mut(&key.stripe) else { return };
        if let Some(first) = growing.first.filter(|_| growing.xors == 0) {
            growing.words = transport.words(first).map_or_else(Vec::new, |words| words.to_vec());
            transport.pass(first, SlotTail::Xor);
        }
        let Some(words) = transport.words(slot) else { return };
        xor_into(&mut growing.words, &words);
        transport.count_xor();
        transport.pass(slot, SlotTail::Xor);
        growing.xors += 1;
        let data = self.layout.data_blocks();
        if growing.xors + 1 == data {
            let words = std::mem::take(&mut growing.words);
            self.growing.remove(&key.stripe);
            let parity = ShardKey { index: data, ..key };
            self.place(transport, slot.ring, parity, PutSource::Memory(Rc::from(words)));
        }
    }
}
