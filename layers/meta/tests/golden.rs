//! The bytes of what a store holds and of a request. A change here is a change of the disk format
//! or of the protocol: raise its version, tell docs/format.md or docs/protocol.md and the
//! changelog.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use blockio::RedundancyClass;
use meta::attributes::{Attributes, Kind, Name, Time};
use meta::protocol::{
    BlockRun, CallId, CallOutcome, Chunk, CommitMark, Dentry, Effect, FindName, Inode, InodeChange,
    Mirrors, Request, RunForm, SequenceGap, StoredReply, StripeShard, WideStripe,
};
use runtime::wire::{Wire, from_bytes, to_bytes};

fn hex(value: &impl Wire) -> String {
    let bytes: Vec<String> = to_bytes(value).iter().map(|byte| format!("{byte:02x}")).collect();
    bytes.join("")
}

#[test]
fn an_inode_has_the_agreed_bytes() {
    let time = |seconds| Time { seconds, nanos: 9 };
    let attributes = Attributes {
        ino: 0x0102,
        generation: 3,
        kind: Kind::Symlink {},
        mode: 0o777,
        links: 1,
        uid: 4,
        gid: 5,
        major: 6,
        minor: 7,
        size: 1,
        used_bytes: 0x1000,
        atime: time(10),
        mtime: time(11),
        ctime: time(12),
        birth: time(13),
        redundancy: None,
    };
    let missing = vec![SequenceGap { after: 0x0102, before: 0x0304, top_order: 0x0305 }];
    let committed = CommitMark { sequence: 0x0506, missing };
    let target = b"x".to_vec();
    let inode = Inode { attributes, parent: 8, verifier: Some(0xFF), target, committed };
    let expected = concat!(
        "0201000000000000",
        "0300000000000000",
        "03",
        "ff010000",
        "01000000",
        "04000000",
        "05000000",
        "06000000",
        "07000000",
        "0100000000000000",
        "0010000000000000",
        "0a0000000000000009000000",
        "0b0000000000000009000000",
        "0c0000000000000009000000",
        "0d0000000000000009000000",
        "0800000000000000",
        "01ff00000000000000",
        "0100000078",
    );
    let gap = concat!("02010000000000000403000000000000", "0503000000000000");
    let stored = format!("{expected}060500000000000001000000{gap}");
    assert_eq!(inode.to_stored(), bytes_of(&stored));
    // In a message the class of its content has its place.
    let (attributes, rest) = stored.split_at(210);
    assert_eq!(hex(&inode), format!("{attributes}00{rest}"));
    // Format version 1 ended here.
    let read = Inode::from_stored(&bytes_of(expected)).unwrap();
    assert_eq!(read, Inode { committed: CommitMark::default(), ..inode.clone() });
    // Early ones of version 2 had one gap, of which less was known, or none.
    let read = Inode::from_stored(&bytes_of(&format!("{expected}060500000000000000"))).unwrap();
    let (sequence, missing) = (0x0506, Vec::new());
    assert_eq!(read, Inode { committed: CommitMark { sequence, missing }, ..inode.clone() });
    let early = format!("{expected}06050000000000000102010000000000000403000000000000");
    let read = Inode::from_stored(&bytes_of(&early)).unwrap();
    let missing = vec![SequenceGap { after: 0x0102, before: 0x0304, top_order: u64::MAX }];
    assert_eq!(read, Inode { committed: CommitMark { sequence, missing }, ..inode.clone() });
    assert_eq!(Inode::from_stored(&inode.to_stored()), Ok(inode.clone()));
    for (class, bytes) in [
        (RedundancyClass::None {}, "0100"),
        (RedundancyClass::Copies { count: 2 }, "010102"),
        (RedundancyClass::Parity { data: 4, parity: 1 }, "01020401"),
    ] {
        let mut inode = inode.clone();
        inode.attributes.redundancy = Some(class);
        assert_eq!(inode.to_stored(), bytes_of(&format!("{stored}{bytes}")));
        assert_eq!(Inode::from_stored(&inode.to_stored()), Ok(inode.clone()));
        inode.committed = CommitMark::default();
        assert_eq!(Inode::from_stored(&inode.to_stored()), Ok(inode));
    }
    let short = &expected[..expected.len() - 2];
    assert!(Inode::from_stored(&bytes_of(short)).is_err());
}

fn bytes_of(hex: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap();
    (0..hex.len() / 2).map(byte).collect()
}

#[test]
fn a_chunk_and_a_name_have_the_agreed_bytes() {
    let chunk = |at, start, form| Chunk {
        runs: vec![BlockRun {
            at,
            start,
            checksums: vec![0xAABB_CCDD],
            form,
            mirrors: Mirrors::default(),
        }],
    };
    let both_ways = |chunk: Chunk, expected: &str| {
        assert_eq!(hex(&chunk), expected);
        assert_eq!(from_bytes::<Chunk>(&bytes_of(expected)), Ok(chunk));
    };
    let expected = concat!("01000000", "0200", "0403000000000000", "01000000", "ddccbbaa", "01");
    both_ways(chunk(2, 0x0304, RunForm::new(1, true)), expected);
    let unsealed = format!("{}00", &expected[..expected.len() - 2]);
    both_ways(chunk(2, 0x0304, RunForm::new(1, false)), &unsealed);
    let expected = concat!("01000000", "1000", "2003000000000000", "01000000", "ddccbbaa", "09");
    both_ways(chunk(16, 0x0320, RunForm::new(16, true)), expected);
    // Two copies more, at the end.
    let mut copied = chunk(2, 0x0304, RunForm::new(1, true));
    copied.runs[0].mirrors.push(0x0504);
    copied.runs[0].mirrors.push(0x0704);
    let starts = concat!("0405000000000000", "0407000000000000");
    let head = concat!("01000000", "0200", "0403000000000000", "01000000", "ddccbbaa", "41");
    both_ways(copied, &format!("{head}{starts}"));
    let longest = concat!("01000000", "0000", "0003000000000000", "01000000", "ddccbbaa", "10");
    both_ways(chunk(0, 0x0300, RunForm::new(256, false)), longest);
    // In a wide stripe.
    let expected = concat!("01000000", "0000", "0003000000000000", "01000000", "ddccbbaa", "e9");
    both_ways(chunk(0, 0x0300, RunForm::covered(16)), expected);
    let shard = |start| StripeShard { start, checksums: vec![0xAABB_CCDD] };
    let wide = WideStripe { data: vec![shard(0x0300), shard(0x0500)], parity: vec![shard(0x0700)] };
    let shards =
        ["0003", "0005", "0007"].map(|start| format!("{start}00000000000001000000ddccbbaa"));
    assert_eq!(hex(&wide), format!("02000000{}", shards.concat()));
    let dentry = Dentry { ino: 1, generation: 2, kind: Kind::Directory {} };
    assert_eq!(hex(&dentry), "0100000000000000020000000000000002");
}

#[test]
fn promised_effects_have_the_agreed_bytes() {
    let dentry = Dentry { ino: 1, generation: 2, kind: Kind::File {} };
    let name = Name::new(&b"ab"[..]).unwrap();
    let change = InodeChange { links: -1, parent: Some(6), ..InodeChange::default() };
    let effects = vec![
        Effect::SetName { directory: 3, name, expect: None, set: Some(dentry) },
        Effect::DropLink { ino: 4, generation: 5, time: Time { seconds: 10, nanos: 9 } },
        Effect::ChangeParts { ino: 4, generation: 5, change },
    ];
    let expected = concat!(
        "03000000",
        "01",
        "0300000000000000",
        "026162",
        "00",
        "010100000000000000020000000000000001",
        "02",
        "04000000000000000500000000000000",
        "0a0000000000000009000000",
        "03",
        "04000000000000000500000000000000",
        "000000000000",
        "ffffffffffffffff",
        "010600000000000000",
    );
    assert_eq!(hex(&effects), expected);
}

#[test]
fn a_stored_reply_has_the_agreed_bytes() {
    let call = CallId { client: 0x0102, number: 3 };
    let done = StoredReply { sequence: 4, call, outcome: CallOutcome::Done {} };
    let head = concat!("0400000000000000", "0201000000000000", "0300000000000000");
    assert_eq!(hex(&done), format!("{head}01"));
    let made = StoredReply { outcome: CallOutcome::Made { ino: 5, generation: 6 }, ..done };
    assert_eq!(hex(&made), format!("{head}02{}{}", "0500000000000000", "0600000000000000"));
    let appended = StoredReply { outcome: CallOutcome::Appended { offset: 7 }, ..done };
    assert_eq!(hex(&appended), format!("{head}030700000000000000"));
}

#[test]
fn a_request_has_the_agreed_bytes() {
    let name = Name::new(&b"ab"[..]).unwrap();
    let request = Request::from(FindName { directory: 1, name });
    assert_eq!(hex(&request), concat!("05", "0100000000000000", "026162"));
}
