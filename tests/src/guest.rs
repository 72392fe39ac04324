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
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

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
pub struct Told {
    /// Its exit code; `None` if the machine stopped before, or the time was over.
    pub code: Option<i32>,
    /// Its standard output and standard error.
    pub text: String,
}

impl Told {
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
pub fn run(site: &Site, port: u16, seconds: u32, job: &str) -> Told {
    let folder = tempfile::TempDir::with_prefix_in("guest-", site.path(".")).unwrap();
    let init = folder.path().join("init");
    fs::write(&init, INIT).unwrap();
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(folder.path().join("job"), job).unwrap();
    let folder = folder.path().canonicalize().unwrap();
    let helper = build_helper(&folder);
    let folder = folder.to_str().unwrap();
    let output = Command::new("timeout")
        .arg(seconds.to_string())
        .args(["env", &format!("LD_PRELOAD={}", helper.display())])
        .args(["linux.uml", &format!("mem={MEMORY}"), &format!("uml_dir={folder}/")])
        .args(["root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro"])
        .arg(format!("init={folder}/init"))
        .args(["con=null", "con0=null,fd:1", "eth0=slirp,,slirp-fullbolt", "quiet", "loglevel=1"])
        .args([format!("FOLDER={folder}"), format!("PORT={port}")])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).replace('\r', "");
    let code = text.lines().find_map(|line| line.strip_prefix("the job ends with "));
    Told { code: code.and_then(|code| code.trim().parse().ok()), text }
}
