//! A switch that splits a stream into the blocks of stripes and makes their parity.

use std::collections::BTreeMap;

use super::block::ShardKey;
use super::encoder::StripeEncoder;
use super::layout::ParityLayout;
use super::message::{ActorMap, StripeMessage, StripeNotice};
use super::transport::{RingTransport, SlotRef, XorWork};

/// The switch.
#[derive(Debug)]
pub(super) struct ParitySwitch {
    map: ActorMap,
    layout: ParityLayout,
    /// It still encodes.
    pub(super) is_programmable: bool,
    encoders: BTreeMap<usize, (u32, StripeEncoder)>,
}

impl ParitySwitch {
    pub(super) fn new(map: ActorMap, layout: ParityLayout) -> Self {
        Self { map, layout, is_programmable: true, encoders: BTreeMap::new() }
    }

    /// A block has come. A switch that cannot encode says so.
    pub(super) fn arrived(
        &mut self,
        transport: &mut RingTransport<StripeMessage>,
        slot: SlotRef,
        key: ShardKey,
    ) {
        let (writer, epoch) = (slot.ring.writer, slot.ring.epoch);
        if !self.is_programmable {
            let body = StripeNotice::Unable;
            transport.hold(slot, &[]);
            transport.tell(writer, StripeMessage { writer, epoch, body });
            return;
        }
        let new = || (epoch, StripeEncoder::new(self.map.switch(), self.map, self.layout));
        let (known, encoder) = self.encoders.entry(writer).or_insert_with(new);
        if *known < epoch {
            transport.leave_epochs_before(self.map.switch(), writer, epoch);
            (*known, *encoder) = new();
        }
        encoder.arrived(transport, slot, key);
    }

    /// A control message has come. A switch that is up answers.
    pub(super) fn hear(transport: &mut RingTransport<StripeMessage>, message: &StripeMessage) {
        if matches!(message.body, StripeNotice::Probe) {
            let StripeMessage { writer, epoch, .. } = *message;
            let body = StripeNotice::Present;
            transport.tell(writer, StripeMessage { writer, epoch, body });
        }
    }

    /// The XOR module has had the time for one block.
    pub(super) fn computed(&mut self, transport: &mut RingTransport<StripeMessage>, work: XorWork) {
        let Some(slot) = work.data.filter(|_| self.is_programmable) else { return };
        if let Some((_, encoder)) = self.encoders.get_mut(&slot.ring.writer) {
            encoder.computed(transport, slot, work.key);
        }
    }
}
