//! Large writes to three processes: each is left what it shall store.

use std::fs;
use std::process::Output;

use runtime::seed::with_seed;
use tests::Content;
use tests::client_host::{ClientHost, TOKEN};
use tests::cluster::{Cluster, Shape};

/// Bytes of a copy; the last piece of it is no whole unit.
const LENGTH: u64 = (24 << 20) + 70_001;

#[test]
fn two_of_three_processes_are_left_what_they_store_of_a_copy() {
    with_seed(|rng| {
        let mut cluster = Cluster::started(Shape::default());
        let address = cluster.client_address();
        let at = |path: &str| format!("{address}:{path}");
        let run = |cluster: &Cluster, arguments: &[&str]| {
            let Output { status, stderr, .. } =
                cluster.run(&[arguments, &["--token", TOKEN]].concat());
            assert!(status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&stderr));
        };
        let content = Content { seed: rng.bits(), length: LENGTH }.bytes();
        fs::write(cluster.path("in"), &content).unwrap();
        let left = |cluster: &Cluster| {
            let count = |number| cluster.count(number, "mdfs_links_deposited_bytes_total");
            cluster.numbers().map(count).collect::<Vec<u64>>()
        };
        // Links to all processes are made with the first piece.
        run(&cluster, &["cp", "--jobs", "1", "in", &at("/stored")]);
        let left = left(&cluster);
        let most = left.iter().filter(|bytes| **bytes > LENGTH / 5).count();
        assert!(most >= 2, "of {LENGTH} bytes these were left: {left:?}");
        run(&cluster, &["cp", &at("/stored"), "out"]);
        assert!(fs::read(cluster.path("out")).unwrap() == content);
        cluster.stop();
        let told = cluster.check();
        assert!(told.contains("sound"), "{told}");
    });
}

/// Bytes of a copy into a volume with parity, which a node has room for at hand.
const SHORT_LENGTH: u64 = (8 << 20) + 70_001;

/// What `client` sends for 1000 bytes of a file, and how often the caches are read until the file
/// is durable.
fn cost_of_a_copy(
    cluster: &Cluster,
    client: &ClientHost,
    name: &str,
    arguments: &[&str],
) -> (u64, u64) {
    let reads = |cluster: &Cluster| {
        let count = |number| {
            cluster.count(number, "mdfs_cache_hits_total")
                + cluster.count(number, "mdfs_cache_misses_total")
        };
        cluster.numbers().map(count).sum::<u64>()
    };
    let to = client.at(name);
    let before = (client.host.bytes_sent(), reads(cluster));
    client.ok(&[&["cp", "--jobs", "1", "in", &to], arguments].concat());
    let sent = client.host.bytes_sent() - before.0;
    (sent * 1000 / SHORT_LENGTH, reads(cluster) - before.1)
}

#[test]
fn parity_of_what_is_left_takes_no_byte_more_and_no_read() {
    with_seed(|rng| {
        let shape = Shape { on_hosts: true, redundancy: "2+1", ..Shape::default() };
        let mut cluster = Cluster::started(shape);
        let content = Content { seed: rng.bits(), length: SHORT_LENGTH }.bytes();
        fs::write(cluster.path("in"), &content).unwrap();
        let hosts = cluster.client_hosts();
        let Some(client) = hosts.first() else { return };
        // Links to all processes are made with the first piece.
        cost_of_a_copy(&cluster, client, "/first", &[]);
        let (sent, reads) = cost_of_a_copy(&cluster, client, "/by_servers", &[]);
        let (with_parity, reads_of_client) =
            cost_of_a_copy(&cluster, client, "/by_client", &["--parity", "client"]);
        println!("{sent} and {with_parity} for 1000 bytes; {reads} and {reads_of_client} reads");
        // There are 130 chunks; a commit that makes their parity reads all of them.
        assert!(reads < 40 && reads_of_client < 40, "{reads} and {reads_of_client} reads");
        assert!(sent < 1100, "servers make the parity, and {sent} was sent for 1000 bytes");
        assert!((1450..1600).contains(&with_parity), "with parity {with_parity} was sent");
        for name in ["/first", "/by_servers", "/by_client"] {
            client.ok(&["cp", &client.at(name), "out"]);
            assert!(fs::read(cluster.path("out")).unwrap() == content, "{name}");
        }
        cluster.stop();
        let told = cluster.check();
        assert!(told.contains("sound"), "{told}");
    });
}
