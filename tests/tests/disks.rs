//! Disks are added, drained, retired and removed under a program that writes, while the server is
//! killed again and again: nothing that was synced is lost.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;

use client::blocking::Volume;
use runtime::seed::{Rng, fresh_seed};
use serde_json::Value;
use tests::{Content, Site};

const VOLUME: &str = "VOL";
const KILLS: u32 = 8;
const FILE_BYTES: u64 = 700_000;

fn content(number: u64) -> Content {
    Content { seed: number, length: FILE_BYTES }
}

fn name(number: u64) -> String {
    format!("/file {number}")
}

/// Writes and syncs files until it is told to end; how many.
fn write(volume: &Volume, is_over: &AtomicBool) -> u64 {
    let mut number = 0;
    while !is_over.load(Ordering::Relaxed) {
        let file = volume.create(name(number)).unwrap();
        file.write_at(0, content(number).bytes()).unwrap();
        file.sync().unwrap();
        number += 1;
    }
    number
}

fn disk_list(site: &Site) -> Value {
    serde_json::from_str(&site.ok(&["disk", "list", "--json", VOLUME])).unwrap()
}

/// The disks, by their names: state and bytes in use.
fn disks(site: &Site) -> Vec<(String, String, u64)> {
    let told = disk_list(site);
    let text = |disk: &Value, key: &str| disk[key].as_str().unwrap().to_owned();
    let disk = |disk: &Value| {
        (text(disk, "disk"), text(disk, "state"), disk["used_bytes"].as_u64().unwrap())
    };
    told["disks"].as_array().unwrap().iter().map(disk).collect()
}

fn begin(site: &Site, arguments: &[&str]) -> Child {
    let mut command: Command = site.command(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits until the server does what a command asks for, or has done it. A command that finds no
/// server does it alone, and keeps the next server from the volume.
fn wait_for_begin(command: &mut Child, is_begun: impl Fn() -> bool) {
    while command.try_wait().unwrap().is_none() && !is_begun() {
        sleep(Duration::from_millis(10));
    }
}

fn end(command: Child) -> String {
    let output = command.wait_with_output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{told}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn disks_come_and_go_under_a_writer_and_kills() {
    let seed = fresh_seed();
    println!("seed {seed}");
    let mut rng = Rng::new(seed);
    let site = Site::formatted(1600, 16);
    let mut served = site.serve();
    let port = served.port();
    let (volume, is_over) = (site.open(), AtomicBool::new(false));
    let served = scope(|threads| {
        let writing = threads.spawn(|| write(&volume, &is_over));
        sleep(Duration::from_secs(1));
        site.ok(&["disk", "add", "--size", "600MiB", VOLUME]);
        let drain = ["disk", "drain", "--pace", "gentle", VOLUME, "n0d0"];
        let mut draining = begin(&site, &drain);
        wait_for_begin(&mut draining, || {
            disks(&site).iter().any(|(_, state, _)| state != "online")
        });
        for _ in 0..KILLS {
            sleep(Duration::from_millis(100 + rng.below(600)));
            served.kill();
            served = site.serve_at(port);
        }
        if let Some(status) = draining.try_wait().unwrap() {
            assert!(status.success(), "the drain ended: {}", end(draining));
        } else {
            // A faster pace is for what runs already, too.
            let again = end(begin(&site, &["disk", "drain", "--pace", "fast", VOLUME, "n0d0"]));
            assert!(again.contains("n0d0 is drained"), "{again}");
            end(draining);
        }
        let mut rebalancing = begin(&site, &["rebalance", "--pace", "fast", VOLUME]);
        wait_for_begin(&mut rebalancing, || disk_list(&site)["balancing"] == true);
        sleep(Duration::from_millis(rng.below(400)));
        served.kill();
        served = site.serve_at(port);
        end(rebalancing);
        is_over.store(true, Ordering::Relaxed);
        let files = writing.join().unwrap();
        let retired = site.ok(&["disk", "retire", VOLUME, "n0d0"]);
        assert!(retired.contains("n0d0 is retired"), "{retired}");
        fs::remove_file(site.path(VOLUME).join("disks/n0d0")).unwrap();
        println!("{files} files, {:?}", disks(&site));
        assert!(disks(&site).contains(&("n0d0".to_owned(), "retired".to_owned(), 0)));
        assert!(files >= 5, "{files} files");
        for number in 0..files {
            let read = site.run(&["cat", &format!("{VOLUME}:{}", name(number))]);
            content(number).compare(&read.stdout[..]);
        }
        served
    });
    drop(volume);
    served.stop();
    let told = site.ok(&["check", "--data", VOLUME]);
    assert!(told.contains("sound"), "{told}");
    // With the record lost, the disks tell all of it.
    fs::remove_dir_all(site.path(VOLUME).join("coordination")).unwrap();
    let served = site.serve();
    assert!(disks(&site).contains(&("n0d0".to_owned(), "retired".to_owned(), 0)));
    served.stop();
}

#[test]
fn what_cannot_be_is_refused_with_the_next_step() {
    let site = Site::formatted(400, 8);
    let served = site.serve();
    let foreign = site.path("foreign");
    fs::write(&foreign, vec![0x5a; 64 << 20]).unwrap();
    let refused = site.refused(&["disk", "add", VOLUME, "foreign"]);
    assert!(refused.text.contains("--force"), "{}", refused.text);
    assert_eq!(fs::read(&foreign).unwrap(), vec![0x5a; 64 << 20], "a refused disk was written");
    assert!(!site.path(VOLUME).join("disks/n0d2").is_symlink(), "what was made is removed");
    let refused = site.refused(&["disk", "add", VOLUME, "/dev/no-such-disk"]);
    assert!(refused.text.contains("/dev/no-such-disk"), "{}", refused.text);
    let refused = site.refused(&["disk", "retire", VOLUME, "n0d1"]);
    assert!(refused.text.contains("mdfs disk drain"), "{}", refused.text);
    let refused = site.refused(&["disk", "drain", VOLUME, "n7d0"]);
    assert!(refused.text.contains("mdfs disk list"), "{}", refused.text);
    assert_eq!(site.refused(&["disk", "drain", VOLUME, "sdb"]).code, 2);
    // More than the others have room for.
    for number in 0..9 {
        content(number).write(&site.path("file"));
        site.ok(&["cp", "file", &format!("{VOLUME}:/{number}")]);
    }
    let added = site.ok(&["disk", "add", "--size", "100MiB", VOLUME]);
    assert!(added.contains("n0d2 is added"), "{added}");
    let drained = site.ok(&["disk", "drain", VOLUME, "n0d1"]);
    assert!(drained.contains("next: mdfs disk retire"), "{drained}");
    site.ok(&["disk", "drain", "--cancel", VOLUME, "n0d1"]);
    assert!(disks(&site).iter().all(|(_, state, _)| state == "online"), "{:?}", disks(&site));
    served.stop();
}
