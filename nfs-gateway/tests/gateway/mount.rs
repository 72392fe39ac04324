//! The MOUNT program.

use nfs3_types::mount::MOUNT_PROGRAM::*;
use nfs3_types::mount::mountstat3::*;
use nfs3_types::mount::*;
use nfs3_types::xdr_codec::{Opaque, Void};
use runtime::Undelivered;
use runtime::seed::with_seed;

use crate::kit::{Act, Client, Stage, Verdict, mode};

fn path(path: &[u8]) -> dirpath<'_> {
    dirpath(Opaque::borrowed(path))
}

/// The status of mounting `what`, and the handle.
async fn mount(client: &mut Client, what: &[u8]) -> Result<Vec<u8>, u32> {
    match client.mount3::<mountres3>(MOUNTPROC3_MNT, &path(what)).await {
        mountres3::Ok(mounted) => {
            assert_eq!(mounted.auth_flavors, [1], "AUTH_SYS");
            Ok(mounted.fhandle.0.into_owned())
        }
        mountres3::Err(status) => Err(status as u32),
    }
}

async fn mounts(client: &mut Client) -> Vec<Vec<u8>> {
    let list: mountlist = client.mount3(MOUNTPROC3_DUMP, &Void).await;
    list.into_inner().into_iter().map(|mounted| mounted.ml_directory.0.into_owned()).collect()
}

#[test]
fn any_directory_can_be_mounted_and_nothing_else() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, root| {
            let _: Void = client.mount3(MOUNTPROC3_NULL, &Void).await;
            let dir = client.directory(&root, "dir").await;
            let sub = client.directory(&dir, "sub").await;
            client.file(&dir, "file").await;
            client.symlink(&root, b"link", b"dir").await.unwrap();
            assert_eq!(mount(&mut client, b"/").await, Ok(root.data.to_vec()));
            assert_eq!(mount(&mut client, b"").await, Ok(root.data.to_vec()));
            assert_eq!(mount(&mut client, b"/dir/sub").await, Ok(sub.data.to_vec()));
            assert_eq!(mount(&mut client, b"//dir///sub/./").await, Ok(sub.data.to_vec()));
            assert_eq!(mount(&mut client, b"/dir/../dir").await, Ok(dir.data.to_vec()));
            assert_eq!(mount(&mut client, b"/../..").await, Ok(root.data.to_vec()));
            let long = [b"/", &[b'x'; 256][..]].concat();
            let longer = vec![b'/'; 1025];
            for (what, expected) in [
                (&b"dir"[..], MNT3ERR_INVAL),
                (b"/missing", MNT3ERR_NOENT),
                (b"/dir/missing/sub", MNT3ERR_NOENT),
                (b"/dir/file", MNT3ERR_NOTDIR),
                (b"/dir/file/x", MNT3ERR_NOTDIR),
                (b"/link", MNT3ERR_NOTDIR),
                (b"/a\0b", MNT3ERR_ACCES),
                (&long, MNT3ERR_NAMETOOLONG),
                (&longer, MNT3ERR_NAMETOOLONG),
            ] {
                let said = mount(&mut client, what).await;
                assert_eq!(said, Err(expected as u32), "{}", String::from_utf8_lossy(what));
            }
            client.setattr(&dir, mode(0o700)).await.unwrap();
            client.be(1000, 1000);
            let said = mount(&mut client, b"/dir/sub").await;
            assert_eq!(said, Err(MNT3ERR_ACCES as u32), "the way there is private");
        });
    });
}

#[test]
fn a_mount_waits_for_nodes_that_move() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let service = stage.service.clone();
        stage.run(async |mut client, root| {
            let mut left = 20;
            service.rule(move |_| {
                left -= i32::from(left > 0);
                if left > 0 { Act::AnswerWith(Undelivered::Fenced.into()) } else { Act::Answer }
            });
            assert_eq!(mount(&mut client, b"/").await, Ok(root.data.to_vec()));
            service.rule(|_| Act::AnswerWith(Undelivered::Fenced.into()));
            assert_eq!(
                mount(&mut client, b"/").await,
                Err(MNT3ERR_SERVERFAULT as u32),
                "they do not come"
            );
        });
    });
}

#[test]
fn mounts_are_listed_until_they_are_undone() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, root| {
            client.directory(&root, "dir").await;
            for what in ["/dir", "/", "/dir"] {
                client.mount(what).await;
            }
            assert_eq!(mounts(&mut client).await, [b"/".to_vec(), b"/dir".to_vec()]);
            let _: Void = client.mount3(MOUNTPROC3_UMNT, &path(b"/")).await;
            assert_eq!(mounts(&mut client).await, [b"/dir"]);
            let _: Void = client.mount3(MOUNTPROC3_UMNTALL, &Void).await;
            assert!(mounts(&mut client).await.is_empty());
        });
    });
}

#[test]
fn the_list_of_mounts_is_bounded() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, _| {
            for count in 1..1010 {
                assert!(mount(&mut client, &vec![b'/'; count]).await.is_ok());
            }
            for count in 1..1010 {
                let what = ["/".repeat(count), ".".into()].concat();
                assert!(mount(&mut client, what.as_bytes()).await.is_ok());
            }
            assert_eq!(mounts(&mut client).await.len(), 1024);
        });
    });
}

#[test]
fn the_root_is_exported_to_everybody() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, _| {
            let list: exports = client.mount3(MOUNTPROC3_EXPORT, &Void).await;
            let list = list.into_inner();
            assert_eq!(list.len(), 1);
            assert_eq!(list[0].ex_dir.0.as_ref(), b"/");
            assert!(list[0].ex_groups.is_empty());
        });
    });
}

#[test]
fn there_are_six_procedures_in_version_three() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, _| {
            let verdict = client.call([PROGRAM, VERSION, 6], &[]).await;
            assert_eq!(verdict, Verdict::NoProcedure);
            for version in [1, 2, 4] {
                let verdict = client.call([PROGRAM, version, 0], &[]).await;
                assert_eq!(verdict, Verdict::ProgramMismatch(3, 3));
            }
        });
    });
}
