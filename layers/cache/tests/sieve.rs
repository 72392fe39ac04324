//! Data sieving against the two plain ways to read parts of stripes that are on disk: all parts one
//! by one, and the span of them. Method: a disk with a fixed cost for each read and for each block;
//! reads and bytes are counted, and the time that the disk needs.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::time::Duration;

use blockio::{BLOCK_SIZE, Geometry, Stripes as _};
use cache::protocol::Extent;
use support::{Setup, World, geometry};

/// Blocks of one stripe.
const BLOCKS: u32 = 64;

/// The lists of one case: a part of `size` blocks in each `stride`.
fn extents(size: u32, stride: u32) -> Vec<Extent> {
    let block = BLOCK_SIZE as u32;
    let starts = (0..BLOCKS).step_by(stride as usize);
    starts.map(|start| Extent { offset: start * block, length: size * block }).collect()
}

/// Stripes that are read to learn what the disk costs, and those that are measured.
const LEARNT_BY: u64 = 40;
const MEASURED: u64 = 8;

/// Time, reads and bytes of the disk for some stripes read in this way.
fn measure(costs: (Duration, Duration), way: &str, list: &[Extent]) -> [u64; 3] {
    let geometry = Geometry { stripe_size: BLOCKS * BLOCK_SIZE as u32, ..geometry() };
    let setup =
        Setup { geometry, lines_per_node: 1000, pool_bytes: 1 << 30, seed: 5, ..Setup::default() };
    let world = World::new(&setup);
    world.disk.costs.set(Some(costs));
    let (client, context) = (world.client.clone(), world.context());
    world.run(async {
        let (mut start, mut before) = (context.now(), [0; 2]);
        let counts = || [world.disk.reads.get(), world.disk.read_bytes.get()];
        let learnt_by = if way == "sieve" { LEARNT_BY } else { 0 };
        for stripe in 0..learnt_by + MEASURED {
            if stripe == learnt_by {
                (start, before) = (context.now(), counts());
            }
            match way {
                "sieve" => {
                    drop(client.read_list(stripe, list.to_vec(), (Vec::new(), 1)).await.unwrap());
                }
                // A list of one part is read as it is.
                "pieces" => {
                    for &part in list {
                        drop(client.read_list(stripe, vec![part], (Vec::new(), 1)).await.unwrap());
                    }
                }
                _ => {
                    let (head, tail) = (list[0], list[list.len() - 1]);
                    let length = tail.offset + tail.length - head.offset;
                    let span = Extent { offset: head.offset, length };
                    drop(client.read_list(stripe, vec![span], (Vec::new(), 1)).await.unwrap());
                }
            }
        }
        let used = context.now().saturating_sub(start).as_nanos() as u64;
        let [reads, bytes] = counts();
        [used, reads - before[0], bytes - before[1]]
    })
}

#[test]
fn sieving_is_never_a_tenth_worse_than_the_better_plain_way() {
    let disks = [
        ("spinning", Duration::from_millis(8), Duration::from_micros(20)),
        ("flash", Duration::from_micros(80), Duration::from_micros(2)),
        ("memory", Duration::from_micros(2), Duration::from_micros(1)),
    ];
    println!("disk      size stride |  us: pieces    span   sieve | reads of the sieve, blocks");
    for (name, fixed, per_block) in disks {
        for (size, stride) in [(1, 2), (1, 4), (1, 16), (1, 32), (2, 32), (4, 8), (8, 32)] {
            let list = extents(size, stride);
            let ways = ["pieces", "span", "sieve"];
            let [pieces, span, sieve] = ways.map(|way| measure((fixed, per_block), way, &list));
            println!(
                "{name:<9} {size:>4} {stride:>6} | {:>11} {:>7} {:>7} | {} {}",
                pieces[0] / 1000,
                span[0] / 1000,
                sieve[0] / 1000,
                sieve[1],
                sieve[2] / BLOCK_SIZE as u64
            );
            let better = pieces[0].min(span[0]);
            assert!(
                sieve[0] * 10 <= better * 11,
                "{name}, {size} of {stride} blocks: {sieve:?}, pieces {pieces:?}, span {span:?}"
            );
        }
    }
}

#[test]
fn what_is_cached_is_not_read_again_and_needs_no_sieve() {
    let world = World::new(&Setup::default());
    let client = world.client.clone();
    world.run(async {
        let blocks = |list: &[u32]| -> Vec<Extent> {
            list.iter().map(|&block| Extent { offset: block * 4096, length: 4096 }).collect()
        };
        client.read_list(7, blocks(&[0, 2]), (Vec::new(), 1)).await.unwrap();
        let (reads, bytes) = (world.disk.reads.get(), world.disk.read_bytes.get());
        assert_eq!((reads, bytes), (1, 3 * 4096), "the gap is read too");
        client.read_list(7, blocks(&[0, 1, 2]), (Vec::new(), 1)).await.unwrap();
        assert_eq!(world.disk.reads.get(), reads, "all of it is here");
        client.read_list(7, blocks(&[1, 3]), (Vec::new(), 1)).await.unwrap();
        assert_eq!(world.disk.read_bytes.get() - bytes, 4096, "only what is missing");
    });
}
