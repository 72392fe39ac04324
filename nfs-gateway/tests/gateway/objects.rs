//! NULL, GETATTR, SETATTR, ACCESS, READLINK, FSSTAT, FSINFO, PATHCONF; handles; errors.

use fileio::protocol::{Error, Reply, Request};
use nfs3_types::nfs3::NFS_PROGRAM::*;
use nfs3_types::nfs3::nfsstat3::*;
use nfs3_types::nfs3::*;
use nfs3_types::xdr_codec::{Opaque, Void};
use runtime::seed::with_seed;
use runtime::{Undelivered, VolumeId};

use crate::kit::{Act, Stage, Verdict, at, config, mode, status};

#[test]
fn null_does_nothing() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, _| {
            let _: Void = client.nfs(NFSPROC3_NULL, &Void).await;
        });
    });
}

#[test]
fn there_are_22_procedures() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, _| {
            for procedure in [22, 23, u32::MAX] {
                let verdict = client.call([PROGRAM, VERSION, procedure], &[]).await;
                assert_eq!(verdict, Verdict::NoProcedure);
            }
            for procedure in 1..22 {
                let verdict = client.call([PROGRAM, VERSION, procedure], &[]).await;
                assert_eq!(verdict, Verdict::Garbage, "procedure {procedure} takes arguments");
            }
        });
    });
}

#[test]
fn attributes_are_told() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, root| {
            let told = client.attributes(&root).await;
            assert_eq!((told.type_, told.mode, told.nlink), (ftype3::NF3DIR, 0o755, 2));
            let file = client.file(&root, "file").await;
            client.write(&file, 0, b"hello", stable_how::FILE_SYNC).await.unwrap();
            let told = client.attributes(&file).await;
            assert_eq!((told.type_, told.mode, told.nlink), (ftype3::NF3REG, 0o644, 1));
            assert_eq!((told.size, told.used, told.uid), (5, 4096, 0));
            assert!(told.fileid > 1 && told.fsid != 0 && told.mtime.seconds > 0);
        });
    });
}

#[test]
fn a_handle_that_was_never_given_out_is_bad() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, root| {
            for length in (0..64).filter(|length| *length != root.data.len()) {
                let other = nfs_fh3 { data: Opaque::owned(vec![1; length]) };
                assert_eq!(status(&client.getattr(&other).await), NFS3ERR_BADHANDLE);
            }
            for bit in 0..8 * root.data.len() {
                let mut bytes = root.data.to_vec();
                bytes[bit / 8] ^= 1 << (bit % 8);
                let other = nfs_fh3 { data: Opaque::owned(bytes) };
                let said = status(&client.getattr(&other).await);
                // Another volume or an old key are stale.
                assert!(matches!(said, NFS3ERR_BADHANDLE | NFS3ERR_STALE), "bit {bit}: {said}");
            }
        });
    });
}

#[test]
fn a_handle_of_what_is_gone_or_elsewhere_is_stale() {
    with_seed(|rng| {
        let other = Stage::with(rng, config(VolumeId(7)));
        let foreign = other.run(async |_, root| root);
        Stage::new(rng).run(async |mut client, root| {
            assert_eq!(status(&client.getattr(&foreign).await), NFS3ERR_STALE);
            assert_eq!(status(&client.lookup(&foreign, b"x").await), NFS3ERR_STALE);
            let file = client.file(&root, "file").await;
            client.remove(&root, b"file").await.unwrap();
            assert_eq!(status(&client.getattr(&file).await), NFS3ERR_STALE);
            assert_eq!(status(&client.read(&file, 0, 1).await), NFS3ERR_STALE);
            let again = client.file(&root, "file").await;
            assert_ne!(again, file, "a new file has a new handle");
            assert_eq!(status(&client.getattr(&file).await), NFS3ERR_STALE);
        });
    });
}

#[test]
fn every_procedure_refuses_a_bad_handle() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, root| {
            let bad = nfs_fh3 { data: Opaque::owned(vec![9; 37]) };
            let expect = NFS3ERR_BADHANDLE;
            assert_eq!(status(&client.setattr(&bad, mode(0)).await), expect);
            assert_eq!(status(&client.lookup(&bad, b"x").await), expect);
            assert_eq!(status(&client.read(&bad, 0, 1).await), expect);
            assert_eq!(status(&client.write(&bad, 0, b"x", stable_how::UNSTABLE).await), expect);
            let how = createhow3::EXCLUSIVE(createverf3([1; 8]));
            assert_eq!(status(&client.create(&bad, b"x", how).await), expect);
            assert_eq!(status(&client.mkdir(&bad, b"x").await), expect);
            assert_eq!(status(&client.symlink(&bad, b"x", b"y").await), expect);
            assert_eq!(status(&client.remove(&bad, b"x").await), expect);
            assert_eq!(status(&client.rmdir(&bad, b"x").await), expect);
            assert_eq!(status(&client.rename((&bad, b"x"), (&root, b"x")).await), expect);
            assert_eq!(status(&client.rename((&root, b"x"), (&bad, b"x")).await), expect);
            assert_eq!(status(&client.link(&bad, &root, b"x").await), expect);
            let what = mknoddata3::NF3FIFO(mode(0));
            let mknod = MKNOD3args { where_: at(&bad, b"x"), what };
            assert_eq!(status(&client.nfs::<MKNOD3res>(NFSPROC3_MKNOD, &mknod).await), expect);
            let only = GETATTR3args { object: bad.clone() };
            assert_eq!(status(&client.nfs::<READLINK3res>(NFSPROC3_READLINK, &only).await), expect);
            assert_eq!(status(&client.nfs::<FSSTAT3res>(NFSPROC3_FSSTAT, &only).await), expect);
            assert_eq!(status(&client.nfs::<FSINFO3res>(NFSPROC3_FSINFO, &only).await), expect);
            assert_eq!(status(&client.nfs::<PATHCONF3res>(NFSPROC3_PATHCONF, &only).await), expect);
            let access = ACCESS3args { object: bad.clone(), access: 1 };
            assert_eq!(status(&client.nfs::<ACCESS3res>(NFSPROC3_ACCESS, &access).await), expect);
            let commit = COMMIT3args { file: bad.clone(), offset: 0, count: 0 };
            assert_eq!(status(&client.nfs::<COMMIT3res>(NFSPROC3_COMMIT, &commit).await), expect);
        });
    });
}

#[test]
fn setattr_changes_what_is_given_and_is_durable() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let service = stage.service.clone();
        stage.run(async |mut client, root| {
            let file = client.file(&root, "file").await;
            service.asked();
            let time = nfstime3 { seconds: 1_000_000, nseconds: 7 };
            let new = sattr3 {
                mode: Nfs3Option::Some(0o600),
                size: Nfs3Option::Some(12_345),
                mtime: set_mtime::SET_TO_CLIENT_TIME(time),
                atime: set_atime::SET_TO_SERVER_TIME,
                ..sattr3::default()
            };
            let after = client.setattr(&file, new).await.unwrap().obj_wcc.after.unwrap();
            assert_eq!((after.mode, after.size, after.mtime, after.uid), (0o600, 12_345, time, 0));
            let durable = |request: &Request| match request {
                Request::SetAttributes(set) => set.durable,
                _ => false,
            };
            assert!(service.asked().iter().any(durable));

            let time = nfstime3 { seconds: 1, nseconds: 1_000_000_000 };
            let new = sattr3 { atime: set_atime::SET_TO_CLIENT_TIME(time), ..sattr3::default() };
            assert_eq!(status(&client.setattr(&file, new).await), NFS3ERR_INVAL);
            client.be(1000, 1000);
            assert_eq!(status(&client.setattr(&file, mode(0o777)).await), NFS3ERR_PERM);
        });
    });
}

#[test]
fn the_guard_of_setattr_holds() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, root| {
            // The times of a directory in replies differ from those at its node.
            for object in [client.file(&root, "file").await, root] {
                let ctime = client.attributes(&object).await.ctime;
                let guarded = |guard, new| SETATTR3args {
                    object: object.clone(),
                    new_attributes: mode(new),
                    guard: Nfs3Option::Some(guard),
                };
                let wrong = nfstime3 { seconds: ctime.seconds, nseconds: ctime.nseconds ^ 1 };
                let refused: SETATTR3res =
                    client.nfs(NFSPROC3_SETATTR, &guarded(wrong, 0o711)).await;
                assert_eq!(status(&refused), NFS3ERR_NOT_SYNC);
                assert_ne!(client.attributes(&object).await.mode, 0o711);
                let done: SETATTR3res = client.nfs(NFSPROC3_SETATTR, &guarded(ctime, 0o711)).await;
                assert_eq!(status(&done), NFS3_OK);
                assert_eq!(client.attributes(&object).await.mode, 0o711);
            }
        });
    });
}

#[test]
fn access_tells_what_the_mode_grants() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, root| {
            let file = client.file(&root, "file").await;
            client.setattr(&file, mode(0o754)).await.unwrap();
            let all = 63;
            let write = ACCESS3_MODIFY | ACCESS3_EXTEND;
            for (uid, gid, object, wanted, granted) in [
                (0, 0, &file, all, ACCESS3_READ | write | ACCESS3_EXECUTE),
                (0, 0, &file, ACCESS3_READ, ACCESS3_READ),
                (5, 0, &file, all, ACCESS3_READ | ACCESS3_EXECUTE),
                (5, 5, &file, all, ACCESS3_READ),
                (0, 0, &root, all, ACCESS3_READ | write | ACCESS3_DELETE | ACCESS3_LOOKUP),
                (5, 5, &root, all, ACCESS3_READ | ACCESS3_LOOKUP),
            ] {
                client.be(uid, gid);
                let arguments = ACCESS3args { object: object.clone(), access: wanted };
                let told: ACCESS3res = client.nfs(NFSPROC3_ACCESS, &arguments).await;
                assert_eq!(told.unwrap().access, granted, "user {uid} of group {gid}");
            }
        });
    });
}

#[test]
fn requests_without_credentials_are_anonymous() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, root| {
            client.be_anonymous();
            let how = createhow3::GUARDED(mode(0o644));
            assert_eq!(status(&client.create(&root, b"x", how).await), NFS3ERR_ACCES);
            client.be(0, 0);
            client.setattr(&root, mode(0o777)).await.unwrap();
            client.be_anonymous();
            let file = client.file(&root, "x").await;
            let told = client.attributes(&file).await;
            assert_eq!((told.uid, told.gid), (65_534, 65_534));
        });
    });
}

#[test]
fn readlink_reads_links_only() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, root| {
            let target = b"../some/where else";
            let link = client.symlink(&root, b"link", target).await.unwrap().obj.unwrap();
            let read = |symlink: &nfs_fh3| READLINK3args { symlink: symlink.clone() };
            let told: READLINK3res = client.nfs(NFSPROC3_READLINK, &read(&link)).await;
            let told = told.unwrap();
            assert_eq!(told.data.as_ref(), target);
            assert_eq!(told.symlink_attributes.unwrap().type_, ftype3::NF3LNK);
            let told: READLINK3res = client.nfs(NFSPROC3_READLINK, &read(&root)).await;
            assert_eq!(status(&told), NFS3ERR_INVAL);
        });
    });
}

#[test]
fn the_volume_describes_itself() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, root| {
            let info = FSINFO3args { fsroot: root.clone() };
            let info = client.nfs::<FSINFO3res>(NFSPROC3_FSINFO, &info).await.unwrap();
            assert_eq!((info.rtmax, info.wtmax), (1 << 20, 1 << 20));
            assert_eq!(info.maxfilesize, i64::MAX as u64);
            let all = FSF3_LINK | FSF3_SYMLINK | FSF3_HOMOGENEOUS | FSF3_CANSETTIME;
            assert_eq!(info.properties, all);
            let limits = PATHCONF3args { object: root.clone() };
            let limits = client.nfs::<PATHCONF3res>(NFSPROC3_PATHCONF, &limits).await.unwrap();
            assert_eq!((limits.name_max, limits.linkmax), (255, 65_000));
            assert!(limits.no_trunc && limits.case_preserving && !limits.case_insensitive);
            let space = FSSTAT3args { fsroot: root };
            let space = client.nfs::<FSSTAT3res>(NFSPROC3_FSSTAT, &space).await.unwrap();
            assert!(space.fbytes > 0 && space.fbytes <= space.tbytes);
            assert!(space.abytes == space.fbytes && space.ffiles < space.tfiles);
        });
    });
}

#[test]
fn each_error_of_file_io_has_its_status() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let service = stage.service.clone();
        stage.run(async |mut client, root| {
            for (error, expected) in [
                (Error::NotFound {}, NFS3ERR_NOENT),
                (Error::Exists {}, NFS3ERR_EXIST),
                (Error::NotDirectory {}, NFS3ERR_NOTDIR),
                (Error::IsDirectory {}, NFS3ERR_ISDIR),
                (Error::NotEmpty {}, NFS3ERR_NOTEMPTY),
                (Error::AccessDenied {}, NFS3ERR_ACCES),
                (Error::NotPermitted {}, NFS3ERR_PERM),
                (Error::Invalid {}, NFS3ERR_INVAL),
                (Error::FileTooLarge {}, NFS3ERR_FBIG),
                (Error::NoSpace {}, NFS3ERR_NOSPC),
                (Error::TooManyLinks {}, NFS3ERR_MLINK),
                (Error::Stale {}, NFS3ERR_STALE),
                (Error::Damaged {}, NFS3ERR_IO),
                (Error::Changed {}, NFS3ERR_NOT_SYNC),
                (Error::BadCookie {}, NFS3ERR_BAD_COOKIE),
                (Undelivered::Unreachable.into(), NFS3ERR_JUKEBOX),
                (Undelivered::Lost.into(), NFS3ERR_JUKEBOX),
                (Undelivered::ProtocolMismatch.into(), NFS3ERR_SERVERFAULT),
                (Undelivered::Fenced.into(), NFS3ERR_JUKEBOX),
            ] {
                service.rule(move |_| Act::AnswerWith(Reply::GetAttributes(Err(error))));
                assert_eq!(status(&client.getattr(&root).await), expected, "{error}");
            }
        });
    });
}

#[test]
fn a_busy_node_is_asked_again_and_in_the_end_a_jukebox() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let service = stage.service.clone();
        let busy_times = |times: u32| {
            let mut left = times;
            move |_: &Request| {
                let busy = left > 0;
                left = left.saturating_sub(1);
                if busy { Act::AnswerWith(Undelivered::Busy.into()) } else { Act::Answer }
            }
        };
        stage.run(async |mut client, root| {
            service.rule(busy_times(5));
            assert_eq!(status(&client.getattr(&root).await), NFS3_OK);
            service.rule(busy_times(u32::MAX));
            assert_eq!(status(&client.getattr(&root).await), NFS3ERR_JUKEBOX);
            service.rule(|_| Act::Answer);
            assert_eq!(status(&client.getattr(&root).await), NFS3_OK);
        });
    });
}
