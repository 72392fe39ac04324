//! `mdfs redundancy`: directories with a class of their own, and what is left when a disk is lost.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use tests::{Content, Site};

const VOLUME: &str = "VOL";
const FILES: u64 = 24;

fn content(number: u64) -> Content {
    Content { seed: number, length: 700_000 }
}

fn put_files(site: &Site, folder: &str) {
    for number in 0..FILES {
        content(number).write(&site.path("file"));
        site.ok(&["cp", "file", &format!("{VOLUME}:{folder}/{number}")]);
    }
}

fn class_of(site: &Site, path: &str) -> Value {
    site.json(&["stat", "--json", &format!("{VOLUME}:{path}")])["redundancy"].clone()
}

/// How many files of a folder cannot be read.
fn unreadable(site: &Site, folder: &str) -> usize {
    let is_gone = |number: &u64| {
        let read = site.run(&["cat", &format!("{VOLUME}:{folder}/{number}")]);
        if read.status.success() {
            content(*number).compare(&read.stdout[..]);
        } else {
            let said = String::from_utf8_lossy(&read.stderr).into_owned();
            assert!(said.contains("n1d0"), "it names the disk: {said}");
        }
        !read.status.success()
    };
    (0..FILES).filter(is_gone).count()
}

#[test]
fn what_a_directory_keeps_when_a_disk_is_lost_is_what_it_was_told_to_keep() {
    let site = Site::formatted(1200, 8);
    let served = site.serve();
    for folder in ["home", "old", "scratch"] {
        site.ok(&["mkdir", &format!("{VOLUME}:/{folder}")]);
    }
    site.ok(&["redundancy", "set", "2x", "VOL:/home"]);
    site.ok(&["mkdir", "-p", "VOL:/home/a/b"]);
    put_files(&site, "/home/a/b");
    put_files(&site, "/old");
    put_files(&site, "/scratch");
    assert_eq!(class_of(&site, "/home/a/b/3"), "2x");
    assert_eq!(class_of(&site, "/old/3"), Value::Null);

    // What is there follows in the background.
    site.ok(&["redundancy", "set", "-r", "2x", "VOL:/old"]);
    let show = ["redundancy", "show", "--json", "VOL:/old/3"];
    let start = Instant::now();
    while site.json(&show)["waiting_pieces"] != 0 {
        assert!(start.elapsed() < Duration::from_mins(1), "{}", site.json(&show));
        sleep(Duration::from_millis(100));
    }
    let told = site.ok(&["redundancy", "show", "VOL:/old/3"]);
    let expected = "/old/3: redundancy 2x, its own\nvolume: redundancy none; also used: 2x\n";
    assert_eq!(told, expected);
    let refused = site.refused(&["redundancy", "set", "3x", "VOL:/home"]);
    refused.says(1, &["use this redundancy", "metadata", "2 copies", "fewer disks"]);
    site.refused(&["redundancy", "set", "9+1", "VOL:/home"]).says(1, &["at least 10 disks"]);
    site.refused(&["redundancy", "set", "5x", "VOL:/home"]).says(2, &["choose none, 2x"]);
    served.stop();

    fs::remove_file(site.path("VOL/disks/n1d0")).unwrap();
    site.refused(&["disk", "lost", VOLUME, "n1d0"]).says(1, &["n1d0", "nowhere else"]);
    site.ok(&["disk", "lost", "--accept-data-loss", VOLUME, "n1d0"]);
    let served = site.serve();
    assert_eq!(unreadable(&site, "/home/a/b"), 0);
    assert_eq!(unreadable(&site, "/old"), 0);
    let gone = unreadable(&site, "/scratch");
    assert!(gone > 0, "a file has chunks on all disks");
    put_files(&site, "/home/a");
    served.stop();
    let checked = site.run(&["check", "--files", VOLUME]);
    let named = String::from_utf8_lossy(&checked.stdout).matches("/scratch/").count();
    assert_eq!(named, gone, "{checked:?}");
}
