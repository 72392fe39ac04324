//! Three processes serve one volume; one after the other dies, stands still or comes back. What was
//! acknowledged as durable is there afterwards, and the volume answers again soon.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

mod absence;
mod coordination;
mod disks;
mod joiners;
mod new_disks;
mod rounds;

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use runtime::seed::{Rng, with_seed};
use tests::Content;
use tests::cluster::writers::{Writer, read_at_last};
use tests::cluster::{Cluster, Shape};

const WRITERS: u64 = 4;
/// The volume answers within this time after a fault has ended.
const BACK_WITHIN: Duration = Duration::from_secs(if cfg!(debug_assertions) { 30 } else { 10 });

/// The others go on without a process that has no disks.
fn without_disks(number: usize) -> Shape {
    Shape { without_disks: Some(number), ..Shape::default() }
}

#[test]
fn three_processes_serve_one_volume_and_have_it_again_after_a_stop() {
    serve_and_have_it_again(&[], false);
}

#[test]
fn they_do_so_over_libfabric_and_one_is_killed_and_comes_back() {
    serve_and_have_it_again(&["tcp;ofi_rxm"], true);
}

/// No process is killed: a write to a killed process may wait for ever within libfabric 1.17.
#[test]
fn they_do_so_over_shared_memory() {
    serve_and_have_it_again(&["shm"], false);
}

/// Each of two processes has moved at least this number of bytes over libfabric, and nothing was
/// refused.
fn goes_over_libfabric(cluster: &Cluster, bytes: u64) {
    for member in cluster.numbers() {
        let moved = cluster.count(member, "mdfs_fabric_bytes_total");
        let told = || cluster.counts(member);
        assert!(moved > bytes, "process {member} has moved {moved} bytes: {}", told());
        assert_eq!(cluster.count(member, "mdfs_fabric_refused_total"), 0, "{}", told());
    }
}

fn serve_and_have_it_again(fabric: &'static [&'static str], kills: bool) {
    with_seed(|rng| {
        let shape = Shape { fabric, ..Shape::default() };
        let mut cluster = Cluster::started(shape);
        let mut writers: Vec<Writer> =
            (0..WRITERS).map(|number| Writer::new(number, rng.bits())).collect();
        for (member, writer) in cluster.numbers().cycle().zip(&mut writers) {
            let volume = cluster.open(member).unwrap();
            for _ in 0..8 {
                writer.write(&volume).expect("nothing fails");
            }
        }
        if !fabric.is_empty() {
            goes_over_libfabric(&cluster, 1 << 20);
        }
        for member in cluster.numbers() {
            for writer in &writers {
                writer.check(&cluster, member, BACK_WITHIN);
            }
        }
        let status = cluster.status();
        let nodes = |row: &serde_json::Value| row["nodes"].as_u64().unwrap();
        let spread: Vec<u64> = status["processes"].as_array().unwrap().iter().map(nodes).collect();
        assert_eq!(spread, [4, 4, 4]);
        let rows = status["processes"].as_array().unwrap().iter();
        let numbers = rows.flat_map(|row| row["node_numbers"].as_array().unwrap());
        let numbers: Vec<u64> = numbers.map(|number| number.as_u64().unwrap()).collect();
        assert_eq!(numbers, (0..12).collect::<Vec<u64>>(), "each node has one process: {status}");
        for row in status["processes"].as_array().unwrap() {
            let links = [&["tls"], fabric].concat().join("+");
            assert_eq!(row["links"], links, "{status}");
        }
        if kills {
            cluster.kill(2);
            cluster.start_member(2);
            cluster.wait_until_ready(2);
            let back = rounds::wait_until_back(&mut cluster, "/probe", None);
            eprintln!("back after {back:?}");
            for writer in &mut writers {
                let volume = cluster.open(1).unwrap();
                writer.write(&volume).expect("nothing fails any more");
                writer.check(&cluster, 3, BACK_WITHIN);
            }
            let links = "mdfs_fabric_links{process=\"2\"";
            let begin = Instant::now();
            while cluster.count(1, links) == 0 {
                assert!(begin.elapsed() < BACK_WITHIN, "{}", cluster.counts(1));
                thread::sleep(Duration::from_millis(50));
            }
        }

        scrub(&cluster, rng);

        cluster.stop();
        for member in cluster.numbers() {
            cluster.start_member(member);
        }
        for member in cluster.numbers() {
            cluster.wait_until_ready(member);
            for writer in &writers {
                writer.check(&cluster, member, BACK_WITHIN);
            }
        }
        cluster.stop();
        let told = cluster.check();
        assert!(told.contains("sound"), "{told}");
    });
}

/// Any process is asked, and all nodes of all processes are compared.
fn scrub(cluster: &Cluster, rng: &mut Rng) {
    let mut content = vec![0; 8192];
    rng.fill(&mut content);
    let volume = cluster.open(1).unwrap();
    let file = volume.create("/scrubbed").unwrap();
    file.write_at(0, content.clone()).unwrap();
    file.sync().unwrap();
    let scrub = |member: usize| {
        let directory = cluster.directory(member);
        let output = cluster.run(&["scrub", directory.to_str().unwrap(), "--json"]);
        let report = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), report)
    };
    let (code, report): (_, serde_json::Value) = scrub(3);
    assert_eq!((code, &report["nodes"]), (Some(0), &12.into()), "{report}");

    let disks = cluster.numbers().map(|member| cluster.directory(member).join("disks"));
    let disks = disks.flat_map(|disks| fs::read_dir(disks).into_iter().flatten());
    let mut hits = 0;
    for disk in disks.map(|disk| disk.unwrap().path()) {
        let bytes = fs::read(&disk).unwrap();
        let blocks = bytes.chunks(4096);
        let Some(block) = blocks.map(|block| block == &content[4096..]).position(|is_it| is_it)
        else {
            continue;
        };
        let file = fs::OpenOptions::new().write(true).open(&disk).unwrap();
        file.write_all_at(&[content[4096] ^ 1], block as u64 * 4096).unwrap();
        hits += 1;
    }
    assert_eq!(hits, 1);
    let (code, report) = scrub(2);
    assert_eq!((code, &report["unreadable"][0]), (Some(4), &"/scrubbed".into()), "{report}");
    assert_eq!(report["flaws"].as_array().unwrap().len(), 1, "{report}");
}

/// A file that grows, and is never synced.
struct Growing {
    file: client::blocking::BlockingFile,
    content: Vec<u8>,
}

impl Growing {
    fn grow(&mut self, rng: &mut Rng) {
        let piece = Content { seed: rng.bits(), length: 1 + rng.below(20_000) }.bytes();
        let at = self.content.len() as u64;
        self.file.write_at(at, piece.clone()).expect("a planned move fails no request");
        self.content.extend_from_slice(&piece);
    }

    /// A client whose writes were lost gets an error from its sync.
    fn check(&self) {
        self.file.sync().expect("nor is anything lost");
        let read = self.file.read_bytes_at(0, self.content.len() + 1).unwrap().concat();
        assert!(read == self.content, "a file has other bytes");
    }
}

/// The others go on without it, for it has no disks.
#[test]
fn a_process_stops_and_returns_without_a_lost_write() {
    restart_under_a_writer(without_disks(3), &[3, 3, 3]);
}

/// What its disks were given and not asked to flush is nowhere else: the caches that gave it have
/// moved.
#[test]
fn processes_with_disks_stop_and_return_without_a_lost_write() {
    restart_under_a_writer(Shape::default(), &[2, 3, 2, 3]);
}

fn restart_under_a_writer(shape: Shape, victims: &[usize]) {
    with_seed(|rng| {
        let mut cluster = Cluster::started(shape);
        let volume = cluster.open(1).unwrap();
        let growing = |number| {
            let options = client::OpenOptions::new().read(true).write(true).create(true);
            let file = volume.open(format!("/growing-{number}"), options).unwrap();
            Growing { file, content: Vec::new() }
        };
        let mut files: Vec<Growing> = (0..16).map(growing).collect();
        let over = AtomicBool::new(false);
        let seed = rng.bits();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut rng = Rng::new(seed);
                while !over.load(Relaxed) {
                    let file = rng.index(files.len());
                    files[file].grow(&mut rng);
                    thread::sleep(Duration::from_millis(5));
                }
            });
            for &victim in victims {
                thread::sleep(Duration::from_millis(300));
                cluster.stop_member(victim);
                cluster.start_member(victim);
                cluster.wait_until_ready(victim);
            }
            // Nodes come back, too.
            thread::sleep(Duration::from_secs(1));
            over.store(true, Relaxed);
        });
        assert_eq!(ends_that_all_had_heard_of(&cluster), victims.len());
        files.iter().for_each(Growing::check);
        drop((files, volume));
        cluster.stop();
    });
}

/// A caller of a process that ends gets the error that the reply is lost: it ends when all know
/// that it has no nodes any more. How often that was.
fn ends_that_all_had_heard_of(cluster: &Cluster) -> usize {
    let log = cluster.log();
    let said = |line: &str, what: &str| -> Option<u64> {
        let (_, epoch) = line.split_once(what)?.1.split_once("epoch=")?;
        epoch.trim().parse().ok()
    };
    let mut heard = [0; 4];
    let mut ends = 0;
    for line in &log {
        let process: usize = line[..1].parse().unwrap();
        if let Some(epoch) = said(line, "a node map") {
            heard[process] = epoch;
        }
        if let Some(epoch) = said(line, "others serve its nodes") {
            ends += 1;
            assert!(heard[1..].iter().all(|it| *it >= epoch), "{line}: {heard:?}");
        }
    }
    ends
}

#[test]
fn a_process_that_is_removed_gives_its_nodes_away_and_stays_out_until_it_is_added() {
    const VICTIM: usize = 3;
    let mut cluster = Cluster::started(without_disks(VICTIM));
    let state = |cluster: &Cluster| {
        let status = cluster.status();
        let rows = status["processes"].as_array().unwrap();
        let row = rows.iter().find(|row| row["number"] == VICTIM);
        row.map(|row| (row["state"].as_str().unwrap().to_owned(), row["nodes"].as_u64().unwrap()))
    };
    let command = |cluster: &Cluster, verb: &str, number: usize| {
        let done = cluster.run(&["cluster", verb, "cluster.toml", &number.to_string()]);
        (done.status.success(), String::from_utf8([done.stdout, done.stderr].concat()).unwrap())
    };
    let (done, told) = command(&cluster, "remove", 1);
    assert!(!done && told.contains("its disks n0d0"), "one with disks stays: {told}");
    let (done, told) = command(&cluster, "remove", 9);
    assert!(!done && told.contains("no process 9"), "{told}");

    let volume = cluster.open(1).unwrap();
    let options = client::OpenOptions::new().read(true).write(true).create(true);
    let growing = Growing { file: volume.open("/growing", options).unwrap(), content: Vec::new() };
    let (growing, over) = (Mutex::new(growing), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = Rng::new(1);
            while !over.load(Relaxed) {
                growing.lock().unwrap().grow(&mut rng);
            }
        });
        let (done, told) = command(&cluster, "remove", VICTIM);
        over.store(true, Relaxed);
        assert!(done, "{told}");
    });
    assert_eq!(state(&cluster), Some(("removed".to_owned(), 0)));
    growing.lock().unwrap().check();

    cluster.stop_member(VICTIM);
    let (done, told) = command(&cluster, "serve", VICTIM);
    assert!(!done && told.contains("mdfs cluster add"), "{told}");
    let (done, told) = command(&cluster, "add", VICTIM);
    assert!(done, "{told}");
    cluster.start_member(VICTIM);
    cluster.wait_until_ready(VICTIM);
    let begin = Instant::now();
    while state(&cluster).is_none_or(|(state, nodes)| state != "up" || nodes == 0) {
        assert!(begin.elapsed() < Duration::from_secs(20), "{}", cluster.status());
        thread::sleep(Duration::from_millis(50));
    }
    growing.lock().unwrap().check();
    drop((growing, volume));
    cluster.stop();
}

/// The third process has no disks, so the others go on without it.
#[test]
fn a_process_that_stood_still_answers_nothing_old_to_its_own_clients() {
    const FILES: usize = 48;
    const FROZEN: usize = 3;
    let mut cluster = Cluster::started(without_disks(FROZEN));
    let paths: Vec<String> = (0..FILES).map(|file| format!("/file-{file}")).collect();
    let (near, far) = (cluster.open(FROZEN).unwrap(), cluster.open(1).unwrap());
    let options = || client::OpenOptions::new().read(true).write(true);
    for path in &paths {
        let file = near.create(path).unwrap();
        file.write_at(0, &b"old"[..]).unwrap();
        file.sync().unwrap();
    }
    near.sync_directory("/").unwrap();
    let files: Vec<_> = paths.iter().map(|path| near.open(path, options()).unwrap()).collect();
    for file in &files {
        assert_eq!(file.read_bytes_at(0, 9).unwrap().concat(), b"old");
    }

    cluster.freeze(FROZEN);
    let begin = Instant::now();
    for path in &paths {
        let change = || {
            let file = far.open(path, options())?;
            file.write_at(0, &b"newer"[..])?;
            file.sync()
        };
        while change().is_err() {
            assert!(begin.elapsed() < BACK_WITHIN, "no process takes over");
            thread::sleep(Duration::from_millis(20));
        }
    }
    eprintln!("taken over and changed after {:?}", begin.elapsed());
    let [mut new, mut none] = [0, 0];
    thread::scope(|scope| {
        // They wait in the socket of the frozen process for it to go on.
        let sizes: Vec<_> = files
            .iter()
            .map(|file| scope.spawn(|| file.metadata().map(|told| told.size == 5)))
            .collect();
        let contents: Vec<_> = files
            .iter()
            .map(|file| {
                scope.spawn(|| file.read_bytes_at(0, 9).map(|bytes| bytes.concat() == b"newer"))
            })
            .collect();
        thread::sleep(Duration::from_millis(200));
        cluster.thaw(FROZEN);
        for (path, answer) in paths.iter().cycle().zip(sizes.into_iter().chain(contents)) {
            match answer.join().unwrap() {
                Ok(is_new) => {
                    assert!(is_new, "{path}: an old answer");
                    new += 1;
                }
                Err(_) => none += 1,
            }
        }
    });
    eprintln!("{new} new answers, {none} without an answer");
    assert_eq!(cluster.restart_ended(), 0, "it comes back by itself");
    for path in &paths {
        assert_eq!(read_at_last(&cluster, FROZEN, path, 5, BACK_WITHIN), b"newer");
    }
    cluster.stop();
}
