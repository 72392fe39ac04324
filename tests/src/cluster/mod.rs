//! A cluster of real processes, with an etcd of its own: all on this host, or each on a host of its
//! own whose network can be cut.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use client::blocking::Volume;

use self::etcd::EtcdServers;
use self::hosts::{Host, Hosts};
use crate::client_host::{ClientHost, TOKEN};
use crate::http::get;
use crate::site::Site;

mod etcd;
pub mod hosts;
pub mod writers;

/// etcd has so much time to begin: on a busy host its first election takes a while.
const ETCD_START_MAX: Duration = Duration::from_secs(30);
/// What the exit code says of a process that did not find etcd when it started.
const NOT_STARTED: i32 = 1;
/// The pause of a service manager before it restarts a service (`RestartSec` of systemd).
const RESTART_PAUSE: Duration = Duration::from_secs(1);
/// A process that is asked to stop does so within this; it waits for the others as long as they may
/// be back.
const STOPPED_WITHIN: Duration = Duration::from_mins(1);
/// Where processes listen that have a host of their own.
const PORT: u16 = 7400;
const NFS_PORT: u16 = 2049;
/// Lines of the processes' output that a failed test prints: a reader of a report of many
/// tests shall see the reason too.
const LINES_TOLD: usize = 60;
/// Everybody may mount everything: those who ask come from other hosts.
const EXPORTS: &str = r#"
[[export]]
path = "/"
[[export.client]]
network = "*"
access = "rw"
squash = "no_root_squash"
secure = false
"#;

/// What a cluster is to be like.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Its processes.
    pub members: usize,
    /// File-system nodes of its volume.
    pub nodes: u32,
    /// One process may have no disks: the others go on without it.
    pub without_disks: Option<usize>,
    /// Number of processes, from the first on, that serve NFS.
    pub gateways: usize,
    /// Each process, etcd and the clients have hosts of their own, if this user may make them.
    pub on_hosts: bool,
    /// Hosts without a server, if there are hosts.
    pub client_hosts: usize,
    /// Servers of etcd.
    pub etcd_servers: usize,
    /// Providers of libfabric over which links go.
    pub fabric: &'static [&'static str],
    /// The class of its volume.
    pub redundancy: &'static str,
    /// Bytes of its stripes, of the disk of each process, and of the cache of each.
    pub sizes: [&'static str; 3],
}

impl Default for Shape {
    fn default() -> Self {
        let (without_disks, gateways, on_hosts, fabric) = (None, 0, false, &[][..]);
        let (members, nodes, client_hosts, etcd_servers) = (3, 12, 1, 1);
        Self {
            members,
            nodes,
            without_disks,
            gateways,
            on_hosts,
            client_hosts,
            etcd_servers,
            fabric,
            redundancy: "none",
            sizes: ["64KiB", "256MiB", "32MiB"],
        }
    }
}

/// A process of the cluster.
#[derive(Debug)]
struct Member {
    address: SocketAddr,
    nfs: Option<SocketAddr>,
    process: Option<Child>,
    /// What it has said last when it was ready.
    ready: String,
    /// It does not reach etcd, or did not when it was started.
    misses_etcd: bool,
    /// It ended by itself, and was not started again yet.
    ended: Option<Instant>,
}

/// A cluster; everything of it ends when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    site: Site,
    etcd: EtcdServers,
    members: Vec<Member>,
    starts: usize,
    hosts: Option<Hosts>,
}

/// A cut of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// A process is cut off from everybody.
    Whole(usize),
    /// Two processes are cut off from each other.
    Between(usize, usize),
    /// A process is cut off from etcd.
    FromEtcd(usize),
    /// A process hears only most of what it is sent.
    Partly(usize),
}

/// Ports of the host that were free just now.
fn free_ports(count: usize) -> Vec<u16> {
    let listeners: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}

impl Cluster {
    /// Makes a volume, and starts its processes.
    pub fn start(shape: Shape) -> Self {
        let mut cluster = Self::not_started(shape);
        for number in cluster.numbers() {
            cluster.start_member(number);
        }
        cluster
    }

    /// Makes a volume of which no process has run.
    pub fn not_started(shape: Shape) -> Self {
        let cluster = Self::not_made(shape);
        cluster.make();
        cluster
    }

    /// A machine file, and no volume yet.
    pub fn not_made(shape: Shape) -> Self {
        let site = Site::new();
        let hosts = shape.on_hosts.then(|| Hosts::make(shape.members + 1 + shape.client_hosts));
        let hosts = hosts.and_then(|made| {
            made.inspect_err(|why| eprintln!("all on one host, and no cuts, for: {why}")).ok()
        });
        let ports = free_ports(2 * shape.members);
        let etcd_host = hosts.as_ref().map(|hosts| hosts.host(shape.members));
        let etcd = EtcdServers::start(site.path(""), etcd_host, shape.etcd_servers);
        let places = ports.chunks(2).take(shape.members).enumerate();
        let members = places.map(|(at, ports)| {
            let host = hosts.as_ref().map(|hosts| hosts.host(at).address);
            let address = |port, own| match host {
                Some(host) => SocketAddr::from((host, own)),
                None => SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            };
            let nfs = (at < shape.gateways).then(|| address(ports[1], NFS_PORT));
            let address = address(ports[0], PORT);
            let (process, ready) = (None, String::new());
            Member { address, nfs, process, ready, misses_etcd: false, ended: None }
        });
        let members = members.collect();
        let cluster = Self { site, etcd, members, starts: 0, hosts };
        fs::write(cluster.site.path("cluster.toml"), cluster.machine_file(shape)).unwrap();
        fs::write(cluster.site.path("exports.toml"), EXPORTS).unwrap();
        cluster
    }

    /// Starts them, and waits until the volume answers by way of each.
    pub fn started(shape: Shape) -> Self {
        let mut cluster = Self::start(shape);
        for member in cluster.numbers() {
            cluster.wait_until_ready(member);
        }
        cluster
    }

    fn machine_file(&self, shape: Shape) -> String {
        let [stripe, disk, cache] = shape.sizes;
        let mut file = format!(
            "[coordination]\netcd = {:?}\nprefix = \"mdfs/test/\"\n\
             [links]\nfabric = {:?}\n\
             [volume]\nnodes = {}\nstripe = {stripe:?}\ndisks = 1\ndisk-size = {disk:?}\n\
             redundancy = {:?}\n",
            self.etcd.urls(),
            shape.fabric,
            shape.nodes,
            shape.redundancy
        );
        for (number, member) in (1..).zip(&self.members) {
            let (address, has_disks) = (member.address, shape.without_disks != Some(number));
            let _ = write!(
                file,
                "[[process]]\nnumber = {number}\naddress = \"{address}\"\n\
                 directory = \"p{number}\"\ncache = {cache:?}\nhas-disks = {has_disks}\n"
            );
        }
        file
    }

    /// One more process in the machine file, with `more` lines about it, and its keys. Its number.
    pub fn add_process(&mut self, more: &str) -> usize {
        let number = self.members.len() + 1;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_ports(1)[0]));
        let path = self.path("cluster.toml");
        let mut file = fs::read_to_string(&path).unwrap();
        let _ = write!(
            file,
            "[[process]]\nnumber = {number}\naddress = \"{address}\"\ndirectory = \"p{number}\"\n\
             cache = \"32MiB\"\n{more}"
        );
        fs::write(&path, file).unwrap();
        self.site.ok(&["cluster", "certify", "cluster.toml"]);
        let (process, ready) = (None, String::new());
        let member = Member { address, nfs: None, process, ready, misses_etcd: false, ended: None };
        self.members.push(member);
        number
    }

    /// The processes that run.
    pub fn running(&self) -> Vec<usize> {
        let runs = |number: &usize| self.members[number - 1].process.is_some();
        self.numbers().filter(runs).collect()
    }

    /// Has each process a host of its own?
    pub fn has_hosts(&self) -> bool {
        self.hosts.is_some()
    }

    /// The host of a process, where it has one of its own.
    fn host_of(&self, number: usize) -> Option<&Host> {
        self.hosts.as_ref().map(|hosts| hosts.host(number - 1))
    }

    /// Bytes that the hosts of all processes have sent to others.
    pub fn bytes_sent(&self) -> u64 {
        self.numbers().filter_map(|number| self.host_of(number)).map(Host::bytes_sent).sum()
    }

    /// Limits the links of the hosts of processes and of clients to `rate`, in the words of `tc`.
    /// False if there are none.
    pub fn limit_links(&self, rate: &str) -> Result<bool, String> {
        let Some(hosts) = &self.hosts else { return Ok(false) };
        for at in (0..hosts.count()).filter(|at| *at != self.members.len()) {
            hosts.limit(at, rate)?;
        }
        Ok(true)
    }

    /// Where etcd is, and who administers.
    fn etcd_host(&self) -> Option<&Host> {
        self.hosts.as_ref().map(|hosts| hosts.host(self.members.len()))
    }

    /// Where clients are that use NFS.
    pub fn client_host(&self) -> Option<&Host> {
        self.hosts.as_ref().map(|hosts| hosts.host(self.members.len() + 1))
    }

    /// The hosts without a server, which reach the volume by its address and as root; none without
    /// hosts.
    pub fn client_hosts(&self) -> Vec<ClientHost> {
        let Some(hosts) = &self.hosts else { return Vec::new() };
        let address = self.client_address();
        let folder = self.site.path("");
        let own = self.members.len() + 1..hosts.count();
        let client = |at| ClientHost {
            folder: folder.clone(),
            host: hosts.host(at).clone(),
            address: address.clone(),
        };
        own.map(client).collect()
    }

    /// The address of the volume for clients that are no process of the cluster, and a file with
    /// their token in the folder of the test.
    pub fn client_address(&self) -> String {
        let user = ["--user", "0", "--groups", "0", "--out", TOKEN];
        self.site.ok(&[&["token", "create", "p1", "--keys", "keys"], &user[..]].concat());
        let servers: Vec<String> =
            self.members.iter().map(|member| member.address.to_string()).collect();
        format!("mdfs://{}/test", servers.join(","))
    }

    /// A path in the folder of the test.
    pub fn path(&self, name: &str) -> PathBuf {
        self.site.path(name)
    }

    /// Cuts the network, which must be whole, or mends it.
    ///
    /// # Panics
    ///
    /// If the processes have no hosts.
    pub fn cut(&mut self, cut: Cut, is_cut: bool) {
        let hosts = self.hosts.as_ref().expect("processes with hosts");
        let done = match cut {
            Cut::Whole(number) => hosts.plug(number - 1, !is_cut),
            Cut::Between(one, other) => hosts.part([one - 1, other - 1], is_cut),
            Cut::FromEtcd(number) => hosts.part([number - 1, self.members.len()], is_cut),
            Cut::Partly(number) => hosts.lose(number - 1, is_cut),
        };
        done.expect("the switch does as it is told");
        match cut {
            Cut::Whole(number) | Cut::FromEtcd(number) | Cut::Partly(number) if is_cut => {
                self.members[number - 1].misses_etcd = true;
            }
            _ => {}
        }
    }

    /// The network is whole, and processes that are started find etcd.
    pub fn is_mended(&mut self) {
        self.members.iter_mut().for_each(|member| member.misses_etcd = false);
    }

    /// The numbers of its processes.
    pub fn numbers(&self) -> std::ops::RangeInclusive<usize> {
        1..=self.members.len()
    }

    /// Makes the volume of the machine file, once etcd answers.
    pub fn make(&self) {
        let begin = Instant::now();
        loop {
            let made = self.run(&["cluster", "init", "cluster.toml"]);
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
        self.start_member_with(number, &[]);
    }

    /// The same, with `more` on its command line.
    pub fn start_member_with(&mut self, number: usize, more: &[&str]) {
        self.starts += 1;
        let log = File::create(self.site.path(format!("p{number}.{}.log", self.starts))).unwrap();
        let number_text = number.to_string();
        let mut arguments = vec!["cluster", "serve", "cluster.toml", &number_text];
        let nfs = self.members[number - 1].nfs.map(|nfs| nfs.to_string());
        if let Some(nfs) = &nfs {
            arguments.extend(["--nfs", nfs, "--exports", "exports.toml"]);
        }
        arguments.extend(["--metrics", "127.0.0.1:0"]);
        arguments.extend(more);
        let mut command = self.site.command_at(self.host_of(number), &arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        command.env("MDFS_LOG", "info");
        let process = command.spawn().unwrap();
        let member = &mut self.members[number - 1];
        (member.process, member.ended) = (Some(process), None);
    }

    /// All servers of etcd stand still, or go on.
    pub fn freeze_etcd(&self, frozen: bool) {
        (0..self.etcd.count()).for_each(|at| self.etcd.freeze(at, frozen));
    }

    /// The server of etcd that leads stands still, for a while.
    pub fn freeze_etcd_leader(&self, pause: Duration) {
        let leader = self.etcd.leader().expect("one leads");
        self.etcd.freeze(leader, true);
        thread::sleep(pause);
        self.etcd.freeze(leader, false);
    }

    /// The server of etcd that leads ends in the middle of what it does, and starts again after a
    /// while.
    pub fn kill_etcd_leader(&mut self, pause: Duration) {
        let leader = self.etcd.leader().expect("one leads");
        self.etcd.kill(leader);
        thread::sleep(pause);
        self.etcd.start_one(leader);
    }

    /// All servers of etcd end in the middle of what they do, and start again after a while.
    pub fn kill_etcd(&mut self, pause: Duration) {
        (0..self.etcd.count()).for_each(|at| self.etcd.kill(at));
        thread::sleep(pause);
        (0..self.etcd.count()).for_each(|at| self.etcd.start_one(at));
    }

    /// etcd is lost with all that it held, and another one is there. The processes have stopped.
    pub fn lose_etcd(&mut self) {
        self.replace_etcd(|data| fs::remove_dir_all(data).unwrap());
    }

    /// The only server of etcd stops, what it holds on its disk is `changed`, and it starts again.
    pub fn replace_etcd(&mut self, changed: impl FnOnce(&std::path::Path)) {
        self.etcd.replace(changed);
        let begin = Instant::now();
        loop {
            let told = self.run(&["cluster", "status", "cluster.toml"]);
            let text = String::from_utf8(told.stderr).unwrap();
            if told.status.success() || text.contains("no cluster under this prefix") {
                return;
            }
            assert!(begin.elapsed() < ETCD_START_MAX, "etcd does not begin: {text}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until a process that was just started says that the volume answers.
    pub fn wait_until_ready(&mut self, number: usize) {
        let process = self.members[number - 1].process.as_mut().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("ready"), "process {number}: '{line}'");
        self.members[number - 1].ready = line;
    }

    /// What a process counts, as Prometheus reads it.
    pub fn counts(&self, number: usize) -> String {
        let line = &self.members[number - 1].ready;
        let address = line.split_once("http://").and_then(|(_, rest)| rest.split_once('/'));
        let address = address.expect("it has said where").0;
        let ask = || get(address, "/metrics").1;
        self.host_of(number).map_or_else(ask, |host| host.run(ask))
    }

    /// The sum of all lines of a count that begin so.
    pub fn count(&self, number: usize, begins: &str) -> u64 {
        let counts = self.counts(number);
        let lines = counts.lines().filter(|line| line.starts_with(begins));
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
    }

    fn id(&self, number: usize) -> String {
        self.members[number - 1].process.as_ref().unwrap().id().to_string()
    }

    fn signal(&self, number: usize, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.id(number)]).status();
        assert!(sent.unwrap().success());
    }

    /// Ends a process in the middle of what it does.
    pub fn kill(&mut self, number: usize) {
        let mut process = self.members[number - 1].process.take().unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// A process stands still.
    pub fn freeze(&self, number: usize) {
        self.signal(number, "-STOP");
    }

    /// And goes on.
    pub fn thaw(&self, number: usize) {
        self.signal(number, "-CONT");
    }

    /// Starts processes again that did not find etcd behind a cut, as a service manager does. How
    /// many were started. No other fault ends a process.
    pub fn restart_ended(&mut self) -> usize {
        let mut restarted = 0;
        for number in self.numbers() {
            let member = &mut self.members[number - 1];
            if let Some(process) = &mut member.process
                && let Some(status) = process.try_wait().unwrap()
            {
                let is_expected = status.code() == Some(NOT_STARTED) && member.misses_etcd;
                assert!(is_expected, "process {number} ends with {status}");
                eprintln!("process {number} has ended with {status}");
                (member.process, member.ended) = (None, Some(Instant::now()));
            }
            if member.ended.is_some_and(|ended| ended.elapsed() >= RESTART_PAUSE) {
                self.start_member(number);
                restarted += 1;
            }
        }
        restarted
    }

    /// Asks a process to stop, and waits until it has, cleanly.
    pub fn stop_member(&mut self, number: usize) {
        self.signal(number, "-TERM");
        self.wait_for_end(number);
    }

    fn wait_for_end(&mut self, number: usize) {
        let begin = Instant::now();
        loop {
            let process = self.members[number - 1].process.as_mut().unwrap();
            if let Some(status) = process.try_wait().unwrap() {
                self.members[number - 1].process = None;
                return assert!(status.success(), "process {number} ends with {status}");
            }
            assert!(begin.elapsed() < STOPPED_WITHIN, "process {number} does not end");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Asks all processes that run to stop, and waits until they have, cleanly.
    pub fn stop(&mut self) {
        let running = self.running();
        for &number in &running {
            self.signal(number, "-TERM");
        }
        for number in running {
            self.wait_for_end(number);
        }
    }

    /// Checks the disks of all processes, which have stopped.
    pub fn check(&self) -> String {
        let whole = self.site.path("whole");
        let disks = whole.join("disks");
        // As `mdfs format` makes them: for their owner only.
        for folder in [&whole, &disks] {
            fs::DirBuilder::new().mode(0o700).create(folder).unwrap();
        }
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

    /// Where those processes that serve NFS do so.
    pub fn gateways(&self) -> Vec<SocketAddr> {
        self.members.iter().filter_map(|member| member.nfs).collect()
    }

    /// Runs `mdfs` beside the machine file, `cluster.toml`, where etcd is.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.site.command_at(self.etcd_host(), arguments).output().unwrap()
    }

    /// `mdfs cluster status`.
    pub fn status(&self) -> serde_json::Value {
        let told = self.run(&["cluster", "status", "cluster.toml", "--json"]);
        assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
        serde_json::from_slice(&told.stdout).unwrap()
    }

    /// What all processes have said, in the order of time, each line with who said it.
    pub fn log(&self) -> Vec<String> {
        let mut log = Vec::new();
        for start in 1..=self.starts {
            for number in self.numbers() {
                let path = self.site.path(format!("p{number}.{start}.log"));
                let text = fs::read_to_string(path).unwrap_or_default();
                let mut time = "";
                for line in text.lines() {
                    // What is not a line of the log belongs to the line before.
                    if let Some((begins, _)) = line.split_once(' ')
                        && begins.ends_with('Z')
                    {
                        time = begins;
                    }
                    log.push((time.to_owned(), format!("{number}.{start}: {line}")));
                }
            }
        }
        log.sort_by(|(one, _), (other, _)| one.cmp(other));
        log.into_iter().map(|(_, line)| line).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for process in self.members.iter_mut().filter_map(|member| member.process.as_mut()) {
            let _ = process.kill();
            let _ = process.wait();
        }
        let log = self.log();
        let last = log[log.len().saturating_sub(LINES_TOLD)..].join("\n");
        if thread::panicking() {
            eprintln!("the last that the processes said (process.start):\n{last}");
        } else {
            assert!(!log.iter().any(|line| line.contains("panicked")), "{last}");
        }
    }
}
