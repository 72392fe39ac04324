//! Record marking (RFC 5531 section 11): a record is a sequence of fragments, each behind a header
//! of four bytes with its length and whether it is the last.
//!
//! A header only announces: memory is taken in proportion to the bytes received, not to what a
//! header announces. The pieces of a record stay where they were received, so a payload is never
//! moved; whole stripes of a WRITE are [placed](DirectPlacement) into buffers that the cache keeps.

use std::io::IoSliceMut;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use nom::IResult;
use nom::number::complete::be_u32;
use nom::{Parser as _, combinator::map};

use crate::placement::{DirectPlacement, StripeBuffers};
use crate::recv_buffers::RecvBufferPool;

/// Bytes of the first receive buffer of a record. Each further one is as large as all before it, so
/// less than twice the bytes received plus this is allocated.
const CHUNK_BYTES: usize = 32 << 10;

/// No memory is reserved for records of up to this length: each connection has a buffer for one.
pub(crate) const SMALL_RECORD_BYTES: usize = CHUNK_BYTES;

/// A buffer with less free space than this is not received into any more.
const FREE_BYTES_MIN: usize = 512;

/// Bytes at the start of a record that are contiguous, at least, unless all before placed data are:
/// the header of any call and all arguments before a payload (RFC 5531: two authenticators of at
/// most 400 bytes each).
const HEAD_BYTES: usize = 1024;

const LAST: u32 = 1 << 31;

pub(crate) const FRAGMENT_HEADER_BYTES: usize = 4;

/// Why a stream cannot be decoded any further. The connection must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RecordError {
    /// The announced lengths add up to more than the limit.
    #[error("a record is larger than the limit")]
    TooLarge,
    /// A record in more fragments than the limit.
    #[error("a record has more fragments than the limit")]
    TooManyFragments,
    /// The record is neither an RPC call nor a reply.
    #[error("a record is no RPC message")]
    NotAMessage,
}

/// A complete record: contiguous at its start, then the further pieces.
#[derive(Clone, Debug)]
pub(crate) struct RpcRecord {
    /// The first bytes.
    pub(crate) head: Bytes,
    /// The others, in order.
    pub(crate) rest: Vec<Bytes>,
}

impl RpcRecord {
    /// Makes a record of `pieces`; `is_headed` if the first one is known to have all of the head.
    fn new(pieces: Vec<Bytes>, is_headed: bool) -> Self {
        let mut rest = pieces;
        if rest.len() <= 1 {
            return Self { head: rest.pop().unwrap_or_default(), rest };
        }
        if is_headed || rest[0].len() >= HEAD_BYTES {
            let head = rest.remove(0);
            return Self { head, rest };
        }
        let mut head = BytesMut::with_capacity(HEAD_BYTES);
        for piece in &mut rest {
            let part = piece.split_to(piece.len().min(HEAD_BYTES - head.len()));
            head.extend_from_slice(&part);
        }
        rest.retain(|piece| !piece.is_empty());
        Self { head: head.freeze(), rest }
    }

    /// Bytes in all.
    pub(crate) fn length(&self) -> usize {
        self.head.len() + self.rest.iter().map(Bytes::len).sum::<usize>()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FragmentHeader {
    length: usize,
    last: bool,
}

fn fragment_header(input: &[u8]) -> IResult<&[u8], FragmentHeader> {
    map(be_u32, |bits| FragmentHeader { length: (bits & !LAST) as usize, last: bits & LAST != 0 })
        .parse(input)
}

/// The header of a record that is sent as one fragment.
pub(crate) fn sole_fragment_header(length: usize) -> [u8; FRAGMENT_HEADER_BYTES] {
    (length as u32 | LAST).to_be_bytes()
}

/// Assembles records from a stream of bytes.
#[derive(Debug)]
pub(crate) struct RecordAssembler {
    record_bytes_max: usize,
    fragments_max: usize,
    recv_buffers: Rc<RecvBufferPool>,
    /// Received and not yet taken; never a complete fragment between calls.
    buffer: BytesMut,
    /// Pieces of the record, and their length.
    pieces: Vec<Bytes>,
    gathered_bytes: usize,
    /// Fragments of the record so far.
    fragments: usize,
    /// The fragment that is being received, `length` still to be taken.
    fragment: Option<FragmentHeader>,
    placement: Option<DirectPlacement>,
    /// The record was inspected for stripes that can be placed.
    inspected: bool,
    stripes: Option<StripeBuffers>,
    /// Some stripes of the record were placed.
    has_placed: bool,
    /// Bytes that are reserved for the record.
    reserved_bytes: usize,
}

impl RecordAssembler {
    /// For records within these limits, received into buffers of `recv_buffers`.
    pub(crate) fn new(
        record_bytes_max: usize,
        fragments_max: usize,
        recv_buffers: Rc<RecvBufferPool>,
    ) -> Self {
        Self {
            record_bytes_max,
            fragments_max,
            recv_buffers,
            buffer: BytesMut::new(),
            pieces: Vec::new(),
            gathered_bytes: 0,
            fragments: 0,
            fragment: None,
            placement: None,
            inspected: false,
            stripes: None,
            has_placed: false,
            reserved_bytes: 0,
        }
    }

    /// Places whole stripes of data by `placement`.
    pub(crate) fn with_placement(self, placement: DirectPlacement) -> Self {
        Self { placement: Some(placement), ..self }
    }

    /// Bytes to [reserve](Self::reserved) before more of the record is received: none for a small
    /// one, else its length, or that of the largest if the length is not known yet.
    pub(crate) fn unreserved_bytes(&self) -> usize {
        let Some(fragment) = self.fragment else { return 0 };
        let announced = self.gathered_bytes + fragment.length;
        if announced <= SMALL_RECORD_BYTES {
            return 0;
        }
        let needed = if fragment.last { announced } else { self.record_bytes_max };
        if needed <= self.reserved_bytes { 0 } else { needed }
    }

    /// Records that `bytes` are reserved for the record.
    pub(crate) fn reserved(&mut self, bytes: usize) {
        self.reserved_bytes = bytes;
    }

    /// Where to receive the next bytes, if they belong to stripes that are placed;
    /// [`placed`](Self::placed) is called afterwards.
    pub(crate) fn placement_slices(&mut self) -> Option<Vec<IoSliceMut<'_>>> {
        let (stripes, placement) = (self.stripes.as_mut()?, self.placement.as_ref()?);
        if stripes.before > 0 {
            return None;
        }
        if !stripes.take_buffers(placement) {
            // Without a buffer the data are copied later.
            self.stripes = None;
        }
        let stripes = self.stripes.as_mut()?;
        let mut slices: Vec<IoSliceMut<'_>> =
            stripes.buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
        IoSliceMut::advance_slices(&mut &mut slices[..], stripes.filled);
        Some(slices)
    }

    /// Records that `length` bytes were received into the [slices](Self::placement_slices).
    pub(crate) fn placed(&mut self, length: usize) {
        let Some(stripes) = &mut self.stripes else { return };
        for buffer in stripes.fill(length) {
            self.gathered_bytes += buffer.len();
            if let Some(fragment) = &mut self.fragment {
                fragment.length -= buffer.len();
            }
            self.pieces.push(buffer.lend());
            self.has_placed = true;
        }
        if stripes.left == 0 {
            self.stripes = None;
        }
    }

    /// Is too little of the record received to be inspected for stripes?
    fn awaits_inspection(&self) -> bool {
        let enough = self.placement.as_ref().map_or(0, DirectPlacement::inspected_bytes);
        !self.inspected && self.buffer.len() < enough
    }

    /// Looks for stripes in the fragment that is being received, and places their first bytes.
    fn place_stripes(&mut self, fragment: FragmentHeader) {
        if self.unreserved_bytes() > 0 {
            return;
        }
        if let Some(placement) = &self.placement
            && !self.inspected
            && !self.awaits_inspection()
        {
            self.inspected = true;
            let is_alone = fragment.last && self.fragments == 1 && self.pieces.is_empty();
            self.stripes =
                is_alone.then(|| placement.stripes(&self.buffer, fragment.length)).flatten();
        }
        let Some(before) = self.stripes.as_ref().map(|stripes| stripes.before) else { return };
        if self.buffer.len() < before {
            return;
        }
        self.set_aside(before);
        while !self.buffer.is_empty() {
            let received = std::mem::take(&mut self.buffer);
            let mut slices = self.placement_slices();
            let Some(slice) = slices.as_mut().and_then(|slices| slices.first_mut()) else {
                self.buffer = received;
                return;
            };
            let length = received.len().min(slice.len());
            slice[..length].copy_from_slice(&received[..length]);
            self.buffer = received;
            let _ = self.buffer.split_to(length);
            if let Some(placement) = &self.placement {
                placement.pool.count_copy(length);
            }
            self.placed(length);
        }
    }

    /// The buffer to receive into; it has free space.
    pub(crate) fn receive_buffer(&mut self) -> &mut BytesMut {
        if self.buffer.capacity() - self.buffer.len() < FREE_BYTES_MIN {
            // What is to be inspected stays contiguous.
            if self.fragment.is_some() && !self.awaits_inspection() {
                self.set_aside(self.buffer.len());
            }
            let missing = self.fragment.map_or(0, |fragment| fragment.length);
            let whole = missing + FRAGMENT_HEADER_BYTES + FREE_BYTES_MIN;
            let bytes_min = self.gathered_bytes.min(whole).max(CHUNK_BYTES + self.buffer.len());
            // A pooled buffer may be as large as the record announces to be.
            let mut fresh = self.recv_buffers.take(bytes_min, whole.max(bytes_min));
            fresh.extend_from_slice(&self.buffer);
            self.buffer = fresh;
        }
        &mut self.buffer
    }

    /// Returns the next complete record.
    pub(crate) fn next(&mut self) -> Result<Option<RpcRecord>, RecordError> {
        loop {
            let fragment = match self.fragment {
                Some(fragment) => fragment,
                None => match fragment_header(&self.buffer) {
                    Ok((_, fragment_header)) => self.begin(fragment_header)?,
                    Err(_) => return Ok(None),
                },
            };
            if self.buffer.len() < fragment.length {
                self.place_stripes(fragment);
                return Ok(None);
            }
            self.set_aside(fragment.length);
            // Stripes still expected came with the rest of it, and belong to no other record.
            (self.fragment, self.stripes) = (None, None);
            if fragment.last {
                if self.buffer.is_empty() && self.gathered_bytes > SMALL_RECORD_BYTES {
                    // What is left of a large buffer would keep all of it.
                    self.buffer = BytesMut::new();
                }
                (self.fragments, self.gathered_bytes, self.inspected) = (0, 0, false);
                self.reserved_bytes = 0;
                let is_headed = std::mem::take(&mut self.has_placed);
                return Ok(Some(RpcRecord::new(std::mem::take(&mut self.pieces), is_headed)));
            }
        }
    }

    fn begin(&mut self, fragment_header: FragmentHeader) -> Result<FragmentHeader, RecordError> {
        let announced = self.gathered_bytes.saturating_add(fragment_header.length);
        if announced > self.record_bytes_max {
            return Err(RecordError::TooLarge);
        }
        self.fragments += 1;
        if self.fragments > self.fragments_max {
            return Err(RecordError::TooManyFragments);
        }
        let _ = self.buffer.split_to(FRAGMENT_HEADER_BYTES);
        self.fragment = Some(fragment_header);
        Ok(fragment_header)
    }

    /// Moves `length` bytes of the fragment from the buffer to the pieces.
    fn set_aside(&mut self, length: usize) {
        if length > 0 {
            self.pieces.push(self.buffer.split_to(length).freeze());
        }
        self.gathered_bytes += length;
        if let Some(fragment) = &mut self.fragment {
            fragment.length -= length;
        }
        if let Some(stripes) = &mut self.stripes {
            stripes.before -= length.min(stripes.before);
        }
    }
}

#[cfg(test)]
mod tests {
    use runtime::buffer::{Pool, SharedBuffer};
    use runtime::seed::{Rng, with_seed};

    use super::*;

    fn placement(pool: Pool) -> DirectPlacement {
        DirectPlacement { pool, stripe_bytes: STRIPE, find_data: crate::write_data::find }
    }

    fn fragment(bytes: &[u8], last: bool) -> Vec<u8> {
        let fragment_header = bytes.len() as u32 | if last { LAST } else { 0 };
        [&fragment_header.to_be_bytes()[..], bytes].concat()
    }

    fn content(record: &RpcRecord) -> Vec<u8> {
        [&record.head[..], &record.rest.concat()].concat()
    }

    /// Feeds `stream` in random pieces and returns the records.
    fn assemble(stream: &[u8], rng: &mut Rng, most: usize) -> Result<Vec<RpcRecord>, RecordError> {
        assemble_in(RecordAssembler::new(1 << 20, 64, Rc::default()), stream, rng, most)
    }

    fn assemble_in(
        mut assembler: RecordAssembler,
        stream: &[u8],
        rng: &mut Rng,
        most: usize,
    ) -> Result<Vec<RpcRecord>, RecordError> {
        let (mut at, mut records) = (0, Vec::new());
        while at < stream.len() {
            let part = (1 + rng.index(most)).min(stream.len() - at);
            let part = if let Some(mut rooms) = assembler.placement_slices() {
                let part = rooms.iter_mut().fold(0, |filled, room| {
                    let length = room.len().min(part - filled);
                    room[..length].copy_from_slice(&stream[at + filled..][..length]);
                    filled + length
                });
                assembler.placed(part);
                part
            } else {
                let room = assembler.receive_buffer();
                let part = part.min(room.capacity() - room.len());
                room.extend_from_slice(&stream[at..at + part]);
                part
            };
            at += part;
            loop {
                while let Some(record) = assembler.next()? {
                    records.push(record);
                }
                match assembler.unreserved_bytes() {
                    0 => break,
                    bytes => assembler.reserved(bytes),
                }
            }
        }
        Ok(records)
    }

    #[test]
    fn records_come_out_as_they_went_in_however_the_stream_is_cut() {
        with_seed(|rng| {
            for _ in 0..200 {
                let mut stream = Vec::new();
                let mut sent = Vec::new();
                for _ in 0..=rng.index(5) {
                    let mut record = Vec::new();
                    let fragments = 1 + rng.index(4);
                    for index in 0..fragments {
                        let most = 1 << rng.index(17);
                        let mut part = vec![0; rng.index(1 + most)];
                        rng.fill(&mut part);
                        stream.extend(fragment(&part, index + 1 == fragments));
                        record.extend(part);
                    }
                    sent.push(record);
                }
                let most = 1 << (4 + rng.index(14));
                let got = assemble(&stream, rng, most).unwrap();
                assert!(got.iter().map(content).eq(sent), "a record was changed");
                let contiguous =
                    |record: &RpcRecord| record.head.len() >= record.length().min(1024);
                assert!(got.iter().all(contiguous));
            }
        });
    }

    const STRIPE: usize = 16 << 10;

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    /// A WRITE of version 3, or 4 with operations around it, and how many whole stripes it has.
    fn write(rng: &mut Rng) -> (Vec<u8>, usize) {
        let offset = [0, STRIPE, 4096, 3 * STRIPE + 5][rng.index(4)];
        let mut data = vec![0; rng.index(6 * STRIPE)];
        rng.fill(&mut data);
        let (at, length) = (offset as u32, data.len() as u32);
        let (version, procedure, arguments, tail) = if rng.chance(1, 2) {
            (3, 7, vec![8, 1, 2, 0, at, length, 0, length], vec![])
        } else {
            let sequence = [&[53][..], &[7; 8]].concat();
            let put = [22, 8, 1, 2];
            let write = [38, 4, 4, 4, 4, 0, at, 0, length];
            (4, 1, [&[0, 1, 4][..], &sequence, &put, &write].concat(), vec![9, 1, 0])
        };
        let head = words(&[1, 0, 2, 100_003, version, procedure, 0, 0, 0, 0]);
        let padding = vec![0; data.len().wrapping_neg() % 4];
        let before = offset.wrapping_neg() % STRIPE;
        let whole = data.len().saturating_sub(before) / STRIPE;
        ([head, words(&arguments), data, padding, words(&tail)].concat(), whole)
    }

    #[test]
    fn whole_stripes_of_a_write_land_and_the_record_is_the_same_however_the_stream_is_cut() {
        with_seed(|rng| {
            for _ in 0..100 {
                let writes: Vec<_> = (0..4).map(|_| write(rng)).collect();
                let stream: Vec<u8> =
                    writes.iter().flat_map(|(write, _)| fragment(write, true)).collect();
                let pool = Pool::new(64 * STRIPE);
                let placement = placement(pool.clone());
                let assembler =
                    RecordAssembler::new(1 << 20, 64, Rc::default()).with_placement(placement);
                let most = 1 << (4 + rng.index(12));
                let records = assemble_in(assembler, &stream, rng, most).unwrap();
                for (record, (sent, whole)) in records.iter().zip(&writes) {
                    assert!(content(record) == *sent, "a record was changed");
                    let has_placed = record
                        .rest
                        .iter()
                        .filter(|piece| SharedBuffer::adopt(piece, &pool).is_some());
                    let has_placed = has_placed.count();
                    // What comes at once is not looked at.
                    assert!(has_placed == *whole || has_placed == 0 && most > STRIPE / 8);
                }
                assert_eq!(records.len(), writes.len());
            }
        });
    }

    /// Bytes of the first record never fill stripes of the second, or the other way round.
    #[test]
    fn stripes_that_come_with_the_rest_of_a_record_leave_the_next_one_alone() {
        let data = 7 * STRIPE / 4;
        let head = [1, 0, 2, 100_003, 3, 7, 0, 0, 0, 0, 8, 1, 2, 0, STRIPE as u32 / 4];
        let arguments = [data as u32, 0, data as u32];
        let record = [words(&head), words(&arguments), vec![7; data]].concat();
        let stream = [fragment(&record, true), fragment(&record, true)].concat();
        let placement = placement(Pool::new(64 * STRIPE));
        let looked_at = placement.inspected_bytes();
        let mut assembler =
            RecordAssembler::new(1 << 20, 64, Rc::default()).with_placement(placement);
        assembler.receive_buffer().extend_from_slice(&stream[..FRAGMENT_HEADER_BYTES + looked_at]);
        assert!(assembler.next().unwrap().is_none());
        assert!(assembler.stripes.as_ref().is_some_and(|stripes| stripes.before > 0), "looked at");
        for part in
            [FRAGMENT_HEADER_BYTES + looked_at..stream.len() / 2, stream.len() / 2..stream.len()]
        {
            assert!(assembler.placement_slices().is_none());
            assembler.receive_buffer().extend_from_slice(&stream[part]);
            assert!(content(&assembler.next().unwrap().unwrap()) == record, "a record was changed");
        }
    }

    #[test]
    fn no_stripe_is_placed_before_the_record_is_reserved() {
        let data = 3 * STRIPE;
        let head = [1, 0, 2, 100_003, 3, 7, 0, 0, 0, 0, 8, 1, 2, 0, 0, data as u32, 0];
        let record = [words(&head), words(&[data as u32]), vec![7; data]].concat();
        let mut assembler = RecordAssembler::new(1 << 20, 64, Rc::default())
            .with_placement(placement(Pool::new(64 * STRIPE)));
        let part = &fragment(&record, true)[..STRIPE / 2];
        assembler.receive_buffer().extend_from_slice(part);
        assert!(assembler.next().unwrap().is_none());
        assert!(assembler.placement_slices().is_none(), "nothing is reserved");
        assembler.reserved(assembler.unreserved_bytes());
        assert!(assembler.next().unwrap().is_none());
        assert!(assembler.placement_slices().is_some());
    }

    #[test]
    fn without_room_in_the_pool_stripes_do_not_land() {
        with_seed(|rng| {
            let (write, _) = write(rng);
            let placement = placement(Pool::new(2 * STRIPE));
            let assembler =
                RecordAssembler::new(1 << 20, 64, Rc::default()).with_placement(placement);
            let records = assemble_in(assembler, &fragment(&write, true), rng, 5000).unwrap();
            assert!(content(&records[0]) == write, "a record was changed");
        });
    }

    #[test]
    fn memory_follows_the_bytes_received_not_the_mark() {
        let mut assembler = RecordAssembler::new(1 << 20, 64, Rc::default());
        assembler.receive_buffer().extend_from_slice(&sole_fragment_header(1 << 20));
        assert!(assembler.next().unwrap().is_none());
        assert!(assembler.receive_buffer().capacity() <= CHUNK_BYTES);
        let (mut received, mut allocated) = (0, assembler.buffer.capacity());
        while received < 1 << 20 {
            let room = assembler.receive_buffer();
            let part = (room.capacity() - room.len()).min((1 << 20) - received).min(5_000);
            let before = room.capacity();
            room.extend_from_slice(&vec![7; part]);
            assert_eq!(room.capacity(), before, "the room was enough");
            received += part;
            if received < 1 << 20 {
                assert!(assembler.next().unwrap().is_none());
                let pieces = assembler.pieces.len();
                if assembler.receive_buffer().is_empty() && pieces > 0 {
                    allocated += assembler.buffer.capacity();
                }
            }
            assert!(allocated <= 2 * received + (64 << 10), "{allocated} for {received}");
        }
        let record = assembler.next().unwrap().unwrap();
        assert_eq!(record.length(), 1 << 20);
        assert!(record.rest.len() < 16, "few pieces, not one per read");
    }

    #[test]
    fn large_records_are_reserved_with_all_of_their_length() {
        let (small, large) = (SMALL_RECORD_BYTES, SMALL_RECORD_BYTES + 1);
        let mark = |length: usize, last| fragment(&vec![0; length], last)[..4].to_vec();
        for (mark, needed) in
            [(mark(small, true), 0), (mark(large, true), large), (mark(large, false), 1 << 20)]
        {
            let mut assembler = RecordAssembler::new(1 << 20, 64, Rc::default());
            assembler.receive_buffer().extend_from_slice(&mark);
            assert!(assembler.next().unwrap().is_none());
            assert_eq!(assembler.unreserved_bytes(), needed);
            assembler.reserved(needed);
            assert_eq!(assembler.unreserved_bytes(), 0);
        }
        let mut assembler = RecordAssembler::new(1 << 20, 64, Rc::default());
        assembler.receive_buffer().extend_from_slice(&fragment(&vec![0; 20_000], false));
        assert!(assembler.next().unwrap().is_none());
        assert_eq!(assembler.unreserved_bytes(), 0);
        assembler.receive_buffer().extend_from_slice(&mark(20_000, true));
        assert!(assembler.next().unwrap().is_none());
        assert_eq!(assembler.unreserved_bytes(), 40_000, "fragments add up");
        assembler.reserved(40_000);
        assembler.receive_buffer().extend_from_slice(&[0; 10_000]);
        assert!(assembler.next().unwrap().is_none());
        assembler.receive_buffer().extend_from_slice(&[0; 10_000]);
        assert!(assembler.next().unwrap().is_some());
        assert_eq!(assembler.reserved_bytes, 0, "none is left for the next record");
    }

    #[test]
    fn a_mark_beyond_the_limit_is_refused_before_its_bytes_come() {
        for length in [1025, 1 << 20, (1 << 31) - 1] {
            let mut assembler = RecordAssembler::new(1024, 64, Rc::default());
            assembler.receive_buffer().extend_from_slice(&sole_fragment_header(length));
            assert_eq!(assembler.next().unwrap_err(), RecordError::TooLarge);
        }
        let mut assembler = RecordAssembler::new(1024, 64, Rc::default());
        assembler.receive_buffer().extend_from_slice(&fragment(&[0; 1000], false));
        assembler.receive_buffer().extend_from_slice(&fragment(&[0; 25], true));
        assert_eq!(assembler.next().unwrap_err(), RecordError::TooLarge, "fragments add up");
    }

    #[test]
    fn endless_empty_fragments_are_refused() {
        let mut assembler = RecordAssembler::new(1024, 64, Rc::default());
        for _ in 0..65 {
            assembler.receive_buffer().extend_from_slice(&fragment(&[], false));
        }
        assert_eq!(assembler.next().unwrap_err(), RecordError::TooManyFragments);
    }

    #[test]
    fn empty_fragments_within_a_record_are_harmless() {
        let stream = [fragment(b"", false), fragment(b"abc", false), fragment(b"", true)].concat();
        with_seed(|rng| {
            let records = assemble(&stream, rng, 3).unwrap();
            assert_eq!(records.iter().map(content).collect::<Vec<_>>(), [b"abc"]);
        });
    }
}
