//! A volume as those see it who watch it over HTTP.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::fs;
use std::net::TcpListener;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use tests::raw_nfs::RawNfs;
use tests::{Content, Served, Site, get};

const NODES: usize = 16;

#[test]
fn who_watches_a_volume_sees_its_nodes_its_disks_and_its_clients() {
    let site = Site::formatted(256, NODES as u32);
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let address = free.to_string();
    let arguments = ["serve", "VOL", "--nfs", "127.0.0.1:0", "--metrics", &address];
    let served = Served::with(&site, &arguments);
    fs::write(site.path("in"), vec![7; 3 << 20]).unwrap();
    site.ok(&["put", "in", "VOL:/file"]);
    site.ok(&["get", "VOL:/file", "out"]);

    let (head, page) = get(&address, "/");
    assert!(head.starts_with("HTTP/1.0 200") && head.contains("text/html"), "{head}");
    assert!(page.contains("<title>MDFS volume VOL</title>"), "{page}");

    let (head, figures) = get(&address, "/figures.json");
    assert!(head.contains("application/json"), "{head}");
    let figures: Value = serde_json::from_str(&figures).unwrap();
    let nodes = figures["nodes"].as_array().unwrap();
    assert_eq!(nodes.len(), NODES);
    let hits: u64 = nodes.iter().map(|node| node["hits"].as_u64().unwrap()).sum();
    assert!(hits > 0, "{figures}");
    let owners = figures["node_processes"].as_array().unwrap();
    assert!(owners.len() == NODES && owners.iter().all(Value::is_null), "one has all: {figures}");
    let disks = figures["disks"].as_array().unwrap().iter().flat_map(|it| it.as_array().unwrap());
    let written: u64 = disks.map(|disk| disk["written_bytes"].as_u64().unwrap()).sum();
    assert!(written >= 3 << 20, "{figures}");

    let (head, text) = get(&address, "/metrics");
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    for line in [
        &format!("mdfs_nodes{{state=\"up\"}} {NODES}"),
        "mdfs_disk_healthy{node=\"0\",disk=\"0\"} 1",
        "mdfs_nfs_connections 0",
    ] {
        assert!(text.lines().any(|told| told == line), "{line} is not in {text}");
    }
    let bytes = |name: &str| -> u64 {
        let found = text.lines().find_map(|line| line.strip_prefix(name));
        found.unwrap().trim().parse().unwrap()
    };
    assert!(bytes("mdfs_space_used_bytes ") >= 3 << 20, "{text}");
    assert!(bytes("mdfs_space_available_bytes ") >= 128 << 20, "{text}");
    assert!(get(&address, "/elsewhere").0.starts_with("HTTP/1.0 404"));

    served.stop();
}

/// What comes into the stripes of a file, from a client or a disk, is received where the cache
/// keeps it.
#[test]
fn large_writes_and_cold_reads_over_nfs_are_not_copied_on_their_way_into_the_cache() {
    const LENGTH: usize = 1 << 20;
    let site = Site::formatted(256, NODES as u32);
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let address = free.to_string();
    let arguments = ["serve", "VOL", "--nfs", "127.0.0.1:0", "--metrics", &address];
    let served = Served::with(&site, &arguments);
    let told = || -> u64 {
        let (_, text) = get(&address, "/metrics");
        let value =
            text.lines().find_map(|line| line.strip_prefix("mdfs_buffer_copied_bytes_total "));
        value.unwrap().parse().unwrap()
    };
    let mut nfs = RawNfs::connect(&served);
    let root = nfs.root();
    let file = nfs.create(&root, b"file").unwrap();
    let data: Vec<u8> = (0..LENGTH).map(|at| (at * 31 + at / 251) as u8).collect();
    let before = told();
    for at in 0..4 {
        assert_eq!(nfs.write(&file, (at * LENGTH) as u64, &data), 0);
    }
    // Of each what was received with its head.
    let count = told() - before;
    assert!(count < LENGTH as u64, "{count} bytes were copied of {}", 4 * LENGTH);
    let read = nfs.read_file(&file, LENGTH as u64, LENGTH as u32).unwrap();
    assert!(read == data, "other bytes are read than were written");
    served.stop();

    // Stripes that lie beside each other on a disk are read as one.
    let served = Served::with(&site, &arguments);
    let mut nfs = RawNfs::connect(&served);
    let root = nfs.root();
    let file = nfs.lookup(&root, b"file").unwrap();
    let before = told();
    for at in 0..4 {
        let read = nfs.read_file(&file, (at * LENGTH) as u64, LENGTH as u32).unwrap();
        assert!(read == data, "other bytes are read than were written");
    }
    let count = told() - before;
    assert!(count < LENGTH as u64, "{count} bytes were copied of {}", 4 * LENGTH);
    served.stop();
}

#[test]
fn the_memory_of_the_cache_is_as_asked_for_and_there_at_the_start_if_wanted() {
    const CACHE_BYTES: u64 = 32 << 20;
    let site = Site::formatted(256, NODES as u32);
    let memory = |arguments: &[&str]| -> u64 {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let all = ["serve", "VOL", "--nfs", "127.0.0.1:0", "--cache", "32MiB", "--metrics", &free];
        let served = Served::with(&site, &[&all, arguments].concat());
        let (_, text) = get(&free, "/metrics");
        let values = ["mdfs_buffer_used_bytes ", "mdfs_buffer_kept_bytes "].map(|name| {
            let value = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            value.parse::<u64>().unwrap()
        });
        served.stop();
        values.iter().sum()
    };
    assert!(memory(&[]) < CACHE_BYTES / 2);
    let found = memory(&["--prefault"]);
    assert!((CACHE_BYTES..2 * CACHE_BYTES).contains(&found), "{found} bytes");

    let refused = site.run(&["serve", "VOL", "--cache", "4MiB"]);
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && told.contains("from 16 MiB"), "{told}");
}

/// The value of a metric, with its labels.
fn value(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    rest.map(|value| value.parse().unwrap())
}

/// The status page, as a browser shows it after a while.
fn shown(site: &Site, address: &str) -> String {
    let run = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=4000"])
        .arg(format!("--user-data-dir={}", site.path("browser").display()))
        .args(["--dump-dom", &format!("http://{address}/")])
        .output();
    let run = run.expect("chromium runs: it is in the Debian package of that name");
    String::from_utf8(run.stdout).unwrap()
}

#[test]
fn a_lost_disk_is_shown_until_all_of_it_is_on_others() {
    let site = Site::new();
    let shape = ["--disk-nodes", "2", "--disk-size", "256MiB", "--nodes", "4"];
    site.ok(&[&["format", "VOL", "--redundancy", "2x"], &shape[..]].concat());
    Content { seed: 1, length: 8 << 20 }.write(&site.path("file"));
    site.ok(&["put", "file", "VOL:/file"]);
    fs::remove_file(site.path("VOL/disks/n1d0")).unwrap();
    site.ok(&["disk", "lost", "VOL", "n1d0"]);

    // Nothing can be made anew: there is one disk.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let address = free.to_string();
    let arguments = ["serve", "VOL", "--nfs", "127.0.0.1:0", "--metrics", &address];
    let served = Served::with(&site, &arguments);
    let disks = || -> Value { serde_json::from_str(&get(&address, "/disks.json").1).unwrap() };
    let (told, (_, text)) = (disks(), get(&address, "/metrics"));
    let lost = &told["disks"][1];
    assert!(told["left_bytes"].as_u64().unwrap() >= 8 << 20, "{told}");
    assert_eq!((&told["redundancy"], &told["losses_left"]), (&"2x".into(), &0.into()), "{told}");
    assert_eq!(lost["state"], "lost", "{told}");
    assert!(lost["meaning"].as_str().unwrap().contains("left to make anew"), "{told}");
    assert_eq!(value(&text, "mdfs_redundancy_class{class=\"2x\"}"), Some(1));
    assert_eq!(value(&text, "mdfs_redundancy_losses_left"), Some(0));
    assert_eq!(value(&text, "mdfs_disks{condition=\"lost\"}"), Some(1));
    for name in ["mdfs_degraded_bytes", "mdfs_disk_move_left_bytes{node=\"1\",disk=\"0\"}"] {
        assert!(value(&text, name).unwrap() >= 8 << 20, "{name}: {text}");
    }
    let page = shown(&site, &address);
    for part in [
        "2x: data is at risk, no further disk may be lost",
        "are left to move, or to make anew",
        "<td class=\"bad\">lost</td>",
        "n1d0: ",
    ] {
        assert!(page.contains(part), "{part} is not in {page}");
    }
    let summary = site.ok(&["status", "VOL"]);
    for part in ["redundancy  2x: data is at risk", "1 online, 1 lost", "on disks that are not"] {
        assert!(summary.contains(part), "{part} is not in {summary}");
    }

    site.ok(&["disk", "add", "VOL"]);
    let start = Instant::now();
    while disks()["disks"][1]["state"] != "retired" && disks()["disks"][2]["state"] != "retired" {
        assert!(start.elapsed() < Duration::from_mins(1), "{}", disks());
        sleep(Duration::from_millis(100));
    }
    let (told, (_, text)) = (disks(), get(&address, "/metrics"));
    assert_eq!((&told["left_bytes"], &told["losses_left"]), (&0.into(), &1.into()), "{told}");
    assert_eq!(value(&text, "mdfs_redundancy_losses_left"), Some(1));
    assert_eq!(value(&text, "mdfs_degraded_bytes"), Some(0));
    assert_eq!(value(&text, "mdfs_disks{condition=\"online\"}"), Some(2));
    let listed = site.json(&["disk", "list", "--json", "VOL"]);
    for key in ["volume", "redundancy", "summary", "losses_left", "left_bytes", "disks"] {
        assert_eq!(listed[key], told[key], "the page has what the command says: {key}");
    }
    let page = shown(&site, &address);
    assert!(page.contains("2x: 1 more disk may be lost without loss of data"), "{page}");
    assert!(page.contains("id=\"moves\" hidden"), "nothing is left to move: {page}");
    let summary = site.ok(&["status", "VOL"]);
    for part in ["1 more disk may be lost", "2 online, 1 retired", "nothing is left to move"] {
        assert!(summary.contains(part), "{part} is not in {summary}");
    }
    served.stop();
}

#[test]
fn an_address_that_is_taken_is_named() {
    let site = Site::formatted(256, NODES as u32);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let refused = site.run(&["serve", "VOL", "--metrics", &address]);
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success(), "{told}");
    assert!(told.contains(&address) && told.contains("--metrics"), "{told}");
}
