//! Who may do what: exports, squashed users, file handles and their keys.

use std::time::Duration;

use client::{Credentials, FileSystem};
use nfs_gateway::{Config, Exports, Settings, rotate_keys};
use nfs3_types::mount::{self, MOUNT_PROGRAM::*};
use nfs3_types::nfs3::NFS_PROGRAM::*;
use nfs3_types::nfs3::nfsstat3::*;
use nfs3_types::nfs3::*;
use nfs3_types::xdr_codec::{Opaque, Void};
use runtime::NodeId;
use runtime::seed::with_seed;

use crate::kit::{Client, Stage, VOLUME, config, mode, status};

const TABLE: &str = r#"
[[export]]
path = "/"
[[export.client]]
network = "10.0.0.0/24"
access = "rw"
squash = "no_root_squash"

[[export]]
path = "/pub"
[[export.client]]
network = "10.0.0.9"
access = "rw"
squash = "no_root_squash"
[[export.client]]
network = "10.1.0.0/16"
access = "rw"
[[export.client]]
network = "10.2.0.0/16"
secure = false
[[export.client]]
network = "fd00::/8"
access = "rw"
squash = "all_squash"
anon_uid = 77
anon_gid = 78
"#;

/// The exports of a table.
pub(crate) fn exports(table: &str) -> Exports {
    Settings::parse(table, "table").expect("a good table").exports
}

/// A gateway with this table.
fn stage(rng: &mut runtime::seed::Rng) -> Stage {
    Stage::with(rng, Config { exports: exports(TABLE), ..config(VOLUME) })
}

/// The handle of a directory, or the status of MOUNT.
pub(crate) async fn mounted(client: &mut Client, path: &str) -> Result<nfs_fh3, u32> {
    let path = mount::dirpath(Opaque::borrowed(path.as_bytes()));
    match client.mount3(MOUNTPROC3_MNT, &path).await {
        mount::mountres3::Ok(mounted) => Ok(nfs_fh3 { data: mounted.fhandle.0 }),
        mount::mountres3::Err(status) => Err(status as u32),
    }
}

/// `/pub`, which all may write, with a file, made by a trusted host before it was exported; and its
/// handle and the file's in `/`.
async fn made(stage: &Stage, admin: &mut Client) -> (nfs_fh3, nfs_fh3) {
    stage.gateway.export(exports(&TABLE.replace("\"/pub\"", "\"/other\"")));
    let root = admin.mount("/").await;
    let public = admin.directory(&root, "pub").await;
    admin.setattr(&public, mode(0o777)).await.unwrap();
    let file = admin.file(&public, "file").await;
    stage.gateway.export(exports(TABLE));
    (file, public)
}

#[test]
fn a_stranger_can_neither_mount_nor_use_the_handle_of_another_host() {
    with_seed(|rng| {
        let stage = stage(rng);
        let (mut admin, mut stranger) =
            (stage.client_at("10.0.0.1:700"), stage.client_at("10.9.0.1:700"));
        stage.world.run(async {
            let (file, public) = made(&stage, &mut admin).await;
            let refused = mount::mountstat3::MNT3ERR_ACCES as u32;
            assert_eq!(mounted(&mut stranger, "/").await, Err(refused));
            assert_eq!(mounted(&mut stranger, "/pub").await, Err(refused));
            assert_eq!(status(&stranger.getattr(&file).await), NFS3ERR_ACCES);
            assert_eq!(status(&stranger.read(&file, 0, 1).await), NFS3ERR_ACCES);
            assert_eq!(status(&stranger.lookup(&public, b"file").await), NFS3ERR_ACCES);
            let wrote = stranger.write(&file, 0, b"x", stable_how::FILE_SYNC).await;
            assert_eq!(status(&wrote), NFS3ERR_ACCES);
            assert_eq!(admin.attributes(&file).await.size, 0);
        });
    });
}

#[test]
fn a_host_of_an_inner_export_gets_nothing_of_the_outer_one() {
    with_seed(|rng| {
        let stage = stage(rng);
        let (mut admin, mut guest) =
            (stage.client_at("10.0.0.1:700"), stage.client_at("10.1.0.1:700"));
        stage.world.run(async {
            let (file, _) = made(&stage, &mut admin).await;
            let refused = mount::mountstat3::MNT3ERR_ACCES as u32;
            assert_eq!(mounted(&mut guest, "/").await, Err(refused));
            assert_eq!(mounted(&mut admin, "/pub").await, Err(refused), "the inner table decides");
            let public = guest.mount("/pub").await;
            assert_eq!(
                status(&guest.getattr(&file).await),
                NFS3ERR_ACCES,
                "a handle of the outer one"
            );
            let above = guest.lookup(&public, b"..").await.unwrap().object;
            assert_eq!(above, public, "nothing is above the root of an export");
            let inner = guest.directory(&public, "dir").await;
            let above = guest.lookup(&inner, b"..").await.unwrap().object;
            assert_eq!(above, public);
        });
    });
}

#[test]
fn a_call_about_two_exports_is_refused() {
    with_seed(|rng| {
        let stage = stage(rng);
        let table = TABLE.replace("10.0.0.0/24", "10.0.0.9");
        let (mut admin, mut both) =
            (stage.client_at("10.0.0.1:700"), stage.client_at("10.0.0.9:700"));
        stage.world.run(async {
            let (file, outer) = made(&stage, &mut admin).await;
            stage.gateway.export(exports(&table));
            let inner = both.mount("/pub").await;
            assert_ne!(inner, outer, "the same directory, another export");
            assert_eq!(status(&both.link(&file, &inner, b"link").await), NFS3ERR_XDEV);
            let root = both.mount("/").await;
            let renamed = both.rename((&inner, b"file"), (&root, b"other")).await;
            assert_eq!(status(&renamed), NFS3ERR_XDEV);
            let still = both.lookup(&inner, b"file").await;
            assert_eq!(status(&still), NFS3_OK, "nothing was moved");
        });
    });
}

#[test]
fn root_of_a_workstation_is_squashed_unless_the_table_trusts_it() {
    with_seed(|rng| {
        let stage = stage(rng);
        let mut admin = stage.client_at("10.0.0.1:700");
        let (mut guest, mut anonymous) =
            (stage.client_at("10.1.0.1:700"), stage.client_at("[fd00::1]:700"));
        stage.world.run(async {
            let (outer, _) = made(&stage, &mut admin).await;
            let public = guest.mount("/pub").await;
            let owner = |attributes: fattr3| (attributes.uid, attributes.gid);
            let file = guest.lookup(&public, b"file").await.unwrap().object;
            assert_eq!(owner(guest.attributes(&file).await), (0, 0));
            assert_eq!(status(&guest.setattr(&file, mode(0o777)).await), NFS3ERR_PERM);
            let own = guest.file(&public, "root").await;
            assert_eq!(owner(guest.attributes(&own).await), (65_534, 65_534));
            guest.be(1000, 100);
            let own = guest.file(&public, "user").await;
            assert_eq!(owner(guest.attributes(&own).await), (1000, 100), "others are who they say");
            let public = anonymous.mount("/pub").await;
            anonymous.be(1000, 100);
            let own = anonymous.file(&public, "anonymous").await;
            assert_eq!(owner(anonymous.attributes(&own).await), (77, 78));
            admin.setattr(&outer, mode(0o600)).await.unwrap();
        });
    });
}

#[test]
fn a_read_only_export_refuses_every_change() {
    with_seed(|rng| {
        let stage = stage(rng);
        let (mut admin, mut reader) =
            (stage.client_at("10.0.0.1:700"), stage.client_at("10.2.0.1:40000"));
        stage.world.run(async {
            let (outer, _) = made(&stage, &mut admin).await;
            admin.setattr(&outer, mode(0o777)).await.unwrap();
            let public = reader.mount("/pub").await;
            let file = reader.lookup(&public, b"file").await.unwrap().object;
            assert_eq!(status(&reader.read(&file, 0, 1).await), NFS3_OK);
            let wrote = reader.write(&file, 0, b"x", stable_how::FILE_SYNC).await;
            assert_eq!(status(&wrote), NFS3ERR_ROFS);
            assert_eq!(status(&reader.setattr(&file, mode(0)).await), NFS3ERR_ROFS);
            let made = reader.create(&public, b"new", createhow3::GUARDED(mode(0o644))).await;
            assert_eq!(status(&made), NFS3ERR_ROFS);
            assert_eq!(status(&reader.mkdir(&public, b"new").await), NFS3ERR_ROFS);
            assert_eq!(status(&reader.symlink(&public, b"new", b"to").await), NFS3ERR_ROFS);
            assert_eq!(status(&reader.remove(&public, b"file").await), NFS3ERR_ROFS);
            assert_eq!(status(&reader.rmdir(&public, b"file").await), NFS3ERR_ROFS);
            assert_eq!(status(&reader.link(&file, &public, b"new").await), NFS3ERR_ROFS);
            let renamed = reader.rename((&public, b"file"), (&public, b"new")).await;
            assert_eq!(status(&renamed), NFS3ERR_ROFS);
            let all = ACCESS3args { object: file, access: 0x3f };
            let access: ACCESS3res = reader.nfs(NFSPROC3_ACCESS, &all).await;
            let granted = access.unwrap().access;
            assert_eq!(
                granted,
                ACCESS3_READ | ACCESS3_EXECUTE,
                "what would be refused is not granted"
            );
        });
    });
}

#[test]
fn a_port_that_any_user_can_have_is_refused_where_the_table_says_so() {
    with_seed(|rng| {
        let stage = stage(rng);
        let mut user = stage.client_at("10.1.0.1:1024");
        let mut admin = stage.client_at("10.0.0.1:700");
        stage.world.run(async {
            made(&stage, &mut admin).await;
            let refused = mount::mountstat3::MNT3ERR_ACCES as u32;
            assert_eq!(mounted(&mut user, "/pub").await, Err(refused));
        });
    });
}

#[test]
fn a_new_table_counts_from_the_next_call_on() {
    with_seed(|rng| {
        let stage = stage(rng);
        let (mut admin, mut guest) =
            (stage.client_at("10.0.0.1:700"), stage.client_at("10.1.0.1:700"));
        stage.world.run(async {
            made(&stage, &mut admin).await;
            let public = guest.mount("/pub").await;
            assert_eq!(status(&guest.getattr(&public).await), NFS3_OK);
            stage.gateway.export(exports(&TABLE.replace("10.1.0.0/16", "10.3.0.0/16")));
            assert_eq!(status(&guest.getattr(&public).await), NFS3ERR_ACCES);
            stage.gateway.export(exports(&TABLE.replace("\"/pub\"", "\"/other\"")));
            assert_eq!(status(&guest.getattr(&public).await), NFS3ERR_STALE, "it is not exported");
            stage.gateway.export(exports(TABLE));
            assert_eq!(
                status(&guest.getattr(&public).await),
                NFS3_OK,
                "the same path, the same handle"
            );
        });
    });
}

#[test]
fn export_tells_what_is_exported_to_whom() {
    with_seed(|rng| {
        let stage = stage(rng);
        let mut client = stage.client_at("10.9.0.1:700");
        stage.world.run(async {
            let told: mount::exports = client.mount3(MOUNTPROC3_EXPORT, &Void).await;
            let mut told: Vec<(Vec<u8>, usize)> = told
                .into_inner()
                .into_iter()
                .map(|node| (node.ex_dir.0.to_vec(), node.ex_groups.into_inner().len()))
                .collect();
            told.sort();
            assert_eq!(told, [(b"/".to_vec(), 1), (b"/pub".to_vec(), 4)]);
        });
    });
}

#[test]
fn a_handle_outlives_one_rotation_of_the_keys_through_every_gateway_and_not_two() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let ctx = stage.world.context(NodeId::application(1));
        let root = FileSystem::new(ctx.clone(), Credentials::root(), 77);
        let mut client = stage.client();
        stage.world.run(async {
            let first = client.mount("/").await;
            assert_eq!(rotate_keys(&root, [1; 32]).await, Ok(2));
            ctx.sleep(Duration::from_secs(31)).await;
            assert_eq!(status(&client.getattr(&first).await), NFS3_OK, "the key before is good");
            ctx.sleep(Duration::from_secs(1)).await;
            let second = client.mount("/").await;
            assert_ne!(first, second, "the new key makes handles");
            assert_eq!(rotate_keys(&root, [2; 32]).await, Ok(3));
            ctx.sleep(Duration::from_secs(31)).await;
            assert_eq!(status(&client.getattr(&second).await), NFS3_OK);
            ctx.sleep(Duration::from_secs(1)).await;
            assert_eq!(status(&client.getattr(&first).await), NFS3ERR_STALE, "mount again");
            assert_eq!(status(&client.getattr(&second).await), NFS3_OK);
        });
    });
}

#[test]
fn a_handle_made_by_a_gateway_that_knows_a_newer_key_is_good_at_once() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let ctx = stage.world.context(NodeId::application(1));
        let root = FileSystem::new(ctx.clone(), Credentials::root(), 77);
        let mut client = stage.client();
        stage.world.run(async {
            let old = client.mount("/").await;
            ctx.sleep(Duration::from_secs(2)).await;
            rotate_keys(&root, [1; 32]).await.unwrap();
            let address = runtime::net::Address::Tcp("gateway:2050".into());
            let second = nfs_gateway::Gateway::start(ctx.clone(), &address, config(VOLUME)).await;
            let second = second.unwrap();
            let mut other = Client::over(stage.world.connect(second.address()).unwrap());
            let new = other.mount("/").await;
            assert_ne!(new, old);
            assert_eq!(status(&client.getattr(&new).await), NFS3_OK);
            assert_eq!(status(&other.getattr(&old).await), NFS3_OK);
        });
    });
}
