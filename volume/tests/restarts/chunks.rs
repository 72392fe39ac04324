//! A reader of a chunk that is being changed sees it as it was or as it will be, and nothing half,
//! although what it consists of is in the caches of several nodes.

use std::cell::Cell;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use fileio::protocol::{
    Change, Credentials, Handle, PunchHole, ROOT, Read, SetAttributes, SetTime, Time, Write,
};
use futures::future::join;
use machine_emu::LinkTiming;
use runtime::NodeId;
use runtime::seed::Rng;

use crate::cluster::{Cluster, FS_NODES, STRIPE_SIZE};
use crate::tree::Tree;

const CHUNK: usize = STRIPE_SIZE as usize;
const CHUNKS: u64 = 24;
/// Chunks that are changed, one after the other.
const CHANGES: u64 = 400;
/// The hole that is made in a chunk: parts of its first and its last block stay.
const HOLE: Range<usize> = 2048..CHUNK - 2048;
/// Between two looks.
const PAUSE: Duration = Duration::from_micros(5);

/// A file at node 0, and what happens to it.
struct Changes<'a> {
    cluster: &'a Cluster,
    file: Handle,
    rng: Rng,
}

impl Changes<'_> {
    /// Writes all of a chunk.
    async fn write(&self, offset: u64, word: u64) {
        let data = vec![Bytes::from(word.to_le_bytes().repeat(CHUNK / 8))];
        let (who, file) = (Credentials::root(), self.file);
        self.cluster.ask(Write { who, file, offset, data, durable: false }).await;
    }

    async fn punch(&self, offset: u64) {
        let (offset, length) = (offset + HOLE.start as u64, HOLE.len() as u64);
        let (who, file) = (Credentials::root(), self.file);
        self.cluster.ask(PunchHole { who, file, offset, length, durable: false }).await;
    }

    /// Reads a chunk again and again, until the writer `is_done`: it is one of the `possible` ones.
    async fn look(&self, offset: u64, possible: &[Vec<u8>; 2], is_done: &Cell<bool>) {
        while !is_done.get() {
            let (who, file) = (Credentials::root(), self.file);
            let read = Read { who, file, offset, length: STRIPE_SIZE };
            let found = self.cluster.ask(read).await.data.concat();
            assert!(possible.contains(&found), "a chunk at {offset} is half changed");
            self.cluster.pass(PAUSE).await;
        }
    }

    /// Writes a chunk, and changes it during reads.
    async fn change(&mut self, other: Handle) {
        let offset = self.rng.below(CHUNKS) * CHUNK as u64;
        let (before, after) = (self.rng.bits() | 1, self.rng.bits() | 1);
        self.write(offset, before).await;
        if self.rng.chance(2, 3) {
            self.cluster.commit(self.file).await;
        }
        // What is written next begins anywhere in a stripe.
        for _ in 0..self.rng.below(4) {
            self.cluster.write(other, self.rng.below(CHUNKS), &[1]).await;
        }
        let punches = self.rng.chance(2, 3);
        let old = before.to_le_bytes().repeat(CHUNK / 8);
        let mut new = after.to_le_bytes().repeat(CHUNK / 8);
        if punches {
            new.clone_from(&old);
            new[HOLE].fill(0);
        }
        let is_done = Cell::new(false);
        let changing = async {
            if punches {
                self.punch(offset).await;
            } else {
                self.write(offset, after).await;
            }
            is_done.set(true);
        };
        join(changing, self.look(offset, &[old, new], &is_done)).await;
    }
}

/// Nodes take long to tell each other anything, so that there is time to look while one has half of
/// it.
fn slow_links(cluster: &Cluster) {
    let timing = LinkTiming { latency_ns: 300_000, picoseconds_per_byte: 100, tcp: None };
    for (from, to) in (0..FS_NODES).flat_map(|from| (0..FS_NODES).map(move |to| (from, to))) {
        if from != to {
            cluster.world.network().slow_link(NodeId::fs(from), NodeId::fs(to), timing);
        }
    }
}

/// A read needs no new atime if the atime lies in the future: memory answers it, if it has
/// everything.
async fn is_read_in_the_future(cluster: &Cluster, file: Handle) {
    let atime = Some(SetTime::To { time: Time { seconds: 1 << 40, nanos: 0 } });
    let change = Change { atime, ..Change::default() };
    let (who, only_if_ctime, durable) = (Credentials::root(), None, false);
    cluster.ask(SetAttributes { who, file, change, only_if_ctime, durable }).await;
}

#[test]
fn a_chunk_that_is_changed_is_seen_as_it_was_or_as_it_will_be() {
    let cluster = Cluster::new(100);
    let world = cluster.world.clone();
    world.run(async {
        let tree = Tree::new(&cluster);
        let [file, other] = [(); 2].map(|()| tree.place(ROOT, NodeId::fs(0)));
        let (file, other) = (tree.create(&file, true).await, tree.create(&other, true).await);
        let mut changes = Changes { cluster: &cluster, file, rng: Rng::new(100) };
        changes.write((CHUNKS - 1) * CHUNK as u64, 1).await;
        slow_links(&cluster);
        is_read_in_the_future(&cluster, file).await;
        for _ in 0..CHANGES {
            changes.change(other).await;
        }
    });
}
