//! Renames at the same time: none waits for the others in a circle.

use std::cell::Cell;
use std::time::Duration;

use fileio::protocol::*;
use futures::future::join3;
use runtime::NodeId;
use runtime::seed::{Rng, with_seed};

use crate::cluster::{Cluster, FS_NODES};
use crate::tree::Tree;

/// Longer than any of them needs.
const LONG: Duration = Duration::from_secs(20);

fn node(rng: &mut Rng) -> NodeId {
    NodeId::fs(rng.below(u64::from(FS_NODES)) as u32)
}

/// `one` and `two` are directories of the root. `one/a` shall replace `two`, and `two/b`, which is
/// made meanwhile, shall replace `one`: both replaced directories have something in them.
fn two_directories_replace_each_other(rng: &mut Rng) -> bool {
    let cluster = Cluster::new(rng.bits());
    let world = cluster.world.clone();
    world.run(async {
        let tree = Tree::new(&cluster);
        let mut named = |directory| tree.place(directory, node(rng));
        let (at_one, at_two) = (named(ROOT), named(ROOT));
        let (one, two) = (tree.make_directory(&at_one).await, tree.make_directory(&at_two).await);
        let (at_a, at_b) = (tree.place(one, node(rng)), tree.place(two, node(rng)));
        tree.make_directory(&at_a).await;
        let delays = [(); 3].map(|()| Duration::from_micros(rng.below(250)));
        let rename = async |delay: Duration, from: &(Handle, Name), to: &(Handle, Name)| {
            cluster.pass(delay).await;
            // It may come before there is anything to move.
            let _ = cluster.ask_for(tree.renaming(from, to)).await;
        };
        let making = async {
            cluster.pass(delays[0]).await;
            // The directory may be gone by then.
            let _ = cluster.ask_for(tree.making(&at_b, true)).await;
        };
        let is_over = Cell::new(false);
        let work = async {
            let renames = (rename(delays[1], &at_a, &at_two), rename(delays[2], &at_b, &at_one));
            join3(making, renames.0, renames.1).await;
            is_over.set(true);
        };
        let limit = std::pin::pin!(cluster.pass(LONG));
        futures::future::select(std::pin::pin!(work), limit).await;
        is_over.get()
    })
}

/// A run in which each of the renames held what the other one waited for.
const KEPT: u64 = 7_379_743_851_503_876_748;

#[test]
fn a_directory_that_comes_while_its_rename_begins_moves_alone() {
    assert!(two_directories_replace_each_other(&mut Rng::new(KEPT)));
    for _ in 0..60 {
        with_seed(|rng| {
            assert!(two_directories_replace_each_other(rng), "two renames wait for each other");
        });
    }
}
