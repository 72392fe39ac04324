//! Runs on all cores, told in the order of the plan: what is told does not depend on how many
//! threads there are.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::time::{Duration, Instant};

use sim::{Case, RunReport, Violation};

use super::plan::Plan;
use mdfs_cli::exit::Failure;
use mdfs_cli::time::now;

/// Runs that are done and not told yet, at most.
const UNTOLD_MAX: usize = 256;

/// One run that is done.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) number: u64,
    pub(super) case: Case,
    pub(super) outcome: Outcome,
    /// On its thread; the first time if it was done twice.
    pub(super) elapsed: Duration,
}

/// How it went.
#[derive(Debug)]
pub(super) enum Outcome {
    Fine(RunReport),
    Violation(Violation),
    /// Done twice, it did not do the same.
    Differs {
        hashes: [u64; 2],
    },
}

impl Outcome {
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
    plan: &Plan,
    threads: usize,
    keep_going: bool,
    each: impl FnMut(Run) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let shared = Shared {
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
    shared: &Shared<'_>,
    threads: usize,
    each: impl FnMut(Run) -> Result<(), Failure>,
) -> Result<(), Failure> {
    std::thread::scope(|scope| {
        let (tell, told) = mpsc::sync_channel(UNTOLD_MAX);
        for _ in 0..threads {
            let tell = tell.clone();
            scope.spawn(move || shared.work(&tell));
        }
        drop(tell);
        // `told` goes when this returns: whoever still works ends then.
        shared.in_order(told.into_iter(), each)
    })
}

struct Shared<'a> {
    plan: &'a Plan,
    keep_going: bool,
    start: Instant,
    next: AtomicU64,
    end: AtomicBool,
}

impl Shared<'_> {
    fn work(&self, tell: &SyncSender<Run>) {
        // Whoever has drawn a number does the run: before the first that fails none is missing.
        while !self.end.load(Ordering::SeqCst) {
            let number = self.next.fetch_add(1, Ordering::SeqCst);
            if self.plan.is_over(number, self.start.elapsed()) {
                break;
            }
            let run = self.one(number);
            if !run.outcome.is_fine() && !self.keep_going {
                self.end.store(true, Ordering::SeqCst);
            }
            if tell.send(run).is_err() {
                break;
            }
        }
    }

    fn one(&self, number: u64) -> Run {
        let start = now();
        let case = self.plan.case(number);
        let outcome = case.run();
        let elapsed = start.elapsed();
        let outcome = match outcome {
            Ok(report) if self.plan.is_twice(number) => match case.run() {
                Ok(again) if again.trace_hash == report.trace_hash => Outcome::Fine(report),
                Ok(again) => Outcome::Differs { hashes: [report.trace_hash, again.trace_hash] },
                Err(violation) => Outcome::Violation(violation),
            },
            Ok(report) => Outcome::Fine(report),
            Err(violation) => Outcome::Violation(violation),
        };
        Run { number, case, outcome, elapsed }
    }

    fn in_order(
        &self,
        told: impl Iterator<Item = Run>,
        mut each: impl FnMut(Run) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut early = BTreeMap::new();
        let mut next = 0;
        for run in told {
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
