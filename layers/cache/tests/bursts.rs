//! Bursts of writes: what reaches the disks while they last, and how long requests wait.

mod support;

use std::time::Duration;

use blockio::Stripes as _;
use bytes::Bytes;
use cache::{CacheClient, WRITE_BACK_AGE};
use futures::future::join_all;
use runtime::Context;
use support::{Setup, World, sync};

const SIZE: u32 = 16384;
/// Stripes of one node.
const NODES: u64 = 3;
const SECOND: Duration = Duration::from_secs(1);

fn whole(fill: u8) -> Vec<Bytes> {
    vec![Bytes::from(vec![fill; SIZE as usize])]
}

async fn write_lines(client: &CacheClient, lines: std::ops::Range<u64>, fill: u8) {
    for line in lines {
        client.write(line * NODES, 0, whole(fill)).await.expect("there is room");
    }
}

#[test]
fn lines_rewritten_between_flushes_reach_the_disk_once_per_flush() {
    let world = World::new(&Setup { lines_per_node: 400, ..Setup::default() });
    let (client, disk) = (world.client.clone(), world.disk.clone());
    world.run(async move {
        for flush in 1..=5 {
            for round in 0..40 {
                write_lines(&client, 0..16, flush * 40 + round).await;
            }
            sync(&client, (0..16).map(|line| line * NODES).collect()).await.unwrap();
            assert_eq!(disk.writes.get(), 16 * u64::from(flush), "40 writes of each line");
        }
        assert_eq!(disk.reads.get(), 0);
        assert!((0..16).all(|line| disk.content(line * NODES)[..] == [5 * 40 + 39; SIZE as usize]));
    });
}

#[test]
fn whole_lines_are_written_behind_their_writer_and_the_last_of_them_are_held() {
    let world = World::new(&Setup { lines_per_node: 400, ..Setup::default() });
    let (client, disk, context) = (world.client.clone(), world.disk.clone(), world.context());
    world.run(async move {
        write_lines(&client, 0..100, 1).await;
        context.sleep(SECOND).await;
        assert_eq!(disk.writes.get(), 75, "a sixteenth of 400 is held");
        assert_eq!(client.status().await.unwrap().dirty_lines, 25);
        context.sleep(WRITE_BACK_AGE + SECOND).await;
        assert_eq!(disk.writes.get(), 100);
    });
}

#[test]
fn lines_that_are_written_again_are_not_written_behind() {
    let world = World::new(&Setup { lines_per_node: 400, ..Setup::default() });
    let (client, disk, context) = (world.client.clone(), world.disk.clone(), world.context());
    world.run(async move {
        for round in 0..20 {
            write_lines(&client, 0..25, round).await;
        }
        context.sleep(SECOND).await;
        assert_eq!(disk.writes.get(), 0, "as many as are held");
        // Others push them out of the queue, again and again; each of the others goes once.
        for round in 0..20 {
            write_lines(&client, 25..125, round).await;
            context.sleep(SECOND / 20).await;
        }
        let written = |line: u64| disk.content(line * NODES)[0] == 0;
        let behind = (25..125).filter(|&line| written(line)).count();
        assert_eq!((disk.writes.get(), behind), (75, 75));
    });
}

#[test]
fn the_next_file_in_the_same_stripes_is_written_behind_too() {
    let world = World::new(&Setup { lines_per_node: 400, ..Setup::default() });
    let (client, disk, context) = (world.client.clone(), world.disk.clone(), world.context());
    world.run(async move {
        for file in 1..=3 {
            write_lines(&client, 0..100, file).await;
            context.sleep(SECOND / 2).await;
            assert!(disk.writes.get() >= u64::from(file - 1) * 100 + 75, "{file}");
            sync(&client, (0..100).map(|line| line * NODES).collect()).await.unwrap();
            assert_eq!(disk.writes.get(), u64::from(file) * 100);
        }
    });
}

#[test]
fn parts_of_lines_are_not_written_behind() {
    let world = World::new(&Setup { lines_per_node: 400, ..Setup::default() });
    let (client, disk, context) = (world.client.clone(), world.disk.clone(), world.context());
    world.run(async move {
        for line in 0..100 {
            let part = vec![Bytes::from(vec![1; SIZE as usize - 1])];
            client.write(line * NODES, 1, part).await.unwrap();
        }
        context.sleep(SECOND).await;
        assert_eq!(disk.writes.get(), 0);
    });
}

/// One writer: what it does itself takes half a millisecond for each line. How long its requests
/// took.
async fn writer(
    client: CacheClient,
    context: Context,
    lines: impl Iterator<Item = u64>,
) -> Vec<Duration> {
    let mut times = Vec::new();
    for line in lines {
        let start = context.now();
        context.sleep(Duration::from_micros(500)).await;
        client.write(line * NODES, 0, whole(1)).await.expect("there is room");
        times.push(context.now().saturating_sub(start));
    }
    times
}

#[test]
fn in_a_burst_of_twice_the_cache_no_request_waits_much_longer_than_the_others() {
    const LINES: u64 = 256;
    const WRITERS: u64 = 4;
    for seed in 0..20 {
        let lines_per_node = LINES as usize;
        let setup = Setup { stripes: 10_000, lines_per_node, seed, ..Setup::default() };
        let world = World::new(&setup);
        // The disk takes a third of what the writers can do.
        world.disk.write_cost.set(Some(Duration::from_micros(375)));
        let (client, context, pool) = (world.client.clone(), world.context(), world.pool(0));
        let mut times = world.run(async move {
            let writers = (0..WRITERS).map(|number| {
                let lines = (number..2 * LINES).step_by(WRITERS as usize);
                writer(client.clone(), context.clone(), lines)
            });
            let times = join_all(writers).await.concat();
            assert!(pool.used_bytes() <= (LINES * u64::from(SIZE)) as usize, "the budget");
            times
        });
        times.sort_unstable();
        let (median, longest) = (times[times.len() / 2], times[times.len() - 1]);
        assert!(longest <= 5 * median, "seed {seed}: {longest:?}, median {median:?}");
    }
}
