//! A bitmap that is small while all its bits are equal.

use std::ops::Range;

/// A fixed number of bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bits {
    length: u32,
    ones: u32,
    /// Absent while all bits are equal.
    words: Option<Box<[u64]>>,
}

impl Bits {
    /// `length` bits, all of them `value`.
    pub(crate) fn new(length: u32, value: bool) -> Self {
        Self { length, ones: if value { length } else { 0 }, words: None }
    }

    /// How many bits there are.
    pub(crate) fn length(&self) -> u32 {
        self.length
    }

    /// How many bits are set.
    pub(crate) fn ones(&self) -> u32 {
        self.ones
    }

    /// How many bits of `range` are set.
    pub(crate) fn ones_in(&self, range: Range<u32>) -> u32 {
        debug_assert!(range.end <= self.length, "a range is within the bits");
        match &self.words {
            Some(words) => {
                masks(range).map(|(index, mask)| (words[index] & mask).count_ones()).sum()
            }
            None if self.ones == 0 => 0,
            None => range.end - range.start,
        }
    }

    /// Rows of `length` bits, a power of two, that begin at multiples of their length and of which
    /// no bit is set.
    pub(crate) fn clear_rows(&self, length: u32) -> u32 {
        let Some(words) = &self.words else {
            return if self.ones > 0 { 0 } else { self.length / length };
        };
        if length > 64 {
            let rows = words.chunks_exact(length as usize / 64);
            return rows.filter(|row| row.iter().all(|word| *word == 0)).count() as u32;
        }
        let starts = if length == 64 { 1 } else { u64::MAX / ((1 << length) - 1) };
        let last = (self.length % 64, words.len() - 1);
        let count = |(index, word): (usize, &u64)| {
            let mut clear = !word;
            if last.0 > 0 && index == last.1 {
                clear &= (1 << last.0) - 1;
            }
            let mut step = 1;
            while step < length {
                clear &= clear >> step;
                step *= 2;
            }
            (clear & starts).count_ones()
        };
        words.iter().enumerate().map(count).sum()
    }

    /// Gives every bit of `range` the value `value`; how many bits changed.
    pub(crate) fn fill(&mut self, range: Range<u32>, value: bool) -> u32 {
        let before = self.ones_in(range.clone());
        let after = if value { range.end - range.start } else { 0 };
        if before == after {
            return 0;
        }
        self.ones = self.ones - before + after;
        if self.ones == 0 || self.ones == self.length {
            self.words = None;
            return before.abs_diff(after);
        }
        // Not all were equal to `value` before, so without words all were its opposite.
        let empty = if value { 0 } else { u64::MAX };
        let count = self.length.div_ceil(64) as usize;
        let words = self.words.get_or_insert_with(|| vec![empty; count].into_boxed_slice());
        for (index, mask) in masks(range) {
            if value {
                words[index] |= mask;
            } else {
                words[index] &= !mask;
            }
        }
        before.abs_diff(after)
    }

    /// The runs of bits with this value within `range`, in order.
    pub(crate) fn runs(
        &self,
        range: Range<u32>,
        value: bool,
    ) -> impl Iterator<Item = Range<u32>> + '_ {
        let mut next = range.start;
        std::iter::from_fn(move || {
            if self.words.is_none() {
                let all = next..range.end;
                next = range.end;
                return (!all.is_empty() && (self.ones > 0) == value).then_some(all);
            }
            while next < range.end && self.get(next) != value {
                next += 1;
            }
            let start = next;
            while next < range.end && self.get(next) == value {
                next += 1;
            }
            (start < next).then_some(start..next)
        })
    }

    fn get(&self, index: u32) -> bool {
        match &self.words {
            Some(words) => words[(index / 64) as usize] >> (index % 64) & 1 == 1,
            None => self.ones > 0,
        }
    }
}

/// The words that a range touches, each with the bits of it that are inside.
fn masks(range: Range<u32>) -> impl Iterator<Item = (usize, u64)> {
    let words = range.start / 64..range.end.div_ceil(64);
    words.map(move |word| {
        let low = range.start.saturating_sub(word * 64);
        let high = (range.end - word * 64).min(64);
        let below = if high == 64 { u64::MAX } else { (1 << high) - 1 };
        (word as usize, below & (u64::MAX << low))
    })
}

#[cfg(test)]
mod tests {
    use runtime::seed::with_seed;

    use super::*;

    #[test]
    fn bits_are_as_in_a_plain_list() {
        with_seed(|rng| {
            for _ in 0..200 {
                let length = 1 + rng.below(300) as u32;
                let first = rng.chance(1, 2);
                let mut bits = Bits::new(length, first);
                let mut model = vec![first; length as usize];
                for _ in 0..100 {
                    let start = rng.below(u64::from(length)) as u32;
                    let end = start + 1 + rng.below(u64::from(length - start)) as u32;
                    let value = rng.chance(1, 2);
                    let part = &mut model[start as usize..end as usize];
                    let changed = part.iter().filter(|bit| **bit != value).count();
                    part.fill(value);
                    assert_eq!(bits.fill(start..end, value), changed as u32);
                    check(&bits, &model);
                }
            }
        });
    }

    #[test]
    fn clear_rows_are_counted_as_in_a_plain_list() {
        with_seed(|rng| {
            for _ in 0..200 {
                let rows = 1 + rng.below(4) as u32;
                let length = rows * [4, 16, 64, 256][rng.index(4)];
                let mut bits = Bits::new(length, rng.chance(1, 2));
                for _ in 0..20 {
                    let start = rng.below(u64::from(length)) as u32;
                    let end = start + 1 + rng.below(u64::from(length - start).min(70)) as u32;
                    bits.fill(start..end, rng.chance(1, 3));
                    for row in (0..9).map(|log| 1 << log).filter(|row| length.is_multiple_of(*row))
                    {
                        let starts = (0..length).step_by(row as usize);
                        let clear = starts.filter(|&at| bits.ones_in(at..at + row) == 0);
                        assert_eq!(bits.clear_rows(row), clear.count() as u32, "{row} of {length}");
                    }
                }
            }
        });
    }

    fn check(bits: &Bits, model: &[bool]) {
        assert_eq!(bits.ones() as usize, model.iter().filter(|bit| **bit).count());
        assert!((0..bits.length()).all(|index| bits.get(index) == model[index as usize]));
        let uniform = model.iter().all(|bit| *bit == model[0]);
        assert_eq!(bits.words.is_none(), uniform);
        let mut seen = vec![false; model.len()];
        for run in bits.runs(0..bits.length(), true) {
            seen[run.start as usize..run.end as usize].fill(true);
        }
        assert_eq!(seen, model);
    }
}
