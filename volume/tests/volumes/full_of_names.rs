//! A volume that is full of small files: whatever it has accepted can be made durable, it stops and
//! opens in a moment, and all of its space comes back.
#![allow(clippy::disallowed_methods, reason = "it waits for a volume on real disks")]

use std::ops::RangeFrom;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fileio::client::ask;
use fileio::protocol::*;
use futures::executor::block_on;
use futures::future::join_all;
use meta::store::GroupLayout;
use runtime::ClientHandle;
use volume::{FormatOptions, RunningVolume};

use crate::running::{check, run, wait_until};

const DIRECTORIES: u64 = 64;
const FILE_BYTES: usize = 4096;
/// What a full volume may take to become durable, to stop, or to open.
const STEP_MAX: Duration = Duration::from_secs(20);
/// Times that a full volume may turn out to have space again.
const REFILLS_MAX: usize = 8;
/// Within this time all is back.
const BACK_MAX: Duration = Duration::from_secs(30);

fn name(text: String) -> Name {
    Name::new(text.into_bytes()).unwrap()
}

fn available(client: &ClientHandle) -> u64 {
    block_on(ask(client, GetSpace { partition: 0 })).unwrap().available_bytes
}

async fn create(
    client: &ClientHandle,
    (directory, name): (Handle, Name),
    number: u64,
) -> Result<Handle, Error> {
    let call = Create {
        who: Credentials::root(),
        call: CallId { client: 1, number },
        directory,
        name,
        existing: Existing::Refuse {},
        change: Change::default(),
        durable: false,
    };
    Ok(handle_of(&ask(client, call).await?.attributes))
}

async fn write(client: &ClientHandle, file: Handle) -> Result<(), Error> {
    let data = vec![Bytes::from(vec![7; FILE_BYTES])];
    let call = Write { who: Credentials::root(), file, offset: 0, data, durable: false };
    ask(client, call).await.map(drop)
}

fn make_directories(client: &ClientHandle) -> Vec<Handle> {
    let make = |number| {
        let call = MakeNode {
            who: Credentials::root(),
            call: CallId { client: 1, number },
            directory: ROOT,
            name: name(format!("d{number}")),
            node: NewNode::Directory {},
            change: Change::default(),
            durable: false,
        };
        handle_of(&block_on(ask(client, call)).unwrap())
    };
    (0..DIRECTORIES).map(make).collect()
}

/// What was asked of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Whole,
    OnlyCreated,
    Refused,
}

/// What came of a file, and the bytes that were called available at the moment it was refused:
/// what other files wait for meanwhile, a checkpoint or groups of the other node, comes later.
async fn put(client: &ClientHandle, at: (Handle, Name), number: u64) -> (Outcome, Option<u64>) {
    let made = match create(client, at, number).await {
        Ok(file) => write(client, file).await.map_err(|error| (error, Outcome::OnlyCreated)),
        Err(error) => Err((error, Outcome::Refused)),
    };
    match made {
        Ok(()) => (Outcome::Whole, None),
        Err((Error::NoSpace {}, outcome)) => {
            let space = ask(client, GetSpace { partition: 0 }).await.unwrap();
            (outcome, Some(space.available_bytes))
        }
        Err((error, _)) => panic!("{error}"),
    }
}

/// Makes small files, one in each directory at a time, until all are refused; those that were made,
/// and the bytes that were called available when the first ones were refused, at the least: a
/// checkpoint may have freed some before others were. `rounds` numbers the files.
fn fill(
    client: &ClientHandle,
    directories: &[Handle],
    rounds: &mut RangeFrom<u64>,
) -> (Vec<(Handle, Name)>, u64) {
    let (mut files, mut left) = (Vec::new(), None);
    for round in rounds {
        let all = directories.iter().zip(0..).map(|(&directory, at)| {
            let file = name(format!("f{round}"));
            let number = round * DIRECTORIES + at;
            async move {
                let (outcome, space) = put(client, (directory, file.clone()), number).await;
                ((directory, file), outcome, space)
            }
        });
        let all = block_on(join_all(all));
        let refused = all.iter().filter(|(_, outcome, _)| *outcome == Outcome::Refused).count();
        left = left.or(all.iter().filter_map(|(_, _, space)| *space).min());
        let made = all.into_iter().filter(|(_, outcome, _)| *outcome != Outcome::Refused);
        files.extend(made.map(|(file, _, _)| file));
        if refused == directories.len() {
            break;
        }
    }
    println!("{} files; {left:?} bytes were available at the first refusal", files.len());
    (files, left.unwrap())
}

fn remove(client: &ClientHandle, files: &[(Handle, Name)]) {
    for (chunk, first) in files.chunks(64).zip((0..).step_by(64)) {
        let all = chunk.iter().zip(first..).map(|((directory, name), number)| {
            let call = Remove {
                who: Credentials::root(),
                call: CallId { client: 2, number },
                directory: *directory,
                name: name.clone(),
                durable: false,
            };
            ask(client, call)
        });
        let removed: Result<Vec<()>, Error> = block_on(join_all(all)).into_iter().collect();
        removed.unwrap();
    }
}

/// Does it and tells how long it takes; not too long.
fn timed<T>(what: &str, step: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let done = step();
    println!("{what}: {:?}", begun.elapsed());
    assert!(begun.elapsed() < STEP_MAX, "{what} took {:?}", begun.elapsed());
    done
}

/// All but half a percent of what was available is so again.
fn wait_back(client: &ClientHandle, wanted: u64) {
    let begun = Instant::now();
    wait_until("all is back", || available(client) >= wanted / 1000 * 995);
    println!("back after {:?}: {} of {wanted}", begun.elapsed(), available(client));
    assert!(begun.elapsed() < BACK_MAX, "{:?}", begun.elapsed());
}

fn reopen(running: RunningVolume, directory: &Path) -> RunningVolume {
    timed("stop", || running.stop().unwrap());
    timed("open", || run(directory))
}

fn fill_and_empty(mib: u64) {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("volume");
    let options = FormatOptions { disk_bytes: mib << 20, fs_nodes: 2, ..FormatOptions::default() };
    let map = volume::format(&directory, &options).unwrap();
    // A group that has just come to the other node stays there for a moment.
    let group_stripes = GroupLayout::of(&map).stripes_of(0).count() as u64;
    let group_bytes = group_stripes * u64::from(map.geometry().stripe_size);
    let running = run(&directory);
    let client = running.client_handle();
    let empty = available(&client);
    let directories = make_directories(&client);
    let mut rounds = 1..;
    let (mut files, left) = fill(&client, &directories, &mut rounds);
    let left_max = empty / 100 + group_bytes;
    // Groups and checkpoints come while others are refused.
    assert!(left <= empty / 20, "refused with {left} of {empty} available");
    // What comes after the last refusal can be written.
    for _ in 0..REFILLS_MAX {
        let left = available(&client);
        if left <= left_max {
            break;
        }
        let (more, _) = fill(&client, &directories, &mut rounds);
        assert!(!more.is_empty(), "all are refused with {left} of {empty} available");
        files.extend(more);
    }
    let left = available(&client);
    assert!(left <= left_max, "{left} of {empty} are available after {REFILLS_MAX} more rounds");
    timed("flush", || running.flush().unwrap());
    drop(client);

    let running = reopen(running, &directory);
    let client = running.client_handle();
    remove(&client, &files);
    wait_back(&client, empty);
    drop(client);
    running.stop().unwrap();
    check(&directory);
}

#[test]
fn a_volume_full_of_small_files_stops_opens_and_is_emptied() {
    fill_and_empty(64);
}

#[test]
#[ignore = "minutes"]
fn a_larger_volume_full_of_small_files_stops_opens_and_is_emptied() {
    fill_and_empty(256);
}
