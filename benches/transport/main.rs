//! Bytes between two processes, side by side: plain sockets, libfabric itself, and our transport
//! over it; then our policy against each single mechanism, and lists of segments.
//!
//! `cargo bench -p benches --bench transport` prints all; `-- methods`, `-- policy` or `-- lists`
//! one part. Rounds are interleaved: every way once, then every way again; medians count. The other
//! process is this program, started anew for each turn, so that no other process polls beside the
//! one that is measured.

#![allow(clippy::unwrap_used, clippy::cast_precision_loss, reason = "a benchmark")]

mod bare;
mod method;
mod ours;
mod sockets;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command as Process, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use benches::{in_earnest, median, sized};
use bytes::Bytes;
use fabric::link::{EndpointOptions, Fabric, Provider};
use fabric::policy::{Calibration, Mechanism, PolicyOverride, SegmentLayout, calibrate};
use method::{SIZE_MAX, TransportMethod, now};
use ours::{IdleMode, MdfsTransport};

/// Bytes of a message.
const SIZES: [usize; 9] =
    [64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
/// Segments of a list, and their bytes.
const SEGMENTS: usize = 128;
const SEGMENT_SIZES: [usize; 7] = [128, 256, 512, 1 << 10, 2 << 10, 4 << 10, 8 << 10];

/// All ways, by name.
const WAYS: [&str; 10] = [
    "tcp tokio",
    "tcp polled",
    "unix socket",
    "rxm bare",
    "rxm ours",
    "rxm ours waits",
    "shm bare",
    "shm bare rma",
    "shm ours",
    "net ours",
];

/// The way that ours is to be compared with.
const PAIRS: [(&str, &str); 2] = [("rxm ours", "rxm bare"), ("shm ours", "shm bare")];

fn provider_of(method: &str) -> Provider {
    match &method[..3] {
        "shm" => Provider::Shm,
        "net" => Provider::Net,
        _ => Provider::Tcp,
    }
}

/// The part of the other process.
#[allow(clippy::disallowed_methods, reason = "a benchmark ends with its parent")]
fn serve(method: &str, costs: Option<&Path>) {
    let announce = |text: &str| {
        println!("ready {text}");
        std::io::stdout().flush().unwrap();
    };
    let over = Arc::new(AtomicBool::new(false));
    let tells = over.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        tells.store(true, Ordering::Release);
    });
    let is_over = || over.load(Ordering::Acquire);
    let provider = provider_of(method);
    match method {
        "tcp tokio" => sockets::serve_tokio(announce),
        "tcp polled" => sockets::serve_polled(announce),
        "unix socket" => sockets::serve_unix(announce),
        "rxm ours waits" => ours::serve(provider, IdleMode::Sleeps, costs, announce, &is_over),
        ours if ours.ends_with("ours") => {
            ours::serve(provider, IdleMode::Polls, costs, announce, &is_over);
        }
        _ => bare::serve(provider, announce, &is_over),
    }
}

/// The other process, and what it told.
struct PeerProcess {
    process: Child,
    _output: BufReader<ChildStdout>,
    address: String,
}

impl PeerProcess {
    fn start(method: &str, costs: Option<&Path>) -> Self {
        // On a core of its own: two that poll on one core wait for each other.
        let mut process = Process::new("taskset")
            .args(["--cpu-list", "1"])
            .arg(std::env::current_exe().unwrap())
            .args(["serve", method])
            .args(costs)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("ready ").expect("the other process starts").into();
        Self { process, _output: output, address }
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let start = now();
        while start.elapsed() < Duration::from_secs(2) {
            if !matches!(self.process.try_wait(), Ok(None)) {
                return;
            }
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn connect(method: &str, costs: Option<&Path>, address: &str) -> Box<dyn TransportMethod> {
    let provider = provider_of(method);
    match method {
        "tcp tokio" => sockets::tokio(address),
        "tcp polled" => sockets::polled(address),
        "unix socket" => sockets::unix(address),
        "rxm ours waits" => {
            Box::new(MdfsTransport::connect(provider, IdleMode::Sleeps, costs, address))
        }
        ours if ours.ends_with("ours") => {
            Box::new(MdfsTransport::connect(provider, IdleMode::Polls, costs, address))
        }
        _ => bare::connect(provider, method.ends_with("rma"), address),
    }
}

/// Nanoseconds on a core, of this thread.
fn cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|time| time.parse().ok()).unwrap_or(f64::NAN)
}

/// What one way took, per size: a round trip in us, MB/s one way, seconds of CPU per GB.
#[derive(Default)]
struct TransportFigures {
    round_trip: Vec<Vec<f64>>,
    rate: Vec<Vec<f64>>,
    cpu: Vec<Vec<f64>>,
}

fn methods(tables: &PolicyTables) {
    let methods: Vec<&str> = WAYS.into_iter().filter(|method| tables.can(method)).collect();
    let sizes = sized(&SIZES[..], &[64, 64 << 10]);
    let rounds = sized(5, 1);
    let mut figures: Vec<TransportFigures> =
        methods.iter().map(|_| TransportFigures::default()).collect();
    for figure in &mut figures {
        for values in [&mut figure.round_trip, &mut figure.rate, &mut figure.cpu] {
            values.resize(sizes.len(), Vec::new());
        }
    }
    for _ in 0..rounds {
        for (method, figure) in methods.iter().zip(&mut figures) {
            measure(method, tables.of(method), sizes, figure);
        }
    }
    let print = |title: &str, unit: &str, of: &dyn Fn(&TransportFigures) -> &Vec<Vec<f64>>| {
        println!("\n{title} ({unit}; medians of {rounds} interleaved rounds)");
        print_row("bytes", &sizes.iter().map(|size| format!("{size}")).collect::<Vec<_>>());
        for (method, figure) in methods.iter().zip(&figures) {
            let medians = of(figure).iter().map(|values| median(values.iter().copied()));
            print_row(method, &medians.map(short).collect::<Vec<_>>());
        }
    };
    print("round trip", "us", &|figure| &figure.round_trip);
    print("one way", "MB/s", &|figure| &figure.rate);
    print("client's CPU", "s per GB", &|figure| &figure.cpu);
    println!(
        "\nwhat ours adds to a round trip of {} bytes (median of the rounds' differences)",
        sizes[0]
    );
    for (ours, bare) in PAIRS {
        let at = |name| methods.iter().position(|method| *method == name);
        let (Some(ours_at), Some(bare_at)) = (at(ours), at(bare)) else { continue };
        let pairs = figures[ours_at].round_trip[0].iter().zip(&figures[bare_at].round_trip[0]);
        println!("  {ours} - {bare}: {:.2} us", median(pairs.map(|(ours, bare)| ours - bare)));
    }
}

fn measure(method: &str, costs: Option<&Path>, sizes: &[usize], figures: &mut TransportFigures) {
    let other = PeerProcess::start(method, costs);
    let mut connected = connect(method, costs, &other.address);
    let content = vec![7; SIZE_MAX];
    for (index, size) in sizes.iter().enumerate() {
        let content = &content[..*size];
        // As many as take about the same time at every size.
        let count = sized((16 << 20) / (size + 32_768), 2).clamp(2, 400);
        connected.round_trip(content);
        // Each by itself: the median ignores those in which another process had the core.
        let times = (0..count).map(|_| {
            let start = now();
            connected.round_trip(content);
            start.elapsed().as_secs_f64() * 1e6
        });
        figures.round_trip[index].push(median(times));
        connected.stream(content, 2);
        let count = 2 * count;
        let (start, before) = (now(), cpu());
        connected.stream(content, count);
        let bytes = (count * size) as f64;
        figures.rate[index].push(bytes / 1e6 / start.elapsed().as_secs_f64());
        figures.cpu[index].push((cpu() - before) / bytes);
    }
}

fn short(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

fn print_row(name: &str, values: &[String]) {
    print!("{name:<16}");
    for value in values {
        print!(" {value:>9}");
    }
    println!();
}

/// The tables of costs, measured now.
struct PolicyTables(Vec<(Provider, PathBuf)>, tempfile::TempDir);

impl PolicyTables {
    fn measure() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut tables = Vec::new();
        for provider in [Provider::Tcp, Provider::Shm, Provider::Net] {
            if let Err(error) = Fabric::open(&EndpointOptions::new(provider)) {
                println!("left out: {error}");
                continue;
            }
            let method = WAYS
                .into_iter()
                .find(|method| method.ends_with("ours") && provider_of(method) == provider);
            let other = PeerProcess::start(method.unwrap(), None);
            let mut ours = MdfsTransport::connect(provider, IdleMode::Polls, None, &other.address);
            let how = sized(
                Calibration { rounds: 41, ..Calibration::default() },
                Calibration { rounds: 1, largest: 64 << 10 },
            );
            let costs = calibrate(&mut ours.transport, ours.connection, how).unwrap();
            if in_earnest() {
                println!("{}", costs.to_text());
            }
            let path = folder.path().join(provider.name());
            std::fs::write(&path, costs.to_text()).unwrap();
            tables.push((provider, path));
        }
        Self(tables, folder)
    }

    fn of(&self, method: &str) -> Option<&Path> {
        let is_fabric = !method.starts_with("tcp") && !method.starts_with("unix");
        let found =
            self.0.iter().find(|(provider, _)| is_fabric && *provider == provider_of(method));
        found.map(|(_, path)| path.as_path())
    }

    fn can(&self, method: &str) -> bool {
        method.starts_with("tcp") || method.starts_with("unix") || self.of(method).is_some()
    }
}

/// Times of several choices, in turn: each choice once per round.
fn in_turn(
    ours: &mut MdfsTransport,
    rounds: usize,
    bulk: &[Bytes],
    choices: &[PolicyOverride],
) -> Vec<(f64, String)> {
    let mut times = vec![Vec::new(); choices.len()];
    let mut counted = vec![String::new(); choices.len()];
    for round in 0..rounds {
        for turn in 0..choices.len() {
            // The order changes, so that none always follows the same one.
            let index = if round % 2 == 0 { turn } else { choices.len() - 1 - turn };
            let choice = &choices[index];
            let (before, registered) = ours.counters();
            let time = ours.there(bulk, *choice);
            let (after, now_registered) = ours.counters();
            times[index].push(time.as_secs_f64() * 1e6);
            counted[index] = format!(
                "{}/{}/{}",
                after.frames_out + after.by_mechanism[2]
                    - before.frames_out
                    - before.by_mechanism[2],
                after.copies - before.copies,
                now_registered - registered,
            );
        }
    }
    times.into_iter().map(|times| median(times.into_iter())).zip(counted).collect()
}

fn policy(tables: &PolicyTables) {
    for method in ["rxm ours", "shm ours"].into_iter().filter(|method| tables.can(method)) {
        let costs = tables.of(method);
        let other = PeerProcess::start(method, costs);
        let mut ours =
            MdfsTransport::connect(provider_of(method), IdleMode::Polls, costs, &other.address);
        println!(
            "\n{method}: a message and its short answer, us; [frames/copies/registrations of the sender]"
        );
        let names = Mechanism::ALL.map(|mechanism| mechanism.name().to_owned());
        print_row("bytes", &[&["auto".to_owned()][..], &names, &["auto/best".into()]].concat());
        for size in sized(&SIZES[..], &[64, 64 << 10]) {
            let bulk = [Bytes::from(vec![7; *size])];
            let choices: Vec<PolicyOverride> = [None]
                .into_iter()
                .chain(Mechanism::ALL.map(Some))
                .map(|mechanism| PolicyOverride { mechanism, layout: None })
                .collect();
            let rounds = sized(if *size > 100_000 { 61 } else { 301 }, 2);
            let results = in_turn(&mut ours, rounds, &bulk, &choices);
            let best = results[1..].iter().map(|(time, _)| *time).fold(f64::MAX, f64::min);
            let mut row: Vec<String> = results.iter().map(|(time, _)| short(*time)).collect();
            row.push(format!("{:.3}", results[0].0 / best));
            row.push(format!("[{}]", results[0].1));
            print_row(&size.to_string(), &row);
        }
        println!("a mechanism that has no room for a size is replaced by the policy's choice");
    }
}

fn lists(tables: &PolicyTables) {
    for method in ["rxm ours", "shm ours"].into_iter().filter(|method| tables.can(method)) {
        let costs = tables.of(method);
        let other = PeerProcess::start(method, costs);
        let mut ours =
            MdfsTransport::connect(provider_of(method), IdleMode::Polls, costs, &other.address);
        println!(
            "\n{method}: {SEGMENTS} segments, MB/s [frames/copies/registrations of the sender]"
        );
        let names = ["pack", "gather", "hybrid", "hybrid/best"].map(str::to_owned);
        print_row("segment", &names);
        for size in sized(&SEGMENT_SIZES[..], &[128]) {
            let bulk: Vec<Bytes> = (0..SEGMENTS).map(|_| Bytes::from(vec![7; *size])).collect();
            let choices =
                [Some(SegmentLayout::Pack), Some(SegmentLayout::Gather), None].map(|layout| {
                    PolicyOverride { mechanism: layout.map(|_| Mechanism::Write), layout }
                });
            let results = in_turn(&mut ours, sized(101, 2), &bulk, &choices);
            let rate = |(time, _): &(f64, String)| (SEGMENTS * size) as f64 / time;
            let best = rate(&results[0]).max(rate(&results[1]));
            let mut row: Vec<String> = results
                .iter()
                .map(|result| format!("{} [{}]", short(rate(result)), result.1))
                .collect();
            row.push(format!("{:.3}", rate(&results[2]) / best));
            print_row(&size.to_string(), &row);
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, method, rest @ ..] = &arguments[..]
        && first == "serve"
    {
        return serve(method, rest.first().map(Path::new));
    }
    let own = std::process::id().to_string();
    let pinned = Process::new("taskset").args(["--cpu-list", "--pid", "0", &own]).output();
    assert!(pinned.is_ok_and(|output| output.status.success()), "two cores and taskset are needed");
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load: {}", load.trim());
    let tables = PolicyTables::measure();
    let wanted = |part: &str| {
        let parts = ["ways", "policy", "lists"];
        let chosen = arguments.iter().any(|argument| parts.contains(&argument.as_str()));
        !chosen || arguments.iter().any(|argument| argument == part)
    };
    if wanted("ways") {
        methods(&tables);
    }
    if wanted("policy") {
        policy(&tables);
    }
    if wanted("lists") {
        lists(&tables);
    }
    drop(tables.1);
}
