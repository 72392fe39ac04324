//! READ, WRITE, COMMIT.

use fileio::protocol::Request;
use nfs3_types::nfs3::NFS_PROGRAM::*;
use nfs3_types::nfs3::nfsstat3::*;
use nfs3_types::nfs3::*;
use runtime::seed::with_seed;

use crate::kit::{Stage, Verdict, encode, status, write_arguments};

const UNSTABLE: stable_how = stable_how::UNSTABLE;
const FILE_SYNC: stable_how = stable_how::FILE_SYNC;
const MIB: usize = 1 << 20;

#[test]
fn what_was_written_is_read_at_every_size() {
    with_seed(|rng| {
        let sizes = [0, 1, 2, 3, 4, 5, 4095, 4096, 65_537, MIB - 1, MIB];
        let contents = sizes.map(|size| {
            let mut bytes = vec![0; size];
            rng.fill(&mut bytes);
            bytes
        });
        Stage::new(rng).run(async |mut client, root| {
            let file = client.file(&root, "file").await;
            for content in contents {
                let offset = 3 * content.len() as u64;
                let written = client.write(&file, offset, &content, FILE_SYNC).await.unwrap();
                assert_eq!(written.count as usize, content.len());
                let count = content.len() as u32;
                let read = client.read(&file, offset, count).await.unwrap();
                assert!(read.data.as_ref() == content, "{count} bytes differ");
                assert_eq!(read.count, count);
            }
        });
    });
}

#[test]
fn a_read_ends_at_the_end_of_the_file() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, root| {
            let file = client.file(&root, "file").await;
            client.write(&file, 0, b"0123456789", FILE_SYNC).await.unwrap();
            for (offset, count, expected, eof) in [
                (0, 4, &b"0123"[..], false),
                (0, 10, b"0123456789", true),
                (8, 100, b"89", true),
                (10, 1, b"", true),
                (11, 1, b"", true),
                (u64::MAX, u32::MAX, b"", true),
                (3, 0, b"", false),
            ] {
                let read = client.read(&file, offset, count).await.unwrap();
                assert_eq!((read.data.as_ref(), read.eof), (expected, eof), "{offset}+{count}");
                assert_eq!(read.file_attributes.unwrap().size, 10);
            }
        });
    });
}

#[test]
fn a_read_beyond_rtmax_brings_rtmax() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, root| {
            let file = client.file(&root, "file").await;
            let size = Nfs3Option::Some(5 * MIB as u64);
            client.setattr(&file, sattr3 { size, ..sattr3::default() }).await.unwrap();
            let read = client.read(&file, 0, u32::MAX).await.unwrap();
            assert_eq!((read.count as usize, read.eof), (MIB, false));
        });
    });
}

#[test]
fn a_write_beyond_wtmax_writes_wtmax() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, root| {
            let file = client.file(&root, "file").await;
            let data = vec![7; MIB + 5000];
            let written = client.write(&file, 0, &data, UNSTABLE).await.unwrap();
            assert_eq!(written.count as usize, MIB);
            assert_eq!(client.attributes(&file).await.size, MIB as u64);
        });
    });
}

#[test]
fn only_an_unstable_write_may_be_lost() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let service = stage.service.clone();
        stage.run(async |mut client, root| {
            let file = client.file(&root, "file").await;
            for (stable, durable, committed) in [
                (UNSTABLE, false, UNSTABLE),
                (stable_how::DATA_SYNC, true, FILE_SYNC),
                (FILE_SYNC, true, FILE_SYNC),
            ] {
                service.asked();
                let written = client.write(&file, 0, b"x", stable).await.unwrap();
                assert_eq!(written.committed, committed);
                assert_eq!(written.file_wcc.after.unwrap().size, 1);
                let asked = service.asked();
                let Some(Request::Write(write)) = asked.first() else { panic!("{asked:?}") };
                assert_eq!(write.durable, durable);
            }
        });
    });
}

#[test]
fn the_verifier_of_a_file_is_that_of_its_node_and_changes_with_it() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let service = stage.service.clone();
        stage.run(async |mut client, root| {
            let file = client.file(&root, "file").await;
            let written = client.write(&file, 0, b"x", UNSTABLE).await.unwrap();
            let commit = COMMIT3args { file: file.clone(), offset: 0, count: 0 };
            let committed: COMMIT3res = client.nfs(NFSPROC3_COMMIT, &commit).await;
            let committed = committed.unwrap();
            assert_eq!(committed.verf, written.verf);
            assert_eq!(committed.file_wcc.after.unwrap().size, 1);

            service.loses_writes();
            let committed: COMMIT3res = client.nfs(NFSPROC3_COMMIT, &commit).await;
            let committed = committed.unwrap();
            assert_ne!(committed.verf, written.verf, "the client has to send its writes again");
            let written = client.write(&file, 0, b"x", UNSTABLE).await.unwrap();
            assert_eq!(committed.verf, written.verf);
        });
    });
}

#[test]
fn a_write_whose_counts_disagree_is_garbage_and_writes_nothing() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, root| {
            let file = client.file(&root, "file").await;
            let write = [PROGRAM, VERSION, NFSPROC3_WRITE as u32];
            for count in [0, 4, 6, u32::MAX] {
                let mut arguments = write_arguments(&file, 0, b"hello", FILE_SYNC);
                arguments.count = count;
                let verdict = client.call(write, &encode(&arguments)).await;
                assert_eq!(verdict, Verdict::Garbage, "count {count}");
            }
            let right = encode(&write_arguments(&file, 0, b"hello", FILE_SYNC));
            for length in 0..right.len() {
                let verdict = client.call(write, &right[..length]).await;
                assert_eq!(verdict, Verdict::Garbage, "cut after {length} bytes");
            }
            let longer = [&right[..], &[0; 4]].concat();
            assert_eq!(client.call(write, &longer).await, Verdict::Garbage);
            assert_eq!(client.attributes(&file).await.size, 0);
        });
    });
}

#[test]
fn what_cannot_be_read_or_written_says_why() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, root| {
            let file = client.file(&root, "file").await;
            for offset in [i64::MAX as u64, u64::MAX] {
                let said = client.write(&file, offset, b"x", UNSTABLE).await;
                assert_eq!(status(&said), NFS3ERR_FBIG);
            }
            let last = i64::MAX as u64 - 1;
            client.write(&file, last, b"x", UNSTABLE).await.unwrap();
            let read = client.read(&file, last, 100).await.unwrap();
            assert_eq!((read.data.as_ref(), read.eof), (&b"x"[..], true));

            assert_eq!(status(&client.read(&root, 0, 1).await), NFS3ERR_ISDIR);
            assert_eq!(status(&client.write(&root, 0, b"x", UNSTABLE).await), NFS3ERR_ISDIR);
            let link = client.symlink(&root, b"link", b"file").await.unwrap().obj.unwrap();
            assert_eq!(status(&client.read(&link, 0, 1).await), NFS3ERR_INVAL);
            client.be(1000, 1000);
            let said = client.write(&file, 0, b"x", UNSTABLE).await;
            assert_eq!(status(&said), NFS3ERR_ACCES);
            let Nfs3Result::Err((_, failed)) = said else { panic!() };
            assert!(failed.file_wcc.after.is_some(), "attributes also come with a failure");
        });
    });
}

#[test]
fn a_write_tells_what_was_just_before_it() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, root| {
            let file = client.file(&root, "file").await;
            let mut known = client.attributes(&file).await;
            for stable in [UNSTABLE, FILE_SYNC, UNSTABLE] {
                let wcc = client.write(&file, known.size, b"more", stable).await.unwrap().file_wcc;
                let (before, after) = (wcc.before.unwrap(), wcc.after.unwrap());
                let expected = (known.size, known.mtime, known.ctime);
                assert_eq!((before.size, before.mtime, before.ctime), expected);
                assert_eq!(after.size, before.size + 4);
                known = after;
            }
        });
    });
}

#[test]
fn a_call_that_changes_nothing_says_that_all_is_as_before() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, root| {
            let file = client.file(&root, "file").await;
            client.write(&file, 0, b"content", UNSTABLE).await.unwrap();
            let same = |wcc: &wcc_data| match (&wcc.before, &wcc.after) {
                (Nfs3Option::Some(before), Nfs3Option::Some(after)) => {
                    (before.size, before.mtime, before.ctime)
                        == (after.size, after.mtime, after.ctime)
                }
                _ => false,
            };
            let commit = COMMIT3args { file: file.clone(), offset: 0, count: 0 };
            let committed: COMMIT3res = client.nfs(NFSPROC3_COMMIT, &commit).await;
            let committed = committed.unwrap();
            assert!(same(&committed.file_wcc), "{:?}", committed.file_wcc);
            let Nfs3Result::Err((_, refused)) = client.remove(&root, b"none").await else {
                panic!("there is no such file");
            };
            assert!(same(&refused.dir_wcc), "{:?}", refused.dir_wcc);
            let removed = client.remove(&root, b"file").await.unwrap();
            assert!(removed.dir_wcc.before.is_none(), "who knows what others did meanwhile");
        });
    });
}
