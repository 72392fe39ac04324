//! What the program does not overwrite, and where it does not copy to.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::fs;
use std::io::{BufRead as _, BufReader, ErrorKind};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use support::{mdfs, ok};

const UUID: [u8; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
const DISK_BYTES: u64 = 128 << 20;
/// Programs that make file systems want more.
const LARGE_BYTES: u64 = 320 << 20;
const SMALL: [&str; 4] = ["--nodes", "4", "--disk-size", "128MiB"];

/// The exit code and what is said about it.
fn refused(here: &Path, arguments: &[&str]) -> String {
    let output = mdfs(here, arguments);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{arguments:?}: {text}");
    text
}

/// `format VOL` with this disk.
fn with_disk<'a>(disk: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["format", "VOL", "--nodes", "4", "--disk", disk], more].concat()
}

/// The id that a refusal tells.
fn id_in(text: &str) -> String {
    let (_, rest) = text.split_once("--force ").unwrap();
    rest.split_whitespace().next().unwrap().to_owned()
}

/// Bytes, and where they are.
type ImageBytes<'a> = (u64, &'a [u8]);

/// A file of zeros with these bytes in it.
fn image(path: &Path, length: u64, bytes: &[ImageBytes<'_>]) {
    let file = fs::File::create(path).unwrap();
    file.set_len(length).unwrap();
    for (at, bytes) in bytes {
        file.write_all_at(bytes, *at).unwrap();
    }
}

/// All that a refused disk must keep: its bytes, where it has any, and its mode.
fn state(path: &Path) -> (u64, u32) {
    let metadata = fs::metadata(path).unwrap();
    let bytes = fs::read(path).unwrap();
    (runtime::hash::xxh3(&bytes), metadata.permissions().mode())
}

/// Runs a program of the host that makes a file system, if it is there.
fn made_by(here: &Path, program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(here).stdin(Stdio::null());
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    match command.output() {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            println!("{program} fails: {}", String::from_utf8_lossy(&output.stderr));
            false
        }
        Err(error) => {
            println!("{program} is not here: {error}");
            false
        }
    }
}

/// The disk is refused, and no other id overwrites it.
fn is_kept(here: &Path, disk: &str, what: &str) -> String {
    let before = state(&here.join(disk));
    let text = refused(here, &with_disk(disk, &[]));
    assert!(text.contains(&format!("disk {disk} holds {what}")), "{text}");
    assert!(text.ends_with("; nothing was changed\n"), "{text}");
    let other = refused(here, &with_disk(disk, &["--force", "yes"]));
    assert!(other.contains("no disk has the id yes") && other.contains(what), "{other}");
    assert!(!here.join("VOL").exists(), "something is left of a refused format");
    assert_eq!(state(&here.join(disk)), before, "a refused disk was changed");
    id_in(&text)
}

#[test]
fn what_a_disk_holds_is_named_and_overwritten_only_by_its_id() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let uuid = "01020304-0506-0708-090a-0b0c0d0e0f10";
    let kinds: [(&str, &str, &[ImageBytes<'_>]); 6] = [
        ("an ext4 file system", uuid, &[(1080, &[0x53, 0xef]), (1120, &[0x42]), (1128, &UUID)]),
        ("an XFS file system", uuid, &[(0, b"XFSB"), (32, &UUID)]),
        ("swap space", uuid, &[(4086, b"SWAPSPACE2"), (1036, &UUID)]),
        ("an encrypted volume (LUKS)", "12-34", &[(0, b"LUKS\xba\xbe"), (168, b"12-34")]),
        (
            "a partition table (GPT)",
            "04030201-0605-0807-090a-0b0c0d0e0f10",
            &[(510, &[0x55, 0xaa]), (512, b"EFI PART"), (568, &UUID)],
        ),
        ("data of an unknown kind", "content-", &[(DISK_BYTES - 1, b"!")]),
    ];
    for (what, id, bytes) in kinds {
        image(&here.join("disk"), DISK_BYTES, bytes);
        let told = is_kept(here, "disk", what);
        assert!(told.starts_with(id), "{told}");
        ok(here, &with_disk("disk", &["--force", &told]));
        assert_eq!(ok(here, &["ls", "VOL:/"]), "");
        fs::remove_dir_all(here.join("VOL")).unwrap();
    }
    // The last of these volumes is in no directory any more.
    let id = is_kept(here, "disk", "a volume of MDFS");
    assert!(id.len() == 37 && id.ends_with("-n0d0"), "the volume and its disk: {id}");
    ok(here, &with_disk("disk", &["--force", &id]));
}

#[test]
fn each_disk_needs_an_id_of_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let format = |volume: &str, ids: &[&str]| {
        let shape = ["--nodes", "4", "--disk-nodes", "2", "--disk", "a", "--disk", "b"];
        let forced: Vec<&str> = ids.iter().flat_map(|id| ["--force", *id]).collect();
        mdfs(here, &[&["format", volume], &shape[..], &forced].concat())
    };
    for disk in ["a", "b"] {
        image(&here.join(disk), DISK_BYTES, &[]);
    }
    assert!(format("VOL", &[]).status.success());
    fs::remove_dir_all(here.join("VOL")).unwrap();
    let before = state(&here.join("b"));
    let text = String::from_utf8(format("NEW", &[]).stderr).unwrap();
    let id = id_in(&text);
    let one = format("NEW", &[&id]);
    let text = String::from_utf8(one.stderr).unwrap();
    assert!(!one.status.success() && text.contains("disk b holds a volume of MDFS"), "{text}");
    assert_eq!(state(&here.join("b")), before, "a disk of the same volume was overwritten");
    let other = id_in(&text);
    assert_ne!(id, other);
    assert!(format("NEW", &[&id, &other]).status.success());
}

#[test]
fn what_other_programs_make_is_known() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let kinds: [(&str, &str, &[&str]); 7] = [
        ("an ext4 file system (scratch, ", "mkfs.ext4", &["-q", "-L", "scratch"]),
        ("an ext2 file system (", "mkfs.ext2", &["-q"]),
        ("an XFS file system (", "mkfs.xfs", &["-q"]),
        ("a Btrfs file system (", "mkfs.btrfs", &["-q"]),
        ("a FAT file system (", "mkfs.vfat", &[]),
        ("swap space (", "mkswap", &[]),
        ("a partition table (GPT) (", "sgdisk", &["-n", "1:0:0"]),
    ];
    for (what, program, arguments) in kinds {
        image(&here.join("disk"), LARGE_BYTES, &[]);
        if made_by(here, program, &[arguments, &["disk"]].concat()) {
            is_kept(here, "disk", what);
        }
    }
    fs::write(here.join("key"), "secret").unwrap();
    image(&here.join("disk"), LARGE_BYTES, &[]);
    let luks = ["luksFormat", "-q", "--pbkdf", "pbkdf2", "--key-file", "key", "disk"];
    if made_by(here, "cryptsetup", &luks) {
        is_kept(here, "disk", "an encrypted volume (LUKS) (");
    }
}

#[test]
fn paths_that_are_no_disks_are_refused_and_never_made() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    symlink("/dev/no-such-disk", here.join("typo")).unwrap();
    symlink("nowhere", here.join("broken")).unwrap();
    image(&here.join("disk"), DISK_BYTES, &[]);
    symlink("disk", here.join("same")).unwrap();
    for (disk, wanted) in [
        ("/dev/no-such-disk", "/dev/no-such-disk: there is no such device"),
        ("typo", "symbolic link to a path at which there is nothing"),
        ("broken", "symbolic link to a path at which there is nothing"),
        (".", "it is a directory"),
        ("/dev/null", "it is a character device"),
    ] {
        let text = refused(here, &with_disk(disk, &[]));
        assert!(text.contains(wanted), "{text}");
    }
    let twice = with_disk("disk", &["--disk", "same", "--disk-nodes", "2"]);
    let text = refused(here, &twice);
    assert!(text.contains("disks disk and same are the same"), "{text}");
    for (volume, wanted) in [
        ("/dev/no-such-disk", "none is made under /dev"),
        ("/dev/null", "it is no directory"),
        ("disk", "it is no directory"),
    ] {
        let text = refused(here, &["format", volume, "--nodes", "4"]);
        assert!(text.contains(wanted), "{text}");
    }
    for made in [Path::new("/dev/no-such-disk"), &here.join("VOL"), &here.join("nowhere")] {
        assert!(fs::symlink_metadata(made).is_err(), "{} was made", made.display());
    }
}

/// A file as a block device, where the host has loop devices and lets us use them.
struct LoopDevice(String);

impl LoopDevice {
    fn of(here: &Path, file: &str) -> Option<Self> {
        let command =
            Command::new("losetup").args(["-f", "--show", file]).current_dir(here).output();
        let output = command.ok().filter(|output| output.status.success());
        let Some(output) = output else {
            println!("this host gives no loop devices: not tested with devices");
            return None;
        };
        Some(Self(String::from_utf8(output.stdout).unwrap().trim().to_owned()))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

/// Unmounts it, if it is mounted.
struct MountPoint(PathBuf);

impl Drop for MountPoint {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).stderr(Stdio::null()).status();
    }
}

#[test]
fn devices_in_use_are_refused_and_a_volume_has_its_own_alone() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    image(&here.join("file"), DISK_BYTES, &[]);
    let Some(device) = LoopDevice::of(here, "file") else { return };
    let text = refused(here, &with_disk("file", &[]));
    assert!(text.contains(&format!("disk file is in use: {} is made of it", device.0)), "{text}");

    if made_by(here, "mkfs.ext4", &["-q", &device.0]) {
        fs::create_dir(here.join("mounted here")).unwrap();
        let point = MountPoint(here.join("mounted here"));
        if made_by(here, "mount", &[&device.0, "mounted here"]) {
            let text = refused(here, &with_disk(&device.0, &[]));
            assert!(text.contains("is mounted at ") && text.contains("mounted here;"), "{text}");
        }
        drop(point);
        let text = refused(here, &with_disk(&device.0, &[]));
        assert!(text.contains("holds an ext4 file system ("), "{text}");
        ok(here, &with_disk(&device.0, &["--force", &id_in(&text)]));
    } else {
        ok(here, &with_disk(&device.0, &[]));
    }
    // As another program holds it.
    let mut options = fs::OpenOptions::new();
    options.read(true).custom_flags(0o200);
    let held = options.open(&device.0).unwrap();
    let text = refused(here, &["ls", "VOL:/"]);
    assert!(text.contains("another program has it open, or the host has mounted it"), "{text}");
    drop(held);
    let mut server = Command::new(env!("CARGO_BIN_EXE_mdfs"));
    server.args(["serve", "VOL"]).current_dir(here).stdout(Stdio::piped());
    let mut server = server.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let taken = options.open(&device.0).map(drop);
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(taken.unwrap_err().kind(), ErrorKind::ResourceBusy, "{line}");
    assert_eq!(ok(here, &["ls", "VOL:/"]), "");
}

/// What `ls` says of a format that was killed.
#[derive(Debug, PartialEq, Eq)]
enum Left {
    Nothing,
    Unfinished,
    Volume,
}

#[test]
#[allow(clippy::disallowed_methods, reason = "the test kills a program in real time")]
fn a_format_that_is_killed_is_completed_by_the_next_one() {
    const KILLS: u32 = 24;
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let shape = ["format", "VOL", "--disk-nodes", "2"];
    let files = [&shape[..], &SMALL].concat();
    let elsewhere = [&shape[..], &["--nodes", "4", "--disk", "a", "--disk", "b"]].concat();
    for arguments in [files, elsewhere] {
        let mut seen = Vec::new();
        let mut time = Duration::ZERO;
        for kill in 0..=KILLS {
            for disk in ["a", "b"] {
                image(&here.join(disk), DISK_BYTES, &[]);
            }
            let start = Instant::now();
            let mut child = Command::new(env!("CARGO_BIN_EXE_mdfs"));
            child.args(&arguments).current_dir(here).stdout(Stdio::null()).stderr(Stdio::null());
            let mut child = child.spawn().unwrap();
            if kill == 0 {
                assert!(child.wait().unwrap().success());
                time = start.elapsed();
            } else {
                std::thread::sleep(time * kill / KILLS);
                child.kill().unwrap();
                child.wait().unwrap();
            }
            let output = mdfs(here, &["ls", "VOL:/"]);
            let text = String::from_utf8(output.stderr).unwrap();
            let left = match output.status.code() {
                Some(0) => Left::Volume,
                Some(3) if text.contains("there is no volume") => Left::Nothing,
                Some(3) if text.contains("no such directory") => Left::Nothing,
                Some(3) if text.contains("give the `mdfs format` command again") => {
                    Left::Unfinished
                }
                _ => panic!("after kill {kill}: {text}"),
            };
            if left == Left::Volume {
                assert!(refused(here, &arguments).contains("there is a volume already"));
            } else {
                ok(here, &arguments);
            }
            ok(here, &["mkdir", "VOL:/works"]);
            ok(here, &["check", "VOL"]);
            seen.push(left);
            fs::remove_dir_all(here.join("VOL")).unwrap();
        }
        println!("{seen:?}");
        assert!(seen.contains(&Left::Unfinished), "no kill came in time: {seen:?}");
    }
}

#[test]
fn a_copy_into_the_directory_of_a_volume_is_refused_with_the_right_spelling() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    ok(here, &[&["format", "VOL"][..], &SMALL].concat());
    fs::create_dir(here.join("tree")).unwrap();
    fs::write(here.join("tree/file"), "content").unwrap();
    symlink("VOL", here.join("link")).unwrap();
    let listed = || {
        let entries = fs::read_dir(here.join("VOL")).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = listed();
    let full = here.join("VOL").display().to_string();
    let [full_sub, full_root] = ["/sub", ":/"].map(|end| format!("{full}{end}"));
    let full_right = format!("{full}:/sub");
    for (arguments, right) in [
        (vec!["cp", "-r", "tree", "VOL"], "VOL:/"),
        (vec!["cp", "-r", "tree", "VOL/"], "VOL:/"),
        (vec!["cp", "-r", "tree", "VOL/runs/1"], "VOL:/runs/1"),
        (vec!["cp", "-r", "tree", "VOL:runs"], "VOL:/runs"),
        (vec!["cp", "-r", "tree", "link/runs"], "link:/runs"),
        (vec!["cp", "-r", "tree", &full], &full_root),
        (vec!["cp", "-r", "tree", &full_sub], &full_right),
        (vec!["cp", "-r", "VOL:/", "VOL/copy"], "VOL:/copy"),
        (vec!["cp", "VOL/file", "out"], "VOL:/file"),
        (vec!["put", "VOL/file", "VOL:/file"], "VOL:/file"),
        (vec!["get", "-r", "VOL:/", "VOL"], "VOL:/"),
    ] {
        let output = mdfs(here, &arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.ends_with(&format!("for the volume write {right}\n")), "{text}");
    }
    let within = mdfs(&here.join("VOL"), &["cp", "-r", "../tree", "."]);
    assert_eq!(within.status.code(), Some(2));
    assert_eq!(listed(), before);
    assert!(!here.join("VOL:runs").exists() && !here.join("out").exists());
    // What only looks like it is copied.
    fs::create_dir(here.join("a:b")).unwrap();
    ok(here, &["cp", "-r", "tree", "VOL:/"]);
    ok(here, &["cp", "-r", "VOL:/tree", "a:b"]);
    assert_eq!(fs::read(here.join("a:b/tree/file")).unwrap(), b"content");
}
