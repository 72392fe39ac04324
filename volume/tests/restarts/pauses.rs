//! The restart of a node is a pause for who asks another one, which needs it.

use std::time::Duration;

use fileio::client::send_with_retries;
use fileio::protocol::*;
use futures::future::join;
use machine_emu::LinkTiming;
use runtime::{Call, NodeId};

use crate::cluster::Cluster;
use crate::tree::Tree;

/// The node that is asked.
const ASKED: NodeId = NodeId::fs(0);
/// The node that it asks, which restarts.
const NEEDED: NodeId = NodeId::fs(1);

/// Of those that are asked while the other node is down, about half are lost.
const ROUNDS: u64 = 8;

/// What programs get that ask as clients do, while a request of the one node to the other is on its
/// way and that node dies. It comes back after a while.
async fn asked_during_restart<C>(cluster: &Cluster, call: C) -> Result<C::Reply, Error>
where
    C: Call<Protocol = FileIo> + Clone,
{
    let slow = LinkTiming { latency_ns: 500_000, picoseconds_per_byte: 100, tcp: None };
    cluster.world.network().slow_link(ASKED, NEEDED, slow);
    let restarting = async {
        cluster.pass(Duration::from_micros(300)).await;
        cluster.world.crash(NEEDED);
        cluster.pass(Duration::from_millis(2)).await;
        cluster.world.network().reset_links();
        cluster.restart(NEEDED).await;
    };
    let client = cluster.application(0);
    join(send_with_retries(&client, call), restarting).await.0
}

#[test]
fn a_file_is_opened_by_its_name_while_the_node_of_its_inode_restarts() {
    let cluster = Cluster::new(120);
    let world = cluster.world.clone();
    world.run(async {
        let tree = Tree::new(&cluster);
        let place = tree.place(ROOT, ASKED);
        let file = tree.file(&place, NEEDED).await;
        let (directory, name) = place;
        for round in 0..ROUNDS {
            let (who, call) = (Credentials::root(), tree.call());
            let open = Open { who, call, directory, name: name.clone() };
            let opened = asked_during_restart(&cluster, open).await;
            let opened = opened.unwrap_or_else(|error| panic!("round {round}: {error}"));
            assert_eq!(opened.attributes.ino, file.ino);
            let close = CloseHandle { call, file };
            assert_eq!(cluster.ask_for(close).await, Ok(()));
        }
    });
}

#[test]
fn space_is_allocated_while_another_node_restarts() {
    let cluster = Cluster::new(121);
    let world = cluster.world.clone();
    world.run(async {
        let file = cluster.create(ASKED).await;
        for round in 0..ROUNDS {
            let (who, length) = (Credentials::root(), 1 + round);
            let call = Allocate { who, file, offset: 0, length, keep_size: false, durable: false };
            let allocated = asked_during_restart(&cluster, call).await;
            let allocated = allocated.unwrap_or_else(|error| panic!("round {round}: {error}"));
            assert_eq!(allocated.size, length);
        }
    });
}
