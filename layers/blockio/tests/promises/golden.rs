//! The bytes of a superblock and of each request. A change here is a change of the format or of the
//! protocol: raise its version, tell docs/format.md or docs/protocol.md and the changelog.

use blockio::disk_state::DiskEntry;
use blockio::protocol::{
    Describe, DiskStatus, Error, FollowRecord, Latency, PrepareDisks, Read, ReadSlot, Reply,
    Request, Sync, Write, WriteObstacle, WriteSlot,
};
use blockio::superblock::{Decided, SetRow, Superblock, VERSION, VERSION_ONE_SET};
use blockio::{BLOCK_SIZE, DiskName, DiskStage, Geometry, RedundancyClass, VolumeMap};
use runtime::wire::to_bytes;
use runtime::{Epoch, Undelivered, VolumeId};

/// Disk 1 of disk node 2.
fn superblock(version: u32) -> Superblock {
    let geometry = Geometry {
        volume: VolumeId(0x0F0E_0D0C_0B0A_0908_0706_0504_0302_0100),
        stripe_size: 65536,
        fs_nodes: 4,
    };
    let map = VolumeMap::grid(geometry, 3, 2, 0x0102).expect("a small volume");
    let disk = DiskName { disk_node: 2, disk: 1 };
    Superblock {
        version,
        disk,
        features: 0,
        geometry,
        id: 0,
        length: 0x0130_1000,
        formatted_ms: 0x0199_0000_0001,
        epoch: Epoch(0x0A0B),
        sets: map.rows_of(disk),
        decided: map.decided(),
    }
}

#[test]
fn a_superblock_of_version_1_has_the_agreed_bytes() {
    let superblock = superblock(VERSION_ONE_SET);
    let block = superblock.encode();
    assert_eq!(block.len(), BLOCK_SIZE);
    assert_eq!(
        hex(&block[..88]),
        "4d 44 46 53 44 49 53 4b 01 00 00 00 02 00 00 00 01 00 00 00 00 00 00 00 \
         00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f \
         00 00 01 00 04 00 00 00 03 00 00 00 02 00 00 00 02 01 00 00 00 00 00 00 \
         00 10 30 01 00 00 00 00 01 00 00 00 99 01 00 00 0b 0a 00 00 00 00 00 00"
    );
    assert!(block[88..4092].iter().all(|&byte| byte == 0));
    assert_eq!(Superblock::decode(&block), Ok(superblock));
}

#[test]
fn a_superblock_has_the_agreed_bytes() {
    let member = SetRow {
        first: 0x0102,
        stripes_per_disk: 0x20,
        group_stripes: 8,
        unit_stripes: 4,
        lanes: 2,
        disks: 5,
        columns: 0,
        position: 3,
        base: 0x0102,
    };
    let mut superblock = superblock(VERSION);
    superblock.id = 0x1F1E_1D1C_1B1A_1918_1716_1514_1312_1110;
    let first = superblock.sets[0].stripes_per_disk * 6;
    superblock.sets.push(SetRow { first, ..member });
    let entry =
        DiskEntry { disk: DiskName { disk_node: 1, disk: 2 }, state: DiskStage::Draining {} };
    superblock.decided =
        Decided { version: 3, born_sets: 1, states: vec![entry], ..superblock.decided };
    superblock.decided.redundancy = RedundancyClass::Copies { count: 2 };
    let block = superblock.encode();
    assert_eq!(
        hex(&block[..180]),
        "4d 44 46 53 44 49 53 4b 02 00 00 00 02 00 00 00 01 00 00 00 00 00 00 00 \
         00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f \
         00 00 01 00 04 00 00 00 10 11 12 13 14 15 16 17 18 19 1a 1b 1c 1d 1e 1f \
         00 10 30 01 00 00 00 00 01 00 00 00 99 01 00 00 0b 0a 00 00 00 00 00 00 \
         02 00 00 00 \
         00 00 00 00 00 00 00 00 02 01 00 00 00 00 00 00 30 00 00 00 01 00 00 00 \
         00 00 00 00 06 00 00 00 03 00 00 00 05 00 00 00 00 00 00 00 00 00 00 00 \
         0c 06 00 00 00 00 00 00 20 00 00 00 00 00 00 00 08 00 00 00 04 00 00 00 \
         02 00 00 00 05 00 00 00 00 00 00 00 03 00 00 00"
    );
    assert_eq!(hex(&block[180..188]), "02 01 00 00 00 00 00 00");
    assert_eq!(
        hex(&block[188..216]),
        "03 00 00 00 00 00 00 00 01 00 00 00 01 00 00 00 01 00 00 00 02 00 00 00 02 01 01 02"
    );
    assert!(block[216..4092].iter().all(|&byte| byte == 0));
    assert_eq!(Superblock::decode(&block), Ok(superblock.clone()));
    superblock.decided.redundancy = RedundancyClass::Parity { data: 4, parity: 1 };
    let block = superblock.encode();
    assert_eq!(hex(&block[212..217]), "02 01 02 04 01");
    assert_eq!(Superblock::decode(&block), Ok(superblock.clone()));
    superblock.decided.classes = vec![RedundancyClass::Copies { count: 2 }];
    let block = superblock.encode();
    assert_eq!(hex(&block[212..224]), "02 01 02 04 01 01 00 00 00 01 02 00");
    assert_eq!(Superblock::decode(&block), Ok(superblock));
}

#[test]
fn requests_have_the_agreed_bytes() {
    let bytes = |request: Request| hex(&to_bytes(&request));
    assert_eq!(
        bytes(Read { stripe: 0x0102, offset: 3, length: 4 }.into()),
        "01 02 01 00 00 00 00 00 00 03 00 00 00 04 00 00 00"
    );
    // The number of pieces, the length of each, then what they hold.
    assert_eq!(
        bytes(Write { stripe: 1, offset: 2, data: vec!["a".into(), "bc".into()] }.into()),
        "02 01 00 00 00 00 00 00 00 02 00 00 00 02 00 00 00 01 00 00 00 02 00 00 00 61 62 63"
    );
    assert_eq!(bytes(Sync {}.into()), "03");
    assert_eq!(bytes(ReadSlot { disk: 1, slot: 2 }.into()), "04 01 00 00 00 02 00 00 00");
    assert_eq!(
        bytes(WriteSlot { disk: 1, slot: 2, data: "a".into() }.into()),
        "05 01 00 00 00 02 00 00 00 01 00 00 00 61"
    );
    assert_eq!(bytes(Describe {}.into()), "06");
    assert_eq!(bytes(PrepareDisks { record: vec![9] }.into()), "07 01 00 00 00 09");
    assert_eq!(bytes(FollowRecord { record: vec![9] }.into()), "08 01 00 00 00 09");
}

#[test]
fn replies_have_the_agreed_bytes() {
    let bytes = |reply: Reply| hex(&to_bytes(&reply));
    assert_eq!(bytes(Undelivered::Busy.into()), "00 01");
    assert_eq!(bytes(Reply::Sync(Ok(0x0102))), "03 01 02 01 00 00 00 00 00 00");
    assert_eq!(bytes(Reply::Read(Ok("a".into()))), "01 01 01 00 00 00 61");
    assert_eq!(bytes(Reply::Write(Ok(0x0102))), "02 01 02 01 00 00 00 00 00 00");
    let status = DiskStatus {
        disk: 7,
        stripes: 1,
        queued: 2,
        healthy: true,
        reads: 3,
        writes: 4,
        syncs: 5,
        read_bytes: 6,
        written_bytes: 7,
        direct: true,
        merged: 8,
        busy: 9,
        read_latency: Latency { count: 1, p50_ns: 2, p99_ns: 3, max_ns: 4 },
        write_latency: Latency::default(),
        sync_latency: Latency { max_ns: 5, ..Latency::default() },
        path: "d".into(),
        obstacle: Some(WriteObstacle::Full {}),
        obstacle_since: 6,
    };
    assert_eq!(
        bytes(Reply::Describe(Ok(vec![status]))),
        "06 01 01 00 00 00 07 00 00 00 01 00 00 00 00 00 00 00 02 00 00 00 01 03 00 00 00 00 00 00 00 \
         04 00 00 00 00 00 00 00 05 00 00 00 00 00 00 00 06 00 00 00 00 00 00 00 \
         07 00 00 00 00 00 00 00 01 08 00 00 00 00 00 00 00 09 00 00 00 00 00 00 00 \
         01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 \
         03 00 00 00 00 00 00 00 04 00 00 00 00 00 00 00 \
         00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 \
         00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 \
         00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 \
         00 00 00 00 00 00 00 00 05 00 00 00 00 00 00 00 \
         01 00 00 00 64 01 01 06 00 00 00 00 00 00 00"
    );
}

#[test]
fn errors_have_the_agreed_bytes() {
    let bytes = |error: Error| hex(&to_bytes(&error));
    assert_eq!(bytes(Undelivered::Busy.into()), "01 01");
    assert_eq!(
        bytes(Error::OutOfRange { stripe: 1, offset: 2, length: 3 }),
        "02 01 00 00 00 00 00 00 00 02 00 00 00 03 00 00 00"
    );
    assert_eq!(bytes(Error::DiskFailed { disk: 1 }), "03 01 00 00 00");
    assert_eq!(
        bytes(Error::Corrupt { stripe: 1, block: 2 }),
        "04 01 00 00 00 00 00 00 00 02 00 00 00"
    );
    assert_eq!(
        bytes(Error::Unreadable { disk: 1, offset: 2 }),
        "05 01 00 00 00 02 00 00 00 00 00 00 00"
    );
    assert_eq!(
        bytes(Error::NoSuchSlot { disk: 1, slot: 2, length: 3 }),
        "06 01 00 00 00 02 00 00 00 03 00 00 00 00 00 00 00"
    );
    assert_eq!(
        bytes(Error::LostWrites { stripe: 1, boot_id: 2 }),
        "07 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00"
    );
    assert_eq!(bytes(Error::NotReady { disk_node: 1, disk: 2 }), "0a 01 00 00 00 02 00 00 00");
    assert_eq!(bytes(Error::Missing { disk_node: 1, disk: 2 }), "09 01 00 00 00 02 00 00 00");
    assert_eq!(bytes(Error::BadRecord {}), "0b");
    let why = WriteObstacle::ReadOnly {};
    assert_eq!(
        bytes(Error::Unwritable { disk_node: 1, disk: 2, why }),
        "08 01 00 00 00 02 00 00 00 02"
    );
}

fn hex(bytes: &[u8]) -> String {
    let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    hex.join(" ")
}
