//! The bulk of large messages: the receiver reads it, or grants memory into which the sender writes
//! it, piece by piece, never more than [`THROTTLE`] pieces at once over all connections.
//!
//! What is written is told by a message behind it; nothing else says that it can be seen.

use bytes::Bytes;
use crc_fast::CrcAlgorithm::Crc32Iscsi;

use super::connection::Loss;
use super::frame::{
    HEAD_IN_BULK, HEAVY_SERVER, PacketHeader, PacketKind, SHALL_READ, SHALL_WRITE, SUM_IS_HERE,
    UNCHECKED, encode_segments,
};
use super::seal::{SealUse, TAG_SIZE};
use super::sending::{ControlFrame, QueuedMessage};
use super::{BulkPart, ConnectionId, FabricEvent, MESSAGE_MAX, PendingOperation, Transport};
use crate::FabricError;
use crate::link::{BufferSegment, Exposure, FabricBuffer, RemoteSegment};
use crate::policy::{Loads, Mechanism, SegmentLayout, THROTTLE};

/// Bulks up to here are summed before the frame that asks: a frame more would cost more.
const SUM_AT_ONCE: usize = 32 << 10;

/// A transfer with a piece to be moved.
#[derive(Clone, Copy, Debug)]
pub(super) enum TransferRef {
    In(u64),
    Out(u64),
}

/// A bulk that a peer wants to send.
pub(super) struct RendezvousRequest {
    pub(super) header: PacketHeader,
    pub(super) head: Bytes,
    pub(super) segments: Vec<RemoteSegment>,
}

/// A bulk on its way in.
pub(super) struct IncomingBulk {
    connection: u64,
    ask: RendezvousRequest,
    buffer: FabricBuffer,
    /// While the sender writes.
    exposure: Option<Exposure>,
    /// The first byte that is not yet asked for, and how many have come.
    next: usize,
    arrived: usize,
    /// Its checksum, as soon as the sender told it.
    sum: Option<u32>,
}

/// A bulk on its way out.
pub(super) struct OutgoingBulk {
    connection: u64,
    parts: Vec<FabricBuffer>,
    exposures: Vec<Exposure>,
    total: usize,
    /// Where the receiver wants it, and by which number it knows the transfer.
    granted: Option<(u64, RemoteSegment)>,
    next: usize,
    written: usize,
}

/// A bulk as it lies while it moves.
struct BulkSource {
    parts: Vec<FabricBuffer>,
    /// What `parts` were made of, if they are sealed.
    plain: Vec<BulkPart>,
    /// The number of a sealed one.
    count: Option<u32>,
}

/// Cuts `length` bytes from `at` on out of parts of the given lengths: index, start and length of
/// each piece.
fn cut(
    lengths: impl Iterator<Item = usize>,
    at: usize,
    length: usize,
) -> impl Iterator<Item = (usize, usize, usize)> {
    let mut before = 0;
    lengths.enumerate().filter_map(move |(index, part)| {
        let start = at.max(before);
        let end = (at + length).min(before + part);
        let piece = (start < end).then(|| (index, start - before, end - start));
        before += part;
        piece
    })
}

impl Transport {
    /// Tells the peer of a bulk and where it lies; gives the message back if there is no room.
    pub(super) fn ask(
        &mut self,
        number: u64,
        waiting: QueuedMessage,
        layout: SegmentLayout,
        head_in_bulk: bool,
    ) -> Result<Option<QueuedMessage>, FabricError> {
        let Some(owner) = self.connections.get(number).map(|open| open.owner) else {
            return Ok(None);
        };
        let QueuedMessage { head, mut bulk } = waiting;
        let head_length = head.len();
        let length: usize = bulk.iter().map(|part| part.bytes().len()).sum();
        if head_in_bulk {
            bulk.insert(0, BulkPart::Bytes(head.clone()));
        }
        bulk.retain(|part| !part.bytes().is_empty());
        let packs = bulk.len() > 1 && (layout == SegmentLayout::Pack || head_in_bulk);
        let laid = match self.lay_out(number, bulk, packs) {
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
            parts.iter().map(|part| self.link.expose_to_read(owner, part)).collect();
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
        let transfer = match self.outgoing.insert(transfer) {
            Ok(transfer) => transfer,
            Err(full) => {
                full.exposures.into_iter().for_each(|one| self.link.conceal(one));
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
        let sums = self.setup.check_bulk && count.is_none();
        let sums_now = sums && total <= SUM_AT_ONCE;
        if let Some(count) = count {
            header.bulk_checksum = count;
        } else if sums_now {
            header.bulk_checksum = self.sum_of(transfer);
            header.flags |= SUM_IS_HERE;
        } else if !sums {
            header.flags |= UNCHECKED;
        }
        let body = encode_segments(segments.into_iter());
        let head: &[u8] = if head_in_bulk { &[] } else { &head };
        self.send_ask(number, header, &[head, &body])?;
        if sums && !sums_now && self.outgoing.get(transfer).is_some() {
            // The receiver may already be reading while this is computed.
            let mut told = ControlFrame::new(PacketKind::Sum, transfer);
            told.header.bulk_checksum = self.sum_of(transfer);
            self.control(number, told);
        }
        Ok(None)
    }

    /// Brings a bulk into the form in which it lies while it moves: sealed, if the connection is.
    /// Gives it back if there is no room.
    fn lay_out(
        &mut self,
        number: u64,
        bulk: Vec<BulkPart>,
        packs: bool,
    ) -> Result<BulkSource, Vec<BulkPart>> {
        let is_sealed = self.connections.get(number).is_some_and(|open| open.seal.is_some());
        if !packs && !is_sealed {
            let parts = bulk.into_iter().map(BulkPart::into_buffer).collect();
            return Ok(BulkSource { parts, plain: Vec::new(), count: None });
        }
        let room = if is_sealed { TAG_SIZE } else { 0 };
        let Ok(mut packed) = self.pack(&bulk, room) else { return Err(bulk) };
        let seal = self.connections.get_mut(number).and_then(|open| open.seal.as_mut());
        let Some(seal) = seal else {
            return Ok(BulkSource { parts: vec![packed], plain: Vec::new(), count: None });
        };
        let count = seal.next_bulk();
        seal.seal(SealUse::Bulk, count, &[], packed.bytes_mut());
        Ok(BulkSource { parts: vec![packed], plain: bulk, count: Some(count) })
    }

    /// A copy of the whole bulk, with `room` behind it.
    fn pack(&mut self, bulk: &[BulkPart], room: usize) -> Result<FabricBuffer, FabricError> {
        let total: usize = bulk.iter().map(|part| part.bytes().len()).sum();
        let mut packed = self.arena.take(total + room)?;
        let mut at = 0;
        for part in bulk.iter().map(BulkPart::bytes) {
            packed.bytes_mut()[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        self.counters.count_copy(total);
        Ok(packed)
    }

    fn sum_of(&self, transfer: u64) -> u32 {
        let mut digest = crc_fast::Digest::new(Crc32Iscsi);
        if let Some(outgoing) = self.outgoing.get(transfer) {
            outgoing.parts.iter().for_each(|part| digest.update(part.bytes()));
        }
        digest.finalize() as u32
    }

    /// A peer has a bulk for us.
    pub(super) fn take_ask(
        &mut self,
        number: u64,
        ask: RendezvousRequest,
    ) -> Result<(), FabricError> {
        let promised: Option<u64> =
            ask.segments.iter().try_fold(0u64, |sum, segment| sum.checked_add(segment.length));
        let most = MESSAGE_MAX + TAG_SIZE;
        if promised != Some(ask.total() as u64) || ask.total() > most || ask.total() == 0 {
            self.counters.violations += 1;
            return self.lose(number, Loss::Violation("segments that do not fit their message"));
        }
        let Some(open) = self.connections.get_mut(number) else { return Ok(()) };
        open.asks.push_back(ask);
        if open.asks.len() > usize::from(self.setup.credits) {
            self.counters.violations += 1;
            return self.lose(number, Loss::Violation("more messages than it has credits for"));
        }
        self.begin_asks(number)
    }

    /// Begins the transfers that wait for memory, as far as there is some.
    pub(super) fn begin_asks(&mut self, number: u64) -> Result<(), FabricError> {
        while let Some(open) = self.connections.get_mut(number) {
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
        let Some(owner) = self.connections.get(number).map(|open| open.owner) else {
            return Ok(());
        };
        let has_sum = ask.header.flags & SUM_IS_HERE != 0;
        let loads = Loads {
            receiver: self.moving,
            sender: ask.header.load,
            receiver_is_heavy_server: self.setup.is_server && self.moving >= crate::policy::HEAVY,
            sender_is_heavy_server: ask.header.flags & HEAVY_SERVER != 0,
        };
        let direction = match ask.header.flags & (SHALL_READ | SHALL_WRITE) {
            SHALL_READ => Mechanism::Read,
            SHALL_WRITE => Mechanism::Write,
            _ => self.policy.direction(ask.total(), loads),
        };
        let exposure = if direction == Mechanism::Write {
            Some(self.link.expose_to_write(owner, &mut buffer)?)
        } else {
            None
        };
        let (theirs, remote) = (ask.header.transfer, exposure.as_ref().map(|one| one.remote));
        let sum = has_sum.then_some(ask.header.bulk_checksum);
        let incoming =
            IncomingBulk { connection: number, ask, buffer, exposure, next: 0, arrived: 0, sum };
        let Ok(transfer) = self.incoming.insert(incoming) else {
            return self.lose(number, Loss::Violation("more transfers than it has credits for"));
        };
        self.asked.insert((number, theirs), transfer);
        if let Some(remote) = remote {
            self.control(number, ControlFrame::grant(theirs, transfer, remote));
            return self.pump(number);
        }
        self.counters.by_mechanism[Mechanism::Read as usize] += 1;
        self.ready.push_back(TransferRef::In(transfer));
        self.move_pieces()
    }

    /// The receiver has granted memory.
    pub(super) fn take_grant(
        &mut self,
        number: u64,
        transfer: u64,
        theirs: u64,
        remote: RemoteSegment,
    ) -> Result<(), FabricError> {
        let outgoing = self.outgoing.get_mut(transfer).filter(|out| out.connection == number);
        match outgoing {
            Some(out) if out.granted.is_none() && remote.length == out.total as u64 => {
                out.granted = Some((theirs, remote));
                self.counters.by_mechanism[Mechanism::Write as usize] += 1;
                self.ready.push_back(TransferRef::Out(transfer));
                self.move_pieces()
            }
            _ => {
                self.counters.violations += 1;
                self.lose(number, Loss::Violation("a grant for no transfer"))
            }
        }
    }

    /// Begins as many pieces as the throttle lets, each transfer in turn.
    pub(super) fn move_pieces(&mut self) -> Result<(), FabricError> {
        while self.moving < THROTTLE {
            let Some(next) = self.ready.pop_front() else { return Ok(()) };
            let (moved, more) = match next {
                TransferRef::In(transfer) => self.read_piece(transfer)?,
                TransferRef::Out(transfer) => self.write_piece(transfer)?,
            };
            if !moved {
                self.ready.push_front(next);
                return Ok(());
            }
            if more {
                self.ready.push_back(next);
            }
        }
        Ok(())
    }

    /// Whether there was room, and whether the transfer has more pieces.
    fn read_piece(&mut self, transfer: u64) -> Result<(bool, bool), FabricError> {
        let Some(incoming) = self.incoming.get_mut(transfer) else { return Ok((true, false)) };
        let connection = incoming.connection;
        let Some(peer) = self.connections.get(connection).map(|open| open.peer) else {
            return Ok((true, false));
        };
        let (total, at) = (incoming.ask.total(), incoming.next);
        let length = self.policy.piece(total).min(total - at);
        let segments = &incoming.ask.segments;
        let remote: Vec<RemoteSegment> =
            cut(segments.iter().map(|segment| segment.length as usize), at, length)
                .map(|(index, start, length)| RemoteSegment {
                    address: segments[index].address.wrapping_add(start as u64),
                    length: length as u64,
                    ..segments[index]
                })
                .collect();
        let Ok(cookie) = self.pending.insert(PendingOperation::Read { transfer, length }) else {
            return Ok((false, true));
        };
        match self.link.read(peer, &remote, &mut incoming.buffer, at, cookie) {
            Ok(()) => {
                incoming.next += length;
                self.moving += 1;
                self.counters.moves += 1;
                Ok((true, at + length < total))
            }
            Err(error) => self.not_moved(cookie, connection, error),
        }
    }

    fn write_piece(&mut self, transfer: u64) -> Result<(bool, bool), FabricError> {
        let Some(out) = self.outgoing.get_mut(transfer) else { return Ok((true, false)) };
        let connection = out.connection;
        let Some(peer) = self.connections.get(connection).map(|open| open.peer) else {
            return Ok((true, false));
        };
        let Some((_, granted)) = out.granted else { return Ok((true, false)) };
        let (total, at) = (out.total, out.next);
        let length = self.policy.piece(total).min(total - at);
        let pieces: Vec<BufferSegment<'_>> =
            cut(out.parts.iter().map(FabricBuffer::len), at, length)
                .map(|(index, at, length)| BufferSegment { buffer: &out.parts[index], at, length })
                .collect();
        let remote = RemoteSegment {
            address: granted.address.wrapping_add(at as u64),
            length: length as u64,
            ..granted
        };
        let Ok(cookie) = self.pending.insert(PendingOperation::Write { transfer, length }) else {
            return Ok((false, true));
        };
        match self.link.write(peer, &pieces, remote, None, cookie) {
            Ok(()) => {
                out.next += length;
                self.moving += 1;
                self.counters.moves += 1;
                Ok((true, at + length < total))
            }
            Err(error) => self.not_moved(cookie, connection, error),
        }
    }

    fn not_moved(
        &mut self,
        cookie: u64,
        connection: u64,
        error: FabricError,
    ) -> Result<(bool, bool), FabricError> {
        self.pending.remove(cookie);
        if matches!(error, FabricError::Busy { .. }) {
            return Ok((false, true));
        }
        self.lose(connection, Loss::Failed(error))?;
        Ok((true, false))
    }

    pub(super) fn read_done(
        &mut self,
        transfer: u64,
        length: usize,
        result: Result<usize, FabricError>,
    ) -> Result<(), FabricError> {
        let Some(incoming) = self.incoming.get_mut(transfer) else { return Ok(()) };
        let number = incoming.connection;
        if let Err(error) = result {
            return self.lose(number, Loss::Failed(error));
        }
        incoming.arrived += length;
        if incoming.arrived == incoming.ask.total() {
            let theirs = incoming.ask.header.transfer;
            self.control(number, ControlFrame::new(PacketKind::Done, theirs));
        }
        self.finish_in(transfer)
    }

    pub(super) fn write_done(
        &mut self,
        transfer: u64,
        length: usize,
        result: Result<usize, FabricError>,
    ) -> Result<(), FabricError> {
        let Some(out) = self.outgoing.get_mut(transfer) else { return Ok(()) };
        let number = out.connection;
        if let Err(error) = result {
            return self.lose(number, Loss::Failed(error));
        }
        out.written += length;
        if out.written < out.total {
            return Ok(());
        }
        let theirs = out.granted.map_or(0, |(theirs, _)| theirs);
        self.finish_out(transfer);
        self.control(number, ControlFrame::new(PacketKind::Written, theirs));
        self.pump(number)
    }

    /// The receiver has read all of it.
    pub(super) fn take_done(&mut self, number: u64, transfer: u64) -> Result<(), FabricError> {
        let known = self.outgoing.get(transfer).filter(|out| out.connection == number);
        if known.is_none_or(|out| out.granted.is_some()) {
            self.counters.violations += 1;
            return self.lose(number, Loss::Violation("the end of no transfer"));
        }
        self.finish_out(transfer);
        Ok(())
    }

    fn finish_out(&mut self, transfer: u64) {
        if let Some(out) = self.outgoing.remove(transfer) {
            out.exposures.into_iter().for_each(|exposure| self.link.conceal(exposure));
        }
    }

    /// The sender has written all of it.
    pub(super) fn take_written(&mut self, number: u64, transfer: u64) -> Result<(), FabricError> {
        let known = self.incoming.get_mut(transfer).filter(|one| one.connection == number);
        let Some((incoming, exposure)) =
            known.and_then(|one| one.exposure.take().map(|exposure| (one, exposure)))
        else {
            self.counters.violations += 1;
            return self.lose(number, Loss::Violation("data for no transfer"));
        };
        incoming.arrived = incoming.ask.total();
        self.link.conceal(exposure);
        self.finish_in(transfer)
    }

    /// The sender tells the checksum.
    pub(super) fn take_sum(
        &mut self,
        number: u64,
        theirs: u64,
        sum: u32,
    ) -> Result<(), FabricError> {
        if let Some(transfer) = self.asked.get(&(number, theirs)).copied()
            && let Some(one) = self.incoming.get_mut(transfer).filter(|one| one.sum.is_none())
        {
            one.sum = Some(sum);
            return self.finish_in(transfer);
        }
        // It may still wait for memory.
        let waiting = self
            .connections
            .get_mut(number)
            .and_then(|open| open.asks.iter_mut().find(|ask| ask.header.transfer == theirs));
        if let Some(ask) = waiting {
            ask.header.bulk_checksum = sum;
            ask.header.flags |= SUM_IS_HERE;
            return Ok(());
        }
        self.counters.violations += 1;
        self.lose(number, Loss::Violation("the checksum of no transfer"))
    }

    /// Hands out a bulk that has come as a whole and whose checksum is known.
    fn finish_in(&mut self, transfer: u64) -> Result<(), FabricError> {
        let is_whole = self.incoming.get(transfer).is_some_and(|incoming| {
            let header = &incoming.ask.header;
            let unchecked = header.flags & UNCHECKED != 0 || header.is_sealed();
            incoming.arrived == incoming.ask.total() && (unchecked || incoming.sum.is_some())
        });
        if !is_whole {
            return Ok(());
        }
        let Some(incoming) = self.incoming.remove(transfer) else { return Ok(()) };
        let IncomingBulk { connection, ask, mut buffer, sum, .. } = incoming;
        self.asked.remove(&(connection, ask.header.transfer));
        let Some(open) = self.connections.get(connection) else { return Ok(()) };
        if let Some(seal) = &open.seal {
            if !seal.open(SealUse::Bulk, ask.header.bulk_checksum, &[], buffer.bytes_mut()) {
                self.counters.corrupt += 1;
                return self.lose(connection, Loss::Corrupt);
            }
            buffer.set_len(buffer.len() - TAG_SIZE);
        }
        if sum.is_some_and(|sum| sum != crc_fast::checksum(Crc32Iscsi, buffer.bytes()) as u32) {
            self.counters.corrupt += 1;
            return self.lose(connection, Loss::Corrupt);
        }
        let crowds = open.arena.used() > self.setup.inbound / 2;
        let mut bulk = if crowds {
            self.counters.count_copy(buffer.len());
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
        self.counters.bytes_in += (head.len() + bulk.len()) as u64;
        self.events.push_back(FabricEvent::Received { connection: connection_id, head, bulk });
        self.pump(connection)?;
        self.begin_asks(connection)
    }

    /// Gives up all transfers of a connection that is gone.
    pub(super) fn drop_transfers(&mut self, number: u64) {
        for transfer in self.incoming.numbers() {
            if self.incoming.get(transfer).is_some_and(|one| one.connection == number) {
                self.incoming.remove(transfer);
            }
        }
        self.asked.retain(|(connection, _), _| *connection != number);
        for transfer in self.outgoing.numbers() {
            if self.outgoing.get(transfer).is_some_and(|one| one.connection == number) {
                self.outgoing.remove(transfer);
            }
        }
    }
}

impl RendezvousRequest {
    /// Bytes that move.
    pub(super) fn total(&self) -> usize {
        let head = if self.header.flags & HEAD_IN_BULK != 0 { self.header.head_length } else { 0 };
        let tag = if self.header.is_sealed() { TAG_SIZE } else { 0 };
        self.header.bulk_length as usize + head as usize + tag
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::cut;

    proptest! {
        #[test]
        fn pieces_are_cut_out_of_parts_without_gap_or_overlap(
            lengths in proptest::collection::vec(0usize..50, 1..20), piece in 1usize..60,
        ) {
            let total: usize = lengths.iter().sum();
            let mut seen = Vec::new();
            let mut at = 0;
            while at < total {
                let length = piece.min(total - at);
                let pieces: Vec<_> = cut(lengths.iter().copied(), at, length).collect();
                prop_assert_eq!(pieces.iter().map(|(_, _, length)| length).sum::<usize>(), length);
                for (index, start, length) in pieces {
                    prop_assert!(start + length <= lengths[index]);
                    seen.extend((start..start + length).map(|byte| (index, byte)));
                }
                at += length;
            }
            let all = lengths.iter().enumerate();
            let wanted: Vec<_> =
                all.flat_map(|(index, length)| (0..*length).map(move |byte| (index, byte))).collect();
            prop_assert_eq!(seen, wanted);
        }
    }
}
