//! Hosts as network namespaces: each has an address of its own, and a switch between them that can
//! be told to forget what they send.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Where `ip` keeps the namespaces that have names.
const NAMESPACES: &str = "/run/netns";
/// How all names of ours begin.
const PREFIX: &str = "mdfs-test-";
/// The namespace that has the bridge.
const SWITCH: &str = "switch";
/// A host with a bad cable loses one packet in this number.
const LOST_OF: u32 = 20;
/// Clusters that this process has made hosts for.
static MADE: AtomicU32 = AtomicU32::new(0);

/// A host: what runs there has a network of its own.
#[derive(Clone, Debug)]
pub struct Host {
    /// Of the namespace.
    name: String,
    /// Of its port at the switch.
    port: String,
    /// Its address.
    pub address: Ipv4Addr,
}

impl Host {
    /// The words before a command that shall run there.
    pub fn words(&self) -> [&str; 4] {
        ["ip", "netns", "exec", &self.name]
    }

    /// The same, with the mounts of this host.
    pub fn words_with_mounts(&self) -> [String; 2] {
        let namespace = Path::new(NAMESPACES).join(&self.name);
        ["nsenter".to_owned(), format!("--net={}", namespace.display())]
    }

    /// Connects to `to` from there.
    pub fn connect(&self, to: SocketAddr, within: Duration) -> io::Result<TcpStream> {
        self.run(|| TcpStream::connect_timeout(&to, within))
    }

    /// Bytes that it has sent to other hosts.
    pub fn bytes_sent(&self) -> u64 {
        let counts = self.run(|| fs::read_to_string("/proc/thread-self/net/dev").unwrap());
        let line = counts.lines().find_map(|line| line.trim_start().strip_prefix("eth0:"));
        // Eight counts of what was received come first.
        line.unwrap().split_whitespace().nth(8).unwrap().parse().unwrap()
    }

    /// Does `work` there, on a thread of its own; threads that it makes stay there.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(Path::new(NAMESPACES).join(&self.name)).unwrap();
        // A thread that has moved stays there; its sockets stay there too.
        let moved = move || {
            let network = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(namespace.as_fd(), network).unwrap();
            work()
        };
        thread::scope(|scope| scope.spawn(moved).join().unwrap())
    }
}

/// Some hosts and the switch between them; gone when dropped.
#[derive(Debug)]
pub struct Hosts {
    switch: String,
    all: Vec<Host>,
}

impl Hosts {
    /// Makes `count` hosts. The error says why this user may not, or that `ip` or `nft` is missing.
    pub fn make(count: usize) -> Result<Self, String> {
        sweep();
        let number = MADE.fetch_add(1, Relaxed);
        let name = |end: &str| format!("{PREFIX}{}-{number}-{end}", std::process::id());
        let mut hosts = Self { switch: name(SWITCH), all: Vec::new() };
        let switch = hosts.switch.clone();
        run(&["ip", "netns", "add", &switch])?;
        run(&["ip", "-n", &switch, "link", "add", "name", "bridge0", "type", "bridge"])?;
        run(&["ip", "-n", &switch, "link", "set", "dev", "bridge0", "up"])?;
        for at in 0..count {
            let port = format!("port{at}");
            let last = u8::try_from(at + 1).unwrap();
            let host = Host { name: name(&port), port, address: Ipv4Addr::new(10, 0, 0, last) };
            hosts.all.push(host.clone());
            let (name, port) = (&host.name[..], &host.port[..]);
            run(&["ip", "netns", "add", name])?;
            let pair = ["type", "veth", "peer", "name", "eth0", "netns", name];
            run(&[&["ip", "-n", &switch, "link", "add", "name", port], &pair[..]].concat())?;
            run(&["ip", "-n", &switch, "link", "set", "dev", port, "master", "bridge0", "up"])?;
            // Not to find out in the middle of a test that this cannot be done.
            hosts.part([at, at], false)?;
            let address = format!("{}/24", host.address);
            run(&["ip", "-n", name, "addr", "add", &address, "dev", "eth0"])?;
            run(&["ip", "-n", name, "link", "set", "dev", "eth0", "up"])?;
            run(&["ip", "-n", name, "link", "set", "dev", "lo", "up"])?;
            hosts.lose(at, true)?;
            hosts.lose(at, false)?;
        }
        Ok(hosts)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// One of them.
    pub fn host(&self, at: usize) -> &Host {
        &self.all[at]
    }

    /// Limits the link of a host in both directions.
    pub fn limit(&self, at: usize, rate: &str) -> Result<(), String> {
        let Host { name, port, .. } = &self.all[at];
        for (namespace, device) in [(&name[..], "eth0"), (&self.switch[..], &port[..])] {
            let bucket = ["tbf", "rate", rate, "burst", "256kb", "latency", "100ms"];
            let added = ["-n", namespace, "qdisc", "add", "dev", device, "root"];
            run(&[&["tc"], &added[..], &bucket[..]].concat())?;
        }
        Ok(())
    }

    /// Pulls the cable of a host, or puts it back.
    pub fn plug(&self, at: usize, plugged: bool) -> Result<(), String> {
        let state = if plugged { "up" } else { "down" };
        let port = &self.all[at].port;
        run(&["ip", "-n", &self.switch, "link", "set", "dev", port, state])
    }

    /// A host loses some of the packets that it is sent, at random, or no more.
    pub fn lose(&self, at: usize, loses: bool) -> Result<(), String> {
        let rules = if loses {
            format!(
                "table inet loss {{ chain heard {{ type filter hook input priority 0; \
                 iifname eth0 numgen random mod {LOST_OF} 0 drop; }}; }}"
            )
        } else {
            "delete table inet loss".to_owned()
        };
        run(&[&self.all[at].words()[..], &["nft", &rules]].concat())
    }

    /// Forgets all that two hosts send each other, or no more. Only one pair can be parted at a
    /// time: the switch keeps all *isolated* ports from each other.
    pub fn part(&self, pair: [usize; 2], parted: bool) -> Result<(), String> {
        for at in pair {
            let (port, state) = (&self.all[at].port, if parted { "on" } else { "off" });
            let isolated = ["link", "set", "dev", port, "isolated", state];
            run(&[&["bridge", "-n", &self.switch], &isolated[..]].concat())?;
        }
        Ok(())
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in self.all.iter().map(|host| &host.name).chain([&self.switch]) {
            // One that could not be made is not there.
            let _ = run(&["ip", "netns", "del", name]);
        }
    }
}

/// Removes the hosts of test processes that were killed.
fn sweep() {
    for entry in std::fs::read_dir(NAMESPACES).into_iter().flatten().flatten() {
        let name = entry.file_name().into_string().unwrap_or_default();
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        let is_gone = owner.is_some_and(|id| !Path::new("/proc").join(id).exists());
        if is_gone {
            let _ = run(&["ip", "netns", "del", &name]);
        }
    }
}

fn run(words: &[&str]) -> Result<(), String> {
    let line = words.join(" ");
    let mut command = Command::new(words[0]);
    let done = command.args(&words[1..]).stdin(Stdio::null()).output();
    let done = done.map_err(|error| format!("{line}: {error}"))?;
    if done.status.success() {
        Ok(())
    } else {
        Err(format!("{line}: {}", String::from_utf8_lossy(&done.stderr).trim_end()))
    }
}
