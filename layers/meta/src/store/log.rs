//! The redo log of one node: buffered records, the chain of segments, the plan of each
//! group commit. What is written when is decided here; the writing itself is in `writer.rs`.
//!
//! An entry is written only when everything before it is durable, and a committed block is never
//! written again. So a valid entry proves that all before it were durable, and what replay finds
//! broken without a valid successor was never acknowledged.

pub(crate) mod copies;
pub(crate) mod format;
pub(crate) mod replay;

use std::collections::{BTreeSet, VecDeque};

use blockio::{BLOCK_SIZE, DiskName, Geometry, VolumeMap};
use bytes::{Bytes, BytesMut};

use self::format::{EntryPlace, LogId, SegmentCopies, SegmentHeader};
use super::batch::{self, Batch, RecordHead};

/// A segment that may still be needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) sequence: u64,
    pub(crate) copies: SegmentCopies,
}

/// One group commit: bytes for the same place in all copies of a segment.
#[derive(Debug)]
pub(crate) struct LogWrite {
    pub(crate) copies: SegmentCopies,
    /// The first block within the stripe.
    pub(crate) block: u64,
    pub(crate) data: Bytes,
    /// The last record in it.
    pub(crate) last: u64,
}

/// The log.
#[derive(Debug)]
pub(crate) struct Log {
    /// Its identity.
    pub(crate) id: LogId,
    blocks_per_segment: u64,
    /// Segments from the newest root's on, the current one last.
    live: VecDeque<Segment>,
    current: SegmentHeader,
    /// Blocks of the current segment that have been written; 0 if its header is still to be.
    used_blocks: u64,
    /// It is left before it is full.
    leaving: bool,
    next_entry: u64,
    pending: BytesMut,
    /// The length of each pending record.
    lengths: VecDeque<u32>,
    /// The last record.
    pub(crate) last: u64,
    planned: u64,
    /// Records up to this one are durable.
    pub(crate) durable: u64,
}

impl Log {
    /// A log that starts in the segment `sequence` at `here`, whose header is to be written first.
    /// `position` is the last record of the log before; `old` are the segments of that log.
    pub(crate) fn new(
        id: LogId,
        geometry: &Geometry,
        position: u64,
        old: Vec<Segment>,
        (sequence, here, next): (u64, SegmentCopies, SegmentCopies),
    ) -> Self {
        let mut live = VecDeque::from(old);
        live.push_back(Segment { sequence, copies: here });
        Self {
            id,
            blocks_per_segment: u64::from(geometry.blocks_per_stripe()),
            live,
            current: SegmentHeader { sequence, first_entry: 1, here, next },
            used_blocks: 0,
            leaving: false,
            next_entry: 1,
            pending: BytesMut::new(),
            lengths: VecDeque::new(),
            last: position,
            planned: position,
            durable: position,
        }
    }

    /// The segment from which a replay has to start to find all records that come from now on.
    pub(crate) fn start(&self) -> Segment {
        Segment { sequence: self.current.sequence, copies: self.current.here }
    }

    /// Segments in use, with the one that waits to be the next.
    pub(crate) fn segments(&self) -> u64 {
        self.live.len() as u64 + 1
    }

    /// Segments in use once the pending records and one more of `length` bytes are written.
    pub(crate) fn segments_after(&self, length: usize) -> u64 {
        // Two neighbouring segments are together more than half full: a record that did not fit
        // into the first is in the second.
        let capacity = (self.blocks_per_segment as usize - 1) * BLOCK_SIZE - format::ENTRY_HEAD;
        self.segments() + (2 * (self.pending.len() + length) / capacity) as u64 + 1
    }

    /// Bytes that wait to be written.
    pub(crate) fn pending_bytes(&self) -> usize {
        self.pending.len()
    }

    /// All stripes that the log holds.
    pub(crate) fn stripes(&self) -> impl Iterator<Item = u64> + '_ {
        self.all_copies().flat_map(|copies| copies.stripes().iter().copied())
    }

    /// The current segment, which a checkpoint does not give back.
    pub(crate) fn current_copies(&self) -> SegmentCopies {
        self.current.here
    }

    /// Segments in use, with the one that waits to be the next, of which a disk has two copies.
    pub(crate) fn segments_to_spread(&self, map: &VolumeMap) -> u64 {
        let is_on_few = |copies: &&SegmentCopies| {
            let disks = copies.stripes().iter().map(|stripe| map.place(*stripe).disk);
            disks.collect::<BTreeSet<DiskName>>().len() < copies.stripes().len()
        };
        self.all_copies().filter(is_on_few).count() as u64
    }

    /// Has one of them all copies on these disks?
    pub(crate) fn is_only_on(&self, map: &VolumeMap, disks: &BTreeSet<DiskName>) -> bool {
        let is_there = |stripe: &u64| disks.contains(&map.place(*stripe).disk);
        self.all_copies().any(|copies| copies.stripes().iter().all(is_there))
    }

    /// Segments in use, with the one that waits to be the next.
    fn all_copies(&self) -> impl Iterator<Item = &SegmentCopies> + '_ {
        self.live.iter().map(|segment| &segment.copies).chain([&self.current.next])
    }

    /// The segment that comes next.
    pub(crate) fn next_copies(&self) -> SegmentCopies {
        self.current.next
    }

    /// Lets the next record go to the next segment, though the current one has room.
    pub(crate) fn leave_segment(&mut self) {
        self.leaving = self.used_blocks > 1;
    }

    /// Buffers the record of `batch`; its position.
    pub(crate) fn append(&mut self, counter: u64, batch: &Batch) -> u64 {
        self.last += 1;
        let head = RecordHead { position: self.last, counter };
        self.lengths.push_back(batch::encode(head, batch, &mut self.pending) as u32);
        self.last
    }

    /// The header of the first segment, alone: it has to be on disk before a root names it.
    pub(crate) fn first_round(&mut self) -> LogWrite {
        self.used_blocks = 1;
        LogWrite {
            copies: self.current.here,
            block: 0,
            data: self.current.encode(self.id).into(),
            last: self.planned,
        }
    }

    /// Does the next round need a new segment?
    pub(crate) fn needs_segment(&self) -> bool {
        self.lengths.front().is_some_and(|&length| {
            let end = self.used_blocks.max(1) + format::entry_blocks(length as usize) as u64;
            self.leaving || end > self.blocks_per_segment
        })
    }

    /// Goes on to the next segment, behind which `next` will come.
    pub(crate) fn next_segment(&mut self, next: SegmentCopies) {
        let here = self.current.next;
        let sequence = self.current.sequence + 1;
        self.current = SegmentHeader { sequence, first_entry: self.next_entry, here, next };
        self.live.push_back(Segment { sequence, copies: here });
        self.used_blocks = 0;
        self.leaving = false;
    }

    /// The first record that is not in a round yet.
    pub(crate) fn next(&self) -> u64 {
        self.planned + 1
    }

    /// As many pending records as the current segment takes, as one entry; none from `held` on.
    /// `None` if there are no records, or a segment is needed first.
    pub(crate) fn round(&mut self, held: Option<u64>) -> Option<LogWrite> {
        if self.lengths.is_empty() || self.needs_segment() {
            return None;
        }
        let free_blocks = self.blocks_per_segment - self.used_blocks.max(1);
        let (mut bytes, mut count) = (0, 0);
        let most = held.map_or(u64::MAX, |held| held.saturating_sub(self.next()));
        for &length in self.lengths.iter().take(most as usize) {
            let more = bytes + length as usize;
            if format::entry_blocks(more) as u64 > free_blocks {
                break;
            }
            (bytes, count) = (more, count + 1);
        }
        self.lengths.drain(..count);
        self.planned += count as u64;
        let body = self.pending.split_to(bytes);
        let mut data =
            if self.used_blocks == 0 { self.current.encode(self.id) } else { Vec::new() };
        let block = self.used_blocks;
        let place = EntryPlace { segment: self.current.sequence, entry: self.next_entry };
        format::encode_entry(self.id, place, &body, &mut data);
        self.used_blocks += (data.len() / BLOCK_SIZE) as u64;
        self.next_entry += 1;
        Some(LogWrite { copies: self.current.here, block, data: data.into(), last: self.planned })
    }

    /// A round is on all copies.
    pub(crate) fn finished(&mut self, round: &LogWrite) {
        self.durable = round.last;
    }

    /// The root that starts at segment `sequence` is durable: earlier segments are not needed.
    pub(crate) fn trim(&mut self, sequence: u64) -> Vec<SegmentCopies> {
        let mut freed = Vec::new();
        while let Some(segment) = self.live.pop_front_if(|segment| segment.sequence < sequence) {
            freed.push(segment.copies);
        }
        freed
    }
}
