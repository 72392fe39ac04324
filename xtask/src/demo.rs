//! `cargo xtask demo`: the main job, on a new machine, with one command.

use std::process::ExitCode;

use crate::needs;
use crate::steps::{ProgramCall, StepFailed, Steps};

/// Builds `mdfs` in release and runs `mdfs demo`, to which further arguments go. The exit code is
/// that of the first step that fails.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    match demo(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(StepFailed { code }) => ExitCode::from(code),
    }
}

fn demo(arguments: &[String]) -> Result<(), StepFailed> {
    let mut steps = Steps::default();
    let needs = [needs::C_COMPILER, needs::NFS_CLIENT];
    steps.step("prerequisites", "cargo xtask demo", || needs::meet(&needs))?;
    steps.call("build", &ProgramCall::new("cargo build --release --locked --package mdfs"))?;
    let demo = ProgramCall::new("cargo run --quiet --release --locked --package mdfs -- demo");
    steps.call("demo", &demo.with(arguments))
}
