//! READDIR and READDIRPLUS.

use std::collections::BTreeMap;

use fileio::protocol::Request;
use nfs3_types::nfs3::NFS_PROGRAM::*;
use nfs3_types::nfs3::nfsstat3::*;
use nfs3_types::nfs3::*;
use nfs3_types::xdr_codec::Pack as _;
use runtime::seed::{Rng, with_seed};

use crate::kit::{Client, Stage, mode};

/// A page of a directory, and the bytes of its result after the status.
struct Page {
    names: Vec<(Vec<u8>, u64)>,
    verifier: cookieverf3,
    end: bool,
    result_bytes: usize,
    /// Bytes of names, numbers and cookies.
    plain_bytes: usize,
}

type Start = (u64, cookieverf3);

const START: Start = (0, cookieverf3([0; 8]));

fn plain_bytes(name: &[u8]) -> usize {
    4 + 8 + 4 + name.len().next_multiple_of(4) + 8
}

async fn readdir(
    client: &mut Client,
    dir: &nfs_fh3,
    at: Start,
    count: u32,
) -> Result<Page, nfsstat3> {
    let arguments = READDIR3args { dir: dir.clone(), cookie: at.0, cookieverf: at.1, count };
    match client.nfs::<READDIR3res>(NFSPROC3_READDIR, &arguments).await {
        Nfs3Result::Ok(page) => {
            let result_bytes = page.packed_size();
            let entries = page.reply.entries.into_inner();
            let plain_bytes = entries.iter().map(|entry| plain_bytes(entry.name.as_ref())).sum();
            let told = |entry: entry3| (entry.name.as_ref().to_vec(), entry.cookie);
            let names = entries.into_iter().map(told).collect();
            let (verifier, end) = (page.cookieverf, page.reply.eof);
            Ok(Page { names, verifier, end, result_bytes, plain_bytes })
        }
        Nfs3Result::Err((status, failed)) => {
            assert!(failed.dir_attributes.is_some());
            Err(status)
        }
    }
}

async fn readdirplus(
    client: &mut Client,
    dir: &nfs_fh3,
    at: Start,
    counts: (u32, u32),
) -> Result<(Page, Vec<entryplus3<'static>>), nfsstat3> {
    let (dircount, maxcount) = counts;
    let (cookie, cookieverf) = at;
    let arguments = READDIRPLUS3args { dir: dir.clone(), cookie, cookieverf, dircount, maxcount };
    match client.nfs::<READDIRPLUS3res>(NFSPROC3_READDIRPLUS, &arguments).await {
        Nfs3Result::Ok(page) => {
            let result_bytes = page.packed_size();
            let entries = page.reply.entries.into_inner();
            let plain_bytes = entries.iter().map(|entry| plain_bytes(entry.name.as_ref())).sum();
            let told = |entry: &entryplus3| (entry.name.as_ref().to_vec(), entry.cookie);
            let names = entries.iter().map(told).collect();
            let (verifier, end) = (page.cookieverf, page.reply.eof);
            Ok((Page { names, verifier, end, result_bytes, plain_bytes }, entries))
        }
        Nfs3Result::Err((status, _)) => Err(status),
    }
}

/// Names of all lengths, shuffled.
fn names(rng: &mut Rng, count: usize) -> Vec<Vec<u8>> {
    let name = |index: usize, rng: &mut Rng| {
        let mut name = format!("{index:03}").into_bytes();
        name.resize(3 + rng.index(253), b'x');
        name
    };
    (0..count).map(|index| name(index, rng)).collect()
}

async fn fill(client: &mut Client, dir: &nfs_fh3, names: &[Vec<u8>]) {
    for name in names {
        let how = createhow3::GUARDED(mode(0o644));
        client.create(dir, name, how).await.unwrap();
    }
}

fn expected(names: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut all = [vec![b".".to_vec(), b"..".to_vec()], names.to_vec()].concat();
    all.sort();
    all
}

#[test]
fn readdir_tells_every_entry_once_whatever_the_count() {
    with_seed(|rng| {
        let names = names(rng, 60);
        let counts: Vec<u32> = (0..20).map(|_| 388 + rng.below(9000) as u32).collect();
        Stage::new(rng).run(async |mut client, root| {
            let dir = client.directory(&root, "dir").await;
            fill(&mut client, &dir, &names).await;
            for count in counts {
                let (mut at, mut told) = (START, Vec::new());
                loop {
                    let page = readdir(&mut client, &dir, at, count).await.unwrap();
                    assert!(page.result_bytes <= count as usize, "{count}");
                    assert!(!page.names.is_empty() || page.end);
                    at = (page.names.last().map_or(at.0, |(_, cookie)| *cookie), page.verifier);
                    told.extend(page.names);
                    if page.end {
                        break;
                    }
                }
                assert_eq!(told[0], (b".".to_vec(), 1));
                assert_eq!(told[1], (b"..".to_vec(), 2));
                let mut told: Vec<Vec<u8>> = told.into_iter().map(|(name, _)| name).collect();
                told.sort();
                assert_eq!(told, expected(&names), "count {count}");
                let after_end = readdir(&mut client, &dir, at, count).await.unwrap();
                assert!(after_end.end && after_end.names.is_empty());
            }
        });
    });
}

#[test]
fn one_more_byte_of_count_is_one_more_entry() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, root| {
            let dir = client.directory(&root, "dir").await;
            fill(&mut client, &dir, &[b"a".to_vec(), b"b".to_vec()]).await;
            // Attributes, verifier, end of list, end of directory; then 28 bytes for each entry.
            let around = 88 + 8 + 4 + 4;
            for (count, entries) in [(28, 1), (55, 1), (56, 2), (84, 3), (111, 3), (112, 4)] {
                let page = readdir(&mut client, &dir, START, around + count).await.unwrap();
                assert_eq!(page.names.len(), entries, "count {count}");
                assert_eq!(page.result_bytes, around as usize + 28 * entries);
                assert_eq!(page.end, entries == 4);
            }
            for count in [0, 1, around, around + 27] {
                let said = readdir(&mut client, &dir, START, count).await;
                assert_eq!(said.err(), Some(NFS3ERR_TOOSMALL), "count {count}");
            }
        });
    });
}

#[test]
fn readdirplus_tells_every_entry_with_its_handle_within_both_counts() {
    with_seed(|rng| {
        let names = names(rng, 40);
        let counts: Vec<(u32, u32)> =
            (0..20).map(|_| (280 + rng.below(3000) as u32, 600 + rng.below(9000) as u32)).collect();
        Stage::new(rng).run(async |mut client, root| {
            let dir = client.directory(&root, "dir").await;
            fill(&mut client, &dir, &names).await;
            for counts in counts {
                let (mut at, mut told) = (START, BTreeMap::new());
                loop {
                    let (page, entries) = readdirplus(&mut client, &dir, at, counts).await.unwrap();
                    assert!(page.plain_bytes <= counts.0 as usize, "{counts:?}");
                    assert!(page.result_bytes <= counts.1 as usize, "{counts:?}");
                    at = (page.names.last().map_or(at.0, |(_, cookie)| *cookie), page.verifier);
                    for entry in entries {
                        let attributes = entry.name_attributes.unwrap();
                        assert_eq!(attributes.fileid, entry.fileid);
                        let handle = entry.name_handle.unwrap();
                        told.insert(entry.name.as_ref().to_vec(), (handle, attributes.type_));
                    }
                    if page.end {
                        break;
                    }
                }
                assert!(told.keys().eq(&expected(&names)), "counts {counts:?}");
                assert_eq!(told[&b"."[..]], (dir.clone(), ftype3::NF3DIR));
                assert_eq!(told[&b".."[..]], (root.clone(), ftype3::NF3DIR));
                let found = client.lookup(&dir, &names[0]).await.unwrap().object;
                assert_eq!(told[&names[0]], (found, ftype3::NF3REG));
            }
            let (page, _) = readdirplus(&mut client, &dir, START, (28, 288)).await.unwrap();
            assert_eq!(page.names.len(), 1, "the smallest counts for an entry");
            for counts in [(0, 8192), (27, 8192), (8192, 0), (8192, 287)] {
                let said = readdirplus(&mut client, &dir, START, counts).await;
                assert_eq!(said.err(), Some(NFS3ERR_TOOSMALL), "counts {counts:?}");
            }
        });
    });
}

#[test]
fn nothing_above_the_root_is_told_or_asked_for() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let service = stage.service.clone();
        stage.run(async |mut client, root| {
            let (_, entries) = readdirplus(&mut client, &root, START, (8192, 8192)).await.unwrap();
            let dots: Vec<_> = entries
                .into_iter()
                .map(|entry| (entry.fileid, entry.cookie, entry.name_handle.unwrap()))
                .collect();
            assert_eq!(dots, [(1, 1, root.clone()), (1, 2, root.clone())]);
            assert_eq!(client.lookup(&root, b"..").await.unwrap().object, root);
            let above = |request: &Request| matches!(request, Request::Parent(_));
            assert!(!service.asked().iter().any(above));
        });
    });
}

#[test]
fn a_cookie_stays_valid_while_entries_come_and_go() {
    with_seed(|rng| {
        let names = names(rng, 30);
        Stage::new(rng).run(async |mut client, root| {
            fill(&mut client, &root, &names).await;
            let first = readdir(&mut client, &root, START, 2000).await.unwrap();
            assert!(!first.end);
            for (name, _) in &first.names[2..] {
                client.remove(&root, name).await.unwrap();
            }
            client.file(&root, "later").await;
            let (_, cookie) = first.names.last().unwrap();
            let rest = readdir(&mut client, &root, (*cookie, first.verifier), 1 << 20).await;
            let rest: Vec<Vec<u8>> =
                rest.unwrap().names.into_iter().map(|(name, _)| name).collect();
            let kept = names.iter().filter(|name| !first.names.iter().any(|(n, _)| n == *name));
            for name in kept {
                assert!(rest.contains(name), "an entry that was always there was not told");
            }
        });
    });
}

#[test]
fn a_cookie_that_was_never_given_out_is_bad() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, root| {
            client.file(&root, "file").await;
            let verifier = readdir(&mut client, &root, START, 4096).await.unwrap().verifier;
            let foreign = cookieverf3([1; 8]);
            for at in [(u64::MAX, verifier), (1 << 40, verifier), (1, foreign), (3, foreign)] {
                let said = readdir(&mut client, &root, at, 4096).await;
                assert_eq!(said.err(), Some(NFS3ERR_BAD_COOKIE), "cookie {at:?}");
            }
            let rest = readdir(&mut client, &root, (1, verifier), 4096).await.unwrap();
            assert_eq!(rest.names[0], (b"..".to_vec(), 2));
            let rest = readdir(&mut client, &root, (2, verifier), 4096).await.unwrap();
            assert_eq!(rest.names[0].0, b"file");
            let file = client.lookup(&root, b"file").await.unwrap().object;
            let said = readdir(&mut client, &file, START, 4096).await;
            assert_eq!(said.err(), Some(NFS3ERR_NOTDIR));
        });
    });
}
