//! Reading the pieces of some chunks from the cache.

use std::ops::Range;

use blockio::protocol::Extent;
use blockio::{Answer, blocks_of};
use bytes::Bytes;
use futures::future::try_join_all;
use meta::protocol::{BlockRun, Chunk};
use runtime::protocol::Undelivered;

use super::super::content::{BlockSource, ChunkId, ContentAccess};
use super::{ChunkPart, ChunkParts, TOGETHER_MAX};
use crate::protocol::{Error, Handle};

const BLOCK: usize = blockio::BLOCK_SIZE;

/// Some bytes of the window, packed at `position`.
pub(super) enum PackedPart<'a> {
    /// Zeros.
    Hole { position: usize, length: usize },
    /// These of some bytes.
    Data { position: usize, bytes: &'a Bytes, range: Range<usize> },
}

/// A run of a chunk.
#[derive(Clone, Copy)]
struct PlacedRun<'a> {
    /// Where it begins in its stripe.
    start: u32,
    chunk: ChunkId,
    run: &'a BlockRun,
}

/// What is wanted of one stripe.
struct StripeRead<'a> {
    stripe: u64,
    /// The runs in it, by their offsets in it.
    runs: Vec<PlacedRun<'a>>,
    /// Blocks of a logical block of all of them.
    unit: u32,
    /// In order, without overlap.
    extents: Vec<Extent>,
    /// Which bytes of the extents go where.
    places: Vec<PackedRange>,
}

/// `length` bytes from `offset` of a stripe are packed at `position`.
type RawRange = (u32, u32, usize);

/// `length` bytes of an extent from its byte `skip` on are packed at `position`.
#[derive(Clone, Copy)]
struct PackedRange {
    extent: usize,
    skip: usize,
    length: usize,
    position: usize,
}

/// The bytes of a [`StripeRead`], here or on their way.
enum StripeBytes {
    /// All from this byte of the stripe on.
    Here(u32, Bytes),
    Coming(Answer<Vec<Bytes>>),
}

impl<'a> StripeRead<'a> {
    /// Of `raw`, all in `runs`.
    fn new(stripe: u64, mut runs: Vec<PlacedRun<'a>>, mut raw: Vec<RawRange>) -> Self {
        runs.sort_unstable_by_key(|placed| placed.start);
        let unit = runs.first().map_or(1, |placed| placed.run.unit());
        if !raw.is_sorted_by_key(|&(offset, ..)| offset) {
            raw.sort_by_key(|&(offset, ..)| offset);
        }
        let mut extents: Vec<Extent> = Vec::with_capacity(raw.len());
        let mut places = Vec::with_capacity(raw.len());
        for (offset, length, position) in raw {
            match extents.last_mut() {
                Some(last) if offset <= last.offset + last.length => {
                    last.length = last.length.max(offset + length - last.offset);
                }
                _ => extents.push(Extent { offset, length }),
            }
            let extent = extents.len() - 1;
            let skip = (offset - extents[extent].offset) as usize;
            places.push(PackedRange { extent, skip, length: length as usize, position });
        }
        Self { stripe, runs, unit, extents, places }
    }

    /// The checksums of logical blocks of the stripe, all of which belong to the runs.
    fn checksums(&self, blocks: &[Range<u32>]) -> Vec<u32> {
        let mut checksums = Vec::new();
        for range in blocks {
            for &PlacedRun { start, run, .. } in &self.runs {
                let end = start + run.count() * BLOCK as u32;
                let (from, to) = (range.start.max(start), range.end.min(end));
                if from < to {
                    let block = |byte: u32| (byte - start) as usize / self.unit_bytes();
                    checksums.extend_from_slice(&run.checksums[block(from)..block(to)]);
                }
            }
        }
        checksums
    }

    fn unit_bytes(&self) -> usize {
        self.unit as usize * BLOCK
    }

    /// All logical blocks from the first to the last, if runs have all of them.
    fn hull(&self) -> Option<Range<u32>> {
        let (first, last) = (self.extents.first()?, self.extents.last()?);
        let block = self.unit_bytes() as u32;
        let hull =
            first.offset / block * block..(last.offset + last.length).next_multiple_of(block);
        let mut known = hull.start;
        for &PlacedRun { start, run, .. } in &self.runs {
            if start > known {
                return None;
            }
            known = known.max(start + run.count() * BLOCK as u32);
        }
        (known >= hull.end).then_some(hull)
    }
}

impl ContentAccess {
    /// The present maps of the chunks of `groups`, which the caller has locked.
    pub(super) async fn maps(
        &self,
        file: Handle,
        groups: &[ChunkParts],
    ) -> Result<Vec<Chunk>, Error> {
        let mut chunks = Vec::with_capacity(groups.len());
        for run in groups.chunk_by(|one, next| one.index + 1 == next.index) {
            let first = run[0].index;
            chunks.extend(self.map(file, first..first + run.len() as u64).await?);
        }
        Ok(chunks)
    }

    /// Reads the pieces of `groups`, those of a file. Their chunks have the maps `chunks`, and the
    /// caller has locked them.
    pub(super) async fn gather(
        &self,
        (ino, groups): (u64, &[ChunkParts]),
        chunks: &[Chunk],
        mut each: impl FnMut(PackedPart<'_>),
    ) -> Result<(), Error> {
        let mut coming = Vec::new();
        for (lot, chunks) in groups.chunks(TOGETHER_MAX).zip(chunks.chunks(TOGETHER_MAX)) {
            let mut stripes = Vec::with_capacity(lot.len());
            for (group, chunk) in lot.iter().zip(chunks) {
                let runs = self.wanted(&group.sorted(), chunk, &mut each);
                sort_by_stripe(((ino, group.index), chunk), runs, &mut stripes);
            }
            for (stripe, runs, raw) in stripes {
                let wanted = StripeRead::new(stripe, runs, raw);
                match self.begin(&wanted) {
                    StripeBytes::Here(start, bytes) => {
                        let base = |extent: &Extent| (extent.offset - start) as usize;
                        let bases: Vec<usize> = wanted.extents.iter().map(base).collect();
                        hand_on(&wanted, |extent| Some((&bytes, bases[extent])), &mut each)?;
                    }
                    StripeBytes::Coming(answer) => coming.push(async move {
                        let read = match answer.await {
                            Ok(parts) => Ok(parts),
                            Err(_) => Err(self.read_copies(&wanted).await?),
                        };
                        Ok::<_, Error>((wanted, read))
                    }),
                }
            }
        }
        for (wanted, read) in try_join_all(coming).await? {
            match read {
                Ok(parts) => hand_on_parts(&wanted, &parts, &mut each)?,
                Err(copies) => {
                    for (place, bytes) in wanted.places.iter().zip(&copies) {
                        let (position, range) = (place.position, 0..bytes.len());
                        each(PackedPart::Data { position, bytes, range });
                    }
                }
            }
        }
        Ok(())
    }

    /// The bytes of each place of `wanted`, of which a further copy is read if the first one cannot
    /// be.
    async fn read_copies(&self, wanted: &StripeRead<'_>) -> Result<Vec<Bytes>, Error> {
        let block = wanted.unit_bytes();
        let reads = wanted.places.iter().map(async |place| {
            let offset = wanted.extents[place.extent].offset + place.skip as u32;
            let is_in = |placed: &&PlacedRun<'_>| {
                let length = placed.run.count() * BLOCK as u32;
                (placed.start..placed.start + length).contains(&offset)
            };
            let found = wanted.runs.iter().find(is_in).ok_or(Error::Damaged {})?;
            let &PlacedRun { start, chunk, run } = found;
            let from = (offset - start) as usize;
            let blocks = from / block..(from + place.length).div_ceil(block);
            let skip = from % block;
            let keep = place.length;
            self.take(&BlockSource::Stored { chunk, run, blocks, skip, keep }).await
        });
        try_join_all(reads).await
    }

    /// What `pieces` want of each run of `chunk`: its stripe, where it begins there, and what of
    /// it. Holes are handed on.
    fn wanted(
        &self,
        pieces: &[ChunkPart],
        chunk: &Chunk,
        each: &mut impl FnMut(PackedPart<'_>),
    ) -> Vec<(u64, u32, Vec<RawRange>)> {
        let first_byte = |run: &BlockRun| usize::from(run.at) * BLOCK;
        let last_byte = |run: &BlockRun| run.end() as usize * BLOCK;
        let places = chunk.runs.iter().map(|run| self.geometry.block(run.start));
        let mut runs: Vec<(u64, u32, Vec<RawRange>)> =
            places.map(|(stripe, start)| (stripe, start, Vec::new())).collect();
        let mut first = 0;
        for piece in pieces {
            while chunk.runs.get(first).is_some_and(|run| last_byte(run) <= piece.from) {
                first += 1;
            }
            let mut at = piece.from;
            let mut hole = |at: usize, to: usize| {
                if at < to {
                    let position = piece.position + (at - piece.from);
                    each(PackedPart::Hole { position, length: to - at });
                }
            };
            for (run, (_, start, raw)) in chunk.runs[first..].iter().zip(&mut runs[first..]) {
                let from = first_byte(run).max(at);
                let to = last_byte(run).min(piece.end());
                if from >= to {
                    break;
                }
                hole(at, from);
                let offset = *start + (from - first_byte(run)) as u32;
                raw.push((offset, (to - from) as u32, piece.position + (from - piece.from)));
                at = to;
            }
            hole(at, piece.end());
        }
        runs
    }

    /// Takes the bytes if they are on this thread, with all between them; else requests the parts.
    fn begin(&self, wanted: &StripeRead<'_>) -> StripeBytes {
        if let Some(hull) = wanted.hull() {
            let expect = wanted.checksums(std::slice::from_ref(&hull));
            let length = hull.end - hull.start;
            if let Some(bytes) =
                self.stripes.try_read_now(wanted.stripe, hull.start, length, &expect)
            {
                return StripeBytes::Here(hull.start, bytes);
            }
        }
        let expect = wanted.checksums(&blocks_of(&wanted.extents, wanted.unit));
        let extents = wanted.extents.clone();
        let reading = self.stripes.read_list(wanted.stripe, extents, (expect, wanted.unit));
        StripeBytes::Coming(reading)
    }
}

/// A stripe, runs in it, all of one unit, and what is wanted of them.
type StripeRanges<'a> = (u64, Vec<PlacedRun<'a>>, Vec<RawRange>);

/// Adds what is `wanted` of the runs of `chunk` to what is wanted of each stripe.
fn sort_by_stripe<'a>(
    (chunk, map): (ChunkId, &'a Chunk),
    wanted: Vec<(u64, u32, Vec<RawRange>)>,
    stripes: &mut Vec<StripeRanges<'a>>,
) {
    for (run, (stripe, start, raw)) in map.runs.iter().zip(wanted) {
        if raw.is_empty() {
            continue;
        }
        let placed = PlacedRun { start, chunk, run };
        let is_alike =
            |runs: &[PlacedRun<'_>]| runs.iter().all(|other| other.run.unit() == run.unit());
        match stripes.iter_mut().rfind(|(known, runs, _)| *known == stripe && is_alike(runs)) {
            Some((_, runs, all)) => {
                runs.push(placed);
                all.extend(raw);
            }
            None => stripes.push((stripe, vec![placed], raw)),
        }
    }
}

/// Hands on each place of `wanted`; `find` returns the bytes of an extent and its offset in them.
fn hand_on<'b>(
    wanted: &StripeRead<'_>,
    find: impl Fn(usize) -> Option<(&'b Bytes, usize)>,
    each: &mut impl FnMut(PackedPart<'_>),
) -> Result<(), Error> {
    for &PackedRange { extent, skip, length, position } in &wanted.places {
        let (bytes, base) = find(extent).ok_or(Undelivered::ProtocolMismatch)?;
        let range = base + skip..base + skip + length;
        if range.end > bytes.len() {
            return Err(Undelivered::ProtocolMismatch.into());
        }
        each(PackedPart::Data { position, bytes, range });
    }
    Ok(())
}

/// As [`hand_on`], of a piece for each extent, or of all in one.
fn hand_on_parts(
    wanted: &StripeRead<'_>,
    parts: &[Bytes],
    each: &mut impl FnMut(PackedPart<'_>),
) -> Result<(), Error> {
    if let [packed] = parts {
        let mut bases = Vec::with_capacity(wanted.extents.len());
        let mut next = 0;
        for extent in &wanted.extents {
            bases.push(next);
            next += extent.length as usize;
        }
        return hand_on(wanted, |extent| Some((packed, bases[extent])), each);
    }
    hand_on(wanted, |extent| Some((parts.get(extent)?, 0)), each)
}
