//! List I/O against one call for each region and against sieving by the client, on the patterns of
//! the seeds (Wu section 3.4): mpi-tile-io, block-column, BTIO class A. Four ranks, each a thread
//! of this process; the volume's disks are files in memory.
//!
//! `cargo bench -p benches --bench lists` prints the table, beside what the seeds report. Each
//! round does all ways in turn; times are medians of the rounds, ratios medians of the rounds'
//! ratios. `lists --bench tile` does the rows with `tile` in their names.
//!
//! One call: each rank asks for one region after the other. Sieving: each rank reads the span of
//! its regions in pieces of 4 MiB; to write, it reads the piece, puts its regions in, and writes it
//! back. For that it would need a lock, which costs nothing here: ranks that write take turns.
//!
//! | file | holds |
//! | --- | --- |
//! | `patterns.rs` | which regions each rank has |
//! | `ways.rs` | the three ways |
//! | `report.rs` | the table |

mod patterns;
mod report;
mod ways;

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use benches::{BenchVolumeShape, Scratch, in_earnest, sized};
use bytes::Bytes;
use client::{Credentials, FileSystem, OpenOptions, Regions};
use futures::executor::block_on;

use crate::patterns::{ListPattern, RANKS};
use crate::report::ListBenchRow;
use crate::ways::{CountedResult, ListMethod};

const ROUNDS: usize = 5;
const ROUNDS_IN_TEST: usize = 1;

/// What a byte of any file is.
fn byte_at(offset: u64) -> u8 {
    (offset ^ (offset >> 8) ^ (offset >> 17)) as u8
}

/// The packed bytes of some regions.
fn content(regions: &Regions) -> Bytes {
    let bytes = regions
        .walk(0..u64::MAX)
        .flat_map(|region| (region.offset..region.offset + region.length).map(byte_at));
    bytes.collect::<Vec<u8>>().into()
}

/// What one way took: to write, and to read; and the requests of one rank.
struct MethodTimes {
    times: [Duration; 2],
    /// Of all processors, in this process.
    processor: [Duration; 2],
    requests: [u64; 2],
}

/// What this process has used of the processors.
fn processor_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec.unsigned_abs(), used.tv_nsec.unsigned_abs() as u32)
}

/// One rank's share of a round.
struct Rank {
    /// Dump by dump.
    lists: Arc<Vec<Regions>>,
    data: Vec<Bytes>,
}

/// Writes and reads a new file in one way, by all ranks at once.
#[allow(clippy::disallowed_methods, reason = "a benchmark measures the real clock, with threads")]
fn measure(scratch: &Scratch, method: ListMethod, ranks: &[Rank]) -> MethodTimes {
    let counted = CountedResult::new(scratch.running().client_handle());
    let system =
        FileSystem::new(counted.clone(), Credentials::root(), client::blocking::random_client());
    let options = OpenOptions::new().read(true).write(true).create(true);
    block_on(system.open("/list", options)).expect("there is room");
    let (turns, begin, end) = (Mutex::new(()), Barrier::new(RANKS + 1), Barrier::new(RANKS + 1));
    let (mut times, mut processor, mut requests) =
        ([Duration::ZERO; 2], [Duration::ZERO; 2], [0; 2]);
    std::thread::scope(|scope| {
        for rank in ranks {
            let (system, turns, begin, end) = (&system, &turns, &begin, &end);
            scope.spawn(move || {
                let file = block_on(system.open("/list", options)).expect("it was made");
                let longest = rank.lists.iter().map(Regions::bytes).max().unwrap_or(0);
                let mut out = vec![0; longest as usize];
                begin.wait();
                for (regions, data) in rank.lists.iter().zip(&rank.data) {
                    method.write(&file, regions, data, turns);
                }
                end.wait();
                begin.wait();
                for regions in rank.lists.iter() {
                    block_on(method.read(&file, regions, &mut out));
                }
                end.wait();
                // The last dump tells whether it was read well; the others were read into the same
                // place.
                let last = rank.data.last().map_or(&[][..], |data| data);
                assert!(out[..last.len()] == *last, "{method:?} read something else");
            });
        }
        for step in 0..2 {
            let before = counted.requests.load(Relaxed);
            begin.wait();
            let (start, used) = (Instant::now(), processor_time());
            end.wait();
            (times[step], processor[step]) =
                (start.elapsed(), processor_time().saturating_sub(used));
            // Opening and such is not counted, but for a lease that is renewed now and then.
            requests[step] = (counted.requests.load(Relaxed) - before) / RANKS as u64;
        }
    });
    check(&system, ranks);
    block_on(system.remove_file("/list")).expect("it was made");
    MethodTimes { times, processor, requests }
}

/// Every byte that was written is there.
fn check(system: &FileSystem<CountedResult>, ranks: &[Rank]) {
    let file = block_on(system.open("/list", OpenOptions::new().read(true))).expect("it was made");
    for rank in ranks {
        for (regions, data) in rank.lists.iter().zip(&rank.data) {
            let mut out = vec![0; data.len()];
            let read = block_on(file.read_list(regions, &mut out)).expect("it was written");
            assert!(read == data.len() && out == *data, "something else was written");
        }
    }
}

fn run(pattern: &ListPattern, rounds: usize) -> ListBenchRow {
    let shape = BenchVolumeShape {
        disk_bytes: 768 << 20,
        cache_bytes: 1 << 30,
        threads: 0,
        prefault: false,
    };
    let scratch = Scratch::new(memory(), shape);
    let ranks: Vec<Rank> = (0..RANKS)
        .map(|rank| {
            let lists = Arc::new((pattern.lists)(rank));
            let data = lists.iter().map(content).collect();
            Rank { lists, data }
        })
        .collect();
    let mut row = ListBenchRow::new(pattern);
    for _ in 0..rounds {
        for method in ListMethod::ALL {
            row.note(method, measure(&scratch, method, &ranks));
        }
    }
    row
}

/// Where files are in memory, if there is such a place.
fn memory() -> &'static str {
    let shared = "/dev/shm";
    if std::path::Path::new(shared).is_dir() { shared } else { env!("CARGO_TARGET_TMPDIR") }
}

fn main() {
    let named: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let patterns = sized(patterns::EARNEST, patterns::TEST);
    let is_chosen = |pattern: &&ListPattern| {
        named.is_empty() || named.iter().any(|name| name == "lists" || pattern.name.contains(name))
    };
    let chosen: Vec<&ListPattern> = patterns.iter().filter(is_chosen).collect();
    if in_earnest() && chosen.is_empty() {
        return;
    }
    let rounds = sized(ROUNDS, ROUNDS_IN_TEST);
    let rows: Vec<ListBenchRow> = chosen.into_iter().map(|pattern| run(pattern, rounds)).collect();
    report::print(&rows);
}
