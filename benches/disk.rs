//! One disk file of the host, four ways: ours past the page cache (io_uring), ours through it
//! (threads), and what a plain program does with `pread`, `pwrite` and `fdatasync`, direct and
//! cached.
//!
//! The ways take turns within each round. A name after `--bench` chooses the cases that contain it;
//! `MDFS_BENCH_WAY` (`direct`, `cached`, `plain-direct`, `plain-cached`) leaves one way, for
//! counting its system calls with `strace -fc`.

use std::fs::File;
use std::future::Future;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use benches::{in_earnest, sized};
use bytes::Bytes;
use futures::executor::block_on;
use futures::future::join_all;
use runtime::buffer::{Buffer, Pool};
use runtime::disk::Disk;
use runtime::embedded::{Config, DiskAccess, Embedded};
use runtime::seed::Rng;
use runtime::{Context, Epoch, NodeId};
use rustix::fs::{Advice, OFlags, fadvise};

const MIB: usize = 1 << 20;
/// A cached stripe: what a transfer to the disk consists of.
const LINE: usize = 64 << 10;
const SMALL: usize = 4096;

/// One kind of work on the disk.
#[derive(Clone, Copy)]
struct DiskCase {
    name: &'static str,
    work: DiskWork,
    /// Bytes of one operation.
    length: usize,
    depth: usize,
    operations: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum DiskWork {
    /// One after the other over a file of holes, then one sync.
    Fill,
    /// The same over a file that has its blocks.
    Overwrite,
    /// In order, nothing cached.
    Read,
    /// At random blocks, nothing cached.
    RandomRead,
    /// Each followed by a sync.
    Commit,
}

impl DiskWork {
    fn reads(self) -> bool {
        matches!(self, Self::Read | Self::RandomRead)
    }
}

const WAYS: [&str; 4] = ["direct", "cached", "plain-direct", "plain-cached"];

fn cases() -> Vec<DiskCase> {
    let (megabytes, small, commits) = (sized(256, 4), sized(4000, 20), sized(400, 5));
    let case =
        |name, work, length, depth, operations| DiskCase { name, work, length, depth, operations };
    vec![
        case("fill 1 MiB x1, sync at the end", DiskWork::Fill, MIB, 1, megabytes),
        case("fill 1 MiB x8, sync at the end", DiskWork::Fill, MIB, 8, megabytes),
        case("fill 64 KiB x8, sync at the end", DiskWork::Fill, LINE, 8, megabytes * 16),
        case("overwrite 1 MiB x1, sync at the end", DiskWork::Overwrite, MIB, 1, megabytes),
        case("overwrite 1 MiB x8, sync at the end", DiskWork::Overwrite, MIB, 8, megabytes),
        case("overwrite 64 KiB x8, sync at the end", DiskWork::Overwrite, LINE, 8, megabytes * 16),
        case("cold read 1 MiB x1", DiskWork::Read, MIB, 1, megabytes),
        case("cold read 1 MiB x8", DiskWork::Read, MIB, 8, megabytes),
        case("cold read 64 KiB x8", DiskWork::Read, LINE, 8, megabytes * 16),
        case("random cold read 4 KiB x1", DiskWork::RandomRead, SMALL, 1, small),
        case("random cold read 4 KiB x16", DiskWork::RandomRead, SMALL, 16, small),
        case("commit 4 KiB x1 (write and sync)", DiskWork::Commit, SMALL, 1, commits),
        case("commit 4 KiB x4 (write and sync)", DiskWork::Commit, SMALL, 4, commits),
    ]
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let only = std::env::var("MDFS_BENCH_WAY").ok();
    let bench = DiskBench::new();
    println!(
        "{:<38} {:>12} {:>12} {:>12} {:>12}  direct/cached  direct/plain-cached  switches per operation: direct, cached",
        "operations per second", WAYS[0], WAYS[1], WAYS[2], WAYS[3]
    );
    for case in cases() {
        if !wanted.is_empty() && !wanted.iter().any(|name| case.name.contains(name.as_str())) {
            continue;
        }
        let mut rounds: Vec<[DiskSample; 4]> = Vec::new();
        for round in 0..sized(7, 1) {
            let mut samples = [DiskSample::default(); 4];
            for turn in 0..WAYS.len() {
                let way = (turn + round) % WAYS.len();
                if only.as_deref().is_none_or(|only| only == WAYS[way]) {
                    samples[way] = bench.measure(way, &case, round as u64);
                }
            }
            rounds.push(samples);
        }
        print(&case, &rounds);
    }
}

#[derive(Clone, Copy, Default)]
struct DiskSample {
    per_second: f64,
    switches: f64,
}

#[allow(clippy::cast_precision_loss, reason = "counts of a benchmark")]
fn print(case: &DiskCase, rounds: &[[DiskSample; 4]]) {
    let rate = |way: usize| median(rounds.iter().map(|samples| samples[way].per_second));
    let ratio = |a: usize, b: usize| {
        median(rounds.iter().map(|samples| samples[a].per_second / samples[b].per_second))
    };
    let switches = |way: usize| median(rounds.iter().map(|samples| samples[way].switches));
    println!(
        "{:<38} {:>12.0} {:>12.0} {:>12.0} {:>12.0}  {:>13.2}  {:>19.2}  {:.1} {:.1}",
        case.name,
        rate(0),
        rate(1),
        rate(2),
        rate(3),
        ratio(0, 1),
        ratio(0, 3),
        switches(0),
        switches(1)
    );
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

struct DiskBench {
    directory: tempfile::TempDir,
    machines: [Embedded; 2],
    pool: Pool,
    bytes: usize,
}

impl DiskBench {
    fn new() -> Self {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("it takes files");
        let machine = |disk_access| {
            Embedded::start(Config {
                threads: 1,
                fs_nodes: 1,
                disk_nodes: 1,
                epoch: Epoch(1),
                pool_bytes: 64 * MIB,
                disk_access,
            })
            .expect("a machine starts")
        };
        let machines = [machine(DiskAccess::Best), machine(DiskAccess::Cached)];
        Self { directory, machines, pool: Pool::new(64 * MIB), bytes: sized(256, 4) * MIB }
    }

    /// A file as the case wants it; nothing of it is in the page cache.
    #[allow(clippy::disallowed_methods, reason = "a benchmark prepares a file")]
    fn prepare(&self, way: usize, work: DiskWork) -> PathBuf {
        let (name, filled) =
            if work == DiskWork::Fill { ("holes", false) } else { ("filled", true) };
        let path = self.directory.path().join(format!("{name}-{}", WAYS[way]));
        if !filled {
            // It may not be there yet.
            let _ = std::fs::remove_file(&path);
        }
        if !path.exists() {
            let file = File::create(&path).expect("it can be made");
            file.set_len(self.bytes as u64).expect("a file of holes");
            if filled {
                let content = vec![7; MIB];
                for at in (0..self.bytes).step_by(MIB) {
                    file.write_all_at(&content, at as u64).expect("there is room");
                }
            }
            file.sync_all().expect("the disk is good");
        }
        let file = File::open(&path).expect("it is there");
        fadvise(&file, 0, None, Advice::DontNeed).expect("the host forgets it");
        path
    }

    fn measure(&self, way: usize, case: &DiskCase, round: u64) -> DiskSample {
        let path = self.prepare(way, case.work);
        let places = places(case, self.bytes, round);
        match self.machines.get(way) {
            Some(machine) => ours(machine, &path, *case, places),
            None => plain(&self.pool, &path, *case, &places, way == 2),
        }
    }
}

/// Where the operations of a case are.
fn places(case: &DiskCase, bytes: usize, round: u64) -> Vec<u64> {
    let mut rng = Rng::new(round);
    let units = bytes / case.length;
    let random = matches!(case.work, DiskWork::RandomRead | DiskWork::Commit);
    let unit = |i: usize| if random { rng.index(units) } else { i % units };
    (0..case.operations).map(unit).map(|unit| (unit * case.length) as u64).collect()
}

/// On a node of the machine, as the block layer does it.
fn ours(machine: &Embedded, path: &Path, case: DiskCase, places: Vec<u64>) -> DiskSample {
    let path = path.to_str().expect("a plain name").to_owned();
    let work = async move |context: Context| {
        let disk = context.open_disk(&path).await.expect("it opens");
        let line = context.pool().take(LINE.min(case.length)).expect("there is room").freeze();
        let data = vec![line; case.length.div_ceil(LINE)];
        let watch = CpuWatch::start();
        lanes(&disk, case, &places, &data).await;
        if matches!(case.work, DiskWork::Fill | DiskWork::Overwrite) {
            disk.sync().await.expect("the disk is good");
        }
        watch.stop(places.len())
    };
    block_on(machine.on_node(NodeId::disk(0), work)).expect("it ends")
}

/// As many at once as the case wants.
fn lanes<'a>(
    disk: &'a Rc<dyn Disk>,
    case: DiskCase,
    places: &'a [u64],
    data: &'a [Bytes],
) -> impl Future<Output = Vec<()>> + 'a {
    let lane = move |first: usize| async move {
        for &place in places.iter().skip(first).step_by(case.depth) {
            if case.work.reads() {
                disk.read(place, case.length).await.expect("it reads");
            } else {
                disk.write(place, data.to_vec()).await.expect("it writes");
            }
            if case.work == DiskWork::Commit {
                disk.sync().await.expect("the disk is good");
            }
        }
    };
    join_all((0..case.depth).map(lane))
}

/// With a thread for each operation that is under way.
#[allow(clippy::disallowed_methods, reason = "the other side of the comparison")]
fn plain(pool: &Pool, path: &Path, case: DiskCase, places: &[u64], direct: bool) -> DiskSample {
    let flags = if direct { OFlags::DIRECT } else { OFlags::empty() };
    let mut options = File::options();
    options.read(true).write(true).custom_flags(flags.bits().cast_signed());
    let file = options.open(path).expect("it opens");
    let lane = |first: usize, mut buffer: Buffer| {
        for &place in places.iter().skip(first).step_by(case.depth) {
            if case.work.reads() {
                file.read_exact_at(&mut buffer, place).expect("it reads");
            } else {
                file.write_all_at(&buffer, place).expect("it writes");
            }
            if case.work == DiskWork::Commit {
                file.sync_data().expect("the disk is good");
            }
        }
    };
    let watch = CpuWatch::start();
    std::thread::scope(|scope| {
        for first in 0..case.depth {
            let buffer = pool.take(case.length).expect("there is room");
            let lane = &lane;
            scope.spawn(move || lane(first, buffer));
        }
    });
    if matches!(case.work, DiskWork::Fill | DiskWork::Overwrite) {
        file.sync_data().expect("the disk is good");
    }
    watch.stop(places.len())
}

/// Time, and how often threads of this process went to sleep.
struct CpuWatch {
    start: Instant,
    switches: u64,
}

impl CpuWatch {
    #[allow(clippy::disallowed_methods, reason = "a benchmark measures the real clock")]
    fn start() -> Self {
        Self { switches: switches(), start: Instant::now() }
    }

    #[allow(clippy::cast_precision_loss, reason = "counts of a benchmark")]
    fn stop(self, operations: usize) -> DiskSample {
        let elapsed = self.start.elapsed().max(Duration::from_nanos(1));
        let slept = switches().saturating_sub(self.switches);
        DiskSample {
            per_second: operations as f64 / elapsed.as_secs_f64(),
            switches: slept as f64 / operations as f64,
        }
    }
}

/// Voluntary context switches of all threads that live, kernel workers of the rings included.
fn switches() -> u64 {
    if !in_earnest() {
        return 0;
    }
    let tasks = std::fs::read_dir("/proc/self/task").expect("a process has threads");
    let of = |task: std::io::Result<std::fs::DirEntry>| {
        let status = std::fs::read_to_string(task.ok()?.path().join("status")).ok()?;
        let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches"))?;
        line.split_whitespace().last()?.parse::<u64>().ok()
    };
    tasks.filter_map(of).sum()
}
