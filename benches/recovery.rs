//! How long a volume full of files takes to come back after a crash, and whether creating slows
//! down as directories grow.
//!
//! `cargo xtask bench recovery` fills a volume with a million empty files, in one directory and in
//! many, kills it, and mounts and checks it with cold pages. The issue asks for a mount in under 5
//! s, a last tenth at 0.8 of the first or better, and memory within the cache.

#![allow(
    clippy::disallowed_methods,
    reason = "a benchmark measures the host's time, memory and disks"
)]

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use benches::{BenchVolumeShape, Scratch, sized};
use client::FileSystem;
use futures::executor::block_on;
use futures::{StreamExt as _, stream};
use runtime::Spawn;
use rustix::fs::{Advice, fadvise};
use volume::{CheckOptions, CheckResult};

/// As the program `mdfs` has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Files of each volume; `--files N` says otherwise.
const FILES: u64 = 1_000_000;
const FILES_IN_TEST: u64 = 500;
/// Creates under way at once.
const AT_ONCE: usize = 256;
/// The parts of the fill that are compared.
const PARTS: u64 = 10;
/// Directories of the second volume.
const DIRECTORIES: u64 = 1000;
const DISK_BYTES: u64 = 4 << 30;
/// Stripes in memory, in MiB; metadata may take half as much again. `--cache N` says otherwise.
const CACHE_MIB: u64 = 128;

/// Bytes of memory: resident now, and the most since [`RecoveryMemory::reset`].
#[derive(Clone, Copy)]
struct RecoveryMemory {
    now: u64,
    most: u64,
}

impl RecoveryMemory {
    fn read() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
            number.unwrap_or(0) << 10
        };
        Self { now: field("VmRSS:"), most: field("VmHWM:") }
    }

    /// From now on the most begins anew.
    fn reset() {
        let _ = std::fs::write("/proc/self/clear_refs", "5");
    }

    fn mib(bytes: u64) -> u64 {
        bytes >> 20
    }
}

/// Makes the files numbered by `numbers`, in `directories` directories.
async fn create<S: Spawn>(system: &FileSystem<S>, numbers: std::ops::Range<u64>, directories: u64) {
    let made = numbers.map(|number| async move {
        let path = format!("/d{}/file-{number:08}", number % directories);
        system.create(path).await.expect("there is room");
    });
    stream::iter(made).buffer_unordered(AT_ONCE).collect::<()>().await;
}

/// Forgets the host's copy of the disks.
fn cool(scratch: &Scratch) {
    for path in scratch.disk_files() {
        let file = File::open(path).expect("a disk of the volume");
        file.sync_all().expect("the host writes it");
        fadvise(&file, 0, None, Advice::DontNeed).expect("the host takes advice");
    }
}

/// Processor time that this process has had, all threads together.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Behind the name in brackets: user and system time are the 12th and 13th field, in ticks of 10
    // ms.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(10 * ticks)
}

/// Measures one step after the other.
struct RecoveryStep {
    began: Instant,
    processor: Duration,
}

impl RecoveryStep {
    fn begin() -> Self {
        RecoveryMemory::reset();
        Self { began: Instant::now(), processor: processor_time() }
    }

    /// Prints a line; returns the processor time.
    fn end(self, what: &str) -> Duration {
        let (took, processor) =
            (self.began.elapsed(), processor_time().saturating_sub(self.processor));
        let RecoveryMemory { now, most } = RecoveryMemory::read();
        let (now, most) = (RecoveryMemory::mib(now), RecoveryMemory::mib(most));
        let (took, cores) = (took.as_secs_f64(), processor.as_secs_f64());
        println!(
            "{what:<40} {took:>8.3} s, {cores:>6.2} s of processors; {now:>5} MiB, {most:>5} at most"
        );
        processor
    }
}

fn measure(parent: &Path, cache_mib: u64, files: u64, directories: u64) {
    println!("{files} empty files in {directories} directories, {cache_mib} MiB of cache");
    let cache_bytes = (cache_mib << 20) as usize;
    let shape =
        BenchVolumeShape { disk_bytes: DISK_BYTES, cache_bytes, threads: 0, prefault: false };
    let step = RecoveryStep::begin();
    let mut scratch = Scratch::new(parent, shape);
    step.end("  format and first mount");
    let client_handle = scratch.volume();
    for number in 0..directories {
        client_handle.mkdir(format!("/d{number}")).expect("there is room");
    }
    let part = files / PARTS;
    let mut times = Vec::new();
    for number in 0..PARTS {
        let numbers = number * part..(number + 1) * part;
        let step = RecoveryStep::begin();
        block_on(create(client_handle.file_system(), numbers, directories));
        let wall = step.began.elapsed();
        let rate = u128::from(part) * 1_000_000 / wall.as_micros().max(1);
        let processor = step.end(&format!("  tenth {}: {rate} creates/s", number + 1));
        times.push((wall, processor));
    }
    let (first, last) = (times[0], times[times.len() - 1]);
    let ratio =
        |first: Duration, last: Duration| first.as_secs_f64() / last.as_secs_f64().max(1e-9);
    let (wall, processor) = (ratio(first.0, last.0), ratio(first.1, last.1));
    println!("  last tenth at {wall:.2} of the first; by processor time {processor:.2}");
    drop(client_handle);
    scratch.crash();
    cool(&scratch);
    let step = RecoveryStep::begin();
    scratch.open();
    step.end("  mount after the crash");
    let step = RecoveryStep::begin();
    scratch.volume().metadata("/d0").expect("directories are durable");
    step.end("  first look-up");
    scratch.crash();
    cool(&scratch);
    let options = CheckOptions {
        data: false,
        files: false,
        rate_bytes: 0,
        on_step: std::sync::Arc::new(|_| {}),
    };
    let step = RecoveryStep::begin();
    let CheckResult { summary, .. } = scratch.check(&options);
    step.end("  check of all metadata");
    let found = summary.inodes - summary.directories;
    println!("  {found} files are there, {} flaws", summary.flaws.count());
    for flaw in summary.flaws.listed() {
        println!("  {flaw}");
    }
}

/// The number behind an option.
fn option(name: &str) -> Option<u64> {
    std::env::args().skip_while(|argument| argument != name).nth(1)?.parse().ok()
}

fn main() {
    let files = option("--files").unwrap_or(sized(FILES, FILES_IN_TEST));
    let cache_mib = option("--cache").unwrap_or(CACHE_MIB);
    let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
    measure(parent, cache_mib, files, 1);
    measure(parent, cache_mib, files, sized(DIRECTORIES, 10));
}
