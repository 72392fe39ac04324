//! A disk is added to a process of a cluster, and another process' disk is drained and retired,
//! while processes are killed.

use std::fs;

use tests::Content;
use tests::cluster::{Cluster, Shape};

const FILE: Content = Content { seed: 3, length: 3_000_000 };

fn ok(cluster: &Cluster, arguments: &[&str]) -> String {
    let output = cluster.run(arguments);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "mdfs {arguments:?}: {told}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_cluster_gets_a_disk_and_gives_one_back() {
    let mut cluster = Cluster::started(Shape { members: 2, ..Shape::default() });
    FILE.write(&cluster.path("file"));
    let directory = |cluster: &Cluster, number| cluster.directory(number).display().to_string();
    let first = directory(&cluster, 1);
    for number in 0..8 {
        ok(&cluster, &["cp", "file", &format!("{first}:/{number}")]);
    }
    let second = directory(&cluster, 2);
    let added = ok(&cluster, &["disk", "add", "--size", "300MiB", &second]);
    assert!(added.contains("n1d1 is added") || added.contains("n1d2 is added"), "{added}");
    ok(&cluster, &["disk", "drain", "--no-wait", "--pace", "gentle", &first, "n0d0"]);
    cluster.kill(1);
    cluster.start_member(1);
    cluster.wait_until_ready(1);
    ok(&cluster, &["disk", "drain", "--pace", "fast", &first, "n0d0"]);
    ok(&cluster, &["disk", "retire", &first, "n0d0"]);
    fs::remove_file(cluster.directory(1).join("disks/n0d0")).unwrap();
    let list = ok(&cluster, &["disk", "list", &second]);
    assert!(list.contains("n0d0 retired"), "{list}");
    cluster.stop();
    for number in cluster.numbers() {
        cluster.start_member(number);
    }
    for number in cluster.numbers() {
        cluster.wait_until_ready(number);
    }
    for number in 0..8 {
        let output = cluster.run(&["cat", &format!("{second}:/{number}")]);
        FILE.compare(&output.stdout[..]);
    }
    cluster.stop();
    let told = cluster.check();
    assert!(told.contains("sound"), "{told}");
}
