//! A mounted volume: a process of the program, and the directory in which it shows the volume.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use crate::site::{Site, VOLUME};

/// The directory of a site in which volumes are mounted.
pub const POINT: &str = "mnt";

/// Tries to unmount a mount that is in use.
const UMOUNT_TRIES_MAX: u64 = 5;

/// A volume that is mounted. It is not any more when dropped.
#[derive(Debug)]
pub struct Mounted {
    process: Child,
    point: PathBuf,
    /// What it says on standard error.
    log: PathBuf,
}

/// True if tests may mount here: unless `MDFS_NO_MOUNT=1` is set.
///
/// # Panics
///
/// If it cannot be done: a silent skip would hide it.
pub fn may_mount() -> bool {
    if std::env::var_os("MDFS_NO_MOUNT").is_some_and(|value| value == "1") {
        eprintln!("not tested: MDFS_NO_MOUNT=1 says that volumes cannot be mounted here");
        return false;
    }
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let is_root = status.lines().any(|line| line.starts_with("Uid:\t0\t0\t"));
    assert!(
        is_root && Path::new("/dev/fuse").exists(),
        "this test mounts a volume: run it as root on a system with /dev/fuse (modprobe fuse), or \
         leave it out by MDFS_NO_MOUNT=1"
    );
    true
}

/// A test program that `cargo xtask test` has installed.
///
/// # Panics
///
/// If it is missing: a silent skip would hide it.
pub fn tool(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.ancestors().nth(3).unwrap().join("tools/bin").join(name);
    assert!(path.is_file(), "{} is missing; to install it: cargo xtask tools", path.display());
    path
}

impl Mounted {
    /// Mounts the volume of a site with further arguments, and waits until it is there.
    pub fn start(site: &Site, more: &[&str]) -> Self {
        Self::start_at(site, Path::new(POINT), more)
    }

    /// The same at any mount point.
    pub fn start_at(site: &Site, at: &Path, more: &[&str]) -> Self {
        let point = site.path(at);
        // A mount that was left there by a killed process is there already, and cannot be looked
        // at.
        let _ = fs::create_dir(&point);
        let log = point.with_extension("log");
        let mut command = site.command(&["mount", VOLUME]);
        command.arg(at).args(more);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(&log).unwrap());
        let mut process = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let mounted = Self { process, point, log };
        let at = at.display();
        let expected = format!("mounted: {VOLUME} at {at}; to unmount: umount {at}\n");
        assert_eq!(line, expected, "{}", mounted.log());
        mounted
    }

    /// A path in the mounted volume.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.point.join(name)
    }

    /// What it has said.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Unmounts the volume as an operator does, and waits until the process has ended, cleanly.
    pub fn unmount(mut self) {
        // A process that another test is just starting may hold a file of this one for a moment.
        let unmounted = (0..UMOUNT_TRIES_MAX).any(|at| {
            thread::sleep(Duration::from_millis(100 * at));
            Command::new("umount").arg(&self.point).status().unwrap().success()
        });
        assert!(unmounted);
        self.wait_cleanly();
    }

    /// Sends a signal, as of `kill`.
    pub fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.process.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    /// Waits until the process has ended.
    pub fn wait(&mut self) -> ExitStatus {
        self.process.wait().unwrap()
    }

    /// Waits until the process has ended, cleanly, without a word but for servers that were away.
    pub fn wait_cleanly(&mut self) {
        let status = self.wait();
        let log = self.log();
        let is_silent = log.lines().all(|line| line.is_empty() || line.contains("::outage:"));
        assert!(status.success() && is_silent, "the mount ends with {status}: {log}");
    }

    /// Ends the process in the middle of what it does. The mount point stays, without a server.
    pub fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        assert!(!self.log().contains("panicked"), "{}", self.log());
        // Nothing is cleaned up.
        self.point = PathBuf::new();
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Gone already, if it was stopped.
        let _ = self.process.kill();
        let _ = self.process.wait();
        if !self.point.as_os_str().is_empty() {
            let _ = Command::new("umount").args(["-q", "-l"]).arg(&self.point).status();
        }
        if std::thread::panicking() {
            eprintln!("the mount said: {}", fs::read_to_string(&self.log).unwrap_or_default());
        }
    }
}
