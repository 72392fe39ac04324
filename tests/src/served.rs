//! A server process: started, stopped, killed.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::site::Site;

/// A server of a volume, ready. It is gone when dropped.
#[derive(Debug)]
pub struct Served {
    process: Child,
    port: u16,
    /// What it says on standard error.
    log: PathBuf,
}

impl Served {
    /// Starts a server and waits until it is ready.
    pub fn start(site: &Site, volume: &str) -> Self {
        Self::start_at(site, volume, 0)
    }

    /// The same at a port, as that of a server that was killed; 0 for any.
    pub fn start_at(site: &Site, volume: &str, port: u16) -> Self {
        Self::with(site, &["serve", volume, "--nfs", &format!("127.0.0.1:{port}")])
    }

    /// Starts an emulated machine with these arguments, which serves its volume, and waits until it
    /// is ready.
    pub fn emulated(site: &Site, arguments: &[&str]) -> Self {
        Self::with(site, &[&["emulate", "--nfs", "127.0.0.1:0"], arguments].concat())
    }

    /// Starts the program with these arguments, of which some make it serve NFS, and waits until it
    /// is ready.
    pub fn with(site: &Site, arguments: &[&str]) -> Self {
        let log = site.path("server.log");
        let mut command = site.command(arguments);
        // Not to inherit the input: a test's terminal is not the server's.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(&log).unwrap());
        let mut process = command.spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map(Result::unwrap);
        // An emulated machine tells what it did before.
        let line = lines.find(|line| line.starts_with("ready: ")).unwrap_or_default();
        let mut served = Self { process, port: 0, log };
        let port = line.strip_prefix("ready: ").and_then(|line| line.trim_end().rsplit_once(':'));
        let Some((_, port)) = port else {
            let _ = served.process.wait();
            panic!("the server is not ready: '{line}', {}", served.log());
        };
        served.port = port.parse().unwrap();
        served
    }

    /// The port of its NFS gateway at 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The number of its process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// What it has said.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Memory that it holds, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
        kib << 10
    }

    /// Asks it to stop, and waits until it has, cleanly.
    pub fn stop(mut self) {
        let asked = Command::new("kill").args(["-TERM", &self.id().to_string()]).status();
        assert!(asked.unwrap().success());
        let status = self.process.wait().unwrap();
        assert!(status.success(), "the server ends with {status}: {}", self.log());
        self.check_log();
    }

    /// Ends it in the middle of what it does.
    pub fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.check_log();
    }

    fn check_log(&self) {
        let log = self.log();
        assert!(!log.contains("panicked"), "the server panicked: {log}");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Gone already, if it was stopped.
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            eprintln!("the server said: {log}");
        }
    }
}
