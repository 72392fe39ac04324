//! Three processes serve one volume; one after the other dies, stands still or comes back. What was
//! acknowledged as durable is there afterwards, and the volume answers again soon.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use client::blocking::Volume;
use runtime::seed::{Rng, with_seed};
use tests::cluster::Cluster;
use tests::{Content, long};

const MEMBERS: usize = 3;
const NODES: u32 = 12;
const WRITERS: u64 = 4;
/// After a fault has ended the volume answers within so long.
const BACK_WITHIN: Duration = Duration::from_secs(if cfg!(debug_assertions) { 30 } else { 10 });
/// Longer than a lease.
const LONG_MS: u64 = 5_000;

/// A client that writes files, by any process that answers it.
struct Writer {
    number: u64,
    rng: Rng,
    count: u64,
    /// Files that are durable.
    done: Vec<(String, Content)>,
}

impl Writer {
    fn new(number: u64, seed: u64) -> Self {
        Self { number, rng: Rng::new(seed), count: 0, done: Vec::new() }
    }

    /// Writes by way of the processes in these directories, until it is over.
    fn work(&mut self, places: &[PathBuf], over: &AtomicBool) {
        while !over.load(Relaxed) {
            let place = &places[self.rng.index(places.len())];
            let Ok(volume) = client::volume::open(place) else {
                thread::sleep(Duration::from_millis(50));
                continue;
            };
            while !over.load(Relaxed) && self.write(&volume).is_some() {}
        }
    }

    /// Writes a file; nothing if that is not sure.
    fn write(&mut self, volume: &Volume) -> Option<()> {
        self.count += 1;
        let path = format!("/writer-{}-{}", self.number, self.count);
        let content = Content { seed: self.rng.bits(), length: 1 + self.rng.below(1 << 20) };
        let file = volume.create(&path).ok()?;
        file.write_at(0, content.bytes()).ok()?;
        file.sync().ok()?;
        volume.sync_directory("/").ok()?;
        self.done.push((path, content));
        Some(())
    }

    /// All that is durable is there.
    fn check(&self, cluster: &Cluster, member: usize) {
        for (path, content) in &self.done {
            let bytes = read_at_last(cluster, member, path, content.length);
            assert!(bytes == content.bytes(), "{path} has other bytes");
        }
    }
}

/// Reads, again and again while nodes are on their way from one process to another.
fn read_at_last(cluster: &Cluster, member: usize, path: &str, length: u64) -> Vec<u8> {
    let begin = Instant::now();
    loop {
        match read(cluster, member, path, length) {
            Ok(bytes) => return bytes,
            Err(error) => assert!(begin.elapsed() < BACK_WITHIN, "{path}: {error}"),
        }
        thread::sleep(Duration::from_millis(50));
    }
}

fn read(cluster: &Cluster, member: usize, path: &str, length: u64) -> Result<Vec<u8>, String> {
    let volume = cluster.open(member).ok_or("no process answers")?;
    let told = |error: client::Error| error.to_string();
    let file = volume.open(path, client::OpenOptions::new().read(true)).map_err(told)?;
    let bytes = file.read_bytes_at(0, length as usize + 1).map_err(told)?;
    Ok(bytes.concat())
}

/// One process suffers.
fn strike(cluster: &mut Cluster, rng: &mut Rng) {
    let victim = 1 + rng.index(MEMBERS);
    let for_ms = if rng.chance(1, 2) { rng.below(1_000) } else { LONG_MS };
    let pause = Duration::from_millis(for_ms);
    if rng.chance(1, 2) {
        eprintln!("process {victim} is killed, and away for {for_ms} ms");
        cluster.kill(victim);
        thread::sleep(pause);
        cluster.start_member(victim);
    } else {
        eprintln!("process {victim} stands still for {for_ms} ms");
        cluster.freeze(victim);
        thread::sleep(pause);
        cluster.thaw(victim);
    }
}

/// Waits until a file can be written by way of each process.
fn wait_until_back(cluster: &mut Cluster, probes: &mut u64) -> Duration {
    let begin = Instant::now();
    for member in cluster.numbers() {
        loop {
            cluster.restart_fenced();
            *probes += 1;
            let path = format!("/probe-{probes}");
            let answers = cluster.open(member).is_some_and(|volume| {
                volume.create(&path).and_then(|file| file.write_at(0, &b"x"[..])).is_ok()
            });
            if answers {
                break;
            }
            let logs = || cluster.logs();
            assert!(begin.elapsed() < BACK_WITHIN, "process {member} is not back: {}", logs());
            thread::sleep(Duration::from_millis(50));
        }
    }
    begin.elapsed()
}

/// Starts processes, and waits until the volume answers by way of each.
fn started() -> Cluster {
    started_over(&[])
}

/// The same, with links over these providers of libfabric.
fn started_over(providers: &[&str]) -> Cluster {
    let mut cluster = Cluster::start_over(MEMBERS, NODES, None, providers);
    for member in cluster.numbers() {
        cluster.wait_until_ready(member);
    }
    cluster
}

#[test]
fn three_processes_serve_one_volume_and_have_it_again_after_a_stop() {
    serve_and_have_it_again(&[], false);
}

#[test]
fn they_do_so_over_libfabric_and_one_is_killed_and_comes_back() {
    serve_and_have_it_again(&["tcp;ofi_rxm"], true);
}

/// Nobody is killed: whoever writes to a process that is killed may wait for ever within libfabric 1.17.
#[test]
fn they_do_so_over_shared_memory() {
    serve_and_have_it_again(&["shm"], false);
}

/// Each of two processes has moved so many bytes over libfabric, and nothing was refused.
fn goes_over_libfabric(cluster: &Cluster, bytes: u64) {
    for member in cluster.numbers() {
        let moved = cluster.count(member, "mdfs_fabric_bytes_total");
        let told = || cluster.counts(member) + &cluster.logs();
        assert!(moved > bytes, "process {member} has moved {moved} bytes: {}", told());
        assert_eq!(cluster.count(member, "mdfs_fabric_refused_total"), 0, "{}", told());
    }
}

fn serve_and_have_it_again(providers: &[&str], kills: bool) {
    with_seed(|rng| {
        let mut cluster = started_over(providers);
        let mut writers: Vec<Writer> =
            (0..WRITERS).map(|number| Writer::new(number, rng.bits())).collect();
        for (member, writer) in cluster.numbers().cycle().zip(&mut writers) {
            let volume = cluster.open(member).unwrap();
            for _ in 0..8 {
                writer.write(&volume).expect("nothing fails");
            }
        }
        if !providers.is_empty() {
            goes_over_libfabric(&cluster, 1 << 20);
        }
        for member in cluster.numbers() {
            for writer in &writers {
                writer.check(&cluster, member);
            }
        }
        let status = cluster.status();
        let nodes = |row: &serde_json::Value| row["nodes"].as_u64().unwrap();
        let spread: Vec<u64> = status["processes"].as_array().unwrap().iter().map(nodes).collect();
        assert_eq!(spread, [4, 4, 4]);
        for row in status["processes"].as_array().unwrap() {
            let links = [&["tls"], providers].concat().join("+");
            assert_eq!(row["links"], links, "{status}");
        }
        if kills {
            cluster.kill(2);
            cluster.start_member(2);
            cluster.wait_until_ready(2);
            let mut probes = 0;
            let back = wait_until_back(&mut cluster, &mut probes);
            eprintln!("back after {back:?}");
            for writer in &mut writers {
                let volume = cluster.open(1).unwrap();
                writer.write(&volume).expect("nothing fails any more");
                writer.check(&cluster, 3);
            }
            let links = "mdfs_fabric_links{process=\"2\"";
            let begin = Instant::now();
            while cluster.count(1, links) == 0 {
                assert!(begin.elapsed() < BACK_WITHIN, "{}", cluster.counts(1));
                thread::sleep(Duration::from_millis(50));
            }
        }

        cluster.stop();
        for member in cluster.numbers() {
            cluster.start_member(member);
        }
        for member in cluster.numbers() {
            cluster.wait_until_ready(member);
            for writer in &writers {
                writer.check(&cluster, member);
            }
        }
        cluster.stop();
        let told = cluster.check();
        assert!(told.contains("sound"), "{told}");
    });
}

/// A file that grows, and is never synced.
struct Growing {
    file: client::blocking::File,
    content: Vec<u8>,
}

impl Growing {
    fn grow(&mut self, rng: &mut Rng) {
        let piece = Content { seed: rng.bits(), length: 1 + rng.below(20_000) }.bytes();
        let at = self.content.len() as u64;
        self.file.write_at(at, piece.clone()).expect("a planned move fails no request");
        self.content.extend_from_slice(&piece);
    }

    /// Whoever has lost something is told at the sync.
    fn check(&self) {
        self.file.sync().expect("nor is anything lost");
        let read = self.file.read_bytes_at(0, self.content.len() + 1).unwrap().concat();
        assert!(read == self.content, "a file has other bytes");
    }
}

#[test]
fn a_process_that_ends_in_order_and_comes_back_costs_nobody_a_write() {
    const VICTIM: usize = 3;
    with_seed(|rng| {
        // The others go on without it: it has no disks.
        let mut cluster = Cluster::start_with(MEMBERS, NODES, Some(VICTIM as u32));
        for member in cluster.numbers() {
            cluster.wait_until_ready(member);
        }
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
            for _ in 0..3 {
                thread::sleep(Duration::from_millis(300));
                cluster.stop_member(VICTIM);
                cluster.start_member(VICTIM);
                cluster.wait_until_ready(VICTIM);
            }
            // Nodes come back to it, too.
            thread::sleep(Duration::from_secs(1));
            over.store(true, Relaxed);
        });
        files.iter().for_each(Growing::check);
        drop((files, volume));
        cluster.stop();
    });
}

#[test]
fn a_process_that_is_removed_gives_its_nodes_away_and_stays_out_until_it_is_added() {
    const VICTIM: usize = 3;
    let mut cluster = Cluster::start_with(MEMBERS, NODES, Some(VICTIM as u32));
    for member in cluster.numbers() {
        cluster.wait_until_ready(member);
    }
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
    assert!(!done && told.contains("disk node 0"), "one with disks stays: {told}");
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
    while state(&cluster).is_none_or(|(state, nodes)| state != "there" || nodes == 0) {
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
    let mut cluster = Cluster::start_with(MEMBERS, NODES, Some(FROZEN as u32));
    for member in cluster.numbers() {
        cluster.wait_until_ready(member);
    }
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
            assert!(begin.elapsed() < BACK_WITHIN, "nobody takes over: {}", cluster.logs());
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
    while cluster.restart_fenced() == 0 {
        thread::sleep(Duration::from_millis(20));
    }
    cluster.wait_until_ready(FROZEN);
    for path in &paths {
        assert_eq!(read_at_last(&cluster, FROZEN, path, 5), b"newer");
    }
    cluster.stop();
}

/// By hand, until it has been seen to pass over some hundreds of rounds; with TLS it was over 90.
#[test]
#[ignore = "half a minute, and young: cargo test -p tests --test cluster -- --ignored"]
fn what_was_acknowledged_survives_processes_that_die_and_stand_still() {
    let rounds = if long() { 30 } else { 5 };
    with_seed(|rng| {
        let mut cluster = started();
        let mut writers: Vec<Writer> =
            (0..WRITERS).map(|number| Writer::new(number, rng.bits())).collect();
        let places: Vec<PathBuf> =
            cluster.numbers().map(|member| cluster.directory(member)).collect();
        let mut probes = 0;
        for round in 0..rounds {
            let over = AtomicBool::new(false);
            thread::scope(|scope| {
                for writer in &mut writers {
                    let (places, over) = (&places, &over);
                    scope.spawn(move || writer.work(places, over));
                }
                thread::sleep(Duration::from_millis(200 + rng.below(500)));
                strike(&mut cluster, rng);
                let back = wait_until_back(&mut cluster, &mut probes);
                eprintln!("round {round}: back after {back:?}");
                over.store(true, Relaxed);
            });
            let member = 1 + rng.index(MEMBERS);
            for writer in &writers {
                writer.check(&cluster, member);
            }
        }
        let done: usize = writers.iter().map(|writer| writer.done.len()).sum();
        assert!(done >= rounds, "hardly anything was written: {done} files");
        cluster.stop();
        let told = cluster.check();
        assert!(told.contains("sound"), "{told}");
    });
}
