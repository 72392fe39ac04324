//! The way out: frames, and which mechanism a message takes.

use bytes::Bytes;

use super::frame::{
    HEADER_SIZE, HEAVY_SERVER, PacketHeader, PacketKind, SEGMENT_SIZE, encode_segments,
};
use super::seal::SealUse;
use super::{BulkPart, FabricCounters, PendingOperation, Transport};
use crate::FabricError;
use crate::link::{BufferSegment, FabricBuffer, RemoteSegment};
use crate::policy::{HEAVY, Mechanism, MechanismSizes, MessageShape, SegmentLayout, TransferPlan};
use crate::transport::connection::Loss;

/// Buffers for frames that are kept at hand, at most.
const SPARE_MAX: usize = 256;
/// Segments that one frame describes, at most.
const SEGMENTS_MAX: usize = 128;
/// Control frames of one connection that wait, at most: a peer that makes us owe more is lost.
const CONTROL_MAX: usize = 4096;

/// A message that waits for its turn.
pub(super) struct QueuedMessage {
    pub(super) head: Bytes,
    pub(super) bulk: Vec<BulkPart>,
}

/// A frame without a message.
pub(super) struct ControlFrame {
    pub(super) header: PacketHeader,
    body: Vec<u8>,
}

impl ControlFrame {
    pub(super) fn new(kind: PacketKind, transfer: u64) -> Self {
        Self { header: PacketHeader { transfer, ..PacketHeader::new(kind) }, body: Vec::new() }
    }

    pub(super) fn greeting(kind: PacketKind, body: Vec<u8>) -> Self {
        Self {
            header: PacketHeader { head_length: body.len() as u32, ..PacketHeader::new(kind) },
            body,
        }
    }

    /// A grant of `piece`, as the transfer `own` of ours, for the peer's `transfer`.
    pub(super) fn grant(transfer: u64, own: u64, piece: RemoteSegment) -> Self {
        let mut body = own.to_le_bytes().to_vec();
        body.extend(encode_segments([piece].into_iter()));
        let header = PacketHeader {
            transfer,
            head_length: 8,
            segments: 1,
            ..PacketHeader::new(PacketKind::Grant)
        };
        Self { header, body }
    }
}

/// What became of a frame that was to be sent.
#[derive(PartialEq, Eq)]
enum SendOutcome {
    Sent,
    /// The provider has no room now.
    Later,
    /// The connection is lost.
    Lost,
}

impl Transport {
    /// Queues a control frame.
    pub(super) fn control(&mut self, number: u64, control: ControlFrame) {
        if let Some(open) = self.connections.get_mut(number) {
            open.control.push_back(control);
            self.make_busy(number);
        }
    }

    fn make_busy(&mut self, number: u64) {
        if let Some(open) = self.connections.get_mut(number)
            && !open.is_busy
        {
            open.is_busy = true;
            self.busy.push_back(number);
        }
    }

    /// Sends what waits on a connection, as far as credits and the provider go.
    pub(super) fn pump(&mut self, number: u64) -> Result<(), FabricError> {
        loop {
            let Some(open) = self.connections.get_mut(number) else { return Ok(()) };
            if open.control.len() > CONTROL_MAX {
                return self.lose(number, Loss::Violation("it makes us owe too much"));
            }
            if let Some(control) = open.control.pop_front() {
                match self.send_frame(number, control.header, &[&control.body])? {
                    SendOutcome::Sent => continue,
                    SendOutcome::Lost => return Ok(()),
                    SendOutcome::Later => {}
                }
                if let Some(open) = self.connections.get_mut(number) {
                    open.control.push_front(control);
                }
                self.make_busy(number);
                return Ok(());
            }
            if !open.is_open || open.waiting.is_empty() {
                return Ok(());
            }
            if open.credits == 0 {
                self.counters.credit_waits += 1;
                return Ok(());
            }
            let number_out = open.sequence_out.max(open.fast_out);
            if open.seal.as_ref().is_some_and(|seal| seal.is_worn(number_out)) {
                return self.lose(number, Loss::Worn);
            }
            let Some(waiting) = open.waiting.pop_front() else { return Ok(()) };
            if let Some(waiting) = self.send_message(number, waiting)? {
                if let Some(open) = self.connections.get_mut(number) {
                    open.waiting.push_front(waiting);
                }
                self.make_busy(number);
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
        let Some(open) = self.connections.get(number) else { return Ok(None) };
        let limits = self.link.limits();
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
                self.send_whole(number, waiting, bulk, mechanism)
            }
            Mechanism::Fast => self.send_fast(number, waiting, bulk, layout),
            Mechanism::Read | Mechanism::Write => self.ask(number, waiting, layout, false),
        }
    }

    fn send_whole(
        &mut self,
        number: u64,
        waiting: QueuedMessage,
        bulk: usize,
        mechanism: Mechanism,
    ) -> Result<Option<QueuedMessage>, FabricError> {
        let header = PacketHeader {
            head_length: waiting.head.len() as u32,
            bulk_length: bulk as u32,
            ..PacketHeader::new(PacketKind::Message)
        };
        let outcome = match &waiting.bulk[..] {
            [] => self.send_frame(number, header, &[&waiting.head])?,
            [one] => self.send_frame(number, header, &[&waiting.head, one.bytes()])?,
            parts => {
                let mut body: Vec<&[u8]> = vec![&waiting.head];
                body.extend(parts.iter().map(BulkPart::bytes));
                self.send_frame(number, header, &body)?
            }
        };
        if outcome == SendOutcome::Sent {
            self.counters.by_mechanism[mechanism as usize] += 1;
            self.counters.count_copy(bulk);
        }
        Ok((outcome == SendOutcome::Later).then_some(waiting))
    }

    /// Sends one frame: at once if it is short enough for that, else from a buffer.
    fn send_frame(
        &mut self,
        number: u64,
        header: PacketHeader,
        body: &[&[u8]],
    ) -> Result<SendOutcome, FabricError> {
        let heavy = self.setup.is_server && self.moving >= HEAVY;
        let Some(open) = self.connections.get_mut(number) else { return Ok(SendOutcome::Lost) };
        let header = PacketHeader {
            connection: open.their_number,
            token: open.their_token,
            sequence: open.sequence_out,
            credits: open.owed,
            slots: open.owed_slots,
            load: self.moving,
            flags: header.flags | if heavy { HEAVY_SERVER } else { 0 },
            ..header
        };
        let body_length = body.iter().map(|part| part.len()).sum::<usize>();
        let length = PacketHeader::frame_length(body_length, open.seal.as_ref());
        let peer = open.peer;
        let (what, frame) = match header.kind {
            PacketKind::Hello => (SealUse::Hello, 0),
            _ => (SealUse::Frame, open.sequence_out),
        };
        let result = if length <= self.link.limits().inject {
            self.scratch.resize(length, 0);
            let seal = open.seal.as_mut().map(|seal| (seal, what, frame));
            header.write(body, seal, &mut self.scratch);
            self.link.inject(peer, &self.scratch)
        } else {
            let Ok(mut buffer) = self.frame_buffer(length) else { return Ok(SendOutcome::Later) };
            let Some(open) = self.connections.get_mut(number) else { return Ok(SendOutcome::Lost) };
            let seal = open.seal.as_mut().map(|seal| (seal, what, frame));
            header.write(body, seal, buffer.bytes_mut());
            self.send_buffer(number, buffer)
        };
        match result {
            Ok(()) => {}
            Err(FabricError::Busy { .. }) => return Ok(SendOutcome::Later),
            Err(error) => {
                self.lose(number, Loss::Failed(error))?;
                return Ok(SendOutcome::Lost);
            }
        }
        self.counters.frames_out += 1;
        let now = self.now;
        if let Some(open) = self.connections.get_mut(number) {
            open.speaks(now);
            // A hello belongs to no connection yet.
            if header.kind != PacketKind::Hello {
                open.sequence_out = open.sequence_out.wrapping_add(1);
                open.owed = 0;
                open.owed_slots = 0;
            }
            open.credits -= u16::from(header.kind.costs_credit());
        }
        Ok(SendOutcome::Sent)
    }

    fn send_buffer(&mut self, number: u64, buffer: FabricBuffer) -> Result<(), FabricError> {
        let Some(peer) = self.connections.get(number).map(|open| open.peer) else { return Ok(()) };
        let full = FabricError::Busy { what: "the table of operations" };
        let Ok(cookie) = self.pending.insert(PendingOperation::Frame { connection: number }) else {
            return Err(full);
        };
        self.link.send(peer, buffer, cookie).map_err(|(error, buffer)| {
            self.pending.remove(cookie);
            self.keep(buffer);
            error
        })
    }

    /// Writes the message into a slot of the peer, with a number that tells of it.
    fn send_fast(
        &mut self,
        number: u64,
        waiting: QueuedMessage,
        bulk: usize,
        layout: SegmentLayout,
    ) -> Result<Option<QueuedMessage>, FabricError> {
        let Some(open) = self.connections.get(number) else { return Ok(None) };
        let slot = open.their_slots[open.slot_out];
        let (peer, index, sequence) = (open.peer, open.slot_out, open.fast_out);
        let header = PacketHeader {
            connection: open.their_number,
            token: open.their_token,
            sequence,
            credits: open.owed,
            slots: open.owed_slots,
            load: self.moving,
            head_length: waiting.head.len() as u32,
            bulk_length: bulk as u32,
            ..PacketHeader::new(PacketKind::Message)
        };
        let immediate = u64::from(open.their_number & 0xffff)
            | (index as u64 & 0xff) << 16
            | u64::from(sequence & 0xff) << 24;
        let body: Vec<&[u8]> = std::iter::once(&waiting.head[..])
            .chain(waiting.bulk.iter().map(BulkPart::bytes))
            .collect();
        // What is sealed is copied in any case.
        let gathers = layout == SegmentLayout::Gather
            && waiting.bulk.len() < self.link.limits().pieces
            && bulk > 0
            && open.seal.is_none();
        let here = waiting.head.len() + if gathers { 0 } else { bulk };
        let staged = PacketHeader::frame_length(here, open.seal.as_ref());
        let Ok(mut buffer) = self.frame_buffer(staged) else { return Ok(Some(waiting)) };
        if gathers {
            let (first, head) = buffer.bytes_mut().split_at_mut(HEADER_SIZE);
            first.copy_from_slice(&header.encode(body.into_iter()));
            head.copy_from_slice(&waiting.head);
        } else {
            let seal = self.connections.get_mut(number).and_then(|open| open.seal.as_mut());
            let seal = seal.map(|seal| (seal, SealUse::Slot, sequence));
            header.write(&body, seal, buffer.bytes_mut());
        }
        let mut waiting = waiting;
        let lying: Vec<FabricBuffer> = if gathers {
            waiting.bulk.drain(..).map(BulkPart::into_buffer).collect()
        } else {
            Vec::new()
        };
        let mut pieces = vec![BufferSegment { buffer: &buffer, at: 0, length: staged }];
        pieces.extend(lying.iter().map(|part| BufferSegment {
            buffer: part,
            at: 0,
            length: part.len(),
        }));
        let total = staged + lying.iter().map(FabricBuffer::len).sum::<usize>();
        let remote = RemoteSegment { length: total as u64, ..slot };
        // The number of the operation is known only when there is room for it in the table.
        let placeholder = PendingOperation::Frame { connection: number };
        let Ok(cookie) = self.pending.insert(placeholder) else {
            return Ok(Some(back(waiting, lying)));
        };
        let result = self.link.write(peer, &pieces, remote, Some(immediate), cookie);
        if let Err(error) = result {
            self.pending.remove(cookie);
            if matches!(error, FabricError::Busy { .. }) {
                return Ok(Some(back(waiting, lying)));
            }
            self.lose(number, Loss::Failed(error))?;
            return Ok(None);
        }
        if let Some(pending) = self.pending.get_mut(cookie) {
            *pending = PendingOperation::Fast { connection: number, buffer };
        }
        self.counters.by_mechanism[Mechanism::Fast as usize] += 1;
        if !gathers {
            self.counters.count_copy(bulk);
        }
        let now = self.now;
        if let Some(open) = self.connections.get_mut(number) {
            open.speaks(now);
            open.fast_out = open.fast_out.wrapping_add(1);
            open.owed = 0;
            open.owed_slots = 0;
            open.slot_out = (open.slot_out + 1) % open.their_slots.len();
            open.free_slots -= 1;
        }
        Ok(None)
    }

    /// A buffer of `length` bytes for a frame.
    fn frame_buffer(&mut self, length: usize) -> Result<FabricBuffer, FabricError> {
        let at_hand = self.spare.iter().rposition(|spare| spare.capacity() >= length);
        let mut buffer = match at_hand {
            Some(index) => self.spare.swap_remove(index),
            None => self.arena.take(length.max(self.setup.eager))?,
        };
        buffer.set_len(length);
        Ok(buffer)
    }

    /// Keeps a buffer for the next frame.
    pub(super) fn keep(&mut self, buffer: FabricBuffer) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(buffer);
        }
    }
}

/// The message again, whose parts had been taken.
fn back(waiting: QueuedMessage, lying: Vec<FabricBuffer>) -> QueuedMessage {
    if lying.is_empty() {
        return waiting;
    }
    QueuedMessage { bulk: lying.into_iter().map(BulkPart::FabricBuffer).collect(), ..waiting }
}

impl FabricCounters {
    pub(super) fn count_copy(&mut self, length: usize) {
        if length > 0 {
            self.copies += 1;
            self.copied_bytes += length as u64;
        }
    }
}

impl Transport {
    /// Sends the frame that asks for a transfer, or queues it before all that follows.
    pub(super) fn send_ask(
        &mut self,
        number: u64,
        header: PacketHeader,
        body: &[&[u8]],
    ) -> Result<(), FabricError> {
        if self.send_frame(number, header, body)? == SendOutcome::Later {
            self.control(number, ControlFrame { header, body: body.concat() });
        }
        Ok(())
    }
}
