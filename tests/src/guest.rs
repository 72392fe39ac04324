//! A guest: a Linux kernel as a process of this host (User-mode Linux), for the NFS client in it.
//! Host kernels of containers seldom have one, and no test should need what only root of a host may
//! do.
//!
//! The guest's root is the host's, read-only, so every program of the host runs there. Its network
//! is a user-space one: to the server all that it sends comes from this computer.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::fs;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use tempfile::TempDir;

use crate::site::Site;

/// Helps the guest's kernel on hosts with wider registers than it knows.
const PTRACE: &str = include_str!("guest-ptrace.c");

/// Memory of a guest.
const MEMORY: &str = "256M";

/// Where jobs mount. `pjdfstest` cannot make a path of the longest length below every path.
pub const POINT: &str = "/mnt/volume-in-guest";

/// The first process of a guest: it makes the machine ready, runs the job, and turns the machine
/// off.
const INIT: &str = include_str!("guest-init.sh");

/// What a job has said.
#[derive(Debug)]
pub struct JobOutput {
    /// Its exit code; `None` if the machine stopped before, or the time was over.
    pub code: Option<i32>,
    /// Its standard output and standard error.
    pub text: String,
}

impl JobOutput {
    fn of(text: String) -> Self {
        let code = text.lines().find_map(|line| line.strip_prefix("the job ends with "));
        Self { code: code.and_then(|code| code.trim().parse().ok()), text }
    }

    /// What it has said, if all went well.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "the job in the guest fails: {}", self.text);
        self.text
    }
}

/// True if tests may start guests: unless `MDFS_NO_GUEST=1` is set.
///
/// # Panics
///
/// If it cannot be done: a silent skip would hide it.
pub fn may_boot() -> bool {
    if std::env::var_os("MDFS_NO_GUEST").is_some_and(|value| value == "1") {
        eprintln!("not tested: MDFS_NO_GUEST=1 says that no User-mode Linux can run here");
        return false;
    }
    for program in ["linux.uml", "slirp-fullbolt", "busybox"] {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let is_there = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
        assert!(
            is_there,
            "{program} is missing; to install it: cargo xtask tools; to leave such tests out: \
             MDFS_NO_GUEST=1"
        );
    }
    true
}

/// Compiles [`PTRACE`] in `folder`, with the compiler that links Rust programs too.
fn build_helper(folder: &Path) -> PathBuf {
    let (source, library) = (folder.join("ptrace.c"), folder.join("ptrace.so"));
    fs::write(&source, PTRACE).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O2", "-o"]).args([&library, &source]).arg("-ldl");
    assert!(compiler.status().unwrap().success(), "cc cannot compile tests/src/guest-ptrace.c");
    library
}

/// Runs `job`, lines for a shell, in a guest of its own for at most `seconds`. In the lines
/// `mount_nfs VERSION DIRECTORY [,OPTION...]` mounts what is served at `port`; a line that fails
/// ends the job.
pub fn run(site: &Site, port: u16, seconds: u32, job: &str) -> JobOutput {
    Guest::start(site, port, seconds, job).end()
}

/// A guest that runs a job, which [`run`] explains. It is gone when dropped.
#[derive(Debug)]
pub struct Guest {
    process: Child,
    /// The job's standard input.
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
    /// What it has said so far.
    text: String,
    _folder: TempDir,
}

impl Guest {
    /// Starts a guest.
    pub fn start(site: &Site, port: u16, seconds: u32, job: &str) -> Self {
        let kept = TempDir::with_prefix_in("guest-", site.path(".")).unwrap();
        let init = kept.path().join("init");
        fs::write(&init, INIT).unwrap();
        fs::set_permissions(&init, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(kept.path().join("job"), job).unwrap();
        let folder = kept.path().canonicalize().unwrap();
        let helper = build_helper(&folder);
        let folder = folder.to_str().unwrap();
        let mut process = Command::new("timeout")
            .arg(seconds.to_string())
            .args(["env", &format!("LD_PRELOAD={}", helper.display())])
            .args(["linux.uml", &format!("mem={MEMORY}"), &format!("uml_dir={folder}/")])
            .args(["root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro"])
            .arg(format!("init={folder}/init"))
            .args(["con=null", "con0=fd:0,fd:1", "eth0=slirp,,slirp-fullbolt"])
            .args(["quiet", "loglevel=1", &format!("FOLDER={folder}"), &format!("PORT={port}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap()).lines();
        let input = process.stdin.take();
        Self { process, input, output, text: String::new(), _folder: kept }
    }

    /// Gives the job a line to read.
    pub fn say(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Waits until the job says a line that begins with `head`; returns the rest of it.
    #[track_caller]
    pub fn hear(&mut self, head: &str) -> String {
        while let Some(line) = self.next_line() {
            if let Some(rest) = line.strip_prefix(head) {
                return rest.trim().to_owned();
            }
        }
        panic!("the job ends without '{head}': {}", self.text);
    }

    /// Waits until the job has ended.
    pub fn end(mut self) -> JobOutput {
        while self.next_line().is_some() {}
        let _ = self.process.wait();
        JobOutput::of(std::mem::take(&mut self.text))
    }

    /// Stops its kernel, or lets it go on: its network stays as it is.
    pub fn freeze(&self, is_frozen: bool) {
        signal(self.kernel(), is_frozen);
    }

    /// Stops its network, or lets it go on.
    pub fn cut(&self, is_cut: bool) {
        let network = children(self.kernel()).into_iter().find(|id| {
            fs::read_to_string(format!("/proc/{id}/comm")).is_ok_and(|it| it.starts_with("slirp"))
        });
        signal(network.unwrap(), is_cut);
    }

    /// The process of its kernel: `timeout` has become its parent.
    fn kernel(&self) -> u32 {
        children(self.process.id())[0]
    }

    fn next_line(&mut self) -> Option<String> {
        let line = self.output.next()?.ok()?.replace('\r', "");
        self.text.push_str(&line);
        self.text.push('\n');
        Some(line)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // Gone already, if it was waited for. The helpers of a kernel do not end with it.
        if self.process.try_wait().is_ok_and(|ended| ended.is_none()) {
            let mut all = children(self.process.id());
            let mut index = 0;
            while let Some(id) = all.get(index) {
                all.extend(children(*id));
                index += 1;
            }
            for id in all {
                let _ = Command::new("kill").args(["-KILL", &id.to_string()]).status();
            }
            let _ = self.process.wait();
        }
    }
}

/// The processes that `parent` has started.
fn children(parent: u32) -> Vec<u32> {
    let list = format!("/proc/{parent}/task/{parent}/children");
    let list = fs::read_to_string(list).unwrap_or_default();
    list.split_whitespace().filter_map(|id| id.parse().ok()).collect()
}

/// Stops a process, or lets it go on.
fn signal(id: u32, is_stopped: bool) {
    let name = if is_stopped { "-STOP" } else { "-CONT" };
    let done = Command::new("kill").args([name, &id.to_string()]).status();
    assert!(done.unwrap().success(), "{name} {id}");
}
