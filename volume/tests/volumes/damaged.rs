//! One of several disks is damaged where it holds metadata: the volume opens all the same, with
//! every name and every byte.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use fileio::client::ask;
use fileio::protocol::*;
use futures::executor::block_on;
use runtime::ClientHandle;
use runtime::seed::{Rng, with_seed};
use volume::{CheckOptions, FormatOptions, RunOptions, RunningVolume, VolumeError};

use crate::disk_files::copy_all;

/// Volumes that are damaged, each in another way.
const VOLUMES: u64 = if cfg!(debug_assertions) { 120 } else { 400 };
const FILES: u64 = 400;
const NODES: u32 = 4;
const DISKS: [&str; 2] = ["n0d0", "n1d0"];
const BLOCK: usize = 4096;
const STRIPE: usize = 64 << 10;

fn open(directory: &Path) -> Result<RunningVolume, VolumeError> {
    let options = RunOptions { threads: 2, cache_bytes: 32 << 20, ..RunOptions::default() };
    volume::open(directory, &options)
}

fn name(number: u64) -> Name {
    Name::new(format!("a-name-that-fills-pages-of-the-tree-{number:0100}").into_bytes()).unwrap()
}

fn content(number: u64) -> Vec<u8> {
    let mut bytes = vec![0; 1 + 977 * (number as usize % 9)];
    Rng::new(number).fill(&mut bytes);
    bytes
}

/// A volume with files, stopped.
fn fill(directory: &Path) {
    let options = FormatOptions {
        disk_nodes: DISKS.len() as u32,
        disk_bytes: 16 << 20,
        fs_nodes: NODES,
        ..FormatOptions::default()
    };
    volume::format(directory, &options).unwrap();
    let running = open(directory).unwrap();
    let (handle, who) = (running.client_handle(), Credentials::root());
    for number in 0..FILES {
        let create = Create {
            who: who.clone(),
            call: CallId { client: 1, number },
            directory: ROOT,
            name: name(number),
            existing: Existing::Refuse {},
            change: Change::default(),
            durable: false,
        };
        let file = handle_of(&block_on(ask(&handle, create)).unwrap().attributes);
        let data = vec![Bytes::from(content(number))];
        let write = Write { who: who.clone(), file, offset: 0, data, durable: false };
        block_on(ask(&handle, write)).unwrap();
    }
    running.flush().unwrap();
    running.stop().unwrap();
}

/// Reads everything and compares.
fn read_all(handle: &ClientHandle, how: &str) {
    for number in 0..FILES {
        let who = Credentials::root();
        let lookup = Lookup { who: who.clone(), directory: ROOT, name: name(number) };
        let found = block_on(ask(handle, lookup));
        let file = handle_of(&found.unwrap_or_else(|error| panic!("{how}: {number}: {error}")));
        let read = Read { who, file, offset: 0, length: 64 << 10 };
        let read = block_on(ask(handle, read));
        let read = read.unwrap_or_else(|error| panic!("{how}: {number}: {error}"));
        assert!(read.data.concat() == content(number), "{how}: {number} has other bytes");
    }
}

/// What a disk holds besides data and free space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Superblock,
    Roots,
    Log,
    Page,
}

/// The parts of a disk, by the first byte of each block.
fn parts(disk: &[u8]) -> BTreeMap<usize, Part> {
    let slots = BLOCK..BLOCK * (1 + 8 * NODES as usize);
    let mut parts = BTreeMap::from([(0, Part::Superblock)]);
    parts.extend(slots.clone().step_by(BLOCK).map(|slot| (slot, Part::Roots)));
    for stripe in (slots.end.next_multiple_of(STRIPE)..disk.len() - BLOCK).step_by(STRIPE) {
        let blocks = (stripe..(stripe + STRIPE).min(disk.len() - BLOCK)).step_by(BLOCK);
        let is_log = disk[stripe..].starts_with(b"mdLS");
        for block in blocks {
            if is_log {
                parts.insert(block, Part::Log);
            } else if disk[block..].starts_with(b"mdPG") {
                let body: [u8; 4] = disk[block + 48..block + 52].try_into().unwrap();
                let length = 56 + u32::from_le_bytes(body) as usize;
                let page = (0..length).step_by(BLOCK);
                parts.extend(page.map(|offset| (block + offset, Part::Page)));
            }
        }
    }
    parts
}

/// Damages a disk, and says how: the blocks that were hit, and whether they are zeros now.
fn damage(rng: &mut Rng, disk: &mut [u8]) -> (Vec<(usize, Part)>, bool) {
    let parts: Vec<(usize, Part)> = parts(disk).into_iter().collect();
    let of = |part| parts.iter().copied().filter(move |(_, other)| *other == part);
    let hit: Vec<(usize, Part)> = match rng.below(6) {
        // One kind of thing, all of it.
        0 => of(Part::Page).collect(),
        1 => of(Part::Roots).collect(),
        2 => of(Part::Log).collect(),
        // What lies side by side.
        3 | 4 => {
            let first = rng.index(parts.len());
            let count = 1 + rng.index(64);
            parts.iter().copied().skip(first).take(count).collect()
        }
        // Here and there.
        _ => (0..=rng.index(20)).map(|_| parts[rng.index(parts.len())]).collect(),
    };
    let zeros = rng.chance(1, 2);
    for &(block, _) in &hit {
        let bytes: Range<usize> = block..block + BLOCK;
        if zeros {
            disk[bytes].fill(0);
        } else {
            for _ in 0..=rng.below(20) {
                disk[block + rng.index(BLOCK)] ^= 1 << rng.below(8);
            }
        }
    }
    (hit, zeros)
}

/// A look without a mount finds every name.
fn check(directory: &Path, how: &str) {
    let options =
        CheckOptions { data: true, files: false, rate_bytes: 0, on_step: Arc::new(|_| {}) };
    let found = volume::check(directory, &options).unwrap();
    assert_eq!((found.lost_nodes, found.summary.names), (0, FILES), "{how}");
}

#[test]
fn whatever_happens_to_the_metadata_of_one_disk_everything_is_read() {
    let home = tempfile::tempdir().unwrap();
    let (whole, directory) = (home.path().join("whole"), home.path().join("volume"));
    fill(&whole);
    let disks = DISKS.map(|name| fs::read(whole.join("disks").join(name)).unwrap());
    let (mut opened, mut refused) = (0, 0);
    with_seed(|rng| {
        for _ in 0..VOLUMES {
            copy_all(&whole, &directory);
            let which = rng.index(DISKS.len());
            let (path, mut disk) =
                (directory.join("disks").join(DISKS[which]), disks[which].clone());
            let (hit, zeros) = damage(rng, &mut disk);
            fs::write(&path, disk).unwrap();
            let how = format!("{} of {hit:?} on {path:?}", if zeros { "zeros" } else { "flips" });
            check(&directory, &how);
            match open(&directory) {
                Ok(running) => {
                    read_all(&running.client_handle(), &how);
                    running.stop().unwrap();
                    opened += 1;
                }
                // An old image of the disk looks like that (ADR 14).
                Err(VolumeError::OldDisk { path: named, .. }) => {
                    let may_be = |&(_, part): &_| matches!(part, Part::Roots | Part::Log);
                    assert!(named == path && zeros && hit.iter().any(may_be), "{how}");
                    refused += 1;
                }
                Err(error) => panic!("{how}: {error}"),
            }
        }
    });
    println!("{opened} opened, {refused} refused as old");
    assert!(refused < VOLUMES / 3, "{refused} of {VOLUMES}");
}
