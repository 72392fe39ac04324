//! Arithmetic on chunks: what blocks a change takes and leaves.
//!
//! All runs of a chunk have logical blocks of the same length. Places in a chunk are counted in
//! blocks, slots in logical blocks.

use std::ops::Range;

use crate::protocol::{BlockRun, Chunk, MIRRORS_MAX, Mirrors, Run, RunForm};

/// One logical block of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSlot {
    /// The number of its first block on the logical disk.
    pub block: u64,
    /// Its CRC-32C.
    pub checksum: u32,
    /// It may not be rewritten.
    pub sealed: bool,
    /// It is in a wide stripe.
    pub covered: bool,
    /// See [`RunForm::deferred`].
    pub deferred: bool,
    /// Its further copies.
    pub mirrors: Mirrors,
}

impl BlockSlot {
    /// Where it and its further copies begin.
    pub fn starts(&self) -> impl Iterator<Item = u64> + '_ {
        std::iter::once(self.block).chain(self.mirrors.starts().iter().copied())
    }
}

impl BlockRun {
    /// The logical block that has block `at` of the chunk, which is one of the run.
    fn slot(&self, at: u32) -> Option<BlockSlot> {
        let place = (at.checked_sub(self.at.into())? / self.unit()) as usize;
        let checksum = *self.checksums.get(place)?;
        Some(self.slot_at(place, checksum))
    }

    /// Its logical block number `place`.
    fn slot_at(&self, place: usize, checksum: u32) -> BlockSlot {
        let blocks = place as u64 * u64::from(self.unit());
        let mirrors = self.mirrors.after(blocks);
        let RunForm { sealed, covered, deferred, .. } = self.form;
        BlockSlot { block: self.start + blocks, checksum, sealed, covered, deferred, mirrors }
    }
}

impl Chunk {
    /// Blocks of a logical block of this chunk; `None` if it has none.
    pub fn unit(&self) -> Option<u32> {
        self.runs.first().map(BlockRun::unit)
    }

    /// The same; of a chunk without blocks `unit`, that of its file.
    pub fn unit_or(&self, unit: u32) -> u32 {
        self.unit().unwrap_or(unit)
    }

    /// Every logical block of a chunk of `blocks` blocks by its place; `None` is a hole. Their
    /// length is [`unit_or`](Self::unit_or) `unit`.
    pub fn slots(&self, blocks: usize, unit: u32) -> Vec<Option<BlockSlot>> {
        let unit = self.unit_or(unit);
        let mut slots = vec![None; blocks / unit as usize];
        for run in &self.runs {
            let first = u32::from(run.at) / unit;
            let first = first as usize;
            for (place, &checksum) in run.checksums.iter().enumerate() {
                if let Some(slot) = slots.get_mut(first + place) {
                    *slot = Some(run.slot_at(place, checksum));
                }
            }
        }
        slots
    }

    /// The logical block that has block `at` of the chunk, and which blocks it has; `None` is a
    /// hole.
    pub fn slot(&self, at: usize) -> Option<(BlockSlot, Range<usize>)> {
        let has = |run: &&BlockRun| (usize::from(run.at)..run.end() as usize).contains(&at);
        let run = self.runs.iter().find(has)?;
        let unit = run.unit() as usize;
        let first = at / unit * unit;
        Some((run.slot(at as u32)?, first..first + unit))
    }

    /// The chunk with these logical blocks of `unit` blocks. Neighbours become one run if they are
    /// neighbours on the disk too and within one stripe of `blocks_per_stripe`.
    pub fn from_slots(slots: &[Option<BlockSlot>], blocks_per_stripe: u32, unit: u32) -> Self {
        let length = u64::from(unit);
        let goes_on = |before: BlockSlot, next: BlockSlot| {
            let starts_stripe = |start: u64| start.is_multiple_of(u64::from(blocks_per_stripe));
            before.block + length == next.block
                && before.sealed == next.sealed
                && before.covered == next.covered
                && before.deferred == next.deferred
                && before.mirrors.after(length) == next.mirrors
                && !next.starts().any(starts_stripe)
        };
        let are_joined = |before: &Option<BlockSlot>, next: &Option<BlockSlot>| {
            before.zip(*next).is_some_and(|(before, next)| goes_on(before, next))
        };
        let mut runs = Vec::with_capacity(1);
        let mut at = 0;
        for row in slots.chunk_by(are_joined) {
            if let Some(slot) = row[0] {
                let BlockSlot { block: start, sealed, covered, deferred, mirrors, .. } = slot;
                // Of a known length: one allocation.
                let checksums = row.iter().map(|slot| slot.map_or(0, |slot| slot.checksum));
                let (checksums, mut form) = (checksums.collect(), RunForm::new(unit, sealed));
                (form.covered, form.deferred) = (covered, deferred);
                runs.push(BlockRun { at: at as u16, start, checksums, form, mirrors });
            }
            at += row.len() * unit as usize;
        }
        Self { runs }
    }

    /// The same blocks with what is known of them in `before`, where it has them.
    pub(crate) fn following(&self, before: &Self, blocks: usize) -> Self {
        let unit = self.unit_or(before.unit_or(1));
        let mut slots = self.slots(blocks, unit);
        for (slot, before) in slots.iter_mut().zip(before.slots(blocks, unit)) {
            if let (Some(slot), Some(before)) = (slot, before)
                && (slot.block, slot.checksum) == (before.block, before.checksum)
            {
                *slot = before;
            }
        }
        Self::from_slots(&slots, blocks as u32, unit)
    }

    /// Blocks in use, each counted once, however many copies it has.
    pub fn count(&self) -> u64 {
        self.runs.iter().map(|run| u64::from(run.count())).sum()
    }

    /// Blocks in use that are in no wide stripe, each as often as it has copies.
    pub fn count_of_copies(&self) -> u64 {
        self.disk_runs().iter().map(|run| u64::from(run.count)).sum()
    }

    /// Where the blocks and their further copies are, without those in a wide stripe, to which they
    /// belong.
    pub fn disk_runs(&self) -> Vec<Run> {
        self.runs.iter().filter(|run| !run.form.covered).flat_map(BlockRun::places).collect()
    }

    /// Marks all runs as sealed.
    pub fn seal(&mut self) {
        for run in &mut self.runs {
            run.form.sealed = true;
        }
    }

    /// Cuts off every logical block that begins at block `blocks` or behind it, and returns what is
    /// gone, except for what belongs to a wide stripe.
    pub fn cut(&mut self, blocks: u32) -> Vec<Run> {
        let mut rest = Vec::new();
        for run in &mut self.runs {
            let kept = blocks.saturating_sub(u32::from(run.at)).div_ceil(run.unit());
            let kept_blocks = kept.saturating_mul(run.unit());
            if kept_blocks < run.count() {
                let cut = |place: Run| Run {
                    start: place.start + u64::from(kept_blocks),
                    count: place.count - kept_blocks,
                };
                if !run.form.covered {
                    rest.extend(run.places().map(cut));
                }
                run.checksums.truncate(kept as usize);
            }
        }
        self.runs.retain(|run| run.count() > 0);
        rest
    }

    /// Is the chunk well formed, for a chunk of `blocks` blocks?
    pub fn is_valid(&self, blocks: u32) -> bool {
        let mut end = 0;
        let unit = self.unit_or(1);
        self.runs.iter().all(|run| {
            let in_order = u32::from(run.at) >= end && run.count() > 0;
            end = run.end();
            let is_aligned = u32::from(run.at).is_multiple_of(unit)
                && run.places().all(|place| place.start.is_multiple_of(u64::from(unit)))
                && blocks.is_multiple_of(unit);
            in_order && end <= blocks && run.unit() == unit && is_aligned
        })
    }

    /// Where each part of `unit` blocks of a chunk of `blocks` blocks is, and its copies are, and
    /// whether it is sealed; not those of a wide stripe, which no change takes or frees. A logical
    /// block has one part or several.
    fn parts(&self, blocks: usize, unit: u32) -> Vec<Option<BlockPart>> {
        let mut parts = vec![None; blocks / unit as usize];
        for run in self.runs.iter().filter(|run| !run.form.covered) {
            let (first, sealed) = (u32::from(run.at), run.form.sealed);
            for at in (first..run.end()).step_by(unit as usize) {
                if let Some(part) = parts.get_mut((at / unit) as usize) {
                    let blocks = u64::from(at - first);
                    let (block, mirrors) = (run.start + blocks, run.mirrors.after(blocks));
                    *part = Some(BlockPart { block, mirrors, sealed });
                }
            }
        }
        parts
    }
}

/// Some blocks of a chunk.
#[derive(Clone, Copy)]
struct BlockPart {
    block: u64,
    mirrors: Mirrors,
    sealed: bool,
}

impl BlockPart {
    fn starts(&self) -> impl Iterator<Item = u64> + '_ {
        std::iter::once(self.block).chain(self.mirrors.starts().iter().copied())
    }

    fn has(&self, start: u64) -> bool {
        self.starts().any(|own| own == start)
    }
}

/// What changes when `new` takes the place of `old`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Difference {
    /// In `new` only.
    pub(crate) taken: Vec<Run>,
    /// In `old` only, and sealed there.
    pub(crate) freed: Vec<Run>,
    /// In `old` only, and never sealed.
    pub(crate) released: Vec<Run>,
}

/// Compares two states of a chunk of `blocks` blocks, which is one stripe's number.
pub(crate) fn difference(old: &Chunk, new: &Chunk, blocks: usize) -> Difference {
    let mut difference = Difference::default();
    let is_same = |(old, new): (&BlockRun, &BlockRun)| {
        (old.at, old.start, old.count(), old.mirrors, old.form.covered)
            == (new.at, new.start, new.count(), new.mirrors, new.form.covered)
    };
    if old.runs.len() == new.runs.len() && old.runs.iter().zip(&new.runs).all(is_same) {
        return difference; // rewritten in place
    }
    let unit = old.unit_or(new.unit_or(1)).min(new.unit_or(old.unit_or(1)));
    for (old, new) in old.parts(blocks, unit).into_iter().zip(new.parts(blocks, unit)) {
        let part = |start| Run { start, count: unit };
        let is_in = |other: Option<BlockPart>, start| other.is_some_and(|other| other.has(start));
        for start in new.iter().flat_map(BlockPart::starts).filter(|&start| !is_in(old, start)) {
            push(&mut difference.taken, part(start), blocks);
        }
        for start in old.iter().flat_map(BlockPart::starts).filter(|&start| !is_in(new, start)) {
            let is_sealed = old.is_some_and(|old| old.sealed);
            let gone = if is_sealed { &mut difference.freed } else { &mut difference.released };
            push(gone, part(start), blocks);
        }
    }
    difference
}

/// Adds blocks; a run stays within one stripe. Blocks come in turn of each copy.
fn push(runs: &mut Vec<Run>, part: Run, per_stripe: usize) {
    let starts_stripe = part.start.is_multiple_of(per_stripe as u64);
    let mut last = runs.iter_mut().rev().take(1 + MIRRORS_MAX).filter(|_| !starts_stripe);
    match last.find(|last| last.start + u64::from(last.count) == part.start) {
        Some(last) => last.count += part.count,
        None => runs.push(part),
    }
}

/// `from` without the blocks of `without`.
pub(crate) fn subtract(from: &[Run], without: &[Run], per_stripe: usize) -> Vec<Run> {
    let gone: std::collections::BTreeSet<u64> = without.iter().flat_map(blocks_of).collect();
    let mut rest = Vec::new();
    for start in from.iter().flat_map(blocks_of).filter(|block| !gone.contains(block)) {
        push(&mut rest, Run { start, count: 1 }, per_stripe);
    }
    rest
}

fn blocks_of(run: &Run) -> impl Iterator<Item = u64> + use<> {
    run.blocks()
}

/// Puts the logical blocks of a run in these places: each has all of them.
pub(crate) fn put_places(
    slots: &mut [Option<BlockSlot>],
    (run, unit): (&BlockRun, u32),
    places: &[Vec<Run>],
) {
    let blocks_of = |runs: &Vec<Run>| runs.iter().flat_map(Run::blocks).collect();
    let copies: Vec<Vec<u64>> = places.iter().map(blocks_of).collect();
    let Some((first, further)) = copies.split_first() else { return };
    let at = (u32::from(run.at) / unit) as usize;
    for (place, slot) in slots[at..].iter_mut().take(run.checksums.len()).enumerate() {
        let block = place * unit as usize;
        let mut mirrors = Mirrors::default();
        for copy in further {
            mirrors.push(copy[block]);
        }
        *slot = slot.map(|slot| BlockSlot { block: first[block], covered: false, mirrors, ..slot });
    }
}

#[cfg(test)]
mod tests {
    use runtime::seed::{Rng, with_seed};
    use runtime::wire::{from_bytes, to_bytes};

    use super::*;

    const BLOCKS: usize = 16;
    const UNITS: [u32; 4] = [1, 2, 4, 16];

    /// Logical blocks anywhere in some stripes.
    fn any_slots(rng: &mut Rng, unit: u32) -> Vec<Option<BlockSlot>> {
        let (length, stripes) = (u64::from(unit), 5 * BLOCKS as u64);
        let mut next = rng.below(stripes / length);
        let copies = rng.below(1 + MIRRORS_MAX as u64);
        let mut shift = stripes;
        let slots = (0..BLOCKS / unit as usize).map(|_| {
            next = if rng.chance(3, 4) { next + 1 } else { rng.below(stripes / length) };
            if rng.chance(1, 6) {
                // The copies go on elsewhere, too.
                shift = stripes + rng.below(stripes / length) * length;
                return None;
            }
            let slot = slot(next * length, rng.chance(3, 4))?;
            let mut mirrors = Mirrors::default();
            (1..=copies).for_each(|copy| mirrors.push(slot.block + copy * shift));
            Some(BlockSlot { mirrors, ..slot })
        });
        slots.collect()
    }

    #[test]
    fn runs_are_what_lies_in_a_row_in_one_stripe() {
        with_seed(|rng| {
            for _ in 0..500 {
                let unit = UNITS[rng.index(UNITS.len())];
                let slots = any_slots(rng, unit);
                let chunk = Chunk::from_slots(&slots, 16, unit);
                assert!(chunk.is_valid(16), "{chunk:?}");
                assert_eq!(chunk.slots(16, unit), slots);
                assert_eq!(from_bytes(&to_bytes(&chunk)), Ok(chunk.clone()));
                let used = slots.iter().flatten().count();
                assert_eq!(chunk.count(), used as u64 * u64::from(unit));
                for at in 0..BLOCKS {
                    let place = at / unit as usize;
                    let blocks = place * unit as usize..(place + 1) * unit as usize;
                    assert_eq!(chunk.slot(at), slots[place].map(|slot| (slot, blocks)));
                }
                let copies = slots.iter().flatten().map(|slot| slot.starts().count()).max();
                let used_places: u32 = chunk.disk_runs().iter().map(|run| run.count).sum();
                assert_eq!(used_places, (used * copies.unwrap_or(0)) as u32 * unit);
                for run in chunk.disk_runs() {
                    assert_eq!(run.start / 16, (run.start + u64::from(run.count) - 1) / 16);
                }
                let one = |pair: &[BlockRun]| {
                    let [before, next] = pair else { return false };
                    let end = before.start + u64::from(before.count());
                    before.end() == u32::from(next.at)
                        && end == next.start
                        && before.form == next.form
                        && before.mirrors.after(before.count().into()) == next.mirrors
                        && !next.places().any(|place| place.start.is_multiple_of(16))
                };
                assert!(!chunk.runs.windows(2).any(one), "{chunk:?}");
            }
        });
    }

    #[allow(clippy::unnecessary_wraps, reason = "as it stands in a list of slots")]
    fn slot(block: u64, sealed: bool) -> Option<BlockSlot> {
        let mirrors = Mirrors::default();
        Some(BlockSlot {
            block,
            checksum: block as u32,
            sealed,
            covered: false,
            deferred: false,
            mirrors,
        })
    }

    #[test]
    fn runs_join_neighbours_and_end_at_stripes_and_holes() {
        let slots =
            [slot(14, true), slot(15, true), slot(16, true), None, slot(17, true), slot(18, false)];
        let chunk = Chunk::from_slots(&slots, 16, 1);
        let runs: Vec<_> = chunk.runs.iter().map(|run| (run.at, run.start, run.count())).collect();
        assert_eq!(runs, [(0, 14, 2), (2, 16, 1), (4, 17, 1), (5, 18, 1)]);
        assert_eq!(chunk.slots(6, 1), slots);
        assert!(chunk.is_valid(6) && !chunk.is_valid(5));
    }

    #[test]
    fn chunks_that_cannot_be_are_known() {
        let run = |at, start, count, unit| {
            let (checksums, form) = (vec![7; count], RunForm::new(unit, true));
            BlockRun { at, start, checksums, form, mirrors: Mirrors::default() }
        };
        let is_valid = |runs: &[BlockRun]| Chunk { runs: runs.to_vec() }.is_valid(16);
        assert!(is_valid(&[run(0, 4, 1, 4), run(4, 20, 3, 4)]) && is_valid(&[run(0, 16, 1, 16)]));
        assert!(!is_valid(&[run(2, 4, 1, 4)]), "not at its place in the chunk");
        assert!(!is_valid(&[run(0, 6, 1, 4)]), "nor in the stripe");
        assert!(!is_valid(&[run(0, 4, 1, 4), run(4, 20, 1, 2)]), "of two lengths");
        assert!(!is_valid(&[run(0, 32, 1, 32)]) && !is_valid(&[run(12, 4, 2, 4)]), "too long");
        assert!(!is_valid(&[run(0, 4, 0, 4)]) && !is_valid(&[run(4, 4, 1, 4), run(0, 8, 1, 4)]));
        let bytes = to_bytes(&run(0, 4, 1, 256));
        assert!(from_bytes::<BlockRun>(&bytes).is_ok());
        let last = bytes.len() - 1;
        for form in 18..=255 {
            let is_covered = form >> 5 == 7 && form & 1 == 1 && form >> 1 & 15 <= 8;
            let other = [&bytes[..last], &[form]].concat();
            assert_eq!(from_bytes::<BlockRun>(&other).is_ok(), is_covered, "{form}");
        }
    }

    #[test]
    fn a_difference_tells_taken_freed_and_released_blocks_apart() {
        let old = Chunk::from_slots(&[slot(1, true), slot(2, true), slot(9, false), None], 16, 1);
        let new = Chunk::from_slots(&[slot(1, true), slot(5, false), None, slot(6, false)], 16, 1);
        let expected = Difference {
            taken: vec![Run { start: 5, count: 2 }],
            freed: vec![Run { start: 2, count: 1 }],
            released: vec![Run { start: 9, count: 1 }],
        };
        assert_eq!(difference(&old, &new, 16), expected);
    }

    #[test]
    fn a_difference_has_every_block_that_only_one_of_two_chunks_has() {
        with_seed(|rng| {
            for _ in 0..500 {
                let mut any = || {
                    let unit = UNITS[rng.index(UNITS.len())];
                    let slots = any_slots(rng, unit);
                    Chunk::from_slots(&slots, 16, unit)
                };
                let (old, new) = (any(), any());
                let Difference { taken, freed, released } = difference(&old, &new, BLOCKS);
                // Of each place in the chunk: the blocks, and whether they are sealed.
                let places = |chunk: &Chunk| {
                    let mut places = vec![(Vec::new(), false); BLOCKS];
                    for run in &chunk.runs {
                        for i in 0..run.count() {
                            let blocks = run.places().map(|place| place.start + u64::from(i));
                            let place = usize::from(run.at) + i as usize;
                            places[place] = (blocks.collect(), run.form.sealed);
                        }
                    }
                    places
                };
                let (mut gone, mut come) = ([Vec::new(), Vec::new()], Vec::new());
                for ((old, sealed), (new, _)) in places(&old).into_iter().zip(places(&new)) {
                    come.extend(new.iter().filter(|block| !old.contains(block)));
                    let left = old.iter().filter(|block| !new.contains(block));
                    gone[usize::from(sealed)].extend(left);
                }
                let listed = |runs: &[Run]| {
                    let mut blocks: Vec<u64> = runs.iter().flat_map(Run::blocks).collect();
                    blocks.sort_unstable();
                    blocks
                };
                come.sort_unstable();
                for blocks in &mut gone {
                    blocks.sort_unstable();
                }
                assert_eq!(listed(&taken), come);
                assert_eq!([listed(&released), listed(&freed)], gone);
                let within = |run: &Run| run.start / 16 == (run.blocks().end - 1) / 16;
                assert!([taken, freed, released].iter().flatten().all(within));
            }
        });
    }

    #[test]
    fn a_cut_keeps_the_front_and_returns_the_rest() {
        let slots = [slot(1, true), slot(2, true), None, slot(7, true)];
        let mut chunk = Chunk::from_slots(&slots, 16, 1);
        assert_eq!(chunk.cut(1), [Run { start: 2, count: 1 }, Run { start: 7, count: 1 }]);
        assert_eq!(chunk.count(), 1);
    }

    #[test]
    fn a_cut_within_a_logical_block_keeps_all_of_it() {
        let slots = [slot(4, true), slot(8, true), slot(20, true), None];
        let whole = Chunk::from_slots(&slots, 16, 4);
        for (blocks, kept) in [(0, 0), (1, 1), (4, 1), (5, 2), (9, 3), (12, 3), (16, 3)] {
            let mut chunk = whole.clone();
            let rest = chunk.cut(blocks);
            let expected: Vec<_> =
                slots.iter().enumerate().map(|(i, slot)| slot.filter(|_| i < kept)).collect();
            assert_eq!(chunk.slots(16, 4), expected);
            let gone: u32 = rest.iter().map(|run| run.count).sum();
            assert_eq!(gone, 4 * (3 - kept as u32));
        }
    }

    #[test]
    fn subtraction_works_on_single_blocks() {
        let from = [Run { start: 1, count: 5 }];
        let rest = subtract(&from, &[Run { start: 3, count: 1 }], 16);
        assert_eq!(rest, [Run { start: 1, count: 2 }, Run { start: 4, count: 2 }]);
    }
}
