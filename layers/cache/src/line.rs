//! One cache line: the bytes of one stripe, and what is known of each of them.

use std::ops::Range;
use std::time::Duration;

use blockio::BLOCK_SIZE;
use bytes::Bytes;
use runtime::buffer::{Pool, SharedBuffer};
use runtime::hash::crc32c;

use crate::extents::Extents;
use crate::protocol::{Extent, Placed};

/// Ranges of one kind that a line may consist of; past it the line is written back and forgets its
/// clean bytes. It bounds the memory for bookkeeping and the requests of one write-back.
const RANGES_MAX: usize = 256;

/// Parts of a line that are shorter than this, in the middle, are copied together: a slice costs
/// more.
const SLICE_MIN: usize = 256;

/// The pool had no room for the content of a line, or for the copy that a change of one with slices
/// out needs.
#[derive(Debug)]
pub(crate) struct OutOfMemory;

/// One stripe in memory.
///
/// Every byte is unknown or valid; a valid byte may be dirty (no disk has it yet), in the course of
/// being written back, both (rewritten meanwhile), or unchecked (it came from a disk and was not
/// compared with a checksum yet). Each of the sets is a part of `valid`.
#[derive(Debug)]
pub(crate) struct Line {
    /// From the first write or fill on.
    content: Option<SharedBuffer>,
    length: u32,
    valid: Extents,
    dirty: Extents,
    /// Sent to the disk, not answered yet.
    writing: Extents,
    /// Taken by the disk in its present life; if it restarts it may have lost them.
    given: Extents,
    unchecked: Extents,
    /// When the line was last clean.
    dirty_since: Option<Duration>,
    /// Operations that rely on the line across an await: it must not be dropped.
    pins: u32,
    /// Counts the writes.
    writes: u64,
    /// Is or was dirty as a whole, since it was synced last.
    pub(crate) was_whole: bool,
}

impl Line {
    /// A line of `length` bytes, of which nothing is known. It takes no memory yet.
    pub(crate) fn new(length: u32) -> Self {
        Self {
            content: None,
            length,
            valid: Extents::default(),
            dirty: Extents::default(),
            writing: Extents::default(),
            given: Extents::default(),
            unchecked: Extents::default(),
            dirty_since: None,
            pins: 0,
            writes: 0,
            was_whole: false,
        }
    }

    /// If all of it is dirty: how often it was written.
    pub(crate) fn whole_state(&self) -> Option<u64> {
        self.dirty.covers(&(0..self.length)).then_some(self.writes)
    }

    /// Some byte is on no disk yet, or its write-back is not answered yet.
    pub(crate) fn is_dirty(&self) -> bool {
        !self.dirty.is_empty() || !self.writing.is_empty()
    }

    /// Dirty since `time` or longer.
    pub(crate) fn is_dirty_since(&self, time: Duration) -> bool {
        self.dirty_since.is_some_and(|since| since <= time)
    }

    /// The disk has bytes of the line that it may lose.
    pub(crate) fn is_given(&self) -> bool {
        !self.given.is_empty()
    }

    /// Some operation relies on the line.
    pub(crate) fn is_pinned(&self) -> bool {
        self.pins > 0
    }

    /// Nothing is known and no operation relies on the line.
    pub(crate) fn is_useless(&self) -> bool {
        self.valid.is_empty() && self.pins == 0
    }

    /// The line consists of too many pieces.
    pub(crate) fn is_fragmented(&self) -> bool {
        let counts = [&self.valid, &self.dirty, &self.given, &self.unchecked].map(Extents::count);
        counts.into_iter().any(|count| count >= RANGES_MAX)
    }

    /// The line must stay until [`unpin`](Self::unpin).
    pub(crate) fn pin(&mut self) {
        self.pins += 1;
    }

    /// Takes one [`pin`](Self::pin) back.
    pub(crate) fn unpin(&mut self) {
        self.pins -= 1;
    }

    /// Every byte of `range` is known.
    pub(crate) fn has(&self, range: &Range<u32>) -> bool {
        self.valid.covers(range)
    }

    /// The bytes of the whole stripe that are not known.
    pub(crate) fn gaps(&self) -> Extents {
        self.valid.gaps(&(0..self.length))
    }

    /// The bytes of `range`, without a copy; they must be known.
    pub(crate) fn slice(&mut self, range: &Range<u32>) -> Bytes {
        let content = self.content.as_mut();
        content.map_or_else(Bytes::new, |content| content.slice(as_index(range)))
    }

    fn bytes(&self) -> &[u8] {
        self.content.as_ref().map_or(&[], SharedBuffer::bytes)
    }

    /// The content, of which about `length` bytes are to be changed.
    fn make_mut(&mut self, length: usize, pool: &Pool) -> Result<&mut [u8], OutOfMemory> {
        if self.content.is_none() {
            self.content = pool.take(self.length as usize).map(SharedBuffer::new);
        }
        let content = self.content.as_mut().ok_or(OutOfMemory)?;
        if length >= self.length as usize / 2 {
            content.find_memory();
        }
        content.make_mut().ok_or(OutOfMemory)
    }

    /// Takes `bytes` for its content, without a copy, if they are a whole line in a buffer of the
    /// pool that was [lent](runtime::buffer::Buffer::lend).
    fn adopt(&mut self, bytes: &Bytes, pool: &Pool) -> bool {
        if bytes.len() != self.length as usize {
            return false;
        }
        let adopted = SharedBuffer::adopt(bytes, pool);
        let is_adopted = adopted.is_some();
        self.content = adopted.or(self.content.take());
        is_adopted
    }

    /// The bytes of `extents`, which must be known: a slice for each, or, if they are small, one
    /// copy of all.
    pub(crate) fn gather(&mut self, extents: &[Extent], pool: &Pool) -> Vec<Bytes> {
        let length: usize = extents.iter().map(|extent| extent.length as usize).sum();
        if length >= extents.len() * SLICE_MIN {
            return extents.iter().map(|extent| self.slice(&range_of(*extent))).collect();
        }
        let mut packed = Vec::with_capacity(length);
        for extent in extents {
            packed.extend_from_slice(&self.bytes()[as_index(&range_of(*extent))]);
        }
        pool.count_copy(length);
        vec![packed.into()]
    }

    /// Replaces several parts, by one copy each.
    pub(crate) fn write_list(
        &mut self,
        parts: &[Placed],
        pool: &Pool,
        now: Duration,
    ) -> Result<(), OutOfMemory> {
        let length = parts.iter().map(|part| part.data.len()).sum();
        let content = self.make_mut(length, pool)?;
        for Placed { offset, data } in parts {
            content[*offset as usize..][..data.len()].copy_from_slice(data);
            pool.count_copy(data.len());
        }
        for Placed { offset, data } in parts.iter().filter(|part| !part.data.is_empty()) {
            self.note_written(*offset..offset + data.len() as u32, now);
        }
        Ok(())
    }

    /// Replaces bytes from `offset` on, by one copy, or, if they are a whole line that was received
    /// into a buffer of the pool, by none.
    pub(crate) fn write(
        &mut self,
        offset: u32,
        data: &[Bytes],
        pool: &Pool,
        now: Duration,
    ) -> Result<(), OutOfMemory> {
        let length: usize = data.iter().map(Bytes::len).sum();
        if !matches!(data, [whole] if self.adopt(whole, pool)) {
            let content = self.make_mut(length, pool)?;
            let mut at = offset as usize;
            for piece in data {
                content[at..at + piece.len()].copy_from_slice(piece);
                at += piece.len();
            }
            pool.count_copy(length);
        }
        self.note_written(offset..offset + length as u32, now);
        Ok(())
    }

    /// Replaces bytes by zeros.
    pub(crate) fn write_zeros(
        &mut self,
        range: Range<u32>,
        pool: &Pool,
        now: Duration,
    ) -> Result<(), OutOfMemory> {
        self.make_mut(range.len(), pool)?[as_index(&range)].fill(0);
        self.note_written(range, now);
        Ok(())
    }

    fn note_written(&mut self, range: Range<u32>, now: Duration) {
        self.dirty_since.get_or_insert(now);
        self.writes += 1;
        self.unchecked.remove(&range);
        self.valid.insert(range.clone());
        self.given.remove(&range);
        self.dirty.insert(range);
    }

    /// Takes what the disk holds from `offset` on for those bytes of `wanted` that are still
    /// unknown: what was written meanwhile is newer.
    pub(crate) fn fill(
        &mut self,
        offset: u32,
        from_disk: &Bytes,
        wanted: &Extents,
        pool: &Pool,
    ) -> Result<(), OutOfMemory> {
        let gaps = wanted.iter().map(|range| self.valid.gaps(&range));
        let gaps: Vec<Range<u32>> = gaps.flat_map(|gaps| gaps.iter().collect::<Vec<_>>()).collect();
        let is_all = matches!(&gaps[..], [gap] if gap.len() == self.length as usize);
        if !(is_all && self.adopt(from_disk, pool)) {
            let length = gaps.iter().map(Range::len).sum();
            let content = self.make_mut(length, pool)?;
            for gap in &gaps {
                let source = gap.start - offset..gap.end - offset;
                content[as_index(gap)].copy_from_slice(&from_disk[as_index(&source)]);
            }
            pool.count_copy(length);
        }
        for gap in gaps {
            self.valid.insert(gap.clone());
            self.unchecked.insert(gap);
        }
        Ok(())
    }

    /// Compares the logical blocks of `unit` bytes from `offset` on, all of them known, with their
    /// checksums, as far as bytes came from a disk and were not compared before. Those that differ
    /// lose these bytes.
    ///
    /// Returns the first block of the first damaged one, counted within the stripe.
    pub(crate) fn check(&mut self, offset: u32, expect: &[u32], unit: u32) -> Option<u32> {
        let blocks = (offset..).step_by(unit as usize).map(|start| start..start + unit);
        let mut damaged = None;
        for (block, &expected) in blocks.zip(expect) {
            if !self.unchecked.intersects(&block) {
                continue;
            }
            if crc32c(&self.bytes()[as_index(&block)]) != expected {
                for range in self.unchecked.intersection(&block).iter() {
                    self.valid.remove(&range);
                }
                damaged = damaged.or(Some(block.start / BLOCK_SIZE as u32));
            }
            self.unchecked.remove(&block);
        }
        damaged
    }

    /// Drops what is known of `range`, written back or not.
    pub(crate) fn forget(&mut self, range: &Range<u32>) {
        let Self { valid, dirty, writing, given, unchecked, .. } = self;
        for set in [valid, dirty, writing, given, unchecked] {
            set.remove(range);
        }
        if self.dirty.is_empty() {
            self.dirty_since = None;
        }
    }

    /// Drops what is known of the bytes that a disk has too.
    pub(crate) fn forget_clean(&mut self) {
        self.valid = self.dirty.clone();
        self.valid.insert_all(&self.writing);
        self.given = Extents::default();
        self.unchecked = Extents::default();
    }

    /// Begins to write back: what has to go below, as it is now. One write-back at a time.
    pub(crate) fn begin_write_back(&mut self) -> WritingBack {
        let dirty = std::mem::take(&mut self.dirty);
        self.writing.insert_all(&dirty);
        let ranges: Vec<Range<u32>> = self.writing.iter().collect();
        let pieces = ranges.iter().map(|range| (range.start, self.slice(range))).collect();
        WritingBack { pieces, dirty_since: self.dirty_since.take() }
    }

    /// One piece of a write-back was answered: its bytes are clean, but for those that were
    /// written again or forgotten meanwhile.
    pub(crate) fn written_back(&mut self, range: &Range<u32>) {
        let mut given = self.writing.intersection(range);
        self.writing.remove(range);
        for dirty in self.dirty.intersection(range).iter() {
            given.remove(&dirty);
        }
        self.given.insert_all(&given);
    }

    /// The disk has restarted: what it was given in its last life has to be given again.
    pub(crate) fn give_again(&mut self, now: Duration) {
        if self.given.is_empty() {
            return;
        }
        self.dirty_since.get_or_insert(now);
        let given = std::mem::take(&mut self.given);
        self.dirty.insert_all(&given);
    }

    /// Ends a write-back that began with a line dirty since `dirty_since`: the pieces that were
    /// not answered well are dirty again, but for what was forgotten meanwhile.
    pub(crate) fn end_write_back(&mut self, dirty_since: Option<Duration>) {
        let failed = std::mem::take(&mut self.writing);
        self.dirty.insert_all(&failed);
        if !failed.is_empty() {
            self.dirty_since = dirty_since.or(self.dirty_since);
        }
    }
}

/// A line's dirty bytes at one moment.
#[derive(Debug)]
pub(crate) struct WritingBack {
    /// Where each piece starts within the stripe, and its bytes.
    pub(crate) pieces: Vec<(u32, Bytes)>,
    /// Since when the line had been dirty.
    pub(crate) dirty_since: Option<Duration>,
}

fn range_of(extent: Extent) -> Range<u32> {
    extent.offset..extent.offset + extent.length
}

fn as_index(range: &Range<u32>) -> Range<usize> {
    range.start as usize..range.end as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1);
    const B: u32 = BLOCK_SIZE as u32;

    fn line() -> Line {
        Line::new(4 * BLOCK_SIZE as u32)
    }

    fn write(line: &mut Line, offset: u32, data: &'static [u8], pool: &Pool) {
        line.write(offset, &[Bytes::from_static(data)], pool, NOW).unwrap();
    }

    #[test]
    fn a_fill_never_replaces_what_was_written() {
        let pool = Pool::new(1 << 20);
        let mut line = line();
        let wanted = line.gaps();
        write(&mut line, 2, b"new", &pool);
        line.fill(0, &Bytes::from_static(&[b'o'; 4 * BLOCK_SIZE]), &wanted, &pool).unwrap();
        assert_eq!(&line.slice(&(0..7))[..], b"oonewoo");
        assert!(line.gaps().is_empty());
    }

    /// A line's worth of `byte`, lent by `pool`.
    fn lent(byte: u8, pool: &Pool) -> Bytes {
        let mut buffer = pool.take(4 * BLOCK_SIZE).unwrap();
        buffer.fill(byte);
        buffer.lend()
    }

    #[test]
    fn a_whole_line_is_adopted_and_copied_only_if_it_changes_while_it_is_read() {
        let pool = Pool::new(8 * BLOCK_SIZE);
        let mut line = line();
        line.write(0, &[lent(b'w', &pool)], &pool, NOW).unwrap();
        assert_eq!((pool.copied_bytes(), pool.used_bytes()), (0, 4 * BLOCK_SIZE));
        write(&mut line, 1, b"x", &pool);
        assert_eq!(pool.copied_bytes(), 1);
        let read = line.slice(&(0..3));
        write(&mut line, 2, b"y", &pool);
        assert_eq!((&read[..], &line.slice(&(0..3))[..]), (&b"wxw"[..], &b"wxy"[..]));
        drop(read);
        line.write(0, &[lent(b'z', &pool)], &pool, NOW).unwrap();
        assert_eq!((&line.slice(&(0..3))[..], pool.used_bytes()), (&b"zzz"[..], 4 * BLOCK_SIZE));
        assert!(line.whole_state().is_some());
    }

    #[test]
    fn what_comes_from_a_disk_is_adopted_if_nothing_is_known() {
        let pool = Pool::new(8 * BLOCK_SIZE);
        let mut line = line();
        line.fill(0, &lent(b'd', &pool), &line.gaps(), &pool).unwrap();
        assert_eq!((&line.slice(&(0..3))[..], pool.copied_bytes()), (&b"ddd"[..], 0));
        let wrong = crc32c(&[0; BLOCK_SIZE]);
        assert_eq!(line.check(0, &[wrong], B), Some(0), "it is not trusted");
        line.fill(0, &lent(b'e', &pool), &line.gaps(), &pool).unwrap();
        assert_eq!(pool.copied_bytes(), BLOCK_SIZE as u64, "the others are as they were");
        assert_eq!(line.slice(&(4095..4097))[..], b"ed"[..]);
    }

    #[test]
    fn bytes_written_during_a_write_back_stay_dirty() {
        let pool = Pool::new(1 << 20);
        let mut line = line();
        write(&mut line, 0, b"abcdef", &pool);
        let first = line.begin_write_back();
        assert_eq!(first.pieces, [(0, Bytes::from_static(b"abcdef"))]);
        write(&mut line, 2, b"XY", &pool);
        assert_eq!(&first.pieces[0].1[..], b"abcdef", "what is on its way does not change");
        line.written_back(&(0..6));
        line.end_write_back(first.dirty_since);
        assert!(line.is_dirty_since(NOW));
        assert_eq!(line.begin_write_back().pieces, [(2, Bytes::from_static(b"XY"))]);
    }

    #[test]
    fn a_failed_piece_is_dirty_again_unless_it_was_forgotten() {
        let pool = Pool::new(1 << 20);
        let mut line = line();
        write(&mut line, 0, b"abcdef", &pool);
        write(&mut line, 10, b"good", &pool);
        let first = line.begin_write_back();
        assert_eq!(first.pieces.len(), 2);
        line.forget(&(0..3));
        line.written_back(&(10..14));
        line.end_write_back(first.dirty_since);
        assert!(line.is_dirty_since(NOW));
        assert_eq!(line.begin_write_back().pieces, [(3, Bytes::from_static(b"def"))]);
    }

    #[test]
    fn written_blocks_are_trusted_and_others_are_compared_once() {
        let pool = Pool::new(1 << 20);
        let mut line = line();
        let disk = Bytes::from_static(&[7; 4 * BLOCK_SIZE]);
        line.fill(0, &disk, &line.gaps(), &pool).unwrap();
        let good = crc32c(&disk[..BLOCK_SIZE]);
        line.write_zeros(0..BLOCK_SIZE as u32, &pool, NOW).unwrap();
        assert_eq!(line.check(0, &[!good, good, good, !good], B), Some(3));
        assert!(line.has(&(0..3 * BLOCK_SIZE as u32)));
        assert_eq!(line.gaps().hull(), Some(3 * BLOCK_SIZE as u32..4 * BLOCK_SIZE as u32));
        assert_eq!(line.check(0, &[!good, !good, !good], B), None, "compared before");
    }

    #[test]
    fn a_logical_block_of_which_some_came_from_a_disk_is_compared_whole() {
        let pool = Pool::new(1 << 20);
        let mut line = line();
        let disk = Bytes::from_static(&[7; 4 * BLOCK_SIZE]);
        line.write_zeros(B..2 * B, &pool, NOW).unwrap();
        line.fill(0, &disk, &line.gaps(), &pool).unwrap();
        let both = [&disk[..BLOCK_SIZE], &[0; BLOCK_SIZE]].concat();
        let (first, second) = (crc32c(&both), crc32c(&disk[..2 * BLOCK_SIZE]));
        assert_eq!(line.check(0, &[first], 2 * B), None);
        assert_eq!(line.check(0, &[!first, second], 2 * B), None, "the first is known by now");
        // Damage takes what came from the disk, and what was written stays.
        let mut line = Line::new(4 * B);
        line.write_zeros(B..2 * B, &pool, NOW).unwrap();
        line.fill(0, &disk, &line.gaps(), &pool).unwrap();
        assert_eq!(line.check(0, &[!first, !second], 2 * B), Some(0));
        assert!(line.valid.iter().eq(std::iter::once(B..2 * B)));
        assert!(line.unchecked.is_empty() && line.is_dirty());
    }

    #[test]
    fn dropping_clean_bytes_keeps_what_no_disk_has() {
        let pool = Pool::new(1 << 20);
        let mut line = line();
        line.fill(0, &Bytes::from_static(&[0; 4 * BLOCK_SIZE]), &line.gaps(), &pool).unwrap();
        write(&mut line, 0, b"under way", &pool);
        let _begun = line.begin_write_back();
        write(&mut line, 100, b"dirty", &pool);
        line.forget_clean();
        assert_eq!(line.valid.iter().collect::<Vec<_>>(), [0..9, 100..105]);
        assert!(line.unchecked.is_empty());
    }

    #[test]
    fn a_forgotten_line_is_useless() {
        let pool = Pool::new(1 << 20);
        let mut line = line();
        write(&mut line, 5, b"abc", &pool);
        line.forget(&(0..7));
        assert!(line.is_dirty() && !line.is_useless());
        line.forget(&(7..100));
        assert!(!line.is_dirty() && !line.is_dirty_since(NOW) && line.is_useless());
    }
}
