//! A volume of version 1 of the format, made by a program of that time and stored here as it was
//! after a kill, is used as it is, and becomes one of the newest version.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::fs;
use std::path::Path;
use std::process::Command;

use blockio::superblock::{Superblock, VERSION, VERSION_ONE_SET};
use tests::site::{Site, VOLUME};

/// Files of `dir`: number *i* has 977 *i* bytes of one letter. Number 8 was renamed.
const FILES: usize = 40;
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
