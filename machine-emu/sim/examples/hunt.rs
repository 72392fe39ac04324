//! Looks for a violation until there is one or the time is up:
//! `hunt [SECONDS [FIRST_SEED [HUNTER...]]]`, where a hunter is a workload, or `crashes`.
//!
//! On its own it is a longer run of the gate. `cargo xtask planted` runs it on a copy of the code
//! with bugs in it; see `docs/bugs.md`.
//!
//! The last line that it prints is the outcome: `caught HUNTER SEED RUNS MILLISECONDS REASON` or
//! `nothing RUNS MILLISECONDS`. Before each run it prints `run HUNTER SEED`, for those who have to
//! find out which one never ended.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use sim::enumerate::{self, EnumerationOptions};
use sim::{Case, Workload, quiet};

/// States of one turn of the crash enumerator: all of one operation, and some of two.
const CRASH_STATES_MAX: u64 = 20_000;
/// Its turn costs as much as several runs of workloads, so that it has one turn for this number of
/// seeds.
const SEEDS_PER_CRASH_TURN: u64 = 8;

/// Something that looks for a violation under a seed.
struct Hunter {
    name: &'static str,
    /// Its turn comes with every seed that is a multiple of this.
    seeds_per_turn: u64,
    /// The error is the violation.
    hunt: Box<dyn Fn(u64) -> Result<(), String>>,
}

/// All of them; they take turns.
fn hunters() -> Vec<Hunter> {
    let workload = |workload: Workload| Hunter {
        name: workload.name(),
        seeds_per_turn: 1,
        hunt: Box::new(move |seed| {
            let done = Case::new(workload, seed).run();
            done.map(drop).map_err(|violation| violation.to_string())
        }),
    };
    let crashes = Hunter {
        name: "crashes",
        seeds_per_turn: SEEDS_PER_CRASH_TURN,
        hunt: Box::new(enumerate_crashes),
    };
    Workload::ALL.into_iter().map(workload).chain([crashes]).collect()
}

/// Crashes of small workloads; the seed draws those of two operations.
fn enumerate_crashes(seed: u64) -> Result<(), String> {
    let states_max = CRASH_STATES_MAX;
    let options = EnumerationOptions { operations: 2, states_max, seed, threads: 1, planted: None };
    let report = quiet::catch(|| enumerate::run(&options, |_| {}))?;
    report.violations.into_iter().next().map_or(Ok(()), |violation| Err(violation.text))
}

#[allow(clippy::disallowed_methods, reason = "this program runs beside the system, not in it")]
fn now() -> Instant {
    Instant::now()
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let number = |argument: Option<String>, otherwise: u64| {
        argument.map_or(Some(otherwise), |argument| argument.parse().ok())
    };
    let seconds = number(arguments.next(), 60);
    let first = number(arguments.next(), 0);
    let chosen: Vec<String> = arguments.collect();
    let mut hunters = hunters();
    let is_known = |name: &String| hunters.iter().any(|hunter| hunter.name == *name);
    let (Some(seconds), Some(first), true) = (seconds, first, chosen.iter().all(is_known)) else {
        eprintln!("usage: hunt [SECONDS [FIRST_SEED [HUNTER...]]]");
        return ExitCode::from(2);
    };
    hunters.retain(|hunter| chosen.is_empty() || chosen.iter().any(|name| name == hunter.name));
    let (start, budget) = (now(), Duration::from_secs(seconds));
    let mut runs = 0;
    for seed in first.. {
        for Hunter { name, seeds_per_turn, hunt } in &hunters {
            if !seed.is_multiple_of(*seeds_per_turn) {
                continue;
            }
            if start.elapsed() >= budget {
                println!("nothing {runs} {}", start.elapsed().as_millis());
                return ExitCode::SUCCESS;
            }
            println!("run {name} {seed}");
            runs += 1;
            if let Err(reason) = hunt(seed) {
                let reason = reason.replace('\n', " ");
                println!("caught {name} {seed} {runs} {} {reason}", start.elapsed().as_millis());
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
