//! How long requests take: a histogram of fixed size, exact to an eighth.

use std::time::Duration;

use crate::protocol::Latency;

/// Buckets per doubling, as a power of two.
const FINENESS: u32 = 3;
const PER_DOUBLING: usize = 1 << FINENESS;
const BUCKETS: usize = PER_DOUBLING * (64 - FINENESS as usize + 1);

/// Durations, counted by size.
pub(super) struct Histogram {
    counts: Box<[u64; BUCKETS]>,
    count: u64,
    max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: Box::new([0; BUCKETS]), count: 0, max_ns: 0 }
    }
}

impl Histogram {
    pub(super) fn add(&mut self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(ns)] += 1;
        self.count += 1;
        self.max_ns = self.max_ns.max(ns);
    }

    pub(super) fn summary(&self) -> Latency {
        Latency {
            count: self.count,
            p50_ns: self.percentile(50),
            p99_ns: self.percentile(99),
            max_ns: self.max_ns,
        }
    }

    /// What `percent` of the durations did not exceed, rounded up to the end of its bucket.
    fn percentile(&self, percent: u64) -> u64 {
        let wanted = (self.count * percent).div_ceil(100).max(1);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return largest_in(bucket).min(self.max_ns);
            }
        }
        self.max_ns
    }
}

fn bucket(ns: u64) -> usize {
    if ns < PER_DOUBLING as u64 {
        return ns as usize;
    }
    let doubling = ns.ilog2() - FINENESS;
    (doubling as usize + 1) * PER_DOUBLING + (ns >> doubling) as usize % PER_DOUBLING
}

fn largest_in(bucket: usize) -> u64 {
    if bucket < PER_DOUBLING {
        return bucket as u64;
    }
    let doubling = bucket / PER_DOUBLING - 1;
    let first = ((PER_DOUBLING + bucket % PER_DOUBLING) as u64) << doubling;
    first + ((1 << doubling) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_is_in_a_bucket_that_is_at_most_an_eighth_too_large() {
        let powers = (0..64).map(|power| 1_u64 << power);
        for ns in powers.flat_map(|ns| [ns - 1, ns, ns + ns / 3]).chain([u64::MAX]) {
            let largest = largest_in(bucket(ns));
            assert!(ns <= largest && largest - ns <= ns / 8, "{ns} {largest}");
            assert!(bucket(largest) == bucket(ns));
            assert!(largest == u64::MAX || bucket(largest + 1) == bucket(ns) + 1);
        }
    }

    #[test]
    fn percentiles_are_those_of_the_durations() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.summary(), Latency { count: 0, p50_ns: 0, p99_ns: 0, max_ns: 0 });
        for micros in 1..=1000 {
            histogram.add(Duration::from_micros(micros));
        }
        let Latency { count, p50_ns, p99_ns, max_ns } = histogram.summary();
        assert_eq!((count, max_ns), (1000, 1_000_000));
        assert!((500_000..=562_500).contains(&p50_ns), "{p50_ns}");
        assert!((990_000..=1_000_000).contains(&p99_ns), "{p99_ns}");
    }
}
