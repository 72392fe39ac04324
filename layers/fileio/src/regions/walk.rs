//! Going through the regions of a list, one at a time.

use std::ops::Range;

use super::{LEVELS_MAX, Regions};

/// Bytes that lie together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The first byte, in the file or in memory.
    pub offset: u64,
    /// The same byte among the packed ones.
    pub position: u64,
    /// How many bytes, at least one.
    pub length: u64,
}

/// The regions of a window of a list, in order. Made and moved in time that depends on the depth of
/// a pattern and the logarithm of their number.
#[derive(Clone, Debug)]
pub struct RegionWalk<'a> {
    regions: &'a Regions,
    /// The pattern it is in; their number at the end.
    pattern: usize,
    /// Which turn each of its loops is in.
    turns: [u64; LEVELS_MAX],
    /// The first byte of the present block.
    block_start: u64,
    /// Bytes of the block that are behind.
    into: u64,
    position: u64,
    end: u64,
}

impl<'a> RegionWalk<'a> {
    pub(super) fn new(regions: &'a Regions, window: Range<u64>) -> Self {
        let end = window.end.min(regions.bytes());
        let turns = [0; LEVELS_MAX];
        let mut walk =
            Self { regions, pattern: 0, turns, block_start: 0, into: 0, position: 0, end };
        walk.skip_to(window.start);
        walk
    }

    /// Goes on at a packed byte, before or behind; at the end of the window if it is not before
    /// that.
    pub fn skip_to(&mut self, position: u64) {
        self.position = position.min(self.end);
        if self.position >= self.regions.bytes() {
            self.pattern = self.regions.patterns.len();
            return;
        }
        let (index, before) = self.regions.pattern_at(self.position);
        let pattern = &self.regions.patterns[index];
        let behind = self.position - before.bytes;
        let mut block = behind / pattern.block;
        self.pattern = index;
        self.into = behind % pattern.block;
        self.block_start = pattern.start;
        for (turn, level) in self.turns.iter_mut().zip(&pattern.levels).rev() {
            *turn = block % level.count;
            block /= level.count;
            self.block_start += *turn * level.stride;
        }
    }

    /// The next block. Beyond the last turn of a loop offsets may wrap round: they are taken back.
    fn advance(&mut self) {
        let Some(pattern) = self.regions.patterns.get(self.pattern) else { return };
        self.into = 0;
        for (turn, level) in self.turns.iter_mut().zip(&pattern.levels).rev() {
            *turn += 1;
            self.block_start = self.block_start.wrapping_add(level.stride);
            if *turn < level.count {
                return;
            }
            *turn = 0;
            self.block_start =
                self.block_start.wrapping_sub(level.stride.wrapping_mul(level.count));
        }
        self.pattern += 1;
        if let Some(next) = self.regions.patterns.get(self.pattern) {
            self.block_start = next.start;
            self.turns = [0; LEVELS_MAX];
        }
    }
}

impl Iterator for RegionWalk<'_> {
    type Item = Region;

    fn next(&mut self) -> Option<Region> {
        if self.position >= self.end {
            return None;
        }
        let block = self.regions.patterns.get(self.pattern)?.block;
        let length = (block - self.into).min(self.end - self.position);
        let offset = self.block_start + self.into;
        let region = Region { offset, position: self.position, length };
        self.position += length;
        self.into += length;
        if self.into == block {
            self.advance();
        }
        Some(region)
    }
}
