//! Reading while a host is away, whose chunks are made of the others, against reading with all
//! hosts: four hosts with 3+1, one of which dies and comes back in each round.
//!
//! `cargo build --release -p tests --bins && cargo run --release -p tests --example degraded_read`,
//! as root. Arguments: MiB of each of four files, and rounds.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a measurement of whole processes uses the host, and panics where it fails"
)]

use std::env::args;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use tests::Content;
use tests::client_host::ClientHost;
use tests::cluster::{Cluster, Shape};

/// Files that are read at the same time.
const FILES: u64 = 4;
/// All hosts are there again within this time.
const ONLINE_MAX: Duration = Duration::from_mins(5);

fn main() {
    let mut given = args().skip(1);
    let mut next = |default: u64| given.next().map_or(default, |given| given.parse().unwrap());
    let (size, rounds) = (next(256), next(3));
    let mut cluster = Cluster::started(Shape {
        members: 4,
        nodes: 16,
        on_hosts: true,
        client_hosts: 1,
        redundancy: "3+1",
        // All files are four times the caches.
        sizes: ["64KiB", "4GiB", "64MiB"],
        ..Shape::default()
    });
    let client = cluster.client_hosts().remove(0);
    let local = cluster.path("file");
    Content { seed: 1, length: size << 20 }.write(&local);
    for number in 0..FILES {
        client.ok(&["cp", local.to_str().unwrap(), &client.at(&format!("/{number}"))]);
    }
    let mut rates = [const { Vec::new() }; 2];
    for round in 0..rounds {
        let whole = read(&client, size);
        let dies = 1 + (round % 4) as usize;
        cluster.kill(dies);
        // Others take over what it did before the time begins.
        let stays = dies % 4 + 1;
        wait_for_states(&cluster, stays, |states| states.iter().any(|state| state == "offline"));
        client.ok(&["ls", &client.at("/")]);
        let degraded = read(&client, size);
        cluster.start_member(dies);
        cluster.wait_until_ready(dies);
        wait_for_states(&cluster, stays, |states| states.iter().all(|state| state == "online"));
        println!("round {round}: {whole:.0} MB/s, without host {dies} {degraded:.0} MB/s");
        rates[0].push(whole);
        rates[1].push(degraded);
    }
    let [whole, degraded] = rates.map(|mut rates| {
        rates.sort_unstable_by(f64::total_cmp);
        rates[rates.len() / 2]
    });
    println!("medians: {whole:.0} and {degraded:.0} MB/s, {:.2}", degraded / whole);
    cluster.stop();
}

fn wait_for_states(cluster: &Cluster, member: usize, are_so: impl Fn(&[String]) -> bool) {
    let directory = cluster.directory(member).display().to_string();
    let start = Instant::now();
    loop {
        let output = cluster.run(&["disk", "list", "--json", &directory]);
        let list: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let disks = list["disks"].as_array().cloned().unwrap_or_default();
        let states: Vec<String> =
            disks.iter().filter_map(|disk| disk["state"].as_str().map(str::to_owned)).collect();
        if !states.is_empty() && are_so(&states) {
            return;
        }
        assert!(start.elapsed() < ONLINE_MAX, "{states:?}");
        sleep(Duration::from_millis(200));
    }
}

/// MB/s of four programs that read a file each.
fn read(client: &ClientHost, size: u64) -> f64 {
    let start = Instant::now();
    let readers = (0..FILES).map(|number| {
        let mut command = client.command(&["cat", &client.at(&format!("/{number}"))]);
        command.stdout(Stdio::null()).spawn().unwrap()
    });
    for mut reader in readers.collect::<Vec<_>>() {
        assert!(reader.wait().unwrap().success());
    }
    let mebibytes = u32::try_from(FILES * size).unwrap();
    f64::from(mebibytes) * 1_048_576.0 / start.elapsed().as_secs_f64() / 1e6
}
