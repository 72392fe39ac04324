//! `cargo xtask test`: all that CI checks, in the order in which it costs least to fail.

use std::process::ExitCode;

use crate::steps::{Call, Failed, Steps};
use crate::{USAGE, needs, tidy};

/// What the checks need on the machine; the NFS client is for the whole-system tests.
const NEEDS: &[needs::Need] =
    &[needs::C_COMPILER, needs::RUSTFMT, needs::CLIPPY, needs::NFS_CLIENT];

const FORMAT: &str = "cargo fmt --all --check";
const CLIPPY: &str = "cargo clippy --workspace --all-targets --locked -- -Dwarnings";
/// All tests are run, even if one fails: the closing lines tell of every breach.
const TESTS: &str = "cargo test --workspace --locked --no-fail-fast";

/// Runs all checks; stops at the first that fails.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    if !arguments.is_empty() {
        eprintln!("usage: cargo xtask test (for a single test: cargo test --package CRATE NAME)");
        return ExitCode::from(USAGE);
    }
    let mut steps = Steps::default();
    match checks(&mut steps) {
        Ok(()) => {
            println!("\nall checks passed\n{}", steps.summary().trim_end());
            ExitCode::SUCCESS
        }
        Err(Failed { .. }) => ExitCode::FAILURE,
    }
}

fn checks(steps: &mut Steps) -> Result<(), Failed> {
    steps.step("prerequisites", "cargo xtask test", || needs::meet(NEEDS))?;
    steps.call("format", &Call::new(FORMAT))?;
    steps.step("tidy", "cargo xtask tidy", tidy::check)?;
    steps.call("clippy", &Call::new(CLIPPY))?;
    steps.call("tests", &Call::new(TESTS))
}
