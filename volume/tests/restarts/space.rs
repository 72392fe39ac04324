//! Space comes back while a node lives on, though another one was away when it was to be freed.

use std::time::Duration;

use bytes::Bytes;
use fileio::protocol::{Credentials, Error, Handle, Write};
use meta::protocol::GetSpace;
use runtime::NodeId;

use crate::cluster::{BLOCK, Cluster};

/// Longer than the retries at a node that is down, and until what failed is tried again.
pub(crate) const AFTERWARDS: Duration = Duration::from_secs(20);

pub(crate) async fn free_blocks(cluster: &Cluster, node: NodeId) -> u64 {
    let asked = meta::client::ask(&cluster.application(0), node, GetSpace {}).await;
    asked.expect("the node is there").free_blocks
}

/// Writes blocks from `first` on once, whatever comes of it.
pub(crate) async fn try_write(
    cluster: &Cluster,
    file: Handle,
    first: u64,
    blocks: usize,
) -> Result<u64, Error> {
    let data = vec![Bytes::from(vec![7; blocks * BLOCK as usize])];
    let (who, offset) = (Credentials::root(), first * BLOCK);
    let call = Write { who, file, offset, data, durable: false };
    fileio::client::ask(&cluster.application(0), call).await.map(|written| written.write_verifier)
}

/// What a cache that is away cannot be told to forget is given back when it is there again, not at
/// the next mount. (The rounds of faults of `tests/tests/cluster` found it: they ran out of space.)
#[test]
fn blocks_of_writes_that_failed_come_back() {
    let cluster = Cluster::new(71);
    let world = cluster.world.clone();
    let [here, away] = [0, 2].map(NodeId::fs);
    world.run(async {
        let file = cluster.create(here).await;
        let before = free_blocks(&cluster, here).await;
        world.network().partition(&[here], &[away]);
        for _ in 0..4 {
            let failed = try_write(&cluster, file, 0, 64).await;
            assert!(failed.is_err(), "a third of it cannot be cached");
        }
        world.network().heal();
        cluster.pass(AFTERWARDS).await;
        assert_eq!(free_blocks(&cluster, here).await, before);
    });
}
