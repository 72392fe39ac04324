//! What is done. Each work returns its rate; those that read find what the ones before have
//! written.

#![allow(clippy::cast_precision_loss, reason = "counts of a benchmark")]
#![allow(clippy::disallowed_methods, reason = "a benchmark measures the real clock, with threads")]

use std::time::{Duration, Instant};

use bytes::Bytes;
use runtime::buffer::Pool;
use runtime::seed::Rng;

use crate::inside;
use crate::sides::{CheckpointFile, CheckpointFileKind, CheckpointSide};

/// Processes of the job.
const WRITERS: usize = 8;
/// Bytes of one transfer of a checkpoint.
const TRANSFER: usize = 1 << 20;
/// Bytes of one record where all write one file: as in IOR-hard.
const RECORD: usize = 47_008;
pub(crate) const SMALL: usize = 4 << 10;
/// Blocks that are rewritten again and again.
const HOT_BLOCKS: usize = 64;
const HOT_BLOCK: usize = 64 << 10;
/// The pause after a burst, in which the job computes.
const IDLE: Duration = Duration::from_secs(8);
const IDLE_IN_TEST: Duration = Duration::from_millis(10);
pub(crate) const SEED: u64 = 7;

/// How much one round does.
#[derive(Clone, Copy)]
pub(crate) struct CheckpointScale {
    mib_per_writer: usize,
    records_per_writer: usize,
    pub(crate) small: usize,
    rewrites: usize,
    idle: Duration,
}

impl CheckpointScale {
    pub(crate) const EARNEST: Self = Self {
        mib_per_writer: 64,
        records_per_writer: 400,
        small: 20_000,
        rewrites: 64,
        idle: IDLE,
    };
    pub(crate) const TEST: Self = Self {
        mib_per_writer: 2,
        records_per_writer: 4,
        small: 50,
        rewrites: 2,
        idle: IDLE_IN_TEST,
    };
    /// Numbers of files are below this.
    pub(crate) const FILES_MAX: usize = 2 * WRITERS + 4;

    /// Bytes that are written in one round, at most: the side in memory needs as many.
    fn bytes(&self) -> u64 {
        let checkpoint = (WRITERS * self.mib_per_writer * TRANSFER) as u64;
        2 * checkpoint + (WRITERS * self.records_per_writer * RECORD) as u64
    }

    /// Bytes of each of the four disks: half of them for what is freed late, and logs of 64 nodes.
    pub(crate) fn disk_bytes(&self) -> u64 {
        (self.bytes() / 2 + (256 << 20)).next_multiple_of(1 << 20)
    }

    /// The whole checkpoint fits in, so that warm means warm.
    pub(crate) fn cache_bytes(&self) -> usize {
        3 * WRITERS * self.mib_per_writer * TRANSFER / 2 + (64 << 20)
    }
}

/// One row of the table.
pub(crate) struct CheckpointWork {
    pub(crate) name: &'static str,
    /// What is counted per second.
    pub(crate) unit: &'static str,
    /// How durable it is at the end, on sides that can be.
    pub(crate) durable: &'static str,
    pub(crate) run: fn(&mut CheckpointSide, &CheckpointScale) -> Option<f64>,
}

impl CheckpointWork {
    /// Reads past the page cache are there to be compared with cold reads.
    pub(crate) fn is_for(&self, kind: CheckpointFileKind) -> bool {
        kind != CheckpointFileKind::Direct || self.name.contains("cold")
    }
}

pub(crate) const WORKS: [CheckpointWork; 11] = [
    CheckpointWork {
        name: "n-n write",
        unit: "MB",
        durable: "synced",
        run: |side, scale| n_n(side, scale, true),
    },
    CheckpointWork {
        name: "n-n write, no sync",
        unit: "MB",
        durable: "no",
        run: |side, scale| n_n(side, scale, false),
    },
    CheckpointWork { name: "restart, warm", unit: "MB", durable: "-", run: restart },
    CheckpointWork { name: "restart, cold", unit: "MB", durable: "-", run: restart_cold },
    CheckpointWork { name: "n-1 strided 47 KiB", unit: "MB", durable: "synced", run: n_1 },
    CheckpointWork { name: "4 KiB random read", unit: "reads", durable: "-", run: random_reads },
    CheckpointWork {
        name: "4 KiB reads, in process",
        unit: "reads",
        durable: "-",
        run: inside::reads,
    },
    CheckpointWork {
        name: "4 KiB random write",
        unit: "writes",
        durable: "no",
        run: random_writes,
    },
    CheckpointWork { name: "hot blocks rewritten", unit: "MB", durable: "synced", run: hot_blocks },
    CheckpointWork { name: "burst", unit: "MB", durable: "no", run: burst },
    CheckpointWork {
        name: "sync after burst and idle",
        unit: "syncs",
        durable: "synced",
        run: sync_after_idle,
    },
];

fn content(length: usize) -> Bytes {
    let mut rng = Rng::new(SEED);
    let words = (0..length.div_ceil(8)).flat_map(|_| rng.bits().to_le_bytes());
    let bytes: Bytes = words.collect();
    bytes.slice(..length)
}

#[allow(clippy::unnecessary_wraps, reason = "what a work returns")]
pub(crate) fn timed(amount: f64, work: impl FnOnce()) -> Option<f64> {
    let start = Instant::now();
    work();
    Some(amount / start.elapsed().max(Duration::from_nanos(1)).as_secs_f64())
}

/// Every writer on a thread of its own.
fn all_writers(files: &[CheckpointFile], work: impl Fn(usize, &CheckpointFile) + Sync) {
    std::thread::scope(|scope| {
        for (writer, file) in files.iter().enumerate() {
            let work = &work;
            scope.spawn(move || work(writer, file));
        }
    });
}

fn megabytes(scale: &CheckpointScale) -> f64 {
    (WRITERS * scale.mib_per_writer * TRANSFER) as f64 / 1e6
}

fn write_checkpoint(files: &[CheckpointFile], scale: &CheckpointScale, sync: bool) {
    let data = content(TRANSFER);
    all_writers(files, |_, file| {
        for i in 0..scale.mib_per_writer {
            file.write_at((i * TRANSFER) as u64, &data);
        }
        if sync {
            file.sync();
        }
    });
}

/// Each writer its own file.
fn n_n(side: &mut CheckpointSide, scale: &CheckpointScale, sync: bool) -> Option<f64> {
    let files: Vec<CheckpointFile> = (0..WRITERS).map(|number| side.make(number)).collect();
    let rate = timed(megabytes(scale), || write_checkpoint(&files, scale, sync));
    // What is not durable yet would be in the way of the next work.
    files.iter().for_each(CheckpointFile::sync);
    rate
}

/// Writes the checkpoint, if a work before has not.
fn ensure_checkpoint(side: &mut CheckpointSide, scale: &CheckpointScale) {
    if !side.has(WRITERS - 1) {
        n_n(side, scale, true);
    }
}

fn read_checkpoint(side: &CheckpointSide, scale: &CheckpointScale) -> Option<f64> {
    let files: Vec<CheckpointFile> = (0..WRITERS).map(|number| side.open_to_read(number)).collect();
    let buffers = Pool::new(WRITERS * TRANSFER);
    timed(megabytes(scale), || {
        all_writers(&files, |_, file| {
            let mut buffer = buffers.take(TRANSFER).expect("there is one for each");
            for i in 0..scale.mib_per_writer {
                file.read_at((i * TRANSFER) as u64, &mut buffer);
            }
        });
    })
}

fn restart(side: &mut CheckpointSide, scale: &CheckpointScale) -> Option<f64> {
    ensure_checkpoint(side, scale);
    read_checkpoint(side, scale); // whatever it was before, it is warm then
    read_checkpoint(side, scale)
}

fn restart_cold(side: &mut CheckpointSide, scale: &CheckpointScale) -> Option<f64> {
    ensure_checkpoint(side, scale);
    if side.chill() { read_checkpoint(side, scale) } else { None }
}

/// All write one file, a record of each in turn.
fn n_1(side: &mut CheckpointSide, scale: &CheckpointScale) -> Option<f64> {
    let file = side.make(WRITERS);
    let files = vec![file; WRITERS];
    let data = content(RECORD);
    let amount = (WRITERS * scale.records_per_writer * RECORD) as f64 / 1e6;
    timed(amount, || {
        all_writers(&files, |writer, file| {
            for i in 0..scale.records_per_writer {
                file.write_at(((i * WRITERS + writer) * RECORD) as u64, &data);
            }
            file.sync();
        });
    })
}

pub(crate) fn random_offset(rng: &mut Rng, scale: &CheckpointScale) -> u64 {
    rng.below((scale.mib_per_writer * TRANSFER / SMALL) as u64) * SMALL as u64
}

/// Brings the first file into memory.
pub(crate) fn warm_first(side: &mut CheckpointSide, scale: &CheckpointScale) -> CheckpointFile {
    ensure_checkpoint(side, scale);
    let file = side.open(0);
    let mut buffer = vec![0; TRANSFER];
    for i in 0..scale.mib_per_writer {
        file.read_at((i * TRANSFER) as u64, &mut buffer);
    }
    file
}

/// One reader; the file was read before.
fn random_reads(side: &mut CheckpointSide, scale: &CheckpointScale) -> Option<f64> {
    let file = warm_first(side, scale);
    let mut buffer = vec![0; SMALL];
    let mut rng = Rng::new(SEED);
    timed(scale.small as f64, || {
        for _ in 0..scale.small {
            file.read_at(random_offset(&mut rng, scale), &mut buffer);
        }
    })
}

/// One writer.
fn random_writes(side: &mut CheckpointSide, scale: &CheckpointScale) -> Option<f64> {
    ensure_checkpoint(side, scale);
    let (file, data, mut rng) = (side.open(1), content(SMALL), Rng::new(SEED));
    let rate = timed(scale.small as f64, || {
        for _ in 0..scale.small {
            file.write_at(random_offset(&mut rng, scale), &data);
        }
    });
    file.sync();
    rate
}

/// The same few blocks over and over.
fn hot_blocks(side: &mut CheckpointSide, scale: &CheckpointScale) -> Option<f64> {
    let (file, data) = (side.make(WRITERS + 1), content(HOT_BLOCK));
    timed((scale.rewrites * HOT_BLOCKS * HOT_BLOCK) as f64 / 1e6, || {
        for _ in 0..scale.rewrites {
            for block in 0..HOT_BLOCKS {
                file.write_at((block * HOT_BLOCK) as u64, &data);
            }
        }
        file.sync();
    })
}

/// A checkpoint without a sync.
fn burst(side: &mut CheckpointSide, scale: &CheckpointScale) -> Option<f64> {
    let numbers = WRITERS + 2..2 * WRITERS + 2;
    let files: Vec<CheckpointFile> = numbers.map(|number| side.make(number)).collect();
    timed(megabytes(scale), || write_checkpoint(&files, scale, false))
}

/// The burst of the work before has to be durable after a while of computing: what is left to do?
fn sync_after_idle(side: &mut CheckpointSide, scale: &CheckpointScale) -> Option<f64> {
    if !side.has(2 * WRITERS + 1) {
        burst(side, scale);
    }
    std::thread::sleep(scale.idle);
    let numbers = WRITERS + 2..2 * WRITERS + 2;
    let files: Vec<CheckpointFile> = numbers.map(|number| side.open(number)).collect();
    timed(1.0, || all_writers(&files, |_, file| file.sync()))
}
