//! The bulk of large messages: the receiver reads it, or grants memory into which the sender writes
//! it, piece by piece, never more than [`THROTTLE`] pieces at once over all connections.
//!
//! What is written is told by a message behind it; nothing else says that it can be seen.

use bytes::Bytes;
use crc_fast::CrcAlgorithm::Crc32Iscsi;

use super::Transport;
use super::frame::{
    HEAD_IN_BULK, HEAVY_SERVER, PacketHeader, PacketKind, SHALL_READ, SHALL_WRITE, SUM_IS_HERE,
    UNCHECKED, encode_segments,
};
use super::frame_io::{BulkSource, SendOutcome};
use super::seal::{SealUse, TAG_SIZE};
use super::transfers::{IncomingBulk, OutgoingBulk};
use super::types::{
    BulkPart, ConnectionId, ControlFrame, FabricEvent, Loss, QueuedMessage, RendezvousRequest,
    TransferRef,
};
use crate::FabricError;
use crate::link::{FabricBuffer, RemoteSegment};
use crate::policy::{Loads, Mechanism, SegmentLayout, THROTTLE};

/// Bulks up to here are summed before the frame that asks: a frame more would cost more.
const SUM_AT_ONCE: usize = 32 << 10;

impl Transport {
    /// Tells the peer of a bulk and where it lies; gives the message back if there is no room.
    pub(super) fn ask(
        &mut self,
        number: u64,
        waiting: QueuedMessage,
        layout: SegmentLayout,
        head_in_bulk: bool,
    ) -> Result<Option<QueuedMessage>, FabricError> {
        let Some(open) = self.peers.slots.get_mut(number) else { return Ok(None) };
        let owner = open.owner;
        let QueuedMessage { head, mut bulk } = waiting;
        let head_length = head.len();
        let length: usize = bulk.iter().map(|part| part.bytes().len()).sum();
        if head_in_bulk {
            bulk.insert(0, BulkPart::Bytes(head.clone()));
        }
        bulk.retain(|part| !part.bytes().is_empty());
        let packs = bulk.len() > 1 && (layout == SegmentLayout::Pack || head_in_bulk);
        let laid = match self.io.lay_out(open.seal.as_mut(), bulk, packs) {
            Ok(laid) => laid,
            Err(bulk) => return Ok(Some(unpacked(head, bulk, head_in_bulk))),
        };
        let BulkSource { parts, plain, count } = laid;
        let total = parts.iter().map(FabricBuffer::len).sum();
        let give_back = |parts: Vec<FabricBuffer>, plain: Vec<BulkPart>| {
            let lying = parts.into_iter().map(BulkPart::FabricBuffer).collect();
            unpacked(head.clone(), if count.is_some() { plain } else { lying }, head_in_bulk)
        };
        let exposed: Result<Vec<_>, _> =
            parts.iter().map(|part| self.io.link.expose_to_read(owner, part)).collect();
        let Ok(exposures) = exposed else { return Ok(Some(give_back(parts, plain))) };
        let segments: Vec<RemoteSegment> = exposures.iter().map(|one| one.remote).collect();
        let granted = None;
        let transfer = OutgoingBulk {
            connection: number,
            parts,
            exposures,
            total,
            granted,
            next: 0,
            written: 0,
        };
        let transfer = match self.transfers.outgoing.insert(transfer) {
            Ok(transfer) => transfer,
            Err(full) => {
                full.exposures.into_iter().for_each(|one| self.io.link.conceal(one));
                return Ok(Some(give_back(full.parts, plain)));
            }
        };
        let mut header = PacketHeader {
            head_length: head_length as u32,
            bulk_length: length as u32,
            transfer,
            segments: segments.len() as u16,
            ..PacketHeader::new(PacketKind::RendezvousRequest)
        };
        if head_in_bulk {
            header.flags |= HEAD_IN_BULK;
        }
        header.flags |= match self.policy.forced.mechanism {
            Some(Mechanism::Read) => SHALL_READ,
            Some(Mechanism::Write) => SHALL_WRITE,
            _ => 0,
        };
        // What is sealed brings its own proof.
        let sums = self.io.setup.check_bulk && count.is_none();
        let sums_now = sums && total <= SUM_AT_ONCE;
        if let Some(count) = count {
            header.bulk_checksum = count;
        } else if sums_now {
            header.bulk_checksum = self.transfers.sum_of(transfer);
            header.flags |= SUM_IS_HERE;
        } else if !sums {
            header.flags |= UNCHECKED;
        }
        let body = encode_segments(segments.into_iter());
        let head: &[u8] = if head_in_bulk { &[] } else { &head };
        let body: [&[u8]; 2] = [head, &body];
        if let Some(open) = self.peers.slots.get_mut(number) {
            match self.io.send_frame(number, open, header, &body) {
                SendOutcome::Sent => {}
                SendOutcome::Failed(error) => self.lose(number, Loss::Failed(error))?,
                // It goes before all that follows.
                SendOutcome::Later => {
                    self.peers.control(number, ControlFrame { header, body: body.concat() });
                }
            }
        }
        if sums && !sums_now && self.transfers.outgoing.get(transfer).is_some() {
            // The receiver may already be reading while this is computed.
            let mut frame = ControlFrame::new(PacketKind::Sum, transfer);
            frame.header.bulk_checksum = self.transfers.sum_of(transfer);
            self.peers.control(number, frame);
        }
        Ok(None)
    }

    /// A peer has a bulk for us.
    pub(super) fn take_ask(
        &mut self,
        number: u64,
        ask: RendezvousRequest,
    ) -> Result<(), FabricError> {
        let promised: Option<u64> =
            ask.segments.iter().try_fold(0u64, |sum, segment| sum.checked_add(segment.length));
        let most = self.io.setup.longest + TAG_SIZE;
        if promised != Some(ask.total() as u64) || ask.total() > most || ask.total() == 0 {
            return self.violate(number, "segments that do not fit their message");
        }
        let Some(open) = self.peers.slots.get_mut(number) else { return Ok(()) };
        open.asks.push_back(ask);
        if open.asks.len() > usize::from(self.io.setup.credits) {
            return self.violate(number, "more messages than it has credits for");
        }
        self.begin_asks(number)
    }

    /// Begins the transfers that wait for memory, as far as there is some.
    pub(super) fn begin_asks(&mut self, number: u64) -> Result<(), FabricError> {
        while let Some(open) = self.peers.slots.get_mut(number) {
            let Some(ask) = open.asks.front() else { return Ok(()) };
            let Ok(buffer) = open.arena.take(ask.total()) else {
                // The arena gets room when its bytes are dropped, wherever: look again soon.
                self.starved = true;
                return Ok(());
            };
            let Some(ask) = open.asks.pop_front() else { return Ok(()) };
            open.owed += 1;
            self.begin_in(number, ask, buffer)?;
        }
        Ok(())
    }

    fn begin_in(
        &mut self,
        number: u64,
        ask: RendezvousRequest,
        mut buffer: FabricBuffer,
    ) -> Result<(), FabricError> {
        let Some(owner) = self.peers.slots.get(number).map(|open| open.owner) else {
            return Ok(());
        };
        let has_sum = ask.header.flags & SUM_IS_HERE != 0;
        let loads = Loads {
            receiver: self.io.moving,
            sender: ask.header.load,
            receiver_is_heavy_server: self.io.setup.is_server
                && self.io.moving >= crate::policy::HEAVY,
            sender_is_heavy_server: ask.header.flags & HEAVY_SERVER != 0,
        };
        let direction = match ask.header.flags & (SHALL_READ | SHALL_WRITE) {
            SHALL_READ => Mechanism::Read,
            SHALL_WRITE => Mechanism::Write,
            _ => self.policy.direction(ask.total(), loads),
        };
        let exposure = if direction == Mechanism::Write {
            Some(self.io.link.expose_to_write(owner, &mut buffer)?)
        } else {
            None
        };
        let (theirs, remote) = (ask.header.transfer, exposure.as_ref().map(|one| one.remote));
        let sum = has_sum.then_some(ask.header.bulk_checksum);
        let incoming =
            IncomingBulk { connection: number, ask, buffer, exposure, next: 0, arrived: 0, sum };
        let Ok(transfer) = self.transfers.incoming.insert(incoming) else {
            return self.lose(number, Loss::Violation("more transfers than it has credits for"));
        };
        self.transfers.asked.insert((number, theirs), transfer);
        if let Some(remote) = remote {
            self.peers.control(number, ControlFrame::grant(theirs, transfer, remote));
            return self.pump(number);
        }
        self.io.counters.by_mechanism[Mechanism::Read as usize] += 1;
        self.transfers.ready.push_back(TransferRef::In(transfer));
        self.move_pieces()
    }

    /// Begins as many pieces as the throttle lets, each transfer in turn.
    pub(super) fn move_pieces(&mut self) -> Result<(), FabricError> {
        while self.io.moving < THROTTLE {
            let Some(next) = self.transfers.ready.pop_front() else { return Ok(()) };
            let (io, peers, policy) = (&mut self.io, &self.peers.slots, &self.policy);
            let begun = match next {
                TransferRef::In(transfer) => self.transfers.read_piece(io, peers, policy, transfer),
                TransferRef::Out(transfer) => {
                    self.transfers.write_piece(io, peers, policy, transfer)
                }
            };
            let (moved, more) = match begun {
                Ok(begun) => begun,
                Err((connection, error)) => {
                    self.lose(connection, Loss::Failed(error))?;
                    (true, false)
                }
            };
            if !moved {
                self.transfers.ready.push_front(next);
                return Ok(());
            }
            if more {
                self.transfers.ready.push_back(next);
            }
        }
        Ok(())
    }

    pub(super) fn read_done(
        &mut self,
        transfer: u64,
        length: usize,
        result: Result<usize, FabricError>,
    ) -> Result<(), FabricError> {
        let Some(incoming) = self.transfers.incoming.get_mut(transfer) else { return Ok(()) };
        let number = incoming.connection;
        if let Err(error) = result {
            return self.lose(number, Loss::Failed(error));
        }
        incoming.arrived += length;
        if incoming.arrived == incoming.ask.total() {
            let theirs = incoming.ask.header.transfer;
            self.peers.control(number, ControlFrame::new(PacketKind::Done, theirs));
        }
        self.finish_in(transfer)
    }

    pub(super) fn write_done(
        &mut self,
        transfer: u64,
        length: usize,
        result: Result<usize, FabricError>,
    ) -> Result<(), FabricError> {
        let Some(out) = self.transfers.outgoing.get_mut(transfer) else { return Ok(()) };
        let number = out.connection;
        if let Err(error) = result {
            return self.lose(number, Loss::Failed(error));
        }
        out.written += length;
        if out.written < out.total {
            return Ok(());
        }
        let theirs = out.granted.map_or(0, |(theirs, _)| theirs);
        self.transfers.finish_out(&mut self.io.link, transfer);
        self.peers.control(number, ControlFrame::new(PacketKind::Written, theirs));
        self.pump(number)
    }

    /// Hands out a bulk that has come as a whole and whose checksum is known.
    pub(super) fn finish_in(&mut self, transfer: u64) -> Result<(), FabricError> {
        let is_whole = self.transfers.incoming.get(transfer).is_some_and(|incoming| {
            let header = &incoming.ask.header;
            let unchecked = header.flags & UNCHECKED != 0 || header.is_sealed();
            incoming.arrived == incoming.ask.total() && (unchecked || incoming.sum.is_some())
        });
        if !is_whole {
            return Ok(());
        }
        let Some(incoming) = self.transfers.incoming.remove(transfer) else { return Ok(()) };
        let IncomingBulk { connection, ask, mut buffer, sum, .. } = incoming;
        self.transfers.asked.remove(&(connection, ask.header.transfer));
        let Some(open) = self.peers.slots.get(connection) else { return Ok(()) };
        if let Some(seal) = &open.seal {
            if !seal.open(SealUse::Bulk, ask.header.bulk_checksum, &[], buffer.bytes_mut()) {
                self.io.counters.corrupt += 1;
                return self.lose(connection, Loss::Corrupt);
            }
            buffer.set_len(buffer.len() - TAG_SIZE);
        }
        if sum.is_some_and(|sum| sum != crc_fast::checksum(Crc32Iscsi, buffer.bytes()) as u32) {
            self.io.counters.corrupt += 1;
            return self.lose(connection, Loss::Corrupt);
        }
        let crowds = open.arena.used() > self.io.setup.inbound / 2;
        let mut bulk = if crowds {
            self.io.counters.count_copy(buffer.len());
            Bytes::copy_from_slice(buffer.bytes())
        } else {
            buffer.into_bytes()
        };
        let head = if ask.header.flags & HEAD_IN_BULK != 0 {
            bulk.split_to(ask.header.head_length as usize)
        } else {
            ask.head
        };
        let connection_id = ConnectionId(connection);
        self.io.counters.bytes_in += (head.len() + bulk.len()) as u64;
        self.events.push_back(FabricEvent::Received { connection: connection_id, head, bulk });
        self.pump(connection)?;
        self.begin_asks(connection)
    }
}

/// The message again, whose parts had been brought together.
fn unpacked(head: Bytes, mut bulk: Vec<BulkPart>, head_in_bulk: bool) -> QueuedMessage {
    if !head_in_bulk {
        return QueuedMessage { head, bulk };
    }
    // The head is the first part, or the start of the only one.
    let first = bulk.remove(0).into_buffer().into_bytes();
    if first.len() > head.len() {
        bulk.insert(0, BulkPart::Bytes(first.slice(head.len()..)));
    }
    QueuedMessage { head, bulk }
}
