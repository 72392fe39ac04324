//! Exports that lie inside another one: who may not use the inner one does not see into it.

use std::time::Duration;

use bytes::Buf as _;
use client::{Credentials, FileSystem};
use fileio::protocol::{Error, Reply, Request};
use nfs3_types::mount::mountstat3::MNT3ERR_ACCES;
use nfs3_types::nfs3::NFS_PROGRAM::*;
use nfs3_types::nfs3::nfsstat3::*;
use nfs3_types::nfs3::*;
use runtime::protocol::Undelivered;
use runtime::seed::{Rng, with_seed};
use runtime::{Context, NodeId};

use crate::exports::{exports, mounted};
use crate::kit::{Act, Client, Stage, mode, status};
use crate::v4::{OK, Ops, RESULT, Session};

/// All may use `/`, and few what is in it.
const TABLE: &str = r#"
[[export]]
path = "/"
[[export.client]]
network = "10.0.0.0/8"
access = "rw"
squash = "no_root_squash"

[[export]]
path = "/secret"
[[export.client]]
network = "10.0.0.9"
access = "rw"
squash = "all_squash"
anon_uid = 77
anon_gid = 78
[[export.client]]
network = "10.0.0.8"
squash = "no_root_squash"

[[export]]
path = "/deep/down/inner"
[[export.client]]
network = "10.0.0.9"
access = "rw"
squash = "no_root_squash"
"#;

/// May use `/` only.
const OUTER: &str = "10.0.0.1:700";
/// May use all, squashed in `/secret`.
const BOTH: &str = "10.0.0.9:700";
/// May use `/`, and read in `/secret`.
const READER: &str = "10.0.0.8:700";

/// Longer than the places of exports are trusted.
const REFRESHED: Duration = Duration::from_millis(2100);

const ACCESS: u32 = 13;
const XDEV: u32 = 18;
const ISDIR: u32 = 21;

/// Handles of `/`, `/secret`, and what is in it, all of them in the export `/`.
struct Tree {
    root: nfs_fh3,
    secret: nfs_fh3,
    file: nfs_fh3,
    public: nfs_fh3,
}

/// A tree that was made before there were nested exports.
fn tree(rng: &mut Rng) -> (Stage, Tree) {
    let stage = Stage::new(rng);
    let tree = stage.run(async |mut client, root| {
        let secret = client.directory(&root, "secret").await;
        client.setattr(&secret, mode(0o777)).await.unwrap();
        let file = client.file(&secret, "file").await;
        let public = client.directory(&secret, "pub").await;
        let deep = client.directory(&root, "deep").await;
        let down = client.directory(&deep, "down").await;
        client.directory(&down, "inner").await;
        client.directory(&root, "plain").await;
        client.file(&root, "own").await;
        Tree { root, secret, file, public }
    });
    stage.gateway.export(exports(TABLE));
    (stage, tree)
}

/// The volume, without the gateway.
fn volume(stage: &Stage) -> FileSystem<Context> {
    let ctx = stage.world.context(NodeId::application(1));
    FileSystem::new(ctx, Credentials::root(), 77)
}

/// The entries of a directory, with what READDIRPLUS tells of them.
async fn listed(client: &mut Client, dir: &nfs_fh3) -> Vec<entryplus3<'static>> {
    let arguments = READDIRPLUS3args {
        dir: dir.clone(),
        cookie: 0,
        cookieverf: cookieverf3([0; 8]),
        dircount: 1 << 16,
        maxcount: 1 << 16,
    };
    let page: READDIRPLUS3res<'static> = client.nfs(NFSPROC3_READDIRPLUS, &arguments).await;
    page.unwrap().reply.entries.into_inner()
}

/// The entry of this name.
async fn entry(client: &mut Client, dir: &nfs_fh3, name: &[u8]) -> entryplus3<'static> {
    let all = listed(client, dir).await;
    all.into_iter().find(|entry| entry.name.as_ref() == name).expect("it is listed")
}

#[test]
fn a_client_of_the_outer_export_does_not_see_into_the_inner_one() {
    with_seed(|rng| {
        let (stage, tree) = tree(rng);
        let mut client = stage.client_at(OUTER);
        stage.world.run(async {
            let root = client.mount("/").await;
            assert_eq!(root, tree.root);
            for path in ["/secret", "/secret/pub", "/deep/down/inner"] {
                assert_eq!(mounted(&mut client, path).await, Err(MNT3ERR_ACCES as u32));
            }
            assert_eq!(status(&client.lookup(&root, b"secret").await), NFS3ERR_ACCES);
            let down = client.mount("/deep/down").await;
            assert_eq!(status(&client.lookup(&down, b"inner").await), NFS3ERR_ACCES);
            assert_eq!(status(&client.lookup(&root, b"plain").await), NFS3_OK);
            // The handle of its root, from when it was no export.
            let secret = &tree.secret;
            assert_eq!(status(&client.getattr(secret).await), NFS3ERR_ACCES);
            assert_eq!(status(&client.setattr(secret, mode(0)).await), NFS3ERR_ACCES);
            assert_eq!(status(&client.lookup(secret, b"file").await), NFS3ERR_ACCES);
            assert_eq!(status(&client.lookup(secret, b"..").await), NFS3ERR_ACCES);
            assert_eq!(status(&client.mkdir(secret, b"new").await), NFS3ERR_ACCES);
            assert_eq!(status(&client.link(&tree.file, secret, b"new").await), NFS3ERR_XDEV);
            let hidden = entry(&mut client, &root, b"secret").await;
            assert!(hidden.name_handle.is_none() && hidden.name_attributes.is_none());
            let shown = entry(&mut client, &root, b"plain").await;
            assert!(shown.name_handle.is_some() && shown.name_attributes.is_some());
            // As documented: nothing tells where a file is whose handle is older.
            assert_eq!(status(&client.getattr(&tree.file).await), NFS3_OK);
            assert_eq!(status(&client.lookup(&tree.public, b".").await), NFS3_OK);
            assert_eq!(status(&client.lookup(&tree.public, b"..").await), NFS3ERR_ACCES);
            let above = entry(&mut client, &tree.public, b"..").await;
            assert!(above.name_handle.is_none() && above.name_attributes.is_none());
        });
    });
}

#[test]
fn who_may_use_both_crosses_with_the_rights_of_the_inner_export() {
    with_seed(|rng| {
        let (stage, tree) = tree(rng);
        let (mut both, mut reader) = (stage.client_at(BOTH), stage.client_at(READER));
        stage.world.run(async {
            let inner = both.mount("/secret").await;
            assert_ne!(inner, tree.secret, "the same directory, another export");
            assert_eq!(both.lookup(&tree.root, b"secret").await.unwrap().object, inner);
            let shown = entry(&mut both, &tree.root, b"secret").await;
            assert_eq!(shown.name_handle.unwrap(), inner);
            assert!(shown.name_attributes.is_some());
            let owner = |attributes: fattr3| (attributes.uid, attributes.gid);
            let outside = both.file(&tree.root, "outside").await;
            assert_eq!(owner(both.attributes(&outside).await), (0, 0));
            let inside = both.file(&inner, "inside").await;
            assert_eq!(owner(both.attributes(&inside).await), (77, 78), "squashed");
            let inside = both.file(&tree.secret, "by the old handle").await;
            assert_eq!(owner(both.attributes(&inside).await), (77, 78), "squashed");
            assert_eq!(both.lookup(&inner, b"..").await.unwrap().object, inner);
            assert_eq!(both.lookup(&tree.public, b"..").await.unwrap().object, inner);
            assert_eq!(status(&both.link(&outside, &inner, b"link").await), NFS3ERR_XDEV);
            let moved = both.rename((&tree.root, b"outside"), (&inner, b"moved")).await;
            assert_eq!(status(&moved), NFS3ERR_XDEV);
            let moved = both.rename((&inner, b"inside"), (&tree.root, b"moved")).await;
            assert_eq!(status(&moved), NFS3ERR_XDEV);

            let inner = reader.lookup(&tree.root, b"secret").await.unwrap().object;
            assert_eq!(status(&reader.mkdir(&inner, b"new").await), NFS3ERR_ROFS);
            assert_eq!(status(&reader.mkdir(&tree.secret, b"new").await), NFS3ERR_ROFS);
            assert_eq!(status(&reader.mkdir(&tree.root, b"new").await), NFS3_OK);
        });
    });
}

#[test]
fn the_root_of_an_inner_export_is_neither_removed_nor_renamed_nor_replaced() {
    with_seed(|rng| {
        let (stage, tree) = tree(rng);
        let (mut outer, mut both) = (stage.client_at(OUTER), stage.client_at(BOTH));
        stage.world.run(async {
            let root = &tree.root;
            let deep = outer.mount("/deep").await;
            for client in [&mut outer, &mut both] {
                let moved = client.rename((root, b"secret"), (root, b"open")).await;
                assert_eq!(status(&moved), NFS3ERR_XDEV);
                let moved = client.rename((root, b"plain"), (root, b"secret")).await;
                assert_eq!(status(&moved), NFS3ERR_XDEV);
                // Above it: the tree would leave the export.
                let moved = client.rename((root, b"deep"), (root, b"open")).await;
                assert_eq!(status(&moved), NFS3ERR_ACCES);
                let moved = client.rename((&deep, b"down"), (root, b"open")).await;
                assert_eq!(status(&moved), NFS3ERR_ACCES);
                let own = client.lookup(root, b"own").await.unwrap().object;
                assert_eq!(status(&client.link(&own, root, b"secret").await), NFS3ERR_XDEV);
                assert_eq!(status(&client.rmdir(root, b"secret").await), NFS3ERR_ACCES);
                assert_eq!(status(&client.remove(root, b"secret").await), NFS3ERR_ACCES);
                let made = client.symlink(root, b"secret", b"to").await;
                assert_eq!(status(&made), NFS3ERR_ACCES);
                let made = client.create(root, b"secret", createhow3::UNCHECKED(mode(0))).await;
                assert_eq!(status(&made), NFS3ERR_ACCES);
            }
            assert_eq!(status(&outer.mkdir(root, b"secret").await), NFS3ERR_ACCES);
            assert_eq!(status(&both.mkdir(root, b"secret").await), NFS3ERR_EXIST);
        });
    });
}

#[test]
fn a_root_that_is_made_through_the_outer_export_belongs_to_the_inner_one_at_once() {
    with_seed(|rng| {
        let (stage, tree) = tree(rng);
        let table = TABLE.replace("\"/secret\"", "\"/new\"");
        stage.gateway.export(exports(&table));
        let (mut outer, mut both) = (stage.client_at(OUTER), stage.client_at(BOTH));
        let mut reader = stage.client_at(READER);
        stage.world.run(async {
            let root = &tree.root;
            assert_eq!(status(&outer.mkdir(root, b"new").await), NFS3ERR_ACCES);
            assert_eq!(status(&outer.lookup(root, b"new").await), NFS3ERR_ACCES);
            assert_eq!(status(&reader.mkdir(root, b"new").await), NFS3ERR_ROFS);
            let made = both.directory(root, "new").await;
            assert_eq!(made, both.mount("/new").await, "a handle of the inner export");
            assert_eq!(status(&outer.lookup(root, b"new").await), NFS3ERR_ACCES);
            let hidden = entry(&mut outer, root, b"new").await;
            assert!(hidden.name_handle.is_none() && hidden.name_attributes.is_none());
        });
    });
}

#[test]
fn roots_that_are_made_renamed_or_replaced_elsewhere_count_within_two_seconds() {
    with_seed(|rng| {
        let (stage, tree) = tree(rng);
        let ctx = stage.world.context(NodeId::application(1));
        let volume = volume(&stage);
        let mut client = stage.client_at(OUTER);
        stage.world.run(async {
            let root = &tree.root;
            assert_eq!(status(&client.getattr(&tree.secret).await), NFS3ERR_ACCES);
            volume.rename("/secret", "/open").await.unwrap();
            volume.mkdir("/other").await.unwrap();
            let other = client.lookup(root, b"other").await.unwrap().object;
            volume.rename("/other", "/secret").await.unwrap();
            assert_eq!(status(&client.lookup(root, b"secret").await), NFS3ERR_ACCES, "its name");
            ctx.sleep(REFRESHED).await;
            assert_eq!(status(&client.getattr(&tree.secret).await), NFS3_OK, "it was moved out");
            assert_eq!(status(&client.lookup(root, b"open").await), NFS3_OK);
            assert_eq!(status(&client.getattr(&other).await), NFS3ERR_ACCES, "the root now");

            // From above it disappears, and is made anew.
            let deep = client.lookup(root, b"deep").await.unwrap().object;
            volume.remove_all("/deep/down").await.unwrap();
            ctx.sleep(REFRESHED).await;
            let down = client.directory(&deep, "down").await;
            ctx.sleep(REFRESHED).await;
            assert_eq!(status(&client.mkdir(&down, b"inner").await), NFS3ERR_ACCES);
            volume.mkdir("/deep/down/inner").await.unwrap();
            assert_eq!(status(&client.lookup(&down, b"inner").await), NFS3ERR_ACCES);
        });
    });
}

#[test]
fn nodes_are_asked_for_nested_exports_every_two_seconds_and_not_for_calls() {
    with_seed(|rng| {
        let (stage, tree) = tree(rng);
        let ctx = stage.world.context(NodeId::application(1));
        let mut client = stage.client_at(OUTER);
        let lookups = |asked: Vec<Request>| {
            asked.iter().filter(|request| matches!(request, Request::Lookup(_))).count()
        };
        stage.world.run(async {
            client.getattr(&tree.root).await.unwrap();
            stage.service.asked();
            for _ in 0..100 {
                client.getattr(&tree.root).await.unwrap();
                assert_eq!(status(&client.getattr(&tree.secret).await), NFS3ERR_ACCES);
            }
            let asked = stage.service.asked();
            assert_eq!(asked.len(), 100, "one for each call that is answered");
            ctx.sleep(20 * Duration::from_secs(2)).await;
            let asked = lookups(stage.service.asked());
            // Four components: /secret, and /deep/down/inner.
            assert!((19 * 4..=21 * 4).contains(&asked), "{asked}");
            stage.gateway.export(exports(&TABLE.replace("\"/\"", "\"/plain\"")));
            ctx.sleep(REFRESHED).await;
            stage.service.asked();
            ctx.sleep(20 * Duration::from_secs(2)).await;
            assert_eq!(lookups(stage.service.asked()), 0, "none lies inside another one");
        });
    });
}

#[test]
fn before_the_roots_are_known_a_call_is_to_come_later_and_afterwards_nodes_may_be_away() {
    with_seed(|rng| {
        let (stage, tree) = tree(rng);
        let ctx = stage.world.context(NodeId::application(1));
        let mut client = stage.client_at(OUTER);
        let away = |request: &Request| match request {
            Request::Lookup(_) => {
                let why = Undelivered::Unreachable;
                Act::AnswerWith(Reply::Lookup(Err(Error::Undelivered { why })))
            }
            _ => Act::Answer,
        };
        stage.world.run(async {
            stage.service.rule(away);
            stage.gateway.export(exports(TABLE));
            assert_eq!(status(&client.getattr(&tree.root).await), NFS3ERR_JUKEBOX);
            assert_eq!(status(&client.getattr(&tree.secret).await), NFS3ERR_JUKEBOX);
            stage.service.rule(|_| Act::Answer);
            assert_eq!(status(&client.getattr(&tree.secret).await), NFS3ERR_ACCES);
            stage.service.rule(away);
            ctx.sleep(Duration::from_secs(30)).await;
            assert_eq!(status(&client.getattr(&tree.root).await), NFS3_OK);
            assert_eq!(status(&client.getattr(&tree.secret).await), NFS3ERR_ACCES);
        });
    });
}

/// PUTROOTFH, and a LOOKUP of each name.
fn at(path: &[&[u8]]) -> Ops {
    path.iter().fold(Ops::default().root(), |ops, name| ops.lookup(name))
}

/// PUTFH.
fn put(handle: &nfs_fh3) -> Ops {
    Ops::default().op(22).opaque(&handle.data)
}

async fn run(session: &mut Session, ops: Ops) -> u32 {
    session.run(&ops).await.status
}

/// The handle that GETFH returns, as the last of `count` operations without other results.
async fn handle(session: &mut Session, ops: Ops, count: usize) -> Result<Vec<u8>, u32> {
    let told = session.run(&ops.op(10)).await;
    if told.status != OK {
        return Err(told.status);
    }
    let mut bytes = &told.bytes[RESULT * count + RESULT..];
    let length = bytes.get_u32() as usize;
    Ok(bytes[..length].to_vec())
}

/// Names of the root by READDIR with an attribute, the file's number, and `error` with
/// `rdattr_error`: what the entry `of` has as attributes.
async fn attributes_of(session: &mut Session, of: &[u8], error: bool) -> Option<Vec<u32>> {
    // Bits 20 and 11.
    let bits = 1 << 20 | u32::from(error) << 11;
    let ops = at(&[]).op(26).long(0).long(0).word(8192).word(8192).word(1).word(bits);
    let told = session.run(&ops).await;
    assert_eq!(told.status, OK);
    let mut bytes = &told.bytes[RESULT + RESULT + 8..];
    let mut found = None;
    while bytes.get_u32() == 1 {
        let _cookie = bytes.get_u64();
        let length = bytes.get_u32() as usize;
        let name = bytes[..length].to_vec();
        bytes.advance(length.next_multiple_of(4));
        assert_eq!(bytes.get_u32(), 1, "words of the bitmap");
        let mut told = vec![bytes.get_u32()];
        let length = bytes.get_u32() as usize / 4;
        told.extend((0..length).map(|_| bytes.get_u32()));
        if name == of {
            found = Some(told);
        }
    }
    assert_eq!(bytes.get_u32(), 1, "all of it");
    found
}

#[test]
fn version_4_crosses_with_the_rights_of_the_inner_export_or_not_at_all() {
    with_seed(|rng| {
        let (stage, tree) = tree(rng);
        let (outer, both) = (stage.client_at(OUTER), stage.client_at(BOTH));
        let mut version_3 = stage.client_at(BOTH);
        stage.world.run(async {
            let mut outer = Session::new(outer, b"outer").await;
            let outer = &mut outer;
            assert_eq!(run(outer, at(&[b"secret"])).await, ACCESS);
            assert_eq!(run(outer, at(&[b"deep", b"down"])).await, OK);
            assert_eq!(run(outer, at(&[b"deep", b"down", b"inner"])).await, ACCESS);
            assert_eq!(run(outer, put(&tree.secret)).await, ACCESS);
            assert_eq!(run(outer, at(&[]).op(33).opaque(b"secret")).await, ACCESS, "SECINFO");
            assert_eq!(run(outer, at(&[]).op(33).opaque(b"plain")).await, OK);
            // LOOKUPP from a file's directory that the inner export has, known by an older handle.
            assert_eq!(run(outer, put(&tree.public).op(16)).await, ACCESS);

            let mut both = Session::new(both, b"both").await;
            let both = &mut both;
            let inner = version_3.mount("/secret").await.data.into_owned();
            assert_eq!(handle(both, at(&[b"secret"]), 2).await.as_ref(), Ok(&inner));
            assert_eq!(handle(both, put(&tree.secret), 1).await.as_ref(), Ok(&inner));
            assert_eq!(handle(both, put(&tree.public).op(16), 2).await.as_ref(), Ok(&inner));
            let root = tree.root.data.to_vec();
            assert_eq!(handle(both, at(&[b"secret"]).op(16), 3).await, Ok(root), "and back");
            // CREATE of a directory: its owner (attribute 36) is the inner export's.
            let made = at(&[b"secret"]).op(6).word(2).opaque(b"made").word(0).word(0);
            let told = session_tail(both, made.op(9).word(2).word(0).word(1 << 4)).await;
            assert_eq!(told, b"77\0\0");
        });
    });
}

/// The last word of a result.
async fn session_tail(session: &mut Session, ops: Ops) -> Vec<u8> {
    let told = session.run(&ops).await;
    assert_eq!(told.status, OK);
    told.bytes[told.bytes.len() - 4..].to_vec()
}

#[test]
fn version_4_lists_an_inner_export_without_its_attributes() {
    with_seed(|rng| {
        let (stage, _) = tree(rng);
        let (outer, both) = (stage.client_at(OUTER), stage.client_at(BOTH));
        stage.world.run(async {
            let mut outer = Session::new(outer, b"outer").await;
            // Only the error, or no entry.
            let told = attributes_of(&mut outer, b"secret", true).await;
            assert_eq!(told, Some(vec![1 << 11, ACCESS]));
            assert_eq!(attributes_of(&mut outer, b"secret", false).await, None);
            assert!(attributes_of(&mut outer, b"plain", false).await.is_some());
            let mut both = Session::new(both, b"both").await;
            let told = attributes_of(&mut both, b"secret", true).await.unwrap();
            assert_eq!(told[..2], [1 << 20 | 1 << 11, 0]);
            assert!(attributes_of(&mut both, b"secret", false).await.is_some());
        });
    });
}

#[test]
fn version_4_changes_no_name_of_an_inner_export() {
    with_seed(|rng| {
        let (stage, tree) = tree(rng);
        let (outer, both) = (stage.client_at(OUTER), stage.client_at(BOTH));
        stage.world.run(async {
            let mut outer = Session::new(outer, b"outer").await;
            let mut both = Session::new(both, b"both").await;
            let make = |name: &[u8]| at(&[]).op(6).word(2).opaque(name).word(0).word(0);
            let rename = |from: &[u8], to: &[u8]| at(&[]).op(32).op(29).opaque(from).opaque(to);
            for session in [&mut outer, &mut both] {
                assert_eq!(run(session, at(&[]).remove(b"secret")).await, ACCESS);
                assert_eq!(run(session, rename(b"secret", b"open")).await, XDEV);
                assert_eq!(run(session, rename(b"plain", b"secret")).await, XDEV);
                assert_eq!(run(session, rename(b"deep", b"open")).await, ACCESS);
                let link = at(&[b"own"]).op(32).root().op(11).opaque(b"secret");
                assert_eq!(run(session, link).await, XDEV);
                let symlink = at(&[]).op(6).word(5).opaque(b"to").opaque(b"secret");
                assert_eq!(run(session, symlink.word(0).word(0)).await, ACCESS);
                assert_eq!(run(session, at(&[]).open(b"o", b"secret", 0)).await, ACCESS);
            }
            // OPEN to be read, of what exists.
            let open = |name: &[u8]| {
                let ops = at(&[]).op(18).word(0).word(1).word(0).long(0).opaque(b"o");
                ops.word(0).word(0).opaque(name)
            };
            assert_eq!(run(&mut outer, open(b"secret")).await, ACCESS);
            assert_eq!(run(&mut both, open(b"secret")).await, ISDIR);
            assert_eq!(run(&mut outer, make(b"secret")).await, ACCESS);
            // From one export to another.
            let link = at(&[b"own"]).op(32).root().lookup(b"secret").op(11).opaque(b"link");
            assert_eq!(run(&mut both, link).await, XDEV);
            let moved = at(&[]).op(32).lookup(b"secret").op(29).opaque(b"own").opaque(b"moved");
            assert_eq!(run(&mut both, moved).await, XDEV);

            stage.gateway.export(exports(&TABLE.replace("\"/secret\"", "\"/new\"")));
            assert_eq!(run(&mut outer, make(b"new")).await, ACCESS);
            let told = both.run(&make(b"new").op(10)).await;
            assert_eq!(told.status, OK);
            let mut version_3 = stage.client_at(BOTH);
            let inner = version_3.mount("/new").await;
            assert!(told.bytes.ends_with(&padded(&inner)), "a handle of the inner export");
            assert_ne!(inner, tree.root);
        });
    });
}

/// A handle as XDR ends with it.
fn padded(handle: &nfs_fh3) -> Vec<u8> {
    let mut bytes = handle.data.to_vec();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

#[test]
fn version_4_shows_the_way_through_an_export_to_one_that_is_usable() {
    with_seed(|rng| {
        let (stage, _) = tree(rng);
        let public = "[[export]]\npath = \"/secret/pub\"\n[[export.client]]\n";
        let public = format!("{TABLE}\n{public}network = \"10.0.0.1\"\naccess = \"rw\"\n");
        stage.gateway.export(exports(&public));
        let client = stage.client_at(OUTER);
        stage.world.run(async {
            let mut session = Session::new(client, b"client").await;
            let session = &mut session;
            assert_eq!(run(session, at(&[b"secret", b"pub"])).await, OK);
            assert_eq!(run(session, at(&[b"secret", b"file"])).await, 2, "NOENT");
            assert_eq!(run(session, at(&[b"secret"]).remove(b"file")).await, 30, "ROFS");
            let up = at(&[b"secret", b"pub"]).op(16);
            assert_eq!(run(session, up.clone().lookup(b"file")).await, 2, "NOENT");
            assert_eq!(run(session, up.op(16).lookup(b"plain")).await, OK);
        });
    });
}

#[test]
fn above_the_exports_no_file_is_opened() {
    with_seed(|rng| {
        let (stage, tree) = tree(rng);
        stage.gateway.export(exports(crate::v4::TABLE));
        let client = stage.client_at(OUTER);
        stage.world.run(async {
            let volume = volume(&stage);
            volume.mkdir_all("/a/b").await.unwrap();
            volume.create("/a/file").await.unwrap();
            let mut session = Session::new(client, b"client").await;
            let session = &mut session;
            assert_eq!(run(session, put(&tree.root)).await, 70, "STALE");
            let open = |name: &[u8]| {
                let ops = at(&[b"a"]).op(18).word(0).word(1).word(0).long(0).opaque(b"o");
                ops.word(0).word(0).opaque(name)
            };
            assert_eq!(run(session, open(b"file")).await, 2, "NOENT");
            assert_eq!(run(session, open(b"b")).await, ISDIR);
        });
    });
}
