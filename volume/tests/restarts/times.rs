//! By the times of a file its clients know whether the content is as it was: they are others after
//! each change, whatever the clock of the node does.

use std::collections::BTreeSet;

use bytes::Bytes;
use fileio::protocol::*;
use futures::future::join;
use runtime::NodeId;

use super::cluster::{BLOCK, Cluster};

const HOME: NodeId = NodeId::fs(1);
const ROUNDS: u64 = 40;

fn root() -> Credentials {
    Credentials::root()
}

fn block() -> Vec<Bytes> {
    vec![vec![1; BLOCK as usize].into()]
}

fn changed(file: Handle, change: Change) -> SetAttributes {
    SetAttributes { who: root(), file, change, only_if_ctime: None, durable: false }
}

#[test]
fn each_change_has_another_time_though_the_clock_is_set_back() {
    let cluster = Cluster::new(90);
    let world = cluster.world.clone();
    world.run(async {
        let file = cluster.create(HOME).await;
        let write = |offset| Write { who: root(), file, offset, data: block(), durable: false };
        let mut seen = BTreeSet::from([cluster.ask(write(0)).await.attributes.ctime]);
        world.node(HOME).jump_clock(-3600);
        for round in 0..4 {
            let mut is_new = |what: &str, ctime: Time| {
                assert!(seen.insert(ctime), "{what} in round {round}: {ctime:?} again");
            };
            let written = cluster.ask(write(round * BLOCK)).await;
            is_new("write", written.attributes.ctime);
            let size = Change { size: Some(BLOCK / 2), ..Change::default() };
            is_new("cut", cluster.ask(changed(file, size)).await.ctime);
            let longer = Change { size: Some(9 * BLOCK), ..Change::default() };
            is_new("lengthening", cluster.ask(changed(file, longer)).await.ctime);
            let (offset, length) = (0, 4 * BLOCK);
            let punch = PunchHole { who: root(), file, offset, length, durable: false };
            is_new("hole", cluster.ask(punch).await.attributes.ctime);
            let mode = Change { mode: Some(0o600), ..Change::default() };
            let mode = cluster.ask(changed(file, mode)).await.ctime;
            is_new("mode", mode);
        }
    });
}

#[test]
fn a_change_with_a_guard_is_refused_if_a_write_comes_before_it() {
    let cluster = Cluster::new(91);
    let world = cluster.world.clone();
    world.run(async {
        let file = cluster.create(HOME).await;
        let mut outcomes = [0, 0];
        for round in 0..ROUNDS {
            let ctime = cluster.ask(GetAttributes { file }).await.ctime;
            let change = Change { mode: Some(0o600), ..Change::default() };
            let guarded = SetAttributes { only_if_ctime: Some(ctime), ..changed(file, change) };
            let write = Write {
                who: root(),
                file,
                offset: round % 4 * BLOCK,
                data: block(),
                durable: false,
            };
            let (guarded, written) = join(cluster.ask_for(guarded), cluster.ask(write)).await;
            let before = written.before.unwrap().ctime;
            outcomes[usize::from(guarded.is_ok())] += 1;
            match guarded {
                Ok(changed) => assert_eq!(before, changed.ctime, "round {round}"),
                Err(error) => assert_eq!((error, before), (Error::Changed {}, ctime)),
            }
        }
        assert!(outcomes.iter().sum::<u64>() == ROUNDS, "{outcomes:?}");
    });
}
