//! Lists against their naive expansion.

use runtime::seed::{Rng, with_seed};
use runtime::wire::{from_bytes, to_bytes};

use super::*;

/// Each packed byte's offset, by loops.
fn expanded(regions: &Regions) -> Vec<u64> {
    fn turn(levels: &[RegionLoop], start: u64, block: u64, out: &mut Vec<u64>) {
        match levels.split_first() {
            None => out.extend(start..start + block),
            Some((level, inner)) => {
                for i in 0..level.count {
                    turn(inner, start + i * level.stride, block, out);
                }
            }
        }
    }
    let mut out = Vec::new();
    for RegionPattern { start, block, levels } in regions.patterns() {
        turn(levels, *start, *block, &mut out);
    }
    out
}

/// Each packed byte's offset, by a walk.
fn walked(walk: RegionWalk<'_>) -> Vec<u64> {
    walk.flat_map(|region| region.offset..region.offset + region.length).collect()
}

fn any_window(length: u64, rng: &mut Rng) -> Range<u64> {
    let from = rng.below(length + 2);
    from..from + rng.below(length + 2)
}

#[test]
fn a_walk_through_any_window_is_that_part_of_the_expansion() {
    with_seed(|rng| {
        for _ in 0..2_000 {
            let regions = Regions::sample(rng);
            let bytes = expanded(&regions);
            assert_eq!(regions.bytes(), bytes.len() as u64);
            assert_eq!(regions.end(), bytes.iter().max().map_or(0, |last| last + 1));
            let window = any_window(regions.bytes(), rng);
            let part =
                (window.start as usize).min(bytes.len())..(window.end as usize).min(bytes.len());
            assert_eq!(walked(regions.walk(window.clone())), bytes[part.clone()], "{window:?}");
            let count = regions.walk(window.clone()).count() as u64;
            assert_eq!(regions.count_in(&window), count, "{regions:?} {window:?}");

            let mut walk = regions.walk(window.clone());
            let to = rng.below(regions.bytes() + 2);
            walk.skip_to(to);
            let rest = (to as usize).min(part.end)..part.end;
            assert_eq!(walked(walk), bytes[rest], "{regions:?} {window:?} to {to}");
        }
    });
}

#[test]
fn windows_cover_a_list_once_within_their_limits_and_their_parts_say_the_same() {
    with_seed(|rng| {
        for _ in 0..2_000 {
            let regions = Regions::sample(rng);
            let (bytes_max, align) = (rng.below(40) + 1, rng.below(8) + 1);
            let mut next = 0;
            for window in regions.windows(bytes_max, align) {
                assert_eq!(window.start, next);
                assert!(window.end > window.start && window.end - window.start <= bytes_max);
                let (part, inner) = regions.part(&window);
                assert_eq!(walked(part.walk(inner)), walked(regions.walk(window.clone())));
                next = window.end;
            }
            assert_eq!(next, regions.bytes());
        }
    });
}

#[test]
fn a_window_has_no_more_regions_than_a_request_may() {
    let regions = Regions::strided(0, 1, 3 * REGIONS_MAX + 5, 2).unwrap();
    let windows: Vec<_> = regions.windows(1 << 30, 4096).collect();
    assert_eq!(windows.len(), 4);
    assert!(windows.iter().all(|window| regions.count_in(window) <= REGIONS_MAX));
}

#[test]
fn a_long_region_is_cut_where_the_file_is_aligned() {
    let regions = Regions::contiguous(100, 20_000).unwrap();
    let windows: Vec<_> = regions.windows(8192, 4096).collect();
    assert_eq!(windows, [0..8092, 8092..16284, 16284..20_000]);
}

#[test]
fn a_part_of_an_array_is_what_loops_over_its_elements_find() {
    with_seed(|rng| {
        for _ in 0..500 {
            let dimensions = rng.index(4) + 1;
            let element = rng.below(5) + 1;
            let array: Vec<u64> = (0..dimensions).map(|_| rng.below(5) + 1).collect();
            let part: Vec<u64> = array.iter().map(|&size| rng.below(size) + 1).collect();
            let room = array.iter().zip(&part);
            let first: Vec<u64> = room.map(|(size, part)| rng.below(size - part + 1)).collect();
            let regions = Regions::subarray(7, element, &array, &part, &first).unwrap();

            let mut naive = Vec::new();
            for number in 0..part.iter().product() {
                let (mut rest, mut stride, mut offset) = (number, element, 7);
                for d in (0..dimensions).rev() {
                    offset += (first[d] + rest % part[d]) * stride;
                    rest /= part[d];
                    stride *= array[d];
                }
                naive.extend(offset..offset + element);
            }
            assert_eq!(walked(regions.walk(0..u64::MAX)), naive);
        }
    });
}

#[test]
fn what_lies_together_is_told_as_one() {
    let whole = Regions::subarray(0, 8, &[10, 20, 30], &[10, 20, 30], &[0, 0, 0]).unwrap();
    assert_eq!(whole.patterns(), [RegionPattern { start: 0, block: 48_000, levels: Vec::new() }]);
    let planes = Regions::subarray(0, 8, &[10, 20, 30], &[2, 20, 30], &[3, 0, 0]).unwrap();
    assert_eq!(planes.count(), 1);
    let tile = Regions::subarray(0, 3, &[1536, 2048], &[768, 1024], &[768, 1024]).unwrap();
    let level = RegionLoop { count: 768, stride: 6144 };
    let start = 768 * 6144 + 3072;
    assert_eq!(tile.patterns(), [RegionPattern { start, block: 3072, levels: vec![level] }]);
    let touching = Regions::indexed([(0, 5), (5, 5), (10, 0), (20, 1)]).unwrap();
    assert_eq!((touching.count(), touching.bytes()), (2, 11));
}

#[test]
fn a_million_regions_take_a_few_bytes() {
    let regions = Regions::nested(4, 8, &[(1000, 1 << 20), (1000, 64)]).unwrap();
    assert_eq!((regions.count(), to_bytes(&regions).len()), (1_000_000, 56));
    let mut walk = regions.walk(0..regions.bytes());
    walk.skip_to(8 * 999_999);
    let offset = 4 + 999 * (1 << 20) + 999 * 64;
    assert_eq!(walk.next(), Some(Region { offset, position: 8 * 999_999, length: 8 }));
    assert_eq!(walk.next(), None);
}

#[test]
fn a_list_that_breaks_a_limit_is_refused_in_any_form() {
    let pattern = |start, block, levels: &[(u64, u64)]| RegionPattern {
        start,
        block,
        levels: levels.iter().map(|&(count, stride)| RegionLoop { count, stride }).collect(),
    };
    let refused = [
        (vec![pattern(0, 0, &[])], RegionsError::Empty),
        (vec![pattern(0, 1, &[(0, 8)])], RegionsError::Empty),
        (vec![pattern(u64::MAX, 1, &[])], RegionsError::TooLarge),
        (vec![pattern(0, 1 << 63, &[])], RegionsError::TooLarge),
        (vec![pattern(1, 1, &[(2, u64::MAX)])], RegionsError::TooLarge),
        (vec![pattern(0, 1, &[(1 << 40, 0), (1 << 40, 0)])], RegionsError::TooLarge),
        (vec![pattern(0, 1 << 62, &[]), pattern(0, 1 << 62, &[])], RegionsError::TooLarge),
        (vec![pattern(0, 1, &[(1, 1); LEVELS_MAX + 1])], RegionsError::TooDeep),
        (vec![pattern(0, 1, &[]); PATTERNS_MAX + 1], RegionsError::TooMany),
    ];
    for (patterns, why) in refused {
        assert!(from_bytes::<Regions>(&to_bytes(&patterns)).is_err());
        assert_eq!(Regions::new(patterns), Err(why));
    }
    let outside = Regions::subarray(0, 1, &[4, 4], &[2, 2], &[3, 0]);
    assert_eq!(outside, Err(RegionsError::NotWithin));
    assert_eq!(Regions::strided(0, 4, 0, 8), Err(RegionsError::Empty));
    assert_eq!(Regions::default().walk(0..10).next(), None);
}

#[test]
fn any_bytes_are_a_list_or_an_error_and_cost_no_more_than_they_are() {
    with_seed(|rng| {
        for _ in 0..5_000 {
            let mut bytes = vec![0; rng.index(200)];
            rng.fill(&mut bytes);
            // A small count, so that some are lists.
            for i in 1..bytes.len().min(4) {
                bytes[i] = 0;
            }
            if let Ok(regions) = from_bytes::<Regions>(&bytes) {
                assert!(regions.patterns().len() <= bytes.len());
                assert!(regions.walk(rng.bits()..u64::MAX).take(10).count() <= 10);
            }
        }
    });
}
