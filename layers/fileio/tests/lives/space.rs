//! Space comes back while a node lives on, though another one was away when it was to be freed, and however
//! often the node itself starts again.

use std::time::Duration;

use bytes::Bytes;
use fileio::protocol::{
    CallId, Credentials, Error, Handle, Hold, LEASE, Name, ROOT, Remove, Write,
};
use meta::protocol::GetSpace;
use runtime::NodeId;

use crate::cluster::{BLOCK, Cluster, FS_NODES};

/// Longer than whoever asks a node that is away has patience, and until what failed is tried again.
const AFTERWARDS: Duration = Duration::from_secs(20);

/// What was removed, and is not waited for, is free by then.
const SOON: Duration = Duration::from_secs(1);

async fn free_blocks(cluster: &Cluster, node: NodeId) -> u64 {
    let asked = meta::client::ask(&cluster.application(0), node, GetSpace {}).await;
    asked.expect("the node is there").free_blocks
}

/// Writes once, whatever comes of it.
async fn try_write(cluster: &Cluster, file: Handle, blocks: usize) -> Result<u64, Error> {
    let data = vec![Bytes::from(vec![7; blocks * BLOCK as usize])];
    let call = Write { who: Credentials::root(), file, offset: 0, data, durable: false };
    fileio::client::ask(&cluster.application(0), call).await.map(|written| written.write_verifier)
}

/// What a cache that is away cannot be told to forget is given back when it is there again, not at the next
/// mount. (The rounds of faults of `tests/tests/cluster` found it: they ran out of space.)
#[test]
fn blocks_of_writes_that_failed_come_back() {
    let cluster = Cluster::new(71);
    let world = cluster.world.clone();
    let [here, away] = [0, 2].map(NodeId::fs);
    world.run(async {
        let file = cluster.create(here).await;
        let before = free_blocks(&cluster, here).await;
        world.partition(&[here], &[away]);
        for _ in 0..4 {
            let failed = try_write(&cluster, file, 64).await;
            assert!(failed.is_err(), "a third of it cannot be cached");
        }
        world.heal();
        cluster.pass(AFTERWARDS).await;
        assert_eq!(free_blocks(&cluster, here).await, before);
    });
}

/// A file of 64 blocks with this name, whose inode is on the node of its name.
async fn make(cluster: &Cluster, number: u64, name: &Name) -> Handle {
    let file = cluster.make(CallId { client: 1, number }, name).await;
    cluster.write(file, 0, &[7; 64]).await;
    cluster.commit(file).await;
    file
}

async fn remove(cluster: &Cluster, number: u64, name: &Name) {
    let (who, call) = (Credentials::root(), CallId { client: 1, number });
    let remove = Remove { who, call, directory: ROOT, name: name.clone(), durable: true };
    cluster.ask(remove).await;
}

/// A node that has started waits for those who had files open, but only with files that they can have open: what
/// is made and removed while it waits is gone at once. (The rounds of faults ran out of space: a node that starts
/// again every few seconds freed nothing at all.)
#[test]
fn what_was_made_after_a_start_is_not_kept_for_those_who_came_before() {
    let cluster = Cluster::new(72);
    let world = cluster.world.clone();
    let here = NodeId::fs(0);
    let name = |number: u32| Name::new(number.to_string().into_bytes()).expect("a name");
    let is_here = |name: &Name| meta::hash::name_node(ROOT.ino, name, FS_NODES) == here;
    let names: Vec<Name> = (0..).map(name).filter(is_here).take(2).collect();
    let [old, young] = [&names[0], &names[1]];
    world.run(async {
        let file = make(&cluster, 1, old).await;
        // It may be open from here on.
        cluster.ask(Hold { call: CallId { client: 1, number: 2 }, file }).await;
        cluster.restart(here).await;
        let before = free_blocks(&cluster, here).await;
        make(&cluster, 3, young).await;
        assert!(free_blocks(&cluster, here).await + 64 <= before);
        remove(&cluster, 4, young).await;
        cluster.pass(SOON).await;
        assert_eq!(free_blocks(&cluster, here).await, before);
        remove(&cluster, 5, old).await;
        cluster.pass(SOON).await;
        assert_eq!(free_blocks(&cluster, here).await, before);
        cluster.pass(LEASE).await;
        assert_eq!(free_blocks(&cluster, here).await, before + 64);
    });
}
