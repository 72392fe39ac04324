//! Reading a log back, from the segment that a root names to its torn end.

use blockio::BLOCK_SIZE;
use blockio::protocol::Error as DiskError;
use bytes::Bytes;
use runtime::wire::{Decoder, Malformed};

use super::Segment;
use super::format::{self, LogId, Pair, SegmentHeader};
use crate::store::batch::{self, Op, RecordHead};
use crate::store::device::Device;
use crate::store::error::StoreError;

/// Gives every record of the log `id` from the segment `start` on to `apply`, in order. Returns all
/// segments of the chain, the one reserved behind the last included.
///
/// The end of the log is where an entry is broken on both copies and no later one is valid: what
/// stood there was never acknowledged. A broken entry before a valid one is [`StoreError::Damaged`].
pub(crate) async fn replay(
    device: &Device,
    id: LogId,
    start: Segment,
    mut apply: impl FnMut(RecordHead, Vec<Op>) -> Result<(), StoreError>,
) -> Result<Vec<Segment>, StoreError> {
    let mut segments = vec![start];
    let mut here = start;
    let mut copies = Copies::new(device, here.pair);
    let mut header = copies
        .first(|raw| SegmentHeader::decode(raw, id, here.sequence, here.pair))
        .await?
        .ok_or(copies.damaged("a log segment", 0))?;
    let mut entry = header.first_entry;
    loop {
        entry = replay_segment(&mut copies, id, here.sequence, entry, &mut apply).await?;
        here = Segment { sequence: here.sequence + 1, pair: header.next };
        segments.push(here);
        copies = Copies::new(device, here.pair);
        let next =
            copies.first(|raw| SegmentHeader::decode(raw, id, here.sequence, here.pair)).await?;
        match next {
            None => return Ok(segments),
            Some(next) if next.first_entry == entry => header = next,
            Some(_) => return Err(copies.damaged("a log entry before this segment", 0)),
        }
    }
}

/// Applies the entries of one segment, of which the first should be `entry`; the number of the
/// first one that is not there.
async fn replay_segment(
    copies: &mut Copies<'_>,
    id: LogId,
    segment: u64,
    mut entry: u64,
    apply: &mut impl FnMut(RecordHead, Vec<Op>) -> Result<(), StoreError>,
) -> Result<u64, StoreError> {
    let end = copies.device.geometry().blocks_per_stripe() as usize;
    let mut block = 1;
    while block < end {
        let found = copies
            .first(|raw| {
                let (place, body) = format::decode_entry(&raw[block * BLOCK_SIZE..], id, segment)?;
                if place.entry != entry {
                    return Err(Malformed("another entry"));
                }
                let records = decode_records(body)?;
                Ok((format::entry_blocks(body.len()), records))
            })
            .await?;
        let Some((blocks, records)) = found else { break };
        for (head, ops) in records {
            apply(head, ops)?;
        }
        block += blocks;
        entry += 1;
    }
    let later = (block..end).any(|block| {
        copies.loaded().any(|raw| {
            let found = format::decode_entry(&raw[block * BLOCK_SIZE..], id, segment);
            found.is_ok_and(|(place, _)| place.entry > entry)
        })
    });
    if later { Err(copies.damaged("a log entry", block as u64)) } else { Ok(entry) }
}

fn decode_records(body: &[u8]) -> Result<Vec<(RecordHead, Vec<Op>)>, Malformed> {
    let mut input = Decoder::new(body, Bytes::new());
    let mut records = Vec::new();
    while input.remaining() > 0 {
        records.push(batch::decode(&mut input)?);
    }
    Ok(records)
}

/// The two copies of a segment; the second is read only when it is needed.
struct Copies<'a> {
    device: &'a Device,
    pair: Pair,
    raw: [Option<Result<Bytes, DiskError>>; 2],
}

impl<'a> Copies<'a> {
    fn new(device: &'a Device, pair: Pair) -> Self {
        Self { device, pair, raw: [None, None] }
    }

    /// What `decode` makes of the first copy, or else of the second. `None` if it likes neither;
    /// an error if neither could be read.
    async fn first<T>(
        &mut self,
        decode: impl Fn(&[u8]) -> Result<T, Malformed>,
    ) -> Result<Option<T>, StoreError> {
        let end = self.device.geometry().stripes();
        if self.pair.stripes().into_iter().any(|stripe| stripe >= end) {
            return Err(self.damaged("the chain of the log", 0));
        }
        let mut failure = None;
        let mut failures = 0;
        for (stripe, raw) in self.pair.stripes().into_iter().zip(&mut self.raw) {
            if raw.is_none() {
                *raw = Some(self.device.read_stripe(stripe).await);
            }
            match raw {
                Some(Ok(raw)) => {
                    if let Ok(value) = decode(raw) {
                        return Ok(Some(value));
                    }
                }
                Some(Err(error)) => {
                    failure = Some(*error);
                    failures += 1;
                }
                None => {}
            }
        }
        match failure {
            Some(error) if failures == 2 => Err(error.into()),
            _ => Ok(None),
        }
    }

    fn loaded(&self) -> impl Iterator<Item = &Bytes> {
        self.raw.iter().flatten().filter_map(|raw| raw.as_ref().ok())
    }

    fn damaged(&self, what: &'static str, block: u64) -> StoreError {
        let per_stripe = u64::from(self.device.geometry().blocks_per_stripe());
        let first = self.pair.a.saturating_mul(per_stripe);
        StoreError::Damaged { what, block: first.saturating_add(block) }
    }
}
