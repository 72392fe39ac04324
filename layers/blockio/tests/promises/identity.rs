//! A disk is used only where it belongs, by the newest epoch, and says clearly why not; a crash
//! while it is formatted or taken over harms nothing.

use std::rc::Rc;
use std::time::Duration;

use crate::support::{Kind, MemoryDisk, Volume, World};
use blockio::protocol::{Error, Read};
use blockio::superblock::Superblock;
use blockio::{
    Config, DiskError, DiskName, DiskNodeError, ExpectedDisk, Geometry, Server, VolumeMap,
    format_disk, identify, open_disk,
};
use futures::FutureExt as _;
use runtime::disk::Disk;
use runtime::seed::with_seed;
use runtime::{Epoch, NodeId, Undelivered, VolumeId};

const LENGTH: u64 = 1 << 20;
const COPY: u64 = LENGTH - 4096;

const NAME: DiskName = DiskName { disk_node: 1, disk: 0 };

fn map() -> VolumeMap {
    VolumeMap::for_disks(VolumeId(7), 16384, 1, 2, 2, LENGTH).expect("a small volume")
}

fn geometry() -> Geometry {
    map().geometry()
}

fn expected() -> ExpectedDisk {
    ExpectedDisk { map: map(), disk: NAME, epoch: Epoch(5), served: Epoch(0) }
}

fn new_disk(length: u64) -> MemoryDisk {
    MemoryDisk::new(World::new(1).clock(), 0, crate::support::disk::Log::default(), length)
}

/// Disk 0 of disk node 1, opened in epoch 3.
fn formatted() -> MemoryDisk {
    let disk = new_disk(LENGTH);
    format(&disk).expect("large enough");
    open_in(&disk, 3).expect("just formatted");
    disk
}

fn format(disk: &MemoryDisk) -> Result<Superblock, DiskError> {
    now(format_disk(disk, &map(), NAME, 9, Duration::from_secs(1)))
}

fn open(disk: &MemoryDisk) -> Result<Superblock, DiskError> {
    now(open_disk(disk, &expected()))
}

fn open_in(disk: &MemoryDisk, epoch: u64) -> Result<Superblock, DiskError> {
    now(open_disk(disk, &ExpectedDisk { epoch: Epoch(epoch), ..expected() }))
}

/// These disks answer at once.
fn now<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("the disk has no latency")
}

/// What `open` says, in words; the disk is as before.
fn refusal(disk: &MemoryDisk) -> String {
    let before = disk.peek(0, LENGTH as usize);
    let error = open(disk).expect_err("not a disk to be used");
    assert!(disk.peek(0, LENGTH as usize) == before, "a refused disk was written: {error}");
    error.to_string()
}

#[test]
fn a_formatted_disk_opens_and_remembers_the_epoch() {
    let disk = formatted();
    let superblock = open(&disk).expect("the right disk");
    assert_eq!((superblock.geometry, superblock.disk), (geometry(), NAME));
    assert_eq!((&superblock.sets, superblock.id), (&map().rows_of(NAME), 9));
    assert_eq!((superblock.length, superblock.formatted_ms), (LENGTH, 1000));
    assert_eq!(now(identify(&disk)).expect("formatted").epoch, Epoch(5));
    assert_eq!(disk.peek(0, 4096), disk.peek(COPY, 4096));
}

#[test]
fn an_unformatted_disk_is_told() {
    let disk = new_disk(LENGTH);
    assert!(matches!(open(&disk), Err(DiskError::Unformatted)));
    disk.poke(0, &[0xA5; 4096]);
    assert_eq!(
        refusal(&disk),
        "the disk is not formatted: it has no superblock, neither at its start nor at its end"
    );
    assert!(matches!(now(identify(&new_disk(0))), Err(DiskError::Unformatted)));
    assert!(matches!(now(identify(&new_disk(4097))), Err(DiskError::Unformatted)));
}

#[test]
fn a_foreign_disk_is_told_with_both_volumes() {
    let disk = new_disk(LENGTH);
    let other = VolumeMap::for_disks(VolumeId(8), 16384, 1, 2, 2, LENGTH).expect("small");
    now(format_disk(&disk, &other, NAME, 1, Duration::ZERO)).expect("large enough");
    assert_eq!(
        refusal(&disk),
        "the disk belongs to volume 00000000000000000000000000000008, \
         not to volume 00000000000000000000000000000007"
    );
}

#[test]
fn swapped_disks_are_told() {
    let disk = new_disk(LENGTH);
    let other = DiskName { disk_node: 0, disk: 1 };
    now(format_disk(&disk, &map(), other, 1, Duration::ZERO)).expect("large enough");
    assert_eq!(refusal(&disk), "this is disk n0d1, but disk n1d0 was expected: disks were swapped");
}

#[test]
fn a_disk_of_another_shape_of_the_volume_is_told() {
    let disk = new_disk(LENGTH);
    let fewer = VolumeMap::grid(geometry(), 2, 2, 10).expect("a small volume");
    let more = VolumeMap::for_disks(VolumeId(7), 16384, 2, 2, 2, LENGTH).expect("small");
    for other in [fewer, more] {
        now(format_disk(&disk, &other, NAME, 1, Duration::ZERO)).expect("large enough");
        assert!(matches!(open(&disk), Err(DiskError::OtherShape { volume: VolumeId(7) })));
    }
}

#[test]
fn a_truncated_disk_is_told_with_both_lengths() {
    let disk = formatted();
    disk.set_length(LENGTH - 1);
    let error = open(&disk).expect_err("cut off");
    assert_eq!(error.to_string(), "the disk was cut off: 1048575 bytes of 1048576 are left");
    for left in [0, 100, 4096] {
        let disk = formatted();
        disk.set_length(left);
        let error = open(&disk).expect_err("cut off");
        assert!(
            matches!(error, DiskError::Truncated { real_bytes, .. } if real_bytes == left),
            "{error}"
        );
    }
}

#[test]
fn a_disk_that_has_grown_opens() {
    let disk = formatted();
    disk.set_length(2 * LENGTH);
    assert_eq!(open(&disk).expect("all is there").length, LENGTH);
}

#[test]
fn a_disk_of_a_newer_program_is_told() {
    let disk = formatted();
    let superblock = now(identify(&disk)).expect("formatted");
    let newer = Superblock { version: 3, ..superblock.clone() }.encode();
    disk.poke(0, &newer);
    disk.poke(COPY, &newer);
    assert!(refusal(&disk).contains("format version 3, this program knows 2"));
    let newer = Superblock { features: 8, ..superblock }.encode();
    disk.poke(0, &newer);
    disk.poke(COPY, &newer);
    assert!(refusal(&disk).contains("features that this program does not know (0x8)"));
}

#[test]
fn a_damaged_superblock_is_replaced_from_its_copy() {
    for damaged in [0, COPY] {
        let disk = formatted();
        disk.poke(damaged + 100, b"!");
        open(&disk).expect("the other one is good");
        assert_eq!(disk.peek(0, 4096), disk.peek(COPY, 4096));
        assert_eq!(now(identify(&disk)).expect("repaired").epoch, Epoch(5));
    }
}

#[test]
fn a_damaged_superblock_is_replaced_also_without_a_new_epoch() {
    let disk = formatted();
    disk.poke(50, b"!");
    open_in(&disk, 3).expect("the copy is good");
    assert_eq!(disk.peek(0, 4096), disk.peek(COPY, 4096));
}

#[test]
fn two_damaged_superblocks_are_told() {
    let disk = formatted();
    disk.poke(100, b"!");
    disk.poke(COPY + 100, b"!");
    assert!(refusal(&disk).contains("both superblocks of the disk are damaged"));
}

#[test]
fn an_older_epoch_is_fenced() {
    let disk = formatted();
    open_in(&disk, 6).expect("a newer epoch");
    assert_eq!(
        refusal(&disk),
        "the disk was opened in epoch 6, ours is 5: a newer process owns the volume"
    );
}

#[test]
fn a_disk_that_cannot_be_read_or_written_is_told() {
    let disk = formatted();
    disk.set_failing(&[Kind::Read]);
    assert!(matches!(open(&disk), Err(DiskError::Io(_))));
    for kind in [Kind::Write, Kind::Sync] {
        disk.set_failing(&[kind]);
        assert!(matches!(open(&disk), Err(DiskError::Io(_))), "the epoch is not durable");
    }
}

#[test]
fn what_cannot_be_formatted_is_told() {
    let disk = new_disk(map().disk_length(NAME) - 1);
    assert!(matches!(format(&disk), Err(DiskError::TooSmall { .. })));
}

#[test]
fn format_clears_the_slots_of_the_volume_before() {
    let disk = formatted();
    let slots = geometry().slot_offset(0);
    disk.poke(slots + 5000, b"an old root");
    format(&disk).expect("large enough");
    let length = geometry().slots_per_disk() as usize * 4096;
    assert!(disk.peek(slots, length).iter().all(|&byte| byte == 0));
}

/// Cuts the power after each request that `action` makes of the disk, many times each.
fn crash_everywhere(
    new_disk: impl Fn() -> MemoryDisk,
    action: impl Fn(&MemoryDisk),
    check: impl Fn(&MemoryDisk),
) {
    with_seed(|rng| {
        for _ in 0..20 {
            for survives in 0.. {
                let disk = new_disk();
                disk.fail_after(survives);
                action(&disk);
                let finished = !disk.has_failed();
                disk.crash(rng);
                check(&disk);
                if finished {
                    break;
                }
            }
        }
    });
}

#[test]
fn a_crash_while_the_epoch_is_made_durable_harms_nothing() {
    // What an earlier crash may have left, and the epoch that holds then.
    let superblock = now(identify(&formatted())).expect("formatted");
    let newer = Superblock { epoch: Epoch(4), ..superblock.clone() }.encode();
    let torn = [b"!".as_slice(), &newer[1..]].concat();
    let states = [
        (0, superblock.encode().to_vec(), 3),
        (0, newer.to_vec(), 4),
        (COPY, newer.to_vec(), 4),
        (0, torn.clone(), 3),
        (COPY, torn, 3),
    ];
    for (offset, block, before) in states {
        crash_everywhere(
            || {
                let disk = formatted();
                disk.poke(offset, &block);
                disk
            },
            |disk| drop(open(disk)),
            |disk| {
                let epoch = now(identify(disk)).expect("one superblock is always good").epoch;
                assert!([Epoch(before), Epoch(5)].contains(&epoch), "{epoch:?}, not {before} or 5");
                open_in(disk, 7).expect("the next process goes on");
            },
        );
    }
}

#[test]
fn a_newer_epoch_in_either_superblock_fences() {
    for offset in [0, COPY] {
        let disk = formatted();
        let superblock = now(identify(&disk)).expect("formatted");
        disk.poke(offset, &Superblock { epoch: Epoch(6), ..superblock }.encode());
        assert!(matches!(open(&disk), Err(DiskError::Fenced { found: 6, ours: 5 })));
    }
}

#[test]
fn a_crash_while_a_disk_is_formatted_leaves_it_old_unformatted_or_new() {
    let new = VolumeMap::for_disks(VolumeId(9), 16384, 1, 2, 2, LENGTH).expect("small");
    crash_everywhere(
        formatted,
        |disk| {
            disk.poke(geometry().slot_offset(3), b"an old root");
            drop(now(format_disk(disk, &new, DiskName::default(), 1, Duration::ZERO)));
        },
        |disk| {
            let slot = disk.peek(geometry().slot_offset(3), 11);
            match now(identify(disk)) {
                Ok(superblock) if superblock.volume() == VolumeId(7) => {
                    assert_eq!(slot, b"an old root");
                }
                Ok(superblock) => {
                    assert_eq!(superblock.geometry, new.geometry());
                    assert_eq!(slot, [0; 11]);
                }
                Err(error) => {
                    assert!(
                        matches!(error, DiskError::Unformatted | DiskError::Damaged),
                        "{error}"
                    );
                }
            }
        },
    );
}

#[test]
fn an_epoch_that_opened_a_disk_survives_any_crash() {
    with_seed(|rng| {
        let disk = formatted();
        for epoch in 4..50 {
            open_in(&disk, epoch).expect("a newer epoch");
            disk.crash(rng);
            let error = open_in(&disk, epoch - 1).expect_err("an older epoch");
            assert!(matches!(error, DiskError::Fenced { .. }), "{error}");
        }
    });
}

#[test]
fn a_disk_node_names_the_disk_that_is_wrong_and_writes_none() {
    let volume = Volume::format(1, 1, 3);
    volume.disks[2].poke(0, &[0; 4096]);
    volume.disks[2].poke(COPY, &[0; 4096]);
    volume.started();
    let error = volume.serve(Config::default()).expect_err("disk 2 is empty");
    assert!(error.to_string().starts_with("disk 2 of disk node 0: the disk is not formatted"));
    assert!(volume.started().iter().all(|event| event.kind == Kind::Read));
}

#[test]
fn a_disk_node_wants_all_its_disks() {
    let volume = Volume::format(1, 1, 2);
    let context = volume.world.context(NodeId::disk(0));
    let disks = vec![Rc::new(volume.disks[0].clone()) as Rc<dyn Disk>];
    let map = volume.map.clone();
    let opened = volume
        .world
        .run(async move { Server::open(&context, &map, disks, Config::default()).await });
    assert!(matches!(opened, Err(DiskNodeError::Count { expected: 2, found: 1, .. })));
}

#[test]
fn requests_of_an_older_epoch_are_refused() {
    let volume = Volume::format(1, 1, 1);
    volume.world.set_epoch(Epoch(9));
    volume.serve(Config::default()).expect("the disk is good");
    volume.world.set_epoch(Epoch(8));
    let late = volume.context();
    let answer = volume.world.run(async move {
        late.spawn(NodeId::disk(0), Read { stripe: 0, offset: 0, length: 1 }).await
    });
    assert_eq!(answer, Err(Error::Undelivered { why: Undelivered::Fenced }));
}

#[test]
fn a_disk_that_was_not_there_in_the_last_epoch_is_refused_as_an_old_image() {
    let disk = formatted();
    open_in(&disk, 7).expect("a newer epoch");
    let image = [0, COPY].map(|offset| (offset, disk.peek(offset, 4096)));
    open_in(&disk, 8).expect("a newer epoch");
    let served = |epoch| ExpectedDisk { epoch: Epoch(9), served: Epoch(epoch), ..expected() };
    for (offset, block) in &image {
        disk.poke(*offset, block);
    }
    let error = now(open_disk(&disk, &served(8))).expect_err("an old image");
    assert!(matches!(error, DiskError::Outdated { found: 7, served: 8 }), "{error}");
    assert_eq!(disk.peek(0, 4096), image[0].1, "nothing was written");
    // An epoch that not all disks have seen proves nothing.
    assert!(now(open_disk(&disk, &served(7))).is_ok());
}
