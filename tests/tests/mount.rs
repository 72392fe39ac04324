//! A volume that is mounted: what programs see, and what the operator is told.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use tests::mounted::{Mounted, POINT, may_mount};
use tests::site::VOLUME;
use tests::{Content, Site};

fn names(folder: &Path) -> BTreeSet<String> {
    let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    fs::read_dir(folder).unwrap().map(name).collect()
}

#[test]
fn what_programs_do_is_in_the_volume_and_the_other_way_round() {
    if !may_mount() {
        return;
    }
    let site = Site::formatted(1024, 16);
    let mounted = Mounted::start(&site, &["--cache-ms", "0"]);
    let folder = mounted.path("folder");
    fs::create_dir(&folder).unwrap();
    let mut file = File::create_new(folder.join("file")).unwrap();
    file.write_all(b"written by a program").unwrap();
    drop(file);
    fs::hard_link(folder.join("file"), folder.join("link")).unwrap();
    symlink("folder/file", mounted.path("symlink")).unwrap();
    fs::rename(folder.join("link"), folder.join("moved")).unwrap();
    assert_eq!(fs::read(mounted.path("symlink")).unwrap(), b"written by a program");
    assert_eq!(names(&folder), ["file", "moved"].map(str::to_owned).into());
    assert_eq!(fs::metadata(folder.join("file")).unwrap().nlink(), 2);

    // The other commands ask the process that has the volume.
    let inside = |path: &str| format!("{VOLUME}:{path}");
    assert_eq!(site.ok(&["cat", &inside("/folder/moved")]), "written by a program");
    site.ok(&["mv", &inside("/folder/moved"), &inside("/elsewhere")]);
    site.ok(&["mkdir", &inside("/made")]);
    assert!(mounted.path("elsewhere").is_file() && mounted.path("made").is_dir());

    assert_eq!(fs::remove_dir(&folder).unwrap_err().kind(), io::ErrorKind::DirectoryNotEmpty);
    fs::remove_file(folder.join("file")).unwrap();
    fs::remove_dir(&folder).unwrap();
    mounted.unmount();
    assert_eq!(site.ok(&["ls", &inside("/")]), "elsewhere\nmade\nsymlink\n");
}

const PROGRAMS: usize = 4;
/// Files of each.
const FILES: usize = 150;

#[test]
fn many_programs_work_in_one_large_directory_at_once() {
    if !may_mount() {
        return;
    }
    let site = Site::formatted(1024, 16);
    let mounted = Mounted::start(&site, &[]);
    thread::scope(|scope| {
        for program in 0..PROGRAMS {
            let mounted = &mounted;
            scope.spawn(move || {
                for file in 0..FILES {
                    let path = mounted.path(format!("file {program} {file}"));
                    fs::write(&path, path.as_os_str().as_encoded_bytes()).unwrap();
                    assert_eq!(fs::read(&path).unwrap(), path.as_os_str().as_encoded_bytes());
                }
            });
        }
    });
    let name = |number: usize| format!("file {} {}", number / FILES, number % FILES);
    let expected: BTreeSet<String> = (0..PROGRAMS * FILES).map(name).collect();
    assert_eq!(names(&mounted.path("")), expected);
    let sizes = fs::read_dir(mounted.path("")).unwrap().map(|entry| entry.unwrap().metadata());
    assert!(sizes.map(|metadata| metadata.unwrap().len()).all(|size| size > 0));
    mounted.unmount();
}

#[test]
fn a_large_file_comes_back_as_it_was_also_after_the_mount_has_ended() {
    if !may_mount() {
        return;
    }
    let site = Site::formatted(1024, 16);
    let source = site.path("source");
    let content = Content { seed: 5, length: 48 << 20 };
    content.write(&source);
    let mut mounted = Mounted::start(&site, &[]);
    fs::copy(&source, mounted.path("copy")).unwrap();
    content.compare_file(&mounted.path("copy"));
    // A hole, and bytes behind it.
    let mut file = OpenOptions::new().read(true).write(true).open(mounted.path("copy")).unwrap();
    file.seek(SeekFrom::Start(64 << 20)).unwrap();
    file.write_all(b"behind").unwrap();
    let mut hole = vec![1; 4096];
    file.seek(SeekFrom::Start(56 << 20)).unwrap();
    file.read_exact(&mut hole).unwrap();
    assert!(hole.iter().all(|&byte| byte == 0));
    file.set_len(48 << 20).unwrap();
    drop(file);
    // Nothing was synced: a clean end keeps all of it.
    mounted.signal("-TERM");
    mounted.wait_cleanly();
    let mounted = Mounted::start(&site, &[]);
    content.compare_file(&mounted.path("copy"));
    mounted.unmount();
}

#[test]
fn a_change_of_the_owner_takes_the_right_to_act_as_the_owner() {
    if !may_mount() {
        return;
    }
    let site = Site::formatted(1024, 16);
    let mounted = Mounted::start(&site, &[]);
    let path = mounted.path("program");
    fs::write(&path, b"#!").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6755)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o6755);
    chown(&path, Some(1), Some(1)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o755, "as Linux does, for root too");
    mounted.unmount();
}

#[test]
fn a_read_only_mount_changes_nothing() {
    if !may_mount() {
        return;
    }
    let site = Site::formatted(1024, 16);
    let mounted = Mounted::start(&site, &[]);
    fs::write(mounted.path("file"), b"kept").unwrap();
    mounted.unmount();
    let mounted = Mounted::start(&site, &["--read-only"]);
    assert_eq!(fs::read(mounted.path("file")).unwrap(), b"kept");
    let refused =
        |done: io::Result<()>| done.unwrap_err().kind() == io::ErrorKind::ReadOnlyFilesystem;
    assert!(refused(fs::write(mounted.path("file"), b"changed")));
    assert!(refused(fs::create_dir(mounted.path("folder"))));
    assert!(refused(fs::remove_file(mounted.path("file"))));
    mounted.unmount();
}

#[test]
fn what_a_killed_process_leaves_is_cleared_by_the_next() {
    if !may_mount() {
        return;
    }
    let site = Site::formatted(1024, 16);
    let mounted = Mounted::start(&site, &[]);
    let mut file = File::create(mounted.path("file")).unwrap();
    file.write_all(b"synced").unwrap();
    file.sync_all().unwrap();
    mounted.kill();
    let dead = fs::metadata(site.path(POINT)).unwrap_err();
    assert_eq!(dead.kind(), io::ErrorKind::NotConnected, "{dead}");
    let mounted = Mounted::start(&site, &[]);
    assert_eq!(fs::read(mounted.path("file")).unwrap(), b"synced");
    mounted.unmount();
}

#[test]
fn a_mount_in_use_ends_when_it_is_used_no_more_or_when_told_again() {
    if !may_mount() {
        return;
    }
    let site = Site::formatted(1024, 16);
    let told = |mounted: &Mounted| {
        while !mounted.log().contains("in use") {
            thread::sleep(Duration::from_millis(10));
        }
    };
    let mut mounted = Mounted::start(&site, &[]);
    let mut file = File::create(mounted.path("file")).unwrap();
    mounted.signal("-INT");
    told(&mounted);
    file.write_all(b"written late").unwrap();
    drop(file);
    assert!(mounted.wait().success());

    let mut mounted = Mounted::start(&site, &[]);
    let file = File::open(mounted.path("file")).unwrap();
    mounted.signal("-TERM");
    told(&mounted);
    mounted.signal("-TERM");
    assert!(mounted.wait().success());
    drop(file);
    assert_eq!(site.ok(&["cat", &format!("{VOLUME}:/file")]), "written late");
}

#[test]
fn a_mount_ends_when_the_mounts_that_came_after_it_have_ended() {
    if !may_mount() {
        return;
    }
    let site = Site::formatted(1024, 16);
    let mut first = Mounted::start(&site, &[]);
    let second = Mounted::start_at(&site, Path::new("second"), &["--cache-ms", "0"]);
    assert!(Command::new("umount").arg(site.path(POINT)).status().unwrap().success());
    fs::write(second.path("file"), b"through the first process").unwrap();
    let is_told = (0..1000).any(|_| {
        thread::sleep(Duration::from_millis(10));
        first.log().contains("use the volume through this process")
    });
    assert!(is_told, "{}", first.log());
    let third = Mounted::start_at(&site, Path::new("third"), &["--cache-ms", "0"]);
    second.unmount();
    assert_eq!(fs::read(third.path("file")).unwrap(), b"through the first process");
    third.unmount();
    assert!(first.wait().success());
    site.ok(&["check", VOLUME]);
}

/// A mount that begins while the process of the one before still closes the volume opens it then.
#[test]
fn a_volume_is_mounted_at_once_after_it_was_unmounted() {
    if !may_mount() {
        return;
    }
    let site = Site::formatted(1024, 16);
    let mut ending = Vec::new();
    for round in 0..20 {
        let mounted = Mounted::start(&site, &["--cache-ms", "0"]);
        fs::write(mounted.path("round"), round.to_string()).unwrap();
        assert!(Command::new("umount").arg(site.path(POINT)).status().unwrap().success());
        ending.push(mounted);
    }
    for mut mounted in ending {
        assert!(mounted.wait().success());
    }
    assert_eq!(site.ok(&["cat", &format!("{VOLUME}:/round")]), "19");
}

#[test]
fn a_volume_that_is_served_is_mounted_through_its_server() {
    if !may_mount() {
        return;
    }
    let site = Site::formatted(1024, 16);
    let served = site.serve();
    let mounted = Mounted::start(&site, &[]);
    fs::write(mounted.path("file"), b"through the server").unwrap();
    assert_eq!(fs::read(mounted.path("file")).unwrap(), b"through the server");
    assert_eq!(names(&mounted.path("")), ["file".to_owned()].into());
    mounted.unmount();
    assert_eq!(site.ok(&["cat", &format!("{VOLUME}:/file")]), "through the server");
    served.stop();
}

#[test]
fn the_operator_is_told_what_is_wrong_and_what_to_do() {
    if !may_mount() {
        return;
    }
    let site = Site::formatted(1024, 16);
    site.refused(&["mount", VOLUME, "nowhere"]).says(1, &["nowhere", "make an empty directory"]);
    fs::write(site.path("file"), b"").unwrap();
    site.refused(&["mount", VOLUME, "file"]).says(1, &["not a directory"]);
    site.refused(&["mount", VOLUME, "."]).says(1, &["would hide", "choose another"]);
    site.refused(&["mount", "nothing", "."]).says(3, &["nothing", "mdfs format"]);
    site.refused(&["mount", VOLUME]).says(2, &["<DIR>"]);
    let help = site.ok(&["mount", "--help"]);
    for word in ["--read-only", "--allow-other", "--cache-ms", "umount", "fusermount3 -u"] {
        assert!(help.contains(word), "{help}");
    }
}
