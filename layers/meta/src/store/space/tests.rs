use std::cell::Cell;

use blockio::{Geometry, VolumeMap};
use runtime::VolumeId;
use runtime::seed::{Rng, with_seed};

use super::set_search::FREED_MIN;
use super::*;

const STRIPES: u64 = 96;
const PER_STRIPE: u64 = 16;
const NOWHERE: IsOfKind<'_> = &|_, _| false;

fn space() -> BlockAllocator {
    space_of(STRIPES)
}

fn space_of(stripes: u64) -> BlockAllocator {
    space_on((2, 1), stripes, (3, 1))
}

/// What `node` of `fs_nodes` has of a volume of `stripes` stripes at first.
pub(super) fn space_on(
    (disk_nodes, disks): (u32, u32),
    stripes: u64,
    (fs_nodes, node): (u32, u32),
) -> BlockAllocator {
    let geometry = Geometry { volume: VolumeId(1), stripe_size: 65536, fs_nodes };
    let stripes = stripes / u64::from(disk_nodes * disks);
    let map = VolumeMap::grid(geometry, disk_nodes, disks, stripes).expect("a small volume");
    let layout = GroupLayout::of(&map);
    let mut space = BlockAllocator::new(layout.clone());
    for group in layout.born(node) {
        let blocks = layout.blocks_of(group);
        space.add_group(group, &Rc::new(Bits::new((blocks.end - blocks.start) as u32, false)));
    }
    space
}

#[test]
fn the_first_stripes_of_all_nodes_are_held_by_different_caches() {
    let geometry = Geometry { volume: VolumeId(1), stripe_size: 65536, fs_nodes: 64 };
    let map = VolumeMap::grid(geometry, 2, 2, 1 << 20).expect("a large volume");
    let layout = GroupLayout::of(&map);
    let first = |node: u32| {
        let mut space = BlockAllocator::new(layout.clone());
        for group in layout.born(node).take(2) {
            let blocks = layout.blocks_of(group);
            let bits = Bits::new((blocks.end - blocks.start) as u32, false);
            space.add_group(group, &Rc::new(bits));
        }
        space.begin_at(node);
        let all = space.whole.total();
        let first = take_whole(&mut space).unwrap();
        assert_eq!((1..all).filter_map(|_| take_whole(&mut space)).count() as u64, all - 1);
        first
    };
    assert!((0..64).all(|node| first(node) % 64 == u64::from(node)));
}

fn check(space: &BlockAllocator, used: &BTreeSet<u64>) {
    let busy: BTreeSet<u64> = space.busy_runs().iter().flat_map(Run::blocks).collect();
    assert_eq!(&busy, used);
    let owned: Vec<u64> = space.groups().flat_map(|group| space.layout.stripes_of(group)).collect();
    let whole = owned.iter().filter(|&&stripe| {
        space.layout.stripe_run(stripe).blocks().all(|block| !used.contains(&block))
    });
    assert_eq!(space.whole.total(), whole.count() as u64);
    assert_eq!(space.free_blocks, owned.len() as u64 * PER_STRIPE - used.len() as u64);
}

/// What can be handed out, by what is in use.
fn available(space: &BlockAllocator, used: &BTreeSet<u64>, floor: u64, unit: u32) -> u64 {
    let (mut whole, mut units) = (0_u64, 0);
    for stripe in space.groups().flat_map(|group| space.layout.stripes_of(group)) {
        let blocks = space.layout.stripe_run(stripe).blocks();
        if used.range(blocks.clone()).next().is_none() {
            whole += 1;
            continue;
        }
        let starts = blocks.step_by(unit as usize);
        let is_free = |start: &u64| used.range(*start..start + u64::from(unit)).next().is_none();
        units += starts.filter(is_free).count() as u64;
    }
    let stripes = whole.checked_sub(floor);
    stripes.map_or(0, |stripes| stripes * PER_STRIPE + units * u64::from(unit))
}

fn size(rng: &mut Rng) -> u32 {
    if rng.chance(1, 2) { 1 + rng.below(8) as u32 } else { 1 + rng.below(70) as u32 }
}

fn near(rng: &mut Rng) -> Near {
    match rng.below(5) {
        0 => Near::Anywhere {},
        4 => Near::InDomain {
            domain: rng.below(3) as u32,
            process: None,
            skip: rng.below(PER_STRIPE + 4) as u32,
        },
        1 => Near::On { process: rng.below(3) as u32, skip: rng.below(PER_STRIPE + 4) as u32 },
        // Perhaps of another node, or of none.
        2 => Near::At { block: rng.below((STRIPES + 4) * PER_STRIPE), or_apart: rng.chance(1, 2) },
        _ => Near::Apart { skip: rng.below(PER_STRIPE + 4) as u32 },
    }
}

#[test]
fn blocks_are_handed_out_where_they_are_wished_for_if_these_are_free() {
    let mut space = space();
    let mut allocate = |blocks, near| space.allocate((blocks, 1), 0, near, NOWHERE).unwrap();
    let apart = allocate(5, Near::Apart { skip: 3 });
    let [Run { start, count: 5 }] = apart[..] else { panic!("{apart:?}") };
    assert_eq!(start % PER_STRIPE, 3);
    assert_eq!(
        allocate(3, Near::At { block: start - 3, or_apart: true }),
        [Run { start: start - 3, count: 3 }]
    );
    assert_eq!(
        allocate(8, Near::At { block: start + 5, or_apart: true }),
        [Run { start: start + 5, count: 8 }]
    );
    // In use; across the end of a stripe; not owned.
    for block in [start, start + PER_STRIPE - 4, u64::MAX - 1, STRIPES * PER_STRIPE] {
        let elsewhere = allocate(2, Near::At { block, or_apart: false });
        assert_ne!(elsewhere[0].start, block);
    }
    let own = allocate(3, Near::At { block: start, or_apart: true });
    assert_eq!(own[0].start % PER_STRIPE, start % PER_STRIPE);
}

#[test]
fn each_process_gets_stripes_in_a_row_of_those_that_it_caches() {
    let mut space = space();
    let of_process = |process: u64| move |_: StripeKind, stripe: u64| stripe % 3 == process;
    let on = |space: &mut BlockAllocator, process: u64, blocks, skip| {
        let near = Near::On { process: process as u32, skip };
        let runs = space.allocate((blocks, 1), 0, near, &of_process(process)).unwrap();
        let [run] = runs[..] else { panic!("{runs:?}") };
        (space.layout.stripe_of(run.start), run.start % PER_STRIPE)
    };
    let first: Vec<_> = [0, 1, 0, 2, 0, 1].map(|process| on(&mut space, process, 16, 0)).into();
    assert_eq!(first, [6, 4, 18, 5, 30, 7].map(|stripe| (stripe, 0)));
    assert_eq!(on(&mut space, 2, 5, 3), (17, 3), "a part of a chunk gets a stripe of its own");
    // What others have left out is not lost.
    let rest: u64 = space.free_blocks;
    let mut got = 0;
    while let Some(runs) = space.allocate((1, 1), 0, Near::Anywhere {}, NOWHERE) {
        got += runs.len() as u64;
    }
    assert_eq!(got, rest);
    // None of its own: any.
    space.set_busy(space.layout.stripe_run(4).blocks(), false);
    let near = Near::On { process: 0, skip: 0 };
    let other = space.allocate((16, 1), 0, near, &of_process(0)).unwrap();
    assert_eq!(space.layout.stripe_of(other[0].start), 4);
}

#[test]
fn the_search_for_stripes_of_one_process_is_bounded_and_goes_on_where_it_stopped() {
    let mut space = space_of(61_440);
    let groups = space.groups.len();
    let last = *space.groups.last_key_value().unwrap().0;
    let only = space.layout.stripes_of(last).start;
    let looked_at = Cell::new(0);
    let near = Near::On { process: 0, skip: 0 };
    let mut searches = 0;
    while space
        .near(near, (PER_STRIPE, 1), 0, &|_, stripe| {
            looked_at.set(looked_at.get() + 1);
            stripe == only
        })
        .is_none_or(|run| space.layout.stripe_of(run.start) != only)
    {
        searches += 1;
        assert!(looked_at.take() <= GROUPS_SEARCHED_MAX as u64 * 256);
        assert!(searches <= groups, "what there is must be found in the end");
    }
    assert!(searches > 1);
}

#[test]
fn a_bound_of_what_fits_never_hides_room() {
    with_seed(|rng| {
        let mut space = space();
        let mut out = Vec::new();
        for _ in 0..2000 {
            if rng.chance(2, 3) {
                out.extend(
                    space
                        .allocate((1 + rng.below(15) as u32, 1), 0, near(rng), NOWHERE)
                        .into_iter()
                        .flatten(),
                );
            } else if !out.is_empty() {
                space.return_loan(out.swap_remove(rng.index(out.len())));
            }
            for (&number, group) in &space.groups {
                let fits = space.layout.stripes_of(number).filter_map(|stripe| {
                    let local = group.local(space.layout.stripe_run(stripe).blocks());
                    let is_whole = group.busy.ones_in(local.clone()) == 0;
                    let longest = group.busy.runs(local, false).map(|run| run.end - run.start);
                    if is_whole { None } else { longest.max() }
                });
                assert!(fits.max().unwrap_or(0) <= group.fit_max);
            }
        }
    });
}

#[test]
fn blocks_are_handed_out_once_and_all_or_none() {
    with_seed(|rng| {
        let (mut space, mut used, mut out) = (space(), BTreeSet::new(), Vec::<Run>::new());
        for _ in 0..2000 {
            if rng.chance(3, 5) {
                let unit = [1, 1, 2, 4, 16][rng.index(5)];
                let (blocks, floor) = (size(rng).next_multiple_of(unit), rng.below(4));
                let can_be_had = available(&space, &used, floor, unit);
                assert_eq!(space.available(floor, unit), can_be_had);
                let near = near(rng);
                let caches = |_, stripe| matches!(near, Near::On { process, .. } if stripe % 3 == u64::from(process));
                let Some(runs) = space.allocate((blocks, unit), floor, near, &caches) else {
                    assert!(u64::from(blocks) > can_be_had);
                    check(&space, &used);
                    continue;
                };
                assert!(u64::from(blocks) <= can_be_had);
                let are_whole = |run: &Run| {
                    let unit = u64::from(unit);
                    [run.start, run.count.into()].iter().all(|at| at.is_multiple_of(unit))
                };
                assert!(runs.iter().all(are_whole), "{runs:?}");
                assert_eq!(runs.iter().map(|run| run.count).sum::<u32>(), blocks);
                assert!(space.whole.total() >= floor);
                for run in &runs {
                    assert!(space.layout.is_run(*run) && space.is_loaned(*run));
                    assert!(run.blocks().all(|block| used.insert(block)));
                }
                out.extend(runs);
            } else if !out.is_empty() {
                let run = out.swap_remove(rng.index(out.len()));
                if rng.chance(1, 2) {
                    space.keep_loan(run);
                    assert!(space.is_kept(run));
                    space.set_kept(run, false);
                    space.set_busy(run.blocks(), false);
                } else {
                    space.return_loan(run);
                }
                run.blocks().for_each(|block| assert!(used.remove(&block)));
            }
            check(&space, &used);
        }
    });
}

#[test]
fn large_requests_get_stripes_in_a_row_and_small_ones_share_one() {
    let mut space = space();
    let runs = space.allocate((64, 1), 0, Near::Anywhere {}, NOWHERE).unwrap();
    let stripes: Vec<u64> = runs.iter().map(|run| space.layout.stripe_of(run.start)).collect();
    assert_eq!(stripes, [4, 5, 6, 7]);
    let small: Vec<Run> = (0..4)
        .flat_map(|_| space.allocate((4, 1), 0, Near::Anywhere {}, NOWHERE).unwrap())
        .collect();
    assert!(small.iter().all(|run| space.layout.stripe_of(run.start) == 16));
    let next = space.allocate((16, 1), 0, Near::Anywhere {}, NOWHERE).unwrap();
    assert_eq!(space.layout.stripe_of(next[0].start), 17);
}

#[test]
fn what_was_freed_is_used_again_before_what_never_was_used() {
    let mut space = space_of(30 * FREED_MIN);
    let mut used = BTreeSet::new();
    let mut file = |space: &mut BlockAllocator| {
        let runs = space
            .allocate(((FREED_MIN * PER_STRIPE) as u32, 1), 0, Near::Anywhere {}, NOWHERE)
            .unwrap();
        used.extend(runs.iter().map(|run| run.start));
        runs
    };
    let (mut old, _live) = (file(&mut space), file(&mut space));
    for _ in 0..20 {
        let new = file(&mut space);
        for run in std::mem::replace(&mut old, new) {
            space.keep_loan(run);
            space.set_kept(run, false);
            space.set_busy(run.blocks(), false);
        }
    }
    let all = space.owned_stripes();
    assert!(used.len() as u64 <= 4 * FREED_MIN && all > 8 * FREED_MIN, "{} of {all}", used.len());
}

#[test]
fn a_group_that_was_taken_is_used_only_once_it_is_released() {
    let mut space = space();
    let free = space.free_blocks;
    space.add_blocked_group(0);
    assert_eq!(space.free_blocks, free);
    assert!(!space.is_kept(Run { start: 0, count: 1 }));
    space.set_busy(space.layout.blocks_of(0), false);
    assert_eq!(space.free_blocks, free + 64);
    assert!(space.is_free_group(0));
    space.remove_group(0);
    assert_eq!(space.free_blocks, free);
    assert_eq!(space.owned_stripes(), 32);
}

fn take_whole(space: &mut BlockAllocator) -> Option<u64> {
    let stripe = space.find_whole(None, |_| true)?;
    space.set_busy(space.layout.stripe_run(stripe).blocks(), true);
    Some(stripe)
}
