//! Sequential writes through a mount, which are collected: at the mount that makes no difference,
//! other clients see them after the close, and what fails is reported.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use tests::Site;
use tests::mounted::{Mounted, may_mount};
use tests::served::Served;
use tests::site::VOLUME;

const BEHIND: [&str; 1] = ["--write-behind"];
const PAGE: usize = 4096;
/// Writes that are sent at once before any is collected.
const FIRST: usize = 2;
/// A write without the server is done within this time.
const SOON: Duration = Duration::from_secs(20);
/// What another client may lag behind, with a busy machine in mind.
const LAG_MAX: Duration = Duration::from_secs(20);

fn page(number: usize) -> Vec<u8> {
    (number as u64).to_le_bytes().repeat(PAGE / 8)
}

fn pages(count: usize) -> Vec<u8> {
    (0..count).flat_map(page).collect()
}

/// Appends pages to a stream that has `written`.
fn stream(file: &mut File, written: usize, count: usize) {
    for number in written..written + count {
        file.write_all(&page(number)).unwrap();
    }
}

/// Without a process of its own: that would close its copy of the file, and wait for the server.
fn signal(served: &Served, signal: Signal) {
    let process = Pid::from_raw(served.id().cast_signed()).unwrap();
    kill_process(process, signal).unwrap();
}

/// Writes pages while the server does not answer. True if they return before it answers again.
fn writes_without_server(served: &Served, file: &File, written: usize, wait: Duration) -> bool {
    signal(served, Signal::STOP);
    let (sender, done) = mpsc::channel();
    let mut file = file.try_clone().unwrap();
    let writer = thread::spawn(move || {
        stream(&mut file, written, 8);
        let _ = sender.send(());
    });
    let is_done = done.recv_timeout(wait).is_ok();
    signal(served, Signal::CONT);
    writer.join().unwrap();
    is_done
}

#[test]
fn a_stream_of_small_writes_does_not_wait_for_the_server() {
    if !may_mount() {
        return;
    }
    let site = Site::formatted(1024, 16);
    let served = site.serve();
    let mounted = Mounted::start(&site, &BEHIND);
    let through = Mounted::start_at(&site, Path::new("through"), &[]);
    let mut file = File::create(mounted.path("file")).unwrap();
    stream(&mut file, 0, FIRST);
    assert!(writes_without_server(&served, &file, FIRST, SOON));
    file.sync_all().unwrap();
    drop(file);
    let mut file = File::create(through.path("through")).unwrap();
    stream(&mut file, 0, FIRST);
    assert!(!writes_without_server(&served, &file, FIRST, Duration::from_secs(1)));
    drop(file);
    for name in ["file", "through"] {
        assert!(fs::read(mounted.path(name)).unwrap() == pages(FIRST + 8), "{name}");
    }
    through.unmount();
    mounted.unmount();
    served.stop();
}

#[test]
fn the_mount_itself_always_shows_what_was_written() {
    if !may_mount() {
        return;
    }
    let site = Site::formatted(1024, 16);
    let served = site.serve();
    let mounted = Mounted::start(&site, &[BEHIND[0], "--cache-ms", "0"]);
    let other = Mounted::start_at(&site, Path::new("other"), &["--cache-ms", "0"]);
    let path = mounted.path("file");
    let mut file = File::create(&path).unwrap();
    let mut written = 0;
    let mut write = |file: &mut File| {
        stream(file, written, 10);
        written += 10;
        written
    };
    for _ in 0..20 {
        let expected = write(&mut file) * PAGE;
        assert_eq!(file.metadata().unwrap().len(), expected as u64);
        let expected = write(&mut file) * PAGE;
        assert_eq!(fs::metadata(&path).unwrap().len(), expected as u64);
        let count = write(&mut file);
        assert!(fs::read(&path).unwrap() == pages(count), "another open, after {count} pages");
    }
    // A time that is set is not overtaken by what was written before.
    write(&mut file);
    let time = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000);
    file.set_modified(time).unwrap();
    thread::sleep(Duration::from_millis(300));
    assert_eq!(file.metadata().unwrap().modified().unwrap(), time);
    // Cut, and longer again: what was collected before is not written over that.
    write(&mut file);
    file.set_len(PAGE as u64).unwrap();
    assert!(fs::read(&path).unwrap() == page(0));
    drop(file);
    // Others find under a new name, and after a sync and a close, all that was written.
    for end in ["rename", "sync", "close"] {
        let (from, to) = (format!("from-{end}"), format!("to-{end}"));
        let mut file = File::create(mounted.path(&from)).unwrap();
        stream(&mut file, 0, 40);
        match end {
            "rename" => fs::rename(mounted.path(&from), mounted.path(&to)).unwrap(),
            "sync" => file.sync_all().unwrap(),
            _ => drop(file),
        }
        let name = if end == "rename" { to } else { from };
        assert!(fs::read(other.path(name)).unwrap() == pages(40), "{end}");
    }
    // So they do when a lock is released, of whatever file.
    let lock = File::create(mounted.path("lock")).unwrap();
    lock.lock().unwrap();
    let mut file = File::create(mounted.path("guarded")).unwrap();
    stream(&mut file, 0, 40);
    lock.unlock().unwrap();
    assert!(fs::read(other.path("guarded")).unwrap() == pages(40));
    drop((lock, file));
    // And without any of these in time.
    let mut file = File::create(mounted.path("slow")).unwrap();
    stream(&mut file, 0, 40);
    let begun = Instant::now();
    while fs::read(other.path("slow")).unwrap() != pages(40) {
        assert!(begun.elapsed() < LAG_MAX, "another mount does not see it");
        thread::sleep(Duration::from_millis(20));
    }
    drop(file);
    other.unmount();
    mounted.unmount();
    served.stop();
}

#[test]
fn a_full_partition_is_reported_by_the_sync_and_by_the_close() {
    if !may_mount() {
        return;
    }
    let site = Site::formatted(1024, 16);
    site.ok(&["partition", "create", VOLUME, "home", "--limit", "4MiB", "--block", "64KiB"]);
    let mounted = Mounted::start(&site, &BEHIND);
    let other = mounted.path("home/other");
    fs::write(&other, vec![7; 7 << 19]).unwrap();
    File::open(&other).unwrap().sync_all().unwrap();
    let mut file = File::create(mounted.path("home/file")).unwrap();
    stream(&mut file, 0, 200);
    // A process that closes its copy of the descriptor takes no failure from this one.
    thread::sleep(Duration::from_millis(300));
    assert!(Command::new("true").status().unwrap().success());
    let failed = file.sync_all().unwrap_err();
    let full = [Errno::DQUOT, Errno::NOSPC].map(|error| Some(error.raw_os_error()));
    assert!(full.contains(&failed.raw_os_error()), "{failed}");
    file.sync_all().unwrap();
    drop(file);
    let of = format!("of={}", mounted.path("home/copied").display());
    let copied = Command::new("dd").args(["if=/dev/zero", "bs=4k", "count=200", &of]).output();
    let copied = copied.unwrap();
    assert!(!copied.status.success(), "the close of a file that is not there has succeeded");
    fs::remove_file(&other).unwrap();
    fs::write(mounted.path("home/again"), pages(300)).unwrap();
    mounted.unmount();
}

#[test]
fn a_mount_that_is_killed_fails_the_sync_of_what_it_had() {
    if !may_mount() {
        return;
    }
    let site = Site::formatted(1024, 16);
    let served = site.serve();
    let mounted = Mounted::start(&site, &BEHIND);
    let mut file = File::create(mounted.path("file")).unwrap();
    stream(&mut file, 0, FIRST + 8);
    mounted.kill();
    file.sync_all().unwrap_err();
    drop(file);
    let _ = Command::new("umount").args(["-q", "-l"]).arg(site.path("mnt")).status();
    served.stop();
}
