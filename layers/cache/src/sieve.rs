//! Data sieving: parts of a stripe that lie near one another are read together with what is between
//! them, where that costs less (active data sieving, Wu section 3.3).
//!
//! Wu compares the cost of all pieces, `N (O_r + O_seek) + sum S_i / B_r`, with that of the span,
//! `O_r + O_seek + S_ds / B_r`. Costs are linear in both, so that each gap can be decided alone: it
//! is read if its bytes cost less than one more read. That is never worse than the better of the
//! two, and better than both where parts lie in groups. `O_r + O_seek` and `B_r` are measured, on
//! the reads of the node's own disks. A write needs no sieve: a line knows which of its bytes are
//! valid, and a block that is written in part is completed in memory.

use std::ops::Range;
use std::time::Duration;

/// Of each sum of measurements so much stays when another is made: the last thousand or so count.
/// With a hundred, times that vary by a tenth gave plans that cost up to 1.7 times the better one.
const KEPT: f64 = 0.999;

/// Below this the measurements are too much alike to tell the cost of a read from that of its
/// bytes: of 1, which they have if all reads are of no bytes or all bytes in no read, and 0, if all
/// are alike.
const SURE_MIN: f64 = 0.02;

/// While they are, one plan in this many is varied a little.
const TRIAL_INTERVAL: u32 = 4;

/// What is assumed before anything was measured counts as much as this part of one measurement.
const SEED_WEIGHT: f64 = 0.1;

/// Before anything was measured: a read costs 100 us, and 1 ns per byte.
const SEED: [(f64, f64, f64); 2] = [(1.0, 4096.0, 104.096e-6), (1.0, 65536.0, 165.536e-6)];

/// What reads of the disks cost: a fit of `fixed * reads + per_byte * bytes` to what they took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DiskReadCosts {
    /// Sums of products of reads, bytes and seconds; old ones count less.
    reads_reads: f64,
    reads_bytes: f64,
    bytes_bytes: f64,
    reads_seconds: f64,
    bytes_seconds: f64,
    /// Plans that were made while the measurements were too much alike.
    unsure: u32,
}

impl Default for DiskReadCosts {
    fn default() -> Self {
        let mut costs = Self {
            reads_reads: 0.0,
            reads_bytes: 0.0,
            bytes_bytes: 0.0,
            reads_seconds: 0.0,
            bytes_seconds: 0.0,
            unsure: 0,
        };
        for (reads, bytes, seconds) in SEED {
            costs.add(SEED_WEIGHT * reads, SEED_WEIGHT * bytes, SEED_WEIGHT * seconds);
        }
        costs
    }
}

impl DiskReadCosts {
    /// Notes that `reads` reads, of `bytes` bytes in all, took `took` together.
    pub(crate) fn note(&mut self, reads: u32, bytes: u32, took: Duration) {
        self.add(f64::from(reads), f64::from(bytes), took.as_secs_f64());
    }

    fn add(&mut self, reads: f64, bytes: f64, seconds: f64) {
        let sums = [
            (&mut self.reads_reads, reads * reads),
            (&mut self.reads_bytes, reads * bytes),
            (&mut self.bytes_bytes, bytes * bytes),
            (&mut self.reads_seconds, reads * seconds),
            (&mut self.bytes_seconds, bytes * seconds),
        ];
        for (sum, more) in sums {
            *sum = *sum * KEPT + more;
        }
    }

    /// Bytes that cost as much as one read more. No limit if bytes seem to cost nothing, and none
    /// are worth it if reads do.
    fn gap_max(&self) -> f64 {
        let Self { reads_reads, reads_bytes, bytes_bytes, reads_seconds, bytes_seconds, .. } =
            *self;
        // Least squares, by Cramer's rule; the determinant cancels out of the quotient.
        let fixed = reads_seconds * bytes_bytes - bytes_seconds * reads_bytes;
        let per_byte = bytes_seconds * reads_reads - reads_seconds * reads_bytes;
        if fixed <= 0.0 {
            0.0
        } else if per_byte <= 0.0 {
            f64::INFINITY
        } else {
            fixed / per_byte
        }
    }

    /// Do the measurements tell the two costs apart?
    fn is_sure(&self) -> bool {
        let squares = self.reads_reads * self.bytes_bytes;
        squares - self.reads_bytes * self.reads_bytes > SURE_MIN * squares
    }

    /// The reads by which `parts`, which are in order, come at the least cost. Now and then one
    /// read more, or less, where it matters least: if all plans were alike, nothing would be
    /// learnt.
    pub(crate) fn plan(&mut self, parts: impl Iterator<Item = Range<u32>>) -> Vec<Range<u32>> {
        let gap_max = self.gap_max();
        let mut reads: Vec<Range<u32>> = Vec::new();
        // The longest gap that is read, and the shortest that is not.
        let (mut longest, mut shortest) = (None::<Range<u32>>, None::<Range<u32>>);
        for part in parts {
            let gap = reads.last().map(|last| last.end..part.start);
            match (gap, reads.last_mut()) {
                (Some(gap), Some(last)) if f64::from(gap.end - gap.start) <= gap_max => {
                    last.end = part.end;
                    if longest.as_ref().is_none_or(|longest| longest.len() < gap.len()) {
                        longest = Some(gap);
                    }
                }
                (gap, _) => {
                    if gap.as_ref().is_some_and(|gap| {
                        shortest.as_ref().is_none_or(|shortest| gap.len() < shortest.len())
                    }) {
                        shortest = gap;
                    }
                    reads.push(part);
                }
            }
        }
        if !self.is_sure() {
            self.unsure = self.unsure.wrapping_add(1);
            if self.unsure.is_multiple_of(TRIAL_INTERVAL) {
                change(&mut reads, longest, shortest);
            }
        }
        reads
    }
}

/// Splits the read that has the gap `longest`; if there is none, joins the two round `shortest`.
fn change(reads: &mut Vec<Range<u32>>, longest: Option<Range<u32>>, shortest: Option<Range<u32>>) {
    if let Some(gap) = longest {
        let Some(at) = reads.iter().position(|read| read.start < gap.start && gap.end < read.end)
        else {
            return;
        };
        let end = std::mem::replace(&mut reads[at].end, gap.start);
        reads.insert(at + 1, gap.end..end);
    } else if let Some(gap) = shortest {
        let Some(at) = reads.iter().position(|read| read.end == gap.start) else { return };
        reads[at].end = reads.remove(at + 1).end;
    }
}

#[cfg(test)]
mod tests {
    use runtime::seed::{Rng, with_seed};

    use super::*;

    /// A disk's cost of some reads, in seconds.
    fn seconds(reads: &[Range<u32>], fixed: f64, per_byte: f64) -> f64 {
        reads.iter().map(|read| fixed + f64::from(read.end - read.start) * per_byte).sum()
    }

    /// Costs as learnt from reads of a disk, whose times vary by so much.
    fn learnt(fixed: f64, per_byte: f64, noise: f64, rng: &mut Rng) -> DiskReadCosts {
        let mut costs = DiskReadCosts::default();
        for _ in 0..3000 {
            let reads = rng.below(8) as u32 + 1;
            let bytes = (0..reads).map(|_| 4096 * (rng.below(64) as u32 + 1)).sum();
            let exact = f64::from(reads) * fixed + f64::from(bytes) * per_byte;
            let factor = 1.0 - noise + 2.0 * noise * (f64::from(rng.below(1000) as u32) / 1000.0);
            costs.note(reads, bytes, Duration::from_secs_f64(exact * factor));
        }
        costs
    }

    #[test]
    fn no_plan_costs_a_tenth_more_than_the_better_of_all_pieces_and_the_span() {
        // A spinning disk, flash, memory, a distant disk of high bandwidth.
        let disks = [(8e-3, 6e-9), (80e-6, 0.5e-9), (1e-6, 0.1e-9), (200e-6, 20e-9)];
        // Where seeks are nearly all that is measured, noise hides what a byte costs.
        let noises = [(0.01, 1.1), (0.1, 1.3)];
        let cases = disks.map(|disk| noises.map(|noise| (disk, noise)));
        with_seed(|rng| {
            for ((fixed, per_byte), (noise, slack)) in cases.into_iter().flatten() {
                let mut costs = learnt(fixed, per_byte, noise, rng);
                for size_blocks in [1, 2, 4, 16] {
                    for density in [2, 4, 16, 64] {
                        let stride = size_blocks * density;
                        let parts = (0..1024 / stride).map(|i| {
                            let start =
                                4096 * (i * stride + rng.below(u64::from(stride / 2)) as u32);
                            start..start + 4096 * size_blocks
                        });
                        let parts: Vec<Range<u32>> = parts.collect();
                        let (Some(first), Some(last)) = (parts.first(), parts.last()) else {
                            continue;
                        };
                        let span = first.start..last.end;
                        let plan = costs.plan(parts.iter().cloned());
                        let covers = |part: &Range<u32>| {
                            plan.iter().any(|read| read.start <= part.start && part.end <= read.end)
                        };
                        assert!(parts.iter().all(covers));
                        let cost = |reads: &[Range<u32>]| seconds(reads, fixed, per_byte);
                        let better = cost(&parts).min(cost(&[span]));
                        assert!(
                            cost(&plan) <= slack * better,
                            "{fixed} {per_byte} {noise} {size_blocks} {density}: {} of {better}",
                            cost(&plan)
                        );
                    }
                }
            }
        });
    }

    #[test]
    fn parts_in_groups_are_read_group_by_group() {
        let mut costs = DiskReadCosts::default();
        for blocks in [1, 16].repeat(500) {
            let took = 50e-6 + f64::from(blocks) * 4096.0 * 1e-9;
            costs.note(1, blocks * 4096, Duration::from_secs_f64(took));
        }
        let near = |start: u32| [start..start + 4096, start + 8192..start + 12_288];
        let parts = near(0).into_iter().chain(near(1 << 20));
        assert_eq!(costs.plan(parts), [0..12_288, 1 << 20..(1 << 20) + 12_288]);
    }

    #[test]
    fn what_was_learnt_of_a_disk_is_forgotten_when_it_changes() {
        with_seed(|rng| {
            let mut costs = learnt(8e-3, 6e-9, 0.01, rng);
            assert!(costs.gap_max() > 1e6);
            for blocks in [1, 16].repeat(10_000) {
                let took = 1e-6 + f64::from(blocks) * 4096.0 * 1e-9;
                costs.note(1, blocks * 4096, Duration::from_secs_f64(took));
            }
            assert!((500.0..2000.0).contains(&costs.gap_max()), "{}", costs.gap_max());
        });
    }
}
