//! Lists of regions arrive whole: the same bytes as one call for each region, in fewer requests.
//! Appends of many do not overlap. Method: a server between client and model that counts requests
//! and loses answers.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use client::blocking::{BlockingFile, Volume};
use client::{Credentials, OpenOptions, Regions};
use fileio::model::{Model, machine};
use fileio::protocol::{FileIo, Reply, Request};
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use runtime::seed::{Rng, with_seed};
use runtime::{Caller, Server, Undelivered};

#[derive(Default)]
struct Seen {
    lists: AtomicU64,
    others: AtomicU64,
    appends: AtomicU64,
    /// One reply of this number of appends is lost, if any.
    loses_one_in: AtomicU64,
}

struct Watcher {
    model: Rc<Model>,
    seen: &'static Seen,
}

impl Server<FileIo> for Watcher {
    fn handle(self: Rc<Self>, _: Caller, request: Request) -> LocalBoxFuture<'static, Reply> {
        let reply = self.model.answer(&request);
        let seen = self.seen;
        let counter = match request {
            Request::ReadList(_) | Request::WriteList(_) => &seen.lists,
            Request::Append(_) => &seen.appends,
            _ => &seen.others,
        };
        let number = counter.fetch_add(1, SeqCst) + 1;
        let one_in = seen.loses_one_in.load(SeqCst);
        let is_append = matches!(reply, Reply::Append(_));
        let is_lost = is_append && one_in > 0 && number.is_multiple_of(one_in);
        let reply = if is_lost { Undelivered::Lost.into() } else { reply };
        async move { reply }.boxed_local()
    }
}

fn watched() -> (Volume, BlockingFile, &'static Seen) {
    let seen: &'static Seen = Box::leak(Box::default());
    let watch = move |model| Rc::new(Watcher { model, seen });
    let machine = machine::start_with(watch).unwrap();
    let volume = Volume::holding(machine.client_handle(), Credentials::root(), machine);
    let options = OpenOptions::new().read(true).write(true).create(true);
    let file = volume.open("/file", options).unwrap();
    (volume, file, seen)
}

fn any_bytes(length: u64, rng: &mut Rng) -> Vec<u8> {
    let mut bytes = vec![0; length as usize];
    rng.fill(&mut bytes);
    bytes
}

/// A list without overlap, in any order.
fn any_regions(rng: &mut Rng) -> Regions {
    let cells: Vec<u64> = (0..rng.below(60)).collect();
    let mut shuffled = cells.clone();
    if rng.chance(1, 2) {
        for i in (1..shuffled.len()).rev() {
            shuffled.swap(i, rng.index(i + 1));
        }
    }
    let cell = rng.below(3_000) + 1;
    let range = |&number: &u64| (number * cell, rng.below(cell + 1));
    Regions::indexed(shuffled.iter().map(range)).unwrap()
}

#[test]
fn a_list_is_read_and_written_as_region_by_region() {
    let (_volume, file, _) = watched();
    with_seed(|rng| {
        file.set_len(rng.below(150_000)).unwrap();
        for _ in 0..50 {
            let regions = any_regions(rng);
            let data = any_bytes(regions.bytes(), rng);
            let before = file.read_bytes_at(0, 200_000).unwrap().concat();
            file.write_list(&regions, data.clone()).unwrap();
            let mut expected = before;
            for region in regions.walk(0..u64::MAX) {
                let (from, to) = (region.offset as usize, (region.offset + region.length) as usize);
                expected.resize(expected.len().max(to), 0);
                let source = region.position as usize..(region.position + region.length) as usize;
                expected[from..to].copy_from_slice(&data[source]);
            }
            assert_eq!(file.read_bytes_at(0, 200_000).unwrap().concat(), expected);

            let asked = any_regions(rng);
            let mut out = vec![0xAA; asked.bytes() as usize];
            let count = file.read_list(&asked, &mut out).unwrap();
            let mut end = 0;
            for region in asked.walk(0..u64::MAX) {
                for i in 0..region.length {
                    let place = (region.position + i) as usize;
                    match expected.get((region.offset + i) as usize) {
                        Some(&byte) => {
                            assert_eq!(out[place], byte);
                            end = place + 1;
                        }
                        None => assert_eq!(out[place], if place < count { 0 } else { 0xAA }),
                    }
                }
            }
            assert_eq!(count, end);
        }
    });
}

#[test]
fn thousands_of_regions_of_file_and_memory_go_in_one_request() {
    let (_volume, file, seen) = watched();
    with_seed(|rng| {
        file.set_len(0).unwrap();
        // A quarter of a matrix, from a matrix in memory with a border.
        let in_file = Regions::subarray(0, 8, &[400, 400], &[200, 200], &[200, 0]).unwrap();
        let in_memory = Regions::subarray(0, 8, &[202, 202], &[200, 200], &[1, 1]).unwrap();
        let data = any_bytes(202 * 202 * 8, rng);
        let (lists, others) = (seen.lists.load(SeqCst), seen.others.load(SeqCst));
        file.write_list_from(&in_file, &in_memory, &data).unwrap();
        let mut out = vec![0; data.len()];
        assert_eq!(file.read_list_into(&in_file, &in_memory, &mut out).unwrap(), 320_000);
        assert_eq!(seen.lists.load(SeqCst) - lists, 2);
        assert_eq!(seen.others.load(SeqCst), others);
        for row in 0..202 {
            for column in 0..202 {
                let inside = (1..201).contains(&row) && (1..201).contains(&column);
                let at = (row * 202 + column) * 8;
                let expected = if inside { &data[at..at + 8] } else { &[0; 8] };
                assert_eq!(&out[at..at + 8], expected, "{row} {column}");
            }
        }
        assert_eq!(file.metadata().unwrap().size, 399 * 400 * 8 + 200 * 8);
    });
}

#[test]
fn a_long_list_goes_in_windows_and_what_lies_together_without_a_list() {
    let (_volume, file, seen) = watched();
    let stripes = Regions::strided(0, 1 << 20, 10, 3 << 20).unwrap();
    let data = vec![7; 10 << 20];
    let lists = seen.lists.load(SeqCst);
    file.write_list(&stripes, data.clone()).unwrap();
    assert_eq!(seen.lists.load(SeqCst) - lists, 3);
    let whole = Regions::contiguous(5, 9 << 20).unwrap();
    file.write_list(&whole, vec![1; 9 << 20]).unwrap();
    assert_eq!(seen.lists.load(SeqCst) - lists, 3);
    let mut out = vec![0; 10 << 20];
    assert_eq!(file.read_list(&stripes, &mut out).unwrap(), 10 << 20);
    assert_eq!(out[4], 7);
    assert!(out[5..(3 << 20) + 5].iter().all(|&byte| byte == 1) && out[(3 << 20) + 5] == 7);
}

#[test]
fn a_list_for_which_memory_has_no_room_is_refused() {
    let (_volume, file, _) = watched();
    let regions = Regions::strided(0, 4, 10, 8).unwrap();
    assert!(file.write_list(&regions, vec![0; 39]).is_err());
    assert!(file.read_list(&regions, &mut [0; 39]).is_err());
    let outside = Regions::strided(4, 4, 10, 4).unwrap();
    assert!(file.read_list_into(&regions, &outside, &mut [0; 43]).is_err());
    assert!(file.read_list_into(&regions, &outside, &mut [0; 44]).is_ok());
    let nothing = Regions::default();
    assert_eq!(file.read_list(&nothing, &mut []).unwrap(), 0);
    file.write_list(&nothing, Vec::new()).unwrap();
}

/// Threads that append, and what each appends.
const WRITERS: u8 = 8;
const RECORDS: usize = 100;

#[test]
#[allow(clippy::disallowed_methods, reason = "several programs at once")]
fn appends_of_many_are_whole_and_done_once_though_answers_are_lost() {
    let (volume, _file, seen) = watched();
    seen.loses_one_in.store(7, SeqCst);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let volume = volume.clone();
            scope.spawn(move || {
                let file = volume.open("/file", OpenOptions::new().append(true)).unwrap();
                for number in 0..RECORDS {
                    let length = 100 + (number * 37) % 5000;
                    let mut record = vec![writer; length];
                    record[0..8].copy_from_slice(&(length as u64).to_le_bytes());
                    record[8..16].copy_from_slice(&(number as u64).to_le_bytes());
                    file.append(record).unwrap();
                }
            });
        }
    });
    let size = volume.metadata("/file").unwrap().size as usize;
    let file = volume.open("/file", OpenOptions::new().read(true)).unwrap();
    let all = file.read_bytes_at(0, size).unwrap().concat();
    let mut next = [0; WRITERS as usize];
    let mut at = 0;
    while at < all.len() {
        let length = u64::from_le_bytes(all[at..at + 8].try_into().unwrap()) as usize;
        let number = u64::from_le_bytes(all[at + 8..at + 16].try_into().unwrap()) as usize;
        let record = &all[at..at + length];
        let writer = record[16] as usize;
        assert!(record[16..].iter().all(|&byte| byte as usize == writer));
        assert_eq!(number, next[writer], "each once, in order");
        next[writer] += 1;
        at += length;
    }
    assert_eq!(next, [RECORDS; WRITERS as usize]);
}
