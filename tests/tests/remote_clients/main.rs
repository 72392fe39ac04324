//! Programs of hosts that have no server: each host is a network namespace, and the volume is
//! reached over TCP and TLS only. They go on when servers are killed and come back.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

mod cluster;
mod delivery;
mod deposits;
mod fabric;
mod programs;
mod restarts;
mod rounds;
mod subtree;
mod unsynced;
mod users;
mod waiting;

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use tests::client_host::{ClientHost, TOKEN};
use tests::cluster::hosts::Hosts;
use tests::mounted::may_mount;
use tests::{Content, Site};

/// How often the server is killed under its clients.
const KILLS: u64 = 4;
/// The server is away for this time after each kill.
const AWAY: Duration = Duration::from_millis(500);

/// A volume that is served to other hosts.
struct RemoteSite {
    site: Site,
    hosts: Hosts,
    server: Option<Child>,
    /// More arguments of the server.
    more: Vec<String>,
}

impl RemoteSite {
    /// The server has one host, its clients another one.
    fn start() -> Self {
        Self::start_with_clients(1)
    }

    /// The server has one host, its clients `clients` others.
    fn start_with_clients(clients: usize) -> Self {
        Self::start_with(clients, |_| Vec::new())
    }

    /// The same with more arguments of the server, which has this address.
    fn start_with(clients: usize, more: impl FnOnce(&str) -> Vec<String>) -> Self {
        let (site, hosts) = (Site::formatted(2048, 16), Hosts::make(1 + clients).unwrap());
        let more = more(&hosts.host(0).address.to_string());
        let mut remote = Self { site, hosts, server: None, more };
        remote.serve();
        let token = ["token", "create", "VOL", "--user", "0", "--groups", "0", "--out", TOKEN];
        remote.site.ok(&token);
        remote
    }

    fn client(&self) -> ClientHost {
        self.client_at(1)
    }

    /// A host of clients, counted from 1.
    fn client_at(&self, number: usize) -> ClientHost {
        ClientHost {
            folder: self.site.path(""),
            host: self.hosts.host(number).clone(),
            address: format!("mdfs://{}:7400/VOL", self.hosts.host(0).address),
        }
    }

    fn serve(&mut self) {
        let host = self.hosts.host(0).clone();
        let listen = format!("{}:7400", host.address);
        let at_server = ClientHost { host, ..self.client() };
        // Beside the sockets of this host: the server is killed, not the words before it.
        let mut command = at_server.command(&["serve", "VOL", "--listen", &listen]);
        command.args(&self.more);
        let log = OpenOptions::new().create(true).append(true).open(self.site.path("server.log"));
        command.stdout(Stdio::piped()).stderr(log.unwrap());
        let mut server = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let log = fs::read_to_string(self.site.path("server.log")).unwrap();
        assert!(line.starts_with("ready"), "{line}{log}");
        self.server = Some(server);
    }

    /// Ends the server in the middle of what it does, and starts it again after a while.
    fn kill_and_serve(&mut self) {
        let mut server = self.server.take().unwrap();
        server.kill().unwrap();
        server.wait().unwrap();
        thread::sleep(AWAY);
        self.serve();
    }

    /// Ends the server in order, and starts it again.
    fn stop_and_serve(&mut self) {
        let mut server = self.server.take().unwrap();
        let asked = Command::new("kill").args(["-TERM", &server.id().to_string()]).status();
        assert!(asked.unwrap().success());
        assert!(server.wait().unwrap().success(), "the server ends cleanly");
        self.serve();
    }

    #[track_caller]
    #[allow(clippy::unused_self, reason = "as the others")]
    fn refused(&self, mut command: Command, words: &[&str]) {
        let output = command.output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{told}");
        for word in words {
            assert!(told.contains(word), "'{word}' is not in: {told}");
        }
    }

    /// A file of random bytes on this host.
    fn random_file(&self, name: &str, bytes: u64) -> Vec<u8> {
        let content = Content { seed: bytes, length: bytes }.bytes();
        fs::write(self.site.path(name), &content).unwrap();
        content
    }
}

impl Drop for RemoteSite {
    fn drop(&mut self) {
        if let Some(server) = &mut self.server {
            let _ = server.kill();
            let _ = server.wait();
        }
        let log = fs::read_to_string(self.site.path("server.log")).unwrap_or_default();
        if thread::panicking() {
            eprintln!("the server said: {log}");
        } else {
            assert!(!log.contains("panicked"), "{log}");
        }
    }
}

#[test]
fn programs_of_another_host_use_a_volume_by_its_address() {
    if !may_mount() {
        return;
    }
    let remote = RemoteSite::start();
    let client = remote.client();
    let content = remote.random_file("in", 9 << 20);
    client.ok(&["cp", "in", &client.at("/stored")]);
    client.ok(&["cp", "--verify", &client.at("/stored"), "out"]);
    assert!(fs::read(remote.site.path("out")).unwrap() == content);
    assert_eq!(client.ok(&["ls", &client.at("/")]), "stored\n");
    assert!(client.ok(&["df", &client.address]).contains(&client.address));
    client.ok(&["mkdir", &client.at("/d")]);
    client.ok(&["mv", &client.at("/stored"), &client.at("/d")]);

    let mounted = client.mount("mnt", &["--cache-ms", "0"]);
    assert!(fs::read(mounted.path("d/stored")).unwrap() == content);
    fs::write(mounted.path("written"), "by the mount").unwrap();
    assert_eq!(client.ok(&["cat", &client.at("/written")]), "by the mount");
    client.ok(&["rm", &client.at("/written")]);
    assert!(!mounted.path("written").exists());
    mounted.unmount();
}

#[test]
fn who_proves_nothing_or_asks_for_another_volume_is_refused() {
    if !may_mount() {
        return;
    }
    let remote = RemoteSite::start();
    let client = remote.client();
    let mut unknown = client.command(&["ls", &client.at("/")]);
    unknown
        .env_remove("MDFS_TOKEN")
        .env("HOME", remote.site.path(""))
        .env_remove("XDG_CONFIG_HOME");
    remote.refused(unknown, &["cannot open volume", "--token"]);
    let other = client.at("/").replace("/VOL", "/other");
    remote.refused(client.command(&["ls", &other]), &["no volume 'other'", "'VOL'"]);
}

#[test]
fn a_copy_and_a_mount_of_another_host_go_on_when_the_server_is_killed() {
    if !may_mount() {
        return;
    }
    let mut remote = RemoteSite::start();
    let client = remote.client();
    let content = remote.random_file("in", 64 << 20);
    let mounted = client.mount("mnt", &["--cache-ms", "0"]);
    let file = File::create_new(mounted.path("open")).unwrap();
    for round in 0..KILLS {
        let stored = client.at(&format!("/stored-{round}"));
        let mut copy =
            client.command(&["cp", "in", &stored]).stderr(Stdio::piped()).spawn().unwrap();
        thread::sleep(Duration::from_millis(100 + 150 * round));
        remote.kill_and_serve();
        // What was synced before the kill, and what is written after it.
        file.write_all_at(&round.to_le_bytes(), 8 * round).unwrap();
        file.sync_all().unwrap();
        let mut log =
            OpenOptions::new().append(true).create(true).open(mounted.path("log")).unwrap();
        writeln!(log, "{round}").unwrap();
        log.sync_all().unwrap();
        let copied = copy.wait().unwrap();
        let mut told = String::new();
        copy.stderr.take().unwrap().read_to_string(&mut told).unwrap();
        assert!(copied.success(), "round {round}: {told}");
        client.ok(&["cp", &stored, "out"]);
        assert!(fs::read(remote.site.path("out")).unwrap() == content, "round {round}");
    }
    let read = fs::read(mounted.path("open")).unwrap();
    for round in 0..KILLS {
        let number = &read[8 * round as usize..][..8];
        assert_eq!(number, round.to_le_bytes());
    }
    let expected: Vec<String> = (0..KILLS).map(|round| format!("{round}\n")).collect();
    assert_eq!(fs::read_to_string(mounted.path("log")).unwrap(), expected.concat());
    drop(file);
    mounted.unmount();
}
