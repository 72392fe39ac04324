//! The servers of etcd of a cluster, on one host.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::free_ports;
use super::hosts::Host;

/// A server that answers at all does so within this.
const PATIENCE: Duration = Duration::from_secs(2);

/// One server.
#[derive(Debug)]
struct EtcdServer {
    client: SocketAddr,
    peer: SocketAddr,
    process: Option<Child>,
}

/// All of them; they end when this is dropped.
#[derive(Debug)]
pub(super) struct EtcdServers {
    folder: PathBuf,
    host: Option<Host>,
    servers: Vec<EtcdServer>,
}

impl EtcdServers {
    /// Starts `count` servers that keep their data in `folder`.
    pub(super) fn start(folder: PathBuf, host: Option<&Host>, count: usize) -> Self {
        let address = host.map_or(Ipv4Addr::LOCALHOST, |host| host.address);
        let ports = free_ports(2 * count);
        let server = |ports: &[u16]| {
            let [client, peer] = [ports[0], ports[1]].map(|port| SocketAddr::from((address, port)));
            EtcdServer { client, peer, process: None }
        };
        let servers = ports.chunks(2).map(server).collect();
        let mut etcd = Self { folder, host: host.cloned(), servers };
        (0..count).for_each(|at| etcd.start_one(at));
        etcd
    }

    /// Where clients find them.
    pub(super) fn urls(&self) -> Vec<String> {
        self.servers.iter().map(|server| format!("http://{}", server.client)).collect()
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.servers.len()
    }

    /// Where a server keeps its data.
    pub(super) fn data(&self, at: usize) -> PathBuf {
        self.folder.join(if at == 0 { "etcd".to_owned() } else { format!("etcd-{at}") })
    }

    /// Starts a server that does not run.
    pub(super) fn start_one(&mut self, at: usize) {
        let urls = |server: &EtcdServer| {
            (format!("http://{}", server.client), format!("http://{}", server.peer))
        };
        let all: Vec<String> = (self.servers.iter().enumerate())
            .map(|(at, server)| format!("e{at}={}", urls(server).1))
            .collect();
        let (client, peer) = urls(&self.servers[at]);
        let log = File::options().create(true).append(true).open(self.folder.join("etcd.log"));
        // With the mounts of this host: a copy of one, made for etcd, could not be unmounted.
        let words = self.host.as_ref().map(Host::words_with_mounts).into_iter().flatten();
        let words: Vec<String> = words.chain(["etcd".to_owned()]).collect();
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .args(["--name", &format!("e{at}"), "--log-level", "error", "--data-dir"])
            .arg(self.data(at))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &all.join(",")])
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.unwrap());
        let process = command.spawn().expect("etcd is installed: cargo xtask test sees to that");
        self.servers[at].process = Some(process);
    }

    /// Ends a server in the middle of what it does.
    pub(super) fn kill(&mut self, at: usize) {
        if let Some(mut process) = self.servers[at].process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// A server stands still, or goes on.
    pub(super) fn freeze(&self, at: usize, frozen: bool) {
        let Some(process) = &self.servers[at].process else { return };
        let (signal, id) = (if frozen { "-STOP" } else { "-CONT" }, process.id().to_string());
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }

    /// Which one leads, if one does.
    pub(super) fn leader(&self) -> Option<usize> {
        (0..self.count()).find(|&at| {
            let status = self.status(at).unwrap_or_default();
            let leads = status["leader"].as_str().filter(|leader| *leader != "0");
            leads.is_some() && status["leader"] == status["header"]["member_id"]
        })
    }

    fn status(&self, at: usize) -> Option<serde_json::Value> {
        let to = self.servers[at].client;
        let stream = match &self.host {
            Some(host) => host.connect(to, PATIENCE),
            None => TcpStream::connect_timeout(&to, PATIENCE),
        };
        let mut stream = stream.ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        let request = "POST /v3/maintenance/status HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}";
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
    }

    /// The only server stops, what it holds on its disk is `changed`, and it starts again.
    pub(super) fn replace(&mut self, changed: impl FnOnce(&Path)) {
        self.kill(0);
        changed(&self.data(0));
        self.start_one(0);
    }
}

impl Drop for EtcdServers {
    fn drop(&mut self) {
        for process in self.servers.iter_mut().filter_map(|server| server.process.as_mut()) {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
