//! What a program could tell of its ranks when it opens a file (which one this is, and of how
//! many), and what that would be worth: the file as it is written and read without, beside the best
//! that any hint could bring, in virtual time.

use std::time::Duration;

use fileio::protocol::{Credentials, Handle, Read, ReadList, Regions, Write, WriteList};
use futures::future::join_all;
use meta::protocol::Map;
use runtime::NodeId;
use runtime::seed::Rng;

use crate::cluster::{BLOCK, Cluster, STRIPE_SIZE};

const RANKS: u64 = 8;
/// Blocks of the file: 3 MiB.
const BLOCKS: u64 = 768;
const SEEDS: [u64; 5] = [90, 91, 92, 93, 94];

/// Which pieces are under way at the same time: one of each rank.
type Turns = Vec<Vec<u64>>;

/// Each rank has every eighth piece. Who is first is another one in each turn.
fn strided(pieces: u64) -> Turns {
    let mut rng = Rng::new(39);
    let turn = |turn: u64| {
        let mut pieces: Vec<u64> = (0..RANKS).map(|rank| turn * RANKS + rank).collect();
        (1..pieces.len()).for_each(|last| pieces.swap(last, rng.index(last + 1)));
        pieces
    };
    (0..pieces / RANKS).map(turn).collect()
}

/// Each rank has a part of its own.
fn parts(pieces: u64) -> Turns {
    let turns = pieces / RANKS;
    (0..turns).map(|turn| (0..RANKS).map(|rank| rank * turns + turn).collect()).collect()
}

/// One program has all, with as many pieces under way.
fn in_sequence(pieces: u64) -> Turns {
    (0..pieces / RANKS).map(|turn| (turn * RANKS..(turn + 1) * RANKS).collect()).collect()
}

/// How long it takes to write a file by pieces of `piece` blocks and to make it durable, and to
/// read it again when nothing is cached: medians of some seeds, by which disks differ.
fn times(piece: u64, written: &Turns, read: &Turns) -> [Duration; 2] {
    let all = SEEDS.map(|seed| times_of(seed, piece, written, read));
    [0, 1].map(|which| {
        let mut times = all.map(|times| times[which]);
        times.sort_unstable();
        times[times.len() / 2]
    })
}

fn times_of(seed: u64, piece: u64, written: &Turns, read: &Turns) -> [Duration; 2] {
    let cluster = Cluster::new(seed);
    let world = cluster.world.clone();
    let content = |number: u64| (number * piece + 1..=(number + 1) * piece).collect::<Vec<u64>>();
    world.run(async {
        let file = cluster.create(NodeId::fs(1)).await;
        let start = cluster.world.now();
        for turn in written {
            let write =
                async |&number: &u64| cluster.write(file, number * piece, &content(number)).await;
            join_all(turn.iter().map(write)).await;
        }
        cluster.commit(file).await;
        let took_to_write = cluster.world.now().saturating_sub(start);
        cluster.power_cut().await;
        let start = cluster.world.now();
        for turn in read {
            let read = async |&number: &u64| {
                assert_eq!(cluster.read(file, number * piece, piece).await, content(number));
            };
            join_all(turn.iter().map(read)).await;
        }
        [took_to_write, cluster.world.now().saturating_sub(start)]
    })
}

#[test]
fn ranks_that_share_a_file_are_nearly_as_fast_as_one_program_and_need_not_say_who_they_are() {
    println!("blocks | written, read | to write | to read");
    for piece in [1, 3, 4, 16] {
        let pieces = BLOCKS / piece;
        let (strided, parts, whole) = (strided(pieces), parts(pieces), in_sequence(pieces));
        let row = |name: &str, written: &Turns, read: &Turns| {
            let took = times(piece, written, read);
            println!("{piece} | {name} | {:?} | {:?}", took[0], took[1]);
            took
        };
        let best = row("in sequence, in sequence", &whole, &whole);
        let shared = [
            // What a hint could mend: how they read,
            row("in sequence, strided", &whole, &strided),
            // where it was placed,
            row("strided, in sequence", &strided, &whole),
            // and both.
            row("strided, strided", &strided, &strided),
            row("parts, parts", &parts, &parts),
        ];
        for [to_write, to_read] in shared {
            assert!(4 * to_write <= 5 * best[0], "{to_write:?} and {:?} to write", best[0]);
            assert!(4 * to_read <= 5 * best[1], "{to_read:?} and {:?} to read", best[1]);
        }
    }
}

#[test]
fn a_rank_with_a_part_of_each_chunk_asks_each_stripe_once() {
    const CHUNK: u64 = 4 * BLOCK;
    const CHUNKS: u64 = 64;
    let cluster = Cluster::new(91);
    let world = cluster.world.clone();
    world.run(async {
        let file = cluster.create(NodeId::fs(1)).await;
        // A block of each chunk: what is written of four chunks fits one stripe.
        let regions = Regions::strided(2 * BLOCK, BLOCK, CHUNKS, CHUNK).expect("a vector");
        let content: Vec<u8> = (0..CHUNKS * BLOCK).map(|i| (i / 7) as u8).collect();
        let (who, skip, data) = (Credentials::root(), 0, content.clone().into());
        let write = WriteList { who, file, regions: regions.clone(), skip, data, durable: false };
        let before = cluster.world.counters().messages;
        cluster.ask(write).await;
        let written = cluster.world.counters().messages;
        let (who, length) = (Credentials::root(), content.len() as u32);
        let read = cluster.ask(ReadList { who, file, regions, skip, length }).await;
        let messages = [written - before, cluster.world.counters().messages - written];
        assert_eq!(read.data.concat(), content);
        println!("{CHUNKS} chunks: {messages:?} messages to write and to read");
        // One of the list itself, one for each stripe at another node; some is for the log and the
        // flushers.
        assert!(messages.iter().all(|&count| count <= CHUNKS / 2), "{messages:?}");
    });
}

#[test]
fn records_that_share_their_blocks_need_no_more_messages_than_whole_blocks() {
    const RECORDS: u64 = 64;
    // Each record ends in the middle of a block, where the next one begins.
    let messages = [BLOCK, BLOCK - 100].map(|length| {
        let cluster = Cluster::new(92);
        let world = cluster.world.clone();
        world.run(async {
            let file = cluster.create(NodeId::fs(1)).await;
            let before = cluster.world.counters().messages;
            for record in 0..RECORDS {
                let data = vec![vec![record as u8; length as usize].into()];
                let (who, offset) = (Credentials::root(), record * length);
                cluster.ask(Write { who, file, offset, data, durable: false }).await;
            }
            let written = cluster.world.counters().messages - before;
            let (who, offset, length) = (Credentials::root(), 0, RECORDS * length);
            let read = cluster.ask(Read { who, file, offset, length: length as u32 }).await;
            let content: Vec<u8> = (0..RECORDS)
                .flat_map(|record| vec![record as u8; (length / RECORDS) as usize])
                .collect();
            assert_eq!(read.data.concat(), content);
            written
        })
    });
    let [blocks, records] = messages;
    println!("{RECORDS} whole blocks: {blocks} messages; as many shorter records: {records}");
    // A record may lie across two chunks, which are in two stripes.
    assert!(records <= blocks + RECORDS / 2, "{messages:?}");
}

/// Chunks whose blocks are asked for at a time.
const CHUNKS_AT_ONCE: u32 = 64;

/// Chunks of a file, and how many of them have all their blocks in one stripe.
async fn in_one_stripe(cluster: &Cluster, node: NodeId, file: Handle, chunks: u64) -> (u64, u64) {
    let Handle { ino, generation } = file;
    let (mut all, mut whole) = (0, 0);
    while all < chunks {
        let call = Map { ino, generation, first: all, count: CHUNKS_AT_ONCE };
        let found = meta::client::ask(&cluster.application(0), node, call).await;
        let found = found.expect("the node is there");
        all += found.len() as u64;
        let stripe = |block: u64| block * BLOCK / u64::from(STRIPE_SIZE);
        let is_whole =
            |runs: &[u64]| runs.windows(2).all(|pair| stripe(pair[0]) == stripe(pair[1]));
        let starts = found.iter().map(|chunk| chunk.runs.iter().map(|run| run.start).collect());
        whole += starts.filter(|runs: &Vec<u64>| is_whole(runs)).count() as u64;
    }
    (all, whole)
}

/// More than what the node had of the volume: what others give it comes before it has to use what
/// is left between the blocks of others.
#[test]
fn a_chunk_is_in_one_stripe_although_several_have_written_it() {
    const RECORD: u64 = 3;
    const RECORDS: u64 = 720;
    const SPARSE: u64 = 300;
    let cluster = Cluster::new(93);
    let world = cluster.world.clone();
    world.run(async {
        let node = NodeId::fs(1);
        // A block of each chunk: room is left in their stripes.
        let sparse = cluster.create_from(node, 1000).await;
        for chunk in 1..=SPARSE {
            cluster.write(sparse, chunk * u64::from(STRIPE_SIZE) / BLOCK, &[chunk]).await;
        }
        let file = cluster.create(node).await;
        for turn in strided(RECORDS) {
            let write = async |&number: &u64| {
                let content: Vec<u64> = (0..RECORD).map(|i| number * RECORD + i + 1).collect();
                cluster.write(file, number * RECORD, &content).await
            };
            join_all(turn.iter().map(write)).await;
            cluster.pass(Duration::from_micros(300)).await;
        }
        let chunks = RECORD * RECORDS * BLOCK / u64::from(STRIPE_SIZE);
        let (all, whole) = in_one_stripe(&cluster, node, file, chunks).await;
        println!("{whole} of {all} chunks are in one stripe");
        assert!(100 * whole >= 98 * all, "{whole} of {all}");
    });
}
