//! A disk is empty if both its ends are zeros, and anything else has a name.

use std::time::Duration;

use crate::support::{Kind, MemoryDisk, World};
use blockio::probe::END_BYTES;
use blockio::superblock::Superblock;
use blockio::{DiskContent, DiskName, VolumeMap, format_disk, identify, probe};
use futures::FutureExt as _;
use runtime::VolumeId;
use runtime::seed::with_seed;

const LENGTH: u64 = 4 << 20;
const COPY: u64 = LENGTH - 4096;
/// As UUIDs of a text are written.
const UUID: &str = "01020304-0506-0708-090a-0b0c0d0e0f10";
const UUID_BYTES: [u8; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];

/// Bytes, and where they are.
type ImageBytes = (u64, Vec<u8>);

fn disk() -> MemoryDisk {
    MemoryDisk::new(World::new(1).clock(), 0, crate::support::disk::Log::default(), LENGTH)
}

fn content(disk: &MemoryDisk) -> Option<DiskContent> {
    probe(disk).now_or_never().expect("the disk has no latency").expect("it can be read")
}

fn format(disk: &MemoryDisk, volume: u128) -> Superblock {
    let map = VolumeMap::for_disks(VolumeId(volume), 16384, 1, 1, 1, LENGTH);
    let map = map.expect("a small volume");
    let formatted = format_disk(disk, &map, DiskName::default(), 1, Duration::ZERO);
    formatted.now_or_never().expect("no latency").expect("large enough")
}

#[test]
fn one_byte_at_either_end_is_not_nothing() {
    assert_eq!(content(&disk()), None);
    with_seed(|rng| {
        for _ in 0..200 {
            let disk = disk();
            let within = rng.below(END_BYTES);
            let at = if rng.chance(1, 2) { within } else { LENGTH - 1 - within };
            disk.poke(at, &[1 << rng.below(8)]);
            let found = content(&disk).expect("not empty");
            assert!(found.to_string().starts_with("data of an unknown kind (content-"), "{found}");
        }
    });
    let between = disk();
    between.poke(END_BYTES, b"what is in the middle is not looked at");
    assert_eq!(content(&between), None);
}

#[test]
fn an_id_is_of_this_content_only() {
    let ids: Vec<String> = [b"one", b"two", b"One"]
        .map(|text| {
            let disk = disk();
            disk.poke(700, text);
            let (first, again) = (content(&disk), content(&disk));
            assert_eq!(first, again);
            first.expect("not empty").id().to_owned()
        })
        .into();
    assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2], "{ids:?}");
}

#[test]
fn what_cannot_be_read_is_not_empty() {
    let disk = disk();
    disk.set_failing(&[Kind::Read]);
    assert!(probe(&disk).now_or_never().expect("no latency").is_err());
}

#[test]
fn what_others_write_is_known_by_name() {
    let ext = |features: [u8; 6]| {
        vec![(1080, vec![0x53, 0xef]), (1116, features.to_vec()), (1128, UUID_BYTES.to_vec())]
    };
    let magic = |at: u64, bytes: &[u8]| (at, bytes.to_vec());
    let raid = |at: u64| vec![magic(at, &[0xfc, 0x4e, 0x2b, 0xa9]), magic(at + 16, &UUID_BYTES)];
    let swap = |page: u64| {
        vec![
            magic(page - 10, b"SWAPSPACE2"),
            magic(1036, &UUID_BYTES),
            magic(1052, b"a swap\x1b[2J\0rest"),
        ]
    };
    let gpt = |at: u64| vec![magic(at, b"EFI PART"), magic(at + 56, &UUID_BYTES)];
    let guid = "04030201-0605-0807-090a-0b0c0d0e0f10";
    let zfs = |at: u64| vec![magic(at, &0x00ba_b10c_u64.to_be_bytes())];
    let mbr = |kind: u8| {
        let mut entry = [0; 16];
        entry[4] = kind;
        vec![magic(510, &[0x55, 0xaa]), magic(446, &entry), magic(440, &[0xef, 0xcd, 0xab, 0x89])]
    };
    let luks = |at: u64, text: &[u8]| vec![magic(at, text), magic(at + 168, b"1234-56\0")];
    let xfs = vec![magic(0, b"XFSB"), magic(32, &UUID_BYTES), magic(108, b"scratch\0")];
    let uuid = format!("({UUID})");
    let cases: [(Vec<ImageBytes>, String); 25] = [
        (ext([4, 0, 0, 0, 0xc2, 2]), format!("an ext4 file system {uuid}")),
        (ext([4, 0, 0, 0, 2, 0]), format!("an ext3 file system {uuid}")),
        (ext([0, 0, 0, 0, 2, 0]), format!("an ext2 file system {uuid}")),
        (xfs, format!("an XFS file system (scratch, {UUID})")),
        (swap(4 << 10), format!("swap space (a swap[2J, {UUID})")),
        (swap(64 << 10), format!("swap space (a swap[2J, {UUID})")),
        (luks(0, b"LUKS\xba\xbe"), "an encrypted volume (LUKS) (1234-56)".into()),
        (luks(16384, b"SKUL\xba\xbe"), "an encrypted volume (LUKS) (1234-56)".into()),
        (gpt(512), format!("a partition table (GPT) ({guid})")),
        (gpt(4096), format!("a partition table (GPT) ({guid})")),
        (gpt(LENGTH - 512), format!("a partition table (GPT) ({guid})")),
        (raid(0), format!("part of a Linux RAID {uuid}")),
        (raid(4096), format!("part of a Linux RAID {uuid}")),
        (raid(LENGTH - 8192), format!("part of a Linux RAID {uuid}")),
        (raid(LENGTH - 65536), "part of a Linux RAID (content-".into()),
        (
            vec![magic(512, b"LABELONE"), magic(544, b"PvIdPvIdPvIdPvIdPvIdPvIdPvIdPvId+")],
            "an LVM physical volume (PvIdPvIdPvIdPvIdPvIdPvIdPvIdPvId)".into(),
        ),
        (
            vec![magic(65600, b"_BHRfS_M"), magic(65568, &UUID_BYTES)],
            format!("a Btrfs file system {uuid}"),
        ),
        (zfs((128 << 10) + 3072), "a disk of ZFS (content-".into()),
        (zfs(LENGTH - (128 << 10)), "a disk of ZFS (content-".into()),
        (mbr(0x83), "a partition table (MBR) (89abcdef)".into()),
        (mbr(0), "a boot sector (89abcdef)".into()),
        (
            vec![magic(82, b"FAT32   "), magic(67, &[1, 2, 3, 4]), magic(71, b"USB        ")],
            "a FAT file system (USB, 04030201)".into(),
        ),
        (
            vec![magic(3, b"NTFS    "), magic(72, &[1, 2, 3, 4, 5, 6, 7, 8])],
            "an NTFS file system (0807060504030201)".into(),
        ),
        // What contains comes before what is contained.
        ([raid(LENGTH - 8192), ext([4, 0, 0, 0, 2, 0])].concat(), "part of a Linux RAID".into()),
        ([gpt(512), mbr(0xee)].concat(), "a partition table (GPT)".into()),
    ];
    for (bytes, wanted) in cases {
        let disk = disk();
        for (at, bytes) in bytes {
            disk.poke(at, &bytes);
        }
        let found = content(&disk).expect("not empty");
        assert!(found.to_string().starts_with(&wanted), "{found}, not {wanted}");
        assert!(!found.id().contains(char::is_whitespace), "{found}");
        // And nothing of it is left.
        format(&disk, 7);
        let found = content(&disk).expect("a volume");
        assert_eq!(found.superblock().map(Superblock::volume), Some(VolumeId(7)), "{found}");
        for block in [0, COPY] {
            disk.poke(block, &[0; 4096]);
        }
        assert_eq!(content(&disk), None, "something is left of {wanted}");
    }
}

#[test]
fn a_volume_is_known_by_either_superblock() {
    for gone in [Some(0), Some(COPY), None] {
        let disk = disk();
        format(&disk, 8);
        if let Some(gone) = gone {
            disk.poke(gone, &[0; 4096]);
        }
        let found = content(&disk).expect("a volume");
        assert_eq!(found.to_string(), format!("a volume of MDFS ({}-n0d0)", VolumeId(8)));
        assert_eq!(found.superblock().map(Superblock::volume), Some(VolumeId(8)));
    }
    let disk = disk();
    format(&disk, 8);
    for hurt in [100, COPY + 100] {
        disk.poke(hurt, b"!");
    }
    let found = content(&disk).expect("it was one");
    let wanted = "a disk of MDFS, damaged or of a newer version (content-";
    assert!(found.to_string().starts_with(wanted), "{found}");
    assert_eq!(found.superblock(), None);
}

#[test]
fn tiny_disks_are_looked_at_whole() {
    for length in [0, 1, 511, 4096, 5000, END_BYTES + 1] {
        let disk = disk();
        disk.set_length(length);
        assert_eq!(content(&disk), None, "{length}");
        if let Some(last) = length.checked_sub(1) {
            disk.poke(last, b"!");
            assert!(content(&disk).is_some(), "{length}");
            assert!(identify(&disk).now_or_never().expect("no latency").is_err());
        }
    }
}
