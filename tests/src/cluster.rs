//! A cluster of real processes on this host, with an etcd of its own.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use client::blocking::Volume;

use crate::http::get;
use crate::site::Site;

/// etcd has so much time to begin: on a busy host its first election takes a while.
const ETCD_START_MAX: Duration = Duration::from_secs(30);
/// What the exit code says of a process that lost its lease.
const FENCED: i32 = 5;

/// A cluster; everything of it ends when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    site: Site,
    etcd: Child,
    members: Vec<Option<Child>>,
    /// What each has said last when it was ready.
    ready: Vec<String>,
    starts: usize,
}

/// Ports of the host that were free just now.
fn free_ports(count: usize) -> Vec<u16> {
    let listeners: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}

impl Cluster {
    /// Makes a volume of `nodes` nodes on `members` processes, and starts them.
    pub fn start(members: usize, nodes: u32) -> Self {
        Self::start_with(members, nodes, None)
    }

    /// The same, with one process that has no disks.
    pub fn start_with(members: usize, nodes: u32, without_disks: Option<u32>) -> Self {
        Self::start_over(members, nodes, without_disks, &[])
    }

    /// The same, with links over these providers of libfabric.
    pub fn start_over(
        members: usize,
        nodes: u32,
        without_disks: Option<u32>,
        providers: &[&str],
    ) -> Self {
        let site = Site::new();
        let ports = free_ports(members + 2);
        let etcd = start_etcd(&site, ports[0], ports[1]);
        let mut file = format!(
            "[coordination]\netcd = [\"http://127.0.0.1:{}\"]\nprefix = \"mdfs/test/\"\n\
             [links]\nfabric = {providers:?}\n\
             [volume]\nnodes = {nodes}\nstripe = \"64KiB\"\ndisks = 1\ndisk-size = \"256MiB\"\n",
            ports[0]
        );
        for (number, port) in (1..).zip(&ports[2..]) {
            let has_disks = without_disks != Some(number);
            let _ = write!(
                file,
                "[[process]]\nnumber = {number}\naddress = \"127.0.0.1:{port}\"\n\
                 directory = \"p{number}\"\ncache = \"32MiB\"\nhas-disks = {has_disks}\n"
            );
        }
        fs::write(site.path("cluster.toml"), file).unwrap();
        let ready = vec![String::new(); members];
        let members = (0..members).map(|_| None).collect();
        let mut cluster = Self { site, etcd, members, ready, starts: 0 };
        cluster.wait_for_etcd();
        for number in cluster.numbers() {
            cluster.start_member(number);
        }
        cluster
    }

    /// The numbers of its processes.
    pub fn numbers(&self) -> std::ops::RangeInclusive<usize> {
        1..=self.members.len()
    }

    fn wait_for_etcd(&self) {
        let begin = Instant::now();
        loop {
            let made = self.site.run(&["cluster", "init", "cluster.toml"]);
            if made.status.success() {
                return;
            }
            let told = String::from_utf8_lossy(&made.stderr);
            assert!(begin.elapsed() < ETCD_START_MAX, "no cluster was made: {told}");
            thread::sleep(Duration::from_millis(200));
        }
    }

    /// Starts a process that does not run.
    pub fn start_member(&mut self, number: usize) {
        self.starts += 1;
        let log = File::create(self.site.path(format!("p{number}.{}.log", self.starts))).unwrap();
        let number_text = number.to_string();
        let arguments = ["cluster", "serve", "cluster.toml", &number_text];
        let metrics = ["--metrics", "127.0.0.1:0"];
        let mut command = self.site.command(&[&arguments[..], &metrics].concat());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        command.env("MDFS_LOG", "info");
        self.members[number - 1] = Some(command.spawn().unwrap());
    }

    /// Waits until a process that was just started says that the volume answers.
    pub fn wait_until_ready(&mut self, number: usize) {
        let member = self.members[number - 1].as_mut().unwrap();
        let mut line = String::new();
        BufReader::new(member.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("ready"), "process {number}: '{line}', {}", self.logs());
        self.ready[number - 1] = line;
    }

    /// What a process counts, as Prometheus reads it.
    pub fn counts(&self, number: usize) -> String {
        let line = &self.ready[number - 1];
        let address = line.split_once("http://").and_then(|(_, rest)| rest.split_once('/'));
        get(address.expect("it has said where").0, "/metrics").1
    }

    /// The sum of all lines of a count that begin so.
    pub fn count(&self, number: usize, begins: &str) -> u64 {
        let counts = self.counts(number);
        let lines = counts.lines().filter(|line| line.starts_with(begins));
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
    }

    fn id(&self, number: usize) -> String {
        self.members[number - 1].as_ref().unwrap().id().to_string()
    }

    fn signal(&self, number: usize, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.id(number)]).status();
        assert!(sent.unwrap().success());
    }

    /// Ends a process in the middle of what it does.
    pub fn kill(&mut self, number: usize) {
        let mut member = self.members[number - 1].take().unwrap();
        member.kill().unwrap();
        member.wait().unwrap();
    }

    /// A process stands still.
    pub fn freeze(&self, number: usize) {
        self.signal(number, "-STOP");
    }

    /// And goes on.
    pub fn thaw(&self, number: usize) {
        self.signal(number, "-CONT");
    }

    /// If a process has ended because it lost its lease, starts it again, as a service manager does.
    pub fn restart_fenced(&mut self) -> usize {
        let mut restarted = 0;
        for number in self.numbers() {
            let Some(member) = &mut self.members[number - 1] else { continue };
            let Some(status) = member.try_wait().unwrap() else { continue };
            assert_eq!(status.code(), Some(FENCED), "process {number} ended: {}", self.logs());
            self.start_member(number);
            restarted += 1;
        }
        restarted
    }

    /// Asks a process to stop, and waits until it has, cleanly.
    pub fn stop_member(&mut self, number: usize) {
        self.signal(number, "-TERM");
        self.wait_for_end(number);
    }

    fn wait_for_end(&mut self, number: usize) {
        let status = self.members[number - 1].take().unwrap().wait().unwrap();
        assert!(status.success(), "process {number} ends with {status}: {}", self.logs());
    }

    /// Asks all processes to stop, and waits until they have, cleanly.
    pub fn stop(&mut self) {
        for number in self.numbers() {
            self.signal(number, "-TERM");
        }
        for number in self.numbers() {
            self.wait_for_end(number);
        }
    }

    /// Checks the disks of all processes, which have stopped.
    pub fn check(&self) -> String {
        let whole = self.site.path("whole");
        let disks = whole.join("disks");
        fs::create_dir_all(&disks).unwrap();
        for number in self.numbers() {
            let own = fs::read_dir(self.site.path(format!("p{number}/disks")));
            // One without disks has not even a place for them.
            for entry in own.into_iter().flatten() {
                let entry = entry.unwrap();
                let link = disks.join(entry.file_name());
                std::os::unix::fs::symlink(entry.path(), link).unwrap();
            }
        }
        let checked = self.site.run(&["check", "whole"]);
        let told = [checked.stdout, checked.stderr].concat();
        String::from_utf8_lossy(&told).into_owned()
    }

    /// The volume by way of one process, if it answers.
    pub fn open(&self, number: usize) -> Option<Volume> {
        client::volume::open(&self.directory(number)).ok()
    }

    /// The directory of a process.
    pub fn directory(&self, number: usize) -> PathBuf {
        self.site.path(format!("p{number}"))
    }

    /// Runs `mdfs` beside the machine file, `cluster.toml`.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.site.run(arguments)
    }

    /// `mdfs cluster status`.
    pub fn status(&self) -> serde_json::Value {
        let told = self.site.ok(&["cluster", "status", "cluster.toml", "--json"]);
        serde_json::from_str(&told).unwrap()
    }

    /// What all processes have said.
    pub fn logs(&self) -> String {
        let mut logs = String::new();
        for start in 1..=self.starts {
            for number in self.numbers() {
                let path = self.site.path(format!("p{number}.{start}.log"));
                if let Ok(text) = fs::read_to_string(path) {
                    let _ = write!(logs, "\n--- process {number}, start {start}:\n{text}");
                }
            }
        }
        logs
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for member in self.members.iter_mut().flatten() {
            let _ = member.kill();
            let _ = member.wait();
        }
        let _ = self.etcd.kill();
        let _ = self.etcd.wait();
        let logs = self.logs();
        if thread::panicking() {
            eprintln!("{logs}");
        } else {
            assert!(!logs.contains("panicked"), "{logs}");
        }
    }
}

fn start_etcd(site: &Site, client_port: u16, peer_port: u16) -> Child {
    let (client, peer) =
        (format!("http://127.0.0.1:{client_port}"), format!("http://127.0.0.1:{peer_port}"));
    let log = File::create(site.path("etcd.log")).unwrap();
    Command::new("etcd")
        .args(["--data-dir", "etcd", "--log-level", "error"])
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("default={peer}")])
        .current_dir(site.path(""))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("etcd is installed: cargo xtask test sees to that")
}
