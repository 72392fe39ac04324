//! Much data: one long file, many short ones, and one that is nearly nothing but a hole.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::path::Path;
use std::time::{Duration, Instant};

use client::OpenOptions;
use runtime::seed::with_seed;
use tests::{Content, Site, libnfs, long};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

#[test]
fn a_long_file_survives_put_restart_get_and_nfs_byte_for_byte() {
    // The whole GiB takes minutes in a debug build: MDFS_LONG=1 asks for it there.
    let length = if cfg!(debug_assertions) && !long() { GIB / 4 } else { GIB };
    with_seed(|rng| {
        let content = Content { seed: rng.bits(), length };
        let site = Site::formatted(3 * length / MIB, 64);
        content.write(&site.path("in"));
        let served = site.serve();
        site.ok(&["put", "in", "VOL:/long"]);
        served.stop();

        let served = site.serve();
        site.ok(&["get", "VOL:/long", "out"]);
        content.compare_file(&site.path("out"));
        std::fs::remove_file(site.path("out")).unwrap();
        libnfs::copy(&libnfs::url(&served, "/long"), site.path("out").to_str().unwrap());
        content.compare_file(&site.path("out"));
        std::fs::remove_file(site.path("out")).unwrap();
        served.stop();

        let mut alone = site.command(&["cat", "VOL:/long"]);
        let mut printed = alone.stdout(std::process::Stdio::piped()).spawn().unwrap();
        content.compare(printed.stdout.take().unwrap());
        assert!(printed.wait().unwrap().success());
    });
}

/// Half as many without optimization, unless `MDFS_LONG=1` asks for all.
const TREE_FILES: u64 = 10_000;
const TREE_DIRECTORIES: u64 = 100;
/// Of a short file in the tree: some are empty, some have more than one stripe's first block.
const TREE_BYTES_MAX: u64 = 6000;
/// For all of them; far more than it takes, also on a busy machine. A cost per file squared is
/// beyond it.
const TREE_TIME_MAX: Duration = Duration::from_mins(6);

fn tree_file(index: u64) -> (String, Content) {
    let length = index * 7919 % TREE_BYTES_MAX;
    let name = format!("d{:02}/file {index}", index % TREE_DIRECTORIES);
    (name, Content { seed: index, length })
}

#[test]
fn a_tree_of_thousands_of_files_comes_back_as_it_was() {
    let files = if cfg!(debug_assertions) && !long() { TREE_FILES / 2 } else { TREE_FILES };
    let time_max = TREE_TIME_MAX * files as u32 / TREE_FILES as u32;
    let site = Site::formatted(1024, 64);
    for directory in 0..TREE_DIRECTORIES {
        std::fs::create_dir_all(site.path(format!("in/d{directory:02}"))).unwrap();
    }
    for (name, content) in (0..files).map(tree_file) {
        std::fs::write(site.path("in").join(name), content.bytes()).unwrap();
    }
    let start = Instant::now();
    let served = site.serve();
    site.ok(&["put", "-r", "in", "VOL:/tree"]);
    served.stop();
    let served = site.serve();
    site.ok(&["get", "-r", "VOL:/tree", "out"]);
    served.stop();
    let time = start.elapsed();
    assert!(time < time_max, "{time:?} for {files} files");

    for (name, content) in (0..files).map(tree_file) {
        let found = std::fs::read(site.path("out").join(&name)).unwrap();
        assert!(found == content.bytes(), "{name} is another one");
    }
    assert_eq!(count_files(&site.path("out")), files, "and there is nothing else");
}

fn count_files(path: &Path) -> u64 {
    let entries = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap());
    entries.map(|e| if e.path().is_dir() { count_files(&e.path()) } else { 1 }).sum()
}

#[test]
fn three_blocks_in_a_file_of_a_tebibyte_take_the_space_of_three_blocks() {
    const BLOCK: usize = 4096;
    let offsets = [0, TIB / 2, TIB - BLOCK as u64];
    let block = |offset: u64| Content { seed: offset, length: BLOCK as u64 }.bytes();
    let site = Site::formatted(512, 64);
    let served = site.serve();
    let before = site.used_bytes();
    let file = site.open().create("/sparse").unwrap();
    for offset in offsets {
        file.write_at(offset, block(offset)).unwrap();
    }
    file.sync().unwrap();
    served.stop();

    let served = site.serve();
    let used = site.used_bytes().saturating_sub(before);
    assert!(used < 10 * MIB, "{used} bytes are used");
    let file = site.open().open("/sparse", OpenOptions::new().read(true)).unwrap();
    assert_eq!(file.metadata().unwrap().size, TIB);
    for offset in offsets {
        let mut found = vec![0; BLOCK];
        assert_eq!(file.read_at(offset, &mut found).unwrap(), BLOCK);
        assert!(found == block(offset), "at {offset}");
    }
    for hole in [BLOCK as u64, TIB / 4, TIB / 2 - BLOCK as u64, TIB / 2 + BLOCK as u64] {
        let mut found = vec![1; BLOCK];
        assert_eq!(file.read_at(hole, &mut found).unwrap(), BLOCK);
        assert!(found.iter().all(|&byte| byte == 0), "at {hole}");
    }
    assert_eq!(file.read_at(TIB, &mut [0; 1]).unwrap(), 0, "the file ends there");
    served.stop();
}
