//! Single promises of the cache, each by its own small scene.

mod support;

use std::time::Duration;

use blockio::protocol::WriteObstacle;
use blockio::{BLOCK_SIZE, DiskName, Stripes as _};
use bytes::Bytes;
use cache::protocol::{Error, Forget, Read, Unsynced, Write};
use cache::{WRITE_BACK_AGE, WRITE_BACK_INTERVAL};
use futures::future::{join, join_all};
use runtime::hash::crc32c;
use runtime::{NodeId, Undelivered};
use support::{FAILURE, STRIPES, Setup, World, old_byte, sync};

const SIZE: u32 = 16384;
const BUSY: Error = Error::Undelivered { why: Undelivered::Busy };

fn data(bytes: &'static [u8]) -> Vec<Bytes> {
    vec![Bytes::from_static(bytes)]
}

fn old(stripe: u64, range: std::ops::Range<usize>) -> Vec<u8> {
    range.map(|offset| old_byte(stripe, offset)).collect()
}

#[test]
fn a_partial_write_reads_no_disk_and_a_read_of_it_neither() {
    let world = World::new(&Setup::default());
    let client = world.client.clone();
    world.run(async move {
        client.write(7, 100, data(b"partial")).await.unwrap();
        client.write_zeros(7, 107, 50).await.unwrap();
        assert_eq!(&client.read(7, 100, 8, Vec::new()).await.unwrap()[..], b"partial\0");
    });
    assert_eq!(world.disk.reads.get(), 0);
}

#[test]
fn a_read_fills_exactly_the_gaps() {
    let world = World::new(&Setup::default());
    let (client, disk) = (world.client.clone(), world.disk.clone());
    world.run(async move {
        client.write(7, 3, data(b"new")).await.unwrap();
        let read = client.read(7, 0, 10, Vec::new()).await.unwrap();
        assert_eq!(read, [&old(7, 0..3)[..], b"new", &old(7, 6..10)].concat());
        let rest = client.read(7, SIZE - 5, 5, Vec::new()).await.unwrap();
        assert_eq!(rest, old(7, SIZE as usize - 5..SIZE as usize));
        assert_eq!(disk.reads.get(), 1, "the first miss brings the whole stripe");
    });
}

#[test]
fn many_readers_of_a_missing_line_share_one_read_of_the_disk() {
    let world = World::new(&Setup::default());
    let client = world.client.clone();
    world.run(async move {
        let reads = (0..100).map(|at| client.read(4, at * 10, 10, Vec::new()));
        for (at, read) in join_all(reads).await.into_iter().enumerate() {
            assert_eq!(read.unwrap(), old(4, at * 10..at * 10 + 10));
        }
        let status = client.status().await.unwrap();
        assert_eq!((status.misses, status.hits), (1, 99));
    });
    assert_eq!(world.disk.reads.get(), 1);
}

#[test]
fn other_lines_go_on_while_one_waits_for_its_disk() {
    let world = World::new(&Setup::default());
    world.disk.delay.set(Duration::from_mins(1));
    let (client, context) = (world.client.clone(), world.context());
    world.run(async move {
        let start = context.now();
        let slow = client.read(3, 0, 10, Vec::new());
        let quick = async {
            context.sleep(Duration::from_millis(1)).await;
            client.write(6, 0, data(b"other line, same node")).await.unwrap();
            client.write(3, 20, data(b"same line")).await.unwrap();
            client.read(3, 20, 4, Vec::new()).await.unwrap();
            assert!(context.now() < start + Duration::from_secs(1));
        };
        let (slow, ()) = join(slow, quick).await;
        assert_eq!(slow.unwrap(), old(3, 0..10));
        let written = client.read(3, 20, 9, Vec::new()).await.unwrap();
        assert_eq!(&written[..], b"same line", "the disk's older bytes came later");
    });
}

#[test]
fn a_read_is_not_copied_and_a_write_is_copied_once() {
    let world = World::new(&Setup::default());
    let (client, pool) = (world.client_at(2), world.pool(2));
    world.run(async move {
        client.write(5, 0, vec![Bytes::from(vec![1; 9000])]).await.unwrap();
        assert_eq!(pool.copied_bytes(), 9000);
        let first = client.read(5, 0, 9000, Vec::new()).await.unwrap();
        let second = client.read(5, 1000, 10, Vec::new()).await.unwrap();
        assert_eq!(pool.copied_bytes(), 9000);
        assert_eq!(first[1000..].as_ptr(), second.as_ptr());
        client.write(5, 0, data(b"while slices are out")).await.unwrap();
        assert!(first.iter().all(|&byte| byte == 1), "what was read does not change");
    });
}

#[test]
fn a_line_rewritten_many_times_is_written_below_once() {
    let world = World::new(&Setup::default());
    let client = world.client.clone();
    world.run(async move {
        for round in 0..1000u32 {
            let bytes = Bytes::from(vec![round as u8; 512]);
            client.write(2, round % 32 * 512, vec![bytes]).await.unwrap();
        }
        sync(&client, vec![2]).await.unwrap();
    });
    assert_eq!((world.disk.writes.get(), world.disk.reads.get()), (1, 0));
    assert_eq!(world.disk.content(2)[31 * 512..], [991u32 as u8; 512]);
    assert_eq!(*world.disk.syncs.borrow(), [[2]]);
}

#[test]
fn only_dirty_bytes_are_written_and_neighbours_go_together() {
    let world = World::new(&Setup::default());
    let client = world.client.clone();
    world.run(async move {
        client.read(2, 0, 1, Vec::new()).await.unwrap();
        client.write(2, 100, data(b"ab")).await.unwrap();
        client.write(2, 104, data(b"ef")).await.unwrap();
        client.write(2, 102, data(b"cd")).await.unwrap();
        client.write_zeros(2, 5000, 10).await.unwrap();
        sync(&client, vec![2, 2]).await.unwrap();
    });
    assert_eq!((world.disk.writes.get(), world.disk.written_bytes.get()), (2, 16));
    assert_eq!(
        world.disk.content(2)[99..107],
        [&old(2, 99..100)[..], b"abcdef", &old(2, 106..107)].concat()
    );
}

#[test]
fn a_write_during_write_back_is_written_by_the_next_one() {
    let world = World::new(&Setup::default());
    world.disk.delay.set(Duration::from_secs(1));
    let (client, context, disk) = (world.client.clone(), world.context(), world.disk.clone());
    world.run(async move {
        client.write(2, 0, data(b"first")).await.unwrap();
        let rewrite = async {
            context.sleep(Duration::from_millis(100)).await;
            client.write(2, 1, data(b"IR")).await.unwrap();
        };
        join(sync(&client, vec![2]), rewrite).await.0.unwrap();
        assert_eq!(disk.content(2)[..5], *b"first");
        assert_eq!(client.status().await.unwrap().dirty_lines, 1);
        sync(&client, vec![2]).await.unwrap();
        assert_eq!(disk.content(2)[..5], *b"fIRst");
        assert_eq!(disk.written_bytes.get(), 5 + 2);
    });
}

#[test]
fn a_second_write_back_waits_for_the_first_and_writes_what_is_still_dirty() {
    let world = World::new(&Setup::default());
    world.disk.delay.set(Duration::from_secs(1));
    let (client, context, disk) = (world.client.clone(), world.context(), world.disk.clone());
    world.run(async move {
        client.write(2, 0, data(b"first")).await.unwrap();
        let second = async {
            context.sleep(Duration::from_millis(100)).await;
            client.write(2, 9, data(b"second")).await.unwrap();
            sync(&client, vec![2]).await.unwrap();
            assert_eq!(disk.content(2)[..5], *b"first");
            assert_eq!(disk.content(2)[9..15], *b"second");
        };
        let third = async {
            context.sleep(Duration::from_millis(200)).await;
            sync(&client, vec![2]).await.unwrap();
            assert_eq!(disk.content(2)[9..15], *b"second", "was dirty when the sync was asked for");
        };
        join(sync(&client, vec![2]), join(second, third)).await.0.unwrap();
        assert_eq!(disk.writes.get(), 2);
    });
}

#[test]
fn bytes_whose_write_back_failed_stay_dirty_and_the_disks_are_not_synced() {
    let world = World::new(&Setup::default());
    let (client, disk) = (world.client.clone(), world.disk.clone());
    world.run(async move {
        client.write(2, 0, data(b"precious")).await.unwrap();
        disk.failing_percent.set(100);
        assert_eq!(sync(&client, vec![2]).await, Err(FAILURE));
        assert_eq!(sync(&client, vec![2, 4]).await, Err(FAILURE));
        assert_eq!(client.read(4, 0, 1, Vec::new()).await, Err(FAILURE));
        assert!(disk.syncs.borrow().is_empty());
        assert_eq!(&client.read(2, 0, 8, Vec::new()).await.unwrap()[..], b"precious");
        disk.failing_percent.set(0);
        sync(&client, vec![2]).await.unwrap();
        assert_eq!(disk.content(2)[..8], *b"precious");
    });
}

#[test]
fn a_full_disk_takes_no_more_writes_until_what_waits_for_it_is_written() {
    let world = World::new(&Setup::default());
    let (client, disk, context) = (world.client.clone(), world.disk.clone(), world.context());
    let full = Error::Unwritable { disk_node: 0, disk: 0, why: WriteObstacle::Full {} };
    world.run(async move {
        // Stripes of one node.
        client.write(2, 0, data(b"precious")).await.unwrap();
        client.write(5, 0, data(b"given up")).await.unwrap();
        disk.failing_percent.set(100);
        disk.failure.set(full);
        assert_eq!(sync(&client, vec![2]).await, Err(full));
        assert_eq!(sync(&client, vec![5]).await, Err(full));
        assert_eq!(client.write(8, 0, data(b"more")).await, Err(full));
        assert_eq!(client.write_zeros(8, 0, 9).await, Err(full));
        client.write(2, 3, data(b"c")).await.expect("what is dirty takes no more memory");
        assert_eq!(&client.read(2, 0, 8, Vec::new()).await.unwrap()[..], b"precious");
        assert_eq!(client.status().await.unwrap().dirty_lines, 2, "no line was lost or added");

        client.forget(5, 0, SIZE).await.unwrap();
        assert_eq!(client.write(8, 0, data(b"more")).await, Err(full));
        disk.failing_percent.set(0);
        context.sleep(Duration::from_secs(8)).await;
        assert_eq!(disk.content(2)[..8], *b"precious", "written without being asked");
        client.write(8, 0, data(b"more")).await.expect("it takes writes again");
        sync(&client, vec![2, 8]).await.unwrap();
    });
}

#[test]
fn forgotten_bytes_are_not_written() {
    let world = World::new(&Setup::default());
    let client = world.client.clone();
    world.run(async move {
        client.write(2, 0, data(b"abcdefgh")).await.unwrap();
        client.write(5, 0, data(b"short-lived")).await.unwrap();
        client.forget(2, 2, 4).await.unwrap();
        client.forget(5, 0, SIZE).await.unwrap();
        client.forget(8, 0, SIZE).await.unwrap();
        sync(&client, vec![2, 5, 8]).await.unwrap();
        assert_eq!(client.status().await.unwrap().lines, 1);
    });
    assert_eq!(world.disk.written_bytes.get(), 4);
    assert_eq!(world.disk.content(2)[..8], [b"ab", &old(2, 2..6)[..], b"gh"].concat());
}

#[test]
fn what_lies_beside_a_bad_sector_can_be_read() {
    let world = World::new(&Setup::default());
    let (client, disk) = (world.client.clone(), world.disk.clone());
    world.run(async move {
        let block = BLOCK_SIZE as u32;
        disk.bad_sector.set(Some((2, BLOCK_SIZE + 700)));
        let bad = Err(Error::Unreadable { disk: 0, offset: 0 });
        assert_eq!(client.read(2, block, block, Vec::new()).await, bad);
        for wanted in [0, 2, 3] {
            let from = wanted * BLOCK_SIZE;
            let read = client.read(2, wanted as u32 * block, block, Vec::new()).await.unwrap();
            assert_eq!(&read[..], &old(2, from..from + BLOCK_SIZE)[..], "block {wanted}");
        }
        assert_eq!(client.read(2, 0, 4 * block, Vec::new()).await, bad);
    });
}

#[test]
fn a_damaged_block_is_read_twice_and_then_told() {
    let world = World::new(&Setup::default());
    let (client, disk) = (world.client.clone(), world.disk.clone());
    world.run(async move {
        let good: Vec<u32> = old(2, 0..SIZE as usize).chunks(BLOCK_SIZE).map(crc32c).collect();
        let mut wrong = good.clone();
        wrong[2] ^= 1;
        let error = client.read(2, 0, SIZE, wrong.clone()).await;
        assert_eq!(error, Err(Error::Corrupt { stripe: 2, block: 2 }));
        assert_eq!(disk.reads.get(), 2);
        let block = BLOCK_SIZE as u32;
        client.read(2, 0, 2 * block, good[..2].to_vec()).await.unwrap();
        assert_eq!(disk.reads.get(), 2, "the other blocks stay");
        client.write(2, 2 * block, vec![Bytes::from(vec![9; BLOCK_SIZE])]).await.unwrap();
        client.read(2, 0, SIZE, wrong).await.expect("what was written here is trusted");
    });
}

#[test]
fn damage_that_a_second_read_heals_is_not_told() {
    let world = World::new(&Setup::default());
    let (client, disk) = (world.client.clone(), world.disk.clone());
    let context = world.context();
    world.run(async move {
        let good: Vec<u32> = old(2, 0..SIZE as usize).chunks(BLOCK_SIZE).map(crc32c).collect();
        disk.damaging_percent.set(100);
        let heal = async {
            while disk.reads.get() < 2 {
                context.sleep(Duration::from_micros(10)).await;
            }
            disk.damaging_percent.set(0);
        };
        let (read, ()) = join(client.read(2, 0, SIZE, good), heal).await;
        assert_eq!(read.unwrap(), old(2, 0..SIZE as usize));
        assert_eq!(disk.reads.get(), 2);
    });
}

#[test]
fn old_dirty_lines_are_written_back_unasked_and_then_nothing_ticks() {
    let world = World::new(&Setup::default());
    let client = world.client.clone();
    world.run({
        let client = client.clone();
        async move { client.read(2, 0, 1, Vec::new()).await.unwrap() }
    });
    assert!(world.run_out() < WRITE_BACK_INTERVAL, "a clean node has no timer");
    world.run(async move { client.write(2, 0, data(b"lasting")).await.unwrap() });
    let took = world.run_out();
    assert!(took >= WRITE_BACK_AGE, "{took:?}");
    assert!(took <= WRITE_BACK_AGE + 2 * WRITE_BACK_INTERVAL, "{took:?}");
    assert_eq!(world.disk.content(2)[..7], *b"lasting");
    let client = world.client.clone();
    world.run(async move { client.write(2, 0, data(b"for the second time")).await.unwrap() });
    world.run_out();
    assert_eq!(world.disk.content(2)[..19], *b"for the second time");
}

#[test]
fn new_lines_push_old_ones_out_and_dirty_ones_are_written_first() {
    let world = World::new(&Setup { lines_per_node: 4, ..Setup::default() });
    let (client, pool) = (world.client.clone(), world.pool(0));
    world.run(async move {
        for stripe in (0..300).step_by(3) {
            client.write(stripe, 1, data(b"checkpoint")).await.unwrap();
            assert!(pool.used_bytes() <= 4 * SIZE as usize);
        }
        let status = client.status().await.unwrap();
        assert_eq!((status.lines, status.evictions), (4, 96));
        for stripe in (0..300).step_by(3) {
            let read = client.read(stripe, 0, 11, Vec::new()).await.unwrap();
            assert_eq!(read, [&old(stripe, 0..1)[..], b"checkpoint"].concat());
        }
    });
}

#[test]
fn half_of_the_lines_stay_clean_without_being_asked() {
    let world = World::new(&Setup { lines_per_node: 20, ..Setup::default() });
    let (client, context) = (world.client.clone(), world.context());
    world.run(async move {
        for stripe in (0..60).step_by(3) {
            client.write(stripe, 0, data(b"burst")).await.unwrap();
        }
        context.sleep(Duration::from_millis(500)).await;
        let status = client.status().await.unwrap();
        assert_eq!((status.lines, status.dirty_lines, status.evictions), (20, 10, 0));
    });
}

#[test]
fn lines_whose_slices_are_out_free_no_room_and_others_follow() {
    let world = World::new(&Setup { pool_bytes: 6 * SIZE as usize, ..Setup::default() });
    let (client, context) = (world.client_at(0), world.context());
    world.run(async move {
        let mut slices = Vec::new();
        for stripe in (0..18).step_by(3) {
            slices.push(client.read(stripe, 0, 1, Vec::new()).await.unwrap());
        }
        slices.truncate(4);
        let start = context.now();
        client.write(18, 0, data(b"new")).await.unwrap();
        assert!(context.now() < start + Duration::from_millis(100));
        assert_eq!(slices[3][0], old_byte(9, 0));
    });
}

#[test]
fn new_lines_wait_for_different_old_ones_to_be_written() {
    let world = World::new(&Setup { lines_per_node: 4, ..Setup::default() });
    world.disk.delay.set(Duration::from_secs(1));
    let (client, context) = (world.client.clone(), world.context());
    world.run(async move {
        for stripe in [0, 3, 6, 9] {
            client.write(stripe, 0, data(b"old")).await.unwrap();
        }
        let start = context.now();
        let writes = [12, 15, 18, 21].map(|stripe| client.write(stripe, 0, data(b"new")));
        assert!(join_all(writes).await.iter().all(Result::is_ok));
        assert!(context.now() < start + Duration::from_secs(2), "one after the other");
    });
}

#[test]
fn a_cache_full_of_unwritable_bytes_refuses_more_and_recovers() {
    let world = World::new(&Setup { lines_per_node: 2, ..Setup::default() });
    let (client, disk) = (world.client.clone(), world.disk.clone());
    world.run(async move {
        disk.failing_percent.set(100);
        client.write(0, 0, data(b"zero")).await.unwrap();
        client.write(3, 0, data(b"three")).await.unwrap();
        assert_eq!(client.write(6, 0, data(b"six")).await, Err(FAILURE));
        assert_eq!(client.read(9, 0, 1, Vec::new()).await, Err(BUSY));
        client.write(0, 4, data(b"still")).await.expect("a line that is here takes bytes");
        disk.failing_percent.set(0);
        sync(&client, vec![0, 3]).await.unwrap();
        client.write(6, 0, data(b"six")).await.unwrap();
        sync(&client, vec![6]).await.unwrap();
        assert_eq!(disk.content(0)[..9], *b"zerostill");
        assert_eq!(disk.content(3)[..5], *b"three");
        assert_eq!(disk.content(6)[..3], *b"six");
    });
}

#[test]
fn a_write_that_waits_for_room_is_not_done_after_a_later_one_of_its_stripe() {
    let world = World::new(&Setup { pool_bytes: SIZE as usize, ..Setup::default() });
    let (pool, context) = (world.pool(0), world.context());
    world.run(async move {
        let held = pool.take(SIZE as usize).unwrap();
        let write = |data| {
            let call = Write { stripe: 0, offset: 0, data };
            context.spawn(NodeId::fs(0), call)
        };
        let (early, late) = (write(data(b"early")), async {
            // The first one rests between two attempts.
            context.sleep(Duration::from_millis(200)).await;
            drop(held);
            write(data(b"late!")).await
        });
        let (early, late) = join(early, late).await;
        early.and(late).unwrap();
        let read = Read { stripe: 0, offset: 0, length: 5, expect: Vec::new() };
        assert_eq!(&context.spawn(NodeId::fs(0), read).await.unwrap()[..], b"late!");
    });
}

#[test]
fn an_empty_pool_is_busy_and_other_buffers_are_waited_for() {
    let world = World::new(&Setup { pool_bytes: 2 * SIZE as usize, ..Setup::default() });
    let (client, pool, context) = (world.client_at(0), world.pool(0), world.context());
    world.run(async move {
        let held = pool.take(2 * SIZE as usize).unwrap();
        assert_eq!(client.write(0, 0, data(b"zero")).await, Err(BUSY));
        let release = async {
            // Longer than the node waits: the client asks again.
            context.sleep(Duration::from_millis(1_500)).await;
            drop(held);
        };
        join(client.write(0, 0, data(b"zero")), release).await.0.unwrap();
        let slice = client.read(0, 0, 4, Vec::new()).await.unwrap();
        let _held = pool.take(SIZE as usize).unwrap();
        let write = client.write(0, 0, data(b"none")).await;
        assert_eq!(write, Err(BUSY), "no room for the copy that the slice needs");
        assert_eq!(&slice[..], b"zero");
        drop(slice);
        client.write(0, 0, data(b"some")).await.unwrap();
    });
}

#[test]
fn scattered_writes_have_bounded_books_and_lose_nothing() {
    let world = World::new(&Setup::default());
    let (client, disk) = (world.client.clone(), world.disk.clone());
    world.run(async move {
        for at in (0..SIZE).step_by(16) {
            client.write(2, at, data(b"x")).await.unwrap();
        }
        assert!(disk.writes.get() > 0, "a line of a thousand pieces is written back early");
        assert_eq!(disk.reads.get(), 0);
        sync(&client, vec![2]).await.unwrap();
        let content = disk.content(2);
        assert!(content.iter().step_by(16).all(|&byte| byte == b'x'));
        assert_eq!(content[17], old_byte(2, 17));
    });
}

#[test]
fn what_does_not_exist_or_is_not_cached_here_is_out_of_range() {
    let world = World::new(&Setup::default());
    let (client, context) = (world.client.clone(), world.context());
    world.run(async move {
        let out_of_range = |stripe, offset, length| Error::OutOfRange { stripe, offset, length };
        let last = STRIPES;
        let read = client.read(last, 0, 1, Vec::new()).await;
        assert_eq!(read, Err(out_of_range(last, 0, 1)));
        let read = client.read(0, u32::MAX, u32::MAX, Vec::new()).await;
        assert_eq!(read, Err(out_of_range(0, u32::MAX, u32::MAX)));
        let write = client.write(0, SIZE - 1, data(b"ab")).await;
        assert_eq!(write, Err(out_of_range(0, SIZE - 1, 2)));
        let zeros = client.write_zeros(0, 1, SIZE).await;
        assert_eq!(zeros, Err(out_of_range(0, 1, SIZE)));
        assert_eq!(
            client.sync(vec![Unsynced { stripe: last, boot_id: 0 }]).await,
            Err(out_of_range(last, 0, 0))
        );
        let half_a_block = client.read(0, 0, 100, vec![1]).await;
        assert_eq!(half_a_block, Err(out_of_range(0, 0, 100)));
        let elsewhere = Forget { stripe: 1, offset: 0, length: 1 };
        let forget = context.spawn(NodeId::fs(0), elsewhere).await;
        assert_eq!(forget, Err(out_of_range(1, 0, 1)));
        let read = Read { stripe: 0, offset: SIZE, length: 0, expect: Vec::new() };
        assert_eq!(context.spawn(NodeId::fs(0), read).await.unwrap(), Bytes::new());
        client.write(0, SIZE, Vec::new()).await.unwrap();
        assert_eq!(client.status().await.unwrap().lines, 0);
    });
}

#[test]
fn root_slots_go_straight_to_the_disks() {
    let world = World::new(&Setup::default());
    let client = world.client.clone();
    let slot = world
        .run(async move { client.read_slot(DiskName { disk_node: 3, disk: 0 }, 4).await })
        .unwrap();
    assert_eq!(&slot[..], b"slot 4 of disk n3d0");
}
