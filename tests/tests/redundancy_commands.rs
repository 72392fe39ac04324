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
/// What metadata takes of the disks of a small volume, at most.
const METADATA_MAX: u64 = 8 << 20;

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

/// Bytes of the disks that are in use, with all copies and parity.
fn raw_used(site: &Site) -> u64 {
    site.json(&["df", "--json", VOLUME])["raw_used_bytes"].as_u64().unwrap()
}

#[test]
fn df_shows_what_two_copies_leave_of_the_disks() {
    let site = Site::new();
    let shape = ["--disk-nodes", "2", "--disk-size", "256MiB", "--nodes", "4"];
    site.ok(&[&["format", VOLUME, "--redundancy", "2x"], &shape[..]].concat());
    let told = site.json(&["df", "--json", VOLUME]);
    let bytes = |key: &str| told[key].as_u64().unwrap();
    assert_eq!(bytes("total_bytes"), bytes("raw_total_bytes") / 2, "{told}");
    assert!(bytes("available_bytes") <= bytes("raw_free_bytes") / 2, "{told}");
    assert_eq!(bytes("raw_used_bytes") + bytes("raw_free_bytes"), bytes("raw_total_bytes"));
    let text = site.ok(&["df", VOLUME]);
    for head in ["Size", "Used", "Avail", "Raw", "RawUsed", "RawFree"] {
        assert!(text.lines().next().unwrap().split_whitespace().any(|it| it == head), "{text}");
    }
}

#[test]
fn du_shows_the_raw_space_of_each_class() {
    const LENGTH: u64 = 6 << 20;
    let site = Site::new();
    let shape = ["--disk-nodes", "3", "--disk-size", "300MiB", "--nodes", "4"];
    site.ok(&[&["format", VOLUME], &shape[..]].concat());
    let served = site.serve();
    Content { seed: 1, length: LENGTH }.write(&site.path("file"));
    let mut used = Vec::new();
    for (folder, class) in [("none", "none"), ("twice", "2x"), ("wide", "2+1")] {
        site.ok(&["mkdir", &format!("VOL:/{folder}")]);
        site.ok(&["redundancy", "set", class, &format!("VOL:/{folder}")]);
        used.push(raw_used(&site));
        for number in 0..4 {
            site.ok(&["put", "file", &format!("VOL:/{folder}/{number}")]);
        }
    }
    let wait = Instant::now();
    while site.json(&["redundancy", "show", "--json", "VOL:/"])["waiting_pieces"] != 0 {
        assert!(wait.elapsed() < Duration::from_mins(1));
        sleep(Duration::from_millis(100));
    }
    let told = site.json(&["du", "-d", "1", "--json", "VOL:/"]);
    let entries = told["entries"].as_array().unwrap();
    let raw: Vec<_> = entries
        .iter()
        .map(|entry| {
            let bytes = |key: &str| entry[key].as_u64().unwrap();
            assert_eq!(entry["is_changing"], false, "{told}");
            (
                bytes("size_bytes"),
                bytes("used_bytes"),
                bytes("raw_bytes_min"),
                bytes("raw_bytes_max"),
            )
        })
        .collect();
    let data = 4 * LENGTH;
    assert_eq!(
        raw,
        [
            (data, data, data, data),
            (data, data, 2 * data, 2 * data),
            (data, data, data / 2 * 3, 2 * data),
            (3 * data, 3 * data, data / 2 * 9, 5 * data),
        ],
        "{told}"
    );
    // The disks gave as much, and a little for metadata.
    used.push(raw_used(&site));
    let given: Vec<u64> = used.windows(2).map(|pair| pair[1] - pair[0]).collect();
    for (given, (_, _, least, most)) in given.iter().zip(&raw) {
        assert!((*least..most + METADATA_MAX).contains(given), "{given} of {least} to {most}");
    }
    let text = site.ok(&["du", "VOL:/wide", "VOL:/twice/0"]);
    assert_eq!(
        text,
        "  Size Stored              Raw Files Path\n\
         24 MiB 24 MiB 36 MiB to 48 MiB     4 /wide\n \
         6 MiB  6 MiB           12 MiB     1 /twice/0\n"
    );
    served.stop();
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
