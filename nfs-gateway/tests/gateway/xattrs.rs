//! Extended attributes over version 4.2 (RFC 8276).

use bytes::Buf as _;
use fileio::protocol::{Credentials, ListXattrs, ROOT, Request, XATTR_VALUE_MAX};
use nfs_gateway::Settings;
use runtime::NodeId;
use runtime::seed::with_seed;

use crate::kit::{Client, Stage, VOLUME, config};
use crate::v4::{OK, OP_ILLEGAL, Ops, RESULT, ROFS, Session, TABLE, compound};

const PERM: u32 = 1;
const ACCESS: u32 = 13;
const EXIST: u32 = 17;
const INVAL: u32 = 22;
const NAMETOOLONG: u32 = 63;
const TOOSMALL: u32 = 10_005;
const BADXDR: u32 = 10_036;
const BADCHAR: u32 = 10_040;
const REP_TOO_BIG_TO_CACHE: u32 = 10_067;
const NOXATTR: u32 = 10_095;
const XATTR2BIG: u32 = 10_096;

const EITHER: u32 = 0;
const CREATE: u32 = 1;
const REPLACE: u32 = 2;

/// The attribute `xattr_support`: bit 18 of the third word.
const XATTR_SUPPORT: u32 = 1 << 18;

/// A session with a new file `file` in the root.
async fn session(client: Client) -> Session {
    let mut session = Session::new(client, b"client").await;
    assert!(session.open(b"owner", b"file", 0).await.is_ok());
    session
}

/// What the last of `ops` on `file` returns.
async fn result(session: &mut Session, ops: impl FnOnce(Ops) -> Ops) -> Result<Vec<u8>, u32> {
    let told = session.run(&ops(Ops::default().root().lookup(b"file"))).await;
    if told.status == OK { Ok(told.bytes[3 * RESULT..].to_vec()) } else { Err(told.status) }
}

fn take_opaque(bytes: &mut &[u8]) -> Vec<u8> {
    let length = bytes.get_u32() as usize;
    let data = bytes[..length].to_vec();
    bytes.advance(length.next_multiple_of(4));
    data
}

async fn value(session: &mut Session, name: &[u8]) -> Result<Vec<u8>, u32> {
    let result = result(session, |ops| ops.op(72).opaque(name)).await?;
    Ok(take_opaque(&mut &result[..]))
}

/// One LISTXATTRS.
#[derive(Debug, PartialEq, Eq)]
struct Page {
    cookie: u64,
    names: Vec<Vec<u8>>,
    eof: bool,
}

async fn page(session: &mut Session, cookie: u64, bytes_max: u32) -> Result<Page, u32> {
    let result = result(session, |ops| ops.op(74).long(cookie).word(bytes_max)).await?;
    assert!(result.len() <= bytes_max as usize);
    let mut bytes = &result[..];
    let (cookie, count) = (bytes.get_u64(), bytes.get_u32());
    let names = (0..count).map(|_| take_opaque(&mut bytes)).collect();
    let eof = bytes.get_u32() == 1;
    assert!(bytes.is_empty());
    Ok(Page { cookie, names, eof })
}

#[test]
fn attributes_are_set_as_the_option_says_and_each_change_is_seen() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let service = stage.service.clone();
        stage.run(async |client, _| {
            let mut session = session(client).await;
            assert_eq!(value(&mut session, b"name").await, Err(NOXATTR));
            let set = |option, value: &'static [u8]| {
                move |ops: Ops| ops.set_xattr(option, b"name", value)
            };
            let remove = |ops: Ops| ops.remove_xattr(b"name");
            assert_eq!(result(&mut session, set(REPLACE, b"none")).await, Err(NOXATTR));
            assert_eq!(result(&mut session, remove).await, Err(NOXATTR));
            assert_eq!(result(&mut session, set(3, b"none")).await, Err(BADXDR));
            service.asked();
            let info = result(&mut session, set(CREATE, b"first")).await.unwrap();
            let is_user_name = |request: &Request| {
                matches!(request, Request::SetXattr(set) if set.name.as_bytes() == b"user.name")
            };
            assert!(service.asked().iter().any(is_user_name));
            let mut info = &info[..];
            assert_eq!(info.get_u32(), 0, "not atomic");
            assert_ne!(info.get_u64(), info.get_u64(), "the change attribute");
            assert_eq!(result(&mut session, set(CREATE, b"second")).await, Err(EXIST));
            assert_eq!(value(&mut session, b"name").await, Ok(b"first".to_vec()));
            assert!(result(&mut session, set(REPLACE, b"third")).await.is_ok());
            assert_eq!(value(&mut session, b"name").await, Ok(b"third".to_vec()));
            assert!(result(&mut session, set(EITHER, b"")).await.is_ok());
            assert_eq!(value(&mut session, b"name").await, Ok(Vec::new()));
            let info = result(&mut session, remove).await.unwrap();
            assert_ne!(info[4..12], info[12..20], "the change attribute");
            assert_eq!(value(&mut session, b"name").await, Err(NOXATTR));
            assert!(result(&mut session, set(EITHER, b"again")).await.is_ok());
        });
    });
}

#[test]
fn names_and_values_beyond_the_limits_are_refused() {
    with_seed(|rng| {
        Stage::new(rng).run(async |client, _| {
            let mut session = session(client).await;
            let mut set = async |name: &[u8], value: &[u8]| {
                result(&mut session, |ops| ops.set_xattr(EITHER, name, value)).await.err()
            };
            assert_eq!(set(b"", b"x").await, Some(INVAL));
            assert_eq!(set(b"a\0b", b"x").await, Some(BADCHAR));
            assert_eq!(set(&[b'a'; 251], b"x").await, Some(NAMETOOLONG));
            assert_eq!(set(&[b'a'; 250], b"x").await, None);
            assert_eq!(set(b"large", &vec![7; XATTR_VALUE_MAX + 1]).await, Some(XATTR2BIG));
            assert_eq!(set(b"one", &vec![7; XATTR_VALUE_MAX]).await, None);
            assert_eq!(set(b"two", &vec![7; XATTR_VALUE_MAX]).await, Some(XATTR2BIG), "of all");
            // The test's sessions cache every reply, up to 4 KiB.
            assert_eq!(value(&mut session, b"one").await, Err(REP_TOO_BIG_TO_CACHE));
        });
    });
}

#[test]
fn names_are_listed_page_by_page_whatever_is_removed_meanwhile() {
    with_seed(|rng| {
        Stage::new(rng).run(async |client, _| {
            let mut session = session(client).await;
            let empty = Page { cookie: 0, names: Vec::new(), eof: true };
            assert_eq!(page(&mut session, 0, 16).await, Ok(empty));
            let all: Vec<Vec<u8>> =
                (0..50).map(|index| format!("name {index:02}").into_bytes()).collect();
            for name in &all {
                let set = |ops: Ops| ops.set_xattr(CREATE, name, b"value");
                assert!(result(&mut session, set).await.is_ok());
            }
            assert_eq!(page(&mut session, 0, 15).await, Err(TOOSMALL));
            assert_eq!(page(&mut session, 0, 27).await, Err(TOOSMALL));
            let mut found = Vec::new();
            let mut cookie = 0;
            loop {
                let Page { cookie: next, names, eof } =
                    page(&mut session, cookie, 16 + 3 * 12).await.unwrap();
                assert!(names.len() == 3 || eof);
                for name in &names {
                    let remove = |ops: Ops| ops.remove_xattr(name);
                    assert!(result(&mut session, remove).await.is_ok());
                }
                found.extend(names);
                cookie = next;
                if eof {
                    break;
                }
            }
            found.sort();
            assert_eq!(found, all);
        });
    });
}

#[test]
fn only_attributes_of_users_are_listed_and_the_keys_of_file_handles_are_none() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let ctx = stage.world.context(NodeId::application(9));
        stage.run(async |client, _| {
            let mut session = session(client).await;
            let root = || Ops::default().root();
            let set = root().set_xattr(CREATE, b"user.seen", b"value");
            assert_eq!(session.run(&set).await.status, OK);
            let list = session.run(&root().op(74).long(0).word(4096)).await;
            let mut bytes = &list.bytes[2 * RESULT + 8..];
            assert_eq!(bytes.get_u32(), 1);
            assert_eq!(take_opaque(&mut bytes), b"user.seen");
            assert_eq!(bytes.get_u32(), 1, "all of it");
            let request = ListXattrs { who: Credentials::root(), file: ROOT };
            let all = fileio::client::ask(&ctx, request).await.unwrap();
            assert!(all.iter().any(|name| name.as_bytes().starts_with(b"trusted.")));
        });
    });
}

#[test]
fn who_may_not_write_a_file_may_not_change_its_attributes() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let mut other = stage.client();
        other.be(7, 7);
        stage.run(async |mut client, root| {
            client.symlink(&root, b"link", b"file").await.unwrap();
            let mut owner = session(client).await;
            let set = |ops: Ops| ops.set_xattr(EITHER, b"name", b"value");
            assert!(result(&mut owner, set).await.is_ok());
            let access = |ops: Ops| ops.op(3).word(0x1c0);
            let of_owner = result(&mut owner, access).await.unwrap();
            assert_eq!(of_owner, [0, 0, 1, 0xc0, 0, 0, 1, 0xc0]);
            assert_eq!(owner.on(b"link", set).await, PERM);
            let link = owner.run(&Ops::default().root().lookup(b"link").op(3).word(0x1c0)).await;
            assert_eq!(link.bytes[3 * RESULT..], [0; 8], "not of this kind");
            let mut other = Session::new(other, b"other").await;
            assert_eq!(result(&mut other, set).await, Err(ACCESS));
            assert_eq!(value(&mut other, b"name").await, Ok(b"value".to_vec()));
            let of_other = result(&mut other, access).await.unwrap();
            assert_eq!(of_other, [0, 0, 1, 0xc0, 0, 0, 1, 0x40]);
        });
    });
}

#[test]
fn in_exports_to_be_read_only_and_above_exports_nothing_is_set() {
    with_seed(|rng| {
        let stage = Stage::with(rng, config(VOLUME));
        stage.run(async |mut client, root| {
            let a = client.directory(&root, "a").await;
            let b = client.directory(&a, "b").await;
            client.directory(&b, "inner").await;
            let mut session = Session::new(client, b"before").await;
            for path in [&[&b"a"[..]][..], &[b"a", b"b", b"inner"]] {
                let set = at(path).set_xattr(CREATE, b"name", b"value");
                assert_eq!(session.run(&set).await.status, OK);
            }
        });
        stage.gateway.export(Settings::parse(TABLE, "table").expect("a good table").exports);
        let client = stage.client_at("10.2.0.1:700");
        stage.world.run(async {
            let mut session = Session::new(client, b"client").await;
            let mut status = async |ops: Ops| session.run(&ops).await.status;
            for path in [&[&b"a"[..]][..], &[b"a", b"b", b"inner"]] {
                assert_eq!(status(at(path).set_xattr(EITHER, b"name", b"value")).await, ROFS);
                assert_eq!(status(at(path).remove_xattr(b"name")).await, ROFS);
            }
            assert_eq!(status(at(&[b"a", b"b", b"inner"]).op(72).opaque(b"name")).await, OK);
            assert_eq!(status(at(&[b"a"]).op(72).opaque(b"name")).await, NOXATTR);
            let list = session.run(&at(&[b"a"]).op(74).long(0).word(4096)).await;
            let no_names = [&[0; 8 + 4][..], &[0, 0, 0, 1]].concat();
            assert_eq!(list.bytes[3 * RESULT..], no_names);
        });
    });
}

fn at(path: &[&[u8]]) -> Ops {
    path.iter().fold(Ops::default().root(), |ops, name| ops.lookup(name))
}

#[test]
fn minor_version_1_does_not_know_them() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let mut plain = stage.client();
        stage.run(async |client, _| {
            for number in 72..=75 {
                let told = compound(&mut plain, 1, &Ops::default().op(number)).await;
                assert_eq!(told.status, OP_ILLEGAL);
            }
            let session = session(client).await;
            // GETATTR of supported_attrs and xattr_support, then ACCESS.
            let ops = Ops::default().root().op(9).word(3).word(1).word(0).word(XATTR_SUPPORT);
            let ops = ops.op(3).word(0x1c0);
            for (minor, last) in [(1, 0), (2, 1)] {
                let told = compound(&mut plain, minor, &session.ops(1, minor, &ops)).await;
                assert_eq!(told.status, OK);
                let mut words: Vec<u32> = told.bytes.chunks(4).map(word).collect();
                let access = words.split_off(words.len() - 2);
                assert_eq!(access, [0x1c0 * last; 2], "minor version {minor}");
                // Behind SEQUENCE and PUTROOTFH: number, status, the bitmap of the answer.
                let answer = &words[2 + 9 + 2 + 2..];
                let of_answer = &answer[1..=answer[0] as usize];
                assert_eq!(of_answer.get(2).copied().unwrap_or(0), XATTR_SUPPORT * last);
                let values = &answer[1 + answer[0] as usize..];
                assert_eq!(values[1], 3, "words of the supported attributes");
                assert_eq!(values[4] & XATTR_SUPPORT, XATTR_SUPPORT * last);
                assert_eq!(values[5] == 1, last == 1);
            }
        });
    });
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes.try_into().expect("a word"))
}
