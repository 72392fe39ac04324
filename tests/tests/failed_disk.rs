//! A disk that fails while its volume is served. The disk is a file in another volume, which is
//! mounted; its mount is killed.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use client::blocking::Volume;
use runtime::seed::{Rng, fresh_seed};
use serde_json::Value;
use tests::mounted::{Mounted, may_mount};
use tests::site::VOLUME;
use tests::{Content, Site};

const FILE_BYTES: u64 = 256 << 10;
/// Disks of the volume; the last one fails.
const DISKS: usize = 3;
const FAILING: &str = "n2d0";
/// A disk fails when files have been written for this long, and when many are in wide stripes.
const WRITTEN_BEFORE: Duration = Duration::from_secs(1);
const ENCODED_BEFORE: Duration = Duration::from_secs(4);
/// A program waits no longer for a disk that has failed.
const PAUSE_MAX: Duration = Duration::from_secs(8);
/// All that was on it is on others by then.
const REBUILT_MAX: Duration = Duration::from_mins(1);
/// The server is killed after the disk, within this time.
const KILL_AFTER_MS: u64 = 2500;

fn content(number: u64) -> Content {
    Content { seed: number, length: FILE_BYTES }
}

/// A volume on disks of which one is in a mount.
struct FailingDisk {
    site: Site,
    host: Site,
    mount: Option<Mounted>,
}

impl FailingDisk {
    fn new(redundancy: &str) -> Self {
        let (site, host) = (Site::new(), Site::formatted(700, 4));
        let mount = Mounted::start(&host, &[]);
        let disk = mount.path("disk");
        let disks = [site.path("a"), site.path("b"), disk];
        for disk in &disks {
            let file = fs::File::create(disk).unwrap();
            file.set_len(300 << 20).unwrap();
        }
        let mut format = vec!["format", VOLUME, "--redundancy", redundancy, "--nodes", "4"];
        format.extend(["--disk-nodes", "3"]);
        for disk in &disks {
            format.extend(["--disk", disk.to_str().unwrap()]);
        }
        site.ok(&format);
        Self { site, host, mount: Some(mount) }
    }

    fn fail(&mut self) {
        self.mount.take().unwrap().kill();
    }

    /// How many disks there are in a state.
    fn count(&self, state: &str) -> usize {
        let list = self.site.ok(&["disk", "list", "--json", VOLUME]);
        let list: Value = serde_json::from_str(&list).unwrap();
        list["disks"].as_array().unwrap().iter().filter(|disk| disk["state"] == state).count()
    }

    fn wait_until_rebuilt(&self) -> Duration {
        let start = Instant::now();
        while self.count("retired") == 0 {
            assert!(start.elapsed() < REBUILT_MAX, "{}", self.site.ok(&["disk", "list", VOLUME]));
            sleep(Duration::from_millis(200));
        }
        start.elapsed()
    }

    fn compare(&self, files: &[u64]) {
        for &number in files {
            let read = self.site.run(&["cat", &format!("{VOLUME}:/{number}")]);
            content(number).compare(&read.stdout[..]);
        }
    }

    /// Each of the disks that are left has all.
    fn survives_another(&self, files: &[u64]) {
        assert!(self.site.ok(&["check", "--data", VOLUME]).contains("sound"));
        fs::remove_file(self.site.path("a")).unwrap();
        self.site.ok(&["disk", "lost", VOLUME, "n0d0"]);
        let served = self.site.serve();
        self.compare(files);
        served.kill();
    }
}

impl Drop for FailingDisk {
    fn drop(&mut self) {
        let point = self.host.path(tests::mounted::POINT);
        let _ = std::process::Command::new("umount").arg("--lazy").arg(point).status();
    }
}

/// Writes files and syncs them until told to end; notes those that were synced. Returns the longest
/// time that one took.
fn write(volume: &Volume, synced: &Mutex<Vec<u64>>, is_over: &AtomicBool) -> Duration {
    let mut longest = Duration::ZERO;
    for number in 0.. {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        let start = Instant::now();
        let store = || {
            let file = volume.create(format!("/{number}"))?;
            file.write_at(0, content(number).bytes())?;
            file.sync()
        };
        match store() {
            Ok(()) => synced.lock().unwrap().push(number),
            Err(error) => {
                println!("file {number} after {:?}: {error}", start.elapsed());
                sleep(Duration::from_millis(50));
            }
        }
        longest = longest.max(start.elapsed());
    }
    longest
}

#[test]
fn a_served_volume_goes_on_without_a_disk_that_fails() {
    goes_on_without_a_disk("2x", WRITTEN_BEFORE);
}

#[test]
fn a_volume_with_parity_goes_on_without_a_disk_that_fails() {
    goes_on_without_a_disk("2+1", ENCODED_BEFORE);
}

fn goes_on_without_a_disk(redundancy: &str, before: Duration) {
    if !may_mount() {
        return;
    }
    let mut volume = FailingDisk::new(redundancy);
    let served = volume.site.serve();
    let (synced, is_over) = (Mutex::default(), AtomicBool::new(false));
    let client = volume.site.open();
    let (longest, rebuilt) = scope(|threads| {
        let writer = threads.spawn(|| write(&client, &synced, &is_over));
        sleep(before);
        volume.fail();
        let rebuilt = volume.wait_until_rebuilt();
        sleep(Duration::from_secs(1));
        is_over.store(true, Ordering::Relaxed);
        (writer.join().unwrap(), rebuilt)
    });
    let synced = synced.into_inner().unwrap();
    let files = synced.len();
    println!("{files} files; longest pause {longest:.1?}; rebuilt after {rebuilt:.1?}");
    assert!(longest < PAUSE_MAX, "a program waited {longest:?}");
    assert!(files > 20, "{files} files show little");
    volume.compare(&synced);
    assert_eq!(volume.count("online"), DISKS - 1);
    assert!(served.log().contains(FAILING), "{}", served.log());
    served.stop();
    volume.survives_another(&synced);
}

#[test]
fn nothing_is_lost_if_the_server_is_killed_after_the_disk() {
    if !may_mount() {
        return;
    }
    let seed = fresh_seed();
    println!("seed {seed}");
    let pause = Duration::from_millis(Rng::new(seed).below(KILL_AFTER_MS));
    let mut volume = FailingDisk::new("2x");
    let served = volume.site.serve();
    let (synced, is_over) = (Mutex::default(), AtomicBool::new(false));
    let client = volume.site.open_impatiently();
    scope(|threads| {
        threads.spawn(|| write(&client, &synced, &is_over));
        sleep(Duration::from_secs(1));
        volume.fail();
        sleep(pause);
        is_over.store(true, Ordering::Relaxed);
        served.kill();
    });
    let synced = synced.into_inner().unwrap();
    let lost = volume.site.run(&["disk", "lost", VOLUME, FAILING]);
    println!("{} files; killed after {pause:?}; given up by hand: {lost:?}", synced.len());
    let served = volume.site.serve();
    volume.compare(&synced);
    volume.wait_until_rebuilt();
    volume.compare(&synced);
    served.stop();
    volume.survives_another(&synced);
}
