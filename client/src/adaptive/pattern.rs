//! What a program reads next.

use std::ops::Range;

/// Gaps of at most this many bytes are read through: one request costs more.
pub const SIEVE: u64 = 64 << 10;

/// How often a step must repeat before it is trusted.
const REPEATS_MIN: u32 = 2;

/// Reads in a row that make a sequential reader, if it did not begin at the start of the file.
const READS_MIN: u32 = 2;

/// Follows the reads of one opening of a file: runs of bytes, and the steps between runs.
#[derive(Clone, Debug, Default)]
pub struct AccessPattern {
    /// The run that is being read.
    run: Range<u64>,
    reads: u32,
    /// From the start of the last run to that of this one, and how long the last one was.
    step: Option<(i64, u64)>,
    /// How often that was so before.
    repeats: u32,
}

impl AccessPattern {
    /// The program reads `range`. True if that continues what it did before.
    pub fn note(&mut self, range: &Range<u64>) -> bool {
        if self.reads > 0 && self.continues(range) {
            self.run.end = self.run.end.max(range.end);
            self.reads += 1;
            return true;
        }
        let is_first = self.reads == 0;
        let length = self.run.end - self.run.start;
        let step = range.start.cast_signed().wrapping_sub(self.run.start.cast_signed());
        // To read the same again is no step.
        let is_repeated = !is_first && step != 0 && self.step == Some((step, length));
        self.repeats = if is_repeated { self.repeats + 1 } else { 0 };
        self.step = (!is_first).then_some((step, length));
        self.run = range.clone();
        self.reads = 1;
        is_repeated || is_first
    }

    fn continues(&self, range: &Range<u64>) -> bool {
        let is_near = range.start >= self.run.start
            && range.start
                <= self.run.end.saturating_add(if self.is_regular() { 0 } else { SIEVE });
        let is_whole = self
            .stride()
            .is_none_or(|(step, _)| range.start < self.run.start.saturating_add_signed(step));
        is_near && is_whole
    }

    fn is_regular(&self) -> bool {
        self.repeats >= REPEATS_MIN - 1
    }

    /// Step and length of the runs, if they are regular and this one is not longer.
    fn stride(&self) -> Option<(i64, u64)> {
        let (step, length) = self.step.filter(|_| self.is_regular())?;
        (self.run.end - self.run.start <= length).then_some((step, length))
    }

    /// What it will read after what it has read, as far as that can be told.
    pub fn predict(&self) -> Prediction {
        if let Some((step, length)) = self.stride() {
            let this = self.run.end..self.run.start.saturating_add(length);
            let next = self.run.start.checked_add_signed(step);
            return Prediction { this, step, next, length };
        }
        let is_sequential = self.reads >= READS_MIN || (self.reads == 1 && self.run.start == 0);
        let end = if is_sequential { u64::MAX } else { self.run.end };
        Prediction { this: self.run.end..end, step: 0, next: None, length: 0 }
    }
}

/// Ranges to come, in order.
#[derive(Clone, Debug)]
pub struct Prediction {
    this: Range<u64>,
    step: i64,
    next: Option<u64>,
    length: u64,
}

impl Iterator for Prediction {
    type Item = Range<u64>;

    fn next(&mut self) -> Option<Range<u64>> {
        if !self.this.is_empty() {
            return Some(std::mem::take(&mut self.this));
        }
        let start = self.next?;
        self.next = start.checked_add_signed(self.step);
        Some(start..start.saturating_add(self.length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(reads: impl IntoIterator<Item = Range<u64>>) -> AccessPattern {
        let mut pattern = AccessPattern::default();
        for read in reads {
            pattern.note(&read);
        }
        pattern
    }

    #[test]
    fn the_start_of_a_file_and_a_second_read_in_a_row_are_sequential() {
        assert_eq!(after(Some(0..10)).predict().next(), Some(10..u64::MAX));
        assert_eq!(after(Some(500..510)).predict().next(), None);
        assert_eq!(after([500..510, 510..520]).predict().next(), Some(520..u64::MAX));
    }

    #[test]
    fn a_step_that_repeats_is_followed_forwards_and_backwards() {
        const K: u64 = 1 << 20;
        let reads: Vec<_> = (0..4).map(|i| i * 9 * K..i * 9 * K + 3 * K).collect();
        let next: Vec<_> = after(reads).predict().take(2).collect();
        assert_eq!(next, [36 * K..39 * K, 45 * K..48 * K]);
        let reads: Vec<_> = (0..4).map(|i| (50 - i * 9) * K..(51 - i * 9) * K).collect();
        let next: Vec<_> = after(reads).predict().take(9).collect();
        assert_eq!(next, [14 * K..15 * K, 5 * K..6 * K]);
    }

    #[test]
    fn runs_of_several_reads_are_one_each() {
        const K: u64 = 1 << 20;
        let mut reads = Vec::new();
        for i in 0..4 {
            reads.extend((0..3).map(|j| (i * 9 + j) * K..(i * 9 + j + 1) * K));
        }
        reads.pop();
        let next: Vec<_> = after(reads).predict().take(2).collect();
        assert_eq!(next, [29 * K..30 * K, 36 * K..39 * K]);
    }

    #[test]
    fn a_run_that_goes_on_is_sequential_again() {
        const K: u64 = 1 << 20;
        let mut reads: Vec<_> = (0..4).map(|i| i * 9 * K..i * 9 * K + K).collect();
        reads.push(28 * K..30 * K);
        assert_eq!(after(reads).predict().next(), Some(30 * K..u64::MAX));
    }

    #[test]
    fn reading_the_same_again_is_no_step() {
        let mut pattern = after((0..5).map(|_| 1 << 30..(1 << 30) + 4096));
        assert!(pattern.predict().take(3).count() < 3);
        assert!(!pattern.note(&(1 << 20..2 << 20)));
    }

    #[test]
    fn small_gaps_are_read_through() {
        let reads: Vec<_> = (0..9).map(|i| i * 8192..i * 8192 + 4096).collect();
        assert_eq!(after(reads).predict().next(), Some(8 * 8192 + 4096..u64::MAX));
    }

    #[test]
    fn reads_without_order_predict_nothing() {
        const K: u64 = 1 << 20;
        let reads = [5 * K..6 * K, 90 * K..91 * K, 40 * K..41 * K, 7 * K..8 * K];
        assert_eq!(after(reads).predict().next(), None);
    }
}
