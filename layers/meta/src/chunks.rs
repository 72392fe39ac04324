//! Arithmetic on chunks: what blocks a change takes and leaves.

use crate::protocol::{BlockRun, Chunk, Run};

/// One block of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSlot {
    /// Its number on the logical disk.
    pub block: u64,
    /// Its CRC-32C.
    pub checksum: u32,
    /// It may not be rewritten.
    pub sealed: bool,
}

impl Chunk {
    /// Every block of the chunk by its place; `None` is a hole.
    pub fn slots(&self, blocks: usize) -> Vec<Option<BlockSlot>> {
        let mut slots = vec![None; blocks];
        for run in &self.runs {
            for (i, &checksum) in run.checksums.iter().enumerate() {
                let slot = BlockSlot { block: run.start + i as u64, checksum, sealed: run.sealed };
                if let Some(place) = slots.get_mut(usize::from(run.at) + i) {
                    *place = Some(slot);
                }
            }
        }
        slots
    }

    /// The block at place `at`; `None` is a hole.
    pub fn slot(&self, at: usize) -> Option<BlockSlot> {
        let run =
            self.runs.iter().find(|run| (usize::from(run.at)..run.end() as usize).contains(&at))?;
        let i = at - usize::from(run.at);
        Some(BlockSlot {
            block: run.start + i as u64,
            checksum: run.checksums[i],
            sealed: run.sealed,
        })
    }

    /// The chunk with these blocks. Neighbours become one run if they are neighbours on the disk
    /// too and within one stripe of `blocks_per_stripe`.
    pub fn from_slots(slots: &[Option<BlockSlot>], blocks_per_stripe: u32) -> Self {
        let goes_on = |before: BlockSlot, next: BlockSlot| {
            let starts_stripe = next.block.is_multiple_of(u64::from(blocks_per_stripe));
            before.block + 1 == next.block && before.sealed == next.sealed && !starts_stripe
        };
        let are_joined = |before: &Option<BlockSlot>, next: &Option<BlockSlot>| {
            before.zip(*next).is_some_and(|(before, next)| goes_on(before, next))
        };
        let mut runs = Vec::with_capacity(1);
        let mut at = 0;
        for row in slots.chunk_by(are_joined) {
            if let Some(BlockSlot { block: start, sealed, .. }) = row[0] {
                // Of a known length: one allocation.
                let checksums = row.iter().map(|slot| slot.map_or(0, |slot| slot.checksum));
                let checksums = checksums.collect();
                runs.push(BlockRun { at: at as u16, start, checksums, sealed });
            }
            at += row.len();
        }
        Self { runs }
    }

    /// Blocks in use.
    pub fn count(&self) -> u64 {
        self.runs.iter().map(|run| u64::from(run.count())).sum()
    }

    /// Where the blocks are.
    pub fn disk_runs(&self) -> Vec<Run> {
        self.runs.iter().map(|run| Run { start: run.start, count: run.count() }).collect()
    }

    /// Marks all runs as sealed.
    pub fn seal(&mut self) {
        for run in &mut self.runs {
            run.sealed = true;
        }
    }

    /// Cuts off everything from block `blocks` on, and returns it.
    pub fn cut(&mut self, blocks: u32) -> Vec<Run> {
        let mut rest = Vec::new();
        for run in &mut self.runs {
            let keep = blocks.saturating_sub(u32::from(run.at)).min(run.count());
            if keep < run.count() {
                let start = run.start + u64::from(keep);
                rest.push(Run { start, count: run.count() - keep });
                run.checksums.truncate(keep as usize);
            }
        }
        self.runs.retain(|run| run.count() > 0);
        rest
    }

    /// Is the chunk well formed, for a chunk of `blocks` blocks?
    pub fn is_valid(&self, blocks: u32) -> bool {
        let mut end = 0;
        self.runs.iter().all(|run| {
            let in_order = u32::from(run.at) >= end && run.count() > 0;
            end = run.end();
            in_order && end <= blocks
        })
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
        (old.at, old.start, old.count()) == (new.at, new.start, new.count())
    };
    if old.runs.len() == new.runs.len() && old.runs.iter().zip(&new.runs).all(is_same) {
        return difference; // rewritten in place
    }
    for (old, new) in old.slots(blocks).into_iter().zip(new.slots(blocks)) {
        if old.map(|old| old.block) == new.map(|new| new.block) {
            continue;
        }
        if let Some(new) = new {
            push(&mut difference.taken, new.block, blocks);
        }
        match old {
            Some(old) if old.sealed => push(&mut difference.freed, old.block, blocks),
            Some(old) => push(&mut difference.released, old.block, blocks),
            None => {}
        }
    }
    difference
}

/// Adds a block; a run stays within one stripe.
fn push(runs: &mut Vec<Run>, block: u64, per_stripe: usize) {
    let starts_stripe = block.is_multiple_of(per_stripe as u64);
    match runs.last_mut() {
        Some(last) if !starts_stripe && last.start + u64::from(last.count) == block => {
            last.count += 1;
        }
        _ => runs.push(Run { start: block, count: 1 }),
    }
}

/// `from` without the blocks of `without`.
pub(crate) fn subtract(from: &[Run], without: &[Run], per_stripe: usize) -> Vec<Run> {
    let gone: std::collections::BTreeSet<u64> = without.iter().flat_map(blocks_of).collect();
    let mut rest = Vec::new();
    for block in from.iter().flat_map(blocks_of).filter(|block| !gone.contains(block)) {
        push(&mut rest, block, per_stripe);
    }
    rest
}

fn blocks_of(run: &Run) -> impl Iterator<Item = u64> + use<> {
    run.blocks()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_what_lies_in_a_row_in_one_stripe() {
        runtime::seed::with_seed(|rng| {
            for _ in 0..500 {
                let mut next = rng.below(40);
                let slots: Vec<Option<BlockSlot>> = (0..16)
                    .map(|_| {
                        next = if rng.chance(3, 4) { next + 1 } else { rng.below(40) };
                        if rng.chance(1, 6) { None } else { slot(next, rng.chance(3, 4)) }
                    })
                    .collect();
                let chunk = Chunk::from_slots(&slots, 16);
                assert_eq!(chunk.slots(16), slots);
                for run in &chunk.runs {
                    assert_eq!(run.start / 16, (run.start + u64::from(run.count()) - 1) / 16);
                }
                let one = |pair: &[BlockRun]| {
                    let [before, next] = pair else { return false };
                    let end = before.start + u64::from(before.count());
                    before.end() == u32::from(next.at)
                        && end == next.start
                        && before.sealed == next.sealed
                        && !end.is_multiple_of(16)
                };
                assert!(!chunk.runs.windows(2).any(one), "{chunk:?}");
            }
        });
    }

    #[allow(clippy::unnecessary_wraps, reason = "as it stands in a list of slots")]
    fn slot(block: u64, sealed: bool) -> Option<BlockSlot> {
        Some(BlockSlot { block, checksum: block as u32, sealed })
    }

    #[test]
    fn runs_join_neighbours_and_end_at_stripes_and_holes() {
        let slots =
            [slot(14, true), slot(15, true), slot(16, true), None, slot(17, true), slot(18, false)];
        let chunk = Chunk::from_slots(&slots, 16);
        let runs: Vec<_> = chunk.runs.iter().map(|run| (run.at, run.start, run.count())).collect();
        assert_eq!(runs, [(0, 14, 2), (2, 16, 1), (4, 17, 1), (5, 18, 1)]);
        assert_eq!(chunk.slots(6), slots);
        assert!(chunk.is_valid(6) && !chunk.is_valid(5));
    }

    #[test]
    fn a_difference_tells_taken_freed_and_released_blocks_apart() {
        let old = Chunk::from_slots(&[slot(1, true), slot(2, true), slot(9, false), None], 16);
        let new = Chunk::from_slots(&[slot(1, true), slot(5, false), None, slot(6, false)], 16);
        let expected = Difference {
            taken: vec![Run { start: 5, count: 2 }],
            freed: vec![Run { start: 2, count: 1 }],
            released: vec![Run { start: 9, count: 1 }],
        };
        assert_eq!(difference(&old, &new, 16), expected);
    }

    #[test]
    fn a_cut_keeps_the_front_and_returns_the_rest() {
        let mut chunk = Chunk::from_slots(&[slot(1, true), slot(2, true), None, slot(7, true)], 16);
        assert_eq!(chunk.cut(1), [Run { start: 2, count: 1 }, Run { start: 7, count: 1 }]);
        assert_eq!(chunk.count(), 1);
    }

    #[test]
    fn subtraction_works_on_single_blocks() {
        let from = [Run { start: 1, count: 5 }];
        let rest = subtract(&from, &[Run { start: 3, count: 1 }], 16);
        assert_eq!(rest, [Run { start: 1, count: 2 }, Run { start: 4, count: 2 }]);
    }
}
