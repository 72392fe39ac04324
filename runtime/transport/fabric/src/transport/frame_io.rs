//! Frames in and out of the link, and the buffers and operations under way for them.

use std::time::Instant;

use super::frame::{HEADER_SIZE, HEAVY_SERVER, PacketHeader, PacketKind};
use super::peer::PeerConnection;
use super::seal::{Seal, SealUse, TAG_SIZE};
use super::slots::Slots;
use super::types::{
    BulkPart, FabricCounters, POLLS_PER_LOOK, PendingOperation, QueuedMessage, RECEIVE,
    RECEIVES_BASE, TransportOptions,
};
use crate::FabricError;
use crate::link::{
    Arena, BufferSegment, Exposure, Fabric, FabricBuffer, PeerAddress, RegionOwner, RemoteSegment,
};
use crate::policy::{HEAVY, Mechanism, SegmentLayout};

/// Buffers for frames that are kept at hand, at most.
const SPARE_MAX: usize = 256;

/// What became of a frame that was to be sent.
#[derive(PartialEq, Eq)]
pub(super) enum SendOutcome {
    Sent,
    /// The provider has no room now.
    Later,
    /// The connection must end.
    Failed(FabricError),
}

/// A bulk as it lies while it moves.
pub(super) struct BulkSource {
    pub(super) parts: Vec<FabricBuffer>,
    /// What `parts` were made of, if they are sealed.
    pub(super) plain: Vec<BulkPart>,
    /// The number of a sealed one.
    pub(super) count: Option<u32>,
}

/// The link of a transport, and what is under way on it.
pub(super) struct FrameIo {
    pub(super) link: Fabric,
    pub(super) setup: TransportOptions,
    pub(super) arena: Arena,
    /// Buffers for frames, at hand.
    pub(super) spare: Vec<FabricBuffer>,
    pub(super) scratch: Vec<u8>,
    pub(super) pending: Slots<PendingOperation>,
    /// Receives that are posted.
    pub(super) receives: usize,
    /// Pieces of bulks being moved.
    pub(super) moving: u32,
    pub(super) counters: FabricCounters,
    /// Polls since the last look at the clock.
    pub(super) polls: u32,
    pub(super) now: Instant,
}

impl FrameIo {
    /// Sends a message in one frame.
    pub(super) fn send_whole(
        &mut self,
        number: u64,
        open: &mut PeerConnection,
        message: &QueuedMessage,
        bulk: usize,
        mechanism: Mechanism,
    ) -> SendOutcome {
        let header = PacketHeader {
            head_length: message.head.len() as u32,
            bulk_length: bulk as u32,
            ..PacketHeader::new(PacketKind::Message)
        };
        let outcome = match &message.bulk[..] {
            [] => self.send_frame(number, open, header, &[&message.head]),
            [one] => self.send_frame(number, open, header, &[&message.head, one.bytes()]),
            parts => {
                let mut body: Vec<&[u8]> = vec![&message.head];
                body.extend(parts.iter().map(BulkPart::bytes));
                self.send_frame(number, open, header, &body)
            }
        };
        if outcome == SendOutcome::Sent {
            self.counters.by_mechanism[mechanism as usize] += 1;
            self.counters.count_copy(bulk);
        }
        outcome
    }

    /// Sends one frame: at once if it is short enough for that, else from a buffer.
    pub(super) fn send_frame(
        &mut self,
        number: u64,
        open: &mut PeerConnection,
        header: PacketHeader,
        body: &[&[u8]],
    ) -> SendOutcome {
        let heavy = self.setup.is_server && self.moving >= HEAVY;
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
            let Ok(mut buffer) = self.frame_buffer(length) else { return SendOutcome::Later };
            let seal = open.seal.as_mut().map(|seal| (seal, what, frame));
            header.write(body, seal, buffer.bytes_mut());
            self.send_buffer(number, peer, buffer)
        };
        match result {
            Ok(()) => {}
            Err(FabricError::Busy { .. }) => return SendOutcome::Later,
            Err(error) => return SendOutcome::Failed(error),
        }
        self.counters.frames_out += 1;
        open.speaks(self.now);
        // A hello belongs to no connection yet.
        if header.kind != PacketKind::Hello {
            open.sequence_out = open.sequence_out.wrapping_add(1);
            open.owed = 0;
            open.owed_slots = 0;
        }
        open.credits -= u16::from(header.kind.costs_credit());
        SendOutcome::Sent
    }

    fn send_buffer(
        &mut self,
        number: u64,
        peer: PeerAddress,
        buffer: FabricBuffer,
    ) -> Result<(), FabricError> {
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
    /// Gives the message back if there is no room now; an error ends the connection.
    pub(super) fn send_fast(
        &mut self,
        number: u64,
        open: &mut PeerConnection,
        waiting: QueuedMessage,
        bulk: usize,
        layout: SegmentLayout,
    ) -> Result<Option<QueuedMessage>, FabricError> {
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
            let seal = open.seal.as_mut().map(|seal| (seal, SealUse::Slot, sequence));
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
            return Err(error);
        }
        if let Some(pending) = self.pending.get_mut(cookie) {
            *pending = PendingOperation::Fast { connection: number, buffer };
        }
        self.counters.by_mechanism[Mechanism::Fast as usize] += 1;
        if !gathers {
            self.counters.count_copy(bulk);
        }
        open.speaks(self.now);
        open.fast_out = open.fast_out.wrapping_add(1);
        open.owed = 0;
        open.owed_slots = 0;
        open.slot_out = (open.slot_out + 1) % open.their_slots.len();
        open.free_slots -= 1;
        Ok(None)
    }

    pub(super) fn receive_again(&mut self, mut buffer: FabricBuffer) -> Result<(), FabricError> {
        buffer.set_len(self.setup.eager);
        match self.link.receive(buffer, RECEIVE) {
            Ok(()) => {
                self.receives += 1;
                Ok(())
            }
            // Posted with the next look at the clock.
            Err((FabricError::Busy { .. }, _)) => Ok(()),
            Err((error, _)) => Err(error),
        }
    }

    /// As many receive buffers as all peers together may fill: a message costs its sender a credit,
    /// and each may be followed by two frames that cost none. Where the provider's queue is
    /// shorter, it holds back the senders itself (`FI_RM_ENABLED`).
    pub(super) fn post_receives(&mut self, connections: usize) -> Result<(), FabricError> {
        let each = 3 * usize::from(self.setup.credits) + 8;
        let most = (self.setup.link.operations / 2).min(self.link.limits().queue);
        let wanted = (RECEIVES_BASE + each * connections).min(most);
        while self.receives < wanted {
            let mut buffer = self.arena.take(self.setup.eager)?;
            buffer.set_len(self.setup.eager);
            match self.link.receive(buffer, RECEIVE) {
                Ok(()) => self.receives += 1,
                Err((FabricError::Busy { .. }, _)) => {
                    self.polls = POLLS_PER_LOOK;
                    return Ok(());
                }
                Err((error, _)) => return Err(error),
            }
        }
        Ok(())
    }

    /// The memory that a peer may write at any time: one slot per message, nothing else in it.
    pub(super) fn make_slots(
        &mut self,
        owner: RegionOwner,
        arena: &Arena,
    ) -> Result<Vec<(FabricBuffer, Option<Exposure>)>, FabricError> {
        // The number that a write brings along names connection, slot and sequence.
        let count = if self.link.limits().immediate >= 4 { self.setup.slots } else { 0 };
        let mut slots = Vec::new();
        for _ in 0..count {
            let mut buffer = arena.take(self.setup.slot)?;
            let exposure = self.link.expose_to_write(owner, &mut buffer)?;
            slots.push((buffer, Some(exposure)));
        }
        Ok(slots)
    }

    /// Brings a bulk into the form in which it lies while it moves: sealed, if the connection is.
    /// Gives it back if there is no room.
    pub(super) fn lay_out(
        &mut self,
        seal: Option<&mut Seal>,
        bulk: Vec<BulkPart>,
        packs: bool,
    ) -> Result<BulkSource, Vec<BulkPart>> {
        let is_sealed = seal.is_some();
        if !packs && !is_sealed {
            let parts = bulk.into_iter().map(BulkPart::into_buffer).collect();
            return Ok(BulkSource { parts, plain: Vec::new(), count: None });
        }
        let room = if is_sealed { TAG_SIZE } else { 0 };
        let Ok(mut packed) = self.pack(&bulk, room) else { return Err(bulk) };
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
