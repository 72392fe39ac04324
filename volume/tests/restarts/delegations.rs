//! What waits after a start for those to whom a node had delegated its files (ADR 101).

use std::time::Duration;

use fileio::protocol::{CallId, DELEGATION_LEASE, Delegate, Flush, Handle, Name, ReturnDelegation};
use runtime::NodeId;

use crate::cluster::Cluster;
use crate::grace::two_names_at;
use crate::space::try_write;

/// The node that starts again.
const HERE: NodeId = NodeId::fs(0);
/// A change that does not wait takes less.
const AT_ONCE: Duration = Duration::from_millis(500);
const HOLDER: u64 = 9;

/// A file of the node with one of two names.
async fn make(cluster: &Cluster, number: usize) -> Handle {
    let name: &Name = &two_names_at(HERE)[number];
    let file = cluster.make(CallId { client: 1, number: number as u64 }, name).await;
    cluster.write(file, 0, &[7; 4]).await;
    cluster.commit(file).await;
    file
}

async fn is_delegated(cluster: &Cluster, file: Handle) -> bool {
    let request = Delegate { holder: HOLDER, lease: 0, number: 1, file };
    cluster.ask(request).await.is_some()
}

async fn flush(cluster: &Cluster) {
    let flushed = cluster.application(0).spawn(HERE, Flush {}).await;
    assert!(flushed.is_ok(), "{flushed:?}");
}

/// How long a write waits.
async fn wait_of_write(cluster: &Cluster, file: Handle) -> Duration {
    let begun = cluster.world.now();
    while try_write(cluster, file, 0, 1).await.is_err() {
        cluster.pass(Duration::from_millis(10)).await;
    }
    cluster.world.now().saturating_sub(begun)
}

#[test]
fn changes_wait_after_a_crash_if_files_were_delegated() {
    let cluster = Cluster::new(81);
    let world = cluster.world.clone();
    world.run(async {
        let old = make(&cluster, 0).await;
        assert!(is_delegated(&cluster, old).await);
        // Though it is flushed: the file is delegated all the same.
        flush(&cluster).await;
        for restart in 0..2 {
            cluster.restart(HERE).await;
            if restart == 0 {
                let young = make(&cluster, 1).await;
                assert!(wait_of_write(&cluster, young).await < AT_ONCE, "it was not there");
            }
            let waited = wait_of_write(&cluster, old).await;
            assert!(waited + AT_ONCE > DELEGATION_LEASE, "{waited:?}");
            assert!(waited < DELEGATION_LEASE + AT_ONCE, "{waited:?}");
        }
    });
}

#[test]
fn nothing_waits_after_a_stop_without_delegated_files() {
    let cluster = Cluster::new(82);
    let world = cluster.world.clone();
    world.run(async {
        let file = make(&cluster, 0).await;
        assert!(is_delegated(&cluster, file).await);
        cluster.ask(ReturnDelegation { holder: HOLDER, number: 1, file }).await;
        flush(&cluster).await;
        cluster.restart(HERE).await;
        assert!(wait_of_write(&cluster, file).await < AT_ONCE);
        // From the flush on the store knows of no grant, but of the next one it does.
        assert!(is_delegated(&cluster, file).await);
        cluster.restart(HERE).await;
        assert!(wait_of_write(&cluster, file).await > AT_ONCE);
    });
}
