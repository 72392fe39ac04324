//! The file system against the host's, on the same disk, side by side and in turn: put, get, small
//! reads, and the operations on names. Prints its own table, since each figure is a pair.
//!
//! Ours is a volume opened in this process, asked by an ordinary thread through the client; local
//! is the file system on which the volume's disk files lie. Both sides do the same calls on the
//! same bytes, one after the other, and end with the durability that the row names.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use benches::{BenchVolumeShape, ProcessPair, Scratch, print_table, sized};
use bytes::Bytes;
use client::OpenOptions;
use client::blocking::Volume;
use runtime::seed::Rng;
use rustix::fs::{Advice, fadvise};

/// Bytes of one transfer.
const TRANSFER: usize = 1 << 20;
/// Bytes of a small read.
const SMALL: usize = 4096;

/// How much one round does.
struct CopySize {
    rounds: usize,
    file_mib: usize,
    reads: usize,
    names: usize,
    synced_files: usize,
}

const EARNEST: CopySize =
    CopySize { rounds: 7, file_mib: 256, reads: 20_000, names: 2_000, synced_files: 100 };
const TEST: CopySize = CopySize { rounds: 1, file_mib: 4, reads: 50, names: 10, synced_files: 3 };

/// Space for the file, its successor and the metadata, on four disks.
const DISK_BYTES: u64 = 512 << 20;
/// More than the file, so that warm means warm; the host's page cache is not bounded either.
const CACHE_BYTES: usize = 512 << 20;

#[allow(clippy::cast_precision_loss, reason = "counts of a benchmark")]
fn main() {
    let size = sized(EARNEST, TEST);
    let shape = BenchVolumeShape {
        disk_bytes: DISK_BYTES,
        cache_bytes: CACHE_BYTES,
        threads: 0,
        prefault: false,
    };
    let mut scratch = Scratch::new(env!("CARGO_TARGET_TMPDIR"), shape);
    let mut content = CopiedContent::new();
    let mut pairs = Vec::new();
    if chosen("copies") {
        pairs.extend(copies(&mut scratch, &size, &mut content));
    }
    if chosen("reads") {
        pairs.push(small_reads(&scratch, &size, &mut content));
    }
    if chosen("names") {
        pairs.extend(names(&scratch, &size));
    }
    if chosen("synced") {
        pairs.push(synced_files(&scratch, &size, &content));
    }

    println!(
        "\nours: a volume in this process, 64 nodes on all cores, 4 disk files; local: the file \
         system below it. 1 MB = 1,000,000 bytes; medians; ratio: ours / local, higher is better"
    );
    print_table(&pairs);
    println!("checksum of all that was read: {:016x}", content.checksum);
}

/// Every part is measured, unless the command line names some.
fn chosen(part: &str) -> bool {
    let mut named =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).peekable();
    named.peek().is_none() || named.any(|name| part.contains(&name))
}

/// The bytes that are copied, and the sum of what was read back.
struct CopiedContent {
    bytes: Bytes,
    checksum: u64,
}

impl CopiedContent {
    fn new() -> Self {
        let mut rng = Rng::new(1);
        let words = (0..2 * TRANSFER / 8).flat_map(|_| rng.bits().to_le_bytes());
        Self { bytes: words.collect(), checksum: 0 }
    }

    /// The transfer number `index`: neighbours differ.
    fn transfer(&self, index: usize) -> Bytes {
        let start = index * SMALL % TRANSFER;
        self.bytes.slice(start..start + TRANSFER)
    }

    /// Adds a byte of each block that was read.
    fn note(&mut self, read: &[u8]) {
        for block in read.chunks(SMALL) {
            self.checksum = self.checksum.wrapping_mul(31).wrapping_add(u64::from(block[0]));
        }
    }

    /// Adds a sum of what was read, and makes sure that the other side has read the same.
    fn compare(&mut self, ours: u64, local: u64) {
        assert_eq!(ours, local, "both sides read the same bytes");
        self.checksum = self.checksum.wrapping_add(ours);
    }
}

fn put_ours(volume: &Volume, content: &CopiedContent, size: &CopySize) {
    let file = volume.create("/copy").expect("it can be made");
    for i in 0..size.file_mib {
        file.write_at((i * TRANSFER) as u64, content.transfer(i)).expect("it is written");
    }
    file.sync().expect("it is durable");
}

fn put_local(path: &Path, content: &CopiedContent, size: &CopySize) {
    let file = File::create(path).expect("it can be made");
    for i in 0..size.file_mib {
        file.write_all_at(&content.transfer(i), (i * TRANSFER) as u64).expect("it is written");
    }
    file.sync_all().expect("it is durable");
}

/// Reads all of a file by transfers; the sum of what came.
fn get(size: &CopySize, mut read: impl FnMut(u64, &mut [u8])) -> u64 {
    let mut content = CopiedContent { bytes: Bytes::new(), checksum: 0 };
    let mut buffer = vec![0; TRANSFER];
    for i in 0..size.file_mib {
        read((i * TRANSFER) as u64, &mut buffer);
        content.note(&buffer);
    }
    content.checksum
}

fn get_ours(volume: &Volume, size: &CopySize) -> u64 {
    let file = volume.open("/copy", OpenOptions::new().read(true)).expect("it is there");
    get(size, |offset, buffer| {
        assert_eq!(file.read_at(offset, buffer).expect("it is read"), buffer.len());
    })
}

#[allow(clippy::disallowed_methods, reason = "the other side of the comparison")]
fn get_local(path: &Path, size: &CopySize) -> u64 {
    let file = File::open(path).expect("it is there");
    get(size, |offset, buffer| file.read_exact_at(buffer, offset).expect("it is read"))
}

/// Lets the host forget what it caches of durable files.
#[allow(clippy::disallowed_methods, reason = "files of the host are what it is about")]
fn chill(paths: impl IntoIterator<Item = PathBuf>) {
    for path in paths {
        let file = File::open(path).expect("it is there");
        fadvise(&file, 0, None, Advice::DontNeed).expect("the host takes advice");
    }
}

/// Put, warm get and cold get, of a file that is new in each round.
#[allow(clippy::cast_precision_loss, reason = "counts of a benchmark")]
fn copies(scratch: &mut Scratch, size: &CopySize, content: &mut CopiedContent) -> Vec<ProcessPair> {
    let megabytes = (size.file_mib * TRANSFER) as f64 / 1e6;
    let mib = size.file_mib;
    let mut put = ProcessPair::new(format!("put {mib} MiB, synced (local: fsync)"), "MB");
    let mut warm = ProcessPair::new(format!("get {mib} MiB, cached"), "MB");
    let mut cold = ProcessPair::new(format!("get {mib} MiB, from the disk"), "MB");
    let path = scratch.host_directory().join("copy");
    for _ in 0..size.rounds {
        let volume = scratch.volume();
        put.ours(megabytes, || put_ours(&volume, content, size));
        put.local(megabytes, || put_local(&path, content, size));
        let ours = warm.ours(megabytes, || get_ours(&volume, size));
        let local = warm.local(megabytes, || get_local(&path, size));
        content.compare(ours, local);

        scratch.reopen();
        chill(scratch.disk_files());
        let volume = scratch.volume();
        let ours = cold.ours(megabytes, || get_ours(&volume, size));
        chill([path.clone()]);
        let local = cold.local(megabytes, || get_local(&path, size));
        content.compare(ours, local);

        volume.remove_file("/copy").expect("it can go");
        volume.sync().expect("its blocks are free again");
        std::fs::remove_file(&path).expect("it can go");
    }
    vec![put, warm, cold]
}

/// Small reads at random places of a cached file.
#[allow(clippy::cast_precision_loss, reason = "counts of a benchmark")]
#[allow(clippy::disallowed_methods, reason = "the other side of the comparison")]
fn small_reads(scratch: &Scratch, size: &CopySize, content: &mut CopiedContent) -> ProcessPair {
    let mut pair = ProcessPair::new("random reads of 4 KiB, cached", "reads");
    let volume = scratch.volume();
    let path = scratch.host_directory().join("copy");
    put_ours(&volume, content, size);
    put_local(&path, content, size);
    let (ours, local) = (
        volume.open("/copy", OpenOptions::new().read(true)).expect("it is there"),
        File::open(&path).expect("it is there"),
    );
    let blocks = size.file_mib * TRANSFER / SMALL;
    let read = |seed: u64, read: &dyn Fn(u64, &mut [u8])| {
        let (mut rng, mut sum) = (Rng::new(seed), 0_u64);
        let mut buffer = [0; SMALL];
        for _ in 0..size.reads {
            read((rng.index(blocks) * SMALL) as u64, &mut buffer);
            sum = sum.wrapping_mul(31).wrapping_add(u64::from(buffer[0]));
        }
        sum
    };
    let from_ours = |offset, buffer: &mut [u8]| {
        assert_eq!(ours.read_at(offset, buffer).expect("it is read"), SMALL);
    };
    let from_local =
        |offset, buffer: &mut [u8]| local.read_exact_at(buffer, offset).expect("it is read");
    for round in 0..size.rounds as u64 {
        let count = size.reads as f64;
        let sum = pair.ours(count, || read(round, &from_ours));
        content.compare(sum, pair.local(count, || read(round, &from_local)));
    }
    pair
}

/// Making, looking up and removing empty files in one directory, none of it synced.
#[allow(clippy::cast_precision_loss, reason = "counts of a benchmark")]
fn names(scratch: &Scratch, size: &CopySize) -> Vec<ProcessPair> {
    let pair = |what: &str, unit| ProcessPair::new(format!("{what}, not synced"), unit);
    let mut create = pair("create empty files", "creates");
    let mut stat = pair("stat them by path", "stats");
    let mut remove = pair("remove them", "removes");
    let volume = scratch.volume();
    let host = scratch.host_directory();
    let each = |act: &dyn Fn(&str)| (0..size.names).for_each(|i| act(&format!("file-{i}")));
    let ours = |round: usize, name: &str| format!("/names-{round}/{name}");
    let local = |round: usize, name: &str| host.join(format!("names-{round}/{name}"));
    let count = size.names as f64;
    for round in 0..size.rounds {
        volume.mkdir(ours(round, "")).expect("it can be made");
        std::fs::create_dir(local(round, "")).expect("it can be made");
        create.ours(count, || each(&|name| drop(volume.create(ours(round, name)).expect("made"))));
        create.local(count, || each(&|name| drop(File::create(local(round, name)).expect("made"))));
        stat.ours(count, || each(&|name| _ = volume.metadata(ours(round, name)).expect("there")));
        stat.local(count, || each(&|name| _ = local(round, name).metadata().expect("there")));
    }
    // Only now: ext4 makes files slowly where others were just removed.
    for round in 0..size.rounds {
        remove.ours(count, || each(&|name| volume.remove_file(ours(round, name)).expect("gone")));
        remove
            .local(count, || each(&|name| std::fs::remove_file(local(round, name)).expect("gone")));
    }
    vec![create, stat, remove]
}

/// Small files, each of them durable before the next is made.
#[allow(clippy::cast_precision_loss, reason = "counts of a benchmark")]
fn synced_files(scratch: &Scratch, size: &CopySize, content: &CopiedContent) -> ProcessPair {
    let mut pair = ProcessPair::new("write files of 4 KiB, each synced (local: fsync)", "files");
    let volume = scratch.volume();
    let host = scratch.host_directory();
    let data = content.bytes.slice(..SMALL);
    for _ in 0..size.rounds {
        pair.ours(size.synced_files as f64, || {
            for i in 0..size.synced_files {
                let file = volume.create(format!("/synced-{i}")).expect("it can be made");
                file.write_at(0, data.clone()).expect("it is written");
                file.sync().expect("it is durable");
            }
        });
        pair.local(size.synced_files as f64, || {
            for i in 0..size.synced_files {
                let file = File::create(host.join(format!("synced-{i}"))).expect("it can be made");
                file.write_all_at(&data, 0).expect("it is written");
                file.sync_all().expect("it is durable");
            }
        });
        for i in 0..size.synced_files {
            volume.remove_file(format!("/synced-{i}")).expect("it can go");
            std::fs::remove_file(host.join(format!("synced-{i}"))).expect("it can go");
        }
    }
    pair
}
