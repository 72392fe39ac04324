//! The thesis' Fig. 4.3: the cache's throughput grows with its nodes, if the lines are independent.

mod support;

use std::time::Duration;

use blockio::{Geometry, Stripes as _};
use futures::future::join_all;
use runtime::NodeId;
use support::{Setup, World, geometry};

/// What a processor needs for one step, so that a node has a speed.
const STEP: Duration = Duration::from_micros(20);
/// Clients for each node, and reads of each.
const CLIENTS: u64 = 4;
const READS: u64 = 100;
/// Lines of each client.
const LINES: u64 = 4;

/// Reads per second of virtual time with `nodes` nodes, each with clients of its own.
fn throughput(nodes: u32) -> f64 {
    let geometry = Geometry { fs_nodes: nodes, ..geometry() };
    let world = World::new(&Setup { geometry, ..Setup::default() });
    for index in 0..nodes {
        world.slow(NodeId::fs(index), STEP);
    }
    let stripe = |node: u64, client: u64, line: u64| {
        // The clients of a node share none of its lines.
        (client * LINES + line % LINES) * u64::from(nodes) + node
    };
    let client = world.client.clone();
    let each = move |reads: u64| {
        let client = client.clone();
        let all = (0..u64::from(nodes)).flat_map(|node| (0..CLIENTS).map(move |own| (node, own)));
        let work = all.map(move |(node, own)| {
            let client = client.clone();
            async move {
                for read in 0..reads {
                    let read = client.read(stripe(node, own, read), 0, 4096, Vec::new()).await;
                    assert_eq!(read.expect("it is cached").len(), 4096);
                }
            }
        });
        join_all(work)
    };
    world.run(each(LINES)); // brings the lines in
    let context = world.context();
    let start = context.now();
    world.run(each(READS));
    let elapsed = context.now().saturating_sub(start);
    f64::from(nodes * (CLIENTS * READS) as u32) / elapsed.as_secs_f64()
}

#[test]
fn throughput_grows_with_the_nodes_on_independent_lines() {
    let alone = throughput(1);
    for nodes in [2, 4, 8, 16, 24] {
        let ratio = throughput(nodes) / (f64::from(nodes) * alone);
        println!("{nodes} nodes: {ratio:.3} of {nodes} times one");
        assert!(ratio >= 0.9, "{nodes} nodes: {ratio:.3} of {nodes} times the throughput of one");
    }
}
