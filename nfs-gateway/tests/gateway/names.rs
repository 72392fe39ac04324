//! LOOKUP, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME, LINK, and names that are none.

use fileio::protocol::Request;
use nfs3_types::nfs3::NFS_PROGRAM::*;
use nfs3_types::nfs3::nfsstat3::*;
use nfs3_types::nfs3::*;
use runtime::seed::with_seed;

use crate::kit::{Stage, at, mode, status};

#[test]
fn lookup_finds_names_the_directory_itself_and_the_one_above() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, root| {
            let above = client.directory(&root, "above").await;
            let below = client.directory(&above, "below").await;
            let found = client.lookup(&root, b"above").await.unwrap();
            assert_eq!(found.object, above);
            assert_eq!(found.obj_attributes.unwrap().nlink, 3);
            assert_eq!(found.dir_attributes.unwrap().fileid, 1);
            assert_eq!(client.lookup(&below, b".").await.unwrap().object, below);
            assert_eq!(client.lookup(&below, b"..").await.unwrap().object, above);
            assert_eq!(client.lookup(&above, b"..").await.unwrap().object, root);
            assert_eq!(client.lookup(&root, b"..").await.unwrap().object, root);
            let missing = client.lookup(&root, b"missing").await;
            assert_eq!(status(&missing), NFS3ERR_NOENT);
            let Nfs3Result::Err((_, failed)) = missing else { panic!() };
            assert_eq!(failed.dir_attributes.unwrap().fileid, 1);
            let file = client.file(&root, "file").await;
            for name in [&b"x"[..], b".", b".."] {
                assert_eq!(status(&client.lookup(&file, name).await), NFS3ERR_NOTDIR);
            }
        });
    });
}

#[test]
fn a_directory_that_may_not_be_searched_tells_nothing() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, root| {
            let private = client.directory(&root, "private").await;
            client.file(&private, "file").await;
            client.setattr(&private, mode(0o700)).await.unwrap();
            client.be(1000, 1000);
            for name in [&b"file"[..], b"missing", b".", b".."] {
                assert_eq!(status(&client.lookup(&private, name).await), NFS3ERR_ACCES);
            }
        });
    });
}

/// What every procedure that takes a name says to `name`.
async fn each_says(stage: &Stage, name: &[u8]) -> Vec<nfsstat3> {
    let mut client = stage.client();
    let root = client.mount("/").await;
    let file = client.lookup(&root, b"file").await.unwrap().object;
    let mknod =
        MKNOD3args { where_: at(&root, name), what: mknoddata3::NF3FIFO(sattr3::default()) };
    vec![
        status(&client.lookup(&root, name).await),
        status(&client.create(&root, name, createhow3::UNCHECKED(mode(0o644))).await),
        status(&client.create(&root, name, createhow3::GUARDED(mode(0o644))).await),
        status(&client.create(&root, name, createhow3::EXCLUSIVE(createverf3([7; 8]))).await),
        status(&client.mkdir(&root, name).await),
        status(&client.symlink(&root, name, b"target").await),
        status(&client.nfs::<MKNOD3res>(NFSPROC3_MKNOD, &mknod).await),
        status(&client.link(&file, &root, name).await),
        status(&client.rename((&root, b"file"), (&root, name)).await),
        status(&client.rename((&root, name), (&root, b"file")).await),
        status(&client.remove(&root, name).await),
        status(&client.rmdir(&root, name).await),
    ]
}

#[test]
fn a_name_that_is_none_is_refused_by_every_procedure() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        stage.run(async |mut client, root| {
            client.file(&root, "file").await;
        });
        let long = vec![b'x'; 256];
        let longer = vec![b'x'; 60_000];
        for (name, expected) in [
            (&b""[..], NFS3ERR_ACCES),
            (b"a/b", NFS3ERR_ACCES),
            (b"/", NFS3ERR_ACCES),
            (b"a\0", NFS3ERR_ACCES),
            (&long, NFS3ERR_NAMETOOLONG),
            (&longer, NFS3ERR_NAMETOOLONG),
        ] {
            let said = stage.world.run(each_says(&stage, name));
            assert_eq!(said, vec![expected; 12], "a name of {} bytes", name.len());
        }
    });
}

#[test]
fn dot_and_dotdot_exist_and_cannot_be_moved_or_removed() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        stage.run(async |mut client, root| {
            client.file(&root, "file").await;
        });
        let [exist, invalid] = [NFS3ERR_EXIST, NFS3ERR_INVAL];
        let made = [vec![NFS3_OK], vec![exist; 7], vec![invalid; 3]].concat();
        let said = stage.world.run(each_says(&stage, b"."));
        assert_eq!(said, [made.clone(), vec![invalid]].concat());
        let said = stage.world.run(each_says(&stage, b".."));
        assert_eq!(said, [made, vec![exist]].concat());
    });
}

#[test]
fn a_name_of_255_bytes_is_as_good_as_any() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, root| {
            let name = [0xff; 255];
            let how = createhow3::GUARDED(mode(0o644));
            let file = client.create(&root, &name, how).await.unwrap().obj.unwrap();
            assert_eq!(client.lookup(&root, &name).await.unwrap().object, file);
            client.rename((&root, &name), (&root, &[1; 255])).await.unwrap();
            client.remove(&root, &[1; 255]).await.unwrap();
        });
    });
}

#[test]
fn create_has_three_ways_with_what_exists() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, root| {
            let guarded = || createhow3::GUARDED(mode(0o640));
            let made = client.create(&root, b"file", guarded()).await.unwrap();
            let file = made.obj.unwrap();
            assert_eq!(made.obj_attributes.unwrap().mode, 0o640);
            assert_eq!(made.dir_wcc.after.unwrap().fileid, 1);
            assert_eq!(status(&client.create(&root, b"file", guarded()).await), NFS3ERR_EXIST);

            client.write(&file, 0, b"content", stable_how::FILE_SYNC).await.unwrap();
            let unchecked = || createhow3::UNCHECKED(sattr3::default());
            let same = client.create(&root, b"file", unchecked()).await.unwrap();
            assert_eq!(same.obj.unwrap(), file);
            assert_eq!(same.obj_attributes.unwrap().size, 7);
            let size = Nfs3Option::Some(0);
            let cut = createhow3::UNCHECKED(sattr3 { size, ..sattr3::default() });
            let same = client.create(&root, b"file", cut).await.unwrap();
            assert_eq!(same.obj_attributes.unwrap().size, 0);

            let exclusive = |verifier| createhow3::EXCLUSIVE(createverf3([verifier; 8]));
            let first = client.create(&root, b"lock", exclusive(1)).await.unwrap().obj.unwrap();
            let again = client.create(&root, b"lock", exclusive(1)).await.unwrap().obj.unwrap();
            assert_eq!(first, again, "the same client asked again");
            assert_eq!(status(&client.create(&root, b"lock", exclusive(2)).await), NFS3ERR_EXIST);
            assert_eq!(status(&client.create(&root, b"file", exclusive(1)).await), NFS3ERR_EXIST);
        });
    });
}

#[test]
fn changes_of_directories_are_durable() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let service = stage.service.clone();
        stage.run(async |mut client, root| {
            service.asked();
            client.file(&root, "file").await;
            client.remove(&root, b"file").await.unwrap();
            let asked = service.asked();
            let durable = asked.iter().filter(|request| match request {
                Request::Create(create) => create.durable,
                Request::Remove(remove) => remove.durable,
                _ => false,
            });
            assert_eq!(durable.count(), 2);
        });
    });
}

#[test]
fn mkdir_and_rmdir_make_and_remove_empty_directories() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, root| {
            let made = client.mkdir(&root, b"dir").await.unwrap();
            assert_eq!(made.obj_attributes.unwrap().type_, ftype3::NF3DIR);
            let dir = made.obj.unwrap();
            assert_eq!(status(&client.mkdir(&root, b"dir").await), NFS3ERR_EXIST);
            client.file(&dir, "file").await;
            assert_eq!(status(&client.rmdir(&root, b"dir").await), NFS3ERR_NOTEMPTY);
            assert_eq!(status(&client.remove(&root, b"dir").await), NFS3ERR_ISDIR);
            assert_eq!(status(&client.rmdir(&dir, b"file").await), NFS3ERR_NOTDIR);
            client.remove(&dir, b"file").await.unwrap();
            let removed = client.rmdir(&root, b"dir").await.unwrap();
            assert_eq!(removed.dir_wcc.after.unwrap().nlink, 2);
            assert_eq!(status(&client.rmdir(&root, b"dir").await), NFS3ERR_NOENT);
            assert_eq!(status(&client.remove(&root, b"dir").await), NFS3ERR_NOENT);
        });
    });
}

#[test]
fn a_symlink_keeps_any_target_that_posix_allows() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, root| {
            let long = vec![b't'; 4095];
            client.symlink(&root, b"long", &long).await.unwrap();
            let too_long = vec![b't'; 4096];
            let said = client.symlink(&root, b"longer", &too_long).await;
            assert_eq!(status(&said), NFS3ERR_NAMETOOLONG);
            assert_eq!(status(&client.symlink(&root, b"none", b"").await), NFS3ERR_NOENT);
            assert_eq!(status(&client.symlink(&root, b"zero", b"a\0b").await), NFS3ERR_INVAL);
            assert_eq!(status(&client.symlink(&root, b"long", b"x").await), NFS3ERR_EXIST);
        });
    });
}

#[test]
fn mknod_makes_special_files_and_nothing_else() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, root| {
            let spec = || specdata3 { specdata1: 8, specdata2: 17 };
            let device = || devicedata3 { dev_attributes: mode(0o660), spec: spec() };
            for (name, what, kind) in [
                (&b"chr"[..], mknoddata3::NF3CHR(device()), ftype3::NF3CHR),
                (b"blk", mknoddata3::NF3BLK(device()), ftype3::NF3BLK),
                (b"sock", mknoddata3::NF3SOCK(mode(0o660)), ftype3::NF3SOCK),
                (b"fifo", mknoddata3::NF3FIFO(mode(0o660)), ftype3::NF3FIFO),
            ] {
                let device = matches!(what, mknoddata3::NF3CHR(_) | mknoddata3::NF3BLK(_));
                let arguments = MKNOD3args { where_: at(&root, name), what };
                let made: MKNOD3res = client.nfs(NFSPROC3_MKNOD, &arguments).await;
                let told = made.unwrap().obj_attributes.unwrap();
                assert_eq!((told.type_, told.mode), (kind, 0o660));
                let numbers = if device { spec() } else { specdata3::default() };
                assert_eq!(told.rdev, numbers);
            }
            for kind in [ftype3::NF3REG, ftype3::NF3DIR, ftype3::NF3LNK] {
                let arguments = (at(&root, b"x"), kind as u32);
                let bytes =
                    [crate::kit::encode(&arguments.0), crate::kit::encode(&arguments.1)].concat();
                let program = [PROGRAM, VERSION, NFSPROC3_MKNOD as u32];
                let said: MKNOD3res = client.call(program, &bytes).await.done();
                assert_eq!(status(&said), NFS3ERR_BADTYPE);
            }
        });
    });
}

#[test]
fn rename_moves_and_replaces() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, root| {
            let (one, two) =
                (client.directory(&root, "one").await, client.directory(&root, "two").await);
            let file = client.file(&one, "file").await;
            client.file(&two, "old").await;
            let done = client.rename((&one, b"file"), (&two, b"old")).await.unwrap();
            assert!(done.fromdir_wcc.after.is_some() && done.todir_wcc.after.is_some());
            assert_eq!(client.lookup(&two, b"old").await.unwrap().object, file);
            assert_eq!(status(&client.lookup(&one, b"file").await), NFS3ERR_NOENT);
            let missing = client.rename((&one, b"file"), (&two, b"x")).await;
            assert_eq!(status(&missing), NFS3ERR_NOENT);
            let full = client.rename((&root, b"one"), (&root, b"two")).await;
            assert_eq!(status(&full), NFS3ERR_NOTEMPTY);
            let into_itself = client.rename((&root, b"one"), (&one, b"x")).await;
            assert_eq!(status(&into_itself), NFS3ERR_INVAL);
        });
    });
}

#[test]
fn link_gives_one_more_name() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, root| {
            let file = client.file(&root, "file").await;
            let linked = client.link(&file, &root, b"other").await.unwrap();
            assert_eq!(linked.file_attributes.unwrap().nlink, 2);
            assert!(linked.linkdir_wcc.after.is_some());
            assert_eq!(client.lookup(&root, b"other").await.unwrap().object, file);
            assert_eq!(status(&client.link(&file, &root, b"other").await), NFS3ERR_EXIST);
            client.remove(&root, b"file").await.unwrap();
            assert_eq!(client.attributes(&file).await.nlink, 1);
            let dir = client.directory(&root, "dir").await;
            assert_eq!(status(&client.link(&dir, &root, b"x").await), NFS3ERR_PERM);
        });
    });
}
