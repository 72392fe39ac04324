//! The program of the PVFS2-over-Quadrics paper over the links of a cluster: each client writes a
//! contiguous block of 4 MiB at its place in one common file, then reads it; 1 to 4 clients, 2 and
//! 4 processes, disks in memory.
//!
//! `cargo xtask bench links`. Links as they are (TLS over TCP), without protection, and over
//! libfabric, sealed or not. Clients are threads of one program that reach the processes by their
//! sockets, as programs do; so all but the share of the process that a client asks, which is one
//! part of as many as there are, crosses a link. The clusters of one size are run one after the
//! other, again and again; medians of all rounds.

#![allow(
    clippy::disallowed_methods,
    reason = "a benchmark measures the host's time and starts processes"
)]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use benches::{median, sized};
use bytes::Bytes;
use client::OpenOptions;
use client::blocking::Volume;
use cluster::membership::{Founder, ProcessId};
use transport::fabric::{FabricOptions, Fabrics, Provider};
use transport::tls::{Authority, Identity, Keys};
use transport::{Guard, Security};
use volume::cluster::{ClusterMember, ClusterShape, Engine, MemberDisks, MemberOptions, bootstrap};
use volume::{DiskName, RunOptions, VolumeError};

/// Bytes of the block of each client.
const BLOCK: usize = 4 << 20;
/// Clients and processes, at most.
const MOST: usize = 4;
const DISK_BYTES: u64 = 256 << 20;
const CACHE_BYTES: usize = 96 << 20;
const START_MAX: Duration = Duration::from_mins(1);
const END_MAX: Duration = Duration::from_secs(5);
/// By this argument the program is one of the processes.
const ROLE: &str = "serve-links";

/// How links go: a name, whether they are protected, and the provider.
const WAYS: [(&str, bool, Option<Provider>); 6] = [
    ("TCP, TLS", true, None),
    ("TCP, insecure", false, None),
    ("shm, sealed", true, Some(Provider::Shm)),
    ("shm, insecure", false, Some(Provider::Shm)),
    ("rxm, sealed", true, Some(Provider::Tcp)),
    ("rxm, insecure", false, Some(Provider::Tcp)),
];

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == ROLE) {
        return serve(&arguments[at + 1..]);
    }
    fs::create_dir_all(costs_folder()).expect("there is room");
    let (sizes, rounds, repetitions) = sized((&[2, 4][..], 8, 3), (&[2][..], 1, 1));
    let methods = sized(&WAYS[..], &[WAYS[2]]);
    for processes in sizes {
        let mut figures: Vec<Vec<LinkFigures>> =
            vec![vec![LinkFigures::default(); MOST]; methods.len()];
        for _ in 0..repetitions {
            for (method, figures) in methods.iter().zip(&mut figures) {
                let site = LinkSite::start(*processes, method.1, method.2);
                for (clients, figures) in (1..).zip(figures.iter_mut()) {
                    measure(&site, clients, rounds, figures);
                }
            }
        }
        println!(
            "\n{processes} processes, MB/s: writes of 1 to {MOST} clients, reads, CPU s per GB"
        );
        for (method, figures) in methods.iter().zip(&figures) {
            let row = |of: fn(&LinkFigures) -> &Vec<f64>| {
                let values = figures.iter().map(|one| median(of(one).iter().copied()));
                values.map(|value| format!("{value:.2}")).collect::<Vec<_>>().join(", ")
            };
            let [writes, reads, cpu] =
                [row(|it| &it.writes), row(|it| &it.reads), row(|it| &it.cpu)];
            println!("{:14} | {writes} | {reads} | {cpu}", method.0);
        }
    }
    println!("\nload of the last minutes: {}", load());
    // The next run measures anew.
    fs::remove_dir_all(costs_folder()).expect("it was made above");
}

/// Where the costs of mechanisms are kept for the time of a run.
fn costs_folder() -> PathBuf {
    std::env::temp_dir().join("mdfs-bench-links")
}

fn load() -> String {
    fs::read_to_string("/proc/loadavg").unwrap_or_default().trim().to_owned()
}

/// Of one way and number of clients: MB/s of all clients together, and seconds of CPU of all
/// processes per GB.
#[derive(Clone, Default)]
struct LinkFigures {
    writes: Vec<f64>,
    reads: Vec<f64>,
    cpu: Vec<f64>,
}

/// A cluster with its etcd, on disks in memory.
struct LinkSite {
    members: Vec<LinkProcess>,
    etcd: Child,
    directory: tempfile::TempDir,
}

/// A process of the cluster; it ends with its input.
struct LinkProcess {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl LinkSite {
    fn start(processes: usize, protected: bool, provider: Option<Provider>) -> Self {
        let directory = tempfile::tempdir_in("/dev/shm").expect("memory can be written as files");
        let ports = free_ports(processes + 2);
        let etcd = start_etcd(directory.path(), ports[0], ports[1]);
        let engine = engine(ports[0]);
        let founders = (1..=processes as u32)
            .map(|number| Founder { id: ProcessId(number), disks: vec![number - 1] })
            .collect();
        let disk = |disk_node| (DiskName { disk_node, disk: 0 }, DISK_BYTES);
        let shape = ClusterShape {
            redundancy: volume::RedundancyClass::default(),
            fs_nodes: 16,
            stripe_size: 64 << 10,
            disks: (0..processes as u32).map(disk).collect(),
            founders,
        };
        let begin = Instant::now();
        while let Err(error) = bootstrap(&engine, &shape) {
            assert!(begin.elapsed() < START_MAX, "etcd does not answer: {error}");
            thread::sleep(Duration::from_millis(100));
        }
        if protected {
            make_keys(directory.path(), processes);
        }
        let provider = provider.map_or("-", Provider::name);
        let mut members: Vec<LinkProcess> = (1..=processes)
            .map(|number| {
                let own = ports[1 + number].to_string();
                let etcd = ports[0].to_string();
                LinkProcess::start(directory.path(), &[&number.to_string(), &etcd, &own, provider])
            })
            .collect();
        members.iter_mut().for_each(LinkProcess::wait_until_ready);
        let site = Self { members, etcd, directory };
        // Links are made when something is sent, and the faster way is opened after it.
        site.volume(1).create("/file").expect("there is room");
        thread::sleep(Duration::from_millis(500));
        site
    }

    fn volume(&self, number: usize) -> Volume {
        let directory = member_directory(self.directory.path(), number);
        client::volume::open(&directory).expect("the process answers")
    }

    /// Seconds of processor time of all processes so far.
    fn cpu(&self) -> f64 {
        let of = |process: &LinkProcess| {
            let stat = fs::read_to_string(format!("/proc/{}/stat", process.child.id()));
            let stat = stat.unwrap_or_default();
            let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split(' ').collect();
            let ticks = |at: usize| fields.get(at).and_then(|it| it.parse::<f64>().ok());
            // utime and stime, which count hundredths of a second.
            (ticks(12).unwrap_or(0.0) + ticks(13).unwrap_or(0.0)) / 100.0
        };
        self.members.iter().map(of).sum()
    }
}

impl Drop for LinkSite {
    fn drop(&mut self) {
        self.members.clear();
        let _ = self.etcd.kill();
        let _ = self.etcd.wait();
    }
}

impl LinkProcess {
    fn start(directory: &Path, arguments: &[&str]) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("it runs"))
            .arg(ROLE)
            .arg(directory)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it can be started again");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("it was asked for"));
        Self { child, input, output }
    }

    fn wait_until_ready(&mut self) {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it says that it is ready");
        assert_eq!(line, "ready\n");
    }
}

impl Drop for LinkProcess {
    fn drop(&mut self) {
        drop(self.input.take());
        let begin = Instant::now();
        while begin.elapsed() < END_MAX && matches!(self.child.try_wait(), Ok(None)) {
            thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn member_directory(site: &Path, number: usize) -> PathBuf {
    site.join(format!("p{number}"))
}

fn engine(port: u16) -> Engine {
    let endpoints = vec![format!("http://127.0.0.1:{port}")];
    Engine { endpoints, prefix: "mdfs/bench/".to_owned(), tls: None }
}

fn free_ports(count: usize) -> Vec<u16> {
    let listeners: Vec<TcpListener> = (0..count)
        .map(|_| TcpListener::bind("127.0.0.1:0").expect("there are free ports"))
        .collect();
    let port = |listener: &TcpListener| listener.local_addr().expect("it is bound").port();
    listeners.iter().map(port).collect()
}

fn start_etcd(directory: &Path, client: u16, peer: u16) -> Child {
    let [client, peer] = [client, peer].map(|port| format!("http://127.0.0.1:{port}"));
    Command::new("etcd")
        .args(["--data-dir", "etcd", "--log-level", "error"])
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("default={peer}")])
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("etcd is installed")
}

fn now_since_1970() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

fn make_keys(directory: &Path, processes: usize) {
    let now = now_since_1970();
    let (authority, own) = Authority::make(now).expect("keys can be made");
    fs::write(directory.join("ca.pem"), own.certificate).expect("there is room");
    for number in 1..=processes as u32 {
        let identity = authority.certify(number, now, Duration::from_hours(24));
        let Identity { certificate, key } = identity.expect("keys can be made");
        fs::write(directory.join(format!("{number}.pem")), certificate).expect("there is room");
        fs::write(directory.join(format!("{number}.key")), key).expect("there is room");
    }
}

/// One process of a cluster, until its input ends.
fn serve(arguments: &[String]) {
    let [site, number, etcd, port, provider] = arguments else { panic!("{arguments:?}") };
    let site = Path::new(site);
    let number: u32 = number.parse().expect("a number");
    let security = match fs::read(site.join("ca.pem")) {
        Ok(authority) => {
            let read = |kind: &str| fs::read_to_string(site.join(format!("{number}.{kind}")));
            let certificate = read("pem").expect("it was written");
            let identity = Identity { certificate, key: read("key").expect("it was written") };
            let keys = Keys::new(number, &authority, &identity).expect("they were just made");
            Security::Tls(Box::new(keys))
        }
        Err(_) => Security::None,
    };
    let mut guard = Guard::new(security);
    let directory = member_directory(site, number as usize);
    if let Some(provider) = Provider::of_name(provider) {
        // All measure with the table of the first run.
        let costs = Some(costs_folder());
        let options =
            FabricOptions { providers: vec![provider], source: None, costs, is_told: true };
        guard = guard.with_fabrics(Fabrics::new(options));
    }
    let guard = Arc::new(guard);
    let ending = guard.clone();
    let options = MemberOptions {
        name: "bench".to_owned(),
        number,
        address: format!("127.0.0.1:{port}"),
        engine: engine(etcd.parse().expect("a port")),
        lease: volume::cluster::LEASE,
        guard,
        disks: MemberDisks {
            disk_node: Some(number - 1),
            count: 1,
            paths: Vec::new(),
            bytes: DISK_BYTES,
        },
        force: Vec::new(),
        run: RunOptions { cache_bytes: CACHE_BYTES, ..RunOptions::default() },
    };
    thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        // Nothing of it stays in shared memory.
        ending.retire(|_, _| true);
        std::process::exit(0);
    });
    let mut member = ClusterMember::start(&directory, &options).expect("the process starts");
    let ended = member.run(|running| {
        running.answer_socket()?;
        println!("ready");
        Ok::<_, VolumeError>(())
    });
    panic!("the process ends: {ended:?}");
}

#[allow(clippy::cast_precision_loss, reason = "a figure for people")]
fn megabytes(bytes: usize) -> f64 {
    bytes as f64 / 1e6
}

/// All clients write their blocks, then read them, several times.
fn measure(site: &LinkSite, clients: usize, rounds: usize, figures: &mut LinkFigures) {
    let together = Barrier::new(clients + 1);
    let before = site.cpu();
    thread::scope(|scope| {
        for client in 0..clients {
            let (volume, together) = (site.volume(1 + client % site.members.len()), &together);
            scope.spawn(move || {
                let options = OpenOptions::new().read(true).write(true);
                let file = volume.open("/file", options).expect("it was made");
                let at = (client * BLOCK) as u64;
                for round in 0..rounds {
                    let block = Bytes::from(vec![(round * 7 + client) as u8; BLOCK]);
                    together.wait();
                    file.write_at(at, block.clone()).expect("there is room");
                    together.wait();
                    together.wait();
                    let read = file.read_bytes_at(at, BLOCK).expect("it was written");
                    together.wait();
                    assert!(read.concat() == block, "other bytes than were written");
                }
            });
        }
        let timed = |rates: &mut Vec<f64>| {
            together.wait();
            let begin = Instant::now();
            together.wait();
            rates.push(megabytes(clients * BLOCK) / begin.elapsed().as_secs_f64());
        };
        for _ in 0..rounds {
            timed(&mut figures.writes);
            timed(&mut figures.reads);
        }
    });
    let moved = 2.0 * megabytes(rounds * clients * BLOCK) / 1e3;
    figures.cpu.push((site.cpu() - before) / moved);
}
