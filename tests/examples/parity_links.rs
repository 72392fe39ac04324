//! Who makes the parity of large writes, over links that are the narrowest place, as chapter 2 of
//! Ohtsuji's thesis measures it: four hosts store, and one to eight write at the same time, each
//! over a link of its own. Every write is durable when its time ends.
//!
//! `cargo build --release -p tests --bins && cargo run --release -p tests --example parity_links`,
//! as root. Arguments: the rate of a link in the words of `tc`, the bytes of a stripe, the numbers
//! of writers, and MiB of each writer.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a measurement of whole processes uses the host, and panics where it fails"
)]

use std::env::args;
use std::process::Child;
use std::process::Stdio;

use tests::client_host::ClientHost;
use tests::cluster::{Cluster, Shape};

/// Measurements of each way, in turns.
const ROUNDS: usize = 3;
/// The class of the volume and who makes parity.
const WAYS: [(&str, &str); 3] = [("none", "servers"), ("3+1", "client"), ("3+1", "servers")];

fn main() {
    let mut given = args().skip(1);
    let mut next = |default: &str| given.next().unwrap_or_else(|| default.to_owned());
    let (rate, stripe) = (next("160mbit"), &*next("64KiB").leak());
    let (writers, size) = (next("1,2,3,4,6,8"), next("64"));
    let writers: Vec<usize> = writers.split(',').map(|count| count.parse().unwrap()).collect();
    let most = writers.iter().max().copied().unwrap_or(1);
    println!("links of {rate}, stripes of {stripe}; MB/s of all writers, medians of {ROUNDS}");
    println!("writers | no parity | by the client | by the servers | ratio");
    let clusters = ["none", "3+1"].map(|class| (class, cluster(class, stripe, most, &rate)));
    for count in writers {
        let mut rates = [const { Vec::new() }; 3];
        for _ in 0..ROUNDS {
            for ((class, maker), rates) in WAYS.iter().zip(&mut rates) {
                let (_, cluster) = clusters.iter().find(|(known, _)| known == class).unwrap();
                let clients = cluster.client_hosts();
                rates.push(rate_of(&clients[..count], &size, maker));
            }
        }
        let [none, client, servers] = rates.map(|mut rates| {
            rates.sort_unstable_by(f64::total_cmp);
            rates[ROUNDS / 2]
        });
        println!(
            "{count} | {none:.1} | {client:.1} | {servers:.1} | {:.3}, {:.3} of no parity",
            servers / client,
            servers / none
        );
    }
    for (_, mut cluster) in clusters {
        cluster.stop();
    }
}

fn cluster(redundancy: &'static str, stripe: &'static str, clients: usize, rate: &str) -> Cluster {
    let cluster = Cluster::started(Shape {
        members: 4,
        nodes: 16,
        on_hosts: true,
        client_hosts: clients,
        redundancy,
        sizes: [stripe, "4GiB", "128MiB"],
        ..Shape::default()
    });
    assert!(cluster.limit_links(rate).unwrap(), "there are no hosts");
    cluster
}

/// MB/s of all clients together: of all bytes in the time of the slowest.
fn rate_of(clients: &[ClientHost], size: &str, maker: &str) -> f64 {
    let block = format!("{size}MiB");
    let writers: Vec<Child> = clients
        .iter()
        .enumerate()
        .map(|(number, client)| {
            let place = client.at(&format!("/w{number}"));
            client.ok(&["mkdir", "-p", &place]);
            let ior = ["bench", "ior", "-N", "4", "-F", "-w", "-e", "-t", "4MiB", "--json"];
            let more = ["-b", &block, "--parity", maker, &place];
            let mut command = client.command(&[&ior[..], &more[..]].concat());
            command.stdout(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let mut slowest = 0.0;
    for writer in writers {
        let output = writer.wait_with_output().unwrap();
        assert!(output.status.success());
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        slowest = f64::max(slowest, found[0]["seconds"][0].as_f64().unwrap());
    }
    let files = u32::try_from(4 * clients.len()).unwrap();
    f64::from(files) * size.parse::<f64>().unwrap() * 1_048_576.0 / slowest / 1e6
}
