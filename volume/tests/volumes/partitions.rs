//! Partitions are made, filled up to their size limit, kept over restarts, and removed.

use std::path::Path;

use bytes::Bytes;
use fileio::client::ask;
use fileio::hash::partition_of;
use fileio::protocol::*;
use futures::executor::block_on;
use runtime::ClientHandle;
use volume::FormatOptions;

use crate::running::{check, run, wait_until};

const FILE_BYTES: u64 = 256 << 10;
const LIMIT: u64 = 8 << 20;

fn format(directory: &Path) {
    let options = FormatOptions {
        disk_nodes: 2,
        disks_per_node: 1,
        disk_bytes: 64 << 20,
        fs_nodes: 4,
        ..FormatOptions::default()
    };
    volume::format(directory, &options).unwrap();
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes().to_vec()).unwrap()
}

fn file_name(number: u64) -> Name {
    name(&format!("file {number}"))
}

fn call(number: u64) -> CallId {
    CallId { client: 1, number }
}

fn create(client: &ClientHandle, text: &str, limit_bytes: Option<u64>) -> Result<(), Error> {
    create_with(client, text, 4096, limit_bytes)
}

fn create_with(
    client: &ClientHandle,
    text: &str,
    block_bytes: u32,
    limit_bytes: Option<u64>,
) -> Result<(), Error> {
    change(client, PartitionChange::Create { name: name(text), block_bytes, limit_bytes })
}

fn change(client: &ClientHandle, change: PartitionChange) -> Result<(), Error> {
    let who = Credentials::root();
    block_on(ask(client, ChangePartitions { who, root: ROOT, change }))
}

fn table(client: &ClientHandle) -> PartitionTable {
    block_on(ask(client, GetPartitions { root: ROOT })).unwrap()
}

fn find(client: &ClientHandle, directory: Handle, name: Name) -> Result<Handle, Error> {
    let found = block_on(ask(client, Lookup { who: Credentials::root(), directory, name }))?;
    Ok(handle_of(&found))
}

fn used(client: &ClientHandle, partition: u16) -> u64 {
    let space = block_on(ask(client, GetSpace { partition })).unwrap();
    space.total_bytes - space.free_bytes
}

/// Makes a file and writes it.
fn put(client: &ClientHandle, directory: Handle, number: u64) -> Result<(), Error> {
    put_bytes(client, directory, number, FILE_BYTES as usize)
}

fn put_bytes(
    client: &ClientHandle,
    directory: Handle,
    number: u64,
    length: usize,
) -> Result<(), Error> {
    let create = Create {
        who: Credentials::root(),
        call: call(number),
        directory,
        name: file_name(number),
        existing: Existing::Refuse {},
        change: Change::default(),
        durable: false,
    };
    let file = handle_of(&block_on(ask(client, create))?.attributes);
    assert_eq!(partition_of(file.ino), partition_of(directory.ino));
    let data = vec![Bytes::from(vec![7; length])];
    let write = Write { who: Credentials::root(), file, offset: 0, data, durable: false };
    block_on(ask(client, write))?;
    block_on(ask(client, Commit { file }))?;
    Ok(())
}

/// Writes files from this number on until there is no space; the number of the one that failed.
fn fill(client: &ClientHandle, directory: Handle, from: u64) -> u64 {
    for number in from.. {
        match put(client, directory, number) {
            Ok(()) => {}
            Err(Error::NoSpace {}) => return number,
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!()
}

fn remove(client: &ClientHandle, directory: Handle, number: u64) {
    let (who, call, name) = (Credentials::root(), call(1_000_000 + number), file_name(number));
    block_on(ask(client, Remove { who, call, directory, name, durable: false })).unwrap();
}

fn refusal<T: std::fmt::Debug>(answer: Result<T, Error>) -> PartitionRefusal {
    match answer {
        Err(Error::Partitions { why }) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_files_of_a_partition_have_all_of_its_limit_together_and_no_more() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("volume");
    format(&directory);
    let running = run(&directory);
    let client = running.client_handle();
    create_with(&client, "small", 32 << 10, Some(LIMIT)).unwrap();
    create(&client, "other", None).unwrap();
    let small = find(&client, ROOT, name("small")).unwrap();
    let other = find(&client, ROOT, name("other")).unwrap();
    assert_eq!([small, other].map(|root| partition_of(root.ino)), [1, 2]);

    // The files are at all nodes, and each of them has a share of the limit.
    let failed = fill(&client, small, 0);
    assert_eq!(failed, LIMIT / FILE_BYTES, "all of the limit can be written");
    assert_eq!(used(&client, 1), LIMIT);
    put(&client, other, 900).unwrap();
    put(&client, ROOT, 901).unwrap();
    assert_eq!((used(&client, 1), used(&client, 2)), (LIMIT, FILE_BYTES));

    // What is removed can be written again, at another node, too.
    (0..8).for_each(|number| remove(&client, small, number));
    wait_until("removed files are counted", || used(&client, 1) == LIMIT - 8 * FILE_BYTES);
    assert_eq!(fill(&client, small, 100), 108);
    let limit = |limit_bytes| {
        change(&client, PartitionChange::SetLimit { name: name("small"), limit_bytes }).unwrap();
    };
    limit(Some(LIMIT + 4 * FILE_BYTES));
    assert_eq!(fill(&client, small, 200), 204);
    // What is claimed below one limit is not used below a smaller one.
    limit(Some(4 * LIMIT));
    assert_eq!(put(&client, small, 300), Ok(()));
    limit(Some(LIMIT));
    assert_eq!(fill(&client, small, 400), 400);
    limit(None);
    assert_eq!(put(&client, small, 500), Ok(()));
    running.stop().unwrap();
    check(&directory);

    let running = run(&directory);
    let client = running.client_handle();
    assert_eq!(used(&client, 1), LIMIT + 6 * FILE_BYTES);
    let numbers = table(&client).partitions.into_iter().map(|partition| partition.number);
    assert_eq!(numbers.collect::<Vec<_>>(), [1, 2]);
    running.stop().unwrap();
}

#[test]
fn a_partition_has_blocks_of_its_own_size() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("volume");
    format(&directory);
    let running = run(&directory);
    let client = running.client_handle();
    for bad in [0, 2048, 3 * 4096, 128 << 10] {
        let refused = refusal(create_with(&client, "bad", bad, None));
        assert_eq!(refused, PartitionRefusal::BadBlock { max_bytes: 64 << 10 });
    }
    let blocks = [4096, 16 << 10, 64 << 10];
    for (number, block) in (1..).zip(blocks) {
        let text = format!("blocks of {block}");
        create_with(&client, &text, block, None).unwrap();
        let root = find(&client, ROOT, name(&text)).unwrap();
        put_bytes(&client, root, u64::from(number), 10).unwrap();
        assert_eq!(used(&client, number), u64::from(block));
        put_bytes(&client, root, u64::from(number) + 10, 100_000).unwrap();
        let large = 100_000_u64.next_multiple_of(block.into());
        assert_eq!(used(&client, number), u64::from(block) + large);
    }
    // As after a crash: a node that comes up asks for the table before it writes.
    drop(running);
    let running = run(&directory);
    let client = running.client_handle();
    for (number, block) in (1..).zip(blocks) {
        let root = find(&client, ROOT, name(&format!("blocks of {block}"))).unwrap();
        let before = used(&client, number);
        put_bytes(&client, root, u64::from(number) + 20, 10).unwrap();
        assert_eq!(used(&client, number), before + u64::from(block));
        let file = find(&client, root, file_name(u64::from(number) + 10)).unwrap();
        let read = Read { who: Credentials::root(), file, offset: 0, length: 100_000 };
        let data = block_on(ask(&client, read)).unwrap().data.concat();
        assert_eq!(data, vec![7; 100_000]);
    }
    running.stop().unwrap();
    check(&directory);
}

#[test]
fn nothing_has_names_in_two_partitions() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("volume");
    format(&directory);
    let running = run(&directory);
    let client = running.client_handle();
    create(&client, "part", None).unwrap();
    create(&client, "part", None).unwrap();
    assert_eq!(refusal(create(&client, "part", Some(1))), PartitionRefusal::Exists {});
    assert_eq!(table(&client).partitions.len(), 1);
    let part = find(&client, ROOT, name("part")).unwrap();
    put(&client, part, 1).unwrap();
    put(&client, ROOT, 2).unwrap();
    assert_eq!(refusal(create(&client, "file 2", None)), PartitionRefusal::Exists {});

    let rename = |number, from: (Handle, Name), to: (Handle, Name)| {
        let (who, call) = (Credentials::root(), call(number));
        let (from_directory, from_name, to_directory, to_name) = (from.0, from.1, to.0, to.1);
        let request = Rename {
            who,
            call,
            from_directory,
            from_name,
            to_directory,
            to_name,
            replace: false,
            durable: false,
        };
        block_on(ask(&client, request))
    };
    let crossing = PartitionRefusal::Crossing {};
    assert_eq!(refusal(rename(11, (part, file_name(1)), (ROOT, name("x")))), crossing);
    assert_eq!(refusal(rename(12, (ROOT, file_name(2)), (part, name("x")))), crossing);
    let is_root = PartitionRefusal::IsRoot {};
    assert_eq!(refusal(rename(13, (ROOT, name("part")), (ROOT, name("x")))), is_root);
    let (who, call, durable) = (Credentials::root(), call(14), false);
    let gone = RemoveDirectory { who, call, directory: ROOT, name: name("part"), durable };
    assert_eq!(refusal(block_on(ask(&client, gone))), is_root);

    let absent = PartitionChange::SetLimit { name: name("nothing"), limit_bytes: None };
    assert_eq!(refusal(change(&client, absent)), PartitionRefusal::NotFound {});
    let other = Credentials { uid: 77, ..Credentials::unmapped() };
    let made = PartitionChange::Create { name: name("y"), block_bytes: 4096, limit_bytes: None };
    let asked = ChangePartitions { who: other, root: ROOT, change: made };
    assert_eq!(block_on(ask(&client, asked)), Err(Error::NotPermitted {}));
    running.stop().unwrap();
    check(&directory);
}

#[test]
fn a_removal_goes_on_after_a_crash() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("volume");
    format(&directory);
    let running = run(&directory);
    let client = running.client_handle();
    let before = used(&client, 0);
    create(&client, "part", None).unwrap();
    let part = find(&client, ROOT, name("part")).unwrap();
    (0..60).for_each(|number| put(&client, part, number).unwrap());
    let remove = |client: &ClientHandle, with_content| {
        change(client, PartitionChange::Remove { name: name("part"), with_content })
    };
    assert_eq!(refusal(remove(&client, false)), PartitionRefusal::NotEmpty {});
    put(&client, part, 60).unwrap();
    remove(&client, true).unwrap();
    assert_eq!(refusal(put(&client, part, 61)), PartitionRefusal::IsGoing {});
    drop(running);

    let running = run(&directory);
    let client = running.client_handle();
    wait_until("the partition is removed", || table(&client).partitions.is_empty());
    assert_eq!(find(&client, ROOT, name("part")), Err(Error::NotFound {}));
    wait_until("its space is back", || used(&client, 0) <= before + (1 << 20));
    // Another one of this name is another partition.
    create(&client, "part", None).unwrap();
    assert_eq!(partition_of(find(&client, ROOT, name("part")).unwrap().ino), 2);
    running.stop().unwrap();
    check(&directory);
}
