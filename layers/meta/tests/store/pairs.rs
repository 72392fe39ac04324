//! Data with two copies on disks of different size: what it leaves is on two disks.

use blockio::plan::{FreeDisk, Spread, plan_redundancy, plan_sets};
use blockio::{DiskName, Geometry, RedundancyClass, Stripes as _, VolumeMap};
use meta::store::{Batch, Store, StoreError, kept_blocks};
use runtime::VolumeId;
use runtime::seed::{Rng, with_seed};

use crate::bench::{Bench, flush, patiently, run_key};

const STRIPE: u32 = 65536;
/// Refusals in a row that only ask for patience, at most: then there is space, or none.
const BUSY_MAX: u32 = 20;

/// Two disks of these numbers of stripes.
fn uneven(stripes: [u64; 2]) -> VolumeMap {
    let geometry = Geometry { volume: VolumeId(0x1234_5678), stripe_size: STRIPE, fs_nodes: 2 };
    let disks = [0, 1].map(|disk_node| FreeDisk {
        disk: DiskName { disk_node, disk: 0 },
        base: 0,
        stripes: stripes[disk_node as usize],
    });
    let sets = plan_sets(&geometry, 0, &disks, Spread::Units).unwrap();
    let map = VolumeMap::new(geometry, sets).unwrap();
    plan_redundancy(&map, RedundancyClass::Copies { count: 2 }).unwrap()
}

/// Free blocks on the disk that has the fewest.
fn free_on_fullest(store: &Store) -> u64 {
    let on = store.space().blocks_on_disks();
    assert_eq!(on.len(), 2);
    on.values().map(|(used, all)| all - used).min().unwrap()
}

/// Writes blocks with two copies until there is no space; `NoSpace` is told in a moment.
async fn fill(store: &Store, rng: &mut Rng) {
    let mut busy = 0;
    while busy < BUSY_MAX {
        let blocks = 1 + rng.below(40) as u32;
        let taken = store.space().allocate(blocks).and_then(|runs| {
            let mirrors =
                store.space().allocate_mirrors(std::slice::from_ref(&runs), (1, 1), false);
            mirrors.inspect_err(|_| store.space().release(&runs).unwrap()).map(|mut all| {
                all.push(runs);
                all.concat()
            })
        });
        let runs = match taken {
            Ok(runs) => runs,
            Err(StoreError::NoSpace) if blocks == 1 => return,
            Err(StoreError::NoSpace) => continue,
            Err(StoreError::Busy) => {
                busy += 1;
                flush(store).await;
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        busy = 0;
        let mut batch = Batch::new();
        batch.take_kept_room();
        for run in runs {
            batch.allocated(run);
            batch.put(run_key(run), bytes::Bytes::new());
        }
        patiently(store, batch).await.unwrap();
    }
    panic!("a store without space only says that it is busy");
}

/// Looks at fresh stores on uneven disks and even ones. `look` is told the blocks that are kept
/// back, and the sizes of the disks.
fn on_disks(look: impl Fn(&mut Rng, &mut Bench, u64, [u64; 2])) {
    with_seed(|rng| {
        for stripes in [[800, 300], [300, 900], [400, 400]] {
            let map = uneven(stripes);
            let kept = kept_blocks(&map);
            let mut bench = Bench::new(rng, map);
            look(rng, &mut bench, kept, stripes);
        }
    });
}

#[test]
fn a_full_store_has_what_it_keeps_back_on_two_disks() {
    on_disks(|rng, bench, kept, stripes| {
        let store = bench.mount();
        let filled = store.clone();
        let mut drawn = Rng::new(rng.bits());
        bench.run(async move { fill(&filled, &mut drawn).await });
        let least = free_on_fullest(&store);
        assert!(least * 4 >= kept, "{least} blocks on the fullest of {stripes:?}, of {kept}");
    });
}

#[test]
fn a_store_that_gives_groups_away_keeps_enough_on_two_disks() {
    on_disks(|_, bench, kept, stripes| {
        let store = bench.mount();
        let given = store.space().spare_groups(usize::MAX, false);
        assert!(!given.is_empty());
        let mut give = Batch::new();
        for group in &given {
            give.give_group(*group);
        }
        store.commit(give).unwrap();
        let check = || {
            let left = free_on_fullest(&store);
            // A part of what is kept back is for the tree, which is there already.
            assert!(20 * left >= 9 * kept, "{left} blocks of {stripes:?}, of {kept}");
        };
        check();
        // One more takes from what is kept back, whichever it is.
        let all = store.space().groups();
        let map = bench.disk.map();
        let enough = all.iter().filter(|group| {
            let mut more = Batch::new();
            more.give_group(**group);
            store.commit(more).is_ok()
        });
        assert!(enough.count() < all.len(), "all groups of {map:?} are given");
        check();
    });
}
