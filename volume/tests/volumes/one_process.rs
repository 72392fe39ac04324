//! A volume in a directory keeps what was made durable for the next process that opens it, and
//! refuses what is not its own.

use std::fs;
use std::path::Path;

use bytes::Bytes;
use fileio::client::ask;
use fileio::protocol::*;
use futures::executor::block_on;
use futures::future::join_all;
use runtime::ClientHandle;
use volume::{FormatOptions, RunOptions, RunningVolume, VolumeError};

fn options() -> FormatOptions {
    FormatOptions {
        disk_nodes: 2,
        disks_per_node: 2,
        disk_bytes: 16 << 20,
        fs_nodes: 4,
        ..FormatOptions::default()
    }
}

fn run(directory: &Path) -> Result<RunningVolume, VolumeError> {
    let options = RunOptions { threads: 2, cache_bytes: 32 << 20, ..RunOptions::default() };
    volume::open(directory, &options)
}

fn create(client_handle: &ClientHandle, name: &str, number: u64) -> Handle {
    let call = Create {
        who: Credentials::root(),
        call: CallId { client: 1, number },
        directory: ROOT,
        name: Name::new(name.as_bytes().to_vec()).unwrap(),
        existing: Existing::Refuse {},
        change: Change::default(),
        durable: false,
    };
    let made = block_on(ask(client_handle, call)).unwrap().attributes;
    Handle { ino: made.ino, generation: made.generation }
}

fn find(client_handle: &ClientHandle, name: &str) -> Result<Handle, Error> {
    let name = Name::new(name.as_bytes().to_vec()).unwrap();
    let call = Lookup { who: Credentials::root(), directory: ROOT, name };
    let found = block_on(ask(client_handle, call))?;
    Ok(Handle { ino: found.ino, generation: found.generation })
}

fn write(client_handle: &ClientHandle, file: Handle, offset: u64, data: &[u8]) {
    let data = vec![Bytes::copy_from_slice(data)];
    let call = Write { who: Credentials::root(), file, offset, data, durable: false };
    block_on(ask(client_handle, call)).unwrap();
}

fn read(client_handle: &ClientHandle, file: Handle, offset: u64, length: u32) -> Vec<u8> {
    let call = Read { who: Credentials::root(), file, offset, length };
    block_on(ask(client_handle, call)).unwrap().data.concat()
}

#[test]
fn what_was_settled_or_committed_is_there_after_a_stop_and_after_a_crash() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("volume");
    volume::format(&directory, &options()).unwrap();
    let content: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();

    let running = run(&directory).unwrap();
    let client_handle = running.client_handle();
    let file = create(&client_handle, "settled", 1);
    write(&client_handle, file, 0, &content);
    running.stop().unwrap();

    let running = run(&directory).unwrap();
    let client_handle = running.client_handle();
    assert_eq!(find(&client_handle, "settled").unwrap(), file);
    assert!(read(&client_handle, file, 0, 4_000_000) == content);
    let file = create(&client_handle, "committed", 2);
    write(&client_handle, file, 100, &content[..70_000]);
    block_on(ask(&client_handle, Commit { file })).unwrap();
    write(&client_handle, file, 0, &[1; 300]); // never committed
    drop(running); // nothing is settled

    let running = run(&directory).unwrap();
    let client_handle = running.client_handle();
    let file = find(&client_handle, "committed").unwrap();
    let found = read(&client_handle, file, 300, 100_000);
    assert!(found == content[200..70_000], "{} bytes", found.len());
    assert!(
        read(&client_handle, find(&client_handle, "settled").unwrap(), 0, 4_000_000) == content
    );
}

#[test]
fn a_full_volume_says_so_and_has_room_again_after_a_removal() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("volume");
    volume::format(&directory, &options()).unwrap();
    let running = run(&directory).unwrap();
    let client_handle = running.client_handle();
    let before = block_on(ask(&client_handle, GetSpace { partition: 0 })).unwrap();
    let piece = Bytes::from(vec![7; 1 << 20]);
    let fill = |name: &str, number| {
        let file = create(&client_handle, name, number);
        for offset in 0.. {
            let (who, data) = (Credentials::root(), vec![piece.clone()]);
            let call = Write { who, file, offset: offset << 20, data, durable: false };
            match block_on(ask(&client_handle, call)) {
                Ok(_) => {}
                Err(Error::NoSpace {}) => return offset,
                Err(error) => panic!("{error}"),
            }
        }
        unreachable!("the volume is not endless")
    };
    let first = fill("first", 1);
    assert!(first << 20 > before.free_bytes / 2, "{first} MiB of {before:?}");
    let name = |name: &str| Name::new(name.as_bytes().to_vec()).unwrap();
    let call = Remove {
        who: Credentials::root(),
        call: CallId { client: 1, number: 9 },
        directory: ROOT,
        name: name("first"),
        durable: true,
    };
    block_on(ask(&client_handle, call)).unwrap();
    running.flush().unwrap();
    let after = block_on(ask(&client_handle, GetSpace { partition: 0 })).unwrap();
    let second = fill("second", 2);
    assert!(second + 8 >= first, "{second} MiB after {first} MiB, {after:?} of {before:?}");
}

/// A file as long as the volume has room for, committed; its length.
fn fill(client_handle: &ClientHandle, file: Handle) -> u64 {
    let mut offset = 0;
    for length in [1 << 20, 4096] {
        let piece = Bytes::from(vec![7; length]);
        loop {
            let (who, data) = (Credentials::root(), vec![piece.clone()]);
            match block_on(ask(client_handle, Write { who, file, offset, data, durable: false })) {
                Ok(_) => offset += length as u64,
                Err(Error::NoSpace {}) => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    block_on(ask(client_handle, Commit { file })).unwrap();
    offset
}

#[test]
fn a_full_volume_can_be_cut_and_punched_anywhere() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("volume");
    volume::format(&directory, &options()).unwrap();
    let running = run(&directory).unwrap();
    let client_handle = running.client_handle();
    let file = create(&client_handle, "full", 1);
    let length = fill(&client_handle, file);
    let who = Credentials::root;
    let more = Allocate {
        who: who(),
        file,
        offset: length,
        length: 64 << 20,
        keep_size: true,
        durable: false,
    };
    assert_eq!(block_on(ask(&client_handle, more)), Err(Error::NoSpace {}));

    for number in 0..20 {
        let (offset, length) = (number * 300_000 + 100, 50);
        let punch = PunchHole { who: who(), file, offset, length, durable: number % 2 == 0 };
        block_on(ask(&client_handle, punch)).unwrap();
    }
    for cut in 1..=20 {
        let change = Change { size: Some(length - cut * 5_000 - 1), ..Change::default() };
        let call = SetAttributes { who: who(), file, change, only_if_ctime: None, durable: true };
        block_on(ask(&client_handle, call)).unwrap();
    }
    let longer = Change { size: Some(length), ..Change::default() };
    let call =
        SetAttributes { who: who(), file, change: longer, only_if_ctime: None, durable: false };
    block_on(ask(&client_handle, call)).unwrap();
    running.stop().unwrap();

    let running = run(&directory).unwrap();
    let client_handle = running.client_handle();
    for number in 0..20 {
        let found = read(&client_handle, file, number * 300_000 + 99, 52);
        assert_eq!(found, [&[7][..], &[0; 50], &[7]].concat());
    }
    let cut = length - 100_001;
    assert_eq!(read(&client_handle, file, cut - 1, 3), [7, 0, 0]);
    let seek = Seek { who: who(), file, offset: cut + 4096, target: SeekTarget::Data {} };
    assert_eq!(block_on(ask(&client_handle, seek)), Ok(None));
}

#[test]
fn each_of_many_writes_at_once_tells_what_was_just_before_it() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("volume");
    volume::format(&directory, &options()).unwrap();
    let running = run(&directory).unwrap();
    let client_handle = running.client_handle();
    let file = create(&client_handle, "shared", 1);
    let attributes = || block_on(ask(&client_handle, GetAttributes { file })).unwrap();
    let mut stamps = vec![WccAttr::of(&attributes())];
    let write = |number: u64, durable| {
        let (offset, data) = (number * 50_000, vec![vec![1; 100_000].into()]);
        ask(&client_handle, Write { who: Credentials::root(), file, offset, data, durable })
    };
    let written = block_on(join_all((0..60).map(|number| write(number, false))));
    let mut befores = Vec::new();
    for written in written.into_iter().map(Result::unwrap) {
        befores.push(written.before.unwrap());
        stamps.push(WccAttr::of(&written.attributes));
    }
    // One after the other, from the first to what is now.
    let last = WccAttr::of(&attributes());
    let at = stamps.iter().position(|stamp| *stamp == last).unwrap();
    stamps.remove(at);
    let order = |stamp: &WccAttr| (stamp.ctime.seconds, stamp.ctime.nanos, stamp.size);
    befores.sort_by_key(order);
    stamps.sort_by_key(order);
    assert_eq!(befores, stamps);
    let durable = block_on(write(60, true)).unwrap();
    assert_eq!(durable.before, Some(last));
    running.stop().unwrap();
}

#[test]
fn a_volume_is_opened_once_at_a_time_and_never_made_over_another() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("volume");
    assert!(run(&directory).unwrap_err().to_string().contains("there is no volume"));
    volume::format(&directory, &options()).unwrap();
    let again = volume::format(&directory, &options()).unwrap_err();
    assert!(again.to_string().contains("there is a volume already"), "{again}");
    let running = run(&directory).unwrap();
    let second = run(&directory).unwrap_err();
    assert!(second.to_string().contains("in use by another process"), "{second}");
    drop(running);
    run(&directory).unwrap().stop().unwrap();
}

#[test]
fn disks_that_are_missing_cut_swapped_or_foreign_are_refused_and_left_alone() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("volume");
    volume::format(&directory, &options()).unwrap();
    let running = run(&directory).unwrap();
    let file = create(&running.client_handle(), "kept", 1);
    write(&running.client_handle(), file, 0, b"kept");
    running.stop().unwrap();

    let other = home.path().join("other");
    volume::format(&other, &options()).unwrap();
    let disk = |name: &str| directory.join("disks").join(name);
    let aside = home.path().join("aside");
    let refused = |part: &str| {
        let error = run(&directory).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };

    fs::rename(disk("n1d0"), &aside).unwrap();
    refused("n1d0");
    fs::copy(other.join("disks/n1d0"), disk("n1d0")).unwrap();
    refused("belongs to volume");
    fs::copy(disk("n0d1"), disk("n1d0")).unwrap();
    refused("disk n1d0 was expected");
    fs::write(disk("n1d0"), vec![0; 16 << 20]).unwrap();
    refused("not formatted");
    fs::copy(&aside, disk("n1d0")).unwrap();
    fs::File::options().write(true).open(disk("n1d0")).unwrap().set_len(9 << 20).unwrap();
    refused("cut off");
    fs::write(disk("n1d0"), b"short").unwrap();
    assert!(run(&directory).is_err());

    fs::rename(&aside, disk("n1d0")).unwrap();
    let running = run(&directory).unwrap();
    assert_eq!(read(&running.client_handle(), file, 0, 10), b"kept");
}

#[test]
fn a_lost_coordination_store_is_rebuilt_from_the_disks() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("volume");
    volume::format(&directory, &options()).unwrap();
    let first = run(&directory).unwrap();
    let epoch = first.epoch();
    let file = create(&first.client_handle(), "kept", 1);
    write(&first.client_handle(), file, 0, b"kept");
    first.stop().unwrap();
    fs::remove_dir_all(directory.join("coordination")).unwrap();
    let second = run(&directory).unwrap();
    assert!(second.epoch() > epoch);
    assert_eq!(read(&second.client_handle(), file, 0, 10), b"kept");
}

#[test]
fn an_older_coordination_store_is_brought_forward_from_the_disks() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("volume");
    volume::format(&directory, &options()).unwrap();
    let file = {
        let running = run(&directory).unwrap();
        let file = create(&running.client_handle(), "kept", 1);
        running.stop().unwrap();
        file
    };
    let (store, saved) = (directory.join("coordination"), home.path().join("saved"));
    let copy = |from: &std::path::Path, to: &std::path::Path| {
        let copied = std::process::Command::new("cp").arg("-r").args([from, to]).status();
        assert!(copied.unwrap().success());
    };
    copy(&store, &saved);
    let mut epoch = runtime::Epoch(0);
    for _ in 0..3 {
        let running = run(&directory).unwrap();
        epoch = running.epoch();
        write(&running.client_handle(), file, 0, b"kept");
        running.stop().unwrap();
    }
    fs::remove_dir_all(&store).unwrap();
    copy(&saved, &store);
    let running = run(&directory).unwrap();
    assert!(running.epoch() > epoch);
    assert_eq!(read(&running.client_handle(), file, 0, 10), b"kept");
    running.stop().unwrap();
}

#[test]
fn disks_elsewhere_are_used_and_not_taken_from_another_volume() {
    let home = tempfile::tempdir().unwrap();
    let disks: Vec<_> = (0..4).map(|i| home.path().join(format!("disk-{i}"))).collect();
    let options = FormatOptions { disks: disks.clone(), ..options() };
    let directory = home.path().join("volume");
    volume::format(&directory, &options).unwrap();
    run(&directory).unwrap().stop().unwrap();
    assert_eq!(fs::metadata(&disks[3]).unwrap().len(), 16 << 20);
    let error = volume::format(&home.path().join("thief"), &options).unwrap_err().to_string();
    assert!(error.contains("is not overwritten"), "{error}");
    assert!(!home.path().join("thief").exists(), "nothing is left of the attempt");
    let few = FormatOptions { disks: disks[..3].to_vec(), ..options };
    let error = volume::format(&home.path().join("few"), &few).unwrap_err().to_string();
    assert!(error.contains("3 disks were named"), "{error}");
}

#[test]
fn disks_of_different_sizes_are_all_used_and_tell_what_they_are() {
    const SIZES_MIB: [u64; 3] = [32, 64, 160];
    let home = tempfile::tempdir().unwrap();
    let disks: Vec<_> = (0..3).map(|i| home.path().join(format!("disk-{i}"))).collect();
    for (path, mib) in disks.iter().zip(SIZES_MIB) {
        fs::File::create(path).unwrap().set_len(mib << 20).unwrap();
    }
    let shape = FormatOptions { disk_nodes: 1, disks_per_node: 3, disks, ..options() };
    let directory = home.path().join("volume");
    let map = volume::format(&directory, &shape).unwrap();
    let counts: Vec<u32> = map.sets().map(|placed| placed.set.members.count()).collect();
    assert_eq!(counts, [3, 2, 1]);
    let all: u64 = SIZES_MIB.iter().sum();
    assert!(map.bytes() >= (all << 20) * 98 / 100, "{} bytes", map.bytes());

    let running = run(&directory).unwrap();
    let file = create(&running.client_handle(), "large", 1);
    let part = |i: u64| vec![i as u8; 1 << 20];
    // More than two disks of the smallest size, and than all three of it.
    let parts = 128;
    (0..parts).for_each(|i| write(&running.client_handle(), file, i << 20, &part(i)));
    running.stop().unwrap();
    // What the volume is stands on the disks.
    fs::remove_dir_all(directory.join("coordination")).unwrap();
    let running = run(&directory).unwrap();
    assert_eq!(running.map(), &map);
    for i in 0..parts {
        assert!(read(&running.client_handle(), file, i << 20, 1 << 20) == part(i), "part {i}");
    }
    running.stop().unwrap();
}

/// What a file of 1 KiB takes beside its one block: names, inodes and maps lie together in tree
/// pages.
const SMALL_FILE_META_BYTES_MAX: u64 = 1024;

#[test]
fn a_small_file_takes_one_block_and_little_else() {
    const FILES: u64 = 2_000;
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("volume");
    volume::format(&directory, &options()).unwrap();
    let running = run(&directory).unwrap();
    let client_handle = running.client_handle();
    let used = || {
        let call = GetDisks { who: Credentials::root(), root: ROOT };
        let list = block_on(ask(&client_handle, call)).unwrap();
        list.disks.iter().map(|disk| disk.used_bytes).sum::<u64>()
    };
    running.flush().unwrap();
    let before = used();
    for number in 1..=FILES {
        let file = create(&client_handle, &format!("small file number {number}"), number);
        write(&client_handle, file, 0, &[number as u8; 1024]);
    }
    running.flush().unwrap();
    let bytes = (used() - before) / FILES;
    println!("{bytes} bytes on disk for each file of 1 KiB");
    let block = u64::from(blockio::BLOCK_SIZE as u32);
    assert!((block..block + SMALL_FILE_META_BYTES_MAX).contains(&bytes), "{bytes} bytes each");
}
