//! A node that has started waits for those who had files open before, but only with files that they
//! can have open.

use std::time::Duration;

use fileio::protocol::{
    ByteRange, CallId, CloseHandle, Credentials, Error, Handle, LEASE, Lock, LockKind, LockOwner,
    LockResult, Name, OpenHandle, ROOT, Remove, Renew,
};
use runtime::NodeId;
use runtime::protocol::Undelivered;

use crate::cluster::{Cluster, FS_NODES};
use crate::space::{free_blocks, try_write};

/// What was removed, and is not waited for, is free by then.
const SOON: Duration = Duration::from_secs(1);

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

/// The node that starts again.
const HERE: NodeId = NodeId::fs(0);

/// Two names of the root that are on one node.
pub(crate) fn two_names_at(node: NodeId) -> [Name; 2] {
    let name = |number: u32| Name::new(number.to_string().into_bytes()).expect("a name");
    let is_there = |name: &Name| meta::hash::name_node(ROOT.ino, name, FS_NODES) == node;
    let mut names = (0..).map(name).filter(is_there);
    [(); 2].map(|()| names.next().expect("names do not end"))
}

async fn hold(cluster: &Cluster, number: u64, file: Handle) -> u64 {
    cluster.ask(OpenHandle::unjudged(CallId { client: 1, number }, file)).await.lease
}

/// Opens the file and locks all of it.
async fn lock(cluster: &Cluster, number: u64, file: Handle, reclaim: bool) -> LockResult {
    let lease = hold(cluster, number, file).await;
    let (owner, range) = (LockOwner { client: 1, id: 1 }, ByteRange::ALL);
    let kind = LockKind::Exclusive {};
    cluster.ask(Lock { file, owner, range, kind, lease, reclaim }).await
}

/// What is made and removed in a grace is gone at once. (The rounds of faults ran out of space: a
/// node that starts again every few seconds freed nothing at all.)
#[test]
fn what_was_made_after_a_start_is_not_kept_for_those_who_came_before() {
    let cluster = Cluster::new(72);
    let world = cluster.world.clone();
    let [old, young] = two_names_at(HERE);
    world.run(async {
        let file = make(&cluster, 1, &old).await;
        // It may be open from here on.
        hold(&cluster, 2, file).await;
        cluster.restart(HERE).await;
        let before = free_blocks(&cluster, HERE).await;
        make(&cluster, 3, &young).await;
        assert!(free_blocks(&cluster, HERE).await + 64 <= before);
        remove(&cluster, 4, &young).await;
        cluster.pass(SOON).await;
        assert_eq!(free_blocks(&cluster, HERE).await, before);
        remove(&cluster, 5, &old).await;
        cluster.pass(SOON).await;
        assert_eq!(free_blocks(&cluster, HERE).await, before);
        cluster.pass(LEASE).await;
        assert_eq!(free_blocks(&cluster, HERE).await, before + 64);
    });
}

#[test]
fn what_was_made_after_a_start_can_be_locked_at_once() {
    let cluster = Cluster::new(73);
    let world = cluster.world.clone();
    let [old, young] = two_names_at(HERE);
    world.run(async {
        let old = make(&cluster, 1, &old).await;
        assert_eq!(lock(&cluster, 2, old, false).await, LockResult::Granted {});
        cluster.restart(HERE).await;
        let young = make(&cluster, 3, &young).await;
        assert_eq!(lock(&cluster, 4, young, false).await, LockResult::Granted {});
        assert_eq!(
            lock(&cluster, 5, young, true).await,
            LockResult::Late {},
            "no client had it before"
        );
        assert_eq!(lock(&cluster, 6, old, false).await, LockResult::Grace {});
        assert_eq!(lock(&cluster, 7, old, true).await, LockResult::Granted {});
        cluster.pass(LEASE).await;
        assert_eq!(lock(&cluster, 8, old, false).await, LockResult::Granted {});
    });
}

/// That a file may be open is durable before it is open.
#[test]
fn a_file_outlives_its_name_if_its_node_restarts_as_soon_as_it_is_open() {
    let cluster = Cluster::new(75);
    let world = cluster.world.clone();
    world.run(async {
        for (index, number) in (0..FS_NODES).zip((0..).step_by(4)) {
            let here = NodeId::fs(index);
            let [name, _] = two_names_at(here);
            let file = make(&cluster, number, &name).await;
            hold(&cluster, number + 2, file).await;
            cluster.restart(here).await;
            remove(&cluster, number + 1, &name).await;
            cluster.pass(SOON).await;
            // As clients do that are told that they are not known any more.
            hold(&cluster, number + 2, file).await;
            assert_eq!(cluster.read(file, 0, 64).await, [7; 64]);
        }
    });
}

/// Space that comes when a grace ends is worth waiting for.
#[test]
fn a_volume_that_waits_for_the_end_of_a_grace_is_busy_and_not_full() {
    const PIECE: usize = 64;
    let cluster = Cluster::new(74);
    let world = cluster.world.clone();
    let [old, other] = two_names_at(HERE);
    world.run(async {
        let file = make(&cluster, 1, &old).await;
        // More than is written in the end: the map of the other file takes some of it.
        cluster.write(file, PIECE as u64, &[7; PIECE]).await;
        cluster.commit(file).await;
        hold(&cluster, 2, file).await;
        let full = cluster.make(CallId { client: 1, number: 3 }, &other).await;
        let mut pieces = 0;
        let refusal = loop {
            match try_write(&cluster, full, pieces * PIECE as u64, PIECE).await {
                Ok(_) => pieces += 1,
                Err(error) => break error,
            }
            cluster.commit(full).await;
        };
        assert_eq!(refusal, Error::NoSpace {});
        cluster.restart(HERE).await;
        remove(&cluster, 4, &old).await;
        let end = pieces * PIECE as u64;
        let refusal = try_write(&cluster, full, end, PIECE).await;
        assert_eq!(refusal, Err(Undelivered::Busy.into()));
        cluster.pass(LEASE).await;
        assert!(try_write(&cluster, full, end, PIECE).await.is_ok());
    });
}

/// More clients than a node can know come and go within one lease. (Two kernels with one name made
/// each other begin anew, over and over, and after a while no client could open a file.)
#[test]
fn clients_without_open_files_do_not_keep_others_out() {
    const CLIENTS: u64 = 70_000;
    let cluster = Cluster::new(76);
    let world = cluster.world.clone();
    let [name, _] = two_names_at(HERE);
    world.run(async {
        let file = make(&cluster, 1, &name).await;
        let lease = hold(&cluster, 2, file).await;
        for client in 2..CLIENTS {
            cluster.ask(OpenHandle::unjudged(CallId { client, number: 1 }, file)).await;
            cluster.ask(CloseHandle { call: CallId { client, number: 2 }, file }).await;
        }
        assert!(
            cluster.ask(Renew { client: 1, lease }).await,
            "who has a file open is not forgotten"
        );
    });
}

/// As the processes of a large parallel program have.
#[test]
fn many_clients_have_one_file_open() {
    const CLIENTS: u64 = 6_000;
    let cluster = Cluster::new(77);
    let world = cluster.world.clone();
    let [name, _] = two_names_at(HERE);
    world.run(async {
        let file = make(&cluster, 1, &name).await;
        let lease = hold(&cluster, 1, file).await;
        for client in 2..CLIENTS {
            cluster.ask(OpenHandle::unjudged(CallId { client, number: 1 }, file)).await;
        }
        assert!(cluster.ask(Renew { client: 1, lease }).await, "it has the file open still");
    });
}
