//! Reading a log back, from the segment that a root names to its torn end.

use std::ops::Range;

use blockio::protocol::Error as DiskError;
use blockio::{BLOCK_SIZE, is_behind};
use bytes::Bytes;
use futures::future::join_all;
use runtime::wire::{Decoder, Malformed};

use super::Segment;
use super::copies::{CopyState, LogCopies};
use super::format::{self, LogId, SegmentCopies, SegmentHeader};
use crate::store::batch::{self, BatchOp, RecordHead};
use crate::store::device::Device;
use crate::store::error::{StoreError, StoreResult};

/// Gives every record of the log `id` from the segment `start` on to `apply`, in order. Returns all
/// segments of the chain, the one reserved behind the last included, and how the copies compare.
///
/// Each entry is taken from whichever copy has it, so what is replayed is the longest chain that
/// they give together. The end of the log is where an entry is broken on all copies and no later
/// one is valid: what stood there was never acknowledged. A broken entry before a valid one
/// is [`StoreError::Damaged`].
pub(crate) async fn replay(
    device: &Device,
    id: LogId,
    start: Segment,
    apply: impl FnMut(RecordHead, Vec<BatchOp>) -> StoreResult<()>,
) -> StoreResult<(Vec<Segment>, LogCopies)> {
    replay_growing(device, (id, u64::MAX), start, apply).await
}

/// As [`replay`], of a log that grows meanwhile: its copies are compared up to the record
/// `durable`, since later ones may be on one of them only.
pub(crate) async fn replay_growing(
    device: &Device,
    (id, durable): (LogId, u64),
    start: Segment,
    mut apply: impl FnMut(RecordHead, Vec<BatchOp>) -> StoreResult<()>,
) -> StoreResult<(Vec<Segment>, LogCopies)> {
    let mut segments = vec![start];
    let mut here = start;
    let mut told = LogCopies::default();
    let mut copies = StoredSegment::read(device, here.copies).await?;
    let decode = |here: Segment| {
        move |raw: &[u8]| SegmentHeader::decode(raw, id, here.sequence, here.copies)
    };
    let mut header = copies.first(0, decode(here)).ok_or(copies.damaged("a log segment", 0))?.0;
    let mut entry = header.first_entry;
    loop {
        let comparison = (&mut told, durable);
        entry = replay_segment(&copies, id, here.sequence, entry, comparison, &mut apply)?;
        here = Segment { sequence: here.sequence + 1, copies: header.next };
        segments.push(here);
        copies = StoredSegment::read(device, here.copies).await?;
        match copies.first(0, decode(here)) {
            None => return Ok((segments, told)),
            Some((next, _)) if next.first_entry == entry => header = next,
            Some(_) => return Err(copies.damaged("a log entry before this segment", 0)),
        }
    }
}

/// Applies the entries of one segment, of which the first should be `entry`; the number of the
/// first one that is not there.
fn replay_segment(
    copies: &StoredSegment<'_>,
    id: LogId,
    segment: u64,
    mut entry: u64,
    (told, durable): (&mut LogCopies, u64),
    apply: &mut impl FnMut(RecordHead, Vec<BatchOp>) -> StoreResult<()>,
) -> StoreResult<u64> {
    let map = copies.device.map();
    let end = map.geometry().blocks_per_stripe() as usize;
    let mut block = 1;
    while block < end {
        let found = copies.first(block * BLOCK_SIZE, |raw| {
            let (place, body) = format::decode_entry(raw, id, segment)?;
            if place.entry != entry {
                return Err(Malformed("another entry"));
            }
            Ok((body.len(), decode_records(body)?))
        });
        let Some(((length, records), copy)) = found else { break };
        let bytes = block * BLOCK_SIZE..block * BLOCK_SIZE + format::ENTRY_HEAD + length;
        if records.last().is_none_or(|(head, _)| head.position <= durable) {
            told.entry(&map, &copies.places, &copies.compare(copy, bytes));
        }
        for (head, ops) in records {
            apply(head, ops)?;
        }
        block += format::entry_blocks(length);
        entry += 1;
    }
    let later = (block..end).any(|block| {
        copies.readable().any(|raw| {
            let found = format::decode_entry(&raw[block * BLOCK_SIZE..], id, segment);
            found.is_ok_and(|(place, _)| place.entry > entry)
        })
    });
    if later { Err(copies.damaged("a log entry", block as u64)) } else { Ok(entry) }
}

fn decode_records(body: &[u8]) -> Result<Vec<(RecordHead, Vec<BatchOp>)>, Malformed> {
    let mut input = Decoder::new(body, Bytes::new());
    let mut records = Vec::new();
    while input.remaining() > 0 {
        records.push(batch::decode(&mut input)?);
    }
    Ok(records)
}

/// A segment as its copies have it.
struct StoredSegment<'a> {
    device: &'a Device,
    places: SegmentCopies,
    raw: Vec<Result<Bytes, DiskError>>,
}

impl<'a> StoredSegment<'a> {
    /// Reads all copies at once. An error if none could be read.
    async fn read(device: &'a Device, places: SegmentCopies) -> StoreResult<Self> {
        let mut copies = Self { device, places, raw: Vec::new() };
        let (stripes, end) = (places.stripes(), device.map().stripes());
        if stripes.iter().any(|&stripe| stripe >= end) {
            return Err(copies.damaged("the chain of the log", 0));
        }
        copies.raw = join_all(stripes.iter().map(|&stripe| device.read_stripe(stripe))).await;
        let map = device.map();
        if stripes.iter().all(|&stripe| is_behind(&map, stripe)) {
            // There was no room elsewhere. No entry is durable that is on none.
            device.wait_for_host(stripes).await;
            let device = device.reading_behind();
            copies.raw = join_all(stripes.iter().map(|&stripe| device.read_stripe(stripe))).await;
        }
        match copies.raw.iter().find_map(|raw| raw.as_ref().err()) {
            Some(error) if copies.raw.iter().all(Result::is_err) => Err((*error).into()),
            _ => Ok(copies),
        }
    }

    /// What `decode` makes of the first copy from the byte `at` on that it likes, and which one
    /// that is. `None` if it likes none.
    fn first<T>(
        &self,
        at: usize,
        decode: impl Fn(&[u8]) -> Result<T, Malformed>,
    ) -> Option<(T, usize)> {
        let mut copies = self.raw.iter().enumerate();
        copies.find_map(|(copy, raw)| Some((decode(&raw.as_ref().ok()?[at..]).ok()?, copy)))
    }

    /// How the copies have `bytes`, which are whole in the copy `good`.
    fn compare(&self, good: usize, bytes: Range<usize>) -> Vec<CopyState> {
        let wanted = self.raw[good].as_ref().map(|raw| &raw[bytes.clone()]).unwrap_or_default();
        let compare = |raw: &Result<Bytes, DiskError>| match raw {
            Ok(raw) => CopyState::beside(wanted, &raw[bytes.clone()]),
            Err(_) => CopyState::Unreadable,
        };
        self.raw.iter().map(compare).collect()
    }

    fn readable(&self) -> impl Iterator<Item = &Bytes> {
        self.raw.iter().filter_map(|raw| raw.as_ref().ok())
    }

    fn damaged(&self, what: &'static str, block: u64) -> StoreError {
        let per_stripe = u64::from(self.device.geometry.blocks_per_stripe());
        let first = self.places.first().saturating_mul(per_stripe);
        StoreError::Damaged { what, block: first.saturating_add(block) }
    }
}
