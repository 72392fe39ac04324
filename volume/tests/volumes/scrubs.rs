//! All data of a volume is compared with its checksums in the background, and what is bad made
//! anew.
#![allow(clippy::disallowed_methods, reason = "the servers run in threads of their own")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use fileio::protocol::*;
use runtime::ClientHandle;
use volume::{RedundancyClass, RunOptions, RunningVolume};

use crate::data_files::*;
use crate::running::{check, run, wait_until};

const TWICE: RedundancyClass = RedundancyClass::Copies { count: 2 };
/// All of them are some megabytes.
const ALL: u64 = 12;

/// Serves the volume, and compares all its data each second.
fn run_with_scrubs(volume: &Path) -> RunningVolume {
    let scrub_interval = Duration::from_secs(1);
    let options =
        RunOptions { threads: 2, cache_bytes: 32 << 20, scrub_interval, ..RunOptions::default() };
    volume::open(volume, &options).unwrap()
}

/// A volume with files, and blocks of their data on each disk.
fn make(volume: &Path, disks: u32, redundancy: RedundancyClass) -> u64 {
    volume::format(volume, &shape(disks, 1, redundancy)).unwrap();
    let running = run(volume);
    let client = running.client_handle();
    for number in 0..ALL {
        put(&client, number).unwrap();
    }
    running.flush().unwrap();
    running.stop().unwrap();
    (0..ALL).map(|number| content(number).len().div_ceil(BLOCK) as u64).sum()
}

fn report(client: &ClientHandle, disk_node: u32) -> DiskReport {
    disks(client).disks.into_iter().find(|report| report.disk_node == disk_node).unwrap()
}

#[test]
fn bad_copies_are_found_and_made_anew_without_being_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let volume = directory.path().join("volume");
    let disk = |disk_node| volume.join(format!("disks/n{disk_node}d0"));
    let blocks = make(&volume, 2, TWICE);
    damage_data(&disk(1));
    let running = run_with_scrubs(&volume);
    let client = running.client_handle();
    wait_until("all was compared", || {
        let list = disks(&client);
        list.disks.iter().all(|disk| disk.scrubbed > 0)
    });
    let (whole, bad) = (report(&client, 0), report(&client, 1));
    assert_eq!((whole.repairs, whole.damaged), (0, 0));
    assert_eq!((bad.repairs, bad.repairs_in_day, bad.damaged), (blocks, blocks, 0));
    assert_eq!(scrub(&client, false), []);
    running.stop().unwrap();

    // What was found is known after a restart, and the data has two copies.
    let running = run(&volume);
    let client = running.client_handle();
    wait_until("it is read what was found", || report(&client, 1).repairs == blocks);
    assert!(report(&client, 1).scrubbed >= bad.scrubbed);
    running.stop().unwrap();
    damage_data(&disk(0));
    let running = run(&volume);
    read_all(&running.client_handle(), ALL);
    running.stop().unwrap();
}

/// Changes each second block of files on a disk, from block `first` of each file on. Returns how
/// many.
fn damage_each_second(disk: &Path, first: usize) -> u64 {
    let mut numbers = BTreeMap::new();
    for number in 0..ALL {
        let content = content(number);
        numbers.extend(
            content.chunks_exact(BLOCK).enumerate().map(|(at, block)| (block.to_vec(), at)),
        );
    }
    let (mut bytes, mut damaged) = (fs::read(disk).unwrap(), 0);
    for block in bytes.chunks_exact_mut(BLOCK) {
        if numbers.get(block).is_some_and(|at| at % 2 == first) {
            block[100] ^= 1;
            damaged += 1;
        }
    }
    fs::write(disk, bytes).unwrap();
    damaged
}

#[test]
fn a_read_finds_the_good_place_of_each_block_and_has_the_bad_ones_made_anew() {
    // With the smallest number of disks all data is on the two that are damaged.
    for (class, disk_count) in [(TWICE, 2), (RedundancyClass::Parity { data: 2, parity: 1 }, 3)] {
        let directory = tempfile::tempdir().unwrap();
        let volume = directory.path().join("volume");
        make(&volume, disk_count, class);
        let disk = |disk_node| volume.join(format!("disks/n{disk_node}d0"));
        let damaged = [0, 1].map(|disk_node| damage_each_second(&disk(disk_node), disk_node % 2));
        assert!(damaged.iter().all(|blocks| *blocks > 100), "{damaged:?}");
        let running = run(&volume);
        let client = running.client_handle();
        read_all(&client, ALL);
        let repairs = || disks(&client).disks.iter().map(|disk| disk.repairs).sum::<u64>();
        // A chunk is healed as a whole, of two copies both. Of a single block one copy is read, and
        // little data has copies where much has parity.
        let met = if class == TWICE { 2 * damaged[1] } else { damaged[0] };
        wait_until("what was met is made anew", || repairs() >= met);
        read_all(&client, ALL);
        running.stop().unwrap();
        let running = run_with_scrubs(&volume);
        let client = running.client_handle();
        wait_until("all was compared", || {
            disks(&client).disks.iter().all(|disk| disk.scrubbed > 0)
        });
        assert_eq!(scrub(&client, false), []);
        running.stop().unwrap();
    }
}

#[test]
fn what_has_no_good_copy_is_counted_and_stays() {
    let directory = tempfile::tempdir().unwrap();
    let volume = directory.path().join("volume");
    let blocks = make(&volume, 2, RedundancyClass::None {});
    for disk_node in 0..2 {
        damage_data(&volume.join(format!("disks/n{disk_node}d0")));
    }
    let running = run_with_scrubs(&volume);
    let client = running.client_handle();
    wait_until("all was compared", || disks(&client).disks.iter().all(|disk| disk.scrubbed > 0));
    let found = [0, 1].map(|disk_node| report(&client, disk_node));
    assert_eq!(found.iter().map(|disk| disk.damaged).sum::<u64>(), blocks);
    assert!(found.iter().all(|disk| disk.damaged > 0 && disk.repairs == 0));
    running.stop().unwrap();
}

#[test]
fn with_an_interval_of_zero_nothing_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let volume = directory.path().join("volume");
    make(&volume, 2, TWICE);
    let scrub_interval = Duration::ZERO;
    let options =
        RunOptions { threads: 2, cache_bytes: 32 << 20, scrub_interval, ..RunOptions::default() };
    let running = volume::open(&volume, &options).unwrap();
    std::thread::sleep(Duration::from_secs(3));
    let list = disks(&running.client_handle());
    assert!(list.scrubbed_bytes.is_none() && list.disks.iter().all(|disk| disk.scrubbed == 0));
    running.stop().unwrap();
    check(&volume);
}
