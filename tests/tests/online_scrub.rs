//! A volume is scrubbed while others write, overwrite and remove: nothing is called damaged but
//! what is.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "the test damages disks on the host, and panics where it fails"
)]

use std::fs::{self, OpenOptions as HostOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use client::blocking::Volume;
use client::protocol::{Error as FileIoError, ROOT, Scrub, ScrubFlaw};
use client::scrub::{ScrubExtent, VolumeScrub};
use client::{Cause, Credentials};
use futures::executor::block_on;
use runtime::NodeId;
use runtime::seed::Rng;
use volume::{FormatOptions, RunOptions};

const WRITERS: u64 = 3;
const TIME: Duration = Duration::from_secs(8);

/// A pass over all nodes.
fn scrub(volume: &Volume, repair: bool) -> Vec<ScrubFlaw> {
    let (mut flaws, extent) = (Vec::new(), ScrubExtent { data: true, repair });
    let all = VolumeScrub::of(volume.file_system());
    for node in 0..all.nodes() {
        let mut next = Some(Vec::new());
        while let Some(after) = next {
            let part = block_on(all.part(node, after, extent)).unwrap();
            flaws.extend(part.flaws);
            next = part.next;
        }
    }
    flaws
}

/// Writes, overwrites, syncs and removes files, so that blocks are given back and used again.
fn write(volume: &Volume, writer: u64, is_over: &AtomicBool, written: &AtomicU64) {
    let mut rng = Rng::new(writer);
    while !is_over.load(Ordering::Relaxed) {
        let path = format!("/w{writer}-{}", rng.below(12));
        if rng.chance(1, 4) {
            // It may not be there.
            let _ = volume.remove_file(path.as_bytes());
            continue;
        }
        let mut bytes = vec![0; 4096 * (1 + rng.index(40))];
        rng.fill(&mut bytes);
        let file = volume.create(path.as_bytes()).unwrap();
        file.write_at(4096 * rng.below(40), bytes).unwrap();
        if rng.chance(2, 3) {
            file.sync().unwrap();
        }
        written.fetch_add(1, Ordering::Relaxed);
    }
}

/// Ends the writers when it is dropped.
struct EndWriters<'a>(&'a AtomicBool);

impl Drop for EndWriters<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Changes a bit of a block of a disk that holds `bytes`; how many were found.
fn flip_at(directory: &Path, bytes: &[u8]) -> usize {
    let mut found = 0;
    for disk in fs::read_dir(directory.join("disks")).unwrap() {
        let path = disk.unwrap().path();
        let content = fs::read(&path).unwrap();
        let Some(block) = content.chunks(4096).position(|block| block == bytes) else { continue };
        let file = HostOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&[bytes[9] ^ 1], block as u64 * 4096 + 9).unwrap();
        found += 1;
    }
    found
}

#[test]
fn a_scrub_under_load_finds_what_is_damaged_and_nothing_else() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("volume");
    let shape = FormatOptions {
        disk_nodes: 2,
        disk_bytes: 24 << 20,
        fs_nodes: 2,
        ..FormatOptions::default()
    };
    volume::format(&directory, &shape).unwrap();
    let options = RunOptions { threads: 2, cache_bytes: 8 << 20, ..RunOptions::default() };
    let running = volume::open(&directory, &options).unwrap();
    let client = Volume::new(running.client_handle(), Credentials::root());
    let mut kept = vec![0; 8192];
    Rng::new(99).fill(&mut kept);
    client.mkdir(b"/kept").unwrap();
    let file = client.create(b"/kept/file").unwrap();
    file.write_at(0, kept.clone()).unwrap();
    file.sync().unwrap();

    let (is_over, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut passes = 0;
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (client, is_over, written) = (client.clone(), &is_over, &written);
            scope.spawn(move || write(&client, writer, is_over, written));
        }
        // Also if the test fails.
        let writers_end = EndWriters(&is_over);
        let end = Instant::now() + TIME;
        while Instant::now() < end {
            assert_eq!(scrub(&client, false), [], "after {passes} passes");
            passes += 1;
        }
        // Now something is damaged, below a server that has it in its cache.
        assert_eq!(flip_at(&directory, &kept[4096..]), 1);
        let flaws = scrub(&client, false);
        drop(writers_end);
        let [ScrubFlaw { inode, offset: 4096, is_mended: false, .. }] = flaws[..] else {
            panic!("{flaws:?}")
        };
        let paths = block_on(VolumeScrub::of(client.file_system()).paths_of(&[inode].into()));
        assert_eq!(paths[&inode], [b"/kept/file"]);
    });
    println!("{passes} passes beside {} writes", written.load(Ordering::Relaxed));
    assert!(passes > 1 && written.load(Ordering::Relaxed) > 50);

    // Others may not ask.
    let who = Credentials { uid: 7, gid: 7, groups: Vec::new() };
    let call = Scrub { who, root: ROOT, after: Vec::new(), data: false, repair: false };
    let refused = block_on(running.client_handle().spawn(NodeId::fs(0), call));
    assert_eq!(refused.map(drop), Err(FileIoError::NotPermitted {}));
    let stranger = Credentials { uid: 7, gid: 7, groups: Vec::new() };
    let stranger = Volume::new(running.client_handle(), stranger);
    let extent = ScrubExtent { data: false, repair: false };
    let refused = block_on(VolumeScrub::of(stranger.file_system()).part(0, Vec::new(), extent));
    assert!(matches!(refused.unwrap_err().cause, Cause::FileIo(FileIoError::NotPermitted {})));
    running.stop().unwrap();
}

/// Changes a bit in each block of a disk that begins as a page of metadata.
fn flip_pages(disk: &Path) -> usize {
    let content = fs::read(disk).unwrap();
    let file = HostOptions::new().write(true).open(disk).unwrap();
    let pages = content.chunks(4096).enumerate().filter(|(_, block)| block.starts_with(b"mdPG"));
    let flipped = pages.map(|(number, block)| {
        file.write_all_at(&[block[30] ^ 1], number as u64 * 4096 + 30).unwrap();
    });
    flipped.count()
}

#[test]
fn a_scrub_repairs_metadata_of_which_one_copy_is_bad() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("volume");
    let shape = FormatOptions {
        disk_nodes: 2,
        disk_bytes: 24 << 20,
        fs_nodes: 2,
        ..FormatOptions::default()
    };
    volume::format(&directory, &shape).unwrap();
    let options = RunOptions { threads: 2, cache_bytes: 8 << 20, ..RunOptions::default() };
    let running = volume::open(&directory, &options).unwrap();
    let client = Volume::new(running.client_handle(), Credentials::root());
    for number in 0..300 {
        client.create(format!("/a-name-of-some-length-{number}").as_bytes()).unwrap();
    }
    running.flush().unwrap();
    assert!(flip_pages(&directory.join("disks/n0d0")) > 0);
    let found = scrub(&client, false);
    assert!(!found.is_empty() && found.iter().all(|flaw| flaw.inode == 0 && !flaw.is_mended));
    assert!(found.iter().all(|flaw| flaw.what.contains("on disk n0d0")), "{found:?}");
    let mended = scrub(&client, true);
    assert!(!mended.is_empty() && mended.iter().all(|flaw| flaw.is_mended), "{mended:?}");
    let end = Instant::now() + Duration::from_secs(20);
    while !scrub(&client, false).is_empty() {
        assert!(Instant::now() < end, "{:?}", scrub(&client, false));
        std::thread::sleep(Duration::from_millis(100));
    }
    running.stop().unwrap();
}
