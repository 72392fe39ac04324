//! Reading ahead, in virtual time: a cold file is read faster in sequence than here and there, also
//! by several ranks of which each reads its own part.

use std::time::Duration;

use runtime::NodeId;

use crate::cluster::{BLOCK, Cluster};

/// Blocks of one read: a stripe.
const READ: u64 = 4;
/// Reads of the whole file, 2 MiB.
const READS: u64 = 128;
/// Ranks that read a file at once, each a part of it.
const RANKS: u64 = 8;
/// Odd, so that its multiples are all reads in another order.
const STRIDE: u64 = 37;

/// How long it takes to read a cold file by stripes, in an order.
fn time(order: impl Fn(u64) -> u64) -> Duration {
    let cluster = Cluster::new(90);
    let world = cluster.world.clone();
    world.run(async {
        let file = cluster.create(NodeId::fs(1)).await;
        let content: Vec<u64> = (1..=READ * READS).collect();
        cluster.write(file, 0, &content).await;
        cluster.commit(file).await;
        cluster.power_cut().await;
        let start = cluster.world.now();
        for i in 0..READS {
            let first = order(i) % READS * READ;
            let expected: Vec<u64> = (first + 1..=first + READ).collect();
            assert_eq!(cluster.read(file, first, READ).await, expected);
        }
        assert_eq!(cluster.size(file).await, READ * READS * BLOCK);
        cluster.world.now().saturating_sub(start)
    })
}

#[test]
fn a_cold_file_is_read_faster_in_sequence_than_here_and_there() {
    let (sequence, here_and_there) = (time(|i| i), time(|i| i * STRIDE));
    println!("in sequence {sequence:?}, here and there {here_and_there:?}");
    assert!(4 * sequence <= 3 * here_and_there, "{sequence:?} and {here_and_there:?}");
}

#[test]
fn ranks_that_each_read_a_part_of_a_cold_file_are_faster_than_reads_here_and_there() {
    let ranks = time(|i| i % RANKS * (READS / RANKS) + i / RANKS);
    let here_and_there = time(|i| i * STRIDE);
    println!("{RANKS} ranks in turn {ranks:?}, here and there {here_and_there:?}");
    assert!(4 * ranks <= 3 * here_and_there, "{ranks:?} and {here_and_there:?}");
}
