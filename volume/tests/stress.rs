//! Many clients change the same few names at the same time: nothing hangs, and afterwards names,
//! link counts and directories agree.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::time::Duration;

use bytes::Bytes;
use fileio::client::ask;
use fileio::protocol::*;
use futures::executor::block_on;
use runtime::ClientHandle;
use runtime::seed::{Rng, with_seed};
use volume::{FormatOptions, RunOptions};

const CLIENTS: u64 = 6;
const STEPS: usize = 400;
/// Far more than the work takes: a thread that is not done by then hangs.
const PATIENCE: Duration = Duration::from_mins(1);

fn handle(found: &Attributes) -> Handle {
    Handle { ino: found.ino, generation: found.generation }
}

fn any_name(rng: &mut Rng) -> Name {
    Name::new(vec![b'a' + rng.below(4) as u8]).unwrap()
}

/// A directory near the root, by names that may lead nowhere.
fn any_directory(client_handle: &ClientHandle, rng: &mut Rng) -> Handle {
    let mut at = ROOT;
    for _ in 0..rng.below(3) {
        let call = Lookup { who: Credentials::root(), directory: at, name: any_name(rng) };
        match block_on(ask(client_handle, call)) {
            Ok(found) if found.kind == (Kind::Directory {}) => at = handle(&found),
            _ => break,
        }
    }
    at
}

/// One change; whether it is possible is up to the others.
fn change(client_handle: &ClientHandle, rng: &mut Rng, call: CallId) -> Result<(), Error> {
    let who = Credentials::root();
    let (directory, name) = (any_directory(client_handle, rng), any_name(rng));
    match rng.below(9) {
        0 | 1 => {
            let (existing, change) = (Existing::Use {}, Change::default());
            let durable = rng.chance(1, 8);
            let create = Create { who, call, directory, name, existing, change, durable };
            let file = handle(&block_on(ask(client_handle, create))?.attributes);
            let (offset, data) = (rng.below(100_000), vec![Bytes::from(vec![7; 5_000])]);
            let who = Credentials::root();
            block_on(ask(client_handle, Write { who, file, offset, data, durable: false }))
                .map(|_| ())
        }
        2 | 3 => {
            let (node, change) = (NewNode::Directory {}, Change::default());
            block_on(ask(
                client_handle,
                MakeNode { who, call, directory, name, node, change, durable: true },
            ))
            .map(|_| ())
        }
        4 => block_on(ask(client_handle, Remove { who, call, directory, name, durable: false })),
        5 => block_on(ask(
            client_handle,
            RemoveDirectory { who, call, directory, name, durable: true },
        )),
        6 => {
            let found = Lookup { who, directory, name };
            let file = handle(&block_on(ask(client_handle, found))?);
            let (directory, name) = (any_directory(client_handle, rng), any_name(rng));
            let link =
                Link { who: Credentials::root(), call, file, directory, name, durable: true };
            block_on(ask(client_handle, link)).map(|_| ())
        }
        _ => {
            let (to_directory, to_name) = (any_directory(client_handle, rng), any_name(rng));
            let (from_directory, from_name) = (directory, name);
            let rename = Rename {
                who,
                call,
                from_directory,
                from_name,
                to_directory,
                to_name,
                replace: true,
                durable: true,
            };
            block_on(ask(client_handle, rename))
        }
    }
}

/// What is expected when others change the same names.
fn is_ordinary(error: Error) -> bool {
    matches!(
        error,
        Error::NotFound {}
            | Error::Exists {}
            | Error::NotDirectory {}
            | Error::IsDirectory {}
            | Error::NotEmpty {}
            | Error::Invalid {}
            | Error::NotPermitted {}
            | Error::Stale {}
    ) || error.is_busy()
}

/// Walks the tree: how often each file is named, and every directory's links.
fn check(client_handle: &ClientHandle, directory: Handle, named: &mut BTreeMap<u64, (u32, u32)>) {
    let who = Credentials::root();
    let call = ReadDirectory { who, directory, after: 0, count_max: ENTRIES_MAX, attributes: true };
    let page = block_on(ask(client_handle, call)).unwrap();
    assert!(page.end);
    let mut directories = 0;
    for entry in page.entries {
        let who = Credentials::root();
        let found = Lookup { who, directory, name: entry.name.clone() };
        let found = block_on(ask(client_handle, found)).unwrap();
        assert_eq!(handle(&found), entry.handle, "{}", entry.name);
        if found.kind == (Kind::Directory {}) {
            directories += 1;
            let who = Credentials::root();
            let above =
                block_on(ask(client_handle, Parent { who, directory: handle(&found) })).unwrap();
            assert_eq!(handle(&above), directory, "the directory above {}", entry.name);
            check(client_handle, handle(&found), named);
        } else {
            let seen = named.entry(found.ino).or_insert((0, found.links));
            seen.0 += 1;
        }
    }
    assert_eq!(page.directory.links, 2 + directories, "links of {directory:?}");
}

#[test]
fn names_and_links_agree_after_a_fight_over_them() {
    with_seed(|rng| {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("volume");
        let options = FormatOptions {
            disk_nodes: 2,
            disks_per_node: 1,
            disk_bytes: 32 << 20,
            fs_nodes: 4,
            ..FormatOptions::default()
        };
        volume::format(&directory, &options).unwrap();
        let run = RunOptions { threads: 2, cache_bytes: 16 << 20, ..RunOptions::default() };
        let running = volume::open(&directory, &run).unwrap();
        let (done, all_done) = mpsc::channel();
        for client in 0..CLIENTS {
            let (client_handle, done) = (running.client_handle(), done.clone());
            let mut rng = Rng::new(rng.bits());
            #[allow(clippy::disallowed_methods, reason = "clients are threads of their own")]
            std::thread::spawn(move || {
                let mut surprise = None;
                for number in 0..STEPS as u64 {
                    let outcome = change(&client_handle, &mut rng, CallId { client, number });
                    surprise = surprise.or(outcome.err().filter(|error| !is_ordinary(*error)));
                }
                done.send(surprise).unwrap();
            });
        }
        for _ in 0..CLIENTS {
            let surprise = all_done.recv_timeout(PATIENCE).expect("a client hangs");
            assert_eq!(surprise, None);
        }
        check_tree(&running.client_handle());
        running.stop().unwrap();
        let running = volume::open(&directory, &run).unwrap();
        check_tree(&running.client_handle());
    });
}

fn check_tree(client_handle: &ClientHandle) {
    let mut named = BTreeMap::new();
    check(client_handle, ROOT, &mut named);
    for (ino, (names, links)) in named {
        assert_eq!(names, links, "inode {ino}");
    }
}
