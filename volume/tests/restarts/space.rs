//! Space comes back while a node lives on, though another one was away when it was to be freed.

use std::time::Duration;

use bytes::Bytes;
use fileio::protocol::{CallId, Credentials, Error, Handle, SetXattr, Write, XattrMode, XattrName};
use meta::protocol::GetSpace;
use runtime::NodeId;

use crate::cluster::{BLOCK, Cluster};
use crate::groups::free_blocks_in_all;

/// Longer than the retries at a node that is down, and until what failed is tried again.
pub(crate) const AFTERWARDS: Duration = Duration::from_secs(20);

/// Extended attributes of a file, which have most of what they may have.
const XATTRS: u64 = 7;
const XATTR_BYTES: usize = 8 << 10;

pub(crate) async fn free_blocks(cluster: &Cluster, node: NodeId) -> u64 {
    let asked = meta::client::ask(&cluster.application(0), node, GetSpace { unit: 1 }).await;
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

async fn set_xattr(cluster: &Cluster, file: Handle, number: u64) -> Result<(), Error> {
    let (who, call) = (Credentials::root(), CallId { client: 3, number });
    let name = XattrName::new(format!("user.{}", number % 10).into_bytes()).expect("a name");
    let (value, mode) = (vec![5; XATTR_BYTES], XattrMode::Either {});
    let call = SetXattr { who, call, file, name, value, mode, durable: false };
    cluster.ask_for(call).await.map(drop)
}

/// Extended attributes are metadata of one node, which takes groups of blocks from others as files
/// do: before the volume is full nothing fails, and on a full one everything can be committed and
/// removed. (Hostile frames found it: a node full of metadata could not commit its files, while the
/// others had 174 of 412 MiB.)
#[test]
fn a_node_full_of_metadata_gets_space_from_the_others_and_can_always_commit_and_remove() {
    let cluster = Cluster::new(74);
    let world = cluster.world.clone();
    let home = NodeId::fs(1);
    world.run(async {
        let written = cluster.create(home).await;
        let before = free_blocks_in_all(&cluster).await;
        let mut made = Vec::new();
        let mut number = 1000;
        let full: Error = loop {
            number += 100;
            let filled = async {
                let file = cluster.try_create_from(home, number).await?;
                made.push(number);
                for index in 0..XATTRS {
                    set_xattr(&cluster, file, number * 10 + index).await?;
                }
                Ok(())
            };
            if let Err(error) = filled.await {
                break error;
            }
            // There is always something to commit.
            try_write(&cluster, written, 0, 1).await.expect("its block is there");
        };
        assert_eq!(full, Error::NoSpace {});
        let left = free_blocks_in_all(&cluster).await;
        // Each node keeps what it needs itself, twice.
        assert!(left < before / 2, "{left} of {before} blocks are free");
        cluster.commit(written).await;
        for first in made.split_off(made.len() / 2) {
            cluster.remove_from(home, first).await;
        }
        cluster.commit(written).await;
        cluster.pass(AFTERWARDS).await;
        cluster.power_cut().await;
        assert!(free_blocks_in_all(&cluster).await > left, "space came back");
    });
}
