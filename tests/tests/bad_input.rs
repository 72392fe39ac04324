//! What goes wrong by mistake: wrong words, wrong disks, no space. Each is told with the thing, the
//! cause and the next step, and what was stored before is still there.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use tests::raw_nfs::{RawNfs, status};
use tests::{Content, Site};

/// Stored before anything goes wrong.
const KEPT: Content = Content { seed: 1, length: 300_000 };

/// Exit codes of the program.
const FAILED: i32 = 1;
const USAGE: i32 = 2;
const VOLUME: i32 = 3;

/// A volume with something in it.
fn site() -> Site {
    let site = Site::formatted(128, 8);
    KEPT.write(&site.path("kept"));
    site.ok(&["put", "kept", "VOL:/kept"]);
    site
}

/// It is still there.
#[track_caller]
fn check_kept(site: &Site) {
    site.ok(&["get", "VOL:/kept", "kept.again"]);
    KEPT.compare_file(&site.path("kept.again"));
}

#[test]
fn wrong_words_are_told_with_what_is_right() {
    let site = site();
    let usage: [(&[&str], &[&str]); 8] = [
        (&["frobnicate"], &["unrecognized subcommand 'frobnicate'", "Usage: mdfs <COMMAND>"]),
        (&["put"], &["<LOCAL>", "<VOL:/PATH>", "--help"]),
        (&["put", "kept", "VOL"], &["'VOL'", "names no file in a volume", "write the volume's"]),
        (&["put", "kept", "VOL:/a", "b"], &["unexpected argument 'b'", "Usage: mdfs put"]),
        (&["mv", "VOL:/kept", "OTHER:/kept"], &["stays within one volume", "`mdfs cp`"]),
        (&["format", "NEW", "--disk-size", "much"], &["'much'", "--disk-size"]),
        (&["format", "NEW", "--nodes", "0"], &["'0'", "--nodes"]),
        (&["serve", "VOL", "--nfs", "here"], &["'here'", "--nfs"]),
    ];
    for (arguments, words) in usage {
        site.refused(arguments).says(USAGE, words);
    }
    let failed: [(&[&str], &[&str]); 5] = [
        (&["get", "VOL:/missing", "out"], &["VOL:/missing", "no such file", "check the spelling"]),
        (&["put", "missing", "VOL:/x"], &["cannot read missing", "No such file"]),
        (&["mkdir", "VOL:/kept"], &["VOL:/kept", "exists already", "choose another name"]),
        (&["cat", "VOL:/kept/below"], &["VOL:/kept/below", "not a directory", "check each part"]),
        (&["cat", "VOL:/"], &["VOL:/", "is a directory"]),
    ];
    for (arguments, words) in failed {
        site.refused(arguments).says(FAILED, words);
    }
    let long = format!("VOL:/{}", "n".repeat(256));
    site.refused(&["mkdir", &long]).says(FAILED, &["255 bytes", "correct the path"]);
    check_kept(&site);
}

#[test]
fn a_directory_without_a_volume_is_told_with_how_to_make_one() {
    let site = site();
    fs::create_dir(site.path("empty")).unwrap();
    fs::write(site.path("file"), "no volume").unwrap();
    let next = "`mdfs format`";
    for volume in ["missing", "empty", "file"] {
        let list = format!("{volume}:/");
        for arguments in [&["ls", &list][..], &["serve", volume], &["df", volume]] {
            site.refused(arguments).says(VOLUME, &["cannot open volume", volume, next]);
        }
    }
    site.refused(&["format", "VOL"])
        .says(VOLUME, &["VOL", "not overwritten", "choose another directory"]);
    check_kept(&site);
}

/// Each disk in turn is replaced by what `make` puts there; then its own comes back.
fn with_other_disk(site: &Site, make: impl Fn(&str), words: &[&str]) {
    for disk in ["VOL/disks/n0d1", "VOL/disks/n1d0"] {
        let own = site.path("own");
        fs::rename(site.path(disk), &own).unwrap();
        make(disk);
        for arguments in [&["ls", "VOL:/"][..], &["serve", "VOL"], &["put", "kept", "VOL:/new"]] {
            let thing = format!("disk {disk}");
            let words = [&["cannot open volume VOL", &thing][..], words].concat();
            site.refused(arguments).says(VOLUME, &words);
        }
        fs::rename(own, site.path(disk)).unwrap();
        check_kept(site);
    }
}

#[test]
fn a_missing_disk_is_told_and_may_come_back() {
    let site = site();
    with_other_disk(&site, |_| {}, &["No such file", "put the disk back"]);
}

#[test]
fn an_unformatted_disk_is_told_and_left_as_it_is() {
    let site = site();
    let zeros = vec![0; 32 << 20];
    let make = |disk: &str| {
        fs::write(site.path(disk), &zeros).unwrap();
        fs::set_permissions(site.path(disk), Permissions::from_mode(0o600)).unwrap();
    };
    with_other_disk(&site, make, &["not formatted", "put the volume's own disk back"]);
}

#[test]
fn a_disk_of_another_volume_is_told_and_left_as_it_is() {
    let site = site();
    site.format("OTHER", 128, 8);
    site.ok(&["put", "kept", "OTHER:/kept"]);
    let other = |disk: &str| site.path(disk.replace("VOL", "OTHER"));
    let make = |disk: &str| fs::rename(other(disk), site.path(disk)).unwrap();
    let before = fs::read(other("VOL/disks/n0d1")).unwrap();
    with_other_disk(&site, make, &["belongs to volume", "put the volume's own disk back"]);
    assert!(!other("VOL/disks/n0d1").exists(), "it was moved, and then replaced");
    assert!(!before.is_empty());
}

#[test]
fn a_disk_that_was_cut_off_is_told() {
    let site = site();
    let make = |disk: &str| {
        fs::copy(site.path("own"), site.path(disk)).unwrap();
        fs::File::options().write(true).open(site.path(disk)).unwrap().set_len(16 << 20).unwrap();
    };
    with_other_disk(&site, make, &["was cut off", "16777216 bytes", "bring the whole disk back"]);
}

/// With this number of files each of 64 nodes has several records, of which one that a crash may
/// have cut short is not enough to call a disk old.
const FILES: usize = 150;

/// Makes files through the server of a volume, each durably.
fn make_files(site: &Site, prefix: &str) {
    let volume = client::volume::open(&site.path("VOL")).unwrap();
    for number in 0..FILES {
        volume.create(format!("/{prefix}{number}")).unwrap().sync().unwrap();
    }
    volume.finish().unwrap();
}

#[test]
fn a_disk_put_back_from_an_older_copy_of_the_same_run_is_refused_and_named() {
    for clean in [true, false] {
        let site = site();
        let served = site.serve();
        make_files(&site, "before");
        // Copied while it is in use, as no backup should be.
        for disk in ["n0d0", "n0d1", "n1d0", "n1d1"] {
            fs::copy(site.path(format!("VOL/disks/{disk}")), site.path(disk)).unwrap();
        }
        make_files(&site, "after");
        if clean {
            served.stop();
        } else {
            served.kill();
        }
        for disk in ["n0d1", "n1d0"] {
            let path = format!("VOL/disks/{disk}");
            fs::rename(site.path(&path), site.path("newest")).unwrap();
            fs::copy(site.path(disk), site.path(&path)).unwrap();
            for arguments in [&["ls", "VOL:/"][..], &["serve", "VOL"]] {
                let words =
                    [&*format!("disk {path}"), "older image of itself", "put the newest copy"];
                site.refused(arguments).says(VOLUME, &words);
            }
            fs::rename(site.path("newest"), site.path(&path)).unwrap();
        }
        check_kept(&site);
        assert_eq!(site.ok(&["ls", "VOL:/"]).lines().count(), 2 * FILES + 1);
    }
}

#[test]
fn a_format_that_failed_can_be_repeated_with_other_disks() {
    let site = site();
    fs::write(site.path("small"), [0; 4096]).unwrap();
    let kept_disk = site.path("VOL/disks/n0d0");
    let kept_disk = kept_disk.to_str().unwrap();
    let format = |disk: &'static str| ["format", "NEW", "--nodes", "8", "--disk", disk];
    site.refused(&format("small")).says(VOLUME, &["NEW", "too small"]);
    site.refused(&["format", "NEW", "--nodes", "4", "--disk", kept_disk]).says(
        VOLUME,
        &[
            "cannot make volume NEW",
            "holds a volume of MDFS",
            "not overwritten",
            "give another disk",
        ],
    );
    site.ok(&["format", "NEW", "--nodes", "8", "--disk-size", "64MiB"]);
    assert!(!site.path("NEW/disks/n0d0").is_symlink(), "not on the disk that was refused");
    site.ok(&["put", "kept", "NEW:/kept"]);
    check_kept(&site);
}

#[test]
fn one_volume_has_one_server_which_commands_ask() {
    let site = site();
    let served = site.serve();
    site.refused(&["serve", "VOL"]).says(VOLUME, &["VOL", "in use by another process", "stop"]);
    let refused = site.refused(&["serve", "VOL", "--nfs", "127.0.0.1:0"]);
    refused.says(VOLUME, &["in use by another process"]);
    site.refused(&["format", "VOL"]).says(VOLUME, &["not overwritten"]);
    check_kept(&site);
    site.ok(&["mkdir", "VOL:/through-the-server"]);
    served.stop();
    assert_eq!(site.ok(&["ls", "VOL:/"]), "kept\nthrough-the-server\n");
    check_kept(&site);
}

/// More than the volume has.
const TOO_MUCH: Content = Content { seed: 2, length: 160 << 20 };
/// Less than half of it.
const ENOUGH: Content = Content { seed: 3, length: 40 << 20 };

fn fill_and_empty(site: &Site) {
    let full = ["no space left on the volume", "remove what is no longer needed"];
    site.refused(&["put", "much", "VOL:/much"]).says(FAILED, &full);
    // What does not fit leaves nothing, and gives its space back.
    assert_eq!(site.ok(&["ls", "VOL:/"]), "kept\n");
    site.refused(&["put", "much", "VOL:/more"]).says(FAILED, &full);
    check_kept(site);
    site.ok(&["put", "enough", "VOL:/enough"]);
    site.ok(&["get", "VOL:/enough", "enough.again"]);
    ENOUGH.compare_file(&site.path("enough.again"));
    site.ok(&["rm", "VOL:/enough"]);
    check_kept(site);
}

#[test]
fn a_full_volume_says_so_and_is_emptied_again() {
    let site = site();
    TOO_MUCH.write(&site.path("much"));
    ENOUGH.write(&site.path("enough"));
    fill_and_empty(&site);
    let served = site.serve();
    fill_and_empty(&site);
    fill_over_nfs(&site, &mut RawNfs::connect(&served));
    served.stop();
    fill_and_empty(&site);
}

fn fill_over_nfs(site: &Site, nfs: &mut RawNfs) {
    let data = vec![7; 1 << 20];
    let root = nfs.root();
    let file = nfs.create(&root, b"much").unwrap();
    let written = |index: &u64| nfs.write(&file, index << 20, &data) == status::OK;
    let count = (0..200).take_while(written).count() as u64;
    assert!((60..200).contains(&count), "{count} MiB were written");
    assert_eq!(nfs.write(&file, count << 20, &data), status::NOSPC);
    assert!(nfs.read_file(&file, (count - 1) << 20, 1 << 20).unwrap() == data);
    check_kept(site);
    assert_eq!(nfs.remove(&root, b"much"), status::OK);
    let file = nfs.create(&root, b"after").unwrap();
    assert_eq!(nfs.write(&file, 0, &data), status::OK, "there is space again");
    assert_eq!(nfs.remove(&root, b"after"), status::OK);
}
