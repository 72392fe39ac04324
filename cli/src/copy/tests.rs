//! Copies both ways, interrupted, damaged. Method: the command on the model, and on this computer's
//! files.

use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use runtime::seed::Rng;

use crate::tests::TestProgram;

/// A tree with modes, times, a link, a hole, two names of one file, and a file of several pieces.
fn tree(at: &Path) {
    fs::create_dir_all(at.join("sub/empty")).unwrap();
    for number in 0..200 {
        let place = ["", "sub"][number % 2];
        fs::write(at.join(place).join(format!("f{number}")), vec![number as u8; number * 37])
            .unwrap();
    }
    let mut large = vec![0; (65 << 20) + 5];
    Rng::new(7).fill(&mut large);
    fs::write(at.join("large"), &large).unwrap();
    let sparse = fs::File::create(at.join("sparse")).unwrap();
    sparse.set_len(1 << 36).unwrap();
    sparse.write_all_at(b"data", 30 << 30).unwrap();
    fs::hard_link(at.join("sub/f1"), at.join("other-name")).unwrap();
    symlink("sub/f1", at.join("link")).unwrap();
    symlink("/no/where", at.join("sub/dangling")).unwrap();
    let times = fs::FileTimes::new()
        .set_modified(UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789))
        .set_accessed(UNIX_EPOCH + Duration::new(1_100_000_000, 5));
    fs::File::options().write(true).open(at.join("f2")).unwrap().set_times(times).unwrap();
    fs::set_permissions(at.join("f2"), fs::Permissions::from_mode(0o6751)).unwrap();
    fs::set_permissions(at.join("sub"), fs::Permissions::from_mode(0o750)).unwrap();
}

/// Both have the same names with the same kinds, modes, times, holes, links and bytes.
fn assert_same(a: &Path, b: &Path) {
    let names = |at: &Path| {
        let entries = fs::read_dir(at).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = entries.collect();
        names.sort();
        names
    };
    assert_eq!(names(a), names(b), "{}", b.display());
    for name in names(a) {
        let (a, b) = (a.join(&name), b.join(&name));
        let [of_a, of_b] = [&a, &b].map(|path| fs::symlink_metadata(path).unwrap());
        let kept = |of: &fs::Metadata| (of.mode(), of.mtime(), of.mtime_nsec(), of.nlink());
        if of_a.is_symlink() {
            assert_eq!(fs::read_link(&a).unwrap(), fs::read_link(&b).unwrap());
            continue;
        }
        assert_eq!(kept(&of_a), kept(&of_b), "{}", b.display());
        if of_a.is_dir() {
            assert_same(&a, &b);
            continue;
        }
        assert_eq!(of_a.len(), of_b.len());
        if of_a.len() > 1 << 30 {
            assert!(of_b.blocks() * 512 <= 8 << 20, "{} blocks", of_b.blocks());
            let mut data = [0; 6];
            fs::File::options()
                .read(true)
                .open(&b)
                .unwrap()
                .read_exact_at(&mut data, (30 << 30) - 1)
                .unwrap();
            assert_eq!(&data, b"\0data\0");
            continue;
        }
        assert!(fs::read(&a).unwrap() == fs::read(&b).unwrap(), "{}", b.display());
    }
}

#[test]
fn a_tree_with_everything_goes_both_ways_and_a_second_time_nothing_is_copied() {
    let mdfs = TestProgram::new();
    let [there, back, host] = ["tree", "back", "host"].map(|name| mdfs.local(name));
    tree(Path::new(&there));
    let summary = mdfs.ok(&["cp", "-r", "--verify", &there, "VOL:/"]);
    assert_eq!(summary, "205 files copied, 66 MiB\n");
    let summary = mdfs.ok(&["cp", "-r", "--verify", "-j", "3", "VOL:/tree", &back]);
    assert!(summary.starts_with("205 files copied"), "{summary}");
    // Before anything reads it.
    assert_eq!(fs::metadata(Path::new(&back).join("f2")).unwrap().atime(), 1_100_000_000);
    assert_same(Path::new(&there), Path::new(&back));
    let stored = mdfs.volume.metadata("/tree/sparse").unwrap();
    assert!((stored.size, stored.links) == (1 << 36, 1) && stored.used_bytes <= 1 << 20);
    let one = |path: &str| mdfs.volume.metadata(path).unwrap().ino;
    assert_eq!(one("/tree/sub/f1"), one("/tree/other-name"));

    let again = "0 files copied, 0 B; 205 were there already\n";
    assert_eq!(mdfs.ok(&["cp", "-r", &there, "VOL:/"]), again);
    assert_eq!(mdfs.ok(&["cp", "-r", "-T", "VOL:/tree", &back]), again);
    assert_eq!(mdfs.ok(&["cp", "-r", "--checksum", "-T", "VOL:/tree", &back]), again);
    assert!(
        mdfs.ok(&["cp", "-r", "--all", "-T", "VOL:/tree", &back]).starts_with("203 files copied")
    );
    assert_same(Path::new(&there), Path::new(&back));
    // Within one volume, and within this computer.
    assert!(mdfs.ok(&["cp", "-r", "VOL:/tree", "VOL:/second"]).starts_with("205 files copied"));
    mdfs.ok(&["cp", "-r", "VOL:/second", &host]);
    assert_same(Path::new(&there), Path::new(&host));
    mdfs.ok(&["cp", "-r", &there, &mdfs.local("beside")]);
    assert_same(Path::new(&there), Path::new(&mdfs.local("beside")));
}

#[test]
fn what_differs_is_copied_again_and_a_changed_byte_is_found() {
    let mdfs = TestProgram::new();
    let [there, back] = ["tree", "back"].map(|name| mdfs.local(name));
    fs::create_dir(&there).unwrap();
    for name in ["a", "b", "c"] {
        fs::write(Path::new(&there).join(name), [name.as_bytes()[0]; 5000]).unwrap();
    }
    mdfs.ok(&["cp", "-r", &there, "VOL:/tree"]);
    mdfs.ok(&["cp", "-rT", &there, &back]);
    // A byte changes, and nothing tells of it.
    let change = |path: &Path| {
        let file = fs::File::options().write(true).open(path).unwrap();
        let time = file.metadata().unwrap().modified().unwrap();
        file.write_all_at(b"!", 4096).unwrap();
        file.set_modified(time).unwrap();
    };
    change(&Path::new(&back).join("b"));
    let one_kept = "0 files copied, 0 B; 3 were there already\n";
    assert_eq!(mdfs.ok(&["cp", "-rT", &there, &back]), one_kept, "by time it is the same");
    let refused = mdfs.run(&["cp", "--verify", "-rT", &there, &back]).unwrap_err();
    assert_eq!(refused, "1 of 4 were not done; see the messages above");
    let single = [&mdfs.local("tree/b"), &mdfs.local("back/b")];
    let refused = mdfs.run(&["cp", "--verify", single[0], single[1]]).unwrap_err();
    assert!(refused.contains("back/b: it differs from the original"), "{refused}");
    let summary = mdfs.ok(&["cp", "--checksum", "-rT", "--verify", &there, &back]);
    assert_eq!(summary, "1 file copied, 4.9 KiB; 2 were there already\n");
    assert_same(Path::new(&there), Path::new(&back));
    // Another time, the same bytes: --checksum copies nothing and sets the time right.
    let file = fs::File::options().write(true).open(Path::new(&there).join("c")).unwrap();
    file.set_modified(UNIX_EPOCH + Duration::from_secs(5)).unwrap();
    fs::set_permissions(Path::new(&there).join("a"), fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(mdfs.ok(&["cp", "-r", "--checksum", &there, "VOL:/tree/.."]), one_kept);
    assert_eq!(mdfs.volume.metadata("/tree/c").unwrap().mtime.seconds, 5);
    assert_eq!(mdfs.volume.metadata("/tree/a").unwrap().mode, 0o640);
}

#[test]
fn what_cannot_be_copied_is_told_and_nothing_is_lost_for_it() {
    let mdfs = TestProgram::new();
    let there = mdfs.local("tree");
    fs::create_dir_all(Path::new(&there).join("inner")).unwrap();
    fs::write(Path::new(&there).join("f"), "f").unwrap();
    let refused = |arguments: &[&str]| mdfs.run(arguments).unwrap_err();
    let itself = format!("{there}/./f");
    assert!(refused(&["cp", &itself, &there]).contains("it is the original itself"));
    assert!(refused(&["cp", &itself, &itself, "VOL:/new"]).contains("the destination is none"));
    assert!(refused(&["cp", "VOL:/", &there]).contains("copy it with -r"));
    assert!(refused(&["cp", "-r", "VOL:/", &there]).contains("has no name to copy it under"));
    assert!(
        refused(&["cp", "VOL:/none", &there]).starts_with("cannot open VOL:/none: no such file")
    );
    assert!(refused(&["cp", &itself, "/dev/null"]).contains("neither a file nor a link"));
    assert!(refused(&["cp", "-j", "0", &itself, "VOL:/"]).contains("0 is not in 1..=256"));
    // Into itself: once, without the copy.
    let inner = format!("{there}/inner/copy");
    assert_eq!(
        refused(&["cp", "-r", &there, &inner]),
        "1 of 3 were not done; see the messages above"
    );
    assert_eq!(fs::read_to_string(format!("{inner}/f")).unwrap(), "f");
    assert!(fs::metadata(format!("{inner}/inner")).unwrap().is_dir());
    // A link at the destination of a single file is followed, as cp does.
    symlink("inner/target", Path::new(&there).join("link")).unwrap();
    fs::write(format!("{there}/inner/target"), "old").unwrap();
    mdfs.ok(&["cp", &itself, &format!("{there}/link")]);
    assert_eq!(fs::read_to_string(format!("{there}/inner/target")).unwrap(), "f");
    // Several at once, and a file in the place of a link in a tree.
    mdfs.ok(&["cp", &itself, &format!("{there}/link"), "VOL:/"]);
    assert_eq!(mdfs.ok(&["cat", "VOL:/f", "VOL:/link"]), "ff");
}

#[test]
fn owners_are_kept_if_they_shall_be() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let mdfs = TestProgram::new();
    let [there, back] = ["tree", "back"].map(|name| mdfs.local(name));
    let [from, to] = [&there, &back].map(Path::new);
    fs::create_dir_all(from.join("sub")).unwrap();
    fs::write(from.join("sub/file"), "x").unwrap();
    symlink("file", from.join("sub/link")).unwrap();
    let names = ["sub", "sub/file", "sub/link"];
    for (uid, name) in (1001..).zip(names) {
        std::os::unix::fs::lchown(from.join(name), Some(uid), Some(uid + 1000)).unwrap();
    }
    // Which takes these bits away from who is not root.
    fs::set_permissions(from.join("sub/file"), fs::Permissions::from_mode(0o4711)).unwrap();
    let owners = |at: &Path| {
        names.map(|name| {
            let of = fs::symlink_metadata(at.join(name)).unwrap();
            (of.uid(), of.gid(), of.mode())
        })
    };
    mdfs.ok(&["cp", "-rT", &there, "VOL:/tree"]);
    let inside = |name: &str| mdfs.volume.symlink_metadata(format!("/tree/{name}")).unwrap();
    assert!(names.iter().all(|name| inside(name).uid == 0));
    // Also of what is there already.
    let summary = mdfs.ok(&["cp", "-rT", "--owner", &there, "VOL:/tree"]);
    assert_eq!(summary, "0 files copied, 0 B; 2 were there already\n");
    assert_eq!(names.map(|name| inside(name).uid), [1001, 1002, 1003]);
    mdfs.ok(&["cp", "-rT", "-o", "VOL:/tree", &back]);
    assert_eq!(owners(from), owners(to));
}
