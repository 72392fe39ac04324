//! `cargo xtask python`: the Python package as a wheel, installed and tested in an environment of
//! its own.

use std::process::ExitCode;

use crate::needs;
use crate::steps::{ProgramCall, StepFailed, Steps};

/// Where the environment is.
const ENVIRONMENT: &str = "target/tools/python";
/// Where the wheel comes to be: the newest build alone.
const WHEELS: &str = "target/wheels";
const PROGRAM: &str = "cargo build --release --locked --package mdfs";

/// Builds, installs and tests; further arguments go to pytest. The exit code is that of the first
/// step that fails.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let mut steps = Steps::default();
    let prepared = steps.step("prerequisites", "cargo xtask python", || {
        needs::meet(&[needs::C_COMPILER, needs::PYTHON])
    });
    let built = prepared.and_then(|()| steps.call("program", &ProgramCall::new(PROGRAM)));
    match built.and_then(|()| test(&mut steps, arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(StepFailed { code }) => ExitCode::from(code),
    }
}

/// The steps of the test command, after the release build.
pub(crate) fn test(steps: &mut Steps, arguments: &[String]) -> Result<(), StepFailed> {
    let python = format!("{ENVIRONMENT}/bin/python");
    steps.step("wheel", "cargo xtask python", || {
        let lines = [
            format!("python3 -m venv {ENVIRONMENT}"),
            format!("{python} -m pip install --quiet -r client/python/tests/requirements.txt"),
            format!("rm -rf {WHEELS}"),
            format!(
                "{python} -m maturin build --release --locked --quiet --manifest-path \
                 client/python/Cargo.toml --interpreter {python} --out {WHEELS}"
            ),
            format!(
                "{python} -m pip install --quiet --force-reinstall --no-deps --no-index \
                 --find-links {WHEELS} mdfs"
            ),
        ];
        lines.iter().map(|line| ProgramCall::new(line).run()).find(|&code| code != 0).unwrap_or(0)
    })?;
    let pytest = format!(
        "env MDFS=target/release/mdfs {python} -m pytest -q -p no:cacheprovider client/python/tests"
    );
    steps.call("python", &ProgramCall::new(&pytest).with(arguments))
}
