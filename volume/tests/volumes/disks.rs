//! Disks come to a volume that is in use, are drained, retired and removed, and nothing is lost.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test may panic; its clients are threads, beside the servers"
)]

use std::fs::{self, File};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;
use std::time::{Duration, Instant};

use blockio::geometry::SETS_MAX;
use bytes::Bytes;
use fileio::client::ask;
use fileio::protocol::*;
use futures::executor::block_on;
use runtime::ClientHandle;
use volume::{FormatOptions, RunOptions};

use crate::data_files::disks;
use crate::running::{check, run, wait_until};

const DISK_BYTES: u64 = 48 << 20;
const FILE_BYTES: usize = 1 << 20;

fn format(directory: &Path) {
    let options = FormatOptions {
        disk_nodes: 2,
        disks_per_node: 2,
        disk_bytes: DISK_BYTES,
        fs_nodes: 4,
        ..FormatOptions::default()
    };
    volume::format(directory, &options).unwrap();
}

fn name(number: u64) -> Name {
    Name::new(format!("file {number}").into_bytes()).unwrap()
}

fn content(number: u64) -> Vec<u8> {
    let mut rng = runtime::seed::Rng::new(number);
    (0..FILE_BYTES / 8).flat_map(|_| rng.bits().to_le_bytes()).collect()
}

fn put(client: &ClientHandle, number: u64) {
    try_put(client, number).unwrap();
}

fn try_put(client: &ClientHandle, number: u64) -> Result<(), Error> {
    let call = Create {
        who: Credentials::root(),
        call: CallId { client: 1, number },
        directory: ROOT,
        name: name(number),
        existing: Existing::Refuse {},
        change: Change::default(),
        durable: false,
    };
    let made = block_on(ask(client, call))?.attributes;
    let file = Handle { ino: made.ino, generation: made.generation };
    let data = vec![Bytes::from(content(number))];
    let call = Write { who: Credentials::root(), file, offset: 0, data, durable: false };
    block_on(ask(client, call))?;
    block_on(ask(client, Commit { file })).map(drop)
}

fn space(client: &ClientHandle) -> Space {
    block_on(ask(client, GetSpace { partition: 0 })).unwrap()
}

fn check_files(client: &ClientHandle, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let call = Lookup { who: Credentials::root(), directory: ROOT, name: name(number) };
        let found = block_on(ask(client, call)).unwrap();
        let file = Handle { ino: found.ino, generation: found.generation };
        let call = Read { who: Credentials::root(), file, offset: 0, length: FILE_BYTES as u32 };
        let read = block_on(ask(client, call)).unwrap().data.concat();
        assert!(read == content(number), "file {number}");
    }
}

fn report(client: &ClientHandle, disk_node: u32, disk: u32) -> DiskReport {
    let mut all = disks(client).disks.into_iter();
    all.find(|report| (report.disk_node, report.disk) == (disk_node, disk)).unwrap()
}

fn change(client: &ClientHandle, change: DiskChange) -> Result<(), Error> {
    block_on(ask(client, ChangeDisks { who: Credentials::root(), root: ROOT, change }))
}

fn add(directory: &Path, client: &ClientHandle, disk_node: u32, bytes: u64) -> u32 {
    try_add(directory, client, disk_node, bytes).unwrap()
}

fn try_add(
    directory: &Path,
    client: &ClientHandle,
    disk_node: u32,
    bytes: u64,
) -> Result<u32, Error> {
    let disk = disks(client).next[disk_node as usize];
    let path = directory.join(format!("disks/n{disk_node}d{disk}"));
    let file = File::create_new(&path).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(&path, mode).unwrap();
    file.set_len(bytes).unwrap();
    let disks = vec![AddedDisk { disk_node, disk, bytes }];
    change(client, DiskChange::Add { disks }).map(|()| disk)
}

/// What is called available can be written, whatever node it is at.
fn fill(client: &ClientHandle, first: u64) {
    let available = space(client).available_bytes;
    let mut numbers = first..first + 2 * available / FILE_BYTES as u64;
    let full = numbers.find(|&number| try_put(client, number) == Err(Error::NoSpace {}));
    let written = (full.unwrap() - first) * FILE_BYTES as u64;
    assert!(written + FILE_BYTES as u64 > available / 100 * 98, "{written} of {available}");
    let left = space(client).available_bytes;
    assert!(left < available / 50 + FILE_BYTES as u64, "{left} of {available} are left");
}

fn wait_until_drained(client: &ClientHandle, disk_node: u32, disk: u32) {
    wait_until("the disk is drained", || {
        report(client, disk_node, disk).condition == DiskCondition::Drained {}
    });
}

/// Drains a disk.
fn drain(client: &ClientHandle, disk_node: u32, disk: u32) {
    change(client, DiskChange::Drain { disk_node, disk }).unwrap();
    wait_until_drained(client, disk_node, disk);
}

/// Drains a disk with files, while its state is asked for again and again, and uses it again; the
/// time and bytes of the drain.
fn time_drain(client: &ClientHandle, disk_node: u32, disk: u32) -> (Duration, u64) {
    let bytes = report(client, disk_node, disk).used_bytes;
    let begun = Instant::now();
    drain(client, disk_node, disk);
    let took = begun.elapsed();
    change(client, DiskChange::Keep { disk_node, disk }).unwrap();
    (took, bytes)
}

/// Writes a file again and again, and has each time synced: nearly always there is a request.
fn rewrite(client: &ClientHandle, number: u64, is_over: &AtomicBool) {
    let call = Lookup { who: Credentials::root(), directory: ROOT, name: name(number) };
    let found = block_on(ask(client, call)).unwrap();
    let file = Handle { ino: found.ino, generation: found.generation };
    let data = Bytes::from(content(number));
    while !is_over.load(Ordering::Relaxed) {
        let (who, data) = (Credentials::root(), vec![data.clone()]);
        block_on(ask(client, Write { who, file, offset: 0, data, durable: true })).unwrap();
    }
}

#[test]
fn moves_are_fast_without_other_work_and_give_way_to_it() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("volume");
    format(&directory);
    let running = run(&directory);
    let client = running.client_handle();
    (0..72).for_each(|number| put(&client, number));
    change(&client, DiskChange::SetPace { pace: "gentle".to_owned() }).unwrap();
    let (idle, bytes) = time_drain(&client, 0, 0);
    let is_over = AtomicBool::new(false);
    let (busy, busy_bytes) = scope(|threads| {
        for number in 0..4 {
            let (client, is_over) = (running.client_handle(), &is_over);
            threads.spawn(move || rewrite(&client, number, is_over));
        }
        let drained = time_drain(&client, 1, 0);
        is_over.store(true, Ordering::Relaxed);
        drained
    });
    println!("idle: {bytes} bytes in {idle:?}; busy: {busy_bytes} bytes in {busy:?}");
    // The floor is 8 MiB/s, the ceiling 256.
    let at_floor = |bytes: u64| Duration::from_millis(bytes * 1000 / (8 << 20));
    assert!(idle < at_floor(bytes) * 3 / 4, "{bytes} bytes in {idle:?} without other work");
    assert!(busy > at_floor(busy_bytes) * 2 / 5, "{busy_bytes} bytes in {busy:?} under load");
    check_files(&client, 0..72);
    running.stop().unwrap();
    check(&directory);
}

#[test]
fn a_disk_is_added_and_used_and_another_is_drained_retired_and_removed() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("volume");
    format(&directory);
    let running = run(&directory);
    let client = running.client_handle();
    (0..40).for_each(|number| put(&client, number));
    let before = space(&client);
    let used = report(&client, 0, 1).used_bytes;
    assert!(used > 4 << 20, "{used}");

    let added = add(&directory, &client, 1, 2 * DISK_BYTES);
    assert_eq!(added, 2);
    assert!(report(&client, 1, 2).path.ends_with("disks/n1d2"));
    let who = Credentials { uid: 4711, ..Credentials::root() };
    let seen = block_on(ask(&client, GetDisks { who, root: ROOT })).unwrap();
    assert!(seen.disks.iter().all(|disk| disk.path.is_empty()), "paths are for operators");
    let after = space(&client);
    let more = after.available_bytes - before.available_bytes;
    assert!(more > 2 * DISK_BYTES * 9 / 10, "{more} bytes more");
    (40..60).for_each(|number| put(&client, number));
    assert!(report(&client, 1, 2).used_bytes > 1 << 20, "the new disk is used");

    let drain = DiskChange::Drain { disk_node: 0, disk: 1 };
    let refused = change(&client, DiskChange::Retire { disk_node: 0, disk: 1 }).unwrap_err();
    assert_eq!(refused, DiskRefusal::NotDraining {}.into());
    change(&client, drain.clone()).unwrap();
    change(&client, drain).unwrap();
    (60..80).for_each(|number| put(&client, number));
    wait_until_drained(&client, 0, 1);
    change(&client, DiskChange::Retire { disk_node: 0, disk: 1 }).unwrap();
    assert_eq!(report(&client, 0, 1).condition, DiskCondition::Retired {});
    fs::remove_file(directory.join("disks/n0d1")).unwrap();
    check_files(&client, 0..80);
    running.stop().unwrap();
    check(&directory);

    let running = run(&directory);
    let client = running.client_handle();
    check_files(&client, 0..80);
    (80..90).for_each(|number| put(&client, number));
    // As after a crash, and with the record lost: the superblocks tell all of it.
    drop(running);
    fs::remove_dir_all(directory.join("coordination")).unwrap();
    let running = run(&directory);
    let client = running.client_handle();
    check_files(&client, 0..90);
    assert_eq!(report(&client, 0, 1).condition, DiskCondition::Retired {});
    assert_eq!(disks(&client).next, [2, 3]);
    fill(&client, 90);
    running.stop().unwrap();
    check(&directory);
}

#[test]
fn a_volume_with_as_many_disk_sets_as_there_may_be_says_so_and_goes_on() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("volume");
    format(&directory);
    let running = run(&directory);
    let client = running.client_handle();
    let born = 1;
    for _ in born..SETS_MAX {
        add(&directory, &client, 0, 1 << 20);
    }
    let full = try_add(&directory, &client, 0, 1 << 20).unwrap_err();
    assert_eq!(full, DiskRefusal::TooManySets { max: SETS_MAX as u32 }.into());
    let next = disks(&client).next[0];
    fs::remove_file(directory.join(format!("disks/n0d{next}"))).unwrap();
    (0..10).for_each(|number| put(&client, number));
    running.stop().unwrap();
    fs::remove_dir_all(directory.join("coordination")).unwrap();
    let running = run(&directory);
    check_files(&running.client_handle(), 0..10);
    assert_eq!(disks(&running.client_handle()).disks.len(), 4 + SETS_MAX - born);
    running.stop().unwrap();
    check(&directory);
}

#[test]
fn the_disks_of_a_volume_are_listed_while_one_is_missing() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("volume");
    format(&directory);
    let running = run(&directory);
    (0..10).for_each(|number| put(&running.client_handle(), number));
    // The numbers of disks are not their places among those in use.
    let client = running.client_handle();
    drain(&client, 1, 0);
    change(&client, DiskChange::Retire { disk_node: 1, disk: 0 }).unwrap();
    running.stop().unwrap();
    fs::remove_file(directory.join("disks/n1d1")).unwrap();
    let (running, missing) = volume::open_degraded(&directory, &RunOptions::default()).unwrap();
    assert_eq!(missing.disks.len(), 1);
    assert!(missing.disks[0].path.ends_with("disks/n1d1"), "{:?}", missing.disks);
    let client = running.client_handle();
    for disk in disks(&client).disks {
        let wanted = match (disk.disk_node, disk.disk) {
            (1, 1) => DiskCondition::Offline {},
            (1, 0) => DiskCondition::Retired {},
            _ => DiskCondition::Online {},
        };
        assert_eq!(disk.condition, wanted, "{disk:?}");
    }
    assert!(space(&client).free_bytes > 0);
    assert_eq!(space(&client).available_bytes, 0, "it is only read");
    let refused = change(&client, DiskChange::Balance {}).unwrap_err();
    assert_eq!(refused, Error::ReadOnly {});
    running.stop().unwrap();
}

#[test]
fn a_drain_that_meets_data_that_cannot_be_read_says_so_and_ends_once_it_is_gone() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("volume");
    format(&directory);
    let running = run(&directory);
    (0..10).for_each(|number| put(&running.client_handle(), number));
    running.stop().unwrap();
    let (disk_node, disk) = damage(&directory, &content(3)[4096..8192]);
    let running = run(&directory);
    let client = running.client_handle();
    change(&client, DiskChange::Drain { disk_node, disk }).unwrap();
    wait_until("what is in the way is told", || {
        disks(&client).trouble.contains("`mdfs check --files`")
    });
    let call = CallId { client: 1, number: 1000 };
    let (who, directory_of) = (Credentials::root(), ROOT);
    let remove = Remove { who, call, directory: directory_of, name: name(3), durable: true };
    block_on(ask(&client, remove)).unwrap();
    wait_until_drained(&client, disk_node, disk);
    assert_eq!(disks(&client).trouble, "");
    running.stop().unwrap();
    check(&directory);
}

/// Changes a bit of the block of a disk that holds `bytes`; which disk.
fn damage(directory: &Path, bytes: &[u8]) -> (u32, u32) {
    for (disk_node, disk) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let path = directory.join(format!("disks/n{disk_node}d{disk}"));
        let content = fs::read(&path).unwrap();
        if let Some(block) = content.chunks(4096).position(|block| block == bytes) {
            let file = File::options().write(true).open(&path).unwrap();
            let at = block as u64 * 4096 + 9;
            std::os::unix::fs::FileExt::write_all_at(&file, &[bytes[9] ^ 1], at).unwrap();
            return (disk_node, disk);
        }
    }
    panic!("no disk has it");
}
