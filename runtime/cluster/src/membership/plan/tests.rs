//! What every plan keeps, for many random histories of a cluster.

use super::*;
use crate::coordination::LeaseId;
use runtime::seed::{Rng, with_seed};

fn founders(count: u32, disks: u32) -> Vec<Founder> {
    let disks_of = |id| (0..disks).filter(|disk| disk % count == id - 1).collect();
    (1..=count).map(|id| Founder { id: ProcessId(id), disks: disks_of(id) }).collect()
}

fn member(id: u32, incarnation: u64) -> MemberRecord {
    let (id, addresses) = (ProcessId(id), vec![format!("host{id}:7000")]);
    MemberRecord { id, incarnation, addresses, lease: LeaseId(incarnation) }
}

/// Nodes that each living process has, that may have any.
fn counts(map: &NodeMap) -> Vec<usize> {
    let processes = map.processes.iter().filter(|process| process.is_living() && !process.leaving);
    let of = |id| map.fs.iter().filter(|assignment| assignment.destination() == id).count();
    processes.map(|process| of(process.id)).collect()
}

/// The fewest nodes that must change their process so that all is even within one: who has most
/// keeps one more than the others.
fn fewest_moves(map: &NodeMap) -> usize {
    let mut counts = counts(map);
    if counts.is_empty() {
        return 0;
    }
    counts.sort_unstable_by(|one, other| other.cmp(one));
    let (each, rest) = (map.fs.len() / counts.len(), map.fs.len() % counts.len());
    let shall_have = (0..).map(|rank: usize| each + usize::from(rank < rest));
    counts.iter().zip(shall_have).map(|(&has, shall)| shall.saturating_sub(has)).sum()
}

/// Lets all moves come to their end; the map, and how many nodes moved.
fn settle(map: NodeMap, members: &[MemberRecord]) -> (NodeMap, usize) {
    let (mut map, mut moved) = (map, 0);
    loop {
        let moving = map.assignments().find_map(|(node, assignment)| match assignment {
            Assignment::Moving { from, .. } => Some((node, from)),
            Assignment::Serving { .. } => None,
        });
        if let Some((node, from)) = moving {
            let incarnation = map.process(from).unwrap().incarnation;
            let next = map.settled(from, incarnation, &[node]).expect("it was to move");
            check_step(&map, &next);
            map = next;
            moved += 1;
        } else if let Some(next) = map.next(members) {
            check_step(&map, &next);
            map = next;
        } else {
            return (map, moved);
        }
    }
}

/// What holds between any map and its successor.
fn check_step(old: &NodeMap, new: &NodeMap) {
    assert_eq!(new.epoch.0, old.epoch.0 + 1);
    assert_eq!(NodeMap::from_record(&new.to_record()).as_ref(), Ok(new), "it is sound");
    assert_eq!((new.fs.len(), new.disks.len()), (old.fs.len(), old.disks.len()));
    let moving = |assignment: &&Assignment| matches!(assignment, Assignment::Moving { .. });
    assert!(new.fs.iter().filter(moving).count() <= MOVES_CONCURRENCY_MAX);
    for ((node, was), (_, is)) in old.assignments().zip(new.assignments()) {
        assert!(is == was || is.since() == new.epoch, "{node} changed without a new epoch");
        if matches!(node.kind(), NodeKind::Disk(_)) {
            assert_eq!(is.owner(), was.owner(), "{node} left its disks");
        }
        // A living process loses a node only after it has settled it.
        let life = |map: &NodeMap| map.process(was.owner()).map(|process| process.incarnation);
        let lives_on = life(old) == life(new) && life(old) != Some(0);
        if lives_on && is.owner() != was.owner() {
            assert!(
                matches!(was, Assignment::Moving { to, .. } if to == is.owner()),
                "{node} torn away"
            );
        }
        if !lives_on && is.owner() == was.owner() && life(new) != Some(0) {
            assert_eq!(is.since(), new.epoch, "{node} goes on in another life of its process");
        }
    }
}

fn check_even(map: &NodeMap) {
    let counts = counts(map);
    let (least, most) = (counts.iter().min(), counts.iter().max());
    assert!(most.unwrap_or(&0) - least.unwrap_or(&0) <= 1, "{counts:?}");
    let of_all: usize = counts.iter().sum();
    assert!(counts.is_empty() || of_all == map.fs.len(), "another process has some");
}

#[test]
fn the_first_map_is_even_and_what_cannot_be_is_refused() {
    let map = NodeMap::first(64, &founders(3, 4)).unwrap();
    assert_eq!(NodeMap::from_record(&map.to_record()).as_ref(), Ok(&map));
    let owners: Vec<u32> = map.fs.iter().map(|assignment| assignment.owner().0).collect();
    assert!(owners.is_sorted());
    for id in 1..=3 {
        assert!((21..=22).contains(&owners.iter().filter(|&&owner| owner == id).count()));
    }
    assert_eq!(NodeMap::first(0, &founders(1, 1)), Err(PlanError::Size(1, 0, 1)));
    assert_eq!(NodeMap::first(9, &[]), Err(PlanError::Size(0, 9, 0)));
    let twice = [founders(1, 1), founders(1, 1)].concat();
    assert_eq!(NodeMap::first(9, &twice), Err(PlanError::Twice(ProcessId(1))));
    let mut two = founders(2, 4);
    two[0].disks[0] = 1;
    assert_eq!(NodeMap::first(9, &two), Err(PlanError::Disk(1)));
    two[0].disks[0] = DISK_NODES_MAX;
    assert_eq!(NodeMap::first(9, &two), Err(PlanError::Disk(DISK_NODES_MAX)));
}

/// As a cluster is rebuilt whose second process has left for good.
#[test]
fn a_disk_node_that_no_founder_has_is_free() {
    let founders = [
        Founder { id: ProcessId(1), disks: vec![0] },
        Founder { id: ProcessId(3), disks: vec![2] },
    ];
    let map = NodeMap::first(4, &founders).unwrap();
    assert_eq!(NodeMap::from_record(&map.to_record()).as_ref(), Ok(&map));
    let owners: Vec<ProcessId> = map.disks.iter().map(|it| it.owner()).collect();
    assert_eq!(owners, [ProcessId(1), ProcessId::NONE, ProcessId(3)]);
    let next = map.next(&[member(1, 11), member(3, 13)]).unwrap();
    check_step(&map, &next);
    assert!(next.host_of(NodeId::disk(1)).is_none());
    assert_eq!(map.raised(Epoch(40)).disks[1].owner(), ProcessId::NONE);
}

#[test]
fn a_process_joins_with_a_disk_node_and_leaves_with_it() {
    let all = [member(1, 11), member(2, 12), member(3, 13)];
    let map = NodeMap::first(6, &founders(2, 2)).unwrap().next(&all[..2]).unwrap();
    let joined = map.with_disk_node(ProcessId(3), 2).unwrap().unwrap();
    assert_eq!(NodeMap::from_record(&joined.to_record()).as_ref(), Ok(&joined));
    assert_eq!((joined.disks[2].owner(), joined.epoch.0), (ProcessId(3), map.epoch.0 + 1));
    assert_eq!(joined.with_disk_node(ProcessId(3), 2), Ok(None), "it has it");
    assert_eq!(
        joined.with_disk_node(ProcessId(4), 2),
        Err(PlanError::Taken(2, ProcessId(3), 3)),
        "the next that is free is told"
    );
    assert_eq!(
        map.with_disk_node(ProcessId(3), DISK_NODES_MAX),
        Err(PlanError::Disk(DISK_NODES_MAX))
    );
    // It is away, and is not forgotten; then it serves the disk node.
    assert_eq!(joined.next(&all[..2]), None);
    let running = joined.next(&all).unwrap();
    check_step(&joined, &running);
    assert!(running.host_of(NodeId::disk(2)).is_some());
    // One that comes later may have been meant first.
    let later = map.with_disk_node(ProcessId(4), 3).unwrap().unwrap();
    assert!(later.disks[2].is_free());
    let filled = later.with_disk_node(ProcessId(3), 2).unwrap().unwrap();
    assert_eq!((filled.disks[2].owner(), filled.disks[3].owner()), (ProcessId(3), ProcessId(4)));

    let leaving = running.leave(ProcessId(2), true).unwrap().unwrap();
    let (left, _) = settle(leaving, &all);
    let without = left.without_disk_nodes(ProcessId(2)).unwrap();
    assert_eq!(without.without_disk_nodes(ProcessId(2)), None);
    assert_eq!(NodeMap::from_record(&without.to_record()).as_ref(), Ok(&without));
    assert!(without.disks[1].is_free());
    let gone = without.next(&[member(1, 11), member(3, 13)]).unwrap();
    assert!(gone.process(ProcessId(2)).is_none(), "it is forgotten once it has stopped");
    // A copy of the map from before it joined is brought forward.
    let old = NodeMap::first(6, &founders(2, 2)).unwrap();
    let file = NodeMap::first(6, &founders(3, 3)).unwrap();
    let forward = old.with_disk_nodes_of(&file).raised(Epoch(70));
    assert_eq!(NodeMap::from_record(&forward.to_record()).as_ref(), Ok(&forward));
    assert_eq!(forward.disks[2].owner(), ProcessId(3));
    assert_eq!(forward.disks[1].owner(), old.disks[1].owner());
    // It may come back, to the same disk node.
    let back = gone.with_disk_node(ProcessId(2), 1).unwrap().unwrap();
    assert_eq!(back.disks[1].owner(), ProcessId(2));
}

#[test]
fn the_dead_lose_their_file_system_nodes_and_keep_their_disks() {
    let all = [member(1, 11), member(2, 12), member(3, 13)];
    let first = NodeMap::first(7, &founders(3, 3)).unwrap();
    let map = first.next(&all).unwrap();
    check_step(&first, &map);
    assert_eq!(map.next(&all), None, "all is well");
    let without = map.next(&all[..2]).unwrap();
    check_step(&map, &without);
    check_even(&without);
    assert_eq!(without.disks[2].owner(), ProcessId(3));
    assert!(without.host_of(NodeId::disk(2)).is_none());
    // It comes back, and is given some of each.
    let again = [member(1, 11), member(2, 12), member(3, 14)];
    let back = without.next(&again).unwrap();
    check_step(&without, &back);
    assert!(back.host_of(NodeId::disk(2)).is_some());
    let (settled, moved) = settle(back, &again);
    assert_eq!(moved, 2);
    check_even(&settled);
}

#[test]
fn a_process_that_leaves_gives_all_away_and_is_forgotten_once_it_stops() {
    let all = [member(1, 11), member(2, 12)];
    let mut two = founders(2, 2);
    (two[0].disks, two[1].disks) = (vec![0, 1], vec![]);
    let map = NodeMap::first(9, &two).unwrap().next(&all).unwrap();
    assert_eq!(map.leave(ProcessId(7), true), Err(PlanError::Unknown(ProcessId(7))));
    let leaving = map.leave(ProcessId(2), true).unwrap().unwrap();
    assert_eq!(leaving.leave(ProcessId(2), true), Ok(None));
    let (left, moved) = settle(leaving.clone(), &all);
    assert_eq!(
        moved,
        map.fs.iter().filter(|assignment| assignment.owner() == ProcessId(2)).count()
    );
    assert!(left.fs.iter().all(|assignment| assignment.owner() == ProcessId(1)));
    let gone = left.next(&all[..1]).unwrap();
    assert!(gone.process(ProcessId(2)).is_none());
    // If the others die first, it keeps on.
    let alone = leaving.next(&all[1..]).unwrap();
    assert!(alone.fs.iter().all(|assignment| assignment.owner() == ProcessId(2)));
}

/// Any history: processes come, go, come back in another life, leave; moves end or are cut off.
fn history(rng: &mut Rng) {
    let count = 1 + rng.below(6) as u32;
    let fs_nodes = 1 + rng.below(90) as u32;
    let mut map = NodeMap::first(fs_nodes, &founders(count, 1 + rng.below(8) as u32)).unwrap();
    let mut members: BTreeMap<u32, MemberRecord> = BTreeMap::new();
    for life in 1..40 {
        let id = 1 + rng.below(8) as u32;
        match rng.below(4) {
            0 => drop(members.remove(&id)),
            1 | 2 => drop(members.insert(id, member(id, life))),
            _ => {
                if let Ok(Some(next)) = map.leave(ProcessId(id), rng.chance(1, 2)) {
                    check_step(&map, &next);
                    map = next;
                }
            }
        }
        let now: Vec<MemberRecord> = members.values().cloned().collect();
        if now.is_empty() {
            continue;
        }
        if let Some(next) = map.next(&now) {
            check_step(&map, &next);
            map = next;
        }
        let orphan =
            |assignment: &&Assignment| !map.process(assignment.owner()).unwrap().is_living();
        assert_eq!(map.fs.iter().find(orphan), None, "a node without a process");
        if rng.chance(1, 2) {
            let needed = fewest_moves(&map);
            let under_way = map
                .fs
                .iter()
                .filter(|assignment| matches!(assignment, Assignment::Moving { .. }))
                .count();
            let leaving = map.fs.iter().filter(|assignment| {
                let by = map.process(assignment.destination()).unwrap();
                by.leaving && map.processes.iter().any(|other| other.is_living() && !other.leaving)
            });
            let leaving = leaving.count();
            let (settled, moved) = settle(map, &now);
            check_even_unless_all_leave(&settled);
            assert!(moved <= under_way + needed.max(leaving), "{moved}: {under_way} {needed}");
            assert!(moved >= needed, "{moved} {needed}");
            map = settled;
        }
    }
}

fn check_even_unless_all_leave(map: &NodeMap) {
    if map.processes.iter().any(|process| process.is_living() && !process.leaving) {
        check_even(map);
    }
}

#[test]
fn any_history_keeps_one_owner_per_node_even_loads_and_few_moves() {
    with_seed(|rng| (0..100).for_each(|_| history(rng)));
}
