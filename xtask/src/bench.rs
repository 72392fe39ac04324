//! `cargo xtask bench`: the benchmarks of `benches/`, in release.

use std::process::ExitCode;

use crate::steps::ProgramCall;

/// Runs the benchmarks; `arguments` go to them, as a name to filter by.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let bench = ProgramCall::new("cargo bench --locked --package benches --benches --");
    ExitCode::from(bench.with(arguments).run())
}
