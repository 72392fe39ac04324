//! The way out: frames, and which mechanism a message takes.

use super::Transport;
use super::frame::{PacketHeader, SEGMENT_SIZE};
use super::frame_io::SendOutcome;
use super::types::{Loss, QueuedMessage};
use crate::FabricError;
use crate::policy::{Mechanism, MechanismSizes, MessageShape, SegmentLayout, TransferPlan};

/// Segments that one frame describes, at most.
const SEGMENTS_MAX: usize = 128;
/// Control frames of one connection that wait, at most: a peer that makes us owe more is lost.
const CONTROL_MAX: usize = 4096;

impl Transport {
    /// Sends what waits on a connection, as far as credits and the provider go.
    pub(super) fn pump(&mut self, number: u64) -> Result<(), FabricError> {
        loop {
            let Some(open) = self.peers.slots.get_mut(number) else { return Ok(()) };
            if open.control.len() > CONTROL_MAX {
                return self.lose(number, Loss::Violation("it makes us owe too much"));
            }
            if let Some(control) = open.control.pop_front() {
                match self.io.send_frame(number, open, control.header, &[&control.body]) {
                    SendOutcome::Sent => continue,
                    SendOutcome::Failed(error) => return self.lose(number, Loss::Failed(error)),
                    SendOutcome::Later => open.control.push_front(control),
                }
                self.peers.make_busy(number);
                return Ok(());
            }
            if !open.is_open || open.waiting.is_empty() {
                return Ok(());
            }
            if open.credits == 0 {
                self.io.counters.credit_waits += 1;
                return Ok(());
            }
            let number_out = open.sequence_out.max(open.fast_out);
            if open.seal.as_ref().is_some_and(|seal| seal.is_worn(number_out)) {
                return self.lose(number, Loss::Worn);
            }
            let Some(waiting) = open.waiting.pop_front() else { return Ok(()) };
            if let Some(waiting) = self.send_message(number, waiting)? {
                if let Some(open) = self.peers.slots.get_mut(number) {
                    open.waiting.push_front(waiting);
                }
                self.peers.make_busy(number);
                return Ok(());
            }
        }
    }

    /// Sends a message; gives it back if there is no room now.
    fn send_message(
        &mut self,
        number: u64,
        waiting: QueuedMessage,
    ) -> Result<Option<QueuedMessage>, FabricError> {
        let bulk: usize = waiting.bulk.iter().map(|part| part.bytes().len()).sum();
        let Some(open) = self.peers.slots.get_mut(number) else { return Ok(None) };
        let limits = self.io.link.limits();
        let slot = open.their_slots.get(open.slot_out).map_or(0, |slot| slot.length as usize);
        let head = PacketHeader::frame_length(waiting.head.len(), open.seal.as_ref());
        let described = open.their_eager.saturating_sub(head);
        let room = MechanismSizes {
            inline: limits.inject.min(open.their_eager),
            eager: open.their_eager,
            fast: if open.free_slots > 0 { slot } else { 0 },
            segments: (described / SEGMENT_SIZE).clamp(1, SEGMENTS_MAX),
        };
        let shape = MessageShape { head, bulk, segments: waiting.bulk.len() };
        // A head that fills a frame travels as the first part of the bulk.
        if shape.head + SEGMENT_SIZE > open.their_eager {
            return self.ask(number, waiting, SegmentLayout::Gather, true);
        }
        let TransferPlan { mechanism, layout } = self.policy.choose(shape, room);
        match mechanism {
            Mechanism::Inline | Mechanism::Eager => {
                match self.io.send_whole(number, open, &waiting, bulk, mechanism) {
                    SendOutcome::Sent => Ok(None),
                    SendOutcome::Later => Ok(Some(waiting)),
                    SendOutcome::Failed(error) => {
                        self.lose(number, Loss::Failed(error)).map(|()| None)
                    }
                }
            }
            Mechanism::Fast => self
                .io
                .send_fast(number, open, waiting, bulk, layout)
                .or_else(|error| self.lose(number, Loss::Failed(error)).map(|()| None)),
            Mechanism::Read | Mechanism::Write => self.ask(number, waiting, layout, false),
        }
    }
}
