//! Several clients of several kinds at once.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

use client::OpenOptions;
use client::blocking::{BlockingFile, Volume};
use runtime::seed::with_seed;
use tests::raw_nfs::RawNfs;
use tests::{Content, Served, Site, libnfs};

const WRITERS: u64 = 8;
/// Not a multiple of anything that the layers like.
const CHECKPOINT_BYTES: u64 = (4 << 20) + 4321;
/// As much as a program hands over at a time, in turn.
const WRITE_SIZES: [usize; 4] = [2048, 100_000, 17, 65_536];

#[test]
fn checkpoints_of_eight_writers_are_read_back_after_a_restart() {
    with_seed(|rng| {
        let site = Site::formatted(512, 64);
        let contents: Vec<Content> =
            (0..WRITERS).map(|_| Content { seed: rng.bits(), length: CHECKPOINT_BYTES }).collect();
        let served = site.serve();
        thread::scope(|scope| {
            for (rank, content) in contents.iter().enumerate() {
                let volume = site.open();
                scope.spawn(move || write_checkpoint(&volume, rank, *content));
            }
        });
        served.stop();

        let served = site.serve();
        let volume = site.open();
        for (rank, content) in contents.iter().enumerate() {
            let stream = volume.stream(checkpoint(rank), "r".parse().unwrap()).unwrap();
            content.compare(stream);
            content.compare(&libnfs::cat(&served, &checkpoint(rank))[..]);
        }
        served.stop();
    });
}

fn checkpoint(rank: usize) -> String {
    format!("/checkpoint.{rank}")
}

fn write_checkpoint(volume: &Volume, rank: usize, content: Content) {
    let mut stream = volume.stream(checkpoint(rank), "w".parse().unwrap()).unwrap();
    let bytes = content.bytes();
    let mut rest = &bytes[..];
    for size in WRITE_SIZES.into_iter().cycle() {
        let (now, later) = rest.split_at(size.min(rest.len()));
        stream.write(now).unwrap();
        rest = later;
        if rest.is_empty() {
            break;
        }
    }
    stream.sync().unwrap();
    stream.close().unwrap();
}

/// Of a record in the file that is read while it is written.
const RECORD_BYTES: usize = 10_000;
const RECORDS: u64 = 60;

fn record(index: u64) -> Vec<u8> {
    Content { seed: index, length: RECORD_BYTES as u64 }.bytes()
}

#[test]
fn what_a_program_has_committed_is_what_nfs_clients_read() {
    let site = Site::formatted(256, 16);
    let served = site.serve();
    let volume = site.open();
    let file = volume.create("/growing").unwrap();
    let writing = AtomicBool::new(true);
    thread::scope(|scope| {
        scope.spawn(|| read_while(&served, &writing));
        let _end = End(&writing);
        write_and_check(&served, &file);
    });
    served.stop();
}

/// Ends the reader, also if the writer fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(false, SeqCst);
    }
}

/// Each record is seen by another client once it is committed, whole.
fn write_and_check(served: &Served, file: &BlockingFile) {
    let mut nfs = RawNfs::connect(served);
    let root = nfs.root();
    let handle = nfs.lookup(&root, b"growing").unwrap();
    for index in 0..RECORDS {
        let offset = index * RECORD_BYTES as u64;
        file.write_at(offset, record(index)).unwrap();
        file.sync().unwrap();
        let found = nfs.read_file(&handle, offset, RECORD_BYTES as u32).unwrap();
        assert!(found == record(index), "record {index} is another one");
    }
    let whole: Vec<u8> = (0..RECORDS).flat_map(record).collect();
    assert!(libnfs::cat(served, "/growing") == whole);
}

/// A reader beside: it may see less than was committed last, but never another byte.
fn read_while(served: &Served, writing: &AtomicBool) {
    let mut nfs = RawNfs::connect(served);
    let root = nfs.root();
    let handle = nfs.lookup(&root, b"growing").unwrap();
    while writing.load(SeqCst) {
        for index in 0..RECORDS {
            let offset = index * RECORD_BYTES as u64;
            let found = nfs.read_file(&handle, offset, RECORD_BYTES as u32).unwrap();
            assert!(record(index).starts_with(&found), "record {index} has another byte");
            if found.is_empty() {
                break;
            }
        }
    }
}

const ENTRIES: usize = 5000;

#[test]
fn a_directory_of_five_thousand_entries_lists_each_exactly_once_over_nfs() {
    let site = Site::formatted(512, 16);
    let served = site.serve();
    make_entries(&site);
    let mut expected: Vec<String> = (0..ENTRIES).map(entry).collect();
    expected.sort_unstable();

    assert_eq!(libnfs::list(&served, "/crowd"), expected);
    let mut nfs = RawNfs::connect(&served);
    let root = nfs.root();
    let crowd = nfs.lookup(&root, b"crowd").unwrap();
    for count in [1024, 8192, 65_536] {
        let names =
            nfs.names(&crowd, count).into_iter().map(|name| String::from_utf8(name).unwrap());
        let mut names: Vec<String> = names.filter(|name| name != "." && name != "..").collect();
        names.sort_unstable();
        assert!(names == expected, "{} names in replies of {count} bytes", names.len());
    }
    served.stop();
}

fn entry(index: usize) -> String {
    format!("entry-{index}")
}

fn make_entries(site: &Site) {
    const MAKERS: usize = 4;
    let volume = site.open();
    volume.mkdir("/crowd").unwrap();
    let options = OpenOptions::new().write(true).create_new(true);
    thread::scope(|scope| {
        for maker in 0..MAKERS {
            let volume = site.open();
            scope.spawn(move || {
                for index in (maker..ENTRIES).step_by(MAKERS) {
                    volume.open(format!("/crowd/{}", entry(index)), options).unwrap();
                }
            });
        }
    });
}
