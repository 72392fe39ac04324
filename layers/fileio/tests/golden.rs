//! The bytes of requests and replies of the applications interface. A change here is a change of
//! the protocol: raise its version, tell docs/protocol.md and the changelog.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use bytes::Bytes;
use fileio::protocol::{
    Append, Appended, Attributes, ByteRange, CallId, CloseHandle, Commit, Credentials, DirectData,
    Error, FileLock, Handle, ListData, Lock, LockKind, LockOwner, LockResult, Name, Open,
    OpenHandle, OpenedFile, PunchHole, Read, ReadData, ReadDirect, ReadList, Regions, Remove,
    Rename, Renew, ReplayPunch, ReplayWrite, Reply, Request, Seek, SeekTarget, SetXattr, Time,
    Unlock, WccAttr, Write, WriteDirect, WriteList, WriteResult, XattrMode, XattrName,
};
use runtime::delivery::{DeliveredRange, DeliveryTarget, DepositedRange, PortAddress};
use runtime::seed::Rng;
use runtime::wire::{Encoder, Wire};

/// The head in hexadecimal digits, and the payload.
fn form(value: &impl Wire) -> (String, Vec<u8>) {
    let mut out = Encoder::new();
    value.put(&mut out);
    let (head, bulk) = out.finish();
    let head: Vec<String> = head.iter().map(|byte| format!("{byte:02x}")).collect();
    (head.join(""), bulk.concat())
}

const FILE: Handle = Handle { ino: 0x0102, generation: 3 };
const FILE_BYTES: &str = "02010000000000000300000000000000";

fn who() -> Credentials {
    Credentials { uid: 1, gid: 2, groups: vec![3] }
}
const WHO_BYTES: &str = "01000000020000000100000003000000";

#[test]
fn requests_have_the_agreed_bytes() {
    let read = Request::from(Read { who: who(), file: FILE, offset: 16, length: 255 });
    let expected = format!("0d{WHO_BYTES}{FILE_BYTES}1000000000000000ff000000");
    assert_eq!(form(&read), (expected, Vec::new()));

    let data = vec![Bytes::from_static(b"check"), Bytes::from_static(b"point")];
    let write = Request::from(Write { who: who(), file: FILE, offset: 0, data, durable: true });
    let expected =
        format!("0e{WHO_BYTES}{FILE_BYTES}0000000000000000{}01", "020000000500000005000000");
    assert_eq!(form(&write), (expected, b"checkpoint".to_vec()));

    let call = CallId { client: 4, number: 5 };
    let name = Name::new(&b"a"[..]).unwrap();
    let remove = Remove { who: who(), call, directory: FILE, name, durable: false };
    let expected = format!("07{WHO_BYTES}04000000000000000500000000000000{FILE_BYTES}016100");
    assert_eq!(form(&Request::from(remove)), (expected, Vec::new()));

    let [from_name, to_name] = [b"a", b"b"].map(|name| Name::new(&name[..]).unwrap());
    let rename = Rename {
        who: who(),
        call,
        from_directory: FILE,
        from_name,
        to_directory: FILE,
        to_name,
        replace: true,
        durable: false,
    };
    let call_bytes = "04000000000000000500000000000000";
    let expected = format!("09{WHO_BYTES}{call_bytes}{FILE_BYTES}0161{FILE_BYTES}01620100");
    assert_eq!(form(&Request::from(rename)), (expected, Vec::new()));

    let punch = PunchHole { who: who(), file: FILE, offset: 16, length: 255, durable: true };
    let expected = format!("13{WHO_BYTES}{FILE_BYTES}1000000000000000ff0000000000000001");
    assert_eq!(form(&Request::from(punch)), (expected, Vec::new()));

    let seek = Seek { who: who(), file: FILE, offset: 16, target: SeekTarget::Hole {} };
    let expected = format!("15{WHO_BYTES}{FILE_BYTES}100000000000000002");
    assert_eq!(form(&Request::from(seek)), (expected, Vec::new()));

    let (name, value) = (XattrName::new(&b"user.a"[..]).unwrap(), b"xy".to_vec());
    let (mode, durable) = (XattrMode::CreateNew {}, false);
    let set = SetXattr { who: who(), call, file: FILE, name, value, mode, durable };
    let expected =
        format!("17{WHO_BYTES}{call_bytes}{FILE_BYTES}06757365722e6102000000{}0200", "7879");
    assert_eq!(form(&Request::from(set)), (expected, Vec::new()));

    let hold = Request::from(OpenHandle { who: who(), call, file: FILE, access: 6 });
    let expected = format!("1a{WHO_BYTES}04000000000000000500000000000000{FILE_BYTES}06000000");
    assert_eq!(form(&hold).0, expected);
    let close_handle = Request::from(CloseHandle { call, file: FILE });
    assert_eq!(form(&close_handle).0, format!("1b04000000000000000500000000000000{FILE_BYTES}"));
    let renew = Request::from(Renew { client: 4, lease: 5 });
    assert_eq!(form(&renew).0, "1c04000000000000000500000000000000");
    let name = Name::new(&b"a"[..]).unwrap();
    let open = Request::from(Open { who: who(), call, directory: FILE, name });
    let expected = format!("1d{WHO_BYTES}04000000000000000500000000000000{FILE_BYTES}0161");
    assert_eq!(form(&open).0, expected);

    let owner = LockOwner { client: 4, id: 6 };
    let (range, kind) = (ByteRange { first: 1, last: u64::MAX }, LockKind::Exclusive {});
    let lock = Request::from(Lock { file: FILE, owner, range, kind, lease: 5, reclaim: true });
    let bytes = concat!(
        "04000000000000000600000000000000",
        "0100000000000000ffffffffffffffff",
        "02",
        "0500000000000000",
        "01"
    );
    assert_eq!(form(&lock).0, format!("1f{FILE_BYTES}{bytes}"));
    let unlock = Request::from(Unlock { file: FILE, owner, range });
    assert_eq!(form(&unlock).0, format!("21{FILE_BYTES}{}", &bytes[..64]));

    // Three rows of 8 bytes, one every 256, twice, one MiB apart; then one range.
    let rows = Regions::nested(16, 8, &[(2, 1 << 20), (3, 256)]).unwrap();
    let regions = Regions::join([rows, Regions::contiguous(1, 5).unwrap()]).unwrap();
    let list_bytes = concat!(
        "02000000",
        "10000000000000000800000000000000",
        "02000000",
        "02000000000000000000100000000000",
        "03000000000000000001000000000000",
        "01000000000000000500000000000000",
        "00000000"
    );
    let (skip, length) = (8, 45);
    let read = ReadList { who: who(), file: FILE, regions: regions.clone(), skip, length };
    let expected = format!("23{WHO_BYTES}{FILE_BYTES}{list_bytes}08000000000000002d000000");
    assert_eq!(form(&Request::from(read)), (expected, Vec::new()));
    let (data, durable) = (Bytes::from_static(b"checkpoint"), true);
    let write = WriteList { who: who(), file: FILE, regions, skip, data, durable };
    let expected = format!("24{WHO_BYTES}{FILE_BYTES}{list_bytes}08000000000000000a00000001");
    assert_eq!(form(&Request::from(write)), (expected, b"checkpoint".to_vec()));

    let commit = Request::from(Commit { file: FILE });
    assert_eq!(form(&commit), (format!("0f{FILE_BYTES}"), Vec::new()));
}

#[test]
fn requests_that_may_come_again_have_the_agreed_bytes() {
    let call = CallId { client: 4, number: 5 };
    let call_bytes = "04000000000000000500000000000000";
    let data = vec![Bytes::from_static(b"record")];
    let (again, acknowledged) = (true, 0x0102);
    let only_if_verifier = Some(0x0506);
    let append = Append {
        who: who(),
        call,
        again,
        acknowledged,
        only_if_verifier,
        file: FILE,
        data: data.clone(),
    };
    let expected = format!(
        "25{WHO_BYTES}{call_bytes}010201000000000000010605000000000000{FILE_BYTES}0100000006000000"
    );
    assert_eq!(form(&Request::from(append)), (expected, b"record".to_vec()));
    let again = ReplayWrite {
        who: who(),
        file: FILE,
        offset: 5,
        data,
        order: 0x0203,
        sequence: 0x0304,
        is_append: true,
    };
    let expected = format!(
        "27{WHO_BYTES}{FILE_BYTES}050000000000000001000000060000000302000000000000040300000000000001"
    );
    assert_eq!(form(&Request::from(again)), (expected, b"record".to_vec()));
    let again = ReplayPunch {
        who: who(),
        file: FILE,
        offset: 5,
        length: 6,
        order: 0x0203,
        sequence: 0x0304,
    };
    let expected = format!(
        "28{WHO_BYTES}{FILE_BYTES}0500000000000000060000000000000003020000000000000403000000000000"
    );
    assert_eq!(form(&Request::from(again)), (expected, Vec::new()));
}

#[test]
fn requests_of_delivery_have_the_agreed_bytes() {
    let deliver =
        DeliveryTarget { client: 4, transfer: 5, ports: vec![PortAddress { process: 1, node: 6 }] };
    let target_bytes = "04000000000000000500000000000000010000000100000006000000";
    let read = ReadDirect { who: who(), file: FILE, offset: 16, length: 255, deliver };
    let expected = format!("29{WHO_BYTES}{FILE_BYTES}1000000000000000ff000000{target_bytes}");
    assert_eq!(form(&Request::from(read)), (expected, Vec::new()));
}

#[test]
fn a_request_of_deposits_has_the_agreed_bytes() {
    let source =
        DeliveryTarget { client: 4, transfer: 5, ports: vec![PortAddress { process: 1, node: 6 }] };
    let target_bytes = "04000000000000000500000000000000010000000100000006000000";
    let deposited = vec![DepositedRange { process: 1, at: 8, checksums: vec![0x0a] }];
    let (data, offset) = (vec![Bytes::from_static(b"rest")], 16);
    let parity = vec![DepositedRange { process: 2, at: 9, checksums: Vec::new() }];
    let write = WriteDirect { who: who(), file: FILE, offset, data, source, deposited, parity };
    let expected = format!(
        "2a{WHO_BYTES}{FILE_BYTES}10000000000000000100000004000000{target_bytes}{}{}",
        "01000000010000000800000000000000010000000a000000",
        "0100000002000000090000000000000000000000",
    );
    assert_eq!(form(&Request::from(write)), (expected, b"rest".to_vec()));
    assert_eq!(form(&Reply::WriteDirect(Ok(None))), ("2a0100".to_owned(), Vec::new()));
}

#[test]
fn replies_have_the_agreed_bytes() {
    assert_eq!(form(&Reply::Remove(Ok(()))).0, "0701");
    assert_eq!(form(&Reply::Remove(Err(Error::NoSpace {}))).0, "07000b");
    assert_eq!(form(&Reply::Write(Err(Error::LostWrites {}))).0, "0e0011");
    assert_eq!(form(&Reply::Seek(Ok(None))).0, "150100");
    assert_eq!(form(&Reply::Seek(Ok(Some(0x0102)))).0, "1501010201000000000000");
    assert_eq!(form(&Reply::GetXattr(Err(Error::NoXattr {}))).0, "160012");
    let attributes = Attributes::sample(&mut Rng::new(1));
    let verified = WriteResult {
        attributes,
        write_verifier: 0x0102,
        before: None,
        sequence: 0x0304,
        committed: 0x0203,
    };
    let numbers = "04030000000000000302000000000000";
    let told_verifier = "0201000000000000";
    let expected = format!("{}{told_verifier}00{numbers}", form(&attributes).0);
    assert_eq!(form(&Reply::Write(Ok(verified))).0, format!("0e01{expected}"));
    let time = |seconds| Time { seconds, nanos: 0x06 };
    let before = Some(WccAttr { size: 3, mtime: time(4), ctime: time(5) });
    let known = Reply::Write(Ok(WriteResult { before, ..verified }));
    let stamp = "0300000000000000040000000000000006000000050000000000000006000000";
    let attributes_bytes = form(&attributes).0;
    let expected_known = format!("0e01{attributes_bytes}{told_verifier}01{stamp}{numbers}");
    assert_eq!(form(&known).0, expected_known);
    assert_eq!(form(&Reply::Commit(Ok(verified))).0, format!("0f01{expected}"));
    let appended = Appended { offset: 3, written: verified };
    let reply = Reply::Append(Ok(appended));
    assert_eq!(form(&reply).0, format!("25010300000000000000{expected}"));
    assert_eq!(form(&Reply::WriteList(Ok(verified))).0, format!("2401{expected}"));
    let data = vec![Bytes::from_static(b"check"), Bytes::from_static(b"point")];
    let list = Reply::ReadList(Ok(ListData { data, attributes, write_verifier: 0x0102 }));
    let expected_head =
        format!("2301020000000500000005000000{}{told_verifier}", form(&attributes).0);
    assert_eq!(form(&list), (expected_head, b"checkpoint".to_vec()));
    let held = OpenedFile { attributes, lease: 0x0102 };
    let expected = format!("{}{told_verifier}", form(&attributes).0);
    assert_eq!(form(&Reply::OpenHandle(Ok(held))).0, format!("1a01{expected}"));
    assert_eq!(form(&Reply::Renew(Ok(false))).0, "1c0100");
    let owner = LockOwner { client: 4, id: 6 };
    let (range, kind) = (ByteRange { first: 1, last: 2 }, LockKind::Shared {});
    let conflict = LockResult::Conflict { lock: FileLock { owner, range, kind } };
    let expected = concat!(
        "1f0102",
        "04000000000000000600000000000000",
        "01000000000000000200000000000000",
        "01"
    );
    assert_eq!(form(&Reply::Lock(Ok(conflict))).0, expected);
    assert_eq!(form(&Reply::Lock(Ok(LockResult::Late {}))).0, "1f0105");
    let busy = Reply::Undelivered(runtime::Undelivered::Busy);
    assert_eq!(form(&busy).0, "0001");
}

#[test]
fn a_reply_of_delivery_has_the_agreed_bytes() {
    let attributes = Attributes::sample(&mut Rng::new(1));
    let told_verifier = "0201000000000000";
    let read = ReadData {
        data: vec![Bytes::from_static(b"check")],
        end: true,
        attributes,
        write_verifier: 0x0102,
    };
    let delivered = vec![DeliveredRange { at: 5, length: 6 }];
    let direct = Reply::ReadDirect(Ok(DirectData { read, execution: 7, delivered }));
    let expected_head = format!(
        "2901010000000500000001{}{told_verifier}{}",
        form(&attributes).0,
        "07000000000000000100000005000000000000000600000000000000"
    );
    assert_eq!(form(&direct), (expected_head, b"check".to_vec()));
}
