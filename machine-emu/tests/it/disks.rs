//! Disks: what survives, what is refused, and what goes wrong on request.

use std::io::ErrorKind;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use machine_emu::{DiskEvent, DiskFaults, DiskOperation, FaultKind, Survival, World, WorldShape};
use runtime::NodeId;
use runtime::disk::Disk;
use runtime::seed::with_seed;

const LENGTH: u64 = 1 << 20;
const NODE: NodeId = NodeId::disk(0);

fn world(seed: u64) -> World {
    let world = World::new(seed, WorldShape { fs_nodes: 0, disk_nodes: 2 });
    world.create_disk("disk", LENGTH);
    world
}

async fn open(world: &World) -> Rc<dyn Disk> {
    world.context(NODE).open_disk("disk").await.unwrap()
}

fn page(value: u8) -> Vec<Bytes> {
    vec![Bytes::from(vec![value; 2048]); 2]
}

#[test]
fn flushed_writes_survive_any_crash_and_others_only_as_sectors() {
    with_seed(|rng| {
        let world = world(rng.bits());
        for value in 1..50 {
            world.run(async {
                let disk = open(&world).await;
                disk.write(0, page(value)).await.unwrap();
                disk.sync().await.unwrap();
                disk.write(4096, page(value)).await.unwrap();
                // Under way when the power goes.
                drop(disk.write(8192, page(value)));
            });
            world.crash(NODE);
            world.restart(NODE);
            let content = world.run(async { open(&world).await.read(0, 12_288).await.unwrap() });
            assert!(content[..4096].iter().all(|&byte| byte == value));
            for sector in content[4096..].chunks(512) {
                assert!(sector[0] <= value && sector.iter().all(|&byte| byte == sector[0]));
            }
        }
        let faults = world.counters().faults;
        assert!(faults.len() >= 3, "writes must have been dropped and torn: {faults:?}");
    });
}

#[test]
fn a_write_answered_during_a_flush_is_not_covered_by_it() {
    let world = world(1);
    world.run(async {
        let disk = open(&world).await;
        disk.write(0, page(1)).await.unwrap();
        let flush = disk.sync();
        disk.write(4096, page(2)).await.unwrap();
        flush.await.unwrap();
    });
    assert_eq!(world.disk("disk").unflushed(), [(4096, 4096)]);
    world.disk("disk").cut_power(|_, _| Survival::Lost);
    assert_eq!(world.disk("disk").peek(4095, 2), [1, 0]);
}

#[test]
fn what_a_killed_process_wrote_is_still_there() {
    let world = world(1);
    world.run(async {
        let disk = open(&world).await;
        drop(disk.write(0, page(9)));
    });
    world.kill(NODE);
    world.run_until_idle();
    world.restart(NODE);
    let read = world.run(async { open(&world).await.read(0, 1).await.unwrap() });
    assert_eq!(read[0], 9);
}

#[test]
fn a_disk_is_opened_by_one_incarnation_of_one_node_at_a_time() {
    let world = world(1);
    let [first, second] = [0, 1].map(|index| world.context(NodeId::disk(index)));
    world.run(async {
        let missing = first.open_disk("nowhere").await.err().unwrap();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        let disk = first.open_disk("disk").await.unwrap();
        let busy = second.open_disk("disk").await.err().unwrap();
        assert_eq!(busy.kind(), ErrorKind::ResourceBusy);
        world.kill(first.node());
        let taken = second.open_disk("disk").await.unwrap();
        assert!(disk.write(0, page(1)).await.is_err(), "a dead node writes nothing");
        drop(disk);
        taken.write(0, page(2)).await.unwrap();
        drop(taken);
        assert!(second.open_disk("disk").await.is_ok());
    });
}

#[test]
fn bytes_past_the_end_are_refused() {
    let world = world(1);
    world.run(async {
        let disk = open(&world).await;
        assert_eq!(disk.length(), LENGTH);
        for (offset, length) in [(LENGTH, 1), (LENGTH - 1, 2), (u64::MAX, 2)] {
            let error = disk.read(offset, length).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
        }
        assert!(disk.write(LENGTH - 1, page(1)).await.is_err());
    });
}

#[test]
fn what_is_read_comes_in_buffers_of_the_node() {
    let world = world(1);
    world.set_pool_limit_bytes(8192);
    let context = world.restart(NODE);
    world.run(async {
        let disk = context.open_disk("disk").await.unwrap();
        let first = disk.read(0, 8192).await.unwrap();
        let error = disk.read(0, 1).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        drop(first);
        assert!(disk.read(0, 1).await.is_ok());
    });
}

#[test]
fn an_ordered_failure_hits_the_operation_it_was_ordered_for() {
    let world = world(1);
    let control = world.disk("disk");
    control.fail(DiskOperation::Read, 2, false, ErrorKind::Other);
    control.fail(DiskOperation::Write, 1, true, ErrorKind::StorageFull);
    world.run(async {
        let disk = open(&world).await;
        let mut reads = Vec::new();
        for _ in 0..4 {
            reads.push(disk.read(0, 1).await.is_ok());
        }
        assert_eq!(reads, [true, true, false, true]);
        assert!(disk.write(0, page(1)).await.is_ok());
        for _ in 0..3 {
            let error = disk.write(0, page(1)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::StorageFull);
        }
        control.repair();
        assert!(disk.write(0, page(1)).await.is_ok());
    });
}

#[test]
fn a_failed_flush_may_forget_writes_for_good() {
    let world = world(4);
    let control = world.disk("disk");
    control.fail(DiskOperation::Sync, 0, false, ErrorKind::Other);
    world.run(async {
        let disk = open(&world).await;
        for place in 0..64 {
            disk.write(place * 4096, page(1)).await.unwrap();
        }
        assert!(disk.sync().await.is_err());
        disk.sync().await.unwrap();
    });
    control.cut_power(|_, _| Survival::Lost);
    let kept = (0..64).filter(|place| control.peek(place * 4096, 1) == [1]).count();
    assert!((1..64).contains(&kept), "{kept}");
}

#[test]
fn lost_misdirected_and_ignored_operations_are_answered_as_if_done() {
    let world = world(3);
    let control = world.disk("disk");
    let always = 1_000_000;
    world.run(async {
        let disk = open(&world).await;
        control.set_faults(DiskFaults { lost_write_ppm: always, ..Default::default() });
        disk.write(0, page(1)).await.unwrap();
        assert_eq!(control.peek(0, 1), [0]);
        control.set_faults(DiskFaults { misdirected_write_ppm: always, ..Default::default() });
        disk.write(0, page(2)).await.unwrap();
        let content = control.peek(0, LENGTH as usize);
        let place = content.iter().position(|&byte| byte == 2).unwrap();
        assert!(place > 0 && content[place..place + 4096].iter().all(|&byte| byte == 2));
        control.set_faults(DiskFaults { ignored_sync_ppm: always, ..Default::default() });
        disk.sync().await.unwrap();
    });
    assert_eq!(control.unflushed().len(), 1);
}

#[test]
fn rotten_bits_and_old_copies_are_read_as_if_nothing_were() {
    let world = world(3);
    let control = world.disk("disk");
    world.run(async {
        let disk = open(&world).await;
        disk.write(0, page(1)).await.unwrap();
        let old = control.snapshot();
        assert_eq!(old.unflushed(), [(0, 4096)]);
        disk.write(0, page(2)).await.unwrap();
        control.rot(10, 3);
        let read = disk.read(0, 4096).await.unwrap();
        assert_eq!(read.iter().filter(|&&byte| byte != 2).count(), 3);
        control.restore(&old);
        assert!(disk.read(0, 1).await.is_err(), "the disk was pulled out");
        assert_eq!(open(&world).await.read(0, 1).await.unwrap()[0], 1);
    });
}

/// The way of a crash enumerator: one moment, every subset of what was not flushed.
#[test]
fn every_subset_of_unflushed_writes_can_be_looked_at() {
    let world = world(1);
    let snapshot = world.run(async {
        let disk = open(&world).await;
        disk.write(0, page(1)).await.unwrap();
        disk.write(4096, page(1)).await.unwrap();
        drop(disk.write(8192, page(1)));
        world.disk("disk").snapshot()
    });
    assert_eq!(snapshot.unflushed(), [(0, 4096), (4096, 4096), (8192, 4096)]);
    let mut seen = Vec::new();
    for subset in 0..8 {
        let control = world.disk("disk");
        control.restore(&snapshot);
        let mut bits = subset;
        control.cut_power(|_, _| {
            let kept = bits & 1 == 1;
            bits >>= 1;
            if kept { Survival::Whole } else { Survival::Lost }
        });
        seen.push([0, 4096, 8192].map(|offset| control.peek(offset, 1)[0]));
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 8);
}

/// What is durable on `disk` by its record.
fn replay(disk: &mut machine_emu::DiskSnapshot, events: &[DiskEvent]) {
    for event in events {
        let DiskEvent::Flushed { writes, .. } = event else { continue };
        for &write in writes {
            let DiskEvent::Write { offset, data, .. } = &events[write] else { panic!("no write") };
            disk.write(*offset, data);
        }
    }
}

#[test]
fn the_record_of_a_disk_tells_what_is_durable_on_it() {
    with_seed(|rng| {
        let world = world(rng.bits());
        let mut replayed = world.disk("disk").snapshot();
        world.record_disks();
        world.run(async {
            let disk = open(&world).await;
            for value in 1..100 {
                let offset = rng.below(100) * 4096;
                let writing = disk.write(offset, page(value));
                match rng.below(4) {
                    0 => drop(writing),
                    1 => drop((writing, disk.sync())),
                    2 => writing.await.unwrap(),
                    _ => {
                        writing.await.unwrap();
                        disk.sync().await.unwrap();
                    }
                }
            }
        });
        let events = world.disk_events();
        assert_eq!(events.len(), world.disk_events_count());
        let written = events.iter().filter(|event| matches!(event, DiskEvent::Write { .. }));
        assert_eq!(written.count(), 99);
        world.disk("disk").cut_power(|_, _| Survival::Lost);
        replay(&mut replayed, &events);
        let length = LENGTH as usize;
        assert!(replayed.read(0, length) == world.disk("disk").peek(0, length));
    });
}

#[test]
fn a_flush_that_a_disk_ignores_is_recorded_without_writes() {
    let world = world(3);
    world.disk("disk").set_faults(DiskFaults { ignored_sync_ppm: 1_000_000, ..Default::default() });
    world.record_disks();
    world.run(async {
        let disk = open(&world).await;
        disk.write(0, page(1)).await.unwrap();
        disk.sync().await.unwrap();
    });
    assert_eq!(world.disk_events()[1], DiskEvent::Flushed { disk: 0, writes: vec![] });
}

#[test]
fn operations_overlap_and_a_slow_disk_is_slow() {
    let world = world(3);
    let elapsed = |world: &World| {
        let before = world.now();
        world.run(async {
            let disk = open(world).await;
            join_all((0..32).map(|place| disk.read(place * 4096, 4096))).await;
        });
        world.now().saturating_sub(before)
    };
    let normal = elapsed(&world);
    assert!(normal < Duration::from_micros(300), "{normal:?}");
    world.disk("disk").slow(100);
    assert!(elapsed(&world) > normal * 50);
}

#[test]
fn a_misdirected_read_brings_bytes_of_another_place() {
    let world = world(3);
    let read = |world: &World| world.run(async { open(world).await.read(0, 4096).await.unwrap() });
    world.run(async { open(&world).await.write(0, page(7)).await.unwrap() });
    let faults = DiskFaults { misdirected_read_ppm: 1_000_000, ..DiskFaults::default() };
    world.disk("disk").set_faults(faults);
    assert!(read(&world)[..] != [7; 4096]);
    assert_eq!(world.counters().faults[&FaultKind::DiskReadMisdirected], 1);
    world.disk("disk").repair();
    assert!(read(&world)[..] == [7; 4096], "the disk itself is as it was");
}

#[test]
fn a_stale_read_does_not_see_what_was_not_flushed() {
    let world = world(3);
    let read = |world: &World| world.run(async { open(world).await.read(0, 4096).await.unwrap() });
    world.run(async {
        let disk = open(&world).await;
        disk.write(0, page(1)).await.unwrap();
        disk.sync().await.unwrap();
        disk.write(0, page(2)).await.unwrap();
    });
    let faults = DiskFaults { stale_read_ppm: 1_000_000, ..DiskFaults::default() };
    world.disk("disk").set_faults(faults);
    assert!(read(&world)[..] == [1; 4096]);
    world.run(async { open(&world).await.sync().await.unwrap() });
    assert!(read(&world)[..] == [2; 4096], "nothing is left to be missed");
    assert_eq!(world.counters().faults[&FaultKind::DiskReadStale], 1);
}

#[test]
fn a_wiped_disk_is_zeros_and_an_old_image_brings_its_bytes_back() {
    let world = world(3);
    world.run(async { open(&world).await.write(8192, page(9)).await.unwrap() });
    let disk = world.disk("disk");
    assert_eq!(disk.written(), [8192]);
    let image = disk.snapshot();
    disk.wipe();
    assert!(disk.peek(0, LENGTH as usize).iter().all(|&byte| byte == 0));
    assert!(disk.written().is_empty() && disk.unflushed().is_empty());
    disk.restore(&image);
    assert_eq!(disk.peek(8192, 4096), [9; 4096]);
    assert_eq!(world.counters().faults[&FaultKind::DiskWiped], 1);
}
