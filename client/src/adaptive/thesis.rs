//! The controller of Ohtsuji's thesis (section 4.5), for one transfer at a time.

use std::ops::Range;

use super::{LinkEstimate, TRANSFER_MIN};

/// Parts per million: a ratio of 1.
pub const WHOLE: u32 = 1_000_000;

/// Blocks of a bitmap, at most (section 4.6.3).
pub const BLOCKS_MAX: u64 = 4096;

/// The size of the first transfer (figure 4.9).
pub const FIRST_SIZE: u64 = 1 << 20;

/// Table 4.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// `LARGE_BUFSIZE`: above it one ratio decides.
    pub large: u64,
    /// `M_small`: ratios per decision above it.
    pub count_large: u32,
    /// `M_normal`: ratios per decision otherwise.
    pub count_normal: u32,
    /// `U_high`: above it the size grows; parts per million.
    pub high: u32,
    /// `U_low`: up to it the size shrinks; parts per million.
    pub low: u32,
    /// `B_max`.
    pub size_max: u64,
    /// No transfer is smaller. The thesis has no such limit.
    pub size_min: u64,
    /// The growth rate.
    pub growth: u64,
    /// `p`: decisions without effect after one that had to be undone.
    pub wait: u32,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            large: 128 << 20,
            count_large: 1,
            count_normal: 4,
            high: 950_000,
            low: 500_000,
            size_max: 512 << 20,
            size_min: TRANSFER_MIN,
            growth: 2,
            wait: 16,
        }
    }
}

/// Chooses sizes by how much of what was transferred is used.
#[derive(Clone, Debug)]
pub struct Controller {
    parameters: Parameters,
    size: u64,
    /// Ratios since the last decision: their sum and count.
    sum: u64,
    count: u32,
    last: u32,
    /// The last decision was to grow.
    has_grown: bool,
    wait: u32,
}

impl Controller {
    /// Starts with `size`.
    pub fn new(parameters: Parameters, size: u64) -> Self {
        let size = size.clamp(parameters.size_min, parameters.size_max);
        Self { parameters, size, sum: 0, count: 0, last: 0, has_grown: false, wait: 0 }
    }

    /// Bytes of the next transfer.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Sets `B_max`; a larger size shrinks to it.
    pub fn limit(&mut self, size_max: u64) {
        self.parameters.size_max = size_max.max(self.parameters.size_min);
        self.size = self.size.min(self.parameters.size_max);
    }

    /// A transfer is over, of which the program has used `ratio` parts per million.
    pub fn note(&mut self, ratio: u32) {
        let Parameters { large, count_large, count_normal, .. } = self.parameters;
        self.sum += u64::from(ratio.min(WHOLE));
        self.count += 1;
        if self.count >= if self.size > large { count_large } else { count_normal } {
            let average = (self.sum / u64::from(self.count)) as u32;
            (self.sum, self.count) = (0, 0);
            let last = std::mem::replace(&mut self.last, average);
            self.decide(average, last);
        }
    }

    fn decide(&mut self, now: u32, last: u32) {
        let Parameters { high, low, size_max, size_min, growth, wait, .. } = self.parameters;
        if std::mem::take(&mut self.has_grown) && now < last {
            self.wait = wait;
            self.size = (self.size / growth).max(size_min);
        }
        if self.wait > 0 {
            self.wait -= 1;
        } else if now > high {
            if self.size < size_max {
                self.size = (self.size * growth).min(size_max);
                self.has_grown = true;
            }
        } else if now <= low {
            let used = u128::from(self.size) * u128::from(now) / u128::from(WHOLE);
            self.size = (used as u64).max(size_min);
        }
    }
}

/// One transfer, and which of its blocks the program has used.
#[derive(Clone, Debug)]
pub struct TransferBuffer {
    range: Range<u64>,
    /// A power of two.
    blocks: u64,
    used: Vec<u64>,
}

impl TransferBuffer {
    /// Of `size` bytes from `offset` on, in blocks of at least what the link carries during its
    /// delay: gaps within a block count as used, since to leave them out saves nothing ("data
    /// sieving").
    pub fn new(offset: u64, size: u64, link: &LinkEstimate) -> Self {
        let blocks = size.checked_div(link.bandwidth_delay()).unwrap_or(BLOCKS_MAX);
        let blocks = 1u64 << blocks.clamp(1, BLOCKS_MAX).ilog2();
        let used = vec![0; blocks.div_ceil(64) as usize];
        Self { range: offset..offset.saturating_add(size), blocks, used }
    }

    /// What was transferred.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// The program reads `range`; the part of it that is here counts.
    pub fn use_bytes(&mut self, range: &Range<u64>) {
        let (start, end) = (range.start.max(self.range.start), range.end.min(self.range.end));
        if start >= end {
            return;
        }
        for block in self.block(start)..=self.block(end - 1) {
            self.used[(block / 64) as usize] |= 1 << (block % 64);
        }
    }

    fn block(&self, offset: u64) -> u64 {
        let size = self.range.end - self.range.start;
        let at = u128::from(offset - self.range.start) * u128::from(self.blocks);
        (at / u128::from(size)) as u64
    }

    /// How much of it is used, in parts per million (4.1).
    pub fn ratio(&self) -> u32 {
        let used: u64 = self.used.iter().map(|word| u64::from(word.count_ones())).sum();
        (used * u64::from(WHOLE) / self.blocks) as u32
    }
}

/// A reader that transfers synchronously, one buffer at a time.
#[derive(Clone, Debug)]
pub struct Reader {
    controller: Controller,
    buffer: Option<TransferBuffer>,
}

impl Reader {
    /// With the controller of the thesis and buffers of at most `size_max` bytes.
    pub fn new(size_max: u64) -> Self {
        let parameters = Parameters::default();
        let parameters = Parameters { size_max: size_max.min(parameters.size_max), ..parameters };
        Self { controller: Controller::new(parameters, FIRST_SIZE), buffer: None }
    }

    /// The program reads `range`. Returns how much of it, from its start, is in one buffer, and the
    /// range of that buffer if it has to be transferred first.
    pub fn read(
        &mut self,
        range: &Range<u64>,
        link: &LinkEstimate,
    ) -> (Range<u64>, Option<Range<u64>>) {
        let has = self.buffer.as_ref().is_some_and(|it| it.range.contains(&range.start));
        let fetched = (!has).then(|| self.next_buffer(range.start, link));
        let Some(buffer) = &mut self.buffer else { return (range.clone(), fetched) };
        let part = range.start..range.end.min(buffer.range.end);
        buffer.use_bytes(&part);
        (part, fetched)
    }

    fn next_buffer(&mut self, offset: u64, link: &LinkEstimate) -> Range<u64> {
        if let Some(last) = self.buffer.take() {
            self.controller.note(last.ratio());
        }
        self.buffer.insert(TransferBuffer::new(offset, self.controller.size(), link)).range()
    }

    /// Forgets the buffer, not what was learnt.
    pub fn discard(&mut self) {
        self.buffer = None;
    }

    /// Bytes of the next buffer.
    pub fn size(&self) -> u64 {
        self.controller.size()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const DELAYS_MS: [u64; 6] = [0, 10, 25, 50, 75, 100];

    /// Reads `read` bytes and skips `skip`, up to the end of the thesis's 6 GB. Returns the sizes
    /// of all buffers.
    fn sizes(read: u64, skip: u64, delay_ms: u64) -> Vec<u64> {
        // A gigabit per second.
        let link = LinkEstimate::new(Duration::from_millis(delay_ms), 125_000_000);
        let mut reader = Reader::new(u64::MAX);
        let mut sizes = Vec::new();
        for start in (0..6 << 30).step_by((read + skip) as usize) {
            let mut rest = start..start + read;
            while !rest.is_empty() {
                let (part, fetched) = reader.read(&rest, &link);
                sizes.extend(fetched.map(|range| range.end - range.start));
                rest.start = part.end;
            }
        }
        sizes
    }

    /// The size of most of the later transfers.
    fn settled(sizes: &[u64]) -> u64 {
        let mut counts = BTreeMap::<u64, u32>::new();
        for size in &sizes[sizes.len() * 3 / 4..] {
            *counts.entry(*size).or_default() += 1;
        }
        counts.into_iter().max_by_key(|(_, count)| *count).unwrap().0
    }

    fn check(read: u64, skip: u64, expected: [u64; 6]) {
        for (delay_ms, expected) in DELAYS_MS.into_iter().zip(expected) {
            let size = settled(&sizes(read, skip, delay_ms));
            let is_near = size * 2 >= expected && size <= expected * 2;
            assert!(is_near, "{size} instead of {expected} at {delay_ms} ms");
        }
    }

    #[test]
    fn sequential_reads_get_the_sizes_of_table_4_2() {
        check(MIB, 0, [512 * MIB; 6]);
    }

    #[test]
    fn reads_of_512_kb_get_the_sizes_of_table_4_3() {
        let large = 512 * MIB;
        check(512 * KIB, 3584 * KIB, [512 * KIB, 4 * MIB, large, large, large, large]);
    }

    #[test]
    fn reads_of_3_mb_get_the_sizes_of_table_4_4() {
        let large = 512 * MIB;
        check(3 * MIB, 6 * MIB, [MIB, 4 * MIB, 4 * MIB, large, large, large]);
    }

    #[test]
    fn a_change_of_the_pattern_is_followed_as_in_figure_4_8() {
        let link = LinkEstimate::new(Duration::from_millis(10), 125_000_000);
        let mut reader = Reader::new(u64::MAX);
        for start in (0..1 << 30).step_by(MIB as usize) {
            reader.read(&(start..start + MIB), &link);
        }
        assert!(reader.size() >= 128 * MIB, "{}", reader.size());
        for step in 0..4096 {
            let start = (1 << 30) + step * 4 * MIB;
            reader.read(&(start..start + 512 * KIB), &link);
        }
        assert!((512 * KIB..=8 * MIB).contains(&reader.size()), "{}", reader.size());
    }

    #[test]
    fn a_growth_that_hurt_is_undone_and_the_size_stays() {
        let parameters = Parameters { count_normal: 1, ..Parameters::default() };
        let mut controller = Controller::new(parameters, MIB);
        controller.note(WHOLE);
        assert_eq!(controller.size(), 2 * MIB);
        controller.note(600_000);
        for _ in 1..parameters.wait {
            assert_eq!(controller.size(), MIB);
            controller.note(WHOLE);
        }
        controller.note(WHOLE);
        assert_eq!(controller.size(), 2 * MIB);
    }

    #[test]
    fn gaps_of_less_than_the_bandwidth_delay_product_count_as_used() {
        // 16 blocks of 1 MiB.
        let link = LinkEstimate::new(Duration::from_millis(10), 104_857_600);
        let mut buffer = TransferBuffer::new(0, 16 * MIB, &link);
        for start in (0..16 * MIB).step_by(MIB as usize) {
            buffer.use_bytes(&(start + 5..start + 6));
        }
        assert_eq!(buffer.ratio(), WHOLE);
        let mut buffer = TransferBuffer::new(0, 16 * MIB, &LinkEstimate::default());
        buffer.use_bytes(&(0..4 * MIB));
        assert_eq!(buffer.ratio(), WHOLE / 4);
    }

    #[test]
    fn no_size_passes_the_limits() {
        let mut reader = Reader::new(8 * MIB);
        let link = LinkEstimate::default();
        for start in (0..1 << 30).step_by(MIB as usize) {
            reader.read(&(start..start + MIB), &link);
        }
        assert_eq!(reader.size(), 8 * MIB);
        for start in (0..1 << 40).step_by(1 << 30) {
            reader.read(&(start..start + 1), &link);
        }
        assert_eq!(reader.size(), TRANSFER_MIN);
    }
}
