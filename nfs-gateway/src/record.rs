//! Record marking (RFC 5531 section 11): a record is a row of fragments, each behind a mark of four
//! bytes that tells its length and whether it is the last.
//!
//! A mark is a claim: memory is taken in proportion to the bytes that came, not to the claim. The
//! pieces of a record stay where they were received, so a payload is never moved; whole stripes that a WRITE brings
//! [land](Landing) where the cache can keep them.

use std::io::IoSliceMut;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use nom::IResult;
use nom::number::complete::be_u32;
use nom::{Parser as _, combinator::map};

use crate::landing::{Landing, Stripes};
use crate::spares::Spares;

/// Bytes of the first receive buffer of a record. Each further one is as large as all that came
/// before, so what is allocated stays below twice the bytes received plus this.
const CHUNK_BYTES: usize = 32 << 10;

/// A buffer with less room than this is not read into any more.
const ROOM_BYTES_MIN: usize = 512;

/// At least so many bytes at the start of a record are contiguous, or all before data that have landed: the head of
/// any call and all arguments before a payload (RFC 5531: two authenticators of at most 400 bytes each).
const HEAD_BYTES: usize = 1024;

const LAST: u32 = 1 << 31;

/// Bytes of a mark.
pub(crate) const MARK_BYTES: usize = 4;

/// Why a stream cannot be understood any further. The connection is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Violation {
    /// The marks add up to more than the limit.
    #[error("a record is larger than the limit")]
    TooLarge,
    /// A record in more fragments than the limit.
    #[error("a record has more fragments than the limit")]
    TooManyFragments,
    /// The other side sent something that is no call.
    #[error("a record is not an RPC call")]
    NotACall,
}

/// A complete record: contiguous at its start, then the further pieces.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// The first bytes.
    pub(crate) head: Bytes,
    /// The others, in order.
    pub(crate) rest: Vec<Bytes>,
}

impl Record {
    /// Of `pieces`; the first of them is known to have all of the head, or may not have it.
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
struct Mark {
    length: usize,
    last: bool,
}

fn mark(input: &[u8]) -> IResult<&[u8], Mark> {
    map(be_u32, |bits| Mark { length: (bits & !LAST) as usize, last: bits & LAST != 0 })
        .parse(input)
}

/// The mark of a record that is sent in one fragment.
pub(crate) fn sole_mark(length: usize) -> [u8; MARK_BYTES] {
    (length as u32 | LAST).to_be_bytes()
}

/// Makes records out of a stream of bytes.
#[derive(Debug)]
pub(crate) struct Assembler {
    record_bytes_max: usize,
    fragments_max: usize,
    spares: Rc<Spares>,
    /// Received and not yet taken; never holds a complete fragment between calls.
    buffer: BytesMut,
    /// Pieces of the record, and their length.
    pieces: Vec<Bytes>,
    gathered_bytes: usize,
    /// Fragments of the record so far.
    fragments: usize,
    /// The fragment that is being received, `length` still to be taken.
    fragment: Option<Mark>,
    landing: Option<Landing>,
    /// The record was looked at for stripes that can land.
    looked: bool,
    stripes: Option<Stripes>,
    /// Some of the record have landed.
    landed: bool,
}

impl Assembler {
    /// For records of at most so many bytes in at most so many fragments, in buffers out of `spares`.
    pub(crate) fn new(record_bytes_max: usize, fragments_max: usize, spares: Rc<Spares>) -> Self {
        Self {
            record_bytes_max,
            fragments_max,
            spares,
            buffer: BytesMut::new(),
            pieces: Vec::new(),
            gathered_bytes: 0,
            fragments: 0,
            fragment: None,
            landing: None,
            looked: false,
            stripes: None,
            landed: false,
        }
    }

    /// Whole stripes of data go to `landing`.
    pub(crate) fn landing_at(self, landing: Landing) -> Self {
        Self { landing: Some(landing), ..self }
    }

    /// Where the next bytes are to be put, if they belong to stripes that land; they are
    /// [told of](Self::land) afterwards.
    pub(crate) fn landing_room(&mut self) -> Option<Vec<IoSliceMut<'_>>> {
        let (stripes, landing) = (self.stripes.as_mut()?, self.landing.as_ref()?);
        if stripes.before > 0 {
            return None;
        }
        if !stripes.take_room(landing) {
            // Without room it goes on, by a copy.
            self.stripes = None;
        }
        let stripes = self.stripes.as_mut()?;
        let mut rooms: Vec<IoSliceMut<'_>> =
            stripes.room.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
        IoSliceMut::advance_slices(&mut &mut rooms[..], stripes.filled);
        Some(rooms)
    }

    /// So many bytes were put into the [landing room](Self::landing_room).
    pub(crate) fn land(&mut self, length: usize) {
        let Some(stripes) = &mut self.stripes else { return };
        for buffer in stripes.fill(length) {
            self.gathered_bytes += buffer.len();
            if let Some(fragment) = &mut self.fragment {
                fragment.length -= buffer.len();
            }
            self.pieces.push(buffer.lend());
            self.landed = true;
        }
        if stripes.left == 0 {
            self.stripes = None;
        }
    }

    /// The record was not looked at yet for stripes that can land, because too little of it is there.
    fn is_to_be_looked_at(&self) -> bool {
        let enough = self.landing.as_ref().map_or(0, Landing::looked_at_bytes);
        !self.looked && self.buffer.len() < enough
    }

    /// Looks for stripes in the fragment that is being received, and lets what came of them land.
    fn look_for_stripes(&mut self, fragment: Mark) {
        if let Some(landing) = &self.landing
            && !self.looked
            && !self.is_to_be_looked_at()
        {
            self.looked = true;
            let is_alone = fragment.last && self.fragments == 1 && self.pieces.is_empty();
            self.stripes =
                is_alone.then(|| landing.stripes(&self.buffer, fragment.length)).flatten();
        }
        let Some(before) = self.stripes.as_ref().map(|stripes| stripes.before) else { return };
        if self.buffer.len() < before {
            return;
        }
        self.set_aside(before);
        while !self.buffer.is_empty() {
            let received = std::mem::take(&mut self.buffer);
            let mut room = self.landing_room();
            let Some(room) = room.as_mut().and_then(|rooms| rooms.first_mut()) else {
                self.buffer = received;
                return;
            };
            let length = received.len().min(room.len());
            room[..length].copy_from_slice(&received[..length]);
            self.buffer = received;
            let _ = self.buffer.split_to(length);
            if let Some(landing) = &self.landing {
                landing.pool.count_copy(length);
            }
            self.land(length);
        }
    }

    /// Where received bytes are to be appended; has room.
    pub(crate) fn room(&mut self) -> &mut BytesMut {
        if self.buffer.capacity() - self.buffer.len() < ROOM_BYTES_MIN {
            // What is to be looked at stays together.
            if self.fragment.is_some() && !self.is_to_be_looked_at() {
                self.set_aside(self.buffer.len());
            }
            let missing = self.fragment.map_or(0, |fragment| fragment.length);
            let whole = missing + MARK_BYTES + ROOM_BYTES_MIN;
            let bytes_min = self.gathered_bytes.min(whole).max(CHUNK_BYTES + self.buffer.len());
            // A buffer that is there already may be as large as the claim.
            let mut fresh = self.spares.take(bytes_min, whole.max(bytes_min));
            fresh.extend_from_slice(&self.buffer);
            self.buffer = fresh;
        }
        &mut self.buffer
    }

    /// The next complete record among what was received.
    pub(crate) fn next(&mut self) -> Result<Option<Record>, Violation> {
        loop {
            let fragment = match self.fragment {
                Some(fragment) => fragment,
                None => match mark(&self.buffer) {
                    Ok((_, mark)) => self.begin(mark)?,
                    Err(_) => return Ok(None),
                },
            };
            if self.buffer.len() < fragment.length {
                self.look_for_stripes(fragment);
                return Ok(None);
            }
            self.set_aside(fragment.length);
            // Stripes that were waited for came with the rest of it, and are of no other record.
            (self.fragment, self.stripes) = (None, None);
            if fragment.last {
                (self.fragments, self.gathered_bytes, self.looked) = (0, 0, false);
                let is_headed = std::mem::take(&mut self.landed);
                return Ok(Some(Record::new(std::mem::take(&mut self.pieces), is_headed)));
            }
        }
    }

    fn begin(&mut self, mark: Mark) -> Result<Mark, Violation> {
        let announced = self.gathered_bytes.saturating_add(mark.length);
        if announced > self.record_bytes_max {
            return Err(Violation::TooLarge);
        }
        self.fragments += 1;
        if self.fragments > self.fragments_max {
            return Err(Violation::TooManyFragments);
        }
        let _ = self.buffer.split_to(MARK_BYTES);
        self.fragment = Some(mark);
        Ok(mark)
    }

    /// Takes `length` bytes of the buffer, which belong to the fragment, to the pieces.
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
    use runtime::buffer::{Pool, Shared};
    use runtime::seed::{Rng, with_seed};

    use super::*;

    fn fragment(bytes: &[u8], last: bool) -> Vec<u8> {
        let mark = bytes.len() as u32 | if last { LAST } else { 0 };
        [&mark.to_be_bytes()[..], bytes].concat()
    }

    fn content(record: &Record) -> Vec<u8> {
        [&record.head[..], &record.rest.concat()].concat()
    }

    /// Feeds `stream` in random pieces and returns the records.
    fn assemble(stream: &[u8], rng: &mut Rng, most: usize) -> Result<Vec<Record>, Violation> {
        assemble_in(Assembler::new(1 << 20, 64, Rc::default()), stream, rng, most)
    }

    fn assemble_in(
        mut assembler: Assembler,
        stream: &[u8],
        rng: &mut Rng,
        most: usize,
    ) -> Result<Vec<Record>, Violation> {
        let (mut at, mut records) = (0, Vec::new());
        while at < stream.len() {
            let part = (1 + rng.index(most)).min(stream.len() - at);
            let part = if let Some(mut rooms) = assembler.landing_room() {
                let part = rooms.iter_mut().fold(0, |filled, room| {
                    let length = room.len().min(part - filled);
                    room[..length].copy_from_slice(&stream[at + filled..][..length]);
                    filled + length
                });
                assembler.land(part);
                part
            } else {
                let room = assembler.room();
                let part = part.min(room.capacity() - room.len());
                room.extend_from_slice(&stream[at..at + part]);
                part
            };
            at += part;
            while let Some(record) = assembler.next()? {
                records.push(record);
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
                let contiguous = |record: &Record| record.head.len() >= record.length().min(1024);
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
                let landing = Landing { pool: pool.clone(), stripe_bytes: STRIPE };
                let assembler = Assembler::new(1 << 20, 64, Rc::default()).landing_at(landing);
                let most = 1 << (4 + rng.index(12));
                let records = assemble_in(assembler, &stream, rng, most).unwrap();
                for (record, (sent, whole)) in records.iter().zip(&writes) {
                    assert!(content(record) == *sent, "a record was changed");
                    let landed =
                        record.rest.iter().filter(|piece| Shared::adopt(piece, &pool).is_some());
                    let landed = landed.count();
                    // What comes at once is not looked at.
                    assert!(landed == *whole || landed == 0 && most > STRIPE / 8);
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
        let landing = Landing { pool: Pool::new(64 * STRIPE), stripe_bytes: STRIPE };
        let looked_at = landing.looked_at_bytes();
        let mut assembler = Assembler::new(1 << 20, 64, Rc::default()).landing_at(landing);
        assembler.room().extend_from_slice(&stream[..MARK_BYTES + looked_at]);
        assert!(assembler.next().unwrap().is_none());
        assert!(assembler.stripes.as_ref().is_some_and(|stripes| stripes.before > 0), "looked at");
        for part in [MARK_BYTES + looked_at..stream.len() / 2, stream.len() / 2..stream.len()] {
            assert!(assembler.landing_room().is_none());
            assembler.room().extend_from_slice(&stream[part]);
            assert!(content(&assembler.next().unwrap().unwrap()) == record, "a record was changed");
        }
    }

    #[test]
    fn without_room_in_the_pool_stripes_do_not_land() {
        with_seed(|rng| {
            let (write, _) = write(rng);
            let landing = Landing { pool: Pool::new(2 * STRIPE), stripe_bytes: STRIPE };
            let assembler = Assembler::new(1 << 20, 64, Rc::default()).landing_at(landing);
            let records = assemble_in(assembler, &fragment(&write, true), rng, 5000).unwrap();
            assert!(content(&records[0]) == write, "a record was changed");
        });
    }

    #[test]
    fn memory_follows_the_bytes_received_not_the_mark() {
        let mut assembler = Assembler::new(1 << 20, 64, Rc::default());
        assembler.room().extend_from_slice(&sole_mark(1 << 20));
        assert!(assembler.next().unwrap().is_none());
        assert!(assembler.room().capacity() <= CHUNK_BYTES);
        let (mut received, mut allocated) = (0, assembler.buffer.capacity());
        while received < 1 << 20 {
            let room = assembler.room();
            let part = (room.capacity() - room.len()).min((1 << 20) - received).min(5_000);
            let before = room.capacity();
            room.extend_from_slice(&vec![7; part]);
            assert_eq!(room.capacity(), before, "the room was enough");
            received += part;
            if received < 1 << 20 {
                assert!(assembler.next().unwrap().is_none());
                let pieces = assembler.pieces.len();
                if assembler.room().is_empty() && pieces > 0 {
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
    fn a_mark_beyond_the_limit_is_refused_before_its_bytes_come() {
        for length in [1025, 1 << 20, (1 << 31) - 1] {
            let mut assembler = Assembler::new(1024, 64, Rc::default());
            assembler.room().extend_from_slice(&sole_mark(length));
            assert_eq!(assembler.next().unwrap_err(), Violation::TooLarge);
        }
        let mut assembler = Assembler::new(1024, 64, Rc::default());
        assembler.room().extend_from_slice(&fragment(&[0; 1000], false));
        assembler.room().extend_from_slice(&fragment(&[0; 25], true));
        assert_eq!(assembler.next().unwrap_err(), Violation::TooLarge, "fragments add up");
    }

    #[test]
    fn endless_empty_fragments_are_refused() {
        let mut assembler = Assembler::new(1024, 64, Rc::default());
        for _ in 0..65 {
            assembler.room().extend_from_slice(&fragment(&[], false));
        }
        assert_eq!(assembler.next().unwrap_err(), Violation::TooManyFragments);
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
