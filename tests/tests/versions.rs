//! A volume of version 1 of the format, made by a program of that time and stored here as it was
//! after a kill, is used as it is, and becomes one of the newest version.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use blockio::superblock::{Superblock, VERSION, VERSION_ONE_SET};
use tests::site::{Site, VOLUME};

/// Files of `dir`: number *i* has 977 *i* bytes of one letter. Number 8 was renamed.
const FILES: usize = 40;
/// Within this time each page has a second copy.
const COPIED_MAX: Duration = Duration::from_mins(1);
/// Within this time both copies of a small tree are read.
const CHECKED_MAX: Duration = Duration::from_secs(15);
const DISKS: [&str; 2] = ["n0d0", "n1d0"];

/// A folder with the stored volume.
fn unpacked() -> Site {
    let site = Site::new();
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/version-1.tar.gz");
    let unpacked = Command::new("tar").arg("xzf").arg(archive).current_dir(site.path("")).status();
    assert!(unpacked.unwrap().success());
    fs::rename(site.path("volume"), site.path(VOLUME)).unwrap();
    site
}

fn disk(site: &Site, name: &str) -> std::path::PathBuf {
    site.path(VOLUME).join("disks").join(name)
}

/// Of both superblocks of each disk.
fn versions(site: &Site) -> Vec<u32> {
    let version = |block: &[u8]| Superblock::decode(block).unwrap().version;
    let both = |name| {
        let bytes = fs::read(disk(site, name)).unwrap();
        [version(&bytes[..4096]), version(&bytes[bytes.len() - 4096..])]
    };
    DISKS.into_iter().flat_map(both).collect()
}

/// Compares all that is in the volume, and writes one more file.
fn use_it(site: &Site, new: &str) {
    let out = site.path("out");
    let _ = fs::remove_dir_all(&out);
    site.ok(&["cp", "-r", "VOL:/", "out"]);
    for i in (0..FILES).filter(|i| *i != 8) {
        let content = fs::read(out.join(format!("dir/file-{i}"))).unwrap();
        assert_eq!(content, vec![b'a' + (i % 26) as u8; 977 * i], "file {i}");
    }
    assert_eq!(fs::read_dir(out.join("dir")).unwrap().count(), FILES - 1);
    assert_eq!(fs::read(out.join("moved")).unwrap(), vec![b'i'; 977 * 8]);
    let numbers: Vec<u8> = (0..20_000_u32).flat_map(u32::to_le_bytes).collect();
    assert_eq!(fs::read(out.join("numbers")).unwrap(), numbers);
    fs::write(site.path("new"), vec![7; 50_000]).unwrap();
    site.ok(&["put", "new", &format!("VOL:/{new}")]);
    assert!(site.ok(&["check", VOLUME]).contains("sound"));
}

#[test]
fn a_volume_of_version_1_is_used_as_it_is_and_upgraded_in_place() {
    let site = unpacked();
    use_it(&site, "before");
    assert_eq!(versions(&site), [VERSION_ONE_SET; 4]);
    // What that has made is in the way of nothing.
    site.refused(&["disk", "add", "--size", "100MiB", VOLUME]);
    assert_eq!(site.ok(&["upgrade", VOLUME]), "2 disks upgraded\n");
    assert_eq!(versions(&site), [VERSION; 4]);
    use_it(&site, "after");
    let again = "0 disks upgraded, 2 were of the newest version before\n";
    assert_eq!(site.ok(&["upgrade", VOLUME]), again);
    // Its record is in the disks.
    fs::remove_dir_all(site.path(VOLUME).join("coordination")).unwrap();
    let told = site.run(&["ls", "VOL:/"]);
    assert!(String::from_utf8_lossy(&told.stderr).contains("rebuilt from the disks"));
    use_it(&site, "later");
}

/// Of the newest root of each node: its version, and of the pages of its tree how many there are
/// and how many have one copy only (docs/format.md).
fn roots(site: &Site) -> Vec<(u16, u64, u64)> {
    let disks = DISKS.map(|name| fs::read(disk(site, name)).unwrap());
    let nodes = Superblock::decode(&disks[0][..4096]).unwrap().geometry.fs_nodes as usize;
    let number = |slot: &[u8], at: usize| u64::from_le_bytes(slot[at..at + 8].try_into().unwrap());
    let newest = |node| {
        let slots = (1 + 8 * node..9 + 8 * node).map(|slot| 4096 * slot..4096 * (slot + 1));
        let slots = slots.flat_map(|slot| disks.each_ref().map(|disk| &disk[slot.clone()]));
        let roots = slots.filter(|slot| slot.starts_with(b"mdRT"));
        let newest = roots.max_by_key(|slot| (number(slot, 40), number(slot, 32))).unwrap();
        let version = u16::from_le_bytes([newest[4], newest[5]]);
        (version, number(newest, 104), number(newest, 179))
    };
    (0..nodes).map(newest).collect()
}

#[test]
fn pages_of_an_old_version_get_a_second_copy() {
    let site = unpacked();
    assert!(roots(&site).iter().all(|&(version, ..)| version < 3));
    site.ok(&["ls", "VOL:/"]);
    let opened = roots(&site);
    assert!(opened.iter().all(|&(version, ..)| version == 3), "{opened:?}");
    assert!(opened.iter().any(|&(_, pages, _)| pages > 0), "{opened:?}");
    // While it is served also those that nothing changes.
    let served = site.serve();
    let begun = Instant::now();
    while roots(&site).iter().any(|&(.., single)| single > 0) {
        assert!(begun.elapsed() < COPIED_MAX, "{:?}", roots(&site));
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(served);
    // Each page of one disk rots, and nothing is lost.
    let path = disk(&site, DISKS[1]);
    let mut bytes = fs::read(&path).unwrap();
    for page in (0..bytes.len()).step_by(4096) {
        if bytes[page..].starts_with(b"mdPG") {
            bytes[page + 1] ^= 1;
        }
    }
    fs::write(&path, bytes).unwrap();
    let told = String::from_utf8(site.run(&["check", VOLUME]).stdout).unwrap();
    assert!(told.contains("the other whole") && told.contains("disks/n1d0"), "{told}");
    let copied = site.run(&["cp", "-r", "VOL:/", "rotten"]);
    let told = String::from_utf8(copied.stderr).unwrap();
    assert!(copied.status.success(), "{told}");
    // One line for each page.
    let lines: Vec<&str> =
        told.lines().filter(|line| line.contains("one copy of a page")).collect();
    let pages = lines.iter().filter_map(|line| line.split_once("block=")).map(|(_, page)| page);
    assert_eq!((pages.collect::<BTreeSet<_>>().len(), lines.is_empty()), (lines.len(), false));
    // A volume that runs finds also the second copies, and writes their pages anew.
    let served = site.serve();
    std::thread::sleep(CHECKED_MAX);
    drop(served);
    assert!(site.ok(&["check", VOLUME]).contains("sound"));
    for i in (0..FILES).filter(|i| *i != 8) {
        let content = fs::read(site.path(format!("rotten/dir/file-{i}"))).unwrap();
        assert_eq!(content, vec![b'a' + (i % 26) as u8; 977 * i], "file {i}");
    }
}

#[test]
fn an_upgrade_that_was_cut_off_is_used_and_repeated() {
    let site = unpacked();
    let path = disk(&site, DISKS[1]);
    let old = fs::read(&path).unwrap();
    site.ok(&["upgrade", VOLUME]);
    let new = fs::read(&path).unwrap();
    // The copy at the end is written first.
    let mut half = old.clone();
    let end = half.len() - 4096;
    half[end..].copy_from_slice(&new[end..]);
    for cut in [old, half] {
        fs::write(&path, cut).unwrap();
        let again = "1 disks upgraded, 1 were of the newest version before\n";
        assert_eq!(site.ok(&["upgrade", VOLUME]), again);
        assert_eq!(versions(&site), [VERSION; 4]);
    }
    use_it(&site, "whole");
}

#[test]
fn disks_of_both_versions_are_used_together() {
    let site = unpacked();
    let path = disk(&site, DISKS[1]);
    let old = fs::read(&path).unwrap();
    site.ok(&["upgrade", VOLUME]);
    fs::write(&path, old).unwrap();
    use_it(&site, "mixed");
    assert_eq!(versions(&site), [VERSION, VERSION, VERSION_ONE_SET, VERSION_ONE_SET]);
}

#[test]
fn an_upgrade_reads_all_disks_before_it_writes_any() {
    let site = unpacked();
    fs::write(disk(&site, DISKS[1]), vec![0; 4 << 20]).unwrap();
    let refusal = site.refused(&["upgrade", VOLUME]);
    assert!(refusal.text.contains("n1d0"), "{}", refusal.text);
    let first = fs::read(disk(&site, DISKS[0])).unwrap();
    assert_eq!(Superblock::decode(&first[..4096]).unwrap().version, VERSION_ONE_SET);
}
