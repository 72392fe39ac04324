//! A site's load on one NFS gateway: thousands of connections from hundreds of hosts, clients of
//! version 4.1, open files of one client, and hosts that misbehave. The memory of the server stays
//! below a bound, and a clean client is served all the time.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tests::raw_nfs::{RawNfs, status};
use tests::raw_nfs4::Nfs4Session;
use tests::{Served, Site, long};

/// How large the load is.
struct LoadSizes {
    connections: usize,
    clients: usize,
    opens: usize,
    garbage: usize,
}

const SMALL: LoadSizes = LoadSizes { connections: 1000, clients: 100, opens: 2000, garbage: 300 };
const LARGE: LoadSizes =
    LoadSizes { connections: 7700, clients: 2000, opens: 100_000, garbage: 10_000 };

/// No answer to a clean client takes longer.
const ANSWER_MAX: Duration = Duration::from_millis(500);
/// Connections of one host: the usual limit of them is 32.
const CONNECTIONS_PER_HOST: usize = 25;
/// Connections besides those of [`LoadSizes`], of the clean client and of misbehaving ones: 10,000
/// in all.
const SPARE_CONNECTIONS: usize = 300;
/// Lines of the log about one host within a minute, at most.
const LINES_MAX: usize = 6;
/// Bytes of half-received records that the server is configured for.
const INCOMPLETE_BYTES: usize = 32 << 20;
/// Half-received records of 1 MiB, and hosts that send them.
const HALVES: usize = 200;
const HALF_BYTES: usize = 512 << 10;

/// What the server may hold: a base with caches of 64 and 32 MiB, half-received records in buffers
/// of up to twice their size, the first buffer of each connection, and the state of clients.
fn memory_bytes_max(sizes: &LoadSizes) -> u64 {
    let connections = sizes.connections + sizes.clients + SPARE_CONNECTIONS;
    let bytes = (128 << 20)
        + 2 * INCOMPLETE_BYTES
        + (16 << 10) * connections
        + (8 << 10) * sizes.clients
        + (1 << 10) * sizes.opens;
    bytes as u64
}

/// An address of the host for each number: 127.`net`.0.1 and so on.
fn source(net: u8, host: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, net, (host / 250) as u8, (host % 250 + 1) as u8)
}

/// A clean client that asks for attributes and bytes until the load ends.
struct CleanClient<'a> {
    ended: &'a AtomicBool,
}

impl CleanClient<'_> {
    /// The number of answers and the slowest.
    fn run(&self, served: &Served) -> (usize, Duration) {
        let mut nfs = RawNfs::connect(served);
        let root = nfs.root();
        let file = nfs.create(&root, b"clean").unwrap();
        assert_eq!(nfs.write(&file, 0, b"content"), status::OK);
        let (mut answers, mut slowest) = (0, Duration::ZERO);
        while !self.ended.load(Ordering::Relaxed) {
            let began = Instant::now();
            assert_eq!(nfs.getattr(&root), status::OK);
            assert_eq!(nfs.read_file(&file, 0, 100).unwrap(), b"content");
            slowest = slowest.max(began.elapsed());
            answers += 2;
            thread::sleep(Duration::from_millis(5));
        }
        (answers, slowest)
    }
}

/// Connections that are used and stay: each asks for something.
fn connect_many(served: &Served, root: &[u8], connections: usize) -> Vec<RawNfs> {
    let connect = |index: usize| {
        let mut nfs =
            RawNfs::connect_from(served, source(1, index / CONNECTIONS_PER_HOST)).unwrap();
        assert_eq!(nfs.getattr(root), status::OK);
        nfs
    };
    (0..connections).map(connect).collect()
}

/// Clients of version 4.1, each of its own host, with one open file.
fn open_by_many(served: &Served, clients: usize) -> Vec<Nfs4Session> {
    let open = |index: usize| {
        let nfs = RawNfs::connect_from(served, source(2, index)).unwrap();
        let mut client = Nfs4Session::new(nfs, format!("client {index}").as_bytes());
        assert_eq!(client.open(b"owner", &[format!("of-client-{index}")]), status::OK);
        client
    };
    (0..clients).map(open).collect()
}

/// One client opens many files.
fn open_many(served: &Served, opens: usize) -> Nfs4Session {
    let nfs = RawNfs::connect_from(served, source(3, 0)).unwrap();
    let mut client = Nfs4Session::new(nfs, b"greedy");
    let names: Vec<String> = (0..opens).map(|index| format!("open-{index}")).collect();
    assert_eq!(client.open(b"owner", &names), status::OK);
    client
}

/// Halves of large records from many hosts.
fn send_halves(served: &Served) -> Vec<thread::JoinHandle<RawNfs>> {
    let send = |index: usize| {
        let mut nfs = RawNfs::connect_from(served, source(4, index / 20)).unwrap();
        thread::spawn(move || {
            let half = [&(1_u32 << 31 | 1 << 20).to_be_bytes()[..], &vec![7; HALF_BYTES]].concat();
            // The gateway may take none of it, or close the connection.
            let _ = nfs.send(&half);
            nfs
        })
    };
    (0..HALVES).map(send).collect()
}

/// One host sends what is no call, again and again.
fn send_garbage(served: &Served, times: usize) {
    for _ in 0..times {
        let mut nfs = RawNfs::connect_from(served, source(5, 0)).unwrap();
        let _ = nfs.send(&[0x7f; 40]);
        assert!(nfs.receive().is_none(), "garbage is answered");
    }
    let log = served.log();
    let host = source(5, 0).to_string();
    let lines = log.lines().filter(|line| line.contains(&host)).count();
    assert!((1..=LINES_MAX).contains(&lines), "{lines} lines about {host}");
}

/// Connects past the limit of connections: the gateway hangs up at once.
fn check_refusal(served: &Served) {
    let mut refused = 0;
    let mut taken = Vec::new();
    for index in 0..SPARE_CONNECTIONS + 10 {
        let host = source(6, index / CONNECTIONS_PER_HOST);
        let began = Instant::now();
        let mut nfs = RawNfs::connect_from(served, host).unwrap();
        let record = nfs.record((100_003, 3), 0, &tests::raw_nfs::Args::default());
        let is_refused = nfs.send(&record).is_err() || nfs.receive().is_none();
        refused += usize::from(is_refused);
        assert!(began.elapsed() < 2 * ANSWER_MAX, "after {:?}", began.elapsed());
        taken.push(nfs);
    }
    assert!(refused > 0, "no connection is refused past the limit");
}

fn write_exports(site: &Site, sizes: &LoadSizes) {
    let connections = sizes.connections + sizes.clients + SPARE_CONNECTIONS;
    let exports = format!(
        "[limits]\nconnections = {connections}\nincomplete_bytes = {INCOMPLETE_BYTES}\n\
         [[export]]\npath = \"/\"\n[[export.client]]\nnetwork = \"127.0.0.0/8\"\n\
         access = \"rw\"\nsquash = \"no_root_squash\"\nsecure = false\nsync = false\n"
    );
    std::fs::write(site.path("exports.toml"), exports).unwrap();
}

#[test]
fn a_site_of_clients_and_hosts_that_misbehave_leave_a_clean_client_served() {
    runtime::embedded::raise_open_files().unwrap();
    let sizes = if long() { LARGE } else { SMALL };
    let site = Site::formatted(4096, 4);
    write_exports(&site, &sizes);
    let cache = ["--cache", "64MiB", "--exports", "exports.toml"];
    let served =
        Served::with(&site, &[&["serve", "VOL", "--nfs", "127.0.0.1:0"], &cache[..]].concat());
    let root = RawNfs::connect(&served).root();
    let (ended, most) = (AtomicBool::new(false), memory_bytes_max(&sizes));
    let step = |name: &str, began: Instant| {
        let memory = served.memory_bytes();
        eprintln!("{name}: {:?}, {} MiB", began.elapsed(), memory >> 20);
        assert!(memory <= most, "{memory} bytes after {name}, allowed are {most}");
    };
    thread::scope(|scope| {
        let clean = scope.spawn(|| CleanClient { ended: &ended }.run(&served));
        let _end = EndOnDrop(&ended);
        let mut began = Instant::now();
        step("start", began);
        let _connections = connect_many(&served, &root, sizes.connections);
        step("connections", began);
        began = Instant::now();
        let mut greedy = open_many(&served, sizes.opens);
        step("opens", began);
        began = Instant::now();
        let mut clients = open_by_many(&served, sizes.clients);
        step("clients", began);
        began = Instant::now();
        let halves = send_halves(&served);
        thread::sleep(Duration::from_secs(1));
        step("halves", began);
        assert_eq!(greedy.renew(), status::OK);
        assert_eq!(clients.last_mut().unwrap().renew(), status::OK);
        drop(halves.into_iter().map(|half| half.join().unwrap()).collect::<Vec<_>>());
        began = Instant::now();
        send_garbage(&served, sizes.garbage);
        step("garbage", began);
        began = Instant::now();
        check_refusal(&served);
        step("refusal", began);
        ended.store(true, Ordering::Relaxed);
        let (answers, slowest) = clean.join().unwrap();
        eprintln!("clean client: {answers} answers, the slowest pair {slowest:?}");
        assert!(slowest <= ANSWER_MAX, "an answer took {slowest:?}");
    });
    served.stop();
}

/// Ends the clean client also if a check fails.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
