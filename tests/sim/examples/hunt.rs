//! Looks for a violation until there is one or the time is up: `hunt [SECONDS [FIRST_SEED [HUNTER...]]]`,
//! a hunter being a workload or `crashes`; without any all take turns.
//!
//! On its own it is a longer run of the gate. `cargo xtask planted` runs it on a copy of the code
//! with bugs in it; `docs/bugs.md` tells how.
//!
//! The last line that it prints is the outcome: `caught HUNTER SEED RUNS MILLISECONDS REASON` or
//! `nothing RUNS MILLISECONDS`. Before each run it prints `run HUNTER SEED`, for those who have to
//! find out which one never ended.

use std::panic::{catch_unwind, set_hook};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use sim::Workload;
use sim::enumerate::{self, Options};

/// States of one turn of the crash enumerator: all of one operation, and some of two.
const CRASH_STATES_MAX: u64 = 20_000;
/// Its turn costs as much as several runs of workloads, so that it has one for each so many seeds.
const SEEDS_PER_CRASH_TURN: u64 = 8;

/// Something that panics if it finds a violation under a seed.
struct Hunter {
    name: &'static str,
    /// Its turn comes with every seed that is a multiple of this.
    seeds_per_turn: u64,
    hunt: Box<dyn Fn(u64)>,
}

/// All of them; they take turns.
fn hunters() -> Vec<Hunter> {
    let workload = |workload: Workload| Hunter {
        name: workload.name(),
        seeds_per_turn: 1,
        hunt: Box::new(move |seed| drop(sim::run(workload, seed))),
    };
    let crashes = Hunter {
        name: "crashes",
        seeds_per_turn: SEEDS_PER_CRASH_TURN,
        hunt: Box::new(enumerate_crashes),
    };
    Workload::ALL.into_iter().map(workload).chain([crashes]).collect()
}

/// Crashes of small workloads; the seed draws those of two operations.
fn enumerate_crashes(seed: u64) {
    let states_max = CRASH_STATES_MAX;
    let options = Options { operations: 2, states_max, seed, threads: 1, planted: None };
    let report = enumerate::run(&options, |_| {});
    if let Some(violation) = report.violations.first() {
        panic!("{}", violation.text);
    }
}

/// What the first panic of the present run said, and where.
static REASON: Mutex<Option<String>> = Mutex::new(None);

fn note_reasons() {
    set_hook(Box::new(|panic| {
        let Ok(mut reason) = REASON.lock() else { return };
        if reason.is_none() {
            *reason = Some(panic.to_string().replace('\n', " "));
        }
    }));
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
    hunters.retain(|hunter| chosen.is_empty() || chosen.iter().any(|name| name == hunter.name));
    let (Some(seconds), Some(first), false) = (seconds, first, hunters.is_empty()) else {
        eprintln!("usage: hunt [SECONDS [FIRST_SEED [HUNTER...]]]");
        return ExitCode::from(2);
    };
    note_reasons();
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
            let outcome = catch_unwind(std::panic::AssertUnwindSafe(|| hunt(seed)));
            if outcome.is_err() {
                let reason = REASON.lock().ok().and_then(|mut reason| reason.take());
                let reason = reason.unwrap_or_default();
                println!("caught {name} {seed} {runs} {} {reason}", start.elapsed().as_millis());
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
