//! Volumes of which one disk is damaged or gone: each opens to be read, no byte is wrong, and
//! `mdfs check --files` lists exactly the files that cannot be read.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "the test damages disks on the host, and panics where it fails"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions as HostOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use client::blocking::Volume;
use client::{Credentials, OpenOptions};
use runtime::seed::Rng;
use rustix::io::Errno;
use tempfile::TempDir;
use volume::{CheckOptions, FormatOptions, RunOptions, UnreadableFiles};

/// Damaged volumes in the test command.
const VOLUMES: u64 = 160;
/// In the long test.
const VOLUMES_ALL: u64 = 1000;

const BLOCK: usize = 4096;
const FILE_BYTES_MAX: usize = 150_000;
const DISK_BYTES: u64 = 16 << 20;

/// Disk nodes, disks of each, file-system nodes.
const SHAPES: [(u32, u32, u32); 4] = [(2, 1, 1), (2, 1, 2), (3, 1, 3), (2, 2, 4)];

/// The same with one disk: both copies of metadata are on it.
const ONE_DISK: [(u32, u32, u32); 2] = [(1, 1, 1), (1, 1, 4)];

/// Bits that a disk may lose, so that hardly ever both copies of a page are hit.
const FEW_FLIPS: u64 = 4;

/// A volume that is well, and all that is in it.
struct Original {
    place: TempDir,
    /// The bytes of each file, as often as it was synced, the last ones last; `None` for a
    /// directory.
    content: BTreeMap<Vec<u8>, Option<Vec<Vec<u8>>>>,
}

impl Original {
    fn directory(&self) -> PathBuf {
        self.place.path().join("volume")
    }

    /// Makes a volume and fills it; it ends cleanly, or as in a crash.
    fn make((disk_nodes, disks_per_node, fs_nodes): (u32, u32, u32), ends_well: bool) -> Self {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("volume");
        let shape = FormatOptions {
            disk_nodes,
            disks_per_node,
            fs_nodes,
            disk_bytes: DISK_BYTES,
            ..FormatOptions::default()
        };
        volume::format(&directory, &shape).unwrap();
        let running = volume::open(&directory, &run_options()).unwrap();
        let client = Volume::new(running.client_handle(), Credentials::root());
        let mut rng = Rng::new(u64::from(fs_nodes) * 2 + u64::from(ends_well));
        let mut content = BTreeMap::new();
        for number in 0..90 {
            let directory = format!("/d{}", number % 7);
            if number < 7 {
                client.mkdir(directory.as_bytes()).unwrap();
                content.insert(directory.clone().into_bytes(), None);
            }
            let path = format!("{directory}/f{number}").into_bytes();
            let most = [1, 200, 9000, FILE_BYTES_MAX][rng.index(4)];
            let mut bytes = vec![0; rng.index(most)];
            rng.fill(&mut bytes);
            let file = client.create(&path).unwrap();
            file.write_at(0, bytes.clone()).unwrap();
            let mut versions = vec![Vec::new()];
            if rng.chance(1, 4) && !bytes.is_empty() {
                // What was committed is overwritten in part.
                file.sync().unwrap();
                versions.push(bytes.clone());
                let from = rng.index(bytes.len());
                let upper = (from + 5000).min(bytes.len());
                rng.fill(&mut bytes[from..upper]);
                file.write_at(from as u64, bytes[from..upper].to_vec()).unwrap();
            }
            file.sync().unwrap();
            versions.push(bytes);
            content.insert(path, Some(versions));
        }
        for number in (0..90).step_by(9) {
            let [old, new] =
                ["f", "renamed"].map(|name| format!("/d{}/{name}{number}", number % 7));
            client.rename(old.as_bytes(), new.as_bytes()).unwrap();
            let moved = content.remove(old.as_bytes()).unwrap();
            content.insert(new.into_bytes(), moved);
        }
        for number in (1..90).step_by(9) {
            let path = format!("/d{}/f{number}", number % 7);
            let link = format!("/d{}/link{number}", number % 5);
            client.hard_link(path.as_bytes(), link.as_bytes()).unwrap();
            let linked = content[path.as_bytes()].clone();
            content.insert(link.into_bytes(), linked);
        }
        for number in (2..90).step_by(9) {
            let path = format!("/d{}/f{number}", number % 7).into_bytes();
            client.remove_file(&path).unwrap();
            content.remove(&path);
        }
        if ends_well {
            running.stop().unwrap();
        } else {
            // All files are durable, and now all names.
            for number in 0..7 {
                client.sync_directory(format!("/d{number}").as_bytes()).unwrap();
            }
            drop(client);
            drop(running);
        }
        Self { place, content }
    }

    fn disks(&self) -> Vec<String> {
        let names = fs::read_dir(self.directory().join("disks")).unwrap();
        let mut names: Vec<String> =
            names.map(|name| name.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn run_options() -> RunOptions {
    RunOptions { threads: 1, cache_bytes: 8 << 20, ..RunOptions::default() }
}

/// Copies a directory, with holes.
fn copy(from: &Path, to: &Path) {
    let mut command = std::process::Command::new("cp");
    let copied = command.args(["-a", "--sparse=always"]).args([from, to]).status().unwrap();
    assert!(copied.success());
}

/// What was done to a disk.
#[derive(Clone, Copy, Debug)]
enum Damage {
    Flips { count: u64 },
    Zeros { count: u64, blocks: u64 },
    Cut { left: u64 },
    Gone,
}

impl Damage {
    fn draw(rng: &mut Rng) -> Self {
        match rng.below(8) {
            0..=2 => Self::Flips { count: 1 << rng.below(12) },
            3..=4 => Self::Zeros { count: 1 << rng.below(4), blocks: 1 << rng.below(11) },
            5..=6 => Self::Cut { left: rng.below(DISK_BYTES) >> rng.below(12) },
            _ => Self::Gone,
        }
    }

    /// Does it, mostly to blocks that hold something.
    fn harm(self, disk: &Path, rng: &mut Rng) {
        if let Self::Gone = self {
            return fs::remove_file(disk).unwrap();
        }
        let file = HostOptions::new().read(true).write(true).open(disk).unwrap();
        if let Self::Cut { left } = self {
            return file.set_len(left).unwrap();
        }
        let mut bytes = fs::read(disk).unwrap();
        let blocks = bytes.len() / BLOCK;
        let is_used = |block: &usize| bytes[block * BLOCK..][..BLOCK].iter().any(|&byte| byte != 0);
        let used: Vec<usize> = (0..blocks).filter(is_used).collect();
        let place = |rng: &mut Rng| {
            if rng.chance(1, 8) { rng.index(blocks) } else { used[rng.index(used.len())] }
        };
        match self {
            Self::Flips { count } => {
                for _ in 0..count {
                    let at = place(rng) * BLOCK + rng.index(BLOCK);
                    bytes[at] ^= 1 << rng.below(8);
                }
            }
            Self::Zeros { count, blocks: length } => {
                for _ in 0..count {
                    // Also ranges that do not begin or end with a block.
                    let start = place(rng) * BLOCK + rng.index(2) * rng.index(BLOCK);
                    let end = start + length as usize * BLOCK - rng.index(2) * rng.index(BLOCK);
                    let end = end.min(bytes.len());
                    bytes[start..end].fill(0);
                }
            }
            Self::Cut { .. } | Self::Gone => {}
        }
        file.write_all_at(&bytes, 0).unwrap();
    }
}

/// What was found on damaged volumes.
#[derive(Debug, Default)]
struct Figures {
    volumes: u64,
    /// A part of its metadata is lost.
    metadata_lost: u64,
    /// Without a file that cannot be read.
    whole: u64,
    files_read: u64,
    files_unreadable: u64,
    /// Opened as usual.
    opened: u64,
    refused: u64,
}

/// Reads everything by its path. Returns what cannot be read; a wrong byte is a panic. So are a
/// name that is not there and the bytes of an earlier time, unless what was changed last
/// `may_be_lost`.
fn read_all(
    client: &Volume,
    original: &Original,
    may_be_lost: bool,
    what: &str,
) -> BTreeSet<Vec<u8>> {
    let mut unreadable = BTreeSet::new();
    for (path, content) in &original.content {
        let shown = String::from_utf8_lossy(path);
        let read = match content {
            None => client.metadata(path).map(|_| Vec::new()),
            Some(_) => client.open(path, OpenOptions::new().read(true)).and_then(|file| {
                let mut read = vec![0; FILE_BYTES_MAX + 1];
                let length = file.read_at(0, &mut read)?;
                read.truncate(length);
                Ok(read)
            }),
        };
        match (read, content) {
            (Ok(_), None) => {}
            (Ok(read), Some(versions)) => {
                let possible = if may_be_lost { 0 } else { versions.len() - 1 };
                let is_right = versions[possible..].contains(&read);
                assert!(is_right, "{shown}: wrong bytes, {what}");
            }
            (Err(error), _) => {
                let errno = Errno::from_raw_os_error(error.cause.errno());
                let is_lost = may_be_lost && [Errno::NOENT, Errno::STALE].contains(&errno);
                assert!(errno == Errno::IO || is_lost, "{shown}: {error}, {what}");
                unreadable.insert(path.clone());
            }
        }
    }
    unreadable
}

fn check_files(directory: &Path) -> UnreadableFiles {
    let on_step = Arc::new(|_| {});
    let options = CheckOptions { data: true, files: true, rate_bytes: 0, on_step };
    volume::check(directory, &options).unwrap().summary.unreadable
}

/// Damages one disk of a copy of `original` and looks what can be read.
fn damage_one(original: &Original, seed: u64, figures: &mut Figures) {
    let mut rng = Rng::new(seed);
    let damage = Damage::draw(&mut rng);
    let disks = original.disks();
    let disk = &disks[rng.index(disks.len())];
    let what = &format!("seed {seed}: {damage:?} on {disk} of {}", disks.len());
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("volume");
    copy(&original.directory(), &directory);
    damage.harm(&directory.join("disks").join(disk), &mut rng);
    let before = state_of(&directory);

    figures.volumes += 1;
    let has_few_flips = matches!(damage, Damage::Flips { count } if count <= FEW_FLIPS);
    // Where one disk has all copies, all of them may be hit.
    let may_be_lost = disks.len() == 1 && !has_few_flips;
    let (running, missing) = match volume::open_degraded(&directory, &run_options()) {
        Ok(opened) => opened,
        Err(error) => panic!("{what}: {error}"),
    };
    let client = Volume::new(running.client_handle(), Credentials::root());
    let unreadable = read_all(&client, original, may_be_lost, what);
    let refused = client.create(b"/new").map(drop).map_err(|error| error.cause.errno());
    let refused = refused.map_err(Errno::from_raw_os_error);
    assert!(matches!(refused, Err(Errno::ROFS)), "{what}: {refused:?}");
    running.stop().unwrap();
    assert!(state_of(&directory) == before, "{what}: a disk was written");

    let told = check_files(&directory);
    let listed: BTreeSet<Vec<u8>> = told.files.iter().map(|file| file.path.clone()).collect();
    let is_whole = missing.nodes.is_empty() && told.names_lost.is_empty();
    if !may_be_lost {
        assert!(is_whole, "{what}: {:?}, {:?}", missing.nodes, told.names_lost);
        assert_eq!(show(&listed), show(&unreadable), "{what}");
    } else if !is_whole || listed != unreadable {
        // Both copies are lost: of what was named last, if they are of the log.
        figures.metadata_lost += 1;
    }
    figures.whole += u64::from(unreadable.is_empty());
    figures.files_read += (original.content.len() - unreadable.len()) as u64;
    figures.files_unreadable += unreadable.len() as u64;

    // As usual: refused, or what can be read is right.
    match volume::open(&directory, &run_options()) {
        Ok(running) => {
            let client = Volume::new(running.client_handle(), Credentials::root());
            read_all(&client, original, may_be_lost, what);
            figures.opened += 1;
        }
        Err(_) => figures.refused += 1,
    }
}

fn show(paths: &BTreeSet<Vec<u8>>) -> Vec<String> {
    paths.iter().map(|path| String::from_utf8_lossy(path).into_owned()).collect()
}

/// The content of all disks.
fn state_of(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let names = fs::read_dir(directory.join("disks")).unwrap();
    let mut disks: Vec<(PathBuf, Vec<u8>)> = names
        .map(|name| name.unwrap().path())
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect();
    disks.sort();
    disks
}

fn damage_many(shapes: &[(u32, u32, u32)], seeds: std::ops::Range<u64>) -> Figures {
    let originals: Vec<Original> = shapes
        .iter()
        .copied()
        .flat_map(|shape| [true, false].map(|ends_well| Original::make(shape, ends_well)))
        .collect();
    let mut figures = Figures::default();
    for seed in seeds {
        damage_one(&originals[seed as usize % originals.len()], seed, &mut figures);
    }
    println!("{figures:?}");
    figures
}

#[test]
fn a_volume_with_a_damaged_disk_opens_to_be_read_without_a_wrong_byte() {
    damage_many(&SHAPES, 0..VOLUMES);
}

#[test]
fn of_a_volume_of_one_damaged_disk_is_read_what_is_left_without_a_wrong_byte() {
    let figures = damage_many(&ONE_DISK, 0..VOLUMES / 4);
    assert!(figures.metadata_lost < figures.volumes * 9 / 10, "{figures:?}");
    assert!(figures.files_read > figures.files_unreadable / 3, "{figures:?}");
}

#[test]
#[ignore = "minutes"]
fn a_thousand_volumes_with_a_damaged_disk_open_to_be_read_without_a_wrong_byte() {
    damage_many(&SHAPES, VOLUMES..VOLUMES + VOLUMES_ALL);
    damage_many(&ONE_DISK, VOLUMES..VOLUMES + VOLUMES_ALL);
}
