//! Reading a log back, from the segment that a root names to its torn end.

use std::ops::Range;

use blockio::protocol::Error as DiskError;
use blockio::{BLOCK_SIZE, is_behind};
use bytes::Bytes;
use futures::future::join;
use runtime::wire::{Decoder, Malformed};

use super::Segment;
use super::copies::{CopyState, LogCopies};
use super::format::{self, LogId, SegmentHeader, SegmentPair};
use crate::store::batch::{self, BatchOp, RecordHead};
use crate::store::device::Device;
use crate::store::error::{StoreError, StoreResult};

/// Gives every record of the log `id` from the segment `start` on to `apply`, in order. Returns all
/// segments of the chain, the one reserved behind the last included, and how the copies compare.
///
/// Each entry is taken from whichever copy has it, so what is replayed is the longest chain that
/// the two give together. The end of the log is where an entry is broken on both copies and no
/// later one is valid: what stood there was never acknowledged. A broken entry before a valid one
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
    let mut copies = Copies::read(device, here.pair).await?;
    let decode =
        |here: Segment| move |raw: &[u8]| SegmentHeader::decode(raw, id, here.sequence, here.pair);
    let mut header = copies.first(0, decode(here)).ok_or(copies.damaged("a log segment", 0))?.0;
    let mut entry = header.first_entry;
    loop {
        let comparison = (&mut told, durable);
        entry = replay_segment(&copies, id, here.sequence, entry, comparison, &mut apply)?;
        here = Segment { sequence: here.sequence + 1, pair: header.next };
        segments.push(here);
        copies = Copies::read(device, here.pair).await?;
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
    copies: &Copies<'_>,
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
            told.entry(&map, copies.pair, copies.compare(copy, bytes));
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

/// The two copies of a segment.
struct Copies<'a> {
    device: &'a Device,
    pair: SegmentPair,
    raw: [Result<Bytes, DiskError>; 2],
}

impl<'a> Copies<'a> {
    /// Reads both at once. An error if neither could be read.
    async fn read(device: &'a Device, pair: SegmentPair) -> StoreResult<Self> {
        let nothing = [Ok(Bytes::new()), Ok(Bytes::new())];
        let mut copies = Self { device, pair, raw: nothing };
        let end = device.map().stripes();
        if pair.stripes().into_iter().any(|stripe| stripe >= end) {
            return Err(copies.damaged("the chain of the log", 0));
        }
        let (mut a, mut b) = join(device.read_stripe(pair.a), device.read_stripe(pair.b)).await;
        let map = device.map();
        if pair.stripes().into_iter().all(|stripe| is_behind(&map, stripe)) {
            // There was no room elsewhere. No entry is durable that is on neither.
            device.wait_for_host(&pair.stripes()).await;
            let device = device.reading_behind();
            (a, b) = join(device.read_stripe(pair.a), device.read_stripe(pair.b)).await;
        }
        if let (Err(error), Err(_)) = (&a, &b) {
            return Err((*error).into());
        }
        copies.raw = [a, b];
        Ok(copies)
    }

    /// What `decode` makes of the first copy from the byte `at` on, or else of the second, and
    /// which of the two it was. `None` if it likes neither.
    fn first<T>(
        &self,
        at: usize,
        decode: impl Fn(&[u8]) -> Result<T, Malformed>,
    ) -> Option<(T, usize)> {
        let mut copies = self.raw.iter().enumerate();
        copies.find_map(|(copy, raw)| Some((decode(&raw.as_ref().ok()?[at..]).ok()?, copy)))
    }

    /// How the copies have `bytes`, which are whole in the copy `good`.
    fn compare(&self, good: usize, bytes: Range<usize>) -> [CopyState; 2] {
        let wanted = self.raw[good].as_ref().map(|raw| &raw[bytes.clone()]).unwrap_or_default();
        [0, 1].map(|copy| match &self.raw[copy] {
            Ok(raw) => CopyState::beside(wanted, &raw[bytes.clone()]),
            Err(_) => CopyState::Unreadable,
        })
    }

    fn readable(&self) -> impl Iterator<Item = &Bytes> {
        self.raw.iter().filter_map(|raw| raw.as_ref().ok())
    }

    fn damaged(&self, what: &'static str, block: u64) -> StoreError {
        let per_stripe = u64::from(self.device.geometry.blocks_per_stripe());
        let first = self.pair.a.saturating_mul(per_stripe);
        StoreError::Damaged { what, block: first.saturating_add(block) }
    }
}
