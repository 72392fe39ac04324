//! The program under test.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::path::Path;
use std::process::{Command, Output};

/// Runs it in `directory`.
pub(crate) fn mdfs(directory: &Path, arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_mdfs");
    Command::new(program).args(arguments).current_dir(directory).output().unwrap()
}

/// What it prints; it must succeed.
pub(crate) fn ok(directory: &Path, arguments: &[&str]) -> String {
    let output = mdfs(directory, arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "mdfs {arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}
