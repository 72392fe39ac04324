//! Volumes with files whose content is known, and what a client and an operator do with them.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::fs;
use std::path::Path;

use bytes::Bytes;
use fileio::client::ask;
use fileio::protocol::*;
use futures::executor::block_on;
use runtime::seed::Rng;
use runtime::{ClientHandle, NodeId};
use volume::{DiskName, FormatOptions, RedundancyClass, RunOptions};

use super::running::{run, wait_until};

pub(crate) const PART: usize = 1 << 20;
pub(crate) const NODES: u32 = 6;
pub(crate) const STRIPE: usize = 64 << 10;
pub(crate) const BLOCK: usize = blockio::BLOCK_SIZE;
/// Small files, files of some blocks, and files of many chunks.
pub(crate) const LENGTHS: [usize; 5] = [0, 7, 5000, 200_000, 3 * PART + 11];
/// What is in a file, over and over. Its blocks differ.
pub(crate) const PATTERN: usize = 4099;
pub(crate) const FILES: u64 = 40;

pub(crate) fn shape(
    disk_nodes: u32,
    disks_per_node: u32,
    redundancy: RedundancyClass,
) -> FormatOptions {
    FormatOptions {
        disk_nodes,
        disks_per_node,
        disk_bytes: 96 << 20,
        fs_nodes: NODES,
        redundancy,
        ..FormatOptions::default()
    }
}

pub(crate) fn name(number: u64) -> Name {
    Name::new(format!("file {number}").into_bytes()).unwrap()
}

pub(crate) fn content(number: u64) -> Vec<u8> {
    let length = LENGTHS[number as usize % LENGTHS.len()];
    let mut pattern = vec![0; PATTERN];
    Rng::new(number).fill(&mut pattern);
    let mut bytes = pattern.repeat(length.div_ceil(PATTERN));
    bytes.truncate(length);
    bytes
}

pub(crate) fn create(client: &ClientHandle, number: u64) -> Handle {
    try_create(client, number).unwrap()
}

pub(crate) fn try_create(client: &ClientHandle, number: u64) -> Result<Handle, Error> {
    let call = Create {
        who: Credentials::root(),
        call: CallId { client: 1, number },
        directory: ROOT,
        name: name(number),
        existing: Existing::Refuse {},
        change: Change::default(),
        durable: false,
    };
    Ok(handle_of(&block_on(ask(client, call))?.attributes))
}

pub(crate) fn write(
    client: &ClientHandle,
    file: Handle,
    offset: u64,
    bytes: &[u8],
) -> Result<(), Error> {
    let data = vec![Bytes::copy_from_slice(bytes)];
    let call = Write { who: Credentials::root(), file, offset, data, durable: false };
    block_on(ask(client, call)).map(drop)
}

pub(crate) fn read(client: &ClientHandle, number: u64) -> Result<Vec<u8>, Error> {
    let who = Credentials::root();
    let call = Lookup { who: who.clone(), directory: ROOT, name: name(number) };
    let file = handle_of(&block_on(ask(client, call))?);
    let mut bytes = Vec::new();
    loop {
        let (offset, length) = (bytes.len() as u64, PART as u32);
        let call = Read { who: who.clone(), file, offset, length };
        let part = block_on(ask(client, call))?.data.concat();
        if part.is_empty() {
            return Ok(bytes);
        }
        bytes.extend(part);
    }
}

/// A volume with files, stopped.
pub(crate) fn fill(directory: &Path, options: &FormatOptions) {
    volume::format(directory, options).unwrap();
    let running = run(directory);
    let client = running.client_handle();
    for number in 0..FILES {
        put(&client, number).unwrap();
    }
    running.flush().unwrap();
    running.stop().unwrap();
}

/// Changes a byte of each block of a disk that is neither a root, nor of the log, nor of a page.
pub(crate) fn damage_data(disk: &Path) {
    let mut bytes = fs::read(disk).unwrap();
    let first = (BLOCK * (1 + 8 * NODES as usize)).next_multiple_of(STRIPE);
    for stripe in bytes[first..].chunks_exact_mut(STRIPE) {
        if stripe.starts_with(b"mdLS") {
            continue;
        }
        let mut at = 0;
        while at < STRIPE {
            if stripe[at..].starts_with(b"mdPG") {
                let body: [u8; 4] = stripe[at + 48..at + 52].try_into().unwrap();
                at += (56 + u32::from_le_bytes(body) as usize).next_multiple_of(BLOCK);
            } else {
                stripe[at + 100] ^= 1;
                at += BLOCK;
            }
        }
    }
    fs::write(disk, bytes).unwrap();
}

/// Scrubs all nodes; what is wrong, and whether it has been mended.
pub(crate) fn scrub(client: &ClientHandle, repair: bool) -> Vec<ScrubFlaw> {
    let mut flaws = Vec::new();
    for node in (0..NODES).map(NodeId::fs) {
        let mut after = Some(Vec::new());
        while let Some(from) = after {
            let who = Credentials::root();
            let call = Scrub { who, root: ROOT, after: from, data: true, repair };
            let part = block_on(client.spawn(node, call)).unwrap();
            flaws.extend(part.flaws);
            after = part.next;
        }
    }
    flaws
}

pub(crate) fn read_all(client: &ClientHandle, until: u64) {
    for number in 0..until {
        assert!(read(client, number).unwrap() == content(number), "file {number}");
    }
}

pub(crate) fn put(client: &ClientHandle, number: u64) -> Result<(), Error> {
    fill_file(client, try_create(client, number)?, number)
}

/// Writes all of file `number`.
pub(crate) fn fill_file(client: &ClientHandle, file: Handle, number: u64) -> Result<(), Error> {
    let content = content(number);
    let mut parts = content.chunks(PART).enumerate();
    parts.try_for_each(|(part, bytes)| write(client, file, (part * PART) as u64, bytes))
}

pub(crate) fn disks(client: &ClientHandle) -> DiskList {
    block_on(ask(client, GetDisks { who: Credentials::root(), root: ROOT })).unwrap()
}

/// Bytes of the disks that are in use.
pub(crate) fn raw_used(client: &ClientHandle) -> u64 {
    let space = block_on(ask(client, GetSpace { partition: 0 })).unwrap();
    space.raw_total_bytes - space.raw_free_bytes
}

pub(crate) fn condition(client: &ClientHandle, disk: DiskName) -> DiskCondition {
    let list = disks(client);
    let is_it =
        |report: &&DiskReport| (report.disk_node, report.disk) == (disk.disk_node, disk.disk);
    list.disks.iter().find(is_it).unwrap().condition
}

pub(crate) fn wait_until_retired(client: &ClientHandle, disk: DiskName) {
    wait_until("what was on the lost disk is on others", || {
        condition(client, disk) == DiskCondition::Retired {}
    });
}

/// All sets of this number of disks of a volume.
pub(crate) fn sets_of_disks(count: u32, shape: &FormatOptions) -> Vec<Vec<DiskName>> {
    let disks = disks_of(shape);
    let sets = (0..1_u32 << disks.len()).filter(|set| set.count_ones() == count);
    let chosen = |set: u32| {
        let disks = disks.iter().enumerate().filter(move |(at, _)| set >> at & 1 == 1);
        disks.map(|(_, disk)| *disk).collect()
    };
    sets.map(chosen).collect()
}

/// The disks of a new volume.
pub(crate) fn disks_of(shape: &FormatOptions) -> Vec<DiskName> {
    let nodes = 0..shape.disk_nodes;
    let disks = nodes.flat_map(|disk_node| {
        (0..shape.disks_per_node).map(move |disk| DiskName { disk_node, disk })
    });
    disks.collect()
}

/// Takes disks away, and counts the files that cannot be read without them.
pub(crate) fn lost_without_disks(volume: &Path, taken: &[DiskName], files: u64) -> u64 {
    let count = |client: &ClientHandle| {
        let lost = (0..files).filter(|&number| match read(client, number) {
            Ok(bytes) => {
                assert!(bytes == content(number), "file {number} has other bytes");
                false
            }
            Err(_) => true,
        });
        lost.count() as u64
    };
    without_disks(volume, taken, count)
}

/// Takes disks away while `look` looks at the volume. The metadata of all nodes is there without
/// them.
pub(crate) fn without_disks<T>(
    volume: &Path,
    taken: &[DiskName],
    look: impl FnOnce(&ClientHandle) -> T,
) -> T {
    let path = |disk| volume.join(format!("disks/{disk}"));
    let aside = |disk| volume.join(format!("aside-{disk}"));
    for &disk in taken {
        fs::rename(path(disk), aside(disk)).unwrap();
    }
    assert!(volume::open(volume, &RunOptions::default()).is_err());
    let (running, missing) = volume::open_degraded(volume, &RunOptions::default()).unwrap();
    assert_eq!((missing.disks.len(), missing.nodes.len()), (taken.len(), 0), "{taken:?}");
    let seen = look(&running.client_handle());
    running.stop().unwrap();
    for &disk in taken {
        fs::rename(aside(disk), path(disk)).unwrap();
    }
    seen
}
