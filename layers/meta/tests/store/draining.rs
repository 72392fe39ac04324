//! Disks are drained while the store is full.

use std::rc::Rc;

use blockio::{DiskName, DiskStage, Stripes as _, VolumeRecord};
use meta::store::{
    Batch, GroupLayout, MoveReason, SpaceStatus, Store, StoreError, StoreImage, kept_blocks,
};
use runtime::seed::{Rng, with_seed};

use crate::bench::{Bench, Map, NODE, flush, map, patiently, runs};
use crate::cases::{audit, delete, fill};

/// A full store, and all disks but one.
fn full(rng: &mut Rng) -> (Bench, Rc<Store>, Map, Vec<DiskName>) {
    let mut bench = Bench::new(rng, map(65536, 2, 400));
    let store = bench.mount();
    let filled = store.clone();
    let content = bench.run(async move {
        let content = fill(&filled, 16).await;
        flush(&filled).await;
        content
    });
    let mut disks = bench.disk.map().disks();
    disks.remove(rng.index(disks.len()));
    (bench, store, content, disks)
}

/// The record of the volume says that these disks are being drained.
fn drain(bench: &Bench, disks: &[DiskName]) {
    let map = bench.disk.map();
    let record = VolumeRecord::of(&map);
    let draining =
        disks.iter().fold(record, |record, &disk| record.with_state(disk, DiskStage::Draining {}));
    map.advance(&draining).unwrap();
}

/// What the store tells that is only read: the blocks that data can have, and whether there is room
/// to mount it.
fn look(bench: &mut Bench) -> (u64, bool) {
    let (ctx, stripes) = (bench.world.ctx.clone(), bench.disk.stripes());
    bench.run(async move {
        let image = StoreImage::read(&ctx, stripes, NODE).await.unwrap();
        (image.space().free_blocks, image.lacking_stripes().is_none())
    })
}

/// What is in the blocks of the first run of the content moves.
fn moves(store: &Store, content: &Map) -> bool {
    let blocks = runs(content).flat_map(|(run, _)| run.blocks());
    blocks.into_iter().any(|block| store.space().moves(block, MoveReason::Drain))
}

/// Deletes what is there, and closes the disks then.
async fn make_room(store: &Store, content: &Map) {
    assert!(!store.space().follow_map(), "there is no room without the disks");
    assert!(!moves(store, content), "there is no place to move it to");
    delete(store, content).await;
    audit(store, &Map::new()).await;
    assert!(store.space().follow_map() && store.space().is_closed_as_told());
}

#[test]
fn a_full_store_closes_disks_once_there_is_room_elsewhere() {
    with_seed(|rng| {
        let (mut bench, store, content, disks) = full(rng);
        drain(&bench, &disks);
        bench.run(async move { make_room(&store, &content).await });
        for _ in 0..2 {
            bench.crash();
            let store = bench.mount();
            assert!(store.space().is_closed_as_told(), "closed once, closed ever after");
        }
    });
}

#[test]
fn a_full_store_that_learns_of_a_drain_at_its_start_is_opened() {
    with_seed(|rng| {
        let (mut bench, _, content, disks) = full(rng);
        drain(&bench, &disks);
        for _ in 0..2 {
            bench.crash();
            let store = bench.mount();
            assert!(!store.space().is_closed_as_told());
        }
        let store = bench.mount();
        bench.run(async move { make_room(&store, &content).await });
    });
}

#[test]
fn groups_that_are_partly_on_a_closed_disk_change_hands() {
    with_seed(|rng| {
        let mut bench = Bench::new(rng, map(65536, 2, 400));
        let store = bench.mount();
        let disk = bench.disk.map().disks()[rng.index(4)];
        let kept_before = kept_blocks(&bench.disk.map());
        drain(&bench, &[disk]);
        assert!(kept_blocks(&bench.disk.map()) <= kept_before, "a smaller part is kept back");
        assert!(store.space().follow_map());
        let space = store.space().status();
        assert!(space.withheld_blocks > 0);
        let given = store.space().spare_groups(usize::MAX, false);
        let layout = GroupLayout::of(&bench.disk.map());
        let on_disk = |group: &u64| {
            layout.stripes_of(*group).any(|stripe| bench.disk.map().place(stripe).disk == disk)
        };
        assert!(given.iter().any(on_disk), "{given:?}");
        assert!(store.space().spare_blocks(false, 1) <= space.free_blocks);
        let (mut give, mut take) = (Batch::new(), Batch::new());
        for &group in &given {
            give.give_group(group);
            take.take_group(group);
        }
        store.commit(give).unwrap();
        let left = store.space().status();
        assert!(left.withheld_blocks < space.withheld_blocks);
        take.take_from_reserve();
        store.commit(take).unwrap();
        let flushed = store.clone();
        bench.run(async move { flush(&flushed).await });
        let after = store.space().status();
        // A page may have left the disk.
        let free = |space: &SpaceStatus| space.free_blocks + space.withheld_blocks;
        assert_eq!((after.owned_blocks, free(&after)), (space.owned_blocks, free(&space)));
        assert_eq!(store.space().spare_groups(usize::MAX, false), given);
    });
}

#[test]
fn a_disk_that_was_drained_is_not_needed_any_more() {
    with_seed(|rng| {
        for disk_nodes in [1, 2] {
            let mut bench = Bench::new(rng, map(65536, disk_nodes, 400));
            let store = bench.mount();
            let disks = bench.disk.map().disks();
            let drained = &disks[1..];
            bench.disk.lose_slots_of(drained);
            bench.crash();
            assert!(bench.try_mount().is_err(), "newer roots may be there");
            bench.disk.lose_slots_of(&[]);
            drop(store);

            drain(&bench, drained);
            let store = bench.mount();
            bench.run(async move {
                assert!(store.space().follow_map());
                for _ in 0..4 {
                    store.space().move_pages(MoveReason::Drain).await.unwrap();
                }
                assert_eq!(store.space().root_holders().len(), 1);
            });
            bench.disk.lose_slots_of(drained);
            bench.crash();
            bench.mount();
        }
    });
}

#[test]
fn a_store_that_is_only_read_tells_the_space_that_it_would_have() {
    with_seed(|rng| {
        let mut bench = Bench::new(rng, map(65536, 2, 400));
        for is_full in [false, true] {
            let store = bench.mount();
            bench.run(async move {
                for number in 0..600 {
                    let mut batch = Batch::new();
                    batch.put(format!("{number:0200}"), vec![1; 200]);
                    patiently(&store, batch).await.unwrap();
                }
                if is_full {
                    fill(&store, 16).await;
                }
            });
            bench.crash();
            let (free, has_room) = look(&mut bench);
            assert!(has_room);
            let mounted = bench.mount().space().status().free_blocks;
            assert!(free.abs_diff(mounted) <= 16, "{free} of {mounted}, full: {is_full}");
        }
    });
}

#[test]
fn a_store_without_room_to_start_is_told() {
    let mut without_room = 0;
    for seed in 0..40 {
        let (mut bench, _, _, disks) = full(&mut Rng::new(seed));
        bench.crash();
        let map = bench.disk.map();
        let record = disks.iter().fold(VolumeRecord::of(&map), |record, &disk| {
            record.with_state(disk, DiskStage::Retired {})
        });
        map.advance(&record).unwrap();
        if bench.try_mount().err() == Some(StoreError::NoSpace) {
            assert!(!look(&mut bench).1, "seed {seed}");
            without_room += 1;
        }
    }
    assert!(without_room > 4, "{without_room}");
}
