//! Programs of hosts that have no server: each host is a network namespace, and the volume is
//! reached over TCP and TLS only. They go on when the server is killed and comes back.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use runtime::seed::Rng;
use tests::Site;
use tests::cluster::hosts::{Host, Hosts};
use tests::mounted::may_mount;

/// How often the server is killed under its clients.
const KILLS: u64 = 4;
/// The server is away for this time after each kill.
const AWAY: Duration = Duration::from_millis(500);
/// A mount is there within this time.
const SOON: Duration = Duration::from_secs(20);

/// A volume that is served to other hosts.
struct RemoteSite {
    site: Site,
    hosts: Hosts,
    server: Option<Child>,
}

impl RemoteSite {
    /// The server has one host, its clients another one.
    fn start() -> Self {
        let site = Site::formatted(1024, 16);
        let mut remote = Self { site, hosts: Hosts::make(2).unwrap(), server: None };
        remote.serve();
        let token = ["token", "create", "VOL", "--user", "0", "--groups", "0", "--out", "token"];
        remote.site.ok(&token);
        remote
    }

    fn server_host(&self) -> &Host {
        self.hosts.host(0)
    }

    fn client_host(&self) -> &Host {
        self.hosts.host(1)
    }

    fn address(&self) -> String {
        format!("mdfs://{}:7400/VOL", self.server_host().address)
    }

    fn serve(&mut self) {
        let listen = format!("{}:7400", self.server_host().address);
        let arguments = ["serve", "VOL", "--listen", &listen];
        // Beside the sockets of this host: the server is killed, not the words before it.
        let mut command = self.on(self.server_host(), &arguments);
        let log = OpenOptions::new().create(true).append(true).open(self.site.path("server.log"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log.unwrap());
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

    /// The program at a host, with the mounts of this one.
    fn on(&self, host: &Host, arguments: &[&str]) -> Command {
        let program = self.site.command(&[]);
        let words = host.words_with_mounts();
        let mut command = Command::new(&words[0]);
        command.arg(&words[1]).arg(program.get_program()).args(arguments);
        command.current_dir(self.site.path("")).env("MDFS_TOKEN", self.site.path("token"));
        command
    }

    /// The program at the client's host.
    fn client(&self, arguments: &[&str]) -> Command {
        self.on(self.client_host(), arguments)
    }

    #[track_caller]
    fn ok(&self, arguments: &[&str]) -> String {
        let Output { status, stdout, stderr } = self.client(arguments).output().unwrap();
        let told = String::from_utf8_lossy(&stderr);
        assert!(status.success() && told.is_empty(), "mdfs {arguments:?}: {told}");
        String::from_utf8(stdout).unwrap()
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
    fn random_file(&self, name: &str, bytes: usize) -> Vec<u8> {
        let mut content = vec![0; bytes];
        Rng::new(bytes as u64).fill(&mut content);
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

/// A mount of the volume at the client's host.
struct RemoteMount {
    process: Child,
    point: PathBuf,
}

impl RemoteMount {
    fn start(remote: &RemoteSite) -> Self {
        let point = remote.site.path("mnt");
        fs::create_dir(&point).unwrap();
        let log = File::create(remote.site.path("mount.log")).unwrap();
        let mut command = remote.client(&["mount", &remote.address(), "mnt", "--cache-ms", "0"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut process = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let log = fs::read_to_string(remote.site.path("mount.log")).unwrap();
        assert!(line.starts_with("mounted: mdfs://"), "{line}{log}");
        Self { process, point }
    }

    fn unmount(mut self) {
        assert!(Command::new("umount").arg(&self.point).status().unwrap().success());
        let start = Instant::now();
        while self.process.try_wait().unwrap().is_none() {
            assert!(start.elapsed() < SOON, "the mount does not end");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for RemoteMount {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = Command::new("umount").args(["-q", "-l"]).arg(&self.point).status();
    }
}

#[test]
fn programs_of_another_host_use_a_volume_by_its_address() {
    if !may_mount() {
        return;
    }
    let remote = RemoteSite::start();
    let address = remote.address();
    let content = remote.random_file("in", 9 << 20);
    let at = |path: &str| format!("{address}:{path}");
    remote.ok(&["cp", "in", &at("/stored")]);
    remote.ok(&["cp", "--verify", &at("/stored"), "out"]);
    assert!(fs::read(remote.site.path("out")).unwrap() == content);
    assert_eq!(remote.ok(&["ls", &at("/")]), "stored\n");
    assert!(remote.ok(&["df", &address]).contains(&address));
    remote.ok(&["mkdir", &at("/d")]);
    remote.ok(&["mv", &at("/stored"), &at("/d")]);

    let mounted = RemoteMount::start(&remote);
    assert!(fs::read(mounted.point.join("d/stored")).unwrap() == content);
    fs::write(mounted.point.join("written"), "by the mount").unwrap();
    assert_eq!(remote.ok(&["cat", &at("/written")]), "by the mount");
    remote.ok(&["rm", &at("/written")]);
    assert!(!mounted.point.join("written").exists());
    mounted.unmount();
}

#[test]
fn who_proves_nothing_or_asks_for_another_volume_is_refused() {
    if !may_mount() {
        return;
    }
    let remote = RemoteSite::start();
    let address = remote.address();
    let mut unknown = remote.client(&["ls", &format!("{address}:/")]);
    unknown
        .env_remove("MDFS_TOKEN")
        .env("HOME", remote.site.path(""))
        .env_remove("XDG_CONFIG_HOME");
    remote.refused(unknown, &["cannot open volume", "--token"]);
    let other = address.replace("/VOL", "/other");
    remote.refused(remote.client(&["ls", &format!("{other}:/")]), &["no volume 'other'", "'VOL'"]);
}

#[test]
fn a_copy_and_a_mount_of_another_host_go_on_when_the_server_is_killed() {
    if !may_mount() {
        return;
    }
    let mut remote = RemoteSite::start();
    let address = remote.address();
    let content = remote.random_file("in", 64 << 20);
    let mounted = RemoteMount::start(&remote);
    let file = File::create_new(mounted.point.join("open")).unwrap();
    for round in 0..KILLS {
        let stored = format!("{address}:/stored-{round}");
        let mut copy =
            remote.client(&["cp", "in", &stored]).stderr(Stdio::piped()).spawn().unwrap();
        thread::sleep(Duration::from_millis(100 + 150 * round));
        remote.kill_and_serve();
        // What was synced before the kill, and what is written after it.
        file.write_all_at(&round.to_le_bytes(), 8 * round).unwrap();
        file.sync_all().unwrap();
        let path = mounted.point.join("log");
        let mut log = OpenOptions::new().append(true).create(true).open(path).unwrap();
        writeln!(log, "{round}").unwrap();
        log.sync_all().unwrap();
        let copied = copy.wait().unwrap();
        let mut told = String::new();
        std::io::Read::read_to_string(&mut copy.stderr.take().unwrap(), &mut told).unwrap();
        assert!(copied.success(), "round {round}: {told}");
        remote.ok(&["cp", &stored, "out"]);
        assert!(fs::read(remote.site.path("out")).unwrap() == content, "round {round}");
    }
    let read = fs::read(mounted.point.join("open")).unwrap();
    for round in 0..KILLS {
        let number = &read[8 * round as usize..][..8];
        assert_eq!(number, round.to_le_bytes());
    }
    let expected: Vec<String> = (0..KILLS).map(|round| format!("{round}\n")).collect();
    let expected = expected.concat();
    assert_eq!(fs::read_to_string(mounted.point.join("log")).unwrap(), expected);
    drop(file);
    mounted.unmount();
}
