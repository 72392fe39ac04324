//! What one operation costs: time on the thread of the layers, instructions, and what else can be
//! counted: requests to servers, heap allocations, bytes copied between buffers. Counts do not
//! depend on what else the machine does. Each run asserts the [`limits`] of the hot path.
//!
//! `cargo xtask bench operations` prints the table. Instructions are those of the operation itself,
//! counted by callgrind if Debian's `valgrind` is there. One row alone: `operations NAME WAY
//! COUNT`, as in `operations read-64k inside 1000`; then the time is printed.

use std::alloc::{GlobalAlloc, Layout, System};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use benches::{BenchVolumeShape, Scratch, in_earnest, sized};
use client::{Credentials, File, FileSystem, OpenOptions};
use futures::executor::block_on;
use runtime::Spawn;
use tracing::{Event, Metadata, Subscriber, span};

/// Bytes of the file that is read and written: all of it is cached.
const FILE_BYTES: u64 = 8 << 20;
const LARGE: usize = 64 << 10;
const SMALL: usize = 4 << 10;
static CONTENT: [u8; LARGE] = [7; LARGE];

const OPERATIONS: [&str; 9] = [
    "read-64k",
    "read-4k",
    "write-64k",
    "write-4k",
    "stat",
    "create",
    "remove",
    "open-close",
    "write-4k-sync",
];
const WAYS: [&str; 2] = ["inside", "door"];
/// Operations that are counted, and that warm up: enough to hide the cost of opening the file.
const COUNT: u64 = 512;
/// Those without limits, in a test.
const COUNT_IN_TEST: u64 = 8;
/// Operations that are timed, and that run under callgrind.
const TIMED: u64 = 100_000;
const TRACED: u64 = 500;

/// What an operation may cost inside a node, at most: requests, allocations, copied bytes. A read
/// copies once, into the reader's buffer; a write once, into the cache.
fn limits(operation: &str) -> Option<[f64; 3]> {
    match operation {
        "read-64k" => Some([2.5, 4.0, 65_536.0]),
        "read-4k" => Some([2.5, 4.0, 4_096.0]),
        // In the first 30 s the changed ranges are noted (ADR 73).
        "write-64k" => Some([4.0, 42.0, 65_536.0]),
        "write-4k" => Some([4.0, 42.0, 4_096.0]),
        _ => None,
    }
}

/// The system's allocator, counting.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: each call goes to the system's allocator as it is.
#[allow(unsafe_code, reason = "an allocator that counts has to be an allocator")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: what the caller promises is what the system asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above; `pointer` came from `alloc`, so from the system.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Counts the spans of requests, which each server opens once per request.
struct CountedRequests;

static REQUESTS: AtomicU64 = AtomicU64::new(0);
static COUNTING_REQUESTS: AtomicBool = AtomicBool::new(false);

impl Subscriber for CountedRequests {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "mdfs::request" && COUNTING_REQUESTS.load(Relaxed)
    }

    fn register_callsite(&self, _: &'static Metadata<'static>) -> tracing::subscriber::Interest {
        // Asked each time, since the answer changes.
        tracing::subscriber::Interest::sometimes()
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(REQUESTS.fetch_add(1, Relaxed) + 1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// `count` operations; those numbered from `first` on, where they have names.
async fn perform<S: Spawn>(system: FileSystem<S>, operation: &str, first: u64, count: u64) {
    let options = OpenOptions::new().read(true).write(true).create(true);
    let file = system.open("/file", options).await.expect("there is room");
    let mut buffer = vec![0; LARGE];
    for i in first..first + count {
        match operation {
            "read-64k" => read(&file, &mut buffer, i, LARGE).await,
            "read-4k" => read(&file, &mut buffer, i.wrapping_mul(0x9e37_79b9), SMALL).await,
            "write-64k" => write(&file, i, LARGE).await,
            "write-4k" => write(&file, i, SMALL).await,
            "stat" => drop(system.metadata("/file").await.expect("it is there")),
            "create" => drop(system.create(format!("/new{i}")).await.expect("there is room")),
            "remove" => system.remove_file(format!("/new{i}")).await.expect("it was made"),
            "open-close" => {
                let options = OpenOptions::new().read(true);
                drop(system.open("/file", options).await.expect("it is there"));
            }
            "write-4k-sync" => {
                write(&file, i, SMALL).await;
                file.sync().await.expect("the disks are there");
            }
            _ => panic!("no such operation: {operation}"),
        }
    }
}

async fn read<S: Spawn>(file: &File<S>, buffer: &mut [u8], i: u64, length: usize) {
    let offset = i * length as u64 % FILE_BYTES;
    let read = file.read_at(offset, &mut buffer[..length]).await.expect("it is cached");
    assert_eq!((read, buffer[0], buffer[length - 1]), (length, CONTENT[0], CONTENT[0]));
}

async fn write<S: Spawn>(file: &File<S>, i: u64, length: usize) {
    let offset = i * length as u64 % FILE_BYTES;
    let data = bytes::Bytes::from_static(&CONTENT[..length]);
    file.write_at(offset, data).await.expect("there is room");
}

/// As [`perform`], from this thread or on the thread of the layers.
fn run(scratch: &Scratch, operation: &'static str, way: &str, first: u64, count: u64) {
    if way == "door" {
        let system = scratch.volume().file_system().clone();
        return block_on(perform(system, operation, first, count));
    }
    let work = scratch.running().on_application(move |context| async move {
        let system = FileSystem::new(context.clone(), Credentials::root(), context.random());
        // A program in the process of its server has nothing to send again.
        let system = system.retaining(0);
        perform(system, operation, first, count).await;
    });
    block_on(work).expect("it runs");
}

/// A volume on one thread, with a cached file, and files to remove.
fn prepared(operation: &'static str, files: u64) -> Scratch {
    // So large that the file stays in memory (ADR 47): to write behind is not the cost of each
    // write.
    let shape = BenchVolumeShape {
        disk_bytes: 128 << 20,
        cache_bytes: 512 << 20,
        threads: 1,
        prefault: false,
    };
    let scratch = Scratch::new(env!("CARGO_TARGET_TMPDIR"), shape);
    run(&scratch, "write-64k", "inside", 0, FILE_BYTES / LARGE as u64);
    if operation == "remove" {
        run(&scratch, "create", "inside", 0, files);
    }
    scratch
}

/// What one operation costs.
struct OperationCost {
    requests: f64,
    allocations: f64,
    copied_bytes: f64,
}

/// Counts one operation. What it costs to open the file is in each count, divided by many.
#[allow(clippy::cast_precision_loss, reason = "counts of a benchmark")]
fn count(operation: &'static str, way: &str, count: u64) -> OperationCost {
    let scratch = prepared(operation, 3 * count);
    run(&scratch, operation, way, 0, count);
    let (before, bytes) = (ALLOCATIONS.load(Relaxed), scratch.running().pool().copied_bytes());
    run(&scratch, operation, way, count, count);
    let per = |before: u64, after: u64| (after - before) as f64 / count as f64;
    let allocations = per(before, ALLOCATIONS.load(Relaxed));
    let copied_bytes = per(bytes, scratch.running().pool().copied_bytes());

    COUNTING_REQUESTS.store(true, Relaxed);
    tracing::callsite::rebuild_interest_cache();
    let before = REQUESTS.load(Relaxed);
    run(&scratch, operation, way, 2 * count, count);
    let requests = per(before, REQUESTS.load(Relaxed));
    COUNTING_REQUESTS.store(false, Relaxed);
    tracing::callsite::rebuild_interest_cache();
    OperationCost { requests, allocations, copied_bytes }
}

/// Fails if the hot path has become longer.
fn check(operation: &str, way: &str, cost: &OperationCost) {
    let Some([requests, allocations, copied_bytes]) = limits(operation) else { return };
    assert!(cost.requests <= requests, "{operation}: {} requests", cost.requests);
    // What a door needs for its messages is not the layers'.
    let is_long = way == "inside" && cost.allocations > allocations;
    assert!(!is_long, "{operation}: {} allocations", cost.allocations);
    // A commit in the background copies what it shares with the disks; that is not the operation's.
    assert!(cost.copied_bytes <= 1.1 * copied_bytes, "{operation}: {} bytes", cost.copied_bytes);
}

/// Instructions of one operation, as callgrind counts them: `rep movsb`, the copy of large pieces,
/// counts each byte. `None` without valgrind.
#[allow(clippy::cast_precision_loss, reason = "counts of a benchmark")]
fn instructions(operation: &str) -> Option<f64> {
    let traced = if operation.starts_with("read") { "read" } else { "write" };
    let program = std::env::current_exe().ok()?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"])
        .arg(format!("--toggle-collect=operations::{traced}::*"))
        .arg(program)
        .args([operation, "inside", &TRACED.to_string()])
        .output()
        .ok()?;
    let output = String::from_utf8_lossy(&output.stderr);
    let collected = output.lines().find_map(|line| line.split_once("Collected :"))?.1;
    collected.trim().parse().ok().map(|count: f64| count / TRACED as f64)
}

fn print_row(operation: &'static str, way: &str) {
    let counted = if limits(operation).is_some() { COUNT } else { sized(COUNT, COUNT_IN_TEST) };
    let cost = count(operation, way, counted);
    check(operation, way, &cost);
    let (mut nanoseconds, mut traced) = (String::from("-"), String::from("-"));
    if in_earnest() && limits(operation).is_some() {
        let scratch = prepared(operation, TIMED);
        run(&scratch, operation, way, 0, TIMED / 10);
        nanoseconds = format!("{:.0}", time(TIMED, || run(&scratch, operation, way, 0, TIMED)));
        if way == "inside" {
            traced = instructions(operation).map_or(traced, |count| format!("{count:.0}"));
        }
    }
    let OperationCost { requests, allocations, copied_bytes } = cost;
    println!(
        "{operation:<14} {way:<7} {requests:>9.1} {allocations:>12.1} {copied_bytes:>13.0} \
         {nanoseconds:>9} {traced:>13}"
    );
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let known = |names: &[&'static str], i: usize| {
        names.iter().copied().find(|name| arguments.get(i).is_some_and(|given| given == name))
    };
    if let (Some(operation), Some(way)) = (known(&OPERATIONS, 0), known(&WAYS, 1)) {
        let count = arguments.get(2).and_then(|count| count.parse().ok()).unwrap_or(COUNT);
        let scratch = prepared(operation, count);
        println!("{:.0} ns each", time(count, || run(&scratch, operation, way, 0, count)));
        return;
    }
    let chosen = arguments.iter().filter(|argument| !argument.starts_with('-'));
    if in_earnest()
        && chosen.clone().next().is_some()
        && !chosen.clone().any(|it| it == "operations")
    {
        return;
    }
    tracing::subscriber::set_global_default(CountedRequests).expect("there is no other subscriber");
    println!(
        "{:<14} {:<7} {:>9} {:>12} {:>13} {:>9} {:>13}",
        "operation", "way", "requests", "allocations", "copied bytes", "ns", "instructions"
    );
    for operation in OPERATIONS {
        for way in WAYS {
            print_row(operation, way);
        }
    }
}

/// Nanoseconds of one of `count` operations.
#[allow(clippy::disallowed_methods, reason = "a benchmark measures the real clock")]
#[allow(clippy::cast_precision_loss, reason = "counts of a benchmark")]
fn time(count: u64, work: impl FnOnce()) -> f64 {
    let start = std::time::Instant::now();
    work();
    start.elapsed().as_nanos() as f64 / count as f64
}
