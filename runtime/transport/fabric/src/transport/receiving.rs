//! The way in. Whatever arrives may come from a stranger: what is no frame of an open connection is
//! counted and dropped; what breaks the rules within one ends it.

use bytes::Bytes;

use super::bulk::RendezvousRequest;
use super::connection::Loss;
use super::frame::{HEAD_IN_BULK, HEADER_SIZE, PacketHeader, PacketKind, decode_segments};
use super::seal::SealUse;
use super::{ConnectionId, FabricEvent, Transport};
use crate::FabricError;
use crate::link::FabricBuffer;

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
                self.counters.garbage += 1;
                0
            }
        };
        self.counters.frames_in += 1;
        let Some((header, body)) = PacketHeader::decode(&buffer.bytes()[..length]) else {
            self.counters.garbage += u64::from(length > 0);
            return self.receive_again(buffer);
        };
        if header.kind == PacketKind::Hello {
            self.take_hello(&header, buffer.bytes_mut(), body)?;
            return self.receive_again(buffer);
        }
        let frame = buffer.bytes_mut();
        let Some(number) = self.sequenced(&header, frame, body)? else {
            return self.receive_again(buffer);
        };
        let is_long = body >= KEEP_FROM
            && header.kind == PacketKind::Message
            && self.arena.used() < FRAMES_KEPT_MAX;
        let body = if is_long {
            buffer.set_len(HEADER_SIZE + body);
            let frame = buffer.into_bytes();
            self.post_receives()?;
            frame.slice(HEADER_SIZE..)
        } else {
            let copy = Bytes::copy_from_slice(&buffer.bytes()[HEADER_SIZE..HEADER_SIZE + body]);
            self.receive_again(buffer)?;
            if header.kind == PacketKind::Message {
                self.counters.count_copy(body);
            }
            copy
        };
        self.take_frame(number, header, body)
    }

    fn receive_again(&mut self, mut buffer: FabricBuffer) -> Result<(), FabricError> {
        buffer.set_len(self.setup.eager);
        match self.link.receive(buffer, super::RECEIVE) {
            Ok(()) => {
                self.receives += 1;
                Ok(())
            }
            // Posted with the next look at the clock.
            Err((FabricError::Busy { .. }, _)) => Ok(()),
            Err((error, _)) => Err(error),
        }
    }

    /// The connection that a frame belongs to, if it is the next one of it, with its body opened.
    fn sequenced(
        &mut self,
        header: &PacketHeader,
        frame: &mut [u8],
        body: usize,
    ) -> Result<Option<u64>, FabricError> {
        let number = self.connections.at(header.connection);
        let known = number.and_then(|number| {
            let open = self.connections.get_mut(number)?;
            (open.token == header.token).then_some((number, open))
        });
        let Some((number, open)) = known else {
            self.counters.strangers += 1;
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
            self.counters.wrong_seals += 1;
            return Ok(None);
        }
        open.hears(self.now);
        let ahead = header.sequence.wrapping_sub(open.sequence_in).cast_signed();
        if ahead < 0 {
            self.counters.duplicates += 1;
            return Ok(None);
        }
        if ahead > 0 {
            self.counters.gaps += 1;
            self.lose(number, Loss::Gap)?;
            return Ok(None);
        }
        open.sequence_in = open.sequence_in.wrapping_add(1);
        if !self.take_credits(number, header)? {
            return Ok(None);
        }
        Ok(Some(number))
    }

    /// What the peer gives back; false if it is more than it had, which is the end.
    fn take_credits(&mut self, number: u64, header: &PacketHeader) -> Result<bool, FabricError> {
        let Some(open) = self.connections.get_mut(number) else { return Ok(false) };
        let slots = open.free_slots.saturating_add(header.slots);
        if usize::from(slots) > open.their_slots.len() {
            self.counters.violations += 1;
            self.lose(number, Loss::Violation("it gives back slots that were not used"))?;
            return Ok(false);
        }
        open.free_slots = slots;
        open.credits = open.credits.saturating_add(header.credits);
        Ok(true)
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
                    self.take_grant(number, header.transfer, own, *remote)?;
                } else {
                    self.counters.violations += 1;
                    self.lose(number, Loss::Violation("a grant without memory"))?;
                }
            }
            PacketKind::Done => self.take_done(number, header.transfer)?,
            PacketKind::Written => self.take_written(number, header.transfer)?,
            PacketKind::Sum => self.take_sum(number, header.transfer, header.bulk_checksum)?,
            PacketKind::Welcome => self.take_welcome(number, &body)?,
            PacketKind::Leave => self.lose(number, Loss::Left)?,
            // A hello was taken before.
            PacketKind::Alive | PacketKind::Hello => {}
        }
        self.give_back(number);
        self.pump(number)
    }

    /// Tells the peer of credits before it runs out of them, if nothing else will.
    fn give_back(&mut self, number: u64) {
        let (credits, slots) = (self.setup.credits, self.setup.slots);
        let Some(open) = self.connections.get(number) else { return };
        let is_due =
            open.owed >= credits.div_ceil(2) || open.owed_slots >= slots.div_ceil(2).max(1);
        // What waits for credits itself brings none back.
        let nothing_follows = open.waiting.is_empty() || open.credits == 0;
        if is_due && nothing_follows && open.control.is_empty() {
            self.control(number, super::sending::ControlFrame::new(PacketKind::Alive, 0));
        }
    }

    fn deliver(&mut self, number: u64, head: Bytes, bulk: Bytes, by_slot: bool) {
        let Some(open) = self.connections.get_mut(number) else { return };
        if by_slot {
            open.owed_slots += 1;
        } else {
            open.owed += 1;
        }
        let connection = ConnectionId(number);
        self.counters.bytes_in += (head.len() + bulk.len()) as u64;
        self.events.push_back(FabricEvent::Received { connection, head, bulk });
    }

    /// A peer says, by the number of a write, that a slot is full.
    pub(super) fn take_fast(&mut self, told: u64) -> Result<(), FabricError> {
        let (index, sequence) = ((told >> 16 & 0xff) as usize, told >> 24 & 0xff);
        let known = self.connections.at((told & 0xffff) as u32);
        let Some((number, open)) =
            known.and_then(|number| Some((number, self.connections.get_mut(number)?)))
        else {
            self.counters.strangers += 1;
            return Ok(());
        };
        let due = u64::from(open.fast_in & 0xff) == sequence;
        let count = open.our_slots.len();
        if !due || count == 0 || index != open.fast_in as usize % count {
            self.counters.duplicates += 1;
            return Ok(());
        }
        let owner = open.owner;
        let (buffer, exposure) = &mut open.our_slots[index];
        // For the moment in which it is read, the slot is ours alone.
        exposure.take().into_iter().for_each(|exposure| self.link.conceal(exposure));
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
        *exposure = Some(self.link.expose_to_write(owner, buffer)?);
        let Some((header, mut body)) = content else {
            self.counters.garbage += 1;
            return self.lose(number, Loss::Corrupt);
        };
        if header.token != open.token
            || header.sequence != open.fast_in
            || header.kind != PacketKind::Message
        {
            self.counters.violations += 1;
            return self.lose(number, Loss::Violation("a slot with something else"));
        }
        open.hears(self.now);
        open.fast_in = open.fast_in.wrapping_add(1);
        if !self.take_credits(number, &header)? {
            return Ok(());
        }
        self.counters.frames_in += 1;
        self.counters.count_copy(body.len());
        let bulk = body.split_off((header.head_length as usize).min(body.len()));
        self.deliver(number, body, bulk, true);
        self.give_back(number);
        self.pump(number)
    }
}
