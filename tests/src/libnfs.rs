//! The NFS client of the system: `nfs-ls`, `nfs-cp` and `nfs-cat` of libnfs, which need no mount.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::process::{Child, Command, Output, Stdio};

use crate::served::Served;

/// The line that brings the client, as `cargo xtask test` runs it.
const INSTALL: &str = "sudo apt-get install --yes libnfs-utils";

/// The address of `path` in a served volume. The export is `/`: libnfs wants one slash more, so
/// that what is in the root has a directory with a name.
pub fn url(served: &Served, path: &str) -> String {
    let port = served.port();
    format!("nfs://127.0.0.1/{path}?nfsport={port}&mountport={port}&version=3")
}

/// Starts a program of libnfs.
///
/// # Panics
///
/// If it is not installed: a silent skip would hide it.
pub fn start(program: &str, arguments: &[&str]) -> Child {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap_or_else(|error| panic!("{program}: {error}; install it: {INSTALL}"))
}

/// Runs a program of libnfs to its end.
pub fn run(program: &str, arguments: &[&str]) -> Output {
    start(program, arguments).wait_with_output().unwrap()
}

/// Copies between a file of this computer and an address, either way.
#[track_caller]
pub fn copy(from: &str, to: &str) {
    ok("nfs-cp", &[from, to]);
}

/// The bytes of a file.
#[track_caller]
pub fn cat(served: &Served, path: &str) -> Vec<u8> {
    ok("nfs-cat", &[&url(served, path)])
}

/// The names in a directory, sorted.
#[track_caller]
pub fn list(served: &Served, path: &str) -> Vec<String> {
    let text = String::from_utf8(ok("nfs-ls", &[&url(served, path)])).unwrap();
    let name = |line: &str| line.rsplit(' ').next().unwrap().to_owned();
    let mut names: Vec<String> = text.lines().map(name).collect();
    names.sort_unstable();
    names
}

#[track_caller]
fn ok(program: &str, arguments: &[&str]) -> Vec<u8> {
    let output = run(program, arguments);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.is_empty(), "{program} {arguments:?}: {told}");
    output.stdout
}
