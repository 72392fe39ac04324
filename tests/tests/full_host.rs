//! The host file system below the disks of a volume is full, really: a small tmpfs.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use tests::mounted::{Mounted, may_mount};
use tests::raw_nfs::{RawNfs, status};
use tests::{Content, Site};

const FAILED: i32 = 1;
const ENOSPC: i32 = 28;
const FULL: &str = "the host file system below disk n0d0 is full";
/// Stored before the host is full.
const KEPT: Content = Content { seed: 1, length: 300_000 };
/// More than the host has.
const MUCH: Content = Content { seed: 2, length: 100 << 20 };
/// One of the files that are synced one by one.
const PIECE: u64 = 1 << 20;
/// The host of the disk, in MiB, and what it becomes.
const SMALL: u32 = 48;
const LARGE: u32 = 400;
/// When the volume must have gone on by itself.
const GOES_ON_WITHIN: Duration = Duration::from_secs(20);

/// A tmpfs of this test. Unmounted when dropped.
struct Host(PathBuf);

impl Host {
    fn mount(at: &Path) -> Self {
        fs::create_dir(at).unwrap();
        let size = format!("size={SMALL}m");
        run(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(at));
        Self(at.to_owned())
    }

    fn grow(&self) {
        let size = format!("remount,size={LARGE}m");
        run(Command::new("mount").args(["-o", &size]).arg(&self.0));
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

fn run(command: &mut Command) {
    assert!(command.status().unwrap().success(), "{command:?}");
}

fn piece(index: u64) -> Content {
    Content { seed: 100 + index, length: PIECE }
}

#[test]
fn a_full_host_makes_the_volume_read_only_until_there_is_space() {
    if !may_mount() {
        return;
    }
    let site = Site::new();
    let host = Host::mount(&site.path("host"));
    let disk = site.path("host/disk");
    File::create(&disk).unwrap().set_len(256 << 20).unwrap();
    site.ok(&["format", "VOL", "--nodes", "4", "--disk", "host/disk"]);
    KEPT.write(&site.path("kept"));
    MUCH.write(&site.path("much"));

    let served = site.serve();
    site.ok(&["put", "kept", "VOL:/kept"]);
    let mounted = Mounted::start(&site, &[]);
    let mut nfs = RawNfs::connect(&served);
    let root = nfs.root();
    let synced = sync_files_until_full(&mounted);
    assert!((10..u64::from(SMALL)).contains(&synced), "{synced} MiB were synced");
    site.refused(&["put", "much", "VOL:/much"]).says(FAILED, &[FULL, "goes on by itself"]);
    check_read_only(&site, (&mut nfs, &root), &mounted, synced);
    sleep(Duration::from_secs(5));
    let is_told = |log: &str| log.matches("is full").count() == 1;
    assert!(is_told(&served.log()), "one line, whatever was refused: {}", served.log());
    assert!(served.log().contains("below VOL/disks/n0d0 is full"), "{}", served.log());
    assert!(served.log().lines().count() <= 3, "{}", served.log());

    host.grow();
    let start = Instant::now();
    while !site.run(&["put", "much", "VOL:/much"]).status.success() {
        assert!(start.elapsed() < GOES_ON_WITHIN, "it does not go on: {}", served.log());
        sleep(Duration::from_millis(200));
    }
    while !served.log().contains("takes writes again") {
        assert!(start.elapsed() < GOES_ON_WITHIN, "the log does not say so: {}", served.log());
        sleep(Duration::from_millis(200));
    }
    assert!(is_told(&served.log()), "{}", served.log());
    mounted.unmount();
    served.kill();

    let served = site.serve();
    site.ok(&["get", "VOL:/much", "much.again"]);
    MUCH.compare_file(&site.path("much.again"));
    for index in 0..synced {
        let (from, to) = (format!("VOL:/piece{index}"), format!("piece{index}"));
        site.ok(&["get", &from, &to]);
        piece(index).compare_file(&site.path(&to));
    }
    served.stop();
    site.ok(&["check", "VOL"]);
}

/// Returns how many files were synced. The next one was refused.
fn sync_files_until_full(mounted: &Mounted) -> u64 {
    for index in 0.. {
        let path = mounted.path(format!("piece{index}"));
        let bytes = piece(index).bytes();
        let write = || {
            let mut file = File::create(&path)?;
            file.write_all(&bytes)?;
            file.sync_all()
        };
        if let Err(error) = write() {
            assert_eq!(error.raw_os_error(), Some(ENOSPC), "piece {index}: {error}");
            return index;
        }
    }
    unreachable!("some piece is refused")
}

fn check_read_only(site: &Site, (nfs, root): (&mut RawNfs, &[u8]), mounted: &Mounted, synced: u64) {
    site.ok(&["get", "VOL:/kept", "kept.again"]);
    KEPT.compare_file(&site.path("kept.again"));
    // The first change that a node finds it cannot write may still be done when there is space.
    site.refused(&["mkdir", "VOL:/by-command"]).says(FAILED, &[FULL]);
    let error = fs::create_dir(mounted.path("by-mount")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(ENOSPC), "{error}");
    let last = fs::read(mounted.path(format!("piece{}", synced - 1))).unwrap();
    piece(synced - 1).compare(&last[..]);
    assert_eq!(nfs.create(root, b"over-nfs").unwrap_err(), status::NOSPC);
    for index in 0..50 {
        let directory = format!("VOL:/directory{index}");
        site.refused(&["mkdir", &directory]).says(FAILED, &[FULL]);
    }
}
