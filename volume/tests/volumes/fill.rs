//! What a volume calls available can be written, to one file or to many, new or after files were
//! removed here and there; and it comes back when all is removed.
#![allow(clippy::disallowed_methods, reason = "it waits for a volume on real disks")]

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fileio::client::ask;
use fileio::protocol::*;
use futures::executor::block_on;
use futures::future::join_all;
use meta::store::GroupLayout;
use runtime::ClientHandle;
use volume::{FormatOptions, RunOptions, RunningVolume};

use crate::disk_files::make_disks;

/// What a volume is like.
struct VolumeShape {
    name: &'static str,
    mib: u64,
    /// Disk nodes, and disks of each.
    disks: (u32, u32),
    /// 0 for as many as suit the size.
    nodes: u32,
    stripe_kib: u32,
    /// MiB of each disk, of disk nodes of its own; empty if all are alike.
    uneven: &'static [u64],
}

const fn shape(
    name: &'static str,
    mib: u64,
    disks: (u32, u32),
    nodes: u32,
    stripe_kib: u32,
) -> VolumeShape {
    VolumeShape { name, mib, disks, nodes, stripe_kib, uneven: &[] }
}

/// Disks of these sizes in MiB, each of a disk node of its own.
const fn uneven(name: &'static str, mib: u64, uneven: &'static [u64], nodes: u32) -> VolumeShape {
    let disks = (uneven.len() as u32, 1);
    VolumeShape { name, mib, disks, nodes, stripe_kib: 64, uneven }
}

/// Volumes of small files are in `full_of_names.rs`.
const SHAPES: [VolumeShape; 14] = [
    shape("256 MiB, one disk", 256, (1, 1), 0, 64),
    shape("256 MiB, 2 x 2 disks", 256, (2, 2), 0, 64),
    uneven("256 MiB, disks of 1:2:5", 256, &[32, 64, 160], 4),
    shape("512 MiB, stripes of 16 KiB", 512, (1, 1), 0, 16),
    shape("256 MiB, one node", 256, (1, 1), 1, 64),
    shape("512 MiB, 64 nodes", 512, (1, 1), 64, 64),
    shape("1 GiB, one disk", 1024, (1, 1), 0, 64),
    shape("1 GiB, 2 x 2 disks, 64 nodes", 1024, (2, 2), 64, 64),
    shape("1 GiB, 8 x 4 disks", 1024, (8, 4), 0, 64),
    shape("1 GiB, stripes of 1 MiB", 1024, (2, 1), 0, 1024),
    uneven("2 GiB, disks of 1:2:5", 2048, &[256, 512, 1280], 0),
    shape("2 GiB, 3 x 1 disks", 2048, (3, 1), 0, 64),
    shape("4 GiB, one disk", 4096, (1, 1), 0, 64),
    shape("4 GiB, 64 x 8 disks, 64 nodes", 4096, (64, 8), 64, 64),
];

/// Shapes of the ordinary test, the first ones: a minute without optimization. All others are in
/// the ignored one.
const QUICK: usize = 3;

/// Bytes of one write.
const PIECE_BYTES: u64 = 256 << 10;
/// Writes at a time.
const WRITES: u64 = 16;
/// Bytes of each of many files.
const FILE_BYTES: u64 = 1 << 20;
/// Within this time all is back.
const BACK_MAX: Duration = Duration::from_secs(30);

/// What was seen when a volume was full.
#[derive(Clone, Copy)]
struct FullVolume {
    /// Bytes of data that were written.
    written: u64,
    /// Bytes that were called available.
    left: u64,
}

/// A volume that is filled.
struct FilledVolume {
    shape: &'static VolumeShape,
    running: RunningVolume,
    handle: ClientHandle,
    calls: u64,
    /// Bytes of what each node but one may keep of its last group, which no other can have.
    uneven_bytes: u64,
}

impl FilledVolume {
    fn new(directory: &Path, shape: &'static VolumeShape) -> Self {
        let disks = make_disks(&directory.with_extension("disks"), shape.uneven);
        let options = FormatOptions {
            disks,
            disk_nodes: shape.disks.0,
            disks_per_node: shape.disks.1,
            disk_bytes: (shape.mib << 20) / u64::from(shape.disks.0 * shape.disks.1),
            fs_nodes: shape.nodes,
            stripe_size: shape.stripe_kib << 10,
            ..FormatOptions::default()
        };
        let map = volume::format(directory, &options).unwrap();
        let group_stripes = GroupLayout::of(&map).stripes_of(0).count() as u64;
        let group_bytes = group_stripes * u64::from(map.geometry().stripe_size);
        let options = RunOptions { threads: 2, cache_bytes: 256 << 20, ..RunOptions::default() };
        let running = volume::open(directory, &options).unwrap();
        let uneven_bytes = u64::from(map.geometry().fs_nodes - 1) * group_bytes;
        Self { shape, handle: running.client_handle(), running, calls: 0, uneven_bytes }
    }

    fn call(&mut self) -> CallId {
        self.calls += 1;
        CallId { client: 1, number: self.calls }
    }

    fn available(&self) -> u64 {
        block_on(ask(&self.handle, GetSpace { partition: 0 })).unwrap().available_bytes
    }

    fn create(&mut self, name: &str) -> Result<Handle, Error> {
        let call = Create {
            who: Credentials::root(),
            call: self.call(),
            directory: ROOT,
            name: Name::new(name.as_bytes().to_vec()).unwrap(),
            existing: Existing::Refuse {},
            change: Change::default(),
            durable: false,
        };
        Ok(handle_of(&block_on(ask(&self.handle, call))?.attributes))
    }

    fn remove(&mut self, name: &str) {
        let call = Remove {
            who: Credentials::root(),
            call: self.call(),
            directory: ROOT,
            name: Name::new(name.as_bytes().to_vec()).unwrap(),
            durable: false,
        };
        block_on(ask(&self.handle, call)).unwrap();
    }

    /// Writes `length` bytes, or what there is space for; how many, and whether that was all.
    fn write(&self, file: Handle, length: u64) -> (u64, bool) {
        let piece = Bytes::from(vec![7; PIECE_BYTES as usize]);
        let mut written = 0;
        while written < length {
            let offsets = (0..WRITES).map(|step| written + step * PIECE_BYTES);
            let calls = offsets.filter(|&offset| offset < length).map(|offset| {
                let (who, data) = (Credentials::root(), vec![piece.clone()]);
                ask(&self.handle, Write { who, file, offset, data, durable: false })
            });
            let mut is_full = false;
            for answer in block_on(join_all(calls)) {
                match answer {
                    Ok(_) => written += PIECE_BYTES,
                    Err(Error::NoSpace {}) => is_full = true,
                    Err(error) => panic!("{}: {error}", self.shape.name),
                }
            }
            if is_full {
                return (written, false);
            }
        }
        (written, true)
    }

    /// Writes a file until the volume is full; what was accepted can be made durable.
    fn fill_one(&mut self, name: &str) -> FullVolume {
        let file = self.create(name).unwrap();
        let (written, is_whole) = self.write(file, u64::MAX);
        assert!(!is_whole);
        let full = FullVolume { written, left: self.available() };
        block_on(ask(&self.handle, Commit { file })).unwrap();
        full
    }

    /// Makes files until the volume is full; how many.
    fn fill_many(&mut self) -> (FullVolume, u64) {
        let (mut bytes, mut files) = (0, 0);
        while let Ok(file) = self.create(&format!("many-{files}")) {
            files += 1;
            let (written, is_whole) = self.write(file, FILE_BYTES);
            bytes += written;
            if !is_whole {
                break;
            }
        }
        let full = FullVolume { written: bytes, left: self.available() };
        self.running.flush().unwrap();
        (full, files)
    }

    /// Removes every second of the files from `first` on.
    fn remove_many(&mut self, first: u64, files: u64) {
        for number in (first..files).step_by(2) {
            self.remove(&format!("many-{number}"));
        }
    }

    /// The largest disk, of an empty volume, can be drained and taken out.
    fn drain_largest(&mut self) {
        let disk_node = self.shape.disks.0 - 1;
        let change = |change| {
            let who = Credentials::root();
            block_on(ask(&self.handle, ChangeDisks { who, root: ROOT, change })).unwrap();
        };
        let begun = Instant::now();
        change(DiskChange::Drain { disk_node, disk: 0 });
        let is_drained = || {
            let call = GetDisks { who: Credentials::root(), root: ROOT };
            let all = block_on(ask(&self.handle, call)).unwrap().disks;
            let disk = all.into_iter().find(|disk| disk.disk_node == disk_node).unwrap();
            disk.condition == DiskCondition::Drained {}
        };
        while !is_drained() {
            assert!(begun.elapsed() < BACK_MAX, "{}: the disk is not drained", self.shape.name);
            std::thread::sleep(Duration::from_millis(100));
        }
        println!("{}: the largest disk is drained after {:?}", self.shape.name, begun.elapsed());
        change(DiskChange::Retire { disk_node, disk: 0 });
    }

    /// At least 98 % of what was `available`, but for `uneven` bytes, was written before the volume
    /// was full, and then no more than 1 % is called available.
    fn check_full(&self, what: &str, (available, uneven): (u64, u64), full: FullVolume) {
        let (name, FullVolume { written, left }) = (self.shape.name, full);
        assert!(
            written >= (available - uneven) / 100 * 98,
            "{name}, {what}: {written} of {available} bytes could be written"
        );
        let per_mille = written * 1000 / available;
        println!(
            "{name}, {what}: {per_mille} of 1000 parts of {} MiB, {} KiB left",
            available >> 20,
            left >> 10
        );
        assert!(left <= available / 100, "{name}, {what}: full, with {left} bytes available");
    }

    /// All is removed: 99.5 % of what was `available` before is so again.
    fn check_back(&self, available: u64) {
        let begun = Instant::now();
        let mut back = 0;
        while begun.elapsed() < BACK_MAX {
            back = self.available();
            if back >= available / 1000 * 995 {
                let (name, per_mille) = (self.shape.name, back * 1000 / available);
                println!("{name}: {per_mille} of 1000 parts back after {:?}", begun.elapsed());
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("{}: {back} of {available} bytes came back", self.shape.name);
    }
}

fn fill(shape: &'static VolumeShape) {
    let home = tempfile::tempdir().unwrap();
    let mut volume = FilledVolume::new(&home.path().join("volume"), shape);
    let empty = volume.available();
    // Most of the volume.
    assert!(empty >= (shape.mib << 20) / 100 * LEAST_PERCENT, "{}: {empty}", shape.name);

    let full = volume.fill_one("one");
    volume.check_full("one file", (empty, 0), full);
    volume.remove("one");
    volume.check_back(empty);

    let available = volume.available();
    let (full, files) = volume.fill_many();
    // The group with which a node began, and did not fill, is for files of this node only.
    volume.check_full("many files", (available, volume.uneven_bytes), full);

    volume.remove_many(0, files);
    volume.check_back(files / 2 * FILE_BYTES / 10 * 9);
    let available = volume.available();
    let full = volume.fill_one("aged");
    volume.check_full("one file between others", (available, 0), full);

    volume.remove_many(1, files);
    volume.remove("aged");
    volume.check_back(empty);
    if !shape.uneven.is_empty() {
        volume.drain_largest();
    }
    volume.running.stop().unwrap();
}

/// Of each of these volumes at least this part is available at first, in percent.
const LEAST_PERCENT: u64 = 60;

#[test]
fn what_is_available_can_be_written_and_comes_back() {
    SHAPES[..QUICK].iter().for_each(fill);
}

#[test]
#[ignore = "minutes, and up to 5 GiB of disk"]
fn what_is_available_can_be_written_in_all_shapes() {
    SHAPES[QUICK..].iter().for_each(fill);
}
