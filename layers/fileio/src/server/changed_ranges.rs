//! Which bytes of a file were changed since a loss, and by what (ADR 73).

use std::collections::BTreeMap;
use std::ops::Range;

use meta::protocol::CommitMark;

use super::hand_over::RangeHandover;
use super::replays::ReplayParts;

/// A change of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RangeChange {
    /// The number under which it was answered first. The higher one of two changes of a byte
    /// counts.
    pub(super) order: u64,
    /// The number under which it was installed.
    pub(super) sequence: u64,
    /// Where its bytes begin and end is where an append has put them.
    pub(super) is_append: bool,
    /// The bytes were cut off: no size follows from them.
    pub(super) is_cut: bool,
}

impl RangeChange {
    /// One that was installed as `sequence`; `order` if it was a replay.
    pub(super) fn new(sequence: u64, order: Option<u64>) -> Self {
        let order = order.unwrap_or(sequence);
        Self { order, sequence, is_append: false, is_cut: false }
    }

    pub(super) fn append(self, is_append: bool) -> Self {
        Self { is_append, ..self }
    }

    pub(super) fn cut(self, is_cut: bool) -> Self {
        Self { is_cut, ..self }
    }
}

/// Bytes with the same history.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ChangedSegment {
    end: u64,
    /// The last one is what the bytes hold. If it is lost, the one below it is there again. All
    /// below one that is durable are forgotten.
    changes: Vec<RangeChange>,
}

/// The changes of one file, by the bytes that they have changed.
#[derive(Clone, Debug, Default)]
pub(super) struct ChangedRanges {
    segments: BTreeMap<u64, ChangedSegment>,
    size: usize,
}

impl ChangedRanges {
    /// Changes that are known, once for each segment.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// The bytes of `range` were changed. `committed` is what was durable before, `sealed` the last
    /// number that the commit under way covers.
    pub(super) fn put(
        &mut self,
        range: Range<u64>,
        change: RangeChange,
        (committed, sealed): (&CommitMark, u64),
    ) {
        let mut at = range.start;
        for (start, old) in self.take_overlapping(&range) {
            if at < start {
                self.insert(at, ChangedSegment { end: start, changes: vec![change] });
            }
            at = old.end;
            let is_durable = |old: &RangeChange| committed.covers(old.sequence) == Some(true);
            let below = old.changes.iter().rposition(is_durable).unwrap_or(0);
            let mut changes = old.changes[below..].to_vec();
            // No record will have the bytes between two changes since the last seal.
            changes.pop_if(|last| last.sequence > sealed);
            changes.push(change);
            self.insert(start, ChangedSegment { end: old.end, changes });
        }
        if at < range.end {
            self.insert(at, ChangedSegment { end: range.end, changes: vec![change] });
        }
    }

    /// Only what `installed` covers is left.
    pub(super) fn lose(&mut self, installed: &CommitMark) {
        for segment in self.segments.values_mut() {
            let is_there = |change: &RangeChange| installed.covers(change.sequence) != Some(false);
            segment.changes.retain(is_there);
        }
        self.segments.retain(|_, segment| !segment.changes.is_empty());
        self.size = self.segments.values().map(|segment| segment.changes.len()).sum();
    }

    /// The parts of `range` that no change of a higher order has touched.
    pub(super) fn parts_before(&self, order: u64, range: Range<u64>) -> ReplayParts {
        let (mut at, mut parts) = (range.start, ReplayParts::default());
        parts.end = at;
        for (start, segment) in self.overlapping(&range) {
            let Some(last) = segment.changes.last() else { continue };
            // Appends do not overlap, so one of the two has to move.
            parts.by_append |= last.is_append && last.order != order;
            if last.order <= order {
                continue;
            }
            if at < start {
                parts.ranges.push(at..start);
                parts.end = start;
            }
            at = segment.end.max(at);
            if !last.is_cut {
                parts.end = at.min(range.end);
            }
            parts.covered_by = parts.covered_by.max(last.sequence);
        }
        if at < range.end {
            parts.ranges.push(at..range.end);
            parts.end = range.end;
        }
        parts
    }

    pub(super) fn hand_over(&self) -> Vec<RangeHandover> {
        let handed = self.segments.iter().filter_map(|(&start, segment)| {
            let &RangeChange { order, sequence, is_append, is_cut } = segment.changes.last()?;
            Some(RangeHandover { start, end: segment.end, order, sequence, is_append, is_cut })
        });
        handed.collect()
    }

    pub(super) fn resume(handed: &[RangeHandover]) -> Self {
        let mut ranges = Self::default();
        for &RangeHandover { start, end, order, sequence, is_append, is_cut } in handed {
            let change = RangeChange { order, sequence, is_append, is_cut };
            ranges.put(start..end, change, (&CommitMark::default(), u64::MAX));
        }
        ranges
    }

    fn overlapping(&self, range: &Range<u64>) -> impl Iterator<Item = (u64, &ChangedSegment)> {
        let (start, end) = (range.start, range.end.max(range.start));
        let before = self.segments.range(..start).next_back();
        let before = before.filter(|(_, segment)| segment.end > start);
        before.into_iter().chain(self.segments.range(start..end)).map(|(&at, found)| (at, found))
    }

    /// Removes what overlaps `range`, in order; what of it is outside stays.
    fn take_overlapping(&mut self, range: &Range<u64>) -> Vec<(u64, ChangedSegment)> {
        let starts: Vec<u64> = self.overlapping(range).map(|(start, _)| start).collect();
        let mut taken = Vec::with_capacity(starts.len());
        for start in starts {
            let Some(segment) = self.segments.remove(&start) else { continue };
            self.size -= segment.changes.len();
            let (from, to) = (start.max(range.start), segment.end.min(range.end));
            if start < from {
                self.insert(start, ChangedSegment { end: from, changes: segment.changes.clone() });
            }
            if to < segment.end {
                self.insert(to, segment.clone());
            }
            taken.push((from, ChangedSegment { end: to, ..segment }));
        }
        taken
    }

    fn insert(&mut self, start: u64, segment: ChangedSegment) {
        self.size += segment.changes.len();
        self.segments.insert(start, segment);
    }
}

#[cfg(test)]
mod tests {
    use runtime::seed::Rng;

    use super::*;

    /// Bytes of the file in the tests.
    const BYTES: u64 = 40;

    fn mark(sequence: u64) -> CommitMark {
        CommitMark { sequence, missing: Vec::new() }
    }

    #[test]
    fn replays_change_what_no_later_change_has_touched_over_any_losses() {
        for seed in 0..300 {
            let mut rng = Rng::new(seed);
            let (mut ranges, mut sequence, mut committed) =
                (ChangedRanges::default(), 1_000, 1_000);
            // The changes of each byte that are there, the last one on top.
            let mut bytes: Vec<Vec<RangeChange>> = vec![Vec::new(); BYTES as usize];
            for _ in 0..60 {
                let start = rng.below(BYTES);
                let range = start..start + 1 + rng.below(BYTES - start);
                match rng.below(8) {
                    0 => committed = committed + rng.below(sequence - committed + 1),
                    1 => {
                        let left = mark(committed).after_loss(sequence);
                        ranges.lose(&left);
                        for byte in &mut bytes {
                            byte.retain(|change| change.sequence <= committed);
                        }
                        // What is lost stays lost.
                        committed = sequence;
                    }
                    kind => {
                        sequence += 1;
                        let order = (kind < 5).then(|| 1 + rng.below(sequence));
                        let change = RangeChange::new(sequence, order);
                        let parts = ranges.parts_before(change.order, range.clone());
                        let is_free = |at: u64| {
                            let last = bytes[at as usize].last();
                            last.is_none_or(|last| last.order <= change.order)
                        };
                        let expected: Vec<u64> = range.filter(|&at| is_free(at)).collect();
                        let found: Vec<u64> = parts.ranges.iter().cloned().flatten().collect();
                        assert_eq!(found, expected, "seed {seed}");
                        for part in parts.ranges {
                            ranges.put(part.clone(), change, (&mark(committed), u64::MAX));
                            for at in part {
                                bytes[at as usize].push(change);
                            }
                        }
                    }
                }
                let count = |segment: &ChangedSegment| segment.changes.len();
                assert_eq!(ranges.size, ranges.segments.values().map(count).sum());
            }
        }
    }

    #[test]
    fn what_covers_a_replay_says_how_long_the_file_was_and_when_it_is_durable() {
        let mut ranges = ChangedRanges::default();
        ranges.put(10..20, RangeChange::new(105, None), (&mark(0), u64::MAX));
        ranges.put(30..u64::MAX, RangeChange::new(106, None).cut(true), (&mark(0), u64::MAX));
        let parts = ranges.parts_before(5, 0..40);
        assert_eq!(parts.ranges, [0..10, 20..30]);
        assert_eq!((parts.end, parts.covered_by, parts.by_append), (30, 106, false));
        assert_eq!(ranges.parts_before(5, 12..20).end, 20, "it was as long as that");
        ranges.put(0..10, RangeChange::new(107, Some(3)).append(true), (&mark(0), u64::MAX));
        assert!(ranges.parts_before(5, 9..12).by_append);
        assert!(!ranges.parts_before(3, 9..10).by_append, "it is itself");
        let resumed = ChangedRanges::resume(&ranges.hand_over());
        assert_eq!(resumed.parts_before(5, 0..40), ranges.parts_before(5, 0..40));
    }
}
