//! The way in. Whatever arrives may come from a stranger: what is no frame of an open connection is
//! counted and dropped; what breaks the rules within one ends it.

use bytes::Bytes;

use super::Transport;
use super::frame::{HEAD_IN_BULK, HEADER_SIZE, PacketHeader, PacketKind, decode_segments};
use super::seal::SealUse;
use super::types::{ConnectionId, ControlFrame, FabricEvent, Loss, RendezvousRequest};
use crate::FabricError;
use crate::link::FabricBuffer;
use crate::policy::Mechanism;

/// Bytes of frames that were handed out in their own buffers, at most: what comes then is copied.
const FRAMES_KEPT_MAX: usize = 256 << 20;
/// Bodies from here on are handed out in the buffer that they came in; shorter ones are copied.
const KEEP_FROM: usize = 2048;

impl Transport {
    /// A frame, or what a stranger sent, has arrived in `buffer`.
    pub(super) fn take_received(
        &mut self,
        mut buffer: FabricBuffer,
        result: Result<usize, FabricError>,
    ) -> Result<(), FabricError> {
        let length = match result {
            Ok(length) => length.min(buffer.len()),
            Err(error) => {
                // Too long for the buffer, or cut off: nothing of it can be used.
                tracing::debug!(%error, "a receive failed");
                self.io.counters.garbage += 1;
                0
            }
        };
        self.io.counters.frames_in += 1;
        let Some((header, body)) = PacketHeader::decode(&buffer.bytes()[..length]) else {
            self.io.counters.garbage += u64::from(length > 0);
            return self.io.receive_again(buffer);
        };
        if header.kind == PacketKind::Hello {
            self.take_hello(&header, buffer.bytes_mut(), body)?;
            return self.io.receive_again(buffer);
        }
        let frame = buffer.bytes_mut();
        let Some(number) = self.sequenced(&header, frame, body)? else {
            return self.io.receive_again(buffer);
        };
        let is_long = body >= KEEP_FROM
            && header.kind == PacketKind::Message
            && self.io.arena.used() < FRAMES_KEPT_MAX;
        let body = if is_long {
            buffer.set_len(HEADER_SIZE + body);
            let frame = buffer.into_bytes();
            self.io.post_receives(self.peers.slots.len())?;
            frame.slice(HEADER_SIZE..)
        } else {
            let copy = Bytes::copy_from_slice(&buffer.bytes()[HEADER_SIZE..HEADER_SIZE + body]);
            self.io.receive_again(buffer)?;
            if header.kind == PacketKind::Message {
                self.io.counters.count_copy(body);
            }
            copy
        };
        self.take_frame(number, header, body)
    }

    /// The connection that a frame belongs to, if it is the next one of it, with its body opened.
    fn sequenced(
        &mut self,
        header: &PacketHeader,
        frame: &mut [u8],
        body: usize,
    ) -> Result<Option<u64>, FabricError> {
        let number = self.peers.slots.at(header.connection);
        let known = number.and_then(|number| {
            let open = self.peers.slots.get_mut(number)?;
            (open.token == header.token).then_some((number, open))
        });
        let Some((number, open)) = known else {
            self.io.counters.strangers += 1;
            return Ok(None);
        };
        let is_theirs = match &open.seal {
            Some(seal) => {
                header.is_sealed()
                    && PacketHeader::open(frame, body, seal, SealUse::Frame, header.sequence)
            }
            None => !header.is_sealed(),
        };
        if !is_theirs {
            // If it was theirs once, and was changed, the next one comes ahead of its turn.
            self.io.counters.wrong_seals += 1;
            return Ok(None);
        }
        open.hears(self.io.now);
        let ahead = header.sequence.wrapping_sub(open.sequence_in).cast_signed();
        if ahead < 0 {
            self.io.counters.duplicates += 1;
            return Ok(None);
        }
        if ahead > 0 {
            self.io.counters.gaps += 1;
            self.lose(number, Loss::Gap)?;
            return Ok(None);
        }
        open.sequence_in = open.sequence_in.wrapping_add(1);
        if !open.take_credits(header) {
            self.violate(number, "it gives back slots that were not used")?;
            return Ok(None);
        }
        Ok(Some(number))
    }

    fn take_frame(
        &mut self,
        number: u64,
        header: PacketHeader,
        mut body: Bytes,
    ) -> Result<(), FabricError> {
        let head_length = header.head_length as usize;
        match header.kind {
            PacketKind::Message => {
                let bulk = body.split_off(head_length.min(body.len()));
                self.deliver(number, body, bulk, false);
            }
            PacketKind::RendezvousRequest => {
                let in_bulk = header.flags & HEAD_IN_BULK != 0;
                let described = body.split_off(if in_bulk { 0 } else { head_length });
                let ask =
                    RendezvousRequest { header, head: body, segments: decode_segments(&described) };
                self.take_ask(number, ask)?;
            }
            PacketKind::Grant => {
                let segments = decode_segments(body.get(8..).unwrap_or_default());
                let own = body.first_chunk::<8>().map(|own| u64::from_le_bytes(*own));
                if let (Some(own), [remote]) = (own, &segments[..]) {
                    let transfers = &mut self.transfers;
                    if transfers.take_grant(number, header.transfer, own, *remote) {
                        self.io.counters.by_mechanism[Mechanism::Write as usize] += 1;
                        self.move_pieces()?;
                    } else {
                        self.violate(number, "a grant for no transfer")?;
                    }
                } else {
                    self.violate(number, "a grant without memory")?;
                }
            }
            PacketKind::Done => {
                let link = &mut self.io.link;
                if !self.transfers.take_done(link, number, header.transfer) {
                    self.violate(number, "the end of no transfer")?;
                }
            }
            PacketKind::Written => {
                let link = &mut self.io.link;
                if self.transfers.take_written(link, number, header.transfer) {
                    self.finish_in(header.transfer)?;
                } else {
                    self.violate(number, "data for no transfer")?;
                }
            }
            PacketKind::Sum => {
                let (theirs, sum) = (header.transfer, header.bulk_checksum);
                let open = self.peers.slots.get_mut(number);
                if let Some(transfer) = self.transfers.take_sum(number, theirs, sum) {
                    self.finish_in(transfer)?;
                } else if !open.is_some_and(|open| open.take_sum(theirs, sum)) {
                    self.violate(number, "the checksum of no transfer")?;
                }
            }
            PacketKind::Welcome => self.take_welcome(number, &body)?,
            PacketKind::Leave => self.lose(number, Loss::Left)?,
            // A hello was taken before.
            PacketKind::Alive | PacketKind::Hello => {}
        }
        self.acknowledge(number)
    }

    /// Gives back credits if nothing else does, and sends what waits.
    fn acknowledge(&mut self, number: u64) -> Result<(), FabricError> {
        let open = self.peers.slots.get(number);
        if open.is_some_and(|open| open.must_give_back(&self.io.setup)) {
            self.peers.control(number, ControlFrame::new(PacketKind::Alive, 0));
        }
        self.pump(number)
    }

    /// The peer breaks the rules: the connection ends.
    pub(super) fn violate(&mut self, number: u64, what: &'static str) -> Result<(), FabricError> {
        self.io.counters.violations += 1;
        self.lose(number, Loss::Violation(what))
    }

    fn deliver(&mut self, number: u64, head: Bytes, bulk: Bytes, by_slot: bool) {
        let Some(open) = self.peers.slots.get_mut(number) else { return };
        if by_slot {
            open.owed_slots += 1;
        } else {
            open.owed += 1;
        }
        let connection = ConnectionId(number);
        self.io.counters.bytes_in += (head.len() + bulk.len()) as u64;
        self.events.push_back(FabricEvent::Received { connection, head, bulk });
    }

    /// A peer says, by the number of a write, that a slot is full.
    pub(super) fn take_fast(&mut self, told: u64) -> Result<(), FabricError> {
        let (index, sequence) = ((told >> 16 & 0xff) as usize, told >> 24 & 0xff);
        let known = self.peers.slots.at((told & 0xffff) as u32);
        let Some((number, open)) =
            known.and_then(|number| Some((number, self.peers.slots.get_mut(number)?)))
        else {
            self.io.counters.strangers += 1;
            return Ok(());
        };
        let due = u64::from(open.fast_in & 0xff) == sequence;
        let count = open.our_slots.len();
        if !due || count == 0 || index != open.fast_in as usize % count {
            self.io.counters.duplicates += 1;
            return Ok(());
        }
        let owner = open.owner;
        let (buffer, exposure) = &mut open.our_slots[index];
        // For the moment in which it is read, the slot is ours alone.
        exposure.take().into_iter().for_each(|exposure| self.io.link.conceal(exposure));
        let content = PacketHeader::decode(buffer.bytes()).and_then(|(header, length)| {
            let is_theirs = match &open.seal {
                Some(seal) => {
                    let frame = buffer.bytes_mut();
                    header.is_sealed()
                        && PacketHeader::open(frame, length, seal, SealUse::Slot, open.fast_in)
                }
                None => !header.is_sealed(),
            };
            let body = &buffer.bytes()[HEADER_SIZE..HEADER_SIZE + length];
            is_theirs.then(|| (header, Bytes::copy_from_slice(body)))
        });
        *exposure = Some(self.io.link.expose_to_write(owner, buffer)?);
        let Some((header, mut body)) = content else {
            self.io.counters.garbage += 1;
            return self.lose(number, Loss::Corrupt);
        };
        if header.token != open.token
            || header.sequence != open.fast_in
            || header.kind != PacketKind::Message
        {
            return self.violate(number, "a slot with something else");
        }
        open.hears(self.io.now);
        open.fast_in = open.fast_in.wrapping_add(1);
        if !open.take_credits(&header) {
            return self.violate(number, "it gives back slots that were not used");
        }
        self.io.counters.frames_in += 1;
        self.io.counters.count_copy(body.len());
        let bulk = body.split_off((header.head_length as usize).min(body.len()));
        self.deliver(number, body, bulk, true);
        self.acknowledge(number)
    }
}
