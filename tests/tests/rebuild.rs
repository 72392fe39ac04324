//! A lost disk is made anew although the server is killed again and again: the rebuild goes on
//! where it was, and ends.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::fs;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use client::OpenOptions;
use client::blocking::Volume;
use client::protocol::{DiskChange, DiskCondition, DiskReport};
use runtime::seed::{Rng, fresh_seed};
use tests::site::VOLUME;
use tests::{Content, Site};

const KILLS: u64 = 20;
/// The server is killed when this much more is made anew, or else after a short time, except every
/// fourth time.
const PROGRESS_BYTES: u64 = 2 << 20;
const LIFE_MS: u64 = 350;
const KILLS_PER_PROGRESS: u64 = 4;
/// A server may be killed before it is ready, too.
const START_MS: u64 = 200;
const FILES: usize = 50;
const FILE_BYTES: usize = 4 << 20;
const PART_BYTES: usize = 256 << 10;
/// On a busy machine it may end earlier, but not before this many kills.
const KILLS_MIN: u64 = 10;
/// What a start adds at most to the bytes that are left: each node counts a block until it has
/// looked for pages with too few copies, and then these.
const START_BYTES_MAX: u64 = 64 << 10;
/// It ends within this time once the server lives.
const REBUILT_MAX: Duration = Duration::from_mins(1);

fn name(number: usize) -> String {
    format!("/{number}")
}

/// A volume of four disk nodes with one disk each, and what is in its files.
struct Rebuild {
    site: Site,
    contents: Vec<Vec<u8>>,
}

impl Rebuild {
    /// The volume, full of files, without disk n1d0.
    fn new(redundancy: &str) -> Self {
        let site = Site::new();
        let shape = ["--disk-nodes", "4", "--disk-size", "300MiB", "--nodes", "4"];
        site.ok(&[&["format", VOLUME, "--redundancy", redundancy], &shape[..]].concat());
        let content = |seed| Content { seed, length: FILE_BYTES as u64 }.bytes();
        let contents: Vec<Vec<u8>> = (0..FILES as u64).map(content).collect();
        let served = site.serve();
        let volume = site.open();
        for (number, content) in contents.iter().enumerate() {
            let file = volume.create(name(number)).unwrap();
            file.write_at(0, content.clone()).unwrap();
            file.sync().unwrap();
        }
        volume.change_disks(DiskChange::SetPace { pace: "gentle".to_owned() }).unwrap();
        drop(volume);
        served.stop();
        let rebuild = Self { site, contents };
        rebuild.lose("n1d0");
        rebuild
    }

    fn lose(&self, disk: &str) {
        fs::remove_file(self.site.path(VOLUME).join("disks").join(disk)).unwrap();
        self.site.ok(&["disk", "lost", VOLUME, disk]);
    }

    fn compare(&self, volume: &Volume, number: usize) {
        let file = volume.open(name(number), OpenOptions::new().read(true)).unwrap();
        let read = file.read_bytes_at(0, FILE_BYTES + 1).unwrap().concat();
        assert!(read == self.contents[number], "file {number}");
    }

    /// A small read: the next look at what is left comes soon, also on a busy machine.
    fn compare_part(&self, volume: &Volume, rng: &mut Rng) {
        let (number, part) = (rng.index(FILES), rng.index(FILE_BYTES / PART_BYTES));
        let range = part * PART_BYTES..(part + 1) * PART_BYTES;
        let file = volume.open(name(number), OpenOptions::new().read(true)).unwrap();
        let read = file.read_bytes_at(range.start as u64, PART_BYTES).unwrap().concat();
        assert!(read == self.contents[number][range], "part {part} of file {number}");
    }

    fn compare_all(&self, volume: &Volume) {
        (0..FILES).for_each(|number| self.compare(volume, number));
    }

    /// One life of the server under a program that reads: the rebuild takes its time. It is killed
    /// when it has made progress, or after `time`. Bytes that were left first and last.
    fn live_and_die(&self, rng: &mut Rng, time: Option<Duration>) -> (u64, u64) {
        let served = self.site.serve();
        let volume = self.site.open_impatiently();
        let (begun, first) = (Instant::now(), bytes_left(&volume));
        let mut last = first;
        let mut is_over = false;
        while !is_over {
            self.compare_part(&volume, rng);
            last = bytes_left(&volume);
            let is_late = time.is_some_and(|time| begun.elapsed() > time);
            is_over = is_late || last == 0 || last + PROGRESS_BYTES <= first;
            assert!(begun.elapsed() < REBUILT_MAX, "{first} bytes are left all the time");
        }
        served.kill();
        (first, last)
    }

    /// Kills a server in the middle of its start.
    fn die_at_start(&self, rng: &mut Rng) {
        let mut server =
            self.site.command(&["serve", VOLUME]).stderr(Stdio::null()).spawn().unwrap();
        sleep(Duration::from_millis(rng.below(START_MS)));
        server.kill().unwrap();
        server.wait().unwrap();
    }

    /// How many disks more may be lost, as `mdfs disk list` tells.
    fn losses_left(&self) -> u64 {
        self.site.json(&["disk", "list", "--json", VOLUME])["losses_left"].as_u64().unwrap()
    }
}

/// What all nodes tell of the lost disk.
fn lost_disk(volume: &Volume) -> DiskReport {
    loop {
        let list = volume.disks().unwrap();
        if list.silent_nodes == 0 {
            let is_lost = |disk: &DiskReport| (disk.disk_node, disk.disk) == (1, 0);
            return list.disks.into_iter().find(is_lost).unwrap();
        }
        sleep(Duration::from_millis(10));
    }
}

/// Bytes of the lost disk that are not made anew yet.
fn bytes_left(volume: &Volume) -> u64 {
    lost_disk(volume).used_bytes
}

fn goes_on_where_it_was(redundancy: &str) {
    let seed = fresh_seed();
    println!("{redundancy}, seed {seed}");
    let mut rng = Rng::new(seed);
    let rebuild = Rebuild::new(redundancy);
    let (mut all, mut left) = (0, u64::MAX - START_BYTES_MAX);
    let mut kills = 0;
    for kill in 0..KILLS {
        if left == 0 {
            break;
        }
        let time = Duration::from_millis(rng.below(LIFE_MS));
        let time = Some(time).filter(|_| kill % KILLS_PER_PROGRESS > 0);
        let (first, last) = rebuild.live_and_die(&mut rng, time);
        if time.is_none() {
            rebuild.die_at_start(&mut rng);
        }
        println!("life {kill}: {first} bytes are left, then {last}");
        assert!(first <= left + START_BYTES_MAX, "what was made anew is to be made again");
        (all, left, kills) = (all.max(first), last, kills + u64::from(last > 0));
    }
    assert!(kills >= KILLS_MIN, "it has ended after {kills} kills");
    let made = kills / KILLS_PER_PROGRESS * PROGRESS_BYTES;
    assert!(left + made / 2 < all, "{left} of {all} bytes are left");

    let served = rebuild.site.serve();
    let (volume, begun) = (rebuild.site.open(), Instant::now());
    assert!(bytes_left(&volume) <= left + START_BYTES_MAX);
    if left > START_BYTES_MAX {
        assert_eq!(rebuild.losses_left(), 0);
    }
    while lost_disk(&volume).condition != (DiskCondition::Retired {}) {
        assert!(begun.elapsed() < REBUILT_MAX, "{} bytes are left", bytes_left(&volume));
        sleep(Duration::from_millis(50));
    }
    println!("the rest after {:?}", begun.elapsed());
    assert_eq!(rebuild.losses_left(), 1);
    rebuild.compare_all(&volume);
    drop(volume);
    served.stop();
    assert!(rebuild.site.ok(&["check", "--data", VOLUME]).contains("sound"));

    rebuild.lose("n3d0");
    let served = rebuild.site.serve();
    rebuild.compare_all(&rebuild.site.open());
    served.stop();
}

#[test]
fn copies_are_made_anew_although_the_server_is_killed_twenty_times() {
    goes_on_where_it_was("2x");
}

#[test]
fn wide_stripes_are_made_anew_although_the_server_is_killed_twenty_times() {
    goes_on_where_it_was("2+1");
}
