//! The space map in bytes: what is kept in each owned group. `docs/format.md`, "Space map".

use std::rc::Rc;

use runtime::wire::{Decoder, Encoder, Malformed, Wire};

use super::bits::Bits;
use super::groups::GroupLayout;
use super::page::{self, BODY_MAX, PageDraft, PageKind, PagePlaces, PageRef, StoreOwner};
use super::space::KeptBlocks;

mod tag {
    pub(super) const FREE: u8 = 0;
    pub(super) const KEPT: u8 = 1;
    pub(super) const RUNS: u8 = 2;
    pub(super) const BITMAP: u8 = 3;
}

/// Bytes of the map in one page of this version, at most: the reference to the next page comes
/// first.
fn piece_max(version: u16) -> usize {
    BODY_MAX - PageRef::length(version)
}

/// The map as one string of bytes.
pub(crate) fn encode(kept: &KeptBlocks) -> Vec<u8> {
    let mut out = Encoder::new();
    (kept.len() as u32).put(&mut out);
    for (&group, bits) in kept {
        group.put(&mut out);
        encode_group(bits, &mut out);
    }
    out.finish_joined()
}

fn encode_group(bits: &Bits, out: &mut Encoder) {
    if bits.ones() == 0 {
        return out.bytes(&[tag::FREE]);
    }
    if bits.ones() == bits.length() {
        return out.bytes(&[tag::KEPT]);
    }
    let runs: Vec<_> = bits.runs(0..bits.length(), true).collect();
    let bitmap_bytes = bits.length().div_ceil(8) as usize;
    if runs.len() * 4 + 2 < bitmap_bytes {
        out.bytes(&[tag::RUNS]);
        (runs.len() as u16).put(out);
        for run in runs {
            (run.start as u16).put(out);
            ((run.end - run.start - 1) as u16).put(out);
        }
    } else {
        out.bytes(&[tag::BITMAP]);
        let mut bitmap = vec![0u8; bitmap_bytes];
        for index in runs.into_iter().flatten() {
            bitmap[(index / 8) as usize] |= 1 << (index % 8);
        }
        out.bytes(&bitmap);
    }
}

/// Reads a map of groups of this volume.
pub(crate) fn decode(bytes: &[u8], layout: &GroupLayout) -> Result<KeptBlocks, Malformed> {
    let mut input = Decoder::new(bytes, bytes::Bytes::new());
    let count = u32::take(&mut input)?;
    let mut kept = KeptBlocks::new();
    for _ in 0..count {
        let group = u64::take(&mut input)?;
        if group >= layout.count() || kept.last_key_value().is_some_and(|(&last, _)| last >= group)
        {
            return Err(Malformed("groups out of order"));
        }
        let blocks = layout.blocks_of(group);
        let bits = decode_group(&mut input, (blocks.end - blocks.start) as u32)?;
        kept.insert(group, Rc::new(bits));
    }
    input.finish()?;
    Ok(kept)
}

fn decode_group(input: &mut Decoder, length: u32) -> Result<Bits, Malformed> {
    let mut bits = Bits::new(length, false);
    match u8::take(input)? {
        tag::FREE => {}
        tag::KEPT => bits = Bits::new(length, true),
        tag::RUNS => {
            for _ in 0..u16::take(input)? {
                let start = u32::from(u16::take(input)?);
                let end = start + u32::from(u16::take(input)?) + 1;
                if end > length {
                    return Err(Malformed("a run past the end of its group"));
                }
                bits.fill(start..end, true);
            }
        }
        tag::BITMAP => {
            let bitmap = input.bytes(length.div_ceil(8) as usize)?;
            for index in 0..length {
                if bitmap[(index / 8) as usize] >> (index % 8) & 1 == 1 {
                    bits.fill(index..index + 1, true);
                }
            }
        }
        _ => return Err(Malformed("unknown form of a group")),
    }
    Ok(bits)
}

/// Blocks of the pages of this version that a map of `length` bytes takes, for each page.
pub(crate) fn page_blocks(length: usize, version: u16) -> Vec<u32> {
    let most = piece_max(version);
    let pieces = 0..length.div_ceil(most);
    pieces
        .map(|index| (length - index * most).min(most))
        .map(|piece| page::blocks_for(PageRef::length(version) + piece))
        .collect()
}

fn draft(next: Option<PageRef>, piece: &[u8], version: u16) -> PageDraft {
    let mut reference = Encoder::new();
    if let Some(next) = next {
        next.put(version, &mut reference);
    }
    let mut reference = reference.finish_joined();
    reference.resize(PageRef::length(version), 0);
    let mut draft = PageDraft::new(PageKind::SpaceMap, 0, reference.len() + piece.len());
    draft.extend(&reference);
    draft.extend(piece);
    draft
}

/// The pages of a map, each with its reference, for these places.
pub(crate) fn pages(
    map: &[u8],
    places: &[PagePlaces],
    (owner, version): (StoreOwner, u16),
    generation: u64,
) -> Vec<(bytes::Bytes, PageRef)> {
    let mut pages = Vec::with_capacity(places.len());
    let mut next = None;
    // Each page holds the reference to the next one, so the last is made first.
    let pieces: Vec<_> = map.chunks(piece_max(version)).zip(places).collect();
    for (piece, &places) in pieces.into_iter().rev() {
        let draft = draft(next, piece, version);
        let (raw, place) = draft.finish((owner, version), generation, places);
        next = Some(place);
        pages.push((raw, place));
    }
    pages.reverse();
    pages
}

/// Takes the body of a map page of this version apart: the next page, and the piece of the map.
pub(crate) fn open(version: u16, body: &[u8]) -> Result<(Option<PageRef>, &[u8]), Malformed> {
    let (next, piece) =
        body.split_at_checked(PageRef::length(version)).ok_or(Malformed("short space map"))?;
    if next.iter().all(|&byte| byte == 0) {
        return Ok((None, piece));
    }
    let mut next = Decoder::new(next, bytes::Bytes::new());
    Ok((Some(PageRef::take(version, &mut next)?), piece))
}

#[cfg(test)]
mod tests {
    use blockio::{Geometry, VolumeMap};
    use runtime::VolumeId;
    use runtime::seed::with_seed;

    use super::*;
    use crate::store::groups::Run;

    fn layout() -> GroupLayout {
        let geometry = Geometry { volume: VolumeId(1), stripe_size: 65536, fs_nodes: 1 };
        GroupLayout::of(&VolumeMap::grid(geometry, 1, 1, 64).expect("a small volume"))
    }

    #[test]
    fn the_bytes_of_a_map_are_frozen() {
        let mut runs = Bits::new(128, false);
        runs.fill(3..10, true);
        let mut bitmap = Bits::new(128, false);
        for index in (0..128).step_by(2) {
            bitmap.fill(index..index + 1, true);
        }
        let kept = KeptBlocks::from([
            (0, Rc::new(Bits::new(128, false))),
            (1, Rc::new(Bits::new(128, true))),
            (2, Rc::new(runs)),
            (7, Rc::new(bitmap)),
        ]);
        let mut golden = vec![4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        golden.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0, 1]);
        golden.extend_from_slice(&[2, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 3, 0, 6, 0]);
        golden.extend_from_slice(&[7, 0, 0, 0, 0, 0, 0, 0, 3]);
        golden.extend_from_slice(&[0x55; 16]);
        assert_eq!(encode(&kept), golden);
        assert_eq!(decode(&golden, &layout()), Ok(kept));
    }

    #[test]
    fn any_bytes_are_read_or_refused_and_a_long_map_takes_several_pages() {
        with_seed(|rng| {
            for _ in 0..3000 {
                let mut bytes = vec![0; rng.index(60)];
                rng.fill(&mut bytes);
                for byte in &mut bytes {
                    *byte &= 7;
                }
                let _ = decode(&bytes, &layout());
                for version in 1..=page::FORMAT_VERSION {
                    let _ = open(version, &bytes);
                }
            }
            let mut map = vec![0; 40_000];
            rng.fill(&mut map);
            let owner = StoreOwner { volume: VolumeId(1), node: 0 };
            let version = if rng.chance(1, 2) { 3 } else { 4 };
            let blocks = page_blocks(map.len(), version);
            assert_eq!(blocks, [4, 4, 2]);
            let run = |start| Run { start, count: 1 };
            let places = [10, 20, 30].map(|first| PagePlaces::new(run(first), &[run(first + 100)]));
            let pages = pages(&map, &places, (owner, version), 1);
            let (mut read, mut next) = (Vec::new(), Some(pages[0].1));
            for (raw, place) in &pages {
                assert_eq!(next, Some(*place));
                let opened = crate::store::page::open(raw, owner, PageKind::SpaceMap, place);
                let page::Opened { version, body, .. } = opened.unwrap();
                let (after, piece) = open(version, &body).unwrap();
                read.extend_from_slice(piece);
                next = after;
            }
            assert_eq!((read, next), (map, None));
        });
    }
}
