//! Clients write again what was lost: in any order among each other, and no later change is undone.

use std::time::Duration;

use bytes::Bytes;
use fileio::protocol::*;
use runtime::NodeId;

use super::cluster::{BLOCK, Cluster};

/// Where the file of a test is.
const HOME: NodeId = NodeId::fs(1);

fn block(number: u64) -> Vec<Bytes> {
    vec![number.to_le_bytes().repeat(BLOCK as usize / 8).into()]
}

/// One write, as its client keeps it.
struct AnsweredWrite {
    first: u64,
    numbers: Vec<u64>,
    order: u64,
    sequence: u64,
    write_verifier: u64,
}

async fn write(cluster: &Cluster, file: Handle, first: u64, numbers: &[u64]) -> AnsweredWrite {
    let data: Vec<Bytes> = numbers.iter().flat_map(|&number| block(number)).collect();
    let (who, offset) = (Credentials::root(), first * BLOCK);
    let written = cluster.ask(Write { who, file, offset, data, durable: false }).await;
    let WriteResult { sequence, write_verifier, .. } = written;
    AnsweredWrite { first, numbers: numbers.to_vec(), order: sequence, sequence, write_verifier }
}

async fn replay(
    cluster: &Cluster,
    file: Handle,
    kept: &AnsweredWrite,
) -> Result<WriteResult, Error> {
    let data: Vec<Bytes> = kept.numbers.iter().flat_map(|&number| block(number)).collect();
    let &AnsweredWrite { order, sequence, .. } = kept;
    let (who, offset, is_append) = (Credentials::root(), kept.first * BLOCK, false);
    cluster.ask_for(ReplayWrite { who, file, offset, data, order, sequence, is_append }).await
}

async fn append(cluster: &Cluster, file: Handle, number: u64, again: bool) -> Appended {
    let (who, call) = (Credentials::root(), CallId { client: 5, number });
    let data = block(number);
    let (acknowledged, only_if_verifier) = (number, None);
    cluster.ask(Append { who, call, again, acknowledged, only_if_verifier, file, data }).await
}

#[test]
fn an_append_whose_reply_was_lost_in_a_crash_is_done_once() {
    let cluster = Cluster::new(80);
    let world = cluster.world.clone();
    world.run(async {
        let file = cluster.create(HOME).await;
        assert_eq!(append(&cluster, file, 1, false).await.offset, 0);
        cluster.commit(file).await;
        assert_eq!(append(&cluster, file, 2, false).await.offset, BLOCK);
        cluster.restart(HOME).await;
        // The first is recorded, the second is lost with all that was not.
        assert_eq!(append(&cluster, file, 1, true).await.offset, 0);
        assert_eq!(cluster.size(file).await, BLOCK);
        assert_eq!(append(&cluster, file, 2, true).await.offset, BLOCK);
        assert_eq!(append(&cluster, file, 2, true).await.offset, BLOCK);
        cluster.power_cut().await;
        assert_eq!(append(&cluster, file, 1, true).await.offset, 0);
    });
}

#[test]
fn an_append_that_was_rolled_back_is_not_recorded_as_done() {
    let cluster = Cluster::new(81);
    let world = cluster.world.clone();
    world.run(async {
        let file = cluster.create(HOME).await;
        write(&cluster, file, 0, &[9; 24]).await;
        cluster.commit(file).await;
        assert_eq!(append(&cluster, file, 1, false).await.offset, 24 * BLOCK);
        append(&cluster, file, 2, false).await;
        // All caches but the one with the inode: some have content of the appends.
        cluster.restart(NodeId::fs(0)).await;
        cluster.restart(NodeId::fs(2)).await;
        cluster.commit(file).await;
        let size = cluster.size(file).await;
        cluster.restart(HOME).await;
        let again = append(&cluster, file, 1, true).await;
        let is_there = size > 24 * BLOCK;
        assert_eq!(again.offset, 24 * BLOCK);
        assert_eq!(cluster.size(file).await, if is_there { size } else { 25 * BLOCK });
        assert_eq!(cluster.read(file, 24, 1).await, [1]);
    });
}

#[test]
fn an_append_that_was_lost_does_not_share_its_place_with_a_later_one() {
    let cluster = Cluster::new(87);
    let world = cluster.world.clone();
    world.run(async {
        let file = cluster.create(HOME).await;
        let lost = append(&cluster, file, 1, false).await;
        cluster.restart(HOME).await;
        assert_eq!(append(&cluster, file, 2, false).await.offset, lost.offset);
        let (who, sequence) = (Credentials::root(), lost.written.sequence);
        let (offset, data, is_append) = (lost.offset, block(1), true);
        let order = sequence;
        let again = ReplayWrite { who, file, offset, data, order, sequence, is_append };
        assert_eq!(cluster.ask_for(again).await.err(), Some(Error::Changed {}));
        assert_eq!(cluster.read(file, 0, 1).await, [2]);
    });
}

#[test]
fn lost_writes_come_back_in_their_order_however_they_are_sent_again() {
    let cluster = Cluster::new(82);
    let world = cluster.world.clone();
    world.run(async {
        let file = cluster.create(HOME).await;
        let durable = write(&cluster, file, 0, &[1, 1, 1, 1, 1, 1]).await;
        cluster.commit(file).await;
        let first = write(&cluster, file, 0, &[2, 2, 2]).await;
        let second = write(&cluster, file, 2, &[3, 3, 3]).await;
        assert!(durable.sequence < first.sequence && first.sequence < second.sequence);
        cluster.restart(HOME).await;
        assert_eq!(cluster.read(file, 0, 6).await, [1; 6]);
        // A new write comes before any of the lost ones.
        let new = write(&cluster, file, 4, &[4, 4]).await;
        assert!(second.sequence < new.sequence && new.write_verifier != second.write_verifier);
        let kept = replay(&cluster, file, &durable).await.expect("it can be ordered");
        assert_eq!(kept.sequence, durable.sequence, "it is durable");
        assert_eq!(cluster.read(file, 0, 6).await, [1, 1, 1, 1, 4, 4]);
        let again = replay(&cluster, file, &second).await.expect("it can be ordered");
        assert!(again.sequence > new.sequence, "what it has written is lost or durable with it");
        assert_eq!(cluster.read(file, 0, 6).await, [1, 1, 3, 3, 4, 4]);
        replay(&cluster, file, &first).await.expect("it can be ordered");
        assert_eq!(cluster.read(file, 0, 6).await, [2, 2, 3, 3, 4, 4]);
        // Once more, after a reply that was lost.
        replay(&cluster, file, &second).await.expect("it can be ordered");
        replay(&cluster, file, &first).await.expect("it can be ordered");
        assert_eq!(cluster.commit(file).await, new.write_verifier);
        cluster.power_cut().await;
        assert_eq!(cluster.read(file, 0, 6).await, [2, 2, 3, 3, 4, 4]);
    });
}

#[test]
fn a_replay_ends_at_a_cut_and_does_not_fill_a_hole() {
    let cluster = Cluster::new(83);
    let world = cluster.world.clone();
    world.run(async {
        let file = cluster.create(HOME).await;
        let lost = write(&cluster, file, 0, &[1, 1, 1, 1]).await;
        cluster.restart(HOME).await;
        assert_eq!(cluster.size(file).await, 0);
        let (who, size) = (Credentials::root(), Some(3 * BLOCK));
        let change = Change { size, ..Change::default() };
        let cut =
            SetAttributes { who: who.clone(), file, change, only_if_ctime: None, durable: false };
        cluster.ask(cut).await;
        let hole = PunchHole { who, file, offset: BLOCK, length: BLOCK, durable: false };
        cluster.ask(hole).await;
        replay(&cluster, file, &lost).await.expect("it can be ordered");
        assert_eq!(cluster.size(file).await, 3 * BLOCK);
        assert_eq!(cluster.read(file, 0, 3).await, [1, 0, 1]);
    });
}

#[test]
fn a_cut_before_a_crash_covers_the_writes_before_it() {
    let cluster = Cluster::new(84);
    let world = cluster.world.clone();
    world.run(async {
        let file = cluster.create(HOME).await;
        let cut_off = write(&cluster, file, 0, &[1, 1, 1, 1]).await;
        let change = Change { size: Some(BLOCK), ..Change::default() };
        let (who, only_if_ctime) = (Credentials::root(), None);
        cluster.ask(SetAttributes { who, file, change, only_if_ctime, durable: true }).await;
        cluster.restart(HOME).await;
        replay(&cluster, file, &cut_off).await.expect("it can be ordered");
        assert_eq!(cluster.size(file).await, BLOCK);
        assert_eq!(cluster.read(file, 0, 1).await, [1]);
    });
}

#[test]
fn writes_of_a_file_that_was_rolled_back_come_back() {
    let cluster = Cluster::new(85);
    let world = cluster.world.clone();
    world.run(async {
        let file = cluster.create(HOME).await;
        write(&cluster, file, 0, &[1; 40]).await;
        cluster.commit(file).await;
        let first = write(&cluster, file, 0, &[2; 40]).await;
        let second = write(&cluster, file, 10, &[3; 10]).await;
        // It has lost a third of the content.
        cluster.restart(NodeId::fs(2)).await;
        assert_ne!(cluster.commit(file).await, second.write_verifier);
        assert_eq!(cluster.read(file, 0, 40).await, [1; 40]);
        replay(&cluster, file, &second).await.expect("it can be ordered");
        replay(&cluster, file, &first).await.expect("it can be ordered");
        let expected = [[2; 10].as_slice(), &[3; 10], &[2; 20]].concat();
        assert_eq!(cluster.read(file, 0, 40).await, expected);
        cluster.commit(file).await;
        cluster.restart(HOME).await;
        assert_eq!(cluster.read(file, 0, 40).await, expected);
    });
}

#[test]
fn writes_without_a_known_order_are_reported_as_lost() {
    let cluster = Cluster::new(86);
    let world = cluster.world.clone();
    world.run(async {
        let file = cluster.create(HOME).await;
        write(&cluster, file, 0, &[1]).await;
        cluster.commit(file).await;
        let lost = write(&cluster, file, 0, &[2]).await;
        cluster.restart(HOME).await;
        // Another client writes and commits; then all order among these two is gone.
        write(&cluster, file, 1, &[3]).await;
        cluster.commit(file).await;
        cluster.restart(HOME).await;
        assert_eq!(replay(&cluster, file, &lost).await.err(), Some(Error::LostWrites {}));
        // Untouched since, and late, it is taken.
        let file = cluster.create_from(HOME, 1000).await;
        let late = write(&cluster, file, 0, &[2, 2]).await;
        let later = write(&cluster, file, 1, &[3]).await;
        cluster.restart(HOME).await;
        cluster.pass(Duration::from_mins(2)).await;
        replay(&cluster, file, &later).await.expect("it can be ordered");
        replay(&cluster, file, &late).await.expect("it can be ordered");
        assert_eq!(cluster.read(file, 0, 2).await, [2, 3]);
        // Touched since, and late, it is not.
        let file = cluster.create_from(HOME, 2000).await;
        let late = write(&cluster, file, 0, &[2]).await;
        cluster.restart(HOME).await;
        cluster.pass(Duration::from_mins(2)).await;
        write(&cluster, file, 1, &[3]).await;
        assert_eq!(replay(&cluster, file, &late).await.err(), Some(Error::LostWrites {}));
    });
}
