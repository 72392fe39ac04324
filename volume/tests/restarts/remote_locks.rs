//! What one node keeps for another when an answer was lost (ADR 57): a name is free again only when
//! what was decided about it has arrived, and stays claimed for whom still is at work.

use std::time::Duration;

use fileio::protocol::{Error, GetAttributes, Handle, ROOT};
use futures::future::{join, join3};
use runtime::NodeId;

use crate::cluster::Cluster;
use crate::tree::{Place, Tree};

/// Where the old name is: this node decides.
const OLD: NodeId = NodeId::fs(0);
/// Where the root and the new name are.
const NEW: NodeId = NodeId::fs(1);
/// Where that is which moves.
const MOVED: NodeId = NodeId::fs(2);

/// Two files are to have one name: the first of another node, the second of the same.
struct Rivals {
    first: (Handle, Place),
    second: (Handle, Place),
    name: Place,
}

impl Rivals {
    async fn new(tree: &Tree<'_>) -> Self {
        let (first, second) = (tree.place(ROOT, OLD), tree.place(ROOT, NEW));
        let name = tree.place(ROOT, NEW);
        let (one, other) = (tree.file(&first, MOVED).await, tree.create(&second, true).await);
        Self { first: (one, first), second: (other, second), name }
    }

    /// One of them has the name, the other is gone.
    async fn check(&self, tree: &Tree<'_>) {
        let Self { first: (one, first), second: (other, second), name } = self;
        assert_eq!([tree.find(first).await, tree.find(second).await], [None; 2]);
        let found = tree.find(name).await.expect("one of them has the name");
        for file in [*one, *other] {
            let attributes = tree.cluster.ask_for(GetAttributes { file }).await;
            if file == found {
                assert_eq!(attributes.map(|attributes| attributes.links), Ok(1));
            } else {
                assert_eq!(attributes, Err(Error::Stale {}), "it has no name, and is there");
            }
        }
        tree.remove(name).await;
    }
}

/// The two nodes cannot reach each other for `time`.
async fn cut(cluster: &Cluster, time: Duration) {
    cluster.world.network().partition(&[OLD], &[NEW]);
    cluster.pass(time).await;
    cluster.world.network().heal();
}

fn at_moments(
    seed: u64,
    moments_us: impl Iterator<Item = u64>,
    trial: &impl AsyncFn(&Tree<'_>, Duration),
) {
    let cluster = Cluster::new(seed);
    let world = cluster.world.clone();
    world.run(async {
        let tree = Tree::new(&cluster);
        assert_eq!(meta::hash::ino_node(ROOT.ino, crate::cluster::FS_NODES), NEW);
        for moment_us in moments_us {
            trial(&tree, Duration::from_micros(moment_us)).await;
        }
    });
}

#[test]
fn a_name_is_free_when_what_was_decided_has_arrived() {
    // Longer than a decision is sent before it is in doubt; then it is sent now and then.
    const AWAY: Duration = Duration::from_millis(10_300);
    const LONGER: u32 = 4_000;
    at_moments(90, (0..800).step_by(16), &async |tree, moment| {
        let rivals = Rivals::new(tree).await;
        let taking = async {
            tree.cluster.pass(moment).await;
            cut(tree.cluster, AWAY + moment * LONGER).await;
            tree.rename(&rivals.second.1, &rivals.name).await;
        };
        join(tree.rename(&rivals.first.1, &rivals.name), taking).await;
        rivals.check(tree).await;
    });
}

#[test]
fn a_name_stays_claimed_while_another_claim_is_given_up() {
    const CUT: Duration = Duration::from_millis(30);
    // The node hears late that an answer is lost; it is told what to give up; the name is tried.
    const TOLD: Duration = Duration::from_millis(700);
    const TRIED: Duration = Duration::from_millis(200);
    at_moments(91, (0..96).step_by(4), &async |tree, moment| {
        let cluster = tree.cluster;
        let rivals = Rivals::new(tree).await;
        let third = tree.place(ROOT, OLD);
        // The first rename has its claims, and waits for the node of its file.
        cluster.world.network().clog(MOVED);
        let disturbing = async {
            cluster.pass(Duration::from_millis(1)).await;
            join(tree.create(&third, true), async {
                cluster.pass(moment).await;
                cut(cluster, CUT).await;
            })
            .await;
        };
        let taking = async {
            cluster.pass(TOLD).await;
            join(tree.rename(&rivals.second.1, &rivals.name), async {
                cluster.pass(TRIED).await;
                cluster.world.network().unclog(MOVED);
            })
            .await;
        };
        join3(tree.rename(&rivals.first.1, &rivals.name), disturbing, taking).await;
        rivals.check(tree).await;
        tree.remove(&third).await;
    });
}
