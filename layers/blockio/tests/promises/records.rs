//! Disks that come and go: what each superblock knows of it.

use std::time::Duration;

use crate::support::{MemoryDisk, World};
use blockio::geometry::GeometryError;
use blockio::plan::{FreeDisk, Spread, check_added, plan_class, plan_redundancy, plan_sets};
use blockio::superblock::{Decided, Superblock};
use blockio::volume_map::classes_of;
use blockio::{
    DiskError, DiskName, DiskSet, DiskStage, ExpectedDisk, Geometry, RedundancyClass, SetMember,
    SetMembers, VolumeMap, VolumeRecord, format_disk, identify, open_disk,
};
use futures::FutureExt as _;
use runtime::wire::to_bytes;
use runtime::{Epoch, VolumeId};

const LENGTH: u64 = 1 << 20;
const COPY: u64 = LENGTH - 4096;

const NAME: DiskName = DiskName { disk_node: 1, disk: 0 };

fn map() -> VolumeMap {
    VolumeMap::for_disks(VolumeId(7), 16384, 1, 2, 2, LENGTH).expect("a small volume")
}

fn now<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("the disk has no latency")
}

fn formatted() -> MemoryDisk {
    let log = crate::support::disk::Log::default();
    let disk = MemoryDisk::new(World::new(1).clock(), 0, log, LENGTH);
    now(format_disk(&disk, &map(), NAME, 9, Duration::from_secs(1))).expect("large enough");
    disk
}

fn open(disk: &MemoryDisk) -> Result<Superblock, DiskError> {
    open_with(disk, &map())
}

/// A record with one set more, on a new disk of disk node 1, and with disk n0d0 in `state`.
fn grown(state: DiskStage) -> VolumeRecord {
    let member = SetMember { disk: DiskName { disk_node: 1, disk: 2 }, base: 0 };
    let set = DiskSet {
        first: map().stripes(),
        stripes_per_disk: 20,
        group_stripes: 1,
        unit_stripes: 1,
        lanes: 0,
        members: SetMembers::List { disks: vec![member] },
    };
    VolumeRecord::of(&map()).with_sets(vec![set]).with_state(DiskName::default(), state)
}

fn open_with(disk: &MemoryDisk, map: &VolumeMap) -> Result<Superblock, DiskError> {
    let expected = ExpectedDisk { map: map.clone(), disk: NAME, epoch: Epoch(5), served: Epoch(0) };
    now(open_disk(disk, &expected))
}

#[test]
fn a_disk_that_was_away_learns_what_was_decided_and_refuses_an_older_record() {
    let (disk, later) = (formatted(), VolumeMap::of_record(&grown(DiskStage::Draining {})));
    let later = later.expect("a volume");
    open(&disk).expect("the right disk");
    let followed = open_with(&disk, &later).expect("the right disk");
    assert_eq!((&followed.sets, &followed.decided), (&later.rows_of(NAME), &later.decided()));
    assert_eq!(now(identify(&disk)).expect("formatted"), followed);
    assert!(matches!(open(&disk), Err(DiskError::NewerRecord { found: 2, ours: 0 })));
    // A crash may leave one of the two superblocks as it was.
    let block = followed.encode();
    for offset in [0, COPY] {
        let torn = formatted();
        open(&torn).expect("the right disk");
        torn.poke(offset, &block);
        assert!(matches!(open(&torn), Err(DiskError::NewerRecord { found: 2, ours: 0 })));
        open_with(&torn, &later).expect("the right disk");
    }
}

#[test]
fn a_disk_that_was_made_ready_and_never_used_is_no_old_image() {
    let disk = formatted();
    let expected = || ExpectedDisk { map: map(), disk: NAME, epoch: Epoch(5), served: Epoch(4) };
    assert!(matches!(now(open_disk(&disk, &expected())), Err(DiskError::Outdated { .. })));
    let mut ready = now(identify(&disk)).expect("formatted");
    ready.decided.is_decided = false;
    for offset in [0, COPY] {
        disk.poke(offset, &ready.encode());
    }
    // It is decided upon, and so is something else before the disk hears of either.
    let later = VolumeMap::of_record(&VolumeRecord { version: 7, ..VolumeRecord::of(&map()) });
    let expected = ExpectedDisk { map: later.expect("a volume"), ..expected() };
    let opened = now(open_disk(&disk, &expected)).expect("never in use");
    assert!(opened.decided.is_decided);
}

#[test]
fn a_record_is_followed_forwards_only_and_in_the_same_volume() {
    let (map, record) = (map(), grown(DiskStage::Retired {}));
    let holder = map.clone();
    assert!(map.advance(&record).expect("a later one"));
    assert_eq!(VolumeRecord::of(&holder), record, "all holders see it");
    assert_eq!(holder.state(DiskName::default()), DiskStage::Retired {});
    assert!(!holder.disks().contains(&DiskName::default()));
    assert_eq!((holder.born_sets(), holder.next_disk(0), holder.next_disk(1)), (1, 2, 3));
    assert!(!map.advance(&grown(DiskStage::Draining {})).expect("an old one is nothing"));
    let other = VolumeRecord { born_sets: 2, version: 9, ..record.clone() };
    assert!(map.advance(&other).is_err());
    let fewer = VolumeRecord { sets: record.sets[..1].to_vec(), version: 9, ..record.clone() };
    assert!(map.advance(&fewer).is_err());
    assert_eq!(VolumeRecord::of(&holder), record);
    let back = record.with_state(DiskName::default(), DiskStage::Online {});
    assert!(map.advance(&back).expect("a later one"));
    assert_eq!((holder.states(), holder.version()), (Vec::new(), 3));
}

#[test]
fn a_lost_disk_of_a_host_that_is_away_is_no_loss_more() {
    let disk = |disk_node, disk| DiskName { disk_node, disk };
    let with_copies = |count, states: &[(DiskName, DiskStage)]| {
        let redundancy = RedundancyClass::Copies { count };
        let record = VolumeRecord { redundancy, ..VolumeRecord::of(&map()) };
        states.iter().fold(record, |record, &(disk, state)| record.with_state(disk, state))
    };
    for behind in [DiskStage::Offline {}, DiskStage::Returning {}] {
        let states = [(disk(1, 0), DiskStage::Lost {}), (disk(1, 1), behind)];
        let record = with_copies(3, &states);
        assert_eq!(record.losses_left(), 1);
        assert!(record.can_lose(disk(0, 1)), "another disk may fail meanwhile");
        let next = record.with_state(disk(0, 1), DiskStage::Lost {});
        assert_eq!(next.losses_left(), 0);
        assert!(!next.can_lose(disk(0, 0)));
        assert!(!with_copies(2, &states).can_lose(disk(0, 1)));
        // One that fails while it is brought up to date must not be waited for.
        let is_back = behind == DiskStage::Returning {};
        assert_eq!(with_copies(2, &states).can_lose(disk(1, 1)), is_back);
        assert_eq!(record.can_lose(disk(1, 1)), is_back);
    }
    // Two copies may be on one host if there are few.
    let record = with_copies(3, &[(disk(1, 0), DiskStage::Lost {})]);
    assert!(record.can_lose(disk(1, 1)));
    let record = record.with_state(disk(1, 1), DiskStage::Lost {});
    assert_eq!(record.losses_left(), 0);
}

#[test]
fn a_record_or_superblock_without_a_class_has_one_copy_of_all() {
    let record = VolumeRecord::of(&map());
    let bytes = to_bytes(&record);
    // The classes of directories came last, the delay after which a disk is lost before them, the
    // volume's class before that.
    let (class, delay, none) = (1, to_bytes(&record.loss_delay_seconds).len(), 4);
    for missing in [none, delay + none, class + delay + none] {
        assert_eq!(VolumeRecord::decode(&bytes[..bytes.len() - missing]), Some(map()));
    }
    assert_eq!(record.to_stored(), bytes[..bytes.len() - none], "as older programs have it");
    let twice = plan_redundancy(&map(), RedundancyClass::Copies { count: 2 }).expect("four disks");
    let bytes = to_bytes(&VolumeRecord::of(&twice));
    assert_eq!(VolumeRecord::decode(&bytes).as_ref(), Some(&twice));
    let without_delay = &bytes[..bytes.len() - delay - none];
    assert_eq!(VolumeRecord::decode(without_delay).as_ref(), Some(&twice));
    assert!(map().advance(&VolumeRecord { version: 9, ..VolumeRecord::of(&twice) }).is_err());
    let disk = formatted();
    now(format_disk(&disk, &twice, NAME, 9, Duration::from_secs(1))).expect("large enough");
    let found = now(identify(&disk)).expect("formatted");
    assert_eq!((found.features, found.decided.redundancy), (1, twice.redundancy()));
    assert_eq!(now(identify(&formatted())).expect("formatted").features, 0);
}

#[test]
fn classes_of_directories_are_allowed_one_after_the_other() {
    let copies = |count| RedundancyClass::Copies { count };
    let parity = |data, parity| RedundancyClass::Parity { data, parity };
    let volume = map();
    assert_eq!(plan_class(&volume, RedundancyClass::None {}), Ok(None));
    // Metadata has two copies.
    let refused = plan_class(&volume, copies(3));
    assert!(matches!(refused, Err(GeometryError::MetadataCopies { needed: 3, found: 2, .. })));
    let refused = plan_class(&volume, parity(16, 1));
    assert!(matches!(refused, Err(GeometryError::TooFewDisks { needed: 17, .. })));
    let record = plan_class(&volume, copies(2)).expect("four disks").expect("it is new");
    assert!(!classes_of(&volume).differ() && volume.advance(&record) == Ok(true));
    assert_eq!(
        (classes_of(&volume).others, classes_of(&volume).copies_max()),
        (vec![copies(2)], 2)
    );
    assert!(!classes_of(&volume).have_wide_stripes());
    assert_eq!(plan_class(&volume, copies(2)), Ok(None));
    let twice = plan_redundancy(&map(), copies(2)).expect("four disks");
    let refused = plan_class(&twice, RedundancyClass::None {});
    assert!(matches!(refused, Err(GeometryError::WeakerClass { copies: 2, .. })));
    let refused = plan_class(&twice, parity(2, 1));
    assert!(matches!(refused, Err(GeometryError::TooFewDiskNodes { needed: 3, .. })));
    let bytes = to_bytes(&record);
    assert_eq!(VolumeRecord::decode(&bytes).as_ref(), Some(&volume));
    // None is taken back.
    let less = VolumeRecord { classes: Vec::new(), version: 9, ..record.clone() };
    assert!(volume.advance(&less).is_err());
    let disk = formatted();
    now(format_disk(&disk, &volume, NAME, 9, Duration::from_secs(1))).expect("large enough");
    let found = now(identify(&disk)).expect("formatted");
    assert_eq!((found.features, found.decided.classes), (5, vec![copies(2)]));
    let mut record = record;
    for data in 2..9 {
        record = record.with_class(parity(data, 1));
    }
    assert!(VolumeMap::of_record(&record).is_ok());
    assert!(VolumeMap::of_record(&record.with_class(parity(9, 1))).is_err());
}

#[test]
fn disks_are_not_added_where_shards_would_not_be_apart_any_more() {
    const GEOMETRY: Geometry = Geometry { volume: VolumeId(7), stripe_size: 16384, fs_nodes: 1 };
    const STRIPES: u64 = 100;
    let parity = |data| RedundancyClass::Parity { data, parity: 1 };
    let check = |disk_nodes,
                 disks_per_node,
                 classes: [RedundancyClass; 2],
                 added: &[(u32, u32)]| {
        let map = VolumeMap::grid(GEOMETRY, disk_nodes, disks_per_node, STRIPES).expect("a grid");
        let [class, other] = classes;
        let record = VolumeRecord { redundancy: class, ..VolumeRecord::of(&map) };
        let map = VolumeMap::of_record(&record.with_class(other)).expect("both are known");
        let free = |&(disk_node, disk): &(u32, u32)| FreeDisk {
            disk: DiskName { disk_node, disk },
            base: 0,
            stripes: STRIPES,
        };
        let free: Vec<FreeDisk> = added.iter().map(free).collect();
        let sets = plan_sets(&GEOMETRY, map.stripes(), &free, Spread::Modulo).expect("they fit");
        check_added(&map, &VolumeRecord::of(&map).with_sets(sets))
    };
    let (none, twice) = (RedundancyClass::None {}, RedundancyClass::Copies { count: 2 });
    let refused =
        |class, needed, found| Err(GeometryError::TooFewDiskNodes { class, needed, found });
    assert_eq!(check(1, 5, [parity(4), none], &[(1, 0)]), refused(parity(4), 5, 2));
    assert_eq!(check(1, 5, [twice, parity(2)], &[(1, 0)]), refused(parity(2), 3, 2));
    assert_eq!(check(1, 5, [parity(2), parity(4)], &[(1, 0), (2, 0)]), refused(parity(4), 5, 3));
    assert_eq!(check(1, 5, [parity(4), none], &[(0, 5)]), Ok(()));
    assert_eq!(check(1, 5, [parity(2), twice], &[(1, 0), (2, 0)]), Ok(()));
    assert_eq!(check(1, 5, [twice, none], &[(1, 0)]), Ok(()));
    assert_eq!(check(5, 1, [parity(4), none], &[(5, 0)]), Ok(()));
    // There were too few before, and are no fewer.
    assert_eq!(check(3, 1, [parity(4), none], &[(3, 0)]), Ok(()));
    assert_eq!(check(2, 2, [parity(2), none], &[(0, 2)]), Ok(()));
}

#[test]
fn superblocks_tell_the_volume_also_without_those_of_retired_disks() {
    let listed = |state| {
        let mut record = grown(state);
        let members = record.sets[0].members.iter().collect();
        record.sets[0].members = SetMembers::List { disks: members };
        VolumeMap::of_record(&record).expect("a volume")
    };
    let superblocks = |map: &VolumeMap| {
        let of = |disk: &DiskName| {
            let mut superblock = now(identify(&formatted())).expect("formatted");
            superblock.disk = *disk;
            superblock.sets = map.rows_of(*disk);
            superblock.decided = map.decided();
            superblock
        };
        let mut all: Vec<Superblock> = map.disks().iter().map(of).collect();
        // One disk has missed all of it.
        all[0].sets.truncate(1);
        all[0].decided = Decided { born_sets: 1, is_decided: true, ..Decided::default() };
        // And one was made ready for a record that was never the volume's.
        let mut abandoned = all[0].clone();
        abandoned.disk.disk = 9;
        abandoned.sets = map.rows_of(abandoned.disk);
        abandoned.decided = Decided { version: 99, born_sets: 1, ..Decided::default() };
        all.push(abandoned);
        all
    };
    // One more was made ready for the very place that another disk has taken since.
    let draining = listed(DiskStage::Draining {});
    let mut there = superblocks(&draining);
    let taken = there.iter().find(|disk| disk.disk.disk == 2).expect("the disk that was added");
    let mut late = taken.clone();
    late.disk = DiskName { disk_node: 0, disk: 2 };
    late.decided.is_decided = false;
    there.insert(0, late);
    assert_eq!(VolumeMap::from_superblocks(&there).as_ref(), Ok(&draining));
    // The new disk has not heard of its own record when the next one is made.
    let mut there = superblocks(&draining);
    let added = there.iter_mut().find(|disk| disk.disk.disk == 2).expect("the disk that was added");
    (added.decided.version, added.decided.is_decided) = (1, false);
    assert_eq!(VolumeMap::from_superblocks(&there), Ok(draining));
    let retired = listed(DiskStage::Retired {});
    assert_eq!(VolumeMap::from_superblocks(&superblocks(&retired)), Ok(retired));
    let lost = listed(DiskStage::Lost {});
    assert_eq!(VolumeMap::from_superblocks(&superblocks(&lost)), Ok(lost.clone()));
    // A disk that was there from the beginning is lost, too: it is in none of the later sets.
    let born = DiskName { disk_node: 1, disk: 1 };
    let record = grown(DiskStage::Online {});
    let added = DiskName { disk_node: 1, disk: 2 };
    let record = record.with_state(added, DiskStage::Retired {});
    let two_gone = VolumeMap::of_record(&record.with_state(born, DiskStage::Lost {}));
    let two_gone = two_gone.expect("a volume");
    assert_eq!(VolumeMap::from_superblocks(&superblocks(&two_gone)).as_ref(), Ok(&two_gone));
    let other = DiskName { disk_node: 0, disk: 7 };
    let record = VolumeRecord::of(&lost).with_state(other, DiskStage::Retired {});
    let ambiguous = VolumeMap::of_record(&record).expect("a volume");
    assert!(
        VolumeMap::from_superblocks(&superblocks(&ambiguous)).is_err(),
        "it is not known which disk was lost, and what moves is on that"
    );
    let mut missing = superblocks(&listed(DiskStage::Draining {}));
    missing.remove(0);
    assert!(VolumeMap::from_superblocks(&missing).is_err(), "a disk that is in use is missing");
}
