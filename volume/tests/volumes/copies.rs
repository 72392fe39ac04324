//! All data of a volume is on two disks: it outlives any one of them, and takes twice the space.
#![allow(clippy::disallowed_methods, reason = "it measures how long readers wait")]

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use fileio::client::ask;
use fileio::protocol::*;
use futures::executor::block_on;
use runtime::seed::Rng;
use volume::{DataLoss, DiskName, FormatOptions, RedundancyClass, RunOptions};

use crate::data_files::*;
use crate::disk_files::{make_disk, make_disks};
use crate::running::{check, run, wait_until};

const TWICE: RedundancyClass = RedundancyClass::Copies { count: 2 };
const THRICE: RedundancyClass = RedundancyClass::Copies { count: 3 };
/// A full volume is read in less than this without its largest disk.
const READ_MAX: Duration = Duration::from_secs(20);
/// More files than any of these volumes holds.
const FILES_MAX: u64 = 10_000;
/// Names that a full volume is asked for, at most.
const NAMES_MAX: u64 = 5000;

/// Takes each set of this number of disks away in turn, and counts the files that cannot be read
/// without it.
fn lost_without(missing: u32, options: &FormatOptions) -> u64 {
    let directory = tempfile::tempdir().unwrap();
    let volume = directory.path().join("volume");
    fill(&volume, options);
    let sets = sets_of_disks(missing, options).into_iter();
    sets.map(|taken| lost_without_disks(&volume, &taken, FILES)).sum()
}

#[test]
fn all_files_are_read_without_any_one_disk() {
    for (disk_nodes, disks_per_node) in [(2, 1), (3, 1), (1, 3), (2, 2)] {
        let shape = shape(disk_nodes, disks_per_node, TWICE);
        assert_eq!(lost_without(1, &shape), 0, "{disk_nodes} times {disks_per_node}");
    }
    assert!(lost_without(1, &shape(3, 1, RedundancyClass::None {})) > 0);
}

#[test]
fn with_three_copies_all_files_are_read_without_any_two_disks() {
    for (disk_nodes, disks_per_node) in [(3, 1), (5, 1)] {
        let shape = shape(disk_nodes, disks_per_node, THRICE);
        assert_eq!(lost_without(2, &shape), 0, "{disk_nodes} times {disks_per_node}");
    }
}

#[test]
fn what_was_on_two_lost_disks_is_made_anew_where_data_has_three_copies() {
    let directory = tempfile::tempdir().unwrap();
    let volume = directory.path().join("volume");
    fill(&volume, &shape(5, 1, THRICE));
    let disk = |disk_node| DiskName { disk_node, disk: 0 };
    let path = |disk_node| volume.join(format!("disks/n{disk_node}d0"));
    for lost in [1, 3] {
        fs::remove_file(path(lost)).unwrap();
    }
    fs::rename(path(0), directory.path().join("aside")).unwrap();
    let refused =
        volume::give_up_disk(&volume, disk(1), DataLoss::Refused).unwrap_err().to_string();
    assert!(refused.contains("disks/n"), "three are missing: {refused}");
    fs::rename(directory.path().join("aside"), path(0)).unwrap();
    volume::give_up_disk(&volume, disk(1), DataLoss::Refused).unwrap();
    let missing = volume::open(&volume, &RunOptions::default()).unwrap_err().to_string();
    assert!(missing.contains("n3d0"), "{missing}");
    volume::give_up_disk(&volume, disk(3), DataLoss::Refused).unwrap();
    let refused =
        volume::give_up_disk(&volume, disk(0), DataLoss::Refused).unwrap_err().to_string();
    assert!(refused.contains("disk n1d0 is lost"), "{refused}");

    let running = run(&volume);
    let client = running.client_handle();
    put(&client, FILES).unwrap();
    read_all(&client, FILES + 1);
    for lost in [1, 3] {
        wait_until_retired(&client, disk(lost));
    }
    running.stop().unwrap();
    check(&volume);
    for taken in [[0, 2], [0, 4], [2, 4]] {
        assert_eq!(lost_without_disks(&volume, &taken.map(disk), FILES), 0, "{taken:?}");
    }
}

#[test]
fn copies_take_twice_the_space_and_what_is_called_available_can_be_written() {
    let directory = tempfile::tempdir().unwrap();
    let volume = directory.path().join("volume");
    volume::format(&volume, &shape(3, 1, TWICE)).unwrap();
    let running = run(&volume);
    let client = running.client_handle();
    let space = || block_on(ask(&client, GetSpace { partition: 0 })).unwrap();
    let empty = space();
    assert_eq!(empty.raw_total_bytes / 2, empty.total_bytes);
    assert!(empty.available_bytes <= empty.raw_free_bytes / 2, "{empty:?}");
    let file = create(&client, 0);
    let mut bytes = vec![0; PART];
    let mut written = 0;
    loop {
        Rng::new(written).fill(&mut bytes);
        if write(&client, file, written, &bytes) == Err(Error::NoSpace {}) {
            break;
        }
        written += PART as u64;
    }
    let available = empty.available_bytes;
    assert!(written + PART as u64 > available / 100 * 98, "{written} of {available}");
    assert!(written <= empty.total_bytes, "{written} of {empty:?}");
    let call = Remove {
        who: Credentials::root(),
        call: CallId { client: 1, number: 1 },
        directory: ROOT,
        name: name(0),
        durable: false,
    };
    block_on(ask(&client, call)).unwrap();
    let is_back = || space().available_bytes > empty.available_bytes / 100 * 99;
    wait_until("the space of both copies comes back", is_back);
    running.stop().unwrap();
}

#[test]
fn a_scrub_makes_bad_copies_anew() {
    let directory = tempfile::tempdir().unwrap();
    let volume = directory.path().join("volume");
    let disk = |disk_node| volume.join(format!("disks/n{disk_node}d0"));
    fill(&volume, &shape(2, 1, TWICE));
    damage_data(&disk(1));
    let running = run(&volume);
    let client = running.client_handle();
    let told = scrub(&client, false);
    assert!(!told.is_empty() && told.iter().all(|flaw| !flaw.is_mended));
    assert!(told.iter().all(|flaw| flaw.disk_node == Some(1)), "{told:?}");
    let mended = scrub(&client, true);
    assert_eq!(mended.len(), told.len());
    assert!(mended.iter().all(|flaw| flaw.is_mended), "{mended:?}");
    assert_eq!(scrub(&client, false), []);
    running.stop().unwrap();
    check(&volume);
    // Now the other copies are the only ones.
    damage_data(&disk(0));
    let running = run(&volume);
    let client = running.client_handle();
    read_all(&client, FILES);
    running.stop().unwrap();
}

#[test]
fn ten_thousand_bad_blocks_are_all_found_and_made_anew() {
    const ALL: u64 = 80;
    let directory = tempfile::tempdir().unwrap();
    let volume = directory.path().join("volume");
    let disk = |disk_node| volume.join(format!("disks/n{disk_node}d0"));
    volume::format(&volume, &shape(2, 1, TWICE)).unwrap();
    let running = run(&volume);
    let client = running.client_handle();
    for number in 0..ALL {
        put(&client, number).unwrap();
    }
    running.flush().unwrap();
    running.stop().unwrap();
    damage_data(&disk(1));
    let blocks: usize = (0..ALL).map(|number| content(number).len().div_ceil(BLOCK)).sum();
    assert!(blocks > 10_000, "{blocks}");
    let running = run(&volume);
    let client = running.client_handle();
    let mended = scrub(&client, true);
    assert_eq!(mended.len(), blocks);
    assert!(mended.iter().all(|flaw| flaw.is_mended));
    assert_eq!(scrub(&client, false), []);
    running.stop().unwrap();
    damage_data(&disk(0));
    let running = run(&volume);
    read_all(&running.client_handle(), ALL);
    running.stop().unwrap();
}

#[test]
fn too_few_disks_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let volume = directory.path().join("volume");
    let refused = volume::format(&volume, &shape(1, 1, TWICE)).unwrap_err().to_string();
    assert!(refused.contains("2x needs at least 2 disks; there is 1"), "{refused}");
    assert!(!volume.exists(), "nothing is made");
    volume::format(&volume, &shape(2, 1, TWICE)).unwrap();
    let running = run(&volume);
    let client = running.client_handle();
    let change = DiskChange::Drain { disk_node: 1, disk: 0 };
    let call = ChangeDisks { who: Credentials::root(), root: ROOT, change };
    let why = DiskRefusal::TooFewDisks { needed: 2 };
    assert_eq!(block_on(ask(&client, call)), Err(Error::DisksUnchanged { why }));
    running.stop().unwrap();
}

/// Loses `disk`, serves the volume without it until all that was on it is on others, and shows that
/// it then outlives each other disk.
fn lose(volume: &Path, disk: DiskName) {
    let path = |disk: DiskName| volume.join(format!("disks/{disk}"));
    fs::remove_file(path(disk)).unwrap();
    let missing = volume::open(volume, &RunOptions::default()).unwrap_err().to_string();
    assert!(missing.contains("`mdfs disk lost`"), "{missing}");
    let map = volume::give_up_disk(volume, disk, DataLoss::Refused).unwrap();
    assert_eq!(
        volume::give_up_disk(volume, disk, DataLoss::Refused).unwrap().version(),
        map.version(),
        "once"
    );

    let running = run(volume);
    let client = running.client_handle();
    assert_ne!(condition(&client, disk), DiskCondition::Online {});
    for number in FILES..FILES + 5 {
        put(&client, number).unwrap();
    }
    read_all(&client, FILES + 5);
    wait_until_retired(&client, disk);
    running.stop().unwrap();
    check(volume);

    for other in map.disks() {
        let aside = volume.join("aside");
        fs::rename(path(other), &aside).unwrap();
        let (running, missing) = volume::open_degraded(volume, &RunOptions::default()).unwrap();
        assert_eq!((missing.disks.len(), missing.nodes.len()), (1, 0));
        read_all(&running.client_handle(), FILES + 5);
        running.stop().unwrap();
        fs::rename(&aside, path(other)).unwrap();
    }
    let running = run(volume);
    read_all(&running.client_handle(), FILES + 5);
    running.stop().unwrap();
}

#[test]
fn what_was_on_a_lost_disk_is_made_anew_on_others() {
    for (disk_nodes, disks_per_node, disk_node, disk) in [(3, 1, 0, 0), (1, 3, 0, 2), (2, 2, 1, 0)]
    {
        let directory = tempfile::tempdir().unwrap();
        let volume = directory.path().join("volume");
        fill(&volume, &shape(disk_nodes, disks_per_node, TWICE));
        lose(&volume, DiskName { disk_node, disk });
    }
}

/// Where disks differ, the smaller ones are full first: the log and pages have copies there all the
/// same.
#[test]
fn a_full_volume_of_uneven_disks_outlives_each_of_them() {
    for (sizes, largest) in [(&[100, 48][..], 0), (&[48, 160, 48], 1)] {
        let directory = tempfile::tempdir().unwrap();
        let volume = directory.path().join("volume");
        let disks = make_disks(directory.path(), sizes);
        let shape = shape(sizes.len() as u32, 1, TWICE);
        volume::format(&volume, &FormatOptions { disks: disks.clone(), ..shape }).unwrap();
        let running = run(&volume);
        let client = running.client_handle();
        let free = || block_on(ask(&client, GetSpace { partition: 0 })).unwrap().available_bytes;
        let available = free();
        let mut all = (0..FILES_MAX).map(|number| (number, put(&client, number)));
        let (files, why) = all.find(|(_, outcome)| outcome.is_err()).unwrap();
        assert_eq!(why, Err(Error::NoSpace {}));
        let written: usize = (0..files).map(|number| content(number).len()).sum();
        println!("{sizes:?}: {written} bytes of {available} in {files} files; {} left", free());
        // Each node has some groups left, too few to give one away.
        assert!(written as u64 > available / 100 * 85, "{written} of {available}");
        // Names need pages and the log alone.
        let names = (files + 1..files + NAMES_MAX).map(|number| try_create(&client, number));
        println!("{} names more", names.take_while(Result::is_ok).count());
        running.flush().unwrap();
        running.stop().unwrap();
        check(&volume);

        for path in &disks {
            let aside = directory.path().join("aside");
            fs::rename(path, &aside).unwrap();
            let (running, missing) =
                volume::open_degraded(&volume, &RunOptions::default()).unwrap();
            assert_eq!((missing.disks.len(), missing.nodes.len()), (1, 0));
            read_all(&running.client_handle(), files);
            running.stop().unwrap();
            fs::rename(&aside, path).unwrap();
        }
        fs::remove_file(&disks[largest]).unwrap();
        let lost = DiskName { disk_node: largest as u32, disk: 0 };
        volume::give_up_disk(&volume, lost, DataLoss::Refused).unwrap();
        let running = run(&volume);
        // There is no room to make copies anew. That keeps no reader waiting.
        let begun = Instant::now();
        read_all(&running.client_handle(), files);
        println!("read in {:?}", begun.elapsed());
        assert!(begun.elapsed() < READ_MAX);
        running.stop().unwrap();
    }
}

#[test]
fn the_last_disk_is_read_alone_and_written_with_one_that_is_added() {
    let directory = tempfile::tempdir().unwrap();
    let volume = directory.path().join("volume");
    fill(&volume, &shape(2, 1, TWICE));
    let lost = DiskName { disk_node: 0, disk: 0 };
    fs::remove_file(volume.join("disks/n0d0")).unwrap();
    volume::give_up_disk(&volume, lost, DataLoss::Refused).unwrap();
    let running = run(&volume);
    let client = running.client_handle();
    read_all(&client, FILES);
    assert_eq!(put(&client, FILES + 1), Err(Error::NoSpace {}), "a block needs two disks");
    assert_eq!(condition(&client, lost), DiskCondition::Lost {});

    let path = volume.join("disks/n1d1");
    make_disk(&path, 96 << 20);
    let disks = vec![AddedDisk { disk_node: 1, disk: 1, bytes: 96 << 20 }];
    let change = DiskChange::Add { disks };
    block_on(ask(&client, ChangeDisks { who: Credentials::root(), root: ROOT, change })).unwrap();
    put(&client, FILES).unwrap();
    wait_until_retired(&client, lost);
    running.stop().unwrap();
    check(&volume);
    // All that the last disk had is on the new one, too.
    damage_data(&volume.join("disks/n1d0"));
    let running = run(&volume);
    read_all(&running.client_handle(), FILES + 1);
    running.stop().unwrap();
}

#[test]
fn a_disk_is_given_up_only_if_all_that_it_has_is_on_others() {
    let directory = tempfile::tempdir().unwrap();
    let (single, twice) = (directory.path().join("single"), directory.path().join("twice"));
    volume::format(&single, &shape(3, 1, RedundancyClass::None {})).unwrap();
    volume::format(&twice, &shape(3, 1, TWICE)).unwrap();
    let disk = |disk_node| DiskName { disk_node, disk: 0 };
    let refusal = |volume: &Path, disk| {
        volume::give_up_disk(volume, disk, DataLoss::Refused).unwrap_err().to_string()
    };
    assert!(refusal(&single, disk(0)).contains("one copy"));
    assert!(refusal(&twice, disk(3)).contains("there is no disk n3d0"));
    let running = run(&twice);
    let in_use = refusal(&twice, disk(0));
    assert!(in_use.contains("another process"), "{in_use}");
    running.stop().unwrap();
    fs::rename(twice.join("disks/n1d0"), directory.path().join("aside")).unwrap();
    let also_missing = refusal(&twice, disk(0));
    assert!(also_missing.contains("n1d0"), "{also_missing}");
    fs::rename(directory.path().join("aside"), twice.join("disks/n1d0")).unwrap();
    volume::give_up_disk(&twice, disk(0), DataLoss::Refused).unwrap();
    assert!(refusal(&twice, disk(1)).contains("disk n0d0 is lost"));
    run(&twice).stop().unwrap();
    run(&single).stop().unwrap();
}
