//! A set of bytes of one stripe, kept as sorted ranges that neither overlap nor touch.

use std::ops::Range;

/// A set of byte positions. Neighbouring ranges become one, so each range is one transfer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extents {
    ranges: Vec<Range<u32>>,
}

impl Extents {
    /// Nothing is in the set.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// How many ranges the set consists of.
    pub(crate) fn count(&self) -> usize {
        self.ranges.len()
    }

    /// The ranges in ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u32>> + '_ {
        self.ranges.iter().cloned()
    }

    /// The smallest range that contains the set; `None` if it is empty.
    pub(crate) fn hull(&self) -> Option<Range<u32>> {
        Some(self.ranges.first()?.start..self.ranges.last()?.end)
    }

    /// Adds `range`.
    pub(crate) fn insert(&mut self, range: Range<u32>) {
        if range.is_empty() {
            return;
        }
        let first = self.ranges.partition_point(|known| known.end < range.start);
        let last = self.ranges.partition_point(|known| known.start <= range.end);
        let mut merged = range;
        if first < last {
            merged.start = merged.start.min(self.ranges[first].start);
            merged.end = merged.end.max(self.ranges[last - 1].end);
        }
        self.ranges.splice(first..last, [merged]);
    }

    /// Adds every byte of `other`.
    pub(crate) fn insert_all(&mut self, other: &Self) {
        for range in other.iter() {
            self.insert(range);
        }
    }

    /// Takes `range` out.
    pub(crate) fn remove(&mut self, range: &Range<u32>) {
        let touched = self.touched(range);
        let (Some(first), Some(last)) =
            (self.ranges[touched.clone()].first(), self.ranges[touched.clone()].last())
        else {
            return;
        };
        let kept = [first.start..range.start, range.end..last.end];
        self.ranges.splice(touched, kept.into_iter().filter(|kept| !kept.is_empty()));
    }

    /// Every byte of `range` is in the set.
    pub(crate) fn covers(&self, range: &Range<u32>) -> bool {
        let after = self.ranges.partition_point(|known| known.end <= range.start);
        let known = self.ranges.get(after);
        range.is_empty()
            || known.is_some_and(|known| known.start <= range.start && range.end <= known.end)
    }

    /// Some byte of `range` is in the set.
    pub(crate) fn intersects(&self, range: &Range<u32>) -> bool {
        !self.touched(range).is_empty()
    }

    /// The bytes of `range` that are in the set.
    pub(crate) fn intersection(&self, range: &Range<u32>) -> Self {
        let known = self.ranges[self.touched(range)].iter();
        let cut = |known: &Range<u32>| known.start.max(range.start)..known.end.min(range.end);
        Self { ranges: known.map(cut).collect() }
    }

    /// The bytes of `range` that are not in the set.
    pub(crate) fn gaps(&self, range: &Range<u32>) -> Self {
        let mut gaps = Self { ranges: vec![range.clone()] };
        gaps.ranges.retain(|range| !range.is_empty());
        for known in &self.ranges[self.touched(range)] {
            gaps.remove(known);
        }
        gaps
    }

    /// The indexes of the ranges that have a byte in common with `range`.
    fn touched(&self, range: &Range<u32>) -> Range<usize> {
        if range.is_empty() {
            return 0..0;
        }
        let first = self.ranges.partition_point(|known| known.end <= range.start);
        let last = self.ranges.partition_point(|known| known.start < range.end);
        first..last
    }
}

#[cfg(test)]
mod tests {
    use runtime::seed::{Rng, with_seed};

    use super::*;

    const LENGTH: u32 = 48;

    fn any_range(rng: &mut Rng) -> Range<u32> {
        let start = rng.below(u64::from(LENGTH)) as u32;
        start..start + rng.below(u64::from(LENGTH - start) + 1) as u32
    }

    /// The set as one bit per byte.
    fn bits(extents: &Extents) -> u64 {
        extents.iter().map(|range| mask(&range)).fold(0, |all, bits| all | bits)
    }

    fn mask(range: &Range<u32>) -> u64 {
        range.clone().map(|byte| 1 << byte).sum()
    }

    fn assert_sorted_and_apart(extents: &Extents) {
        let apart = extents.ranges.windows(2).all(|pair| pair[0].end < pair[1].start);
        assert!(apart && extents.iter().all(|range| !range.is_empty()), "{extents:?}");
    }

    #[test]
    fn extents_behave_as_a_bitmap() {
        with_seed(|rng| {
            let (mut extents, mut bitmap) = (Extents::default(), 0u64);
            for _ in 0..20_000 {
                let range = any_range(rng);
                let mask = mask(&range);
                if rng.chance(1, 2) {
                    extents.insert(range.clone());
                    bitmap |= mask;
                } else {
                    extents.remove(&range);
                    bitmap &= !mask;
                }
                assert_sorted_and_apart(&extents);
                assert_eq!(bits(&extents), bitmap);

                let asked = any_range(rng);
                let mask = self::mask(&asked);
                assert_eq!(extents.covers(&asked), bitmap & mask == mask, "{extents:?} {asked:?}");
                assert_eq!(extents.intersects(&asked), bitmap & mask != 0, "{extents:?} {asked:?}");
                let (inside, gaps) = (extents.intersection(&asked), extents.gaps(&asked));
                assert_sorted_and_apart(&inside);
                assert_sorted_and_apart(&gaps);
                assert_eq!(bits(&inside), bitmap & mask);
                assert_eq!(bits(&gaps), !bitmap & mask);
                let hull = extents.hull().map_or(0..0, |hull| hull);
                assert_eq!(hull.start, bitmap.trailing_zeros() % 64);
                assert_eq!(hull.end, 64 - bitmap.leading_zeros());
            }
        });
    }

    #[test]
    fn neighbours_become_one_range() {
        let mut extents = Extents::default();
        extents.insert(0..10);
        extents.insert(20..30);
        assert_eq!(extents.count(), 2);
        extents.insert(10..20);
        assert_eq!((extents.count(), extents.hull()), (1, Some(0..30)));
        let mut other = Extents::default();
        other.insert(40..50);
        other.insert_all(&extents);
        assert_eq!(other.iter().collect::<Vec<_>>(), vec![0..30, 40..50]);
    }
}
