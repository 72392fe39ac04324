//! Disks are added, drained, put to use again, retired, replaced and evened out under eight
//! clients, while the server is killed at random moments: nothing that was synced is lost.
//!
//! `MDFS_KILLS` is the number of kills, `MDFS_SEED` what is random.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::collections::VecDeque;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use client::OpenOptions;
use client::blocking::Volume;
use client::protocol::{AddedDisk, DiskChange, DiskCondition, DiskList, DiskReport};
use runtime::seed::{Rng, fresh_seed};
use tests::{Content, Site};

const VOLUME: &str = "VOL";
/// Kills of the usual test, and of the long one.
const KILLS: [u32; 2] = [8, 200];
/// More of them, at most, until each change was made once.
const KILLS_MORE: u32 = 60;
const WRITERS: u64 = 4;
const READERS: u64 = 4;
const FILE_BYTES: u64 = 512 << 10;
/// Files that are written before disks are evened out.
const FILLERS: u64 = 400;
/// Files of a writer that are kept.
const FILES_MAX: usize = 60;
/// Of these, the oldest are not read any more: they may be removed just now.
const FILES_OLD: usize = 20;
/// A change is made within this time, at last.
const CHANGE_MAX: Duration = Duration::from_mins(1);
/// A volume remembers 64 retired disks.
const RETIRED_MAX: usize = 50;

/// The size of the first disks, in MiB: for a while after each start of a server files that were
/// removed keep their blocks, as a client may still have them open.
fn disk_mib(kills: u32) -> u64 {
    400 + 8 * u64::from(kills)
}

fn content(writer: u64, number: u64) -> Content {
    Content { seed: writer << 32 | number, length: FILE_BYTES }
}

fn name(writer: u64, number: u64) -> String {
    format!("/w{writer}/{number}")
}

/// The files of each writer that are synced, the oldest first.
type Synced = [Mutex<VecDeque<u64>>; WRITERS as usize];

struct Clients {
    synced: Synced,
    is_over: AtomicBool,
    writes: AtomicU64,
    reads: AtomicU64,
    /// Disks that were added, retired, put to use again before they were drained; rounds of evening
    /// out.
    changes: [AtomicU64; 4],
}

impl Clients {
    fn changes(&self) -> [u64; 4] {
        self.changes.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn synced(&self, writer: u64) -> VecDeque<u64> {
        self.synced[writer as usize].lock().unwrap().clone()
    }

    /// Writes files and syncs them; removes the oldest, if there are many.
    fn write(&self, volume: &Volume, writer: u64) {
        for number in 0.. {
            if self.is_over() {
                break;
            }
            let file = volume.create(name(writer, number)).unwrap();
            file.write_at(0, content(writer, number).bytes()).unwrap();
            file.sync().unwrap();
            let mut synced = self.synced[writer as usize].lock().unwrap();
            synced.push_back(number);
            let oldest = (synced.len() > FILES_MAX).then(|| synced.pop_front()).flatten();
            drop(synced);
            if let Some(oldest) = oldest {
                volume.remove_file(name(writer, oldest)).unwrap();
            }
            self.writes.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Reads what was synced, and compares it.
    fn read(&self, volume: &Volume, mut rng: Rng) {
        while !self.is_over() {
            let writer = rng.below(WRITERS);
            let synced = self.synced(writer);
            let old = synced.len().saturating_sub(FILES_MAX - FILES_OLD);
            if old == synced.len() {
                sleep(Duration::from_millis(5));
                continue;
            }
            compare(volume, writer, synced[old + rng.index(synced.len() - old)]);
            self.reads.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn compare(volume: &Volume, writer: u64, number: u64) {
    let file = volume.open(name(writer, number), OpenOptions::new().read(true)).unwrap();
    let read = file.read_bytes_at(0, FILE_BYTES as usize + 1).unwrap().concat();
    content(writer, number).compare(&read[..]);
}

/// Tells the clients to end, also after a panic.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Changes the disks, over and over.
struct Operator<'a> {
    site: &'a Site,
    volume: Volume,
    clients: &'a Clients,
    rng: Rng,
    disk_mib: u64,
}

impl Operator<'_> {
    /// Makes a change. A server that is killed may have decided it, or not.
    fn change(&self, change: &DiskChange) {
        let begun = Instant::now();
        while let Err(error) = self.volume.change_disks(change.clone()) {
            assert!(begun.elapsed() < CHANGE_MAX, "{change:?}: {error}");
            println!("{change:?} again: {error}");
            sleep(Duration::from_millis(50));
        }
    }

    fn count(&self, change: usize) {
        self.clients.changes[change].fetch_add(1, Ordering::Relaxed);
    }

    fn list(&self) -> DiskList {
        self.volume.disks().unwrap()
    }

    fn disks(&self, wanted: DiskCondition) -> Vec<DiskReport> {
        self.list().disks.into_iter().filter(|disk| disk.condition == wanted).collect()
    }

    /// Waits as long as there are kills; false if they are over before.
    fn wait_until(&self, is_so: impl Fn(&DiskList) -> bool) -> bool {
        while !is_so(&self.list()) {
            if self.clients.is_over() {
                return false;
            }
            sleep(Duration::from_millis(20));
        }
        true
    }

    fn add(&mut self, disk_node: u32) {
        let disk = self.list().next[disk_node as usize];
        let bytes = (self.disk_mib + self.rng.below(200)) << 20;
        let path = self.site.path(VOLUME).join(format!("disks/n{disk_node}d{disk}"));
        let file = File::create_new(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        file.set_len(bytes).unwrap();
        self.change(&DiskChange::Add { disks: vec![AddedDisk { disk_node, disk, bytes }] });
        self.count(0);
    }

    /// Drains a disk, and retires and removes it, or uses it again before that.
    fn drain(&mut self, of: &DiskReport, cancels: bool) {
        let DiskReport { disk_node, disk, .. } = *of;
        self.change(&DiskChange::Drain { disk_node, disk });
        if cancels {
            sleep(Duration::from_millis(self.rng.below(300)));
            self.change(&DiskChange::Keep { disk_node, disk });
            self.count(2);
            return;
        }
        let is_drained = self.wait_until(|list| {
            let mut disks = list.disks.iter();
            let it = disks.find(|it| (it.disk_node, it.disk) == (disk_node, disk)).unwrap();
            it.condition == DiskCondition::Drained {}
        });
        if is_drained {
            self.change(&DiskChange::Retire { disk_node, disk });
            let path = self.site.path(VOLUME).join(format!("disks/n{disk_node}d{disk}"));
            fs::remove_file(path).unwrap();
            self.count(1);
        }
    }

    fn balance(&self) {
        self.change(&DiskChange::Balance {});
        if self.wait_until(|list| !list.balancing) {
            self.count(3);
        }
    }

    fn work(&mut self) {
        while !self.clients.is_over() {
            let pace = ["balanced", "fast"][self.rng.index(2)].to_owned();
            self.change(&DiskChange::SetPace { pace });
            let online = self.disks(DiskCondition::Online {});
            let disk = online[self.rng.index(online.len())].clone();
            let may_retire = self.disks(DiskCondition::Retired {}).len() < RETIRED_MAX;
            match self.rng.below(4) {
                // Replaces it.
                0 | 1 if may_retire => {
                    self.add(disk.disk_node);
                    self.drain(&disk, false);
                }
                2 => self.drain(&disk, true),
                _ => self.balance(),
            }
        }
        // What the kills have left of a drain is put to use again.
        for DiskReport { disk_node, disk, .. } in self.disks(DiskCondition::Draining {}) {
            self.change(&DiskChange::Keep { disk_node, disk });
        }
        for DiskReport { disk_node, disk, .. } in self.disks(DiskCondition::Drained {}) {
            self.change(&DiskChange::Keep { disk_node, disk });
        }
    }
}

/// How far the fullest and the emptiest disk in use are from the mean, in thousandths of it.
fn unevenness(list: &DiskList) -> u128 {
    let online = || list.disks.iter().filter(|disk| disk.condition == DiskCondition::Online {});
    let sum = |of: fn(&DiskReport) -> u64| online().map(|disk| u128::from(of(disk))).sum::<u128>();
    let (used, all) = (sum(|disk| disk.used_bytes), sum(|disk| disk.bytes));
    let from_mean = |disk: &DiskReport| {
        let ideal = used * u128::from(disk.bytes) / all;
        u128::from(disk.used_bytes).abs_diff(ideal) * 1000 / ideal
    };
    online().map(from_mean).max().unwrap()
}

fn disks_change_under_eight_clients(kills: u32) {
    let number = |name: &str| std::env::var(name).ok().map(|told| told.parse::<u64>().unwrap());
    let kills = number("MDFS_KILLS").map_or(kills, |kills| kills as u32);
    let seed = number("MDFS_SEED").unwrap_or_else(fresh_seed);
    println!("seed {seed}, {kills} kills");
    let mut rng = Rng::new(seed);
    let site = Site::formatted(4 * disk_mib(kills), 8);
    let served = site.serve();
    let port = served.port();
    let clients = Clients {
        synced: Synced::default(),
        is_over: AtomicBool::default(),
        writes: AtomicU64::default(),
        reads: AtomicU64::default(),
        changes: Default::default(),
    };
    let volume = site.open();
    for writer in 0..WRITERS {
        volume.mkdir(format!("/w{writer}")).unwrap();
    }
    let begun = Instant::now();
    let (served, killed) = scope(|threads| {
        let clients = &clients;
        let ending = Ending(&clients.is_over);
        for writer in 0..WRITERS {
            let volume = site.open();
            threads.spawn(move || clients.write(&volume, writer));
        }
        for reader in 0..READERS {
            let (volume, rng) = (site.open(), Rng::new(seed ^ (reader + 1)));
            threads.spawn(move || clients.read(&volume, rng));
        }
        let rng_of_operator = Rng::new(seed ^ 0xff);
        let mut operator = Operator {
            site: &site,
            volume: site.open(),
            clients,
            rng: rng_of_operator,
            disk_mib: disk_mib(kills),
        };
        let operating = threads.spawn(move || operator.work());
        let (mut served, mut killed) = (served, 0);
        // Each change is made once, at least.
        let is_done = |killed| killed >= kills && !clients.changes().contains(&0);
        while !is_done(killed) && killed < kills + KILLS_MORE {
            sleep(Duration::from_millis(50 + rng.below(3000)));
            served.kill();
            served = site.serve_at(port);
            killed += 1;
            // One that has failed tells it with its panic.
            if operating.is_finished() {
                break;
            }
        }
        drop(ending);
        operating.join().unwrap();
        (served, killed)
    });
    let (writes, reads) =
        (clients.writes.load(Ordering::Relaxed), clients.reads.load(Ordering::Relaxed));
    println!(
        "{killed} kills in {:?}: {writes} files written, {reads} compared; disks added, retired, \
         put to use again, evened out: {:?}",
        begun.elapsed(),
        clients.changes()
    );
    assert!(!clients.changes().contains(&0), "not all has been done");
    assert!(writes > u64::from(kills) && reads > u64::from(kills), "{writes} and {reads}");
    let compare_all = |volume: &Volume| {
        for writer in 0..WRITERS {
            clients.synced(writer).into_iter().for_each(|number| compare(volume, writer, number));
        }
    };
    compare_all(&volume);
    // So much that one chunk more or less does not count.
    for number in 0..FILLERS {
        let file = volume.create(format!("/filler {number}")).unwrap();
        file.write_at(0, content(WRITERS, number).bytes()).unwrap();
    }
    volume.sync().unwrap();
    site.ok(&["rebalance", "--pace", "fast", VOLUME]);
    let list = volume.disks().unwrap();
    let uneven = unevenness(&list);
    let used: Vec<_> =
        list.disks.iter().map(|it| (it.condition, it.used_bytes, it.bytes)).collect();
    println!("after a rebalance disks are {uneven} thousandths from the mean: {used:?}");
    assert!(uneven <= 50, "{uneven}: {used:?}");
    drop(volume);
    served.stop();
    let told = site.ok(&["check", "--data", VOLUME]);
    assert!(told.contains("sound"), "{told}");
    let served = site.serve();
    compare_all(&site.open());
    served.stop();
}

#[test]
fn disks_change_under_eight_clients_and_kills() {
    disks_change_under_eight_clients(KILLS[0]);
}

#[test]
#[ignore = "minutes"]
fn disks_change_under_eight_clients_and_200_kills() {
    disks_change_under_eight_clients(KILLS[1]);
}
