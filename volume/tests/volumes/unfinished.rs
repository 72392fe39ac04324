//! A format that was cut off leaves what does not open, and can be repeated; what was finished
//! stays a volume, whatever is left beside it.

use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use volume::{DirectoryError, FormatOptions, RunOptions, RunningVolume, VolumeError};

fn options(disks: &[PathBuf]) -> FormatOptions {
    FormatOptions {
        disk_nodes: 2,
        disk_bytes: 16 << 20,
        disks: disks.to_vec(),
        fs_nodes: 4,
        ..FormatOptions::default()
    }
}

fn open(directory: &Path) -> Result<RunningVolume, VolumeError> {
    let options = RunOptions { threads: 2, cache_bytes: 32 << 20, ..RunOptions::default() };
    volume::open(directory, &options)
}

fn is_unfinished(directory: &Path) -> bool {
    matches!(open(directory), Err(VolumeError::Directory(DirectoryError::Unfinished)))
}

fn works(directory: &Path) {
    open(directory).unwrap().stop().unwrap();
    assert!(!directory.join("unfinished").exists());
}

/// The states that a format goes through, the latest first: each is made from the one before.
#[test]
fn each_state_of_a_format_that_was_cut_off_is_refused_and_completed() {
    let home = tempfile::tempdir().unwrap();
    let elsewhere = ["a", "b"].map(|name| home.path().join(name));
    for disks in [&elsewhere[..], &[]] {
        let options = options(disks);
        let directory = home.path().join("volume");
        let (mark, store) = (directory.join("unfinished"), directory.join("coordination"));
        let cut = |state: usize| {
            let map = volume::format(&directory, &options).unwrap();
            fs::write(&mark, format!("{}\n", map.volume())).unwrap();
            if state > 0 {
                fs::remove_dir_all(&store).unwrap();
            }
            if state > 1 {
                fs::DirBuilder::new().mode(0o700).create(&store).unwrap();
            }
            if state > 2 {
                // The first that is written is the copy of a superblock.
                for (disk, kept) in [("n0d0", 4096), ("n1d0", 0)] {
                    let disk = directory.join("disks").join(disk);
                    let mut bytes = fs::read(&disk).unwrap();
                    let zeros = bytes.len() - kept;
                    bytes[..zeros].fill(0);
                    fs::write(&disk, bytes).unwrap();
                }
            }
            if state > 3 {
                fs::remove_file(directory.join("disks/n1d0")).unwrap();
            }
            if state > 4 {
                // The disks were named, and are not the volume's own yet.
                for disk in &elsewhere[..disks.len()] {
                    fs::write(disk, vec![0; 16 << 20]).unwrap();
                    fs::set_permissions(disk, fs::Permissions::from_mode(0o644)).unwrap();
                }
            }
            if state > 5 {
                fs::remove_dir_all(directory.join("disks")).unwrap();
            }
        };
        for state in 1..=6 {
            cut(state);
            assert!(is_unfinished(&directory), "state {state}");
            let again = volume::format(&directory, &options);
            again.unwrap_or_else(|error| panic!("state {state}: {error}"));
            works(&directory);
            fs::remove_dir_all(&directory).unwrap();
            for disk in disks {
                fs::remove_file(disk).unwrap();
            }
        }
        // With its record it is a volume.
        cut(0);
        let refused = volume::format(&directory, &options).unwrap_err();
        assert!(matches!(refused, VolumeError::Directory(DirectoryError::Exists)), "{refused}");
        works(&directory);
        fs::remove_dir_all(&directory).unwrap();
    }
}

#[test]
fn a_repeated_format_may_have_another_shape() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("volume");
    let map = volume::format(&directory, &options(&[])).unwrap();
    fs::write(directory.join("unfinished"), format!("{}\n", map.volume())).unwrap();
    fs::remove_dir_all(directory.join("coordination")).unwrap();
    let other = FormatOptions { disk_nodes: 1, disk_bytes: 24 << 20, ..options(&[]) };
    volume::format(&directory, &other).unwrap();
    assert_eq!(fs::metadata(directory.join("disks/n0d0")).unwrap().len(), 24 << 20);
    assert!(!directory.join("disks/n1d0").exists());
    works(&directory);
}

/// As a program leaves it that knows no mark, and served the volume without its record.
#[test]
fn a_mark_does_not_make_a_volume_that_was_used_empty() {
    let home = tempfile::tempdir().unwrap();
    let disks = [home.path().join("a"), home.path().join("b")];
    let directory = home.path().join("volume");
    let map = volume::format(&directory, &options(&disks)).unwrap();
    works(&directory);
    let before = disks.each_ref().map(|disk| fs::read(disk).unwrap());
    for marked in [true, false] {
        if marked {
            fs::write(directory.join("unfinished"), format!("{}\n", map.volume())).unwrap();
        }
        // It is gone the second time.
        let _ = fs::remove_dir_all(directory.join("coordination"));
        let refused = volume::format(&directory, &options(&disks)).unwrap_err().to_string();
        assert!(refused.contains("holds volume") && refused.contains("mdfs serve"), "{refused}");
        assert!(disks.each_ref().map(|disk| fs::read(disk).unwrap()) == before);
        let _ = fs::remove_file(directory.join("unfinished"));
    }
    works(&directory);
}

#[test]
fn a_refused_format_changes_nothing() {
    let home = tempfile::tempdir().unwrap();
    let [empty, used, new] = ["empty", "used", "new"].map(|name| home.path().join(name));
    fs::write(&empty, vec![0; 16 << 20]).unwrap();
    fs::write(&used, [vec![0; 9000], vec![7; 16 << 20]].concat()).unwrap();
    for file in [&empty, &used] {
        fs::set_permissions(file, fs::Permissions::from_mode(0o644)).unwrap();
    }
    let shape =
        FormatOptions { disk_nodes: 3, ..options(&[empty.clone(), new.clone(), used.clone()]) };
    let directory = home.path().join("volume");
    let refused = volume::format(&directory, &shape).unwrap_err().to_string();
    assert!(refused.contains("used holds data of an unknown kind"), "{refused}");
    assert!(!directory.exists() && !new.exists(), "something was made");
    for file in [&empty, &used] {
        assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o644);
    }
    let id = refused.split("--force ").nth(1).unwrap().split(' ').next().unwrap();
    let forced = FormatOptions { force: vec![id.to_owned(), "other".to_owned()], ..shape.clone() };
    let refused = volume::format(&directory, &forced).unwrap_err().to_string();
    assert!(refused.contains("no disk has the id other"), "{refused}");
    volume::format(&directory, &FormatOptions { force: vec![id.to_owned()], ..shape }).unwrap();
    works(&directory);
}
