//! Lists of regions, split into chunks and blocks. All parts of one chunk are handled together: one
//! request for the map, one checksum for each block, and few requests for each stripe.

mod gather;
mod read;
mod write;

pub(super) use self::read::ListReader;
pub(super) use self::write::ListWriter;

use std::ops::Range;

use crate::protocol::{Error, Regions, TRANSFER_MAX};
use crate::regions::{REGIONS_MAX, RegionWalk};

/// Chunks that one request locks at a time.
const CHUNKS_MAX: usize = 256;

/// Chunks whose parts of one stripe are read or written together: ranks that each have a part of
/// each chunk fill stripes with parts of several.
const TOGETHER_MAX: usize = 16;

/// A part of a region that lies in one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ChunkPart {
    /// The first byte, counted within the chunk.
    from: usize,
    length: usize,
    /// The same byte among the packed bytes of the window.
    position: usize,
}

impl ChunkPart {
    fn end(&self) -> usize {
        self.from + self.length
    }
}

/// All that a window has of one chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ChunkParts {
    /// Which chunk of the file.
    index: u64,
    /// In the order of the list.
    pieces: Vec<ChunkPart>,
    /// They are in the order of the file too, and do not overlap.
    is_sorted: bool,
}

impl ChunkParts {
    fn add(&mut self, piece: ChunkPart) {
        self.is_sorted &= self.pieces.last().is_none_or(|last| last.end() <= piece.from);
        self.pieces.push(piece);
    }

    /// The pieces in the order of the file.
    fn sorted(&self) -> std::borrow::Cow<'_, [ChunkPart]> {
        if self.is_sorted {
            return self.pieces.as_slice().into();
        }
        let mut pieces = self.pieces.clone();
        pieces.sort_by_key(|piece| piece.from);
        pieces.into()
    }
}

/// The window of a request, if it is valid.
fn window(regions: &Regions, skip: u64, length: usize) -> Result<Range<u64>, Error> {
    let end = skip.checked_add(length as u64).filter(|&end| end <= regions.bytes());
    let window = skip..end.ok_or(Error::Invalid {})?;
    let is_short = length <= TRANSFER_MAX as usize && regions.count_in(&window) <= REGIONS_MAX;
    if is_short { Ok(window) } else { Err(Error::Invalid {}) }
}

/// The regions of a walk that begins at packed byte `start`, cut at multiples of `chunk_size`, by
/// chunk, in order. Bytes from `end` on are left out.
fn split(walk: RegionWalk<'_>, start: u64, chunk_size: u64, end: u64) -> Vec<ChunkParts> {
    let mut groups: Vec<ChunkParts> = Vec::new();
    let mut in_order = true;
    for region in walk {
        let stop = end.min(region.offset + region.length);
        let mut at = region.offset;
        while at < stop {
            let index = at / chunk_size;
            let length = stop.min((index + 1) * chunk_size) - at;
            let position = (region.position - start + (at - region.offset)) as usize;
            let from = (at % chunk_size) as usize;
            let piece = ChunkPart { from, length: length as usize, position };
            match groups.last_mut() {
                Some(group) if group.index == index => group.add(piece),
                last => {
                    in_order &= last.is_none_or(|last| last.index < index);
                    groups.push(ChunkParts { index, pieces: vec![piece], is_sorted: true });
                }
            }
            at += length;
        }
    }
    if in_order { groups } else { merged(groups) }
}

/// One group for each chunk, in order; the pieces of each stay in the order of the list.
fn merged(mut groups: Vec<ChunkParts>) -> Vec<ChunkParts> {
    groups.sort_by_key(|group| group.index);
    let mut merged: Vec<ChunkParts> = Vec::with_capacity(groups.len());
    for group in groups {
        match merged.last_mut() {
            Some(last) if last.index == group.index => {
                for piece in group.pieces {
                    last.add(piece);
                }
            }
            _ => merged.push(group),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use runtime::seed::with_seed;
    use runtime::wire::Wire as _;

    use super::*;

    #[test]
    fn each_byte_of_a_window_before_the_end_is_in_one_piece_of_its_chunk() {
        with_seed(|rng| {
            for _ in 0..2_000 {
                let regions = Regions::sample(rng);
                let from = rng.below(regions.bytes() + 1);
                let window = from..from + rng.below(regions.bytes() - from + 1);
                let (chunk_size, end) = (rng.below(50) + 1, rng.below(2000));
                let groups = split(regions.walk(window.clone()), from, chunk_size, end);
                assert!(groups.is_sorted_by(|one, next| one.index < next.index));

                let mut found = vec![None; (window.end - window.start) as usize];
                for group in &groups {
                    let in_order = |pair: &[ChunkPart]| pair[0].end() <= pair[1].from;
                    assert_eq!(group.is_sorted, group.pieces.windows(2).all(in_order));
                    assert!(group.pieces.is_sorted_by_key(|piece| piece.position));
                    for piece in &group.pieces {
                        assert!(piece.length > 0 && piece.end() as u64 <= chunk_size);
                        for i in 0..piece.length {
                            let offset = group.index * chunk_size + (piece.from + i) as u64;
                            assert_eq!(found[piece.position + i].replace(offset), None);
                        }
                    }
                }
                for region in regions.walk(window.clone()) {
                    for i in 0..region.length {
                        let offset = region.offset + i;
                        let expected = (offset < end).then_some(offset);
                        assert_eq!(found[(region.position - from + i) as usize], expected);
                    }
                }
            }
        });
    }

    #[test]
    fn a_request_for_more_than_may_be_asked_is_refused() {
        let regions = Regions::strided(0, 4, 2 * REGIONS_MAX, 8).unwrap();
        assert_eq!(window(&regions, 4, 8), Ok(4..12));
        assert_eq!(window(&regions, 4, 4 * REGIONS_MAX as usize), Ok(4..4 + 4 * REGIONS_MAX));
        assert!(window(&regions, 5, 4 * REGIONS_MAX as usize).is_err(), "one region too many");
        assert!(window(&regions, 8 * REGIONS_MAX - 1, 2).is_err(), "past the end of the list");
        assert!(window(&regions, u64::MAX, 2).is_err());
        let large = Regions::contiguous(0, 1 << 40).unwrap();
        assert!(window(&large, 0, TRANSFER_MAX as usize).is_ok());
        assert!(window(&large, 0, TRANSFER_MAX as usize + 1).is_err());
    }
}
