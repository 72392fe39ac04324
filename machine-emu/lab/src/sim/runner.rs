//! Runs on all cores, reported in the order of the plan: the output does not depend on how many
//! threads there are.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::time::{Duration, Instant};

use sim::{Case, RunReport, Violation};

use super::plan::RunPlan;
use mdfs_cli::exit::CommandFailure;
use mdfs_cli::time::now;

/// Runs that are done and not told yet, at most.
const UNREPORTED_MAX: usize = 256;

/// One run that is done.
#[derive(Debug)]
pub(super) struct SimRun {
    pub(super) number: u64,
    pub(super) case: Case,
    pub(super) outcome: RunOutcome,
    /// On its thread; the first time if it was done twice.
    pub(super) elapsed: Duration,
}

/// How it went.
#[derive(Debug)]
pub(super) enum RunOutcome {
    Fine(RunReport),
    Violation(Violation),
    /// Done twice, it did not do the same.
    Differs {
        hashes: [u64; 2],
    },
}

impl RunOutcome {
    /// What is wrong, in words.
    pub(super) fn message(&self) -> String {
        match self {
            Self::Fine(_) => String::new(),
            Self::Violation(violation) => violation.message.clone(),
            Self::Differs { hashes: [one, other] } => {
                format!("the same run, done twice, left two traces: {one:016x} and {other:016x}")
            }
        }
    }

    fn is_fine(&self) -> bool {
        matches!(self, Self::Fine(_))
    }
}

/// Does the runs of `plan` and tells `each` in their order; ends with the first that is not fine,
/// unless told to keep going.
pub(crate) fn run(
    plan: &RunPlan,
    threads: usize,
    keep_going: bool,
    each: impl FnMut(SimRun) -> Result<(), CommandFailure>,
) -> Result<(), CommandFailure> {
    let shared = RunnerState {
        plan,
        keep_going,
        start: now(),
        next: AtomicU64::new(0),
        end: AtomicBool::new(false),
    };
    on_threads(&shared, threads, each)
}

#[allow(clippy::disallowed_methods, reason = "each world is on one thread, and knows no other")]
fn on_threads(
    shared: &RunnerState<'_>,
    threads: usize,
    each: impl FnMut(SimRun) -> Result<(), CommandFailure>,
) -> Result<(), CommandFailure> {
    std::thread::scope(|scope| {
        let (results, finished) = mpsc::sync_channel(UNREPORTED_MAX);
        for _ in 0..threads {
            let results = results.clone();
            scope.spawn(move || shared.work(&results));
        }
        drop(results);
        // `finished` goes when this returns: threads that still work end then.
        shared.in_order(finished.into_iter(), each)
    })
}

struct RunnerState<'a> {
    plan: &'a RunPlan,
    keep_going: bool,
    start: Instant,
    next: AtomicU64,
    end: AtomicBool,
}

impl RunnerState<'_> {
    fn work(&self, results: &SyncSender<SimRun>) {
        // The thread that draws a number does the run: none before the first failure is missing.
        while !self.end.load(Ordering::SeqCst) {
            let number = self.next.fetch_add(1, Ordering::SeqCst);
            if self.plan.is_over(number, self.start.elapsed()) {
                break;
            }
            let run = self.one(number);
            if !run.outcome.is_fine() && !self.keep_going {
                self.end.store(true, Ordering::SeqCst);
            }
            if results.send(run).is_err() {
                break;
            }
        }
    }

    fn one(&self, number: u64) -> SimRun {
        let start = now();
        let case = self.plan.case(number);
        let outcome = case.run();
        let elapsed = start.elapsed();
        let outcome = match outcome {
            Ok(report) if self.plan.is_twice(number) => match case.run() {
                Ok(again) if again.trace_hash == report.trace_hash => RunOutcome::Fine(report),
                Ok(again) => RunOutcome::Differs { hashes: [report.trace_hash, again.trace_hash] },
                Err(violation) => RunOutcome::Violation(violation),
            },
            Ok(report) => RunOutcome::Fine(report),
            Err(violation) => RunOutcome::Violation(violation),
        };
        SimRun { number, case, outcome, elapsed }
    }

    fn in_order(
        &self,
        finished: impl Iterator<Item = SimRun>,
        mut each: impl FnMut(SimRun) -> Result<(), CommandFailure>,
    ) -> Result<(), CommandFailure> {
        let mut early = BTreeMap::new();
        let mut next = 0;
        for run in finished {
            early.insert(run.number, run);
            while let Some(run) = early.remove(&next) {
                next += 1;
                let last = !run.outcome.is_fine() && !self.keep_going;
                let done = each(run);
                if last || done.is_err() {
                    self.end.store(true, Ordering::SeqCst);
                    return done;
                }
            }
        }
        Ok(())
    }
}
