//! `cargo xtask test`: all that CI checks, the quick checks first.

use std::process::ExitCode;

use crate::steps::{Call, Steps};
use crate::{USAGE, needs, python, sim, sizes, tidy};

/// What the checks need on the machine; from the NFS client on for the whole-system tests.
const NEEDS: &[needs::Need] = &[
    needs::SPACE,
    needs::C_COMPILER,
    needs::RUSTFMT,
    needs::CLIPPY,
    needs::NFS_CLIENT,
    needs::GUEST_KERNEL,
    needs::GUEST_NETWORK,
    needs::GUEST_SHELL,
    needs::RPCBIND,
    needs::BROWSER,
    needs::ETCD,
    needs::HOSTS,
    needs::PACKET_RULES,
    needs::PJDFSTEST,
    needs::FSX,
    needs::PYTHON,
    needs::MPI_COMPILER,
    needs::MPI,
    needs::LIBFABRIC,
];

const FORMAT: &str = "cargo fmt --all --check";
const CLIPPY: &str = "cargo clippy --workspace --all-targets --locked -- -Dwarnings";
/// All tests are run, even if one fails: the closing lines tell of every breach.
const TESTS: &str = "cargo test --workspace --locked --no-fail-fast";

/// A million messages by which the worms of the emulated mesh agree with its flits.
const MESH: &str = "cargo bench --locked -p machine-emu --bench mesh -- judge";

/// `cargo xtask tools`: installs what single tests need, for who runs them without this command.
pub(crate) fn install_tools(_: &[String]) -> ExitCode {
    ExitCode::from(needs::meet(NEEDS))
}

/// Runs all checks, even after one that fails: a long run shall tell of every breach.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    if !arguments.is_empty() {
        eprintln!("usage: cargo xtask test (for a single test: cargo test --package CRATE NAME)");
        return ExitCode::from(USAGE);
    }
    let mut steps = Steps::default();
    if steps.step("prerequisites", "cargo xtask test", || needs::meet(NEEDS)).is_err() {
        return ExitCode::FAILURE;
    }
    // What fails is told by each step and once more in the summary.
    let _ = steps.call("format", &Call::new(FORMAT));
    let _ = steps.step("tidy", "cargo xtask tidy", tidy::check);
    let _ = steps.call("clippy", &Call::new(CLIPPY));
    let _ = steps.call("tests", &Call::new(TESTS));
    let _ = steps.call("mesh", &Call::new(MESH));
    let _ = sim::steps(&mut steps);
    let _ = sizes::steps(&mut steps);
    let _ = python::test(&mut steps, &[]);
    match steps.failures() {
        0 => {
            println!("\nall checks passed\n{}", steps.summary().trim_end());
            ExitCode::SUCCESS
        }
        failures => {
            eprintln!("\nchecks that failed: {failures}\n{}", steps.summary().trim_end());
            ExitCode::FAILURE
        }
    }
}
