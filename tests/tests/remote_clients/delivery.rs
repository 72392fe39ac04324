//! Large reads of a mount: each process sends what it has of the bytes.

use std::fs;
use std::time::Instant;

use rustix::fs::{Advice, fadvise};
use tests::Content;
use tests::cluster::{Cluster, Shape};
use tests::mounted::may_mount;

/// Bytes of the file.
const LENGTH: u64 = 24 << 20;
/// The file is read this many times.
const READS: u64 = 4;
/// Bytes that processes send for each 100 that are read, at most. Each byte goes to the client, and
/// two of three cross from the process of their disk to that of their cache: 167. If the process of
/// the file's node sent all, two of three would cross once more: 233.
const SENT_PERCENT_MAX: u64 = 195;

#[test]
fn bytes_that_a_mount_reads_do_not_pass_through_the_node_of_the_file() {
    if !may_mount() {
        return;
    }
    let mut cluster = Cluster::started(Shape { on_hosts: true, ..Shape::default() });
    let client = cluster.client_hosts().pop().expect("this user may make hosts");
    let content = Content { seed: 1, length: LENGTH }.bytes();
    fs::write(cluster.path("in"), &content).unwrap();
    client.ok(&["cp", "in", &client.at("/stored")]);
    let mounted = client.mount("mnt", &[]);
    // From now on there are links to all processes.
    assert!(fs::read(mounted.path("stored")).unwrap() == content);
    let (before, begin) = (cluster.bytes_sent(), Instant::now());
    for _ in 0..READS {
        let file = fs::File::open(mounted.path("stored")).unwrap();
        fadvise(&file, 0, None, Advice::DontNeed).expect("the kernel forgets it");
        assert!(fs::read(mounted.path("stored")).unwrap() == content);
    }
    let sent = cluster.bytes_sent() - before;
    let percent = 100 * sent / (READS * LENGTH);
    let time = begin.elapsed();
    eprintln!("the processes have sent {percent} bytes for each 100 that were read, in {time:?}");
    assert!(percent > 100, "the kernel had kept what it read: {percent}");
    assert!(percent < SENT_PERCENT_MAX, "bytes go through the node of the file: {percent}");
    mounted.unmount();
    cluster.stop();
}
