//! Regions of a file, or of memory, that are described and not listed: what a program writes of an
//! array travels as the shape of its part, however many regions that is (list I/O: Ching et al.;
//! Wu section 3.1; the datatypes of MPI).
//!
//! A list is a row of [`RegionPattern`]s; a pattern repeats a block of bytes in a few nested loops.
//! That covers one range, a vector, nested vectors, a part of an array, and a list of ranges. The
//! bytes of all regions, one region after the other, are the list's *packed* bytes; a *window* is a
//! range of these. Memory and time to find a place in a list do not grow with the number of its
//! regions.

mod build;
#[cfg(test)]
mod tests;
mod walk;

use std::ops::Range;

use runtime::seed::Rng;
use runtime::wire::{Decoder, Encoder, Malformed, Wire};

pub use walk::{Region, RegionWalk};

/// Nested loops of one pattern, at most.
pub const LEVELS_MAX: usize = 8;

/// Patterns of one list, at most.
pub const PATTERNS_MAX: usize = 1 << 16;

/// Regions in the window of one request, at most.
pub const REGIONS_MAX: u64 = 1 << 16;

/// Where the bytes of a list may lie, and how many packed bytes there may be.
const BYTES_MAX: u64 = i64::MAX as u64;

runtime::record! {
    /// A loop round what is inside it.
    #[derive(Copy)]
    pub struct RegionLoop {
        /// How often, at least once.
        count: u64,
        /// Bytes from one turn to the next.
        stride: u64,
    }
}

runtime::record! {
    /// A block of bytes, repeated.
    pub struct RegionPattern {
        /// The first byte of the first block.
        start: u64,
        /// Bytes of a block, at least one.
        block: u64,
        /// The loops, the outermost first; at most [`LEVELS_MAX`].
        levels: Vec<RegionLoop>,
    }
}

/// Why there is no such list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegionsError {
    /// Too many patterns.
    #[error("a list has at most {PATTERNS_MAX} patterns; use several lists")]
    TooMany,
    /// Too many loops in one another.
    #[error("a pattern has at most {LEVELS_MAX} nested loops; use several patterns")]
    TooDeep,
    /// Bytes where no file has any.
    #[error("a list ends before byte 2^63, and has fewer bytes than that")]
    TooLarge,
    /// A loop without a turn, or a block without a byte.
    #[error("counts and blocks are at least one")]
    Empty,
    /// The part does not lie in the array, or the numbers of dimensions differ.
    #[error("the part of the array is not within the array")]
    NotWithin,
}

impl RegionPattern {
    /// Regions: one for each turn of the innermost loop. `None` if they are too many.
    fn regions(&self) -> Option<u64> {
        self.levels.iter().try_fold(1u64, |product, level| product.checked_mul(level.count))
    }

    /// Where the last block ends.
    fn end(&self) -> Option<u64> {
        let first_end = self.start.checked_add(self.block)?;
        self.levels.iter().try_fold(first_end, |end, level| {
            end.checked_add(level.stride.checked_mul(level.count.checked_sub(1)?)?)
        })
    }

    /// Is it one that may be in a list? Returns what it adds to it.
    fn check(&self) -> Result<RegionsSum, RegionsError> {
        if self.levels.len() > LEVELS_MAX {
            return Err(RegionsError::TooDeep);
        }
        if self.block == 0 || self.levels.iter().any(|level| level.count == 0) {
            return Err(RegionsError::Empty);
        }
        let regions = self.regions().ok_or(RegionsError::TooLarge)?;
        let bytes = regions.checked_mul(self.block).ok_or(RegionsError::TooLarge)?;
        let end = self.end().ok_or(RegionsError::TooLarge)?;
        if end > BYTES_MAX || bytes > BYTES_MAX {
            return Err(RegionsError::TooLarge);
        }
        Ok(RegionsSum { bytes, regions, end })
    }
}

/// Of a list up to and with one of its patterns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RegionsSum {
    /// Packed bytes.
    bytes: u64,
    regions: u64,
    /// The end of the region that ends last.
    end: u64,
}

/// A list of regions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Regions {
    patterns: Vec<RegionPattern>,
    /// Up to and with the pattern of the same index.
    sums: Vec<RegionsSum>,
}

impl Regions {
    /// The list of these patterns.
    pub fn new(patterns: Vec<RegionPattern>) -> Result<Self, RegionsError> {
        if patterns.len() > PATTERNS_MAX {
            return Err(RegionsError::TooMany);
        }
        let mut sums = Vec::with_capacity(patterns.len());
        let mut sum = RegionsSum::default();
        for pattern in &patterns {
            let more = pattern.check()?;
            let bytes = sum.bytes.checked_add(more.bytes).filter(|&bytes| bytes <= BYTES_MAX);
            let regions = sum.regions.checked_add(more.regions);
            let (Some(bytes), Some(regions)) = (bytes, regions) else {
                return Err(RegionsError::TooLarge);
            };
            sum = RegionsSum { bytes, regions, end: sum.end.max(more.end) };
            sums.push(sum);
        }
        Ok(Self { patterns, sums })
    }

    /// The patterns.
    pub fn patterns(&self) -> &[RegionPattern] {
        &self.patterns
    }

    /// Packed bytes of all regions.
    pub fn bytes(&self) -> u64 {
        self.sums.last().map_or(0, |sum| sum.bytes)
    }

    /// How many regions there are; neighbours that touch may count as several.
    pub fn count(&self) -> u64 {
        self.sums.last().map_or(0, |sum| sum.regions)
    }

    /// The end of the region that ends last.
    pub fn end(&self) -> u64 {
        self.sums.last().map_or(0, |sum| sum.end)
    }

    /// The regions that hold the packed bytes of `window`, in order; of the first and the last as
    /// much as lies in it.
    pub fn walk(&self, window: Range<u64>) -> RegionWalk<'_> {
        RegionWalk::new(self, window)
    }

    /// Regions that have bytes in `window`.
    pub fn count_in(&self, window: &Range<u64>) -> u64 {
        let end = window.end.min(self.bytes());
        if window.start >= end {
            return 0;
        }
        self.region_at(end - 1) - self.region_at(window.start) + 1
    }

    /// The pattern that holds the packed byte `position`, and what is before it.
    fn pattern_at(&self, position: u64) -> (usize, RegionsSum) {
        let index = self.sums.partition_point(|sum| sum.bytes <= position);
        let before = index.checked_sub(1).map_or(RegionsSum::default(), |last| self.sums[last]);
        (index, before)
    }

    /// The number of the region that holds a packed byte, which there is.
    fn region_at(&self, position: u64) -> u64 {
        let (index, before) = self.pattern_at(position);
        before.regions + (position - before.bytes) / self.patterns[index].block
    }

    /// Where the region of a number begins, among the packed bytes.
    fn position_of(&self, region: u64) -> u64 {
        let index = self.sums.partition_point(|sum| sum.regions <= region);
        let before = index.checked_sub(1).map_or(RegionsSum::default(), |last| self.sums[last]);
        let block = self.patterns.get(index).map_or(0, |pattern| pattern.block);
        before.bytes + (region - before.regions) * block
    }

    /// Windows that together are the whole list: each has at most `bytes_max` packed bytes and
    /// [`REGIONS_MAX`] regions, and ends between two regions, or at a multiple of `align` in the
    /// file, where that is possible.
    pub fn windows(&self, bytes_max: u64, align: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut next = 0;
        std::iter::from_fn(move || {
            let from = next;
            (from < self.bytes()).then(|| {
                next = self.cut(from, bytes_max, align);
                from..next
            })
        })
    }

    /// Where a window that begins at `from` ends.
    fn cut(&self, from: u64, bytes_max: u64, align: u64) -> u64 {
        let all = self.bytes();
        let last_region = self.region_at(from) + REGIONS_MAX;
        let by_regions =
            if last_region < self.count() { self.position_of(last_region) } else { all };
        let end = by_regions.min(from + bytes_max);
        if end >= all {
            return all;
        }
        let between = self.position_of(self.region_at(end));
        if between > from {
            return between;
        }
        // In the middle of a long region.
        let offset = self.walk(end..all).next().map_or(0, |region| region.offset);
        let aligned = end.saturating_sub(offset % align.max(1));
        if aligned > from { aligned } else { end }
    }

    /// The patterns that hold the bytes of `window`, and the same window of them: all that the
    /// server of this window needs to know.
    #[must_use]
    pub fn part(&self, window: &Range<u64>) -> (Self, Range<u64>) {
        if window.start >= window.end.min(self.bytes()) {
            return (Self::default(), 0..0);
        }
        let (first, before) = self.pattern_at(window.start);
        let (last, _) = self.pattern_at(window.end.min(self.bytes()) - 1);
        if first == 0 && last + 1 == self.patterns.len() {
            return (self.clone(), window.clone());
        }
        let part = Self::new(self.patterns[first..=last].to_vec()).unwrap_or_default();
        (part, window.start - before.bytes..window.end - before.bytes)
    }
}

/// The patterns. A list that breaks a limit is malformed.
impl Wire for Regions {
    fn put(&self, out: &mut Encoder) {
        self.patterns.put(out);
    }

    fn take(input: &mut Decoder) -> Result<Self, Malformed> {
        Self::new(Vec::take(input)?).map_err(|_| Malformed("a list of regions breaks a limit"))
    }

    fn sample(rng: &mut Rng) -> Self {
        let level = |rng: &mut Rng| RegionLoop { count: rng.below(5) + 1, stride: rng.below(64) };
        let pattern = |rng: &mut Rng| RegionPattern {
            start: rng.below(1000),
            block: rng.below(20) + 1,
            levels: (0..rng.below(4)).map(|_| level(rng)).collect(),
        };
        let patterns = (0..rng.below(4)).map(|_| pattern(rng)).collect();
        Self::new(patterns).unwrap_or_default()
    }
}
