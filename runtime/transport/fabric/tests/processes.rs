//! Two processes over real libfabric. One is killed, or frozen and woken: the other gets an error,
//! frees everything, and goes on with the next process.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(clippy::disallowed_methods, reason = "a test bounds its own time")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fabric::link::{EndpointOptions, Provider};
use fabric::policy::{Mechanism, Policy, PolicyOverride};
use fabric::transport::{
    BulkPart, ConnectionId, FabricEvent, Loss, TICKET_SIZE, Transport, TransportOptions,
};
use rustix::process::{Pid, Signal, kill_process};

const TICKET: [u8; TICKET_SIZE] = *b"ticket of a test";
const ROLE: &str = "FABRIC_TEST_PROVIDER";
const LIMIT: Duration = Duration::from_mins(1);
/// One test at a time: each keeps two cores busy.
static ALONE: Mutex<()> = Mutex::new(());
const PROVIDERS: [Provider; 3] = Provider::TESTED;
/// Those that survive a killed peer: `net` of 1.17 may crash.
const SURVIVORS: [Provider; 2] = [Provider::Tcp, Provider::Shm];

fn setup(provider: Provider) -> TransportOptions {
    let setup = TransportOptions::new(EndpointOptions::new(provider), Policy::default());
    TransportOptions { silence: Duration::from_secs(4), ..setup }
}

/// What the other process does: it sends every message back, until its standard input ends. As a
/// test of its own it does nothing.
#[test]
fn the_other_process() {
    let Ok(provider) = std::env::var(ROLE) else { return };
    let mut transport = Transport::open(setup(Provider::of_name(&provider).unwrap())).unwrap();
    transport.admit(TICKET, None).unwrap();
    print!("\naddress ");
    transport.address().iter().for_each(|byte| print!("{byte:02x}"));
    println!();
    std::io::stdout().flush().unwrap();
    let (tell, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        let _ = tell.send(());
    });
    let start = Instant::now();
    let mut idle = 0;
    while ended.try_recv().is_err() && start.elapsed() < 2 * LIMIT {
        transport.poll().unwrap();
        transport.wait(idle, Duration::from_millis(5));
        idle += 1;
        while let Some(event) = transport.next_event() {
            idle = 0;
            match event {
                FabricEvent::Received { connection, head, bulk } => {
                    let bulk =
                        if bulk.is_empty() { Vec::new() } else { vec![BulkPart::Bytes(bulk)] };
                    transport.send(connection, head, bulk).unwrap();
                }
                FabricEvent::Closed { loss, .. } => println!("closed {loss:?}"),
                FabricEvent::Opened { .. } => {}
            }
        }
    }
}

struct Other {
    process: Child,
    /// What it says is not read further, but it may say it.
    _output: BufReader<ChildStdout>,
    address: Vec<u8>,
}

impl Other {
    fn start(provider: Provider) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_other_process", "--nocapture", "--test-threads=1"])
            .env(ROLE, provider.name())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut lines = output.by_ref().lines().map(Result::unwrap);
        let line = lines.find(|line| line.starts_with("address ")).unwrap();
        let hex = line.strip_prefix("address ").unwrap();
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        let address = (0..hex.len()).step_by(2).map(byte).collect();
        Self { process, _output: output, address }
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // It ends by itself, and so leaves nothing in shared memory, if it still can.
        drop(self.process.stdin.take());
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(2) {
            if !matches!(self.process.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct Ours(Transport);

impl Ours {
    fn until<T>(&mut self, what: &str, mut done: impl FnMut(&mut Transport) -> Option<T>) -> T {
        let start = Instant::now();
        let mut idle = 0;
        loop {
            if let Some(result) = done(&mut self.0) {
                return result;
            }
            self.0.poll().unwrap();
            self.0.wait(idle, Duration::from_millis(20));
            idle += 1;
            let counters = self.0.counters();
            assert!(start.elapsed() < LIMIT, "{what}: {:?}, {counters:?}", self.0.in_use());
        }
    }

    fn event(&mut self, what: &str) -> FabricEvent {
        self.until(what, Transport::next_event)
    }

    fn connect(&mut self, other: &Other) -> ConnectionId {
        let connection = self.0.connect(&other.address, TICKET, None).unwrap();
        let event = self.event("a connection");
        assert!(
            matches!(event, FabricEvent::Opened { connection: c, .. } if c == connection),
            "{event:?}"
        );
        connection
    }

    fn send(&mut self, to: ConnectionId, bulk: &Bytes) {
        let parts = if bulk.is_empty() { Vec::new() } else { vec![BulkPart::Bytes(bulk.clone())] };
        self.0.send(to, Bytes::from_static(b"echo"), parts).unwrap();
    }

    /// A message there and back.
    fn echo(&mut self, to: ConnectionId, bulk: &Bytes) {
        self.send(to, bulk);
        match self.event("an echo") {
            FabricEvent::Received { head, bulk: back, .. } => {
                assert_eq!(&head[..], b"echo");
                assert!(back == bulk, "{} bytes came back changed", bulk.len());
            }
            other => panic!("{other:?}"),
        }
    }

    /// The end of the only connection, and that nothing of it is left.
    fn end(&mut self) -> Loss {
        let loss = loop {
            match self.event("the end") {
                FabricEvent::Closed { loss, .. } => break loss,
                FabricEvent::Received { .. } => {}
                other @ FabricEvent::Opened { .. } => panic!("{other:?}"),
            }
        };
        assert_eq!(self.0.in_use().0, 0, "transfers are given up with their connection");
        loss
    }

    fn operations_end(&mut self) {
        self.until("operations end", |ours| (ours.in_use().1 == 0).then_some(()));
    }
}

fn content(length: usize) -> Bytes {
    (0..length).map(|i| (i * 13 + i / 1000) as u8).collect::<Vec<u8>>().into()
}

#[test]
fn messages_of_all_sizes_go_there_and_back_by_every_mechanism() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for provider in PROVIDERS {
        println!("on {}", provider.name());
        let other = Other::start(provider);
        let mut ours = Ours(Transport::open(setup(provider)).unwrap());
        let connection = ours.connect(&other);
        for mechanism in [None].into_iter().chain(Mechanism::ALL.map(Some)) {
            ours.0.policy.forced = PolicyOverride { mechanism, layout: None };
            for length in [0, 1, 1000, 10_000, 60_000, 3 << 20] {
                ours.echo(connection, &content(length));
            }
        }
        ours.operations_end();
        ours.0.close(connection).unwrap();
        assert_eq!(ours.end(), Loss::Left);
    }
}

/// Files of endpoints of the process `id` in shared memory.
fn left_in_shared_memory(id: u32) -> usize {
    let name = format!("mdfs-fabric-{id}-");
    let files = std::fs::read_dir("/dev/shm").unwrap().flatten();
    files.filter(|file| file.file_name().to_string_lossy().contains(&name)).count()
}

/// Not in the test command: libfabric 1.17 itself may never return from a poll after a peer was
/// killed that held a lock in shared memory, and may keep operations of a dead TCP peer for ever
/// (ADR 34).
#[test]
#[ignore = "libfabric 1.17 may hang in a poll when a peer dies"]
fn a_killed_peer_is_an_error_frees_everything_and_may_come_back() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for provider in SURVIVORS {
        println!("on {}", provider.name());
        let mut ours = Ours(Transport::open(setup(provider)).unwrap());
        for round in 0..3 {
            let mut other = Other::start(provider);
            let connection = ours.connect(&other);
            ours.echo(connection, &content(5000));
            // It dies amid transfers of all kinds, in both directions.
            for mechanism in Mechanism::ALL {
                ours.0.policy.forced.mechanism = Some(mechanism);
                for _ in 0..4 {
                    ours.send(connection, &content(500));
                    ours.send(connection, &content(2 << 20));
                }
            }
            ours.0.policy.forced.mechanism = None;
            for _ in 0..round * 5 {
                ours.0.poll().unwrap();
            }
            let id = other.process.id();
            let killed = Instant::now();
            other.kill();
            println!("round {round}: {:?} after {:?}", ours.end(), killed.elapsed());
            if provider == Provider::Tcp {
                // 1.17 may keep operations of a dead peer open, with their buffers, until the
                // endpoint is closed: so it is, and opened anew.
                ours = Ours(Transport::open(setup(provider)).unwrap());
            }
            ours.operations_end();
            if provider == Provider::Shm {
                assert!(left_in_shared_memory(id) > 0, "a killed process cleans nothing");
            }
        }
        // The next process that opens shared memory removes what they left.
        let other = Other::start(provider);
        let connection = ours.connect(&other);
        ours.echo(connection, &content(100_000));
        if provider == Provider::Shm {
            let dead = std::fs::read_dir("/dev/shm").unwrap().flatten().filter(|file| {
                let name = file.file_name().to_string_lossy().into_owned();
                let process = name.split("mdfs-fabric-").nth(1).and_then(|n| n.split('-').next());
                process.is_some_and(|id| !std::path::Path::new(&format!("/proc/{id}")).exists())
            });
            // Other tests may be killing processes of theirs just now.
            assert!(dead.count() < 3, "what killed processes left is removed");
        }
    }
}

#[test]
fn a_frozen_peer_is_lost_and_what_it_does_late_changes_nothing() {
    freeze(Provider::Tcp);
    freeze(Provider::Net);
}

#[test]
#[ignore = "libfabric 1.17 waits in a poll for a frozen peer that holds a lock in shared memory"]
fn a_frozen_peer_in_shared_memory_is_lost_and_what_it_does_late_changes_nothing() {
    freeze(Provider::Shm);
}

fn freeze(provider: Provider) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    println!("on {}", provider.name());
    let other = Other::start(provider);
    let mut ours = Ours(Transport::open(setup(provider)).unwrap());
    let connection = ours.connect(&other);
    ours.echo(connection, &content(200_000));
    // It has things to answer when it is frozen, and memory of ours to write into.
    for _ in 0..8 {
        ours.send(connection, &content(300_000));
        ours.send(connection, &content(40_000));
    }
    other.signal(Signal::STOP);
    let loss = ours.end();
    assert!(matches!(loss, Loss::Silent | Loss::Failed(_)), "{loss:?}");
    // Its memory is handed out anew, and stays as it is when the peer wakes up.
    let mut canary = ours.0.buffer(4 << 20).unwrap();
    canary.bytes_mut().fill(0xCA);
    other.signal(Signal::CONT);
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(700) {
        ours.0.poll().unwrap();
        assert!(ours.0.next_event().is_none(), "nothing of a lost connection is handed out");
    }
    assert!(canary.bytes().iter().all(|byte| *byte == 0xCA));
}
