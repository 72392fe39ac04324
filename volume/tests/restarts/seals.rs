//! A commit covers what was sealed, and nothing that was written after that: it has no record yet.

use std::time::Duration;

use futures::future::join3;
use meta::protocol as metadata;
use runtime::NodeId;

use crate::cluster::{BLOCK, Cluster};

/// Where the file of a test is.
const HOME: NodeId = NodeId::fs(1);
/// Longer than a commit takes.
const LONGEST_US: u64 = 600;
const STEP_US: usize = 20;

#[test]
fn a_commit_records_the_size_that_was_sealed() {
    let cluster = Cluster::new(96);
    let world = cluster.world.clone();
    world.run(async {
        let file = cluster.create(HOME).await;
        cluster.write(file, 0, &[1; 3]).await;
        let ino = file.ino;
        let seal = move |context| async move {
            meta::client::ask(&context, HOME, metadata::Seal { ino }).await
        };
        world.on(HOME, seal).await.unwrap().unwrap();
        cluster.write(file, 3, &[2; 6]).await;
        let commit = move |context| async move {
            meta::client::ask(&context, HOME, metadata::Commit { ino }).await
        };
        let committed = world.on(HOME, commit).await.unwrap().unwrap();
        assert_eq!(cluster.size(file).await, 9 * BLOCK);
        cluster.power_cut().await;
        assert_eq!(cluster.size(file).await, 3 * BLOCK, "what has no record is not there");
        assert_eq!(cluster.read(file, 0, 3).await, [1; 3]);
        let kept = metadata::GetInode { ino, generation: 0 };
        let inode = move |context| async move { meta::client::ask(&context, HOME, kept).await };
        let inode = world.on(HOME, inode).await.unwrap().unwrap();
        assert_eq!(inode.attributes.used_bytes, 3 * BLOCK);
        assert_eq!(inode.committed.sequence, committed.committed);
    });
}

#[test]
fn no_zeros_are_at_the_end_whenever_a_write_meets_a_commit() {
    let cluster = Cluster::new(97);
    let world = cluster.world.clone();
    world.run(async {
        for moment_us in (0..LONGEST_US).step_by(STEP_US) {
            let file = cluster.create_from(HOME, 1000 * (1 + moment_us)).await;
            cluster.write(file, 0, &[1; 3]).await;
            // The second commit waits for the first, and what it covers is sealed already.
            let more = async {
                cluster.write(file, 3, &[2]).await;
                cluster.commit(file).await
            };
            let meanwhile = async {
                cluster.pass(Duration::from_micros(moment_us)).await;
                cluster.write(file, 4, &[3; 5]).await
            };
            join3(cluster.commit(file), more, meanwhile).await;
            cluster.power_cut().await;
            let blocks = cluster.size(file).await / BLOCK;
            let found = cluster.read(file, 0, blocks).await;
            assert!(blocks == 4 || blocks == 9, "{blocks} blocks, {moment_us} us");
            assert_eq!(found, [1, 1, 1, 2, 3, 3, 3, 3, 3][..found.len()], "{moment_us} us");
        }
    });
}
