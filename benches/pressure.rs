//! A checkpoint burst twice as large as the cache: how long its longest request waits, and how much
//! memory the process takes for it.
//!
//! `cargo bench -p benches --bench pressure` prints a line for each round, then the medians.
//! Writers are ordinary threads that do transfers of 1 MiB through the client; each request is
//! timed. Memory is the resident set of the process, looked at every two milliseconds, less what it
//! was before the burst; the budget is that of the machine's pool: the cache and its transfers.
//! Under `cargo test` it runs small, and only memory is judged: requests of a loaded machine wait
//! for its processors.

#![allow(clippy::cast_precision_loss, reason = "counts of a benchmark")]
#![allow(clippy::disallowed_methods, reason = "a benchmark measures the real clock, with threads")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use benches::{BenchVolumeShape, Scratch, in_earnest, median, sized};
use bytes::Bytes;
use client::blocking::{BlockingFile, Volume};

/// As the program `mdfs` has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const WRITERS: usize = 8;
const TRANSFER: usize = 1 << 20;
const ROUNDS: usize = 7;
const CACHE_MIB: usize = 256;
const CACHE_MIB_IN_TEST: usize = 32;
/// Memory that is not of the pool: metadata of what was written, stacks, the allocator's own.
const BESIDE_POOL_BYTES: usize = 64 << 20;
/// Between two looks at the memory.
const LOOK: Duration = Duration::from_millis(2);
/// The longest request against the median.
const LONGEST_MAX: f64 = 5.0;

/// What one burst was like.
struct BurstResult {
    median: Duration,
    p99: Duration,
    longest: Duration,
    /// Of the process, above what it was before.
    resident_bytes: usize,
    pool_bytes: usize,
    rate: f64,
}

/// The resident set of this process.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.unwrap_or(0) * rustix::param::page_size()
}

fn name(writer: usize) -> String {
    format!("/burst-{writer}")
}

fn write(file: &BlockingFile, transfers: usize, data: &Bytes) -> Vec<Duration> {
    let one = |i: usize| {
        let start = Instant::now();
        file.write_at((i * TRANSFER) as u64, data.clone()).expect("there is room");
        start.elapsed()
    };
    (0..transfers).map(one).collect()
}

/// Writes twice the cache, and removes it again. The process had `before` bytes when it had cached
/// nothing.
fn burst(scratch: &Scratch, cache_bytes: usize, before: usize) -> BurstResult {
    let volume: Volume = scratch.volume();
    let pool = scratch.running().pool().clone();
    let data = Bytes::from(vec![7; TRANSFER]);
    let transfers = 2 * cache_bytes / TRANSFER / WRITERS;
    let files: Vec<BlockingFile> =
        (0..WRITERS).map(|writer| volume.create(name(writer)).expect("there is room")).collect();
    let (over, resident, used) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let start = Instant::now();
    let mut times: Vec<Duration> = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Relaxed) {
                resident.fetch_max(resident_bytes(), Relaxed);
                used.fetch_max(pool.used_bytes(), Relaxed);
                std::thread::sleep(LOOK);
            }
        });
        let writers: Vec<_> =
            files.iter().map(|file| scope.spawn(|| write(file, transfers, &data))).collect();
        let times = writers.into_iter().flat_map(|writer| writer.join().expect("it wrote all"));
        let times = times.collect();
        over.store(true, Relaxed);
        times
    });
    let took = start.elapsed();
    for file in &files {
        file.sync().expect("the disks are there");
    }
    drop(files);
    (0..WRITERS).for_each(|writer| volume.remove_file(name(writer)).expect("it was made"));
    volume.sync().expect("its blocks are free again");
    times.sort_unstable();
    BurstResult {
        median: times[times.len() / 2],
        p99: times[times.len() * 99 / 100],
        longest: times[times.len() - 1],
        resident_bytes: resident.into_inner().saturating_sub(before),
        pool_bytes: used.into_inner(),
        rate: (WRITERS * transfers * TRANSFER) as f64 / 1e6 / took.as_secs_f64(),
    }
}

impl BurstResult {
    fn ratio(&self) -> f64 {
        self.longest.as_secs_f64() / self.median.as_secs_f64()
    }

    fn print(&self) {
        println!(
            "{:>9.0} {:>9.2} {:>9.2} {:>9.2} {:>9.1} {:>13} {:>13}",
            self.rate,
            self.median.as_secs_f64() * 1e3,
            self.p99.as_secs_f64() * 1e3,
            self.longest.as_secs_f64() * 1e3,
            self.ratio(),
            self.resident_bytes >> 20,
            self.pool_bytes >> 20,
        );
    }
}

fn main() {
    let named = std::env::args().skip(1).filter(|argument| !argument.starts_with('-'));
    let named: Vec<String> = named.collect();
    if in_earnest() && !named.is_empty() && !named.iter().any(|name| name == "pressure") {
        return;
    }
    let cache_bytes = sized(CACHE_MIB, CACHE_MIB_IN_TEST) << 20;
    let disk_bytes = (2 * cache_bytes as u64 + (256 << 20)).next_multiple_of(1 << 20);
    let shape = BenchVolumeShape { disk_bytes, cache_bytes, threads: 0, prefault: false };
    let scratch = Scratch::new(env!("CARGO_TARGET_TMPDIR"), shape);
    let before = resident_bytes();
    let budget = scratch.running().pool().limit_bytes();
    println!(
        "{} MiB in all, cache {} MiB, budget {} MiB",
        (2 * cache_bytes) >> 20,
        cache_bytes >> 20,
        budget >> 20
    );
    println!(
        "{:>9} {:>9} {:>9} {:>9} {:>9} {:>13} {:>13}",
        "MB/s", "median ms", "p99 ms", "max ms", "max/med", "resident MiB", "pool MiB"
    );
    let rounds: Vec<BurstResult> = (0..sized(ROUNDS, 1))
        .map(|_| burst(&scratch, cache_bytes, before))
        .inspect(BurstResult::print)
        .collect();
    let ratio = median(rounds.iter().map(BurstResult::ratio));
    let holds = if ratio <= LONGEST_MAX { "holds" } else { "does not hold" };
    println!("longest / median: {ratio:.1}, at most {LONGEST_MAX:.0} wanted: {holds}");
    for round in &rounds {
        assert!(round.pool_bytes <= budget, "the pool kept its limit");
        let limit = budget + BESIDE_POOL_BYTES;
        assert!(round.resident_bytes <= limit, "{} bytes resident", round.resident_bytes);
    }
}
