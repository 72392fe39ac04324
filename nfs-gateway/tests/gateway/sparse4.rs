//! Operations of minor version 2 on the content of files: `READ_PLUS`, COPY, `IO_ADVISE`.

use bytes::Buf as _;
use runtime::seed::with_seed;

use crate::kit::{Client, Stage};
use crate::v4::{BAD_STATEID, OK, OP_ILLEGAL, Ops, RESULT, Session, compound};

const ISDIR: u32 = 21;
const INVAL: u32 = 22;
const FBIG: u32 = 27;
const NOTSUPP: u32 = 10_004;
const WRONG_TYPE: u32 = 10_083;
const PARTNER_NOTSUPP: u32 = 10_088;

const BLOCK: usize = 4096;

/// A session with an open file `file` in the root, with these contents.
async fn with_content(client: Client, data: &[u8]) -> (Session, Vec<u8>) {
    let mut session = Session::new(client, b"client").await;
    let stateid = session.open(b"owner", b"file", 0).await.expect("it can be opened");
    assert_eq!(session.on(b"file", |ops| ops.write(&stateid, data)).await, OK);
    (session, stateid)
}

/// A part of the result of a `READ_PLUS`.
#[derive(Debug, PartialEq, Eq)]
enum Segment {
    Data(u64, Vec<u8>),
    Hole(u64, u64),
}
use Segment::{Data, Hole};

/// `READ_PLUS`: whether the end was reached, and what was found.
async fn read_plus(
    session: &mut Session,
    stateid: &[u8],
    (offset, count): (u64, u32),
) -> Result<(bool, Vec<Segment>), u32> {
    let ops = Ops::default().root().lookup(b"file").op(68).raw(stateid).long(offset).word(count);
    let told = session.run_uncached(&ops).await;
    if told.status != OK {
        return Err(told.status);
    }
    let mut bytes = &told.bytes[3 * RESULT..];
    let end = bytes.get_u32() == 1;
    let count = bytes.get_u32();
    let segments = (0..count).map(|_| match bytes.get_u32() {
        0 => {
            let (offset, length) = (bytes.get_u64(), bytes.get_u32() as usize);
            let data = bytes[..length].to_vec();
            bytes.advance(length.next_multiple_of(4));
            Data(offset, data)
        }
        1 => Hole(bytes.get_u64(), bytes.get_u64()),
        other => panic!("content {other}"),
    });
    let segments = segments.collect();
    assert!(bytes.is_empty());
    Ok((end, segments))
}

#[test]
fn read_plus_returns_data_and_holes_in_order() {
    with_seed(|rng| {
        Stage::new(rng).run(async |client, _| {
            // Data, two blocks of zeros, data up to the middle of a block.
            let content = [vec![1; BLOCK], vec![0; 2 * BLOCK], vec![2; 100]].concat();
            let (mut session, stateid) = with_content(client, &content).await;
            let mut read = async |offset, count| {
                read_plus(&mut session, &stateid, (offset, count)).await.unwrap()
            };
            let block = BLOCK as u64;
            let all = vec![
                Data(0, vec![1; BLOCK]),
                Hole(block, 2 * block),
                Data(3 * block, vec![2; 100]),
            ];
            assert_eq!(read(0, 1 << 20).await, (true, all));
            // Not more than was asked for, of a hole neither.
            assert_eq!(read(block, 4096).await, (false, vec![Hole(block, block)]));
            // Less than a block of zeros is data.
            let crossing = Data(block - 3, [vec![1; 3], vec![0; 7]].concat());
            assert_eq!(read(block - 3, 10).await, (false, vec![crossing]));
            assert_eq!(read(3 * block + 99, 9).await, (true, vec![Data(3 * block + 99, vec![2])]));
            assert_eq!(read(3 * block + 100, 9).await, (true, Vec::new()));
            assert_eq!(read(u64::MAX, 9).await, (true, Vec::new()));
        });
    });
}

#[test]
fn read_plus_is_an_operation_of_minor_version_2_and_fits_its_channel() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let mut other = stage.client();
        stage.run(async |client, _| {
            let content = [vec![3; 300 * BLOCK - 9], vec![0; BLOCK]].concat();
            let (mut session, stateid) = with_content(client, &content[..250 * BLOCK]).await;
            let of_minor_1 = Ops::default().op(68);
            assert_eq!(compound(&mut other, 1, &of_minor_1).await.status, OP_ILLEGAL);
            // A reply has 1 MiB at most, with all that is around the data.
            let write = |ops: Ops| ops.op(38).raw(&stateid).long(250 * BLOCK as u64).word(2);
            let write = |ops: Ops| write(ops).opaque(&content[250 * BLOCK..]);
            assert_eq!(session.on(b"file", write).await, OK);
            let (end, segments) = read_plus(&mut session, &stateid, (0, 1 << 20)).await.unwrap();
            let [Data(0, data)] = &segments[..] else { panic!("one segment") };
            assert!(!end && data.len() < 1 << 20 && data.len() > (1 << 20) - 512);
        });
    });
}

/// COPY behind what makes `from` the saved and `to` the current file.
fn copy(from: &[u8], to: &[u8], stateids: [&[u8]; 2], range: [u64; 3]) -> Ops {
    let ops = Ops::default().root().lookup(from).op(32).root().lookup(to).op(60);
    let ops = stateids.iter().fold(ops, |ops, stateid| ops.raw(stateid));
    // Not necessarily consecutive or synchronous, from this server.
    range.iter().fold(ops, |ops, word| ops.long(*word)).word(0).word(0).word(0)
}

/// The count of a COPY, and whether it has a write verifier.
async fn copied(session: &mut Session, ops: &Ops) -> Result<(u64, bool), u32> {
    let told = session.run(ops).await;
    if told.status != OK {
        return Err(told.status);
    }
    let mut bytes = &told.bytes[6 * RESULT..];
    assert_eq!(bytes.get_u32(), 0, "no callback");
    let (count, committed, _verifier) = (bytes.get_u64(), bytes.get_u32(), bytes.get_u64());
    assert_eq!((bytes.get_u32(), bytes.get_u32(), bytes.len()), (1, 1, 0));
    Ok((count, committed == 0))
}

#[test]
fn copy_stays_within_the_server_and_returns_a_count() {
    with_seed(|rng| {
        Stage::new(rng).run(async |client, root| {
            let mut reader = client;
            let target = reader.file(&root, "target").await;
            let content = [vec![5; BLOCK + 7], vec![0; 2 * BLOCK]].concat();
            let (mut session, from) = with_content(reader, &content).await;
            let to = session.open(b"owner", b"target", 0).await.unwrap();
            let run = |range| copy(b"file", b"target", [&from, &to], range);
            // Up to the end, and not at the beginning of the target.
            let all = content.len() as u64;
            assert_eq!(copied(&mut session, &run([7, 10, 0])).await, Ok((all - 7, true)));
            let read = session.client.read(&target, 0, 1 << 20).await.unwrap();
            assert_eq!(read.data.0[..], [&[0; 10][..], &content[7..]].concat());
            // Only a hole: the target ends with it.
            let hole = 2 * BLOCK as u64;
            let range = [hole, 100_000, BLOCK as u64];
            assert_eq!(copied(&mut session, &run(range)).await, Ok((BLOCK as u64, true)));
            let size = session.client.attributes(&target).await.size;
            assert_eq!(size, 100_000 + BLOCK as u64);
            assert_eq!(copied(&mut session, &run([all, 0, 0])).await, Ok((0, false)));
        });
    });
}

#[test]
fn a_long_copy_is_done_in_part() {
    with_seed(|rng| {
        Stage::new(rng).run(async |client, _| {
            let (mut session, from) = with_content(client, b"begin").await;
            let to = session.open(b"owner", b"target", 0).await.unwrap();
            // ALLOCATE, so that there are 17 MiB and a bit.
            let size = (17 << 20) + 3;
            let allocate = |ops: Ops| ops.op(59).raw(&from).long(0).long(size);
            assert_eq!(session.on(b"file", allocate).await, OK);
            let run = |at| copy(b"file", b"target", [&from, &to], [at, at, size - at]);
            assert_eq!(copied(&mut session, &run(0)).await, Ok((16 << 20, true)));
            assert_eq!(copied(&mut session, &run(16 << 20)).await, Ok(((1 << 20) + 3, true)));
        });
    });
}

#[test]
fn what_cannot_be_copied_is_refused() {
    with_seed(|rng| {
        Stage::new(rng).run(async |client, _| {
            let (mut session, from) = with_content(client, &[1; 100]).await;
            let to = session.open(b"owner", b"target", 0).await.unwrap();
            let run = |range| copy(b"file", b"target", [&from, &to], range);
            let mut status = async |ops: Ops| copied(&mut session, &ops).await.err();
            assert_eq!(status(run([101, 0, 0])).await, Some(INVAL));
            assert_eq!(status(run([1, 0, 100])).await, Some(INVAL));
            assert_eq!(status(run([0, u64::MAX - 9, 50])).await, Some(FBIG));
            let same = |range| copy(b"file", b"file", [&from, &from], range);
            assert_eq!(status(same([0, 49, 50])).await, Some(INVAL), "they overlap");
            assert_eq!(status(same([0, 50, 50])).await, None);
            let swapped = copy(b"file", b"target", [&to, &from], [0, 0, 9]);
            assert_eq!(status(swapped).await, Some(BAD_STATEID));
            let anonymous = [0; 16];
            let directory = Ops::default().root().op(32).root().lookup(b"target").op(60);
            let directory = directory.raw(&anonymous).raw(&to).long(0).long(0).long(0);
            let directory = directory.word(1).word(1).word(0);
            assert_eq!(status(directory).await, Some(WRONG_TYPE));
            // The source is at a server with a name.
            let remote = Ops::default().root().lookup(b"file").op(32).op(60).raw(&from).raw(&to);
            let remote = remote.long(0).long(0).long(0).word(1).word(1).word(1).word(1);
            assert_eq!(status(remote.opaque(b"other")).await, Some(PARTNER_NOTSUPP));
            // CLONE, OFFLOAD_STATUS, COPY_NOTIFY.
            for operation in [71, 67, 61] {
                let ops = Ops::default().root().lookup(b"file").op(operation);
                assert_eq!(status(ops).await, Some(NOTSUPP));
            }
        });
    });
}

#[test]
fn no_hints_are_followed() {
    with_seed(|rng| {
        Stage::new(rng).run(async |client, _| {
            let (mut session, stateid) = with_content(client, b"data").await;
            // WILLNEED.
            let advise = |ops: Ops, offset: u64| {
                ops.op(63).raw(&stateid).long(offset).long(9).word(1).word(1 << 4)
            };
            let ops = advise(Ops::default().root().lookup(b"file"), 0);
            let told = session.run(&ops).await;
            assert_eq!((told.status, &told.bytes[3 * RESULT..]), (OK, &[0; 4][..]));
            assert_eq!(session.on(b"file", |ops| advise(ops, u64::MAX)).await, INVAL);
            assert_eq!(session.run(&advise(Ops::default().root(), 0)).await.status, ISDIR);
        });
    });
}
