//! Which line should go next: hits of S3-FIFO (what the cache does) and of the least recently used
//! order on traces of stripes, at one node whose budget is a given share of what is used. Counts,
//! no times.
//!
//! `cargo xtask bench replacement` prints the table. The traces are drawn from a fixed seed.

#![allow(clippy::cast_precision_loss, clippy::cast_sign_loss, reason = "counts of a benchmark")]

use std::collections::BTreeMap;

use benches::sized;
use cache::replacement::Replacement;
use runtime::seed::Rng;

/// Lines of the cache of one node.
const LINES: usize = 128;
const STEPS: u64 = 200_000;
const STEPS_IN_TEST: u64 = 20_000;
/// Draws the traces.
const SEED: u64 = 0x0010_57AB;

/// A cache that only knows what it holds.
trait CachePolicy {
    /// Was `key` there? It is then.
    fn use_of(&mut self, key: u64) -> bool;
}

#[derive(Default)]
struct S3Fifo {
    order: Replacement,
    places: BTreeMap<u64, usize>,
}

impl CachePolicy for S3Fifo {
    fn use_of(&mut self, key: u64) -> bool {
        if let Some(&place) = self.places.get(&key) {
            self.order.hit(place);
            return true;
        }
        if self.places.len() == LINES {
            let (gone, place) = self.order.next(|_| true).expect("all may go");
            self.order.evict(place);
            self.places.remove(&gone);
        }
        self.places.insert(key, self.order.insert(key));
        false
    }
}

/// The least recently used goes.
#[derive(Default)]
struct Lru {
    used: BTreeMap<u64, u64>,
    by_use: BTreeMap<u64, u64>,
    clock: u64,
}

impl CachePolicy for Lru {
    fn use_of(&mut self, key: u64) -> bool {
        self.clock += 1;
        let before = self.used.insert(key, self.clock);
        if let Some(before) = before {
            self.by_use.remove(&before);
        }
        self.by_use.insert(self.clock, key);
        if self.used.len() > LINES {
            let (_, gone) = self.by_use.pop_first().expect("it is full");
            self.used.remove(&gone);
        }
        before.is_some()
    }
}

/// A trace: which stripe is used at each step.
struct AccessTrace {
    name: &'static str,
    next: fn(u64, &mut Rng) -> u64,
}

const SCAN: u64 = 1 << 32;
const LINES_U64: u64 = LINES as u64;

const TRACES: [AccessTrace; 7] = [
    AccessTrace {
        name: "hot set of 0.8, and a scan",
        next: |step, rng| {
            if step.is_multiple_of(2) { SCAN + step } else { rng.below(LINES_U64 * 8 / 10) }
        },
    },
    AccessTrace {
        // 16 reads of 4 KiB in each line of 64 KiB.
        name: "the same, the scan in 4 KiB",
        next: |step, rng| {
            let in_scan = step / 64 % 2 == 0;
            if in_scan { SCAN + step / 16 } else { rng.below(LINES_U64 * 8 / 10) }
        },
    },
    AccessTrace {
        name: "a scan, again and again, of 1.5",
        next: |step, _| step % (LINES_U64 * 3 / 2),
    },
    AccessTrace { name: "stride of 7 over 1.5", next: |step, _| step * 7 % (LINES_U64 * 3 / 2) },
    AccessTrace {
        name: "zipf over 10",
        next: |_, rng| {
            // The k-th most frequent of n about as often as 1/k: n to the power of a uniform
            // number.
            let uniform = rng.below(1 << 20) as f64 / f64::from(1 << 20);
            (10.0 * LINES as f64).powf(uniform) as u64
        },
    },
    AccessTrace {
        // Each round writes a new checkpoint of 1.0, reads what all share (0.25) twice.
        name: "checkpoints of 1, and 0.25 shared",
        next: |step, _| {
            let (round, at) = (step / (LINES_U64 * 3 / 2), step % (LINES_U64 * 3 / 2));
            if at < LINES_U64 {
                SCAN + round * LINES_U64 + at
            } else {
                (at - LINES_U64) % (LINES_U64 / 4)
            }
        },
    },
    AccessTrace {
        // The working set changes as a whole now and then.
        name: "a set of 0.9 that moves",
        next: |step, rng| step / 20_000 * SCAN + rng.below(LINES_U64 * 9 / 10),
    },
];

/// Hits of `held` on a trace, in percent.
fn hits(mut held: impl CachePolicy, trace: &AccessTrace, steps: u64) -> f64 {
    let mut rng = Rng::new(SEED);
    let hits = (0..steps).filter(|&step| held.use_of((trace.next)(step, &mut rng))).count();
    100.0 * hits as f64 / steps as f64
}

fn main() {
    let steps = sized(STEPS, STEPS_IN_TEST);
    println!("hits in percent; sizes in units of the cache ({LINES} lines); {steps} steps");
    println!("{:<36} {:>9} {:>9}", "trace", "s3-fifo", "lru");
    for trace in TRACES {
        let (s3_fifo, lru) =
            (hits(S3Fifo::default(), &trace, steps), hits(Lru::default(), &trace, steps));
        println!("{:<36} {s3_fifo:>9.1} {lru:>9.1}", trace.name);
        assert!(s3_fifo >= lru - 3.0, "{}: the choice is wrong", trace.name);
    }
}
