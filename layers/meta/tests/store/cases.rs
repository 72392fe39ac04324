//! One case after the other: full disks, failing disks, rot, foreign disks, delays.

use std::cell::Cell;
use std::ops::Bound;
use std::rc::Rc;
use std::time::Duration;

use blockio::DiskName;
use bytes::Bytes;
use meta::store::{
    Batch, FORMAT_VERSION, LOG_DELAY, Position, Run, Store, StoreError, VALUE_BYTES_MAX,
};
use runtime::hash::crc32c;
use runtime::seed::{Rng, with_seed};

use crate::bench::{Bench, Map, NODE, check_audit, flush, map, patiently, run_key};

/// The disks of a volume with two disk nodes.
const DISKS: [DiskName; 4] = [name(0, 0), name(0, 1), name(1, 0), name(1, 1)];

const fn name(disk_node: u32, disk: u32) -> DiskName {
    DiskName { disk_node, disk }
}

fn bench(rng: &mut Rng) -> Bench {
    Bench::new(rng, map(65536, 2, 400))
}

fn put(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Batch {
    let mut batch = Batch::new();
    batch.put(key, value);
    batch
}

fn number_key(number: u64) -> Bytes {
    format!("{number:08}").into()
}

/// Allocates until there is no space, one batch per run; what it holds then.
pub(crate) async fn fill(store: &Store, blocks: u32) -> Map {
    let mut content = Map::new();
    loop {
        let runs = match store.space().allocate(blocks) {
            Ok(runs) => runs,
            Err(StoreError::Busy) => {
                flush(store).await;
                continue;
            }
            Err(StoreError::NoSpace) => return content,
            Err(error) => panic!("{error}"),
        };
        let mut batch = Batch::new();
        batch.take_kept_room();
        for run in runs {
            batch.allocated(run);
            batch.put(run_key(run), Bytes::new());
            content.insert(run_key(run), Bytes::new());
        }
        patiently(store, batch).await.unwrap();
    }
}

pub(crate) async fn delete(store: &Store, content: &Map) {
    for (run, _) in crate::bench::runs(content) {
        let mut batch = Batch::new();
        batch.freed(run);
        batch.delete(run_key(run));
        batch.take_from_reserve();
        patiently(store, batch).await.unwrap();
    }
}

pub(crate) async fn audit(store: &Store, content: &Map) {
    flush(store).await;
    flush(store).await;
    check_audit(&store.audit().await.unwrap(), content);
}

#[test]
fn a_full_store_still_deletes_and_its_space_comes_back() {
    with_seed(|rng| {
        for blocks in [1, 5, 16, 40] {
            let mut bench = bench(rng);
            let mut filled = Vec::new();
            for _ in 0..3 {
                let store = bench.mount();
                let (content, free) = bench.run(async move {
                    let content = fill(&store, blocks).await;
                    assert!(store.space().status().free_blocks < u64::from(blocks));
                    assert_eq!(store.space().allocate(blocks), Err(StoreError::NoSpace));
                    audit(&store, &content).await;
                    delete(&store, &content).await;
                    audit(&store, &Map::new()).await;
                    (content.len(), store.space().status().free_blocks)
                });
                assert!(free > 1000, "{free}");
                filled.push(content);
                bench.crash();
            }
            assert!(filled.iter().all(|count| count.abs_diff(filled[0]) <= 40), "{filled:?}");
        }
    });
}

#[test]
fn a_store_full_of_keys_refuses_more_and_still_deletes_after_a_crash() {
    with_seed(|rng| {
        let mut bench = bench(rng);
        let store = bench.mount();
        let count = bench.run(async move {
            for number in 0.. {
                let batch = put(number_key(number), vec![7; 3000]);
                match patiently(&store, batch).await {
                    Ok(_) => {}
                    Err(StoreError::NoSpace) => return number,
                    Err(error) => panic!("{error}"),
                }
            }
            0
        });
        assert!(count > 1000, "{count}");
        bench.crash();
        let store = bench.mount();
        bench.run(async move {
            for number in 0..count {
                let mut batch = Batch::new();
                batch.delete(number_key(number));
                batch.take_from_reserve();
                patiently(&store, batch).await.unwrap();
            }
            audit(&store, &Map::new()).await;
            patiently(&store, put("k", "v")).await.unwrap();
        });
    });
}

#[test]
fn freed_blocks_are_handed_out_only_once_the_batch_is_durable() {
    with_seed(|rng| {
        let mut bench = bench(rng);
        let store = bench.mount();
        bench.disk.set_delay(1000);
        let ctx = bench.world.ctx.clone();
        bench.run(async move {
            let content = fill(&store, 16).await;
            flush(&store).await;
            let mut free = Batch::new();
            for (run, _) in crate::bench::runs(&content) {
                free.freed(run);
            }
            // A group commit is on its way while the blocks are freed: it must not count for them.
            let earlier = patiently(&store, put("k", "v")).await.unwrap();
            let mut written = Box::pin(store.durable(earlier));
            assert!(futures::poll!(written.as_mut()).is_pending());
            ctx.sleep(Duration::from_micros(1)).await;
            free.take_from_reserve();
            let freed = store.commit(free).unwrap();
            assert_eq!(store.space().allocate(160), Err(StoreError::Busy));
            written.await.unwrap();
            assert!(store.space().status().waiting_blocks > 1000);
            assert_eq!(store.space().allocate(160), Err(StoreError::Busy));
            store.durable(freed).await.unwrap();
            flush(&store).await;
            assert!(store.space().allocate(160).is_ok());
        });
    });
}

#[test]
fn after_any_failed_call_nothing_is_acknowledged_and_a_mount_brings_all_back() {
    with_seed(|rng| {
        for calls in 0..90 {
            let mut bench = bench(rng);
            bench.disk.set_delay(200);
            let store = bench.mount();
            bench.disk.fails_after(calls);
            let (ctx, failing) = (bench.world.ctx.clone(), store.clone());
            let acknowledged = bench.run(async move {
                for number in 0..40 {
                    let Ok(position) = failing.commit(put(number_key(number), vec![1; 900])) else {
                        return number;
                    };
                    if failing.durable(position).await.is_err() {
                        return number;
                    }
                    if number % 8 == 7 {
                        let failing = failing.clone();
                        ctx.task(async move {
                            let _ = failing.checkpoint().await;
                        });
                    }
                }
                40
            });
            if acknowledged < 40 {
                let stopped = store.commit(put("k", "v"));
                assert!(matches!(stopped, Err(StoreError::Failed(_))), "{stopped:?}");
                assert!(matches!(store.space().allocate(1), Err(StoreError::Failed(_))));
                let again = store.clone();
                let last = bench.run(async move { again.durable(Position::default()).await });
                assert_eq!(last, Ok(()), "what was durable before stays so");
            }
            drop(store);
            bench.crash();
            let store = bench.mount();
            let found = bench.content(&store);
            // The batch that failed may have reached the disk or not.
            let found_count = found.len() as u64;
            assert!((acknowledged..=acknowledged + 1).contains(&found_count));
            assert!(found.into_keys().eq((0..found_count).map(number_key)));
        }
    });
}

#[test]
fn what_no_caller_waits_for_is_durable_after_the_delay() {
    with_seed(|rng| {
        let mut bench = bench(rng);
        let store = bench.mount();
        let ctx = bench.world.ctx.clone();
        bench.run(async move {
            store.commit(put("early", "1")).unwrap();
            ctx.sleep(LOG_DELAY + Duration::from_millis(1)).await;
            store.commit(put("late", "2")).unwrap();
        });
        bench.crash();
        let store = bench.mount();
        assert_eq!(bench.content(&store).into_keys().collect::<Vec<_>>(), ["early"]);
    });
}

#[test]
fn many_waiters_share_one_group_commit() {
    with_seed(|rng| {
        let mut bench = bench(rng);
        let store = bench.mount();
        let before = bench.disk.changes();
        bench.disk.set_delay(100);
        bench.run(async move {
            let waits = (0..200).map(|number| {
                let position = store.commit(put(number_key(number), "value")).unwrap();
                store.durable(position)
            });
            for done in futures::future::join_all(waits).await {
                done.unwrap();
            }
        });
        assert_eq!(bench.disk.changes() - before, 3, "two copies and a sync");
    });
}

#[test]
fn both_copies_of_a_group_commit_are_written_at_once_and_waited_for_once() {
    const DELAY_US: u64 = 100;
    with_seed(|rng| {
        let mut bench = bench(rng);
        let store = bench.mount();
        bench.disk.set_delay(DELAY_US);
        let (disk, ctx) = (bench.disk.clone(), bench.world.ctx.clone());
        bench.run(async move {
            let position = patiently(&store, put("k", "v")).await.unwrap();
            let (began, calls) = (ctx.now(), disk.changes());
            store.durable(position).await.unwrap();
            let took = ctx.now().saturating_sub(began);
            assert_eq!(took, Duration::from_micros(2 * DELAY_US), "write, then sync");
            assert_eq!(disk.changes() - calls, 3, "two writes, and one sync for both");
        });
    });
}

#[test]
fn a_batch_that_cannot_be_is_refused_and_changes_nothing() {
    with_seed(|rng| {
        let mut bench = bench(rng);
        let store = bench.mount();
        let held = store.space().allocate(3).unwrap()[0];
        let bad = |fill: &dyn Fn(&mut Batch)| {
            let mut batch = put("k", "v");
            fill(&mut batch);
            let error = store.commit(batch).unwrap_err();
            assert!(matches!(error, StoreError::BadBatch(_)), "{error:?}");
        };
        let after = Run { start: held.start + u64::from(held.count), count: 1 };
        bad(&|batch| batch.allocated(after));
        bad(&|batch| batch.freed(held));
        bad(&|batch| batch.freed(Run { start: u64::MAX, count: 9 }));
        bad(&|batch| batch.give_group(store.space().groups()[0] + 1));
        bad(&|batch| batch.take_group(store.space().groups()[0]));
        bad(&|batch| batch.take_group(u64::MAX));
        bad(&|batch| batch.put(vec![0; 301], "v"));
        bad(&|batch| batch.put("k", vec![0; VALUE_BYTES_MAX + 1]));
        bad(&|batch| batch.delete(""));
        let mut large = Batch::new();
        for number in 0..7 {
            large.put(number_key(number), vec![0; VALUE_BYTES_MAX]);
        }
        assert!(matches!(store.commit(large), Err(StoreError::TooLarge { .. })));
        store.space().release(&[held]).unwrap();
        assert!(matches!(store.space().release(&[held]), Err(StoreError::BadBatch(_))));
        assert!(bench.content(&store).is_empty());
    });
}

/// A store with some keys in the tree and some in the log, and where things are.
fn prepared(rng: &mut Rng) -> (Bench, meta::store::Audit) {
    let mut bench = bench(rng);
    let store = bench.mount();
    let audit = bench.run(async move {
        for number in 0..300 {
            patiently(&store, put(number_key(number), vec![3; 200])).await.unwrap();
        }
        store.checkpoint().await.unwrap();
        for number in 300..303 {
            let position = patiently(&store, put(number_key(number), "log")).await.unwrap();
            store.durable(position).await.unwrap();
        }
        store.audit().await.unwrap()
    });
    bench.crash();
    (bench, audit)
}

#[test]
fn one_rotten_copy_of_the_log_is_repaired_and_two_are_reported() {
    with_seed(|rng| {
        for copies in 1..=2 {
            let (mut bench, audit) = prepared(rng);
            // The log of this mount: its segment, and the one reserved behind it, two stripes each.
            for run in &audit.log[..copies] {
                let used = run.blocks().filter(|&block| bench.disk.is_written(block));
                bench.disk.rot_start(used.collect::<Vec<_>>().into_iter());
            }
            match bench.try_mount() {
                Ok(store) => {
                    assert_eq!(copies, 1);
                    assert_eq!(bench.content(&store).len(), 303);
                }
                Err(error) => {
                    assert_eq!(copies, 2);
                    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
                }
            }
        }
    });
}

#[test]
fn damage_in_the_middle_of_the_log_is_reported_and_a_torn_end_is_dropped() {
    with_seed(|rng| {
        for rotten in [301, 302] {
            let (mut bench, audit) = prepared(rng);
            let blocks = audit.log.iter().flat_map(Run::blocks);
            let entries: Vec<u64> =
                blocks.filter(|&it| bench.disk.is_entry_with(it, &number_key(rotten))).collect();
            assert_eq!(entries.len(), 2);
            bench.disk.rot_start(entries.into_iter());
            match bench.try_mount() {
                Ok(store) => {
                    assert_eq!(rotten, 302);
                    assert_eq!(bench.content(&store).len(), 302);
                }
                Err(error) => {
                    assert_eq!(rotten, 301);
                    assert!(matches!(error, StoreError::Damaged { what: "a log entry", .. }));
                }
            }
        }
    });
}

/// Commits `count` batches, each durable by itself.
async fn commit_one_by_one(store: &Store, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let position = patiently(store, put(number_key(number), "later")).await.unwrap();
        store.durable(position).await.unwrap();
    }
}

#[test]
fn whichever_read_fails_once_a_mount_sees_all_that_is_there() {
    with_seed(|rng| {
        let mut one_copy = 0;
        for disk in DISKS {
            let mut bench = Bench::new(rng, map(64 << 10, 2, 200));
            let store = bench.mount();
            let before = store.clone();
            bench.run(async move { commit_one_by_one(&before, 0..5).await });
            let old = bench.disk.image(disk);
            bench.run(async move { commit_one_by_one(&store, 5..6).await });
            bench.crash();
            // The last entry is on the other disk only.
            bench.disk.put_back(disk, &old);
            let all = DISKS.map(|disk| bench.disk.image(disk));
            let reads_before = bench.disk.reads();
            bench.mount();
            let reads = bench.disk.reads() - reads_before;
            for failing in 0..reads {
                bench.crash();
                for (disk, image) in DISKS.into_iter().zip(&all) {
                    bench.disk.put_back(disk, image);
                }
                bench.disk.read_fails_after(failing);
                let store = bench.mount();
                assert_eq!(bench.content(&store).len(), 6, "read {failing} of {reads} failed");
                one_copy += 1;
            }
        }
        assert!(one_copy > 40, "{one_copy} reads");
    });
}

#[test]
fn a_disk_put_back_from_before_later_commits_is_refused_and_named() {
    with_seed(|rng| {
        let mut refused_for = [0, 0];
        for disk in DISKS {
            for checkpoints in [0, 2] {
                let mut bench = Bench::new(rng, map(64 << 10, 2, 200));
                let store = bench.mount();
                let before = store.clone();
                bench.run(async move { commit_one_by_one(&before, 0..5).await });
                let old = bench.disk.image(disk);
                bench.run(async move {
                    for _ in 0..checkpoints {
                        commit_one_by_one(&store, 5..15).await;
                        store.checkpoint().await.unwrap();
                    }
                    commit_one_by_one(&store, 15..30).await;
                });
                bench.crash();
                let newest = bench.disk.image(disk);
                bench.disk.put_back(disk, &old);
                match bench.try_mount() {
                    Err(StoreError::Outdated { disk: named, .. }) => {
                        assert_eq!(named, disk);
                        refused_for[usize::from(checkpoints > 0)] += 1;
                    }
                    // It has neither roots nor log, but a page: that one is of another time.
                    Err(error) => {
                        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
                        assert!(disk == DISKS[0] && checkpoints > 0, "{error}");
                    }
                    // Nothing was written to it that is read at a mount.
                    Ok(store) => {
                        let count = if checkpoints > 0 { 30 } else { 20 };
                        assert_eq!(bench.content(&store).len(), count);
                    }
                }
                bench.crash();
                bench.disk.put_back(disk, &newest);
                let store = bench.mount();
                assert!(bench.content(&store).len() >= 20, "with its own newest disk");
            }
        }
        // Without a checkpoint the two disks that hold the log tell; with some, the three with
        // roots.
        assert!(refused_for[0] >= 2 && refused_for[1] >= 3, "{refused_for:?}");
    });
}

#[test]
fn a_rotten_page_is_reported_and_never_served() {
    with_seed(|rng| {
        let (mut bench, audit) = prepared(rng);
        bench.disk.rot(audit.tree.iter().map(|run| run.start));
        // The log has changes for the tree, so the mount's checkpoint meets the damage.
        assert!(matches!(bench.try_mount(), Err(StoreError::Damaged { what: "a tree page", .. })));
        let (mut bench, audit) = prepared(rng);
        bench.disk.rot(audit.map.iter().map(|run| run.start));
        assert!(matches!(
            bench.try_mount(),
            Err(StoreError::Damaged { what: "the space map", .. })
        ));
    });
}

#[test]
fn a_disk_without_a_usable_root_is_refused_with_the_reason() {
    with_seed(|rng| {
        let stamp = |slot: &mut Vec<u8>| {
            let end = slot.len() - 4;
            let checksum = crc32c(&slot[..end]).to_le_bytes();
            slot[end..].copy_from_slice(&checksum);
        };
        let attempt = |rng: &mut Rng, edit: &dyn Fn(&mut Vec<u8>)| {
            let (mut bench, _) = prepared(rng);
            bench.disk.edit_slots(edit);
            bench.try_mount().unwrap_err()
        };
        assert_eq!(attempt(rng, &|slot| slot[100] ^= 1), StoreError::NoRoot);
        let foreign = attempt(rng, &|slot| {
            slot[9] ^= 1;
            stamp(slot);
        });
        assert_eq!(foreign, StoreError::ForeignVolume);
        let future = attempt(rng, &|slot| {
            slot[4] = 9;
            stamp(slot);
        });
        assert_eq!(future, StoreError::FutureVersion { version: 9, known: FORMAT_VERSION });
        let fenced = attempt(rng, &|slot| {
            slot[40..48].copy_from_slice(&99u64.to_le_bytes());
            stamp(slot);
        });
        assert_eq!(fenced, StoreError::Fenced { epoch: 99 });
    });
}

#[test]
fn roots_survive_the_loss_of_one_disk_and_say_so_if_two_are_lost() {
    with_seed(|rng| {
        // Node 1 has its roots on the second disk and those after it, which go over the disk nodes
        // first.
        let disks = [DISKS[0], DISKS[2], DISKS[1], DISKS[3]];
        for (lost_at_write, lost_at_read) in [(1, 2), (3, 1), (2, 2)] {
            let (mut bench, _) = prepared(rng);
            bench.disk.lose_slots_of(&[disks[lost_at_write]]);
            let store = bench.mount();
            bench.run(async move {
                patiently(&store, put("k", "v")).await.unwrap();
                store.checkpoint().await.unwrap();
            });
            bench.crash();
            bench.disk.lose_slots_of(&[disks[lost_at_read]]);
            let store = bench.mount();
            assert_eq!(bench.content(&store).len(), 304);
            drop(store);
            bench.crash();
            bench.disk.lose_slots_of(&[disks[1], disks[3]]);
            assert!(matches!(bench.try_mount(), Err(StoreError::Disk(_))));
        }
    });
}

#[test]
fn a_group_changes_hands_only_durably() {
    with_seed(|rng| {
        let mut bench = bench(rng);
        let store = bench.mount();
        let group = store.space().spare_groups(1, true)[0];
        let space = store.space().status();
        let mut give = Batch::new();
        give.give_group(group);
        let given = store.commit(give).unwrap();
        assert!(!store.space().groups().contains(&group));
        let kept = store.space().status();
        assert!(kept.owned_blocks < space.owned_blocks && kept.free_blocks < space.free_blocks);
        let mut take = Batch::new();
        take.take_group(group);
        let taken = store.commit(take).unwrap();
        assert_eq!(store.space().status().free_blocks, kept.free_blocks, "not yet durable");
        assert_eq!(store.space().status().waiting_blocks, space.owned_blocks - kept.owned_blocks);
        let again = store.clone();
        bench.run(async move {
            again.durable(given).await.unwrap();
            again.durable(taken).await.unwrap();
        });
        assert_eq!(store.space().status(), space);
    });
}

/// Gives a piece of the disk a good checksum again.
fn stamp_entry(entry: &mut [u8]) {
    let length = u32::from_le_bytes(entry[4..8].try_into().unwrap()) as usize;
    entry[28..32].fill(0);
    let checksum = crc32c(&entry[..64 + length]).to_le_bytes();
    entry[28..32].copy_from_slice(&checksum);
}

#[test]
fn damage_with_a_good_checksum_is_an_error_and_never_a_panic() {
    with_seed(|rng| {
        for _ in 0..150 {
            let (mut bench, audit) = prepared(rng);
            if rng.chance(1, 2) {
                let (at, value) = (32 + rng.index(131), rng.bits() as u8);
                bench.disk.edit_slots(|slot| {
                    slot[at] = value;
                    let end = slot.len() - 4;
                    let checksum = crc32c(&slot[..end]).to_le_bytes();
                    slot[end..].copy_from_slice(&checksum);
                });
            }
            let blocks = audit.log.iter().flat_map(Run::blocks);
            let key = number_key(301);
            let entries: Vec<u64> =
                blocks.filter(|&it| bench.disk.is_entry_with(it, &key)).collect();
            let changes: Vec<(usize, u8)> =
                (0..rng.below(4)).map(|_| (32 + rng.index(90), rng.bits() as u8)).collect();
            for &entry in &entries {
                bench.disk.edit_blocks(entry, 1, |data| {
                    for &(at, value) in &changes {
                        data[at] = value;
                    }
                    stamp_entry(data);
                });
            }
            let _ = bench.try_mount();
        }
    });
}

#[test]
fn a_share_that_is_too_small_is_refused_at_format() {
    with_seed(|rng| {
        let clock = crate::machine::Clock::new(rng.bits());
        let disk = crate::disk::MemoryDisk::new(&clock, map(65536, 1, 40));
        let mut world = crate::machine::World::new(&clock, 1);
        let ctx = world.ctx.clone();
        let result = world.run(async move { Store::format(ctx, &disk.stripes(), NODE).await });
        assert_eq!(result, Err(StoreError::TooSmall { stripes: 20, needed: 52 }));
    });
}

#[test]
fn a_large_tree_grows_and_shrinks_like_a_plain_map() {
    with_seed(|rng| {
        let mut bench = Bench::new(rng, map(65536, 2, 4000));
        let mut rng = Rng::new(rng.bits());
        let store = bench.mount();
        bench.run(async move {
            let mut model = Map::new();
            let mut answered_now = 0;
            // Long keys make a tree of several levels out of few of them.
            let key = |number: u64| {
                Bytes::from(format!("{:0250}", number.wrapping_mul(0x9E37_79B9) % 20_000))
            };
            for round in 0..12u8 {
                let grows = round % 6 < 4;
                for _ in 0..2500 {
                    let key = key(rng.below(20_000));
                    let mut batch = Batch::new();
                    if rng.chance(if grows { 9 } else { 0 }, 10) {
                        let value = Bytes::from(vec![round; rng.below(60) as usize]);
                        batch.put(key.clone(), value.clone());
                        model.insert(key, value);
                    } else if let Some((key, _)) = model.range(key..).next() {
                        let key = key.clone();
                        batch.delete(key.clone());
                        model.remove(&key);
                    }
                    patiently(&store, batch).await.unwrap();
                }
                flush(&store).await;
                audit(&store, &model).await;
                assert_eq!(store.keys(), model.len() as u64);
                let all = store.scan(Bound::Unbounded, b"~", usize::MAX).await.unwrap();
                // Of a tree that is larger than the cache the first part is not there any more.
                let at_once = store.try_scan_now(b"", b"~", usize::MAX);
                answered_now += u32::from(at_once.is_some());
                assert!(at_once.is_none_or(|found| found.unwrap() == all));
                assert!(all.into_iter().eq(model.clone()));
            }
            assert!(answered_now > 0, "a tree with few keys is in memory");
        });
    });
}

#[test]
fn reads_beside_commits_and_checkpoints_miss_nothing() {
    with_seed(|rng| {
        let mut bench = Bench::new(rng, map(65536, 2, 1600));
        let store = bench.mount();
        bench.run(async move {
            for number in 0..KEYS {
                patiently(&store, put(number_key(2 * number), vec![1; 3000])).await.unwrap();
            }
            flush(&store).await;
        });
        bench.crash();
        let store = bench.mount();
        bench.disk.set_delay(300);
        let written = Rc::new(Cell::new(0));
        let ctx = bench.world.ctx.clone();
        ctx.task(write_odd(ctx.clone(), store.clone(), written.clone()));
        bench.run(async move {
            while written.get() < KEYS {
                let before = written.get();
                let found = store.scan(Bound::Unbounded, b"~", usize::MAX).await.unwrap();
                let found: Vec<Bytes> = found.into_iter().map(|(key, _)| key).collect();
                assert!(found.is_sorted_by(|one, next| one < next));
                let even = (0..KEYS).map(|number| number_key(2 * number));
                for key in even.chain((0..before).map(odd_key)) {
                    assert!(found.binary_search(&key).is_ok(), "{key:?} is missing");
                }
                if before > 0 {
                    assert!(store.get(&odd_key(before - 1)).await.unwrap().is_some());
                }
                // Time goes on though all pages may be in memory.
                ctx.sleep(Duration::from_micros(1)).await;
            }
        });
    });
}

/// While a slow read runs its page may be freed, and another one take its place.
#[test]
fn reads_that_take_longer_than_checkpoints_miss_nothing() {
    with_seed(|rng| {
        let mut bench = Bench::new(rng, map(65536, 2, 400));
        let store = bench.mount();
        let rewrite = async |store: &Store, round: u8| {
            for number in 0..KEYS / 10 {
                patiently(store, put(number_key(number), vec![round; 3000])).await.unwrap();
            }
            flush(store).await;
        };
        bench.run(async move { rewrite(&store, 0).await });
        for _ in 0..10 {
            bench.crash();
            let store = bench.mount();
            let ctx = bench.world.ctx.clone();
            bench.disk.set_read_delay(3000);
            bench.run(async move {
                let gets = (0..KEYS / 10).map(|number| {
                    let store = store.clone();
                    async move {
                        let found = store.get(&number_key(number)).await.unwrap();
                        assert_eq!(found.map(|value| value.len()), Some(3000), "{number}");
                    }
                });
                let rewriting = async {
                    ctx.sleep(Duration::from_millis(8)).await;
                    for round in 1..8 {
                        rewrite(&store, round).await;
                    }
                };
                futures::join!(futures::future::join_all(gets), rewriting);
            });
            bench.disk.set_read_delay(0);
        }
    });
}

/// What a checkpoint reads may have to wait for what it writes, and for nothing else. (`mdfs-lab
/// sim` found it: names 113955505 at commit 4207002.)
#[test]
fn a_checkpoint_goes_on_in_a_cache_of_few_lines() {
    with_seed(|rng| {
        let mut bench = Bench::new(rng, map(65536, 2, 1600));
        for round in 0..3 {
            let store = bench.mount();
            bench.disk.set_delay(300);
            bench.disk.set_lines(4);
            bench.run(async move {
                for index in 0..KEYS {
                    let key = number_key(index * 37 % KEYS);
                    patiently(&store, put(key, vec![round; 3000])).await.unwrap();
                }
                flush(&store).await;
            });
            bench.crash();
        }
    });
}

const KEYS: u64 = 2000;

/// Odd numbers in an order that goes over all leaves again and again.
fn odd_key(index: u64) -> Bytes {
    number_key(2 * (index * 7 % KEYS) + 1)
}

async fn write_odd(ctx: runtime::Context, store: Rc<Store>, written: Rc<Cell<u64>>) {
    for first in (0..KEYS).step_by(10) {
        let mut batch = Batch::new();
        for index in first..first + 10 {
            batch.put(odd_key(index), vec![2; 100]);
        }
        patiently(&store, batch).await.unwrap();
        written.set(first + 10);
        if first % 100 == 0 {
            let store = store.clone();
            ctx.task(async move { store.checkpoint().await.unwrap() });
        }
        ctx.sleep(Duration::from_micros(700)).await;
    }
}
