//! Large writes to three processes: each is left what it shall store.

use std::fs;
use std::process::Output;

use runtime::seed::with_seed;
use tests::Content;
use tests::client_host::TOKEN;
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
