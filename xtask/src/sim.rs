//! `cargo xtask sim`: the simulator in release; and what the test command asks of it.

use std::process::ExitCode;

use crate::needs;
use crate::steps::{ProgramCall, StepFailed, Steps};

const BUILD: &str = "cargo build --release --locked --package mdfs-lab";
const RELEASE: &str = "cargo run --quiet --release --locked --package mdfs-lab -- sim";
/// As the tests have built it: another build would take minutes.
const DEBUG: &str = "target/debug/mdfs-lab-under-test sim";

/// Fresh seeds in the test command: about two minutes on two cores.
const SEEDS: &str = "--seeds 800";
/// The crash enumerator: 600,000 states of all workloads of one and two operations.
const CRASHES: &str = "cargo run --quiet --release --locked --package mdfs-lab -- crashes";
/// Runs that are done in debug, too: their traces must be the same.
const SAMPLE: &str = "--seeds 10 --twice-in 0 --print-hashes";

/// Builds `mdfs-lab` in release and runs `mdfs-lab sim` with `arguments`. The exit code is that of
/// the first step that fails.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let simulate = || {
        let need = needs::meet(&[needs::C_COMPILER]);
        let build = if need == 0 { ProgramCall::new(BUILD).run() } else { need };
        if build == 0 { ProgramCall::new(RELEASE).with(arguments).run() } else { build }
    };
    ExitCode::from(simulate())
}

/// The steps of the test command: every case that ever failed, fresh seeds, all crashes of small
/// workloads, debug against release.
pub(crate) fn steps(steps: &mut Steps) -> Result<(), StepFailed> {
    steps.call("release build", &ProgramCall::new(BUILD))?;
    let regressions =
        steps.call("regression cases", &ProgramCall::new(&format!("{RELEASE} --regressions")));
    // Drawn here, so that the line that repeats the step names them.
    let seeds = format!("{RELEASE} --seed {} {SEEDS}", fresh_seed());
    let fresh = steps.call("simulation", &ProgramCall::new(&seeds));
    let crashes = steps.call("crashes", &ProgramCall::new(CRASHES));
    let sample = format!("--seed {} {SAMPLE}", fresh_seed());
    let both = [DEBUG, RELEASE].map(|program| format!("{program} {sample}"));
    let line = format!("diff <({}) <({})", both[0], both[1]);
    let same = steps.step("debug, release", &line, || {
        let [debug, release] = both.map(|line| ProgramCall::new(&line).output());
        compare(debug.as_deref(), release.as_deref())
    });
    regressions.and(fresh).and(crashes).and(same)
}

/// Both ran, and left the same traces; the result is an exit code.
fn compare(debug: Option<&str>, release: Option<&str>) -> u8 {
    let (Some(debug), Some(release)) = (debug, release) else {
        eprintln!("xtask: a run failed in debug or in release: the line below tells which");
        return 1;
    };
    let differs = debug.lines().zip(release.lines()).find(|(debug, release)| debug != release);
    if let Some((debug, release)) = differs {
        eprintln!("xtask: not the same trace in debug and in release:\n  {debug}\n  {release}");
        return 1;
    }
    let (debug, release) = (debug.lines().count(), release.lines().count());
    println!("the same trace in debug and in release: {debug} runs");
    u8::from(debug != release || debug == 0)
}

#[allow(clippy::disallowed_types, reason = "each call shall try what was never tried")]
fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(0) >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_that_differ_in_debug_and_release_are_told() {
        let traces = "files 1 00ff\nburst 2 01ff\n";
        assert_eq!(compare(Some(traces), Some(traces)), 0);
        assert_eq!(compare(Some(traces), Some(&traces.replace("01ff", "02ff"))), 1);
        assert_eq!(compare(Some(traces), Some("files 1 00ff\n")), 1);
        assert_eq!(compare(Some(traces), None), 1);
        assert_eq!(compare(Some(""), Some("")), 1);
    }
}
