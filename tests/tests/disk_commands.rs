//! The commands that change disks: what they say, that one that was cut off can be given again, and
//! what is left of those that were refused.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::fs;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use client::OpenOptions;
use runtime::seed::{Rng, fresh_seed};
use serde_json::{Value, json};
use tests::{Content, Site};

const VOLUME: &str = "VOL";
const FILE_BYTES: u64 = 4 << 20;

fn content(number: u64) -> Content {
    Content { seed: number, length: FILE_BYTES }
}

/// Puts files into the volume.
fn fill(site: &Site, files: u64) {
    for number in 0..files {
        content(number).write(&site.path("file"));
        site.ok(&["cp", "file", &format!("{VOLUME}:/{number}")]);
    }
}

fn compare(site: &Site, files: u64) {
    for number in 0..files {
        let read = site.run(&["cat", &format!("{VOLUME}:/{number}")]);
        content(number).compare(&read.stdout[..]);
    }
}

fn begin(site: &Site, arguments: &[&str]) -> Child {
    let mut command = site.command(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// The disks with their states.
fn states(site: &Site) -> Vec<(String, String)> {
    let list = site.json(&["disk", "list", "--json", VOLUME]);
    let text = |disk: &Value, key: &str| disk[key].as_str().unwrap().to_owned();
    let disks = list["disks"].as_array().unwrap().iter();
    disks.map(|disk| (text(disk, "disk"), text(disk, "state"))).collect()
}

/// How many disks there are in a state.
fn count(site: &Site, state: &str) -> usize {
    states(site).iter().filter(|(_, found)| found == state).count()
}

#[test]
fn a_cancelled_drain_is_reported_as_cancelled() {
    let site = Site::formatted(1200, 8);
    let served = site.serve();
    fill(&site, 40);
    let is_over = AtomicBool::new(false);
    let output = scope(|threads| {
        // While there are other requests the drain takes its time.
        for number in 0..2 {
            let (volume, is_over) = (site.open(), &is_over);
            threads.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let name = format!("/{number}");
                    let file = volume.open(name, OpenOptions::new().read(true)).unwrap();
                    content(number).compare(&file.read_bytes_at(0, 5 << 20).unwrap().concat()[..]);
                }
            });
        }
        site.ok(&["disk", "drain", "--no-wait", "--pace", "gentle", VOLUME, "n0d0"]);
        let waiting = begin(&site, &["disk", "drain", "--json", VOLUME, "n0d0"]);
        sleep(Duration::from_millis(700));
        let told = site.run(&["disk", "drain", "--cancel", VOLUME, "n0d0"]);
        is_over.store(true, Ordering::Relaxed);
        let told = String::from_utf8(told.stdout).unwrap();
        assert!(told.contains("the drain of n0d0 is cancelled"), "{told}");
        waiting.wait_with_output().unwrap()
    });
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("the drain of n0d0 was cancelled"), "{told}");
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(output.stdout.is_empty(), "nothing is said to be done");
    let told = site.json(&["disk", "drain", "--cancel", "--json", VOLUME, "n0d0"]);
    assert_eq!(told, json!({ "volume": VOLUME, "disk": "n0d0", "state": "online" }));
    let told = site.json(&["rebalance", "--cancel", "--json", VOLUME]);
    assert_eq!(told, json!({ "volume": VOLUME, "state": "cancelled" }));
    compare(&site, 40);
    served.stop();
}

#[test]
fn commands_that_move_data_print_one_json_document() {
    let site = Site::formatted(1200, 8);
    let served = site.serve();
    fill(&site, 10);
    let told = site.json(&["disk", "drain", "--json", VOLUME, "n0d0"]);
    assert_eq!((&told["disk"], &told["state"]), (&json!("n0d0"), &json!("drained")));
    assert!(told["moved_bytes"].as_u64().unwrap() > 1 << 20, "{told}");
    let told = site.json(&["disk", "drain", "--json", "--no-wait", VOLUME, "n0d0"]);
    assert_eq!((&told["state"], &told["moved_bytes"]), (&json!("draining"), &json!(0)));
    let told = site.json(&["disk", "retire", "--json", VOLUME, "n0d0"]);
    assert_eq!(told, json!({ "volume": VOLUME, "disk": "n0d0", "state": "retired" }));
    let replace = ["disk", "replace", "--size", "300MiB", "--json", VOLUME, "n0d1"];
    let told = site.json(&replace);
    assert_eq!((&told["disk"], &told["state"]), (&json!("n0d1"), &json!("retired")));
    assert_eq!(told["added"], json!("n0d2"));
    assert!(told["moved_bytes"].as_u64().unwrap() > 1 << 20, "{told}");
    let told = site.json(&["rebalance", "--json", VOLUME]);
    assert_eq!(told["state"], json!("balanced"));
    compare(&site, 10);
    served.stop();
}

/// Cuts a command off at times that grow until it ends by itself, in steps of about `step_ms`, and
/// gives it again each time; how often it was cut off.
fn cut_off_until_it_ends(site: &Site, command: &[&str], rng: &mut Rng, step_ms: u64) -> u32 {
    for cut in 0.. {
        let mut running = begin(site, command);
        let until = Instant::now() + Duration::from_millis(step_ms * u64::from(cut) + rng.below(9));
        while Instant::now() < until && running.try_wait().unwrap().is_none() {
            sleep(Duration::from_millis(1));
        }
        if running.try_wait().unwrap().is_none() {
            running.kill().unwrap();
            running.wait().unwrap();
            continue;
        }
        let output = running.wait_with_output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "after {cut} cuts: {told}");
        return cut;
    }
    unreachable!("it ends")
}

#[test]
fn a_replacement_that_is_cut_off_goes_on_when_it_is_given_again() {
    let seed = fresh_seed();
    println!("seed {seed}");
    let mut rng = Rng::new(seed);
    let site = Site::formatted(1200, 8);
    let served = site.serve();
    fill(&site, 10);
    let used = format!("{VOLUME}/disks/n0d1");
    let refused = site.refused(&["disk", "replace", VOLUME, "n0d0", &used]);
    assert!(refused.text.contains("is disk n0d1 of the volume already"), "{}", refused.text);
    // One that is at a path of its own, and one in the volume's directory.
    let first = ["disk", "replace", "--size", "300MiB", VOLUME, "n0d0", "new.img"];
    let cuts = cut_off_until_it_ends(&site, &first, &mut rng, 9);
    assert!(cuts > 2, "{cuts} cuts");
    assert_eq!((count(&site, "online"), count(&site, "retired")), (4, 1), "{:?}", states(&site));
    let second = ["disk", "replace", "--size", "300MiB", VOLUME, "n0d1"];
    let more = cut_off_until_it_ends(&site, &second, &mut rng, 9);
    assert!(more > 2, "{more} cuts");
    assert_eq!((count(&site, "online"), count(&site, "retired")), (4, 2), "{:?}", states(&site));
    println!("{cuts} and {more} cuts, {:?}", states(&site));
    // What has ended stays so.
    site.ok(&first);
    site.ok(&second);
    assert_eq!((count(&site, "online"), count(&site, "retired")), (4, 2), "{:?}", states(&site));
    let refused = site.refused(&["disk", "replace", VOLUME, "n0d0", "another.img"]);
    assert!(refused.text.contains("n0d0 is retired already"), "{}", refused.text);
    let refused = site.refused(&["disk", "replace", VOLUME, "n0d9", "another.img"]);
    assert!(refused.text.contains("mdfs disk list"), "{}", refused.text);
    assert!(!site.path("another.img").exists(), "a refused command has made a disk");
    compare(&site, 10);
    served.stop();
    assert!(site.ok(&["check", "--data", VOLUME]).contains("sound"));
}

#[test]
fn a_retired_disk_that_is_given_again_blocks_nothing() {
    let site = Site::formatted(1200, 8);
    let served = site.serve();
    fill(&site, 4);
    let add = ["disk", "add", "--size", "100MiB", VOLUME, "old.img"];
    site.ok(&add);
    // Its roots come with it.
    assert!(site.ok(&["check", VOLUME]).contains("no flaw"));
    // As after a command that was cut off.
    assert!(site.ok(&add).contains("n0d2 is added"), "{:?}", states(&site));
    assert_eq!(count(&site, "online"), 5, "{:?}", states(&site));
    site.ok(&["disk", "drain", VOLUME, "n0d2"]);
    site.ok(&["disk", "retire", VOLUME, "n0d2"]);
    let own = format!("{VOLUME}/disks/n0d2");
    let refused = site.refused(&["disk", "add", VOLUME, &own]).text;
    assert!(refused.contains("move it elsewhere"), "{refused}");
    let places = || {
        let names = fs::read_dir(site.path(VOLUME).join("disks")).unwrap();
        let mut names: Vec<_> = names.map(|name| name.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = places();
    let refused = site.refused(&add).text;
    assert_eq!(places(), before, "{refused}");
    let (_, id) = refused.split_once("--force ").expect(&refused);
    let id = id.split_whitespace().next().unwrap();
    // What a command that was cut off has left.
    let left = site.path(VOLUME).join("disks/n0d3");
    std::os::unix::fs::symlink(site.path("old.img"), &left).unwrap();
    let added = site.ok(&["disk", "add", "--size", "100MiB", "--node", "0", VOLUME]);
    assert!(added.contains("n0d3 is added"), "{added}");
    assert!(!left.is_symlink(), "it is a file in the directory");
    let added = site.run(&["disk", "add", "--node", "0", "--force", id, VOLUME, "old.img"]);
    let told = String::from_utf8_lossy(&added.stdout);
    assert!(told.contains("n0d4 is added"), "{told}{}", String::from_utf8_lossy(&added.stderr));
    site.ok(&["disk", "add", "--size", "100MiB", VOLUME]);
    compare(&site, 4);
    served.stop();
    let served = site.serve();
    assert_eq!((count(&site, "online"), count(&site, "retired")), (7, 1), "{:?}", states(&site));
    compare(&site, 4);
    let list = site.json(&["disk", "list", "--json", VOLUME]);
    let in_use = list["disks"].as_array().unwrap().iter().filter(|it| it["state"] == "online");
    let bytes: u64 = in_use.map(|it| it["bytes"].as_u64().unwrap()).sum();
    served.stop();
    assert!(site.ok(&["check", "--data", VOLUME]).contains("sound"));
    let told = site.json(&["check", "--json", VOLUME]);
    assert_eq!(told["total_bytes"].as_u64().unwrap(), bytes, "the retired one does not count");
}

#[test]
fn a_lost_disk_is_replaced_though_the_server_is_killed_on_the_way() {
    let seed = fresh_seed();
    println!("seed {seed}");
    let mut rng = Rng::new(seed);
    let site = Site::new();
    let shape = ["--disk-nodes", "2", "--disk-size", "300MiB", "--nodes", "4"];
    site.ok(&[&["format", VOLUME, "--redundancy", "2x"], &shape[..]].concat());
    let served = site.serve();
    let lost = ["disk", "lost", "--json", VOLUME, "n1d0"];
    assert!(site.refused(&lost).text.contains("the disk has not failed"), "it is served");
    fill(&site, 20);
    served.kill();
    fs::remove_file(site.path(VOLUME).join("disks/n1d0")).unwrap();
    let refused = site.refused(&["serve", VOLUME]).text;
    assert!(refused.contains("`mdfs disk lost`"), "{refused}");
    let told = site.json(&lost);
    assert_eq!(told, json!({ "disk": "n1d0", "disks_left": 1, "disks_needed": 2 }));

    let served = site.serve();
    compare(&site, 20);
    assert_eq!(count(&site, "lost"), 1, "{:?}", states(&site));
    let replace = ["disk", "replace", "--no-wait", "--pace", "gentle", "--size", "300MiB"];
    site.ok(&[&replace[..], &[VOLUME, "n1d0", "new.img"]].concat());
    served.kill();
    let mut kills = 1;
    for life in 0..8 {
        let served = site.serve();
        sleep(Duration::from_millis(30 * life + rng.below(50)));
        let is_over = count(&site, "retired") == 1;
        served.kill();
        kills += 1;
        if is_over {
            break;
        }
    }
    let served = site.serve();
    let until = Instant::now() + Duration::from_mins(1);
    while count(&site, "retired") == 0 {
        assert!(Instant::now() < until, "{:?}", states(&site));
        sleep(Duration::from_millis(100));
    }
    println!("{kills} kills, {:?}", states(&site));
    let has_new = states(&site).iter().any(|(disk, _)| disk == "n1d1");
    assert!(has_new, "it is at the node that has none");
    compare(&site, 20);
    served.stop();
    assert!(site.ok(&["check", "--data", VOLUME]).contains("sound"));
    // The new disk has all that the other one has.
    let other = site.path(VOLUME).join("disks/n0d0");
    fs::remove_file(other).unwrap();
    site.ok(&["disk", "lost", VOLUME, "n0d0"]);
    let served = site.serve();
    compare(&site, 20);
    served.kill();
}
