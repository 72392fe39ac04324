//! A node restarts, or cannot be reached for a while, at each moment of a change of names in which
//! several nodes have a part: the change is done once and whole, and what a dead life had claimed
//! or stopped (ADR 13), or what was locked or stopped although the reply was lost (ADR 57), can be
//! changed again.

use std::future::Future;
use std::time::Duration;

use fileio::protocol::{Error, ROOT};
use futures::future::{join, join_all};
use runtime::NodeId;

use crate::cluster::Cluster;
use crate::tree::{Tree, handle};

/// Where the old name is: this node decides.
const OLD: NodeId = NodeId::fs(0);
/// Where the new name is.
const NEW: NodeId = NodeId::fs(1);
/// Where that is which has a name.
const NAMED: NodeId = NodeId::fs(2);

/// Longer than any of these changes takes if nothing is in its way.
const LONGEST_US: u64 = 800;
/// Between two moments, and between two of the first ones, when most requests are on their way and
/// no disk is waited for.
const STEP_US: usize = 32;
const FIRST_STEP_US: usize = 4;
const FIRST_US: u64 = 64;

/// How long links are cut: messages in flight then are lost, and nothing is tried in vain for long.
const CUT: Duration = Duration::from_millis(30);

/// Does `change` to a fresh tree again and again, while another node is in trouble at another
/// moment of it: it is given what it has to do meanwhile.
fn at_each_moment(seed: u64, change: &impl AsyncFn(&Tree<'_>, Trouble<'_>)) {
    for kind in [Kind::Restart, Kind::Cut] {
        let cluster = Cluster::new(seed);
        let world = cluster.world.clone();
        world.run(async {
            let tree = Tree::new(&cluster);
            for node in [OLD, NEW, NAMED] {
                let first = (0..FIRST_US).step_by(FIRST_STEP_US);
                for moment_us in first.chain((FIRST_US..LONGEST_US).step_by(STEP_US)) {
                    let moment = Duration::from_micros(moment_us);
                    change(&tree, Trouble { cluster: &cluster, kind, node, moment }).await;
                }
            }
        });
    }
}

#[derive(Clone, Copy)]
enum Kind {
    /// It restarts.
    Restart,
    /// The others cannot reach it, nor it them, for a while.
    Cut,
}

/// What happens to a node, and when.
struct Trouble<'a> {
    cluster: &'a Cluster,
    kind: Kind,
    node: NodeId,
    moment: Duration,
}

impl Trouble<'_> {
    /// Does `work`, and makes the trouble at its moment of it.
    async fn amid(self, work: impl Future<Output = ()>) {
        let trouble = async {
            self.cluster.pass(self.moment).await;
            match self.kind {
                Kind::Restart => self.cluster.restart(self.node).await,
                Kind::Cut => self.cut().await,
            }
        };
        join(work, trouble).await;
    }

    async fn cut(&self) {
        let others = [OLD, NEW, NAMED].into_iter().filter(|node| *node != self.node);
        self.cluster.world.network().partition(&[self.node], &others.collect::<Vec<_>>());
        self.cluster.pass(CUT).await;
        self.cluster.world.network().heal();
    }
}

#[test]
fn a_rename_over_a_file_is_done_and_both_names_can_be_changed_again() {
    at_each_moment(80, &async |tree, trouble| {
        let (old, new) = (tree.place(ROOT, OLD), tree.place(ROOT, NEW));
        let moved = tree.file(&old, NAMED).await;
        tree.file(&new, NAMED).await;
        trouble.amid(tree.rename(&old, &new)).await;
        assert_eq!([tree.find(&old).await, tree.find(&new).await], [None, Some(moved)]);
        tree.rename(&new, &old).await;
        assert_eq!([tree.find(&old).await, tree.find(&new).await], [Some(moved), None]);
        tree.create(&new, true).await;
        tree.remove(&new).await;
        tree.remove(&old).await;
    });
}

#[test]
fn a_rename_over_an_empty_directory_is_done_and_all_directories_can_be_changed_again() {
    at_each_moment(81, &async |tree, trouble| {
        let above = tree.place(ROOT, NAMED);
        let directory = tree.make_directory(&above).await;
        let (old, new) = (tree.place(ROOT, OLD), tree.place(directory, NEW));
        let moved = tree.directory(&old, NAMED).await;
        tree.directory(&new, NAMED).await;
        trouble.amid(tree.rename(&old, &new)).await;
        assert_eq!([tree.find(&old).await, tree.find(&new).await], [None, Some(moved)]);
        let inside = tree.place(moved, OLD);
        tree.create(&inside, true).await;
        tree.remove(&inside).await;
        tree.rename(&new, &old).await;
        tree.remove_directory(&old).await;
        tree.remove_directory(&above).await;
    });
}

#[test]
fn an_empty_directory_is_removed_and_its_name_can_be_used_again() {
    at_each_moment(82, &async |tree, trouble| {
        let place = tree.place(ROOT, OLD);
        tree.directory(&place, NAMED).await;
        trouble.amid(tree.remove_directory(&place)).await;
        assert_eq!(tree.find(&place).await, None);
        tree.make_directory(&place).await;
        tree.remove_directory(&place).await;
    });
}

/// Who finds a directory not empty lets others go on with it.
#[test]
fn a_directory_that_was_not_empty_can_be_changed_again() {
    at_each_moment(83, &async |tree, trouble| {
        let place = tree.place(ROOT, OLD);
        let directory = tree.directory(&place, NAMED).await;
        let inside = tree.place(directory, NEW);
        tree.create(&inside, true).await;
        trouble.amid(tree.cannot_remove_directory(&place)).await;
        tree.remove(&inside).await;
        tree.remove_directory(&place).await;
    });
}

#[test]
fn a_link_is_made_and_its_name_can_be_changed_again() {
    at_each_moment(84, &async |tree, trouble| {
        let (first, second) = (tree.place(ROOT, OLD), tree.place(ROOT, NEW));
        let file = tree.file(&first, NAMED).await;
        trouble.amid(tree.link(file, &second)).await;
        assert_eq!([tree.find(&first).await, tree.find(&second).await], [Some(file); 2]);
        tree.rename(&second, &tree.place(ROOT, OLD)).await;
        tree.create(&second, true).await;
        tree.remove(&second).await;
        tree.remove(&first).await;
    });
}

/// The record of the directory is waited for, so that no name is durable in a directory that is
/// not.
#[test]
fn a_file_is_made_in_a_directory_that_is_not_durable_yet_and_both_can_be_removed() {
    at_each_moment(85, &async |tree, trouble| {
        let place = tree.place(ROOT, NAMED);
        let directory = tree.cluster.ask(tree.making(&place, false)).await;
        let inside = tree.place(handle(&directory), OLD);
        let making = async {
            match tree.cluster.ask_for(tree.creation(&inside, true)).await {
                Ok(_) => {}
                // Its node has lost the directory.
                Err(error) => assert_eq!(error, Error::Stale {}),
            }
        };
        trouble.amid(making).await;
        if tree.find(&place).await.is_some() {
            tree.remove(&inside).await;
            tree.remove_directory(&place).await;
        }
    });
}

/// One directory at a time changes its place in the tree.
#[test]
fn directories_that_move_at_the_same_time_are_moved_and_more_can_be() {
    at_each_moment(86, &async |tree, trouble| {
        let above = tree.place(ROOT, NAMED);
        let directory = tree.make_directory(&above).await;
        let mut all = Vec::new();
        for node in [OLD, NEW, NAMED] {
            let (old, new) = (tree.place(ROOT, node), tree.place(directory, node));
            let moved = tree.make_directory(&old).await;
            all.push((moved, old, new));
        }
        let moving = all.iter().map(|(_, old, new)| tree.rename(old, new));
        trouble.amid(async { drop(join_all(moving).await) }).await;
        for (moved, old, new) in &all {
            assert_eq!([tree.find(old).await, tree.find(new).await], [None, Some(*moved)]);
            tree.rename(new, old).await;
            tree.remove_directory(old).await;
        }
        tree.remove_directory(&above).await;
    });
}
