//! `cargo xtask test`: all that CI checks, the quick checks first; `cargo xtask check`: those only.

use std::process::ExitCode;

use crate::steps::USAGE;
use crate::steps::{ProgramCall, Steps};
use crate::{deny, needs, python, sim, sizes, tidy};

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

/// What the quick checks need.
const QUICK_NEEDS: &[needs::Need] = &[needs::C_COMPILER, needs::RUSTFMT, needs::CLIPPY];

const FORMAT: &str = "cargo fmt --all --check";
const CLIPPY: &str = "cargo clippy --workspace --all-targets --locked -- -Dwarnings";
/// The tests inside the crates: they need neither root nor other programs.
const UNIT_TESTS: &str = "cargo test --workspace --locked --no-fail-fast --lib --bins";
/// `--no-fail-fast` runs all tests even if one fails: the summary names every failure.
const TESTS: &str = "cargo test --workspace --locked --no-fail-fast";
/// The API reference, without broken links.
const DOC: &str = "env RUSTDOCFLAGS=-Dwarnings cargo doc --workspace --no-deps --locked";

/// Programs on hosts that have only the library or the Python package, built before without a
/// server. All of the workspace, so that nothing is built anew.
const CLIENT_HOSTS: &str = "env MDFS_LIBRARY=target/release/libmdfs.so \
    MDFS_PYTHON=target/tools/python/bin/python \
    cargo test --workspace --locked --test remote_clients -- --ignored programs";

/// A million messages by which the worms of the emulated mesh agree with its flits.
const MESH: &str = "cargo bench --locked -p machine-emu --bench mesh -- judge";

/// `cargo xtask tools`: installs what single tests need, to run them without this command.
pub(crate) fn install_tools(_: &[String]) -> ExitCode {
    ExitCode::from(needs::meet(NEEDS))
}

/// Runs all checks. A failure does not stop the run: the summary names every one.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    checks("test", arguments, NEEDS, |steps| {
        let _ = steps.call("tests", &ProgramCall::new(TESTS));
        let _ = steps.call("reference", &ProgramCall::new(DOC));
        let _ = steps.call("mesh", &ProgramCall::new(MESH));
        let _ = sim::steps(steps);
        let _ = sizes::steps(steps);
        let _ = python::test(steps, &[]);
        let _ = steps.call("client hosts", &ProgramCall::new(CLIENT_HOSTS));
    })
}

/// `cargo xtask check`: the checks for every commit; minutes on a tree that is built.
pub(crate) fn run_quick(arguments: &[String]) -> ExitCode {
    checks("check", arguments, QUICK_NEEDS, |steps| {
        let _ = steps.call("unit tests", &ProgramCall::new(UNIT_TESTS));
    })
}

/// The checks of the text, then `more`. Each step reports its failure, and the summary once more.
fn checks(
    name: &str,
    arguments: &[String],
    needs: &[needs::Need],
    more: impl FnOnce(&mut Steps),
) -> ExitCode {
    if !arguments.is_empty() {
        eprintln!("usage: cargo xtask {name} (for a single test: cargo test --package CRATE NAME)");
        return ExitCode::from(USAGE);
    }
    let mut steps = Steps::default();
    let line = format!("cargo xtask {name}");
    if steps.step("prerequisites", &line, || needs::meet(needs)).is_err() {
        return ExitCode::FAILURE;
    }
    let _ = steps.call("format", &ProgramCall::new(FORMAT));
    let _ = steps.step("tidy", "cargo xtask tidy", tidy::check);
    let _ = steps.step("deny", "cargo xtask deny", deny::check);
    let _ = steps.call("clippy", &ProgramCall::new(CLIPPY));
    more(&mut steps);
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
