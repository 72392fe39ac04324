//! Names that change while their directory is synced: the next sync makes them durable.

use std::time::Duration;

use fileio::protocol::{ROOT, SyncDirectory};
use futures::future::join;
use runtime::NodeId;

use crate::cluster::{Cluster, FS_NODES};
use crate::tree::Tree;

/// Longer than a sync takes.
const LONGEST_US: u64 = 600;
const STEP_US: usize = 40;

#[test]
fn a_sync_makes_durable_what_changed_while_an_earlier_one_was_under_way() {
    let cluster = Cluster::new(95);
    let world = cluster.world.clone();
    world.run(async {
        let tree = Tree::new(&cluster);
        for moment_us in (0..LONGEST_US).step_by(STEP_US) {
            for node in (0..FS_NODES).map(NodeId::fs) {
                let directory = tree.make_directory(&tree.place(ROOT, NodeId::fs(0))).await;
                let (before, meanwhile) =
                    (tree.place(directory, NodeId::fs(1)), tree.place(directory, node));
                let first = tree.create(&before, false).await;
                let sync = || cluster.ask(SyncDirectory { directory });
                let making = async {
                    cluster.pass(Duration::from_micros(moment_us)).await;
                    tree.create(&meanwhile, false).await
                };
                let ((), second) = join(sync(), making).await;
                sync().await;
                cluster.power_cut().await;
                assert_eq!(tree.find(&before).await, Some(first));
                assert_eq!(tree.find(&meanwhile).await, Some(second), "{node}, {moment_us} us");
            }
        }
    });
}
