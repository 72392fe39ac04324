//! A node comes back alone, and others have its names in view or in hand: it answers for none of
//! them before it was told what it forgot, and no decision relies on what it has forgotten. (ADR
//! 13)

use std::cell::Cell;
use std::time::Duration;

use fileio::protocol::{Credentials, Error, Handle, ROOT, ReadDirectory};
use futures::future::{join, join3};
use machine_emu::LinkTiming;
use runtime::NodeId;

use crate::cluster::Cluster;
use crate::tree::Tree;

/// Where old names are.
const OLD: NodeId = NodeId::fs(0);
/// Where new names are: this node restarts.
const NEW: NodeId = NodeId::fs(1);
/// Where files and directories are.
const NAMED: NodeId = NodeId::fs(2);

/// Between two looks.
const PAUSE: Duration = Duration::from_micros(20);

/// The delay of this link.
fn slow_link(cluster: &Cluster, from: NodeId, to: NodeId, latency: Duration) {
    let latency_ns = latency.as_nanos() as u64;
    cluster.world.network().slow_link(
        from,
        to,
        LinkTiming { latency_ns, picoseconds_per_byte: 100, tcp: None },
    );
}

/// A listing of `directory` that is given has `file`, at any time until it `is_over`. Counts them.
async fn is_listed(
    cluster: &Cluster,
    directory: Handle,
    file: Handle,
    is_over: &Cell<bool>,
) -> u32 {
    let mut count = 0;
    while !is_over.get() {
        let who = Credentials::root();
        let list = ReadDirectory { who, directory, after: 0, count_max: 10, attributes: false };
        match fileio::client::ask(&cluster.application(1), list).await {
            Ok(page) => {
                let names: Vec<Handle> = page.entries.iter().map(|entry| entry.handle).collect();
                assert_eq!(names, [file], "its rename was answered");
                count += 1;
            }
            Err(Error::Undelivered { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        cluster.pass(PAUSE).await;
    }
    count
}

/// The name is durable at the node that has decided, and only in the memory of the node that has it
/// now.
#[test]
fn what_was_renamed_is_listed_while_the_node_of_its_name_comes_back() {
    let cluster = Cluster::new(90);
    let world = cluster.world.clone();
    world.run(async {
        let tree = Tree::new(&cluster);
        for word_us in [2, 100, 1_000, 10_000] {
            let directory = tree.make_directory(&tree.place(ROOT, NAMED)).await;
            let old = tree.place(directory, OLD);
            let file = tree.create(&old, true).await;
            tree.rename(&old, &tree.place(directory, NEW)).await;
            // The word of it takes a while.
            slow_link(&cluster, OLD, NEW, Duration::from_micros(word_us));
            let is_over = Cell::new(false);
            let restarting = async {
                cluster.restart(NEW).await;
                is_over.set(true);
            };
            join(restarting, is_listed(&cluster, directory, file, &is_over)).await;
            world.network().reset_links();
            is_over.set(false);
            let soon = async {
                cluster.pass(10 * PAUSE).await;
                is_over.set(true);
            };
            let (count, ()) = join(is_listed(&cluster, directory, file, &is_over), soon).await;
            assert!(count > 0, "the node is back");
        }
    });
}

/// A rename has claimed its new name and waits for something else. The node of the new name
/// restarts, and others give that name to a file. The rename is done before that, or replaces the
/// file.
#[test]
fn a_rename_that_waits_while_the_node_of_its_new_name_restarts_loses_no_file() {
    let cluster = Cluster::new(91);
    let world = cluster.world.clone();
    world.run(async {
        let tree = Tree::new(&cluster);
        for (wait_ms, restart_us) in [1, 2, 4, 8, 16, 32]
            .into_iter()
            .flat_map(|wait_ms| [50, 100, 200, 400].map(|restart_us| (wait_ms, restart_us)))
        {
            let (old, new) = (tree.place(ROOT, OLD), tree.place(ROOT, NEW));
            let moved = tree.file(&old, NAMED).await;
            slow_link(&cluster, NAMED, OLD, Duration::from_millis(wait_ms));
            let restarting = async {
                cluster.pass(Duration::from_micros(restart_us)).await;
                cluster.restart(NEW).await;
            };
            let rival = async {
                cluster.pass(Duration::from_micros(restart_us)).await;
                cluster.ask_for(tree.creation(&new, true)).await
            };
            let ((), (), made) = join3(tree.rename(&old, &new), restarting, rival).await;
            world.network().reset_links();
            assert_eq!([tree.find(&old).await, tree.find(&new).await], [None, Some(moved)]);
            match made {
                Ok(made) => assert!(made.new),
                Err(error) => assert_eq!(error, Error::Exists {}),
            }
            tree.remove(&new).await;
        }
    });
}
