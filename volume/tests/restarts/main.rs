//! One node restarts while the others live on: what was answered and not committed is there, or the
//! write verifier says that it is not; what was committed is there.

mod blocks;
mod chunks;
mod cluster;
mod crash_points;
mod delegations;
mod grace;
mod groups;
mod lost_writes;
mod pauses;
mod ranks;
mod readahead;
mod remote_locks;
mod renames;
mod replies;
mod returned;
mod rights;
mod seals;
mod space;
mod syncs;
mod times;
mod tree;
mod wrong_node;

use std::cell::{Cell, RefCell};
use std::time::Duration;

use cluster::{Cluster, DISK_NODES, FS_NODES, nodes};
use fileio::protocol::Handle;
use futures::future::join;
use runtime::NodeId;
use runtime::seed::{Rng, with_seed};

/// Blocks of each file: some stripes at each node.
const BLOCKS: u64 = 40;

fn numbers(number: u64) -> Vec<u64> {
    (1..=BLOCKS).map(|block| number << 32 | block).collect()
}

#[test]
fn a_disk_node_that_restarts_costs_nothing_while_the_caches_have_it_all() {
    for index in 0..DISK_NODES {
        let cluster = Cluster::new(u64::from(index) + 1);
        let world = cluster.world.clone();
        world.run(async {
            let file = cluster.create(NodeId::fs(0)).await;
            let verifier = cluster.write(file, 0, &numbers(1)).await;
            cluster.restart(NodeId::disk(index)).await;
            assert_eq!(cluster.commit(file).await, verifier);
            cluster.power_cut().await;
            assert_eq!(cluster.read(file, 0, BLOCKS).await, numbers(1));
        });
    }
}

#[test]
fn a_commit_after_a_file_system_node_has_restarted_claims_nothing() {
    for index in 0..FS_NODES {
        let cluster = Cluster::new(u64::from(index) + 10);
        let world = cluster.world.clone();
        world.run(async {
            let file = cluster.create(NodeId::fs(0)).await;
            let first = cluster.write(file, 0, &numbers(1)).await;
            assert_eq!(cluster.commit(file).await, first);
            let second = cluster.write(file, 0, &numbers(2)).await;
            assert_eq!(second, first);
            assert_eq!(cluster.write(file, BLOCKS, &[2]).await, first);
            // With the cache of a third of the stripes, or with the inode itself.
            cluster.restart(NodeId::fs(index)).await;
            let told = cluster.commit(file).await;
            assert_ne!(told, second, "node {index} has lost the only copy of some of it");
            assert_eq!(cluster.read(file, 0, BLOCKS).await, numbers(1), "as last committed");
            assert_eq!(cluster.size(file).await, BLOCKS * cluster::BLOCK, "and as long");

            let third = cluster.write(file, 0, &numbers(3)).await;
            assert_eq!(third, told);
            assert_eq!(cluster.commit(file).await, third);
            cluster.power_cut().await;
            assert_eq!(cluster.read(file, 0, BLOCKS).await, numbers(3));
        });
    }
}

/// What says that it was formatted may be lost, or of an older time, as in a copy of etcd.
#[test]
fn a_node_with_metadata_is_not_formatted_again() {
    let cluster = Cluster::new(21);
    let world = cluster.world.clone();
    world.run(async {
        let mut files = Vec::new();
        for node in (0..FS_NODES).map(NodeId::fs) {
            let file = cluster.create(node).await;
            cluster.write(file, 0, &numbers(1)).await;
            cluster.commit(file).await;
            files.push(file);
        }
        for node in (0..FS_NODES).map(NodeId::fs) {
            let refused = cluster.format_again(node).await.unwrap_err();
            assert!(refused.to_string().contains("not formatted again"), "{refused}");
        }
        cluster.power_cut().await;
        for file in files {
            assert_eq!(cluster.read(file, 0, BLOCKS).await, numbers(1));
        }
    });
}

#[test]
fn a_lost_block_is_read_as_last_committed_before_anybody_commits() {
    let cluster = Cluster::new(20);
    let world = cluster.world.clone();
    world.run(async {
        let file = cluster.create(NodeId::fs(0)).await;
        cluster.write(file, 0, &numbers(1)).await;
        cluster.commit(file).await;
        let verifier = cluster.write(file, 0, &numbers(2)).await;
        cluster.restart(NodeId::fs(1)).await;
        assert_eq!(cluster.read(file, 0, BLOCKS).await, numbers(1));
        // A part of a block, which needs the rest of it.
        assert_ne!(cluster.write(file, 0, &[7]).await, verifier);
    });
}

/// What one block may hold: its values, oldest first, and which of them is committed.
struct Block {
    values: Vec<u64>,
    durable: usize,
}

/// One file and what is known of it.
struct File {
    handle: Handle,
    blocks: Vec<Block>,
    /// Writes that no commit has answered for: block, number of its value, verifier.
    pending: Vec<(usize, usize, u64)>,
}

impl File {
    fn check(&self, first: usize, found: &[u64]) {
        for (block, value) in self.blocks[first..].iter().zip(found) {
            let possible = &block.values[block.durable..];
            assert!(possible.contains(value), "{value:x}, not of {possible:x?}");
        }
    }

    fn committed(&mut self, covered: usize, verifier: u64) {
        for (block, number, written) in self.pending.drain(..covered) {
            if written == verifier {
                let durable = &mut self.blocks[block].durable;
                *durable = number.max(*durable);
            }
        }
    }
}

/// Writes, reads and commits files, one request at a time.
async fn work(cluster: &Cluster, files: &RefCell<Vec<File>>, over: &Cell<bool>, mut rng: Rng) {
    while !over.get() {
        let index = rng.index(files.borrow().len());
        let handle = files.borrow()[index].handle;
        let first = rng.below(BLOCKS);
        let count = 1 + rng.below((BLOCKS - first).min(12));
        match rng.below(8) {
            0..=3 => {
                let values: Vec<u64> = (0..count).map(|_| rng.bits() | 1).collect();
                let mut issued = Vec::new();
                for (block, &value) in (first as usize..).zip(&values) {
                    let known = &mut files.borrow_mut()[index].blocks[block].values;
                    known.push(value);
                    issued.push((block, known.len() - 1));
                }
                let verifier = cluster.write(handle, first, &values).await;
                let pending = issued.into_iter().map(|(block, number)| (block, number, verifier));
                files.borrow_mut()[index].pending.extend(pending);
            }
            4..=5 => {
                let found = cluster.read(handle, first, count).await;
                files.borrow()[index].check(first as usize, &found);
            }
            _ => {
                let covered = files.borrow()[index].pending.len();
                let verifier = cluster.commit(handle).await;
                files.borrow_mut()[index].committed(covered, verifier);
            }
        }
        cluster.pass(Duration::from_micros(rng.below(20_000))).await;
    }
}

async fn restart_nodes(cluster: &Cluster, over: &Cell<bool>, mut rng: Rng) {
    let nodes: Vec<NodeId> = nodes().collect();
    for _ in 0..4 + rng.below(8) {
        let most = 1 << (10 + rng.below(12));
        cluster.pass(Duration::from_micros(rng.below(most))).await;
        cluster.restart(nodes[rng.index(nodes.len())]).await;
    }
    over.set(true);
}

fn one_life_after_the_other(rng: &mut Rng) {
    let cluster = Cluster::new(rng.bits());
    let (worker, restarter) = (Rng::new(rng.bits()), Rng::new(rng.bits()));
    let world = cluster.world.clone();
    let files = RefCell::new(Vec::new());
    let over = Cell::new(false);
    world.run(async {
        for node in (0..FS_NODES).map(NodeId::fs) {
            let handle = cluster.create(node).await;
            let blocks = (0..BLOCKS).map(|_| Block { values: vec![0], durable: 0 }).collect();
            files.borrow_mut().push(File { handle, blocks, pending: Vec::new() });
        }
        join(work(&cluster, &files, &over, worker), restart_nodes(&cluster, &over, restarter))
            .await;
        cluster.power_cut().await;
        for file in files.take() {
            file.check(0, &cluster.read(file.handle, 0, BLOCKS).await);
        }
    });
}

#[test]
fn no_commit_lies_and_no_byte_is_wrong_whichever_node_restarts_whenever() {
    let count = std::env::var("SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(12);
    for _ in 0..count {
        with_seed(one_life_after_the_other);
    }
}
