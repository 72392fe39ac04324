//! Whole chunks of files are in wide stripes: the volume outlives any one of its disks, and takes
//! less space than with copies.

use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::path::Path;

use bytes::Bytes;
use fileio::client::ask;
use fileio::protocol::*;
use futures::executor::block_on;
use runtime::ClientHandle;
use volume::{DataLoss, DiskName, FormatOptions, RedundancyClass, RunOptions};

use crate::data_files::*;
use crate::disk_files::{copy_all, make_disk};
use crate::running::{check, run, wait_until};

const TWO_AND_ONE: RedundancyClass = RedundancyClass::Parity { data: 2, parity: 1 };
const TWO_AND_TWO: RedundancyClass = RedundancyClass::Parity { data: 2, parity: 2 };
const THREE_AND_ONE: RedundancyClass = RedundancyClass::Parity { data: 3, parity: 1 };

fn data_bytes(files: u64) -> u64 {
    (0..files).map(|number| content(number).len() as u64).sum()
}

/// Bytes that the files take, at most, if most of them are in wide stripes: with copies they take
/// twice their bytes.
fn encoded_bytes_max(options: &FormatOptions) -> u64 {
    let shape = options.redundancy.wide_stripes().unwrap();
    let (data, shards) = (u64::from(shape.data), u64::from(shape.shards()));
    data_bytes(FILES) * (20 * shards + 4 * data) / (20 * data)
}

/// A volume with files in wide stripes, stopped.
fn fill_encoded(directory: &Path, options: &FormatOptions) {
    volume::format(directory, options).unwrap();
    let running = run(directory);
    let client = running.client_handle();
    let empty = raw_used(&client);
    for number in 0..FILES {
        put(&client, number).unwrap();
    }
    running.flush().unwrap();
    let used = raw_used(&client) - empty;
    assert!(used < encoded_bytes_max(options), "{used} bytes are used once all is durable");
    read_all(&client, FILES);
    running.stop().unwrap();
    check(directory);
}

/// All files are read without any one of the disks.
fn outlives_each_disk(volume: &Path, disks: &[DiskName], files: u64) {
    for disk in disks {
        assert_eq!(lost_without_disks(volume, &[*disk], files), 0, "without {disk}");
    }
}

#[test]
fn all_files_are_read_without_any_one_disk() {
    for (disk_nodes, disks_per_node, class) in
        [(3, 1, TWO_AND_ONE), (1, 3, TWO_AND_ONE), (4, 1, THREE_AND_ONE), (1, 5, THREE_AND_ONE)]
    {
        let directory = tempfile::tempdir().unwrap();
        let volume = directory.path().join("volume");
        let shape = shape(disk_nodes, disks_per_node, class);
        fill_encoded(&volume, &shape);
        outlives_each_disk(&volume, &disks_of(&shape), FILES);
    }
}

#[test]
fn with_two_stripes_of_parity_all_files_are_read_without_any_two_disks() {
    for (disk_nodes, disks_per_node, data) in [(4, 1, 2), (1, 5, 3)] {
        let directory = tempfile::tempdir().unwrap();
        let volume = directory.path().join("volume");
        let class = RedundancyClass::Parity { data, parity: 2 };
        let shape = shape(disk_nodes, disks_per_node, class);
        fill_encoded(&volume, &shape);
        for taken in sets_of_disks(2, &shape) {
            assert_eq!(lost_without_disks(&volume, &taken, FILES), 0, "{class}: {taken:?}");
        }
    }
}

/// Names of empty files: with them the tree of a node has several pages.
const NAMES: Range<u64> = 1_000_000..1_002_000;

/// Files and names are read without any of these sets of disks after a crash: most are in trees,
/// and what came last is in logs only.
fn outlives_disks(options: &FormatOptions, sets: &[Vec<DiskName>]) {
    let directory = tempfile::tempdir().unwrap();
    let [volume, image] = ["volume", "image"].map(|name| directory.path().join(name));
    fill_encoded(&volume, options);
    let running = run(&volume);
    let client = running.client_handle();
    for number in NAMES {
        create(&client, number);
    }
    running.stop().unwrap();
    let running = run(&volume);
    let client = running.client_handle();
    for number in FILES..FILES + 5 {
        put(&client, number).unwrap();
    }
    running.flush().unwrap();
    copy_all(&volume, &image);
    running.stop().unwrap();
    check(&volume);
    for taken in sets {
        without_disks(&image, taken, |client| {
            read_all(client, FILES + 5);
            for number in NAMES {
                let (who, name) = (Credentials::root(), name(number));
                let found = block_on(ask(client, Lookup { who, directory: ROOT, name }));
                assert!(found.is_ok(), "name {number}: {found:?} without {taken:?}");
            }
        });
    }
}

/// Every `one_in`th of the sets of this number of disks. Each disk is in one of them at least.
fn sample_of_sets(count: u32, one_in: usize, shape: &FormatOptions) -> Vec<Vec<DiskName>> {
    let sets: Vec<_> = sets_of_disks(count, shape).into_iter().step_by(one_in).collect();
    let taken: BTreeSet<DiskName> = sets.iter().flatten().copied().collect();
    assert_eq!(taken.len(), disks_of(shape).len());
    sets
}

#[test]
fn with_three_stripes_of_parity_all_files_are_read_without_any_three_disks() {
    // All 10 sets of three of five disks; every third of the 35 of seven.
    for (disk_nodes, disks_per_node, data, one_in) in [(5, 1, 2, 1), (1, 7, 3, 3)] {
        let class = RedundancyClass::Parity { data, parity: 3 };
        let shape = shape(disk_nodes, disks_per_node, class);
        outlives_disks(&shape, &sample_of_sets(3, one_in, &shape));
    }
}

#[test]
fn with_four_stripes_of_parity_all_files_are_read_without_any_four_disks() {
    // All 15 sets of four of six disks; every fourth of the 35 of seven.
    for (disk_nodes, disks_per_node, data, one_in) in [(6, 1, 2, 1), (1, 7, 3, 4)] {
        let class = RedundancyClass::Parity { data, parity: 4 };
        let shape = shape(disk_nodes, disks_per_node, class);
        outlives_disks(&shape, &sample_of_sets(4, one_in, &shape));
    }
}

/// A volume of one disk per disk node loses as many of them as it has stripes of parity, and makes
/// anew what was on them. Then it is read without as many of the others: every set of them, or
/// every `one_in`th.
fn as_many_are_lost_twice(class: RedundancyClass, disk_nodes: u32, one_in: usize) {
    let parity = class.wide_stripes().unwrap().parity;
    let directory = tempfile::tempdir().unwrap();
    let volume = directory.path().join("volume");
    let shape = shape(disk_nodes, 1, class);
    fill_encoded(&volume, &shape);
    let lost: Vec<_> = (1..=parity).map(|disk_node| DiskName { disk_node, disk: 0 }).collect();
    for disk in &lost {
        fs::remove_file(volume.join(format!("disks/{disk}"))).unwrap();
    }
    for &disk in &lost {
        volume::give_up_disk(&volume, disk, DataLoss::Refused).unwrap();
    }
    let running = run(&volume);
    let client = running.client_handle();
    read_all(&client, FILES);
    put(&client, FILES).unwrap();
    for &disk in &lost {
        wait_until_retired(&client, disk);
    }
    running.stop().unwrap();
    check(&volume);
    let mut sets = sets_of_disks(parity, &shape);
    sets.retain(|taken| !taken.iter().any(|disk| lost.contains(disk)));
    for taken in sets.iter().step_by(one_in) {
        assert_eq!(lost_without_disks(&volume, taken, FILES + 1), 0, "{class}: {taken:?}");
    }
}

#[test]
fn what_was_on_two_lost_disks_is_made_anew_on_others() {
    // With two disks to spare, as wide stripes; without, as copies.
    for disk_nodes in [6, 5] {
        as_many_are_lost_twice(TWO_AND_TWO, disk_nodes, 1);
    }
}

#[test]
fn what_was_on_three_or_four_lost_disks_is_made_anew_on_others() {
    // As wide stripes; as copies.
    for (parity, disk_nodes) in [(3, 8), (4, 9)] {
        let class = RedundancyClass::Parity { data: 2, parity };
        as_many_are_lost_twice(class, disk_nodes, 2);
    }
}

#[test]
fn a_scrub_makes_two_bad_shards_of_a_wide_stripe_anew() {
    let directory = tempfile::tempdir().unwrap();
    let volume = directory.path().join("volume");
    fill_encoded(&volume, &shape(4, 1, TWO_AND_TWO));
    for disk_node in [0, 3] {
        damage_data(&volume.join(format!("disks/n{disk_node}d0")));
    }
    let running = run(&volume);
    let client = running.client_handle();
    read_all(&client, FILES);
    let mended = scrub(&client, true);
    let nodes: BTreeSet<Option<u32>> = mended.iter().map(|flaw| flaw.disk_node).collect();
    assert_eq!(nodes, BTreeSet::from([Some(0), Some(3)]));
    assert!(mended.iter().all(|flaw| flaw.is_mended), "{mended:?}");
    assert_eq!(scrub(&client, false), []);
    running.stop().unwrap();
    check(&volume);
}

#[test]
fn a_scrub_makes_bad_shards_anew() {
    let directory = tempfile::tempdir().unwrap();
    let volume = directory.path().join("volume");
    fill_encoded(&volume, &shape(3, 1, TWO_AND_ONE));
    for disk_node in 0..3 {
        damage_data(&volume.join(format!("disks/n{disk_node}d0")));
        let running = run(&volume);
        let client = running.client_handle();
        read_all(&client, FILES);
        let told = scrub(&client, false);
        assert!(!told.is_empty());
        assert!(told.iter().all(|flaw| flaw.disk_node == Some(disk_node)), "{told:?}");
        let mended = scrub(&client, true);
        assert!(mended.iter().all(|flaw| flaw.is_mended), "{mended:?}");
        assert_eq!(scrub(&client, false), []);
        running.stop().unwrap();
        check(&volume);
    }
}

#[test]
fn what_was_on_a_lost_disk_is_made_anew_on_others() {
    // With a disk to spare, as wide stripes; without one, as copies.
    for (disk_nodes, disks_per_node, disk) in [(4, 1, 0), (3, 1, 0), (1, 4, 2), (3, 2, 1)] {
        let directory = tempfile::tempdir().unwrap();
        let volume = directory.path().join("volume");
        let shape = shape(disk_nodes, disks_per_node, TWO_AND_ONE);
        fill_encoded(&volume, &shape);
        let lost = DiskName { disk_node: 0, disk };
        fs::remove_file(volume.join(format!("disks/{lost}"))).unwrap();
        volume::give_up_disk(&volume, lost, DataLoss::Refused).unwrap();
        let running = run(&volume);
        let client = running.client_handle();
        read_all(&client, FILES);
        for number in FILES..FILES + 5 {
            put(&client, number).unwrap();
        }
        wait_until_retired(&client, lost);
        read_all(&client, FILES + 5);
        running.stop().unwrap();
        check(&volume);
        let mut left = disks_of(&shape);
        left.retain(|disk| *disk != lost);
        outlives_each_disk(&volume, &left, FILES + 5);
    }
}

#[test]
fn copies_become_wide_stripes_again_once_there_are_enough_disks() {
    let directory = tempfile::tempdir().unwrap();
    let volume = directory.path().join("volume");
    fill_encoded(&volume, &shape(1, 3, TWO_AND_ONE));
    let lost = DiskName { disk_node: 0, disk: 1 };
    fs::remove_file(volume.join("disks/n0d1")).unwrap();
    volume::give_up_disk(&volume, lost, DataLoss::Refused).unwrap();
    let running = run(&volume);
    let client = running.client_handle();
    wait_until_retired(&client, lost);
    let with_copies = raw_used(&client);
    make_disk(&volume.join("disks/n0d3"), 96 << 20);
    let disks = vec![AddedDisk { disk_node: 0, disk: 3, bytes: 96 << 20 }];
    let change = DiskChange::Add { disks };
    block_on(ask(&client, ChangeDisks { who: Credentials::root(), root: ROOT, change })).unwrap();
    let saved = data_bytes(FILES) * 2 / 5;
    wait_until("copies are wide stripes again", || raw_used(&client) + saved < with_copies);
    read_all(&client, FILES);
    running.stop().unwrap();
    check(&volume);
}

#[test]
fn what_was_not_encoded_before_a_stop_is_encoded_after_the_next_start() {
    let directory = tempfile::tempdir().unwrap();
    let volume = directory.path().join("volume");
    let shape = shape(3, 1, TWO_AND_ONE);
    volume::format(&volume, &shape).unwrap();
    let running = run(&volume);
    let client = running.client_handle();
    let empty = raw_used(&client);
    // One chunk at a time is durable, with copies.
    for number in 0..FILES {
        let file = create(&client, number);
        for (chunk, bytes) in content(number).chunks(STRIPE).enumerate() {
            let (offset, data) = ((chunk * STRIPE) as u64, vec![Bytes::copy_from_slice(bytes)]);
            let call = Write { who: Credentials::root(), file, offset, data, durable: true };
            block_on(ask(&client, call)).unwrap();
        }
    }
    // The last ones are not left alone for long enough.
    running.stop().unwrap();
    let running = run(&volume);
    let client = running.client_handle();
    let most = encoded_bytes_max(&shape);
    wait_until("whole chunks are in wide stripes", || raw_used(&client) - empty < most);
    read_all(&client, FILES);
    running.stop().unwrap();
    check(&volume);
}

#[test]
fn a_file_that_changes_keeps_its_content_and_gives_its_space_back() {
    let directory = tempfile::tempdir().unwrap();
    let volume = directory.path().join("volume");
    let shape = shape(3, 1, TWO_AND_ONE);
    volume::format(&volume, &shape).unwrap();
    let running = run(&volume);
    let client = running.client_handle();
    let empty = raw_used(&client);
    let mut expected = vec![7_u8; 24 * STRIPE];
    for (block, bytes) in expected.chunks_mut(BLOCK).enumerate() {
        bytes.fill(block as u8);
    }
    let file = create(&client, 0);
    let write_all = |bytes: &[u8]| {
        for (part, bytes) in bytes.chunks(PART).enumerate() {
            write(&client, file, (part * PART) as u64, bytes).unwrap();
        }
        running.flush().unwrap();
    };
    write_all(&expected);
    let encoded = |bytes: usize| bytes as u64 * 8 / 5;
    wait_until("it is encoded", || raw_used(&client) - empty < encoded(expected.len()));
    // Blocks of it are written anew: a few, and then most of them.
    for block in (0..24 * 16).step_by(5) {
        let at = block * BLOCK + 100;
        expected[at..at + 300].fill(0xA5);
        write(&client, file, at as u64, &expected[at..at + 300]).unwrap();
    }
    running.flush().unwrap();
    assert!(read(&client, 0).unwrap() == expected);
    for bytes in expected.chunks_mut(BLOCK).step_by(2) {
        bytes.fill(0x5A);
    }
    for block in (0..24 * 16).step_by(2) {
        let at = block * BLOCK;
        write(&client, file, at as u64, &expected[at..at + BLOCK]).unwrap();
    }
    running.flush().unwrap();
    wait_until("it is encoded anew", || raw_used(&client) - empty < encoded(expected.len()));
    assert!(read(&client, 0).unwrap() == expected);
    // It is cut within a wide stripe.
    expected.truncate(6 * STRIPE + 3 * STRIPE / 4);
    let change = Change { size: Some(expected.len() as u64), ..Change::default() };
    let who = Credentials::root();
    let call = SetAttributes { who, file, change, only_if_ctime: None, durable: true };
    block_on(ask(&client, call)).unwrap();
    assert!(read(&client, 0).unwrap() == expected);
    wait_until("its end is free", || raw_used(&client) - empty < 2 * 8 * STRIPE as u64);
    running.stop().unwrap();
    check(&volume);
    outlives_each_disk_with(&volume, &disks_of(&shape), &expected);

    let running = run(&volume);
    let client = running.client_handle();
    let call = Remove {
        who: Credentials::root(),
        call: CallId { client: 1, number: 1 },
        directory: ROOT,
        name: name(0),
        durable: false,
    };
    block_on(ask(&client, call)).unwrap();
    wait_until("all of it is free", || raw_used(&client) < empty + 4 * STRIPE as u64);
    running.stop().unwrap();
    check(&volume);
}

/// Files of which each has two wide stripes, until `change` leaves of them what they shall have
/// then. Soon after, or after a restart, they take no more than `stripes`.
fn gives_space_back(
    restarts: bool,
    stripes: usize,
    change: impl Fn(&ClientHandle, Handle, &mut Vec<u8>),
) {
    const COUNT: u64 = 4;
    let directory = tempfile::tempdir().unwrap();
    let volume = directory.path().join("volume");
    let shape = shape(1, 5, RedundancyClass::Parity { data: 4, parity: 1 });
    volume::format(&volume, &shape).unwrap();
    let mut running = run(&volume);
    let mut client = running.client_handle();
    let empty = raw_used(&client);
    let mut expected: Vec<u8> = (0..8 * STRIPE).map(|at| (at / 1000) as u8).collect();
    let files: Vec<Handle> = (0..COUNT).map(|number| create(&client, number)).collect();
    for &file in &files {
        write(&client, file, 0, &expected).unwrap();
    }
    running.flush().unwrap();
    let used = |client: &ClientHandle| raw_used(client).saturating_sub(empty) / STRIPE as u64;
    wait_until("all is in wide stripes", || used(&client) < COUNT * 11);
    let written = expected.clone();
    for &file in &files {
        expected.clone_from(&written);
        change(&client, file, &mut expected);
    }
    running.flush().unwrap();
    if restarts {
        // The wide stripes are not left alone for long enough.
        running.stop().unwrap();
        running = run(&volume);
        client = running.client_handle();
    }
    wait_until("what is gone is free", || used(&client) <= stripes as u64);
    for number in 0..COUNT {
        assert!(read(&client, number).unwrap() == expected);
    }
    running.stop().unwrap();
    check(&volume);
    outlives_each_disk_with(&volume, &disks_of(&shape), &expected);
}

/// Takes the first wide stripe out of a file, and most of the second.
fn punch(client: &ClientHandle, file: Handle, expected: &mut [u8]) {
    for hole in [0..4 * STRIPE, 4 * STRIPE + STRIPE / 4..8 * STRIPE] {
        expected[hole.clone()].fill(0);
        let (offset, length) = (hole.start as u64, hole.len() as u64);
        let call = PunchHole { who: Credentials::root(), file, offset, length, durable: true };
        block_on(ask(client, call)).unwrap();
    }
}

/// Cuts off most of the second wide stripe.
fn cut(client: &ClientHandle, file: Handle, expected: &mut Vec<u8>) {
    expected.truncate(4 * STRIPE + STRIPE / 4);
    let change = Change { size: Some(expected.len() as u64), ..Change::default() };
    let who = Credentials::root();
    let call = SetAttributes { who, file, change, only_if_ctime: None, durable: true };
    block_on(ask(client, call)).unwrap();
}

#[test]
fn holes_give_their_space_back() {
    gives_space_back(false, 8, |client, file, expected| punch(client, file, expected));
}

#[test]
fn holes_give_their_space_back_after_a_restart() {
    gives_space_back(true, 8, |client, file, expected| punch(client, file, expected));
}

#[test]
fn an_end_that_was_cut_off_gives_its_space_back_after_a_restart() {
    gives_space_back(true, 28, cut);
}

#[test]
fn what_changes_before_the_commit_is_in_the_parity_too() {
    let directory = tempfile::tempdir().unwrap();
    let volume = directory.path().join("volume");
    let shape = shape(3, 1, TWO_AND_ONE);
    volume::format(&volume, &shape).unwrap();
    let running = run(&volume);
    let client = running.client_handle();
    let empty = raw_used(&client);
    let mut expected: Vec<u8> = (0..24 * STRIPE).map(|at| (at / 1000) as u8).collect();
    let file = create(&client, 0);
    for (part, bytes) in expected.chunks(PART).enumerate() {
        write(&client, file, (part * PART) as u64, bytes).unwrap();
    }
    // In every other wide stripe.
    for at in (100..expected.len()).step_by(4 * STRIPE) {
        expected[at..at + 9000].fill(0xA5);
        write(&client, file, at as u64, &expected[at..at + 9000]).unwrap();
    }
    running.flush().unwrap();
    let used = raw_used(&client) - empty;
    assert!(used < expected.len() as u64 * 8 / 5, "{used}");
    running.stop().unwrap();
    check(&volume);
    outlives_each_disk_with(&volume, &disks_of(&shape), &expected);
}

/// One file is read without any one of the disks.
fn outlives_each_disk_with(volume: &Path, disks: &[DiskName], expected: &[u8]) {
    for disk in disks {
        let (path, aside) = (volume.join(format!("disks/{disk}")), volume.join("aside"));
        fs::rename(&path, &aside).unwrap();
        let (running, _) = volume::open_degraded(volume, &RunOptions::default()).unwrap();
        assert!(read(&running.client_handle(), 0).unwrap() == expected, "without {disk}");
        running.stop().unwrap();
        fs::rename(&aside, &path).unwrap();
    }
}

#[test]
fn too_few_disks_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let volume = directory.path().join("volume");
    let refusal = |nodes, disks| {
        volume::format(&volume, &shape(nodes, disks, TWO_AND_ONE)).unwrap_err().to_string()
    };
    let few = refusal(1, 2);
    assert!(few.contains("2+1 needs at least 3 disks; there are 2"), "{few}");
    let nodes = refusal(2, 2);
    assert!(nodes.contains("2+1 needs at least 3 disk nodes"), "{nodes}");
    assert!(!volume.exists(), "nothing is made");
}

#[test]
fn disks_by_which_there_would_be_too_few_disk_nodes_are_not_added() {
    let directory = tempfile::tempdir().unwrap();
    let volume = directory.path().join("volume");
    volume::format(&volume, &shape(2, 3, RedundancyClass::None {})).unwrap();
    let running = run(&volume);
    let client = running.client_handle();
    let change = |change| {
        block_on(ask(&client, ChangeDisks { who: Credentials::root(), root: ROOT, change }))
    };
    let add = |disk_node, disk| {
        make_disk(&volume.join(format!("disks/n{disk_node}d{disk}")), 96 << 20);
        change(DiskChange::Add { disks: vec![AddedDisk { disk_node, disk, bytes: 96 << 20 }] })
    };
    let allow = || change(DiskChange::AllowClass { class: TWO_AND_ONE.to_string() });
    let refused = Error::from(DiskRefusal::TooFewDiskNodes { needed: 3 });
    assert!(refused.to_string().contains("at least 3 disk nodes"), "{refused}");
    assert_eq!(allow(), Err(refused));
    // One disk node is left, with as many disks as 2+1 needs.
    for disk in 0..3 {
        change(DiskChange::Drain { disk_node: 1, disk }).unwrap();
        let name = DiskName { disk_node: 1, disk };
        wait_until("it is drained", || condition(&client, name) == DiskCondition::Drained {});
        change(DiskChange::Retire { disk_node: 1, disk }).unwrap();
    }
    allow().unwrap();
    assert_eq!(add(1, 3), Err(refused));
    add(0, 3).unwrap();
    put(&client, 4).unwrap();
    running.stop().unwrap();
    check(&volume);
}
