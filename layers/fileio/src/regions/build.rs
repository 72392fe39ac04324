//! Making lists, in as few and as flat patterns as they can be told.

use super::{RegionLoop, RegionPattern, Regions, RegionsError};

impl Regions {
    /// One range; none if it has no byte.
    pub fn contiguous(offset: u64, length: u64) -> Result<Self, RegionsError> {
        Self::indexed([(offset, length)])
    }

    /// A vector: `count` blocks of `block` bytes, each `stride` bytes after the one before.
    pub fn strided(start: u64, block: u64, count: u64, stride: u64) -> Result<Self, RegionsError> {
        Self::nested(start, block, &[(count, stride)])
    }

    /// Vectors of vectors: a block in loops of `(count, stride)`, the outermost first.
    pub fn nested(start: u64, block: u64, loops: &[(u64, u64)]) -> Result<Self, RegionsError> {
        let levels = loops.iter().map(|&(count, stride)| RegionLoop { count, stride });
        let pattern = RegionPattern { start, block, levels: levels.collect() };
        pattern.check()?;
        Self::new(vec![flat(pattern)])
    }

    /// A part of an array that begins at byte `offset`: the array has `array` elements of `element`
    /// bytes in each dimension, the part has `part` of them from `first` on; the last dimension
    /// lies together (the order of C; for that of Fortran give the dimensions in the opposite
    /// order).
    pub fn subarray(
        offset: u64,
        element: u64,
        array: &[u64],
        part: &[u64],
        first: &[u64],
    ) -> Result<Self, RegionsError> {
        if array.len() != part.len() || array.len() != first.len() {
            return Err(RegionsError::NotWithin);
        }
        let (mut start, mut stride) = (offset, element);
        let mut levels = Vec::with_capacity(array.len());
        for ((&size, &count), &from) in array.iter().zip(part).zip(first).rev() {
            if from.checked_add(count).is_none_or(|end| end > size) {
                return Err(RegionsError::NotWithin);
            }
            let skipped = from.checked_mul(stride).ok_or(RegionsError::TooLarge)?;
            start = start.checked_add(skipped).ok_or(RegionsError::TooLarge)?;
            levels.insert(0, RegionLoop { count, stride });
            stride = stride.checked_mul(size).ok_or(RegionsError::TooLarge)?;
        }
        if element == 0 || part.contains(&0) {
            return Err(RegionsError::Empty);
        }
        let pattern = flat(RegionPattern { start, block: element, levels });
        Self::new(vec![pattern])
    }

    /// Ranges of `(offset, length)` in this order. Neighbours that touch become one; what has no
    /// bytes is left out.
    pub fn indexed(ranges: impl IntoIterator<Item = (u64, u64)>) -> Result<Self, RegionsError> {
        let mut patterns: Vec<RegionPattern> = Vec::new();
        for (start, block) in ranges {
            match patterns.last_mut() {
                _ if block == 0 => {}
                Some(last) if last.start.checked_add(last.block) == Some(start) => {
                    last.block = last.block.checked_add(block).ok_or(RegionsError::TooLarge)?;
                }
                _ => patterns.push(RegionPattern { start, block, levels: Vec::new() }),
            }
            if patterns.len() > super::PATTERNS_MAX {
                return Err(RegionsError::TooMany);
            }
        }
        Self::new(patterns)
    }

    /// One list after the other.
    pub fn join(lists: impl IntoIterator<Item = Self>) -> Result<Self, RegionsError> {
        Self::new(lists.into_iter().flat_map(|list| list.patterns).collect())
    }
}

/// The same regions in the same order with fewer loops: those that go round once, and those that
/// only make a longer block or a longer loop, are taken out. `pattern` may have more loops than are
/// allowed; its products must not be too large, or they are left as they are.
fn flat(pattern: RegionPattern) -> RegionPattern {
    let RegionPattern { start, mut block, levels } = pattern;
    // The innermost first.
    let mut flat: Vec<RegionLoop> = Vec::new();
    for level in levels.into_iter().rev().filter(|level| level.count != 1) {
        let longer = match flat.last_mut() {
            None if level.stride == block => {
                block.checked_mul(level.count).map(|longer| block = longer)
            }
            Some(inner) if inner.stride.checked_mul(inner.count) == Some(level.stride) => {
                inner.count.checked_mul(level.count).map(|longer| inner.count = longer)
            }
            _ => None,
        };
        if longer.is_none() {
            flat.push(level);
        }
    }
    flat.reverse();
    RegionPattern { start, block, levels: flat }
}
