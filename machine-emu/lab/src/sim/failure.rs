//! Failed runs: shortened, written to files, reported with the command that replays them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use sim::{Case, Schedule, Workload, shrink};

use super::runner::{RunOutcome, SimRun};
use mdfs_cli::exit::CommandFailure;
use mdfs_cli::progress::Progress;
use mdfs_cli::time::now;

/// Runs in search of a shorter schedule, at most.
const SHRINK_RUNS_MAX: u32 = 400;
/// The search ends after this time, with what it has.
const SHRINK_TIME_MAX: Duration = Duration::from_mins(2);
/// Failures that are reported in full, at most.
const REPORTED_MAX: usize = 20;
/// Lines of a schedule on the screen, at most; the file has all.
const LINES_SHOWN_MAX: usize = 12;

/// All that failed.
#[derive(Debug, Default)]
pub(super) struct RunFailures {
    count: u64,
    /// The first ones.
    first: Vec<FailedRun>,
}

/// One of them.
#[derive(Debug)]
struct FailedRun {
    case: Case,
    message: String,
    layout: String,
    /// Faults up to the failure; none if it is not about faults.
    schedule: Option<Schedule>,
    shrunk: Option<ShrinkSummary>,
    /// The command that repeats it.
    command: String,
}

/// How it was shortened.
#[derive(Clone, Copy, Debug)]
struct ShrinkSummary {
    lines_before: usize,
    runs: u32,
}

/// Where schedules are.
pub(super) struct SchedulePaths<'a> {
    /// Where the shortest one goes, if not to a name of its own.
    pub(super) to: Option<&'a Path>,
    /// Where the one that was given is.
    pub(super) given: Option<&'a Path>,
}

/// One failure, for programs.
#[derive(Debug, Serialize)]
pub(super) struct FailureRecord {
    workload: &'static str,
    seed: u64,
    message: String,
    layout: String,
    schedule: Option<String>,
    command: String,
}

impl RunFailures {
    /// One more.
    pub(super) fn add(&mut self, run: SimRun) {
        self.count += 1;
        if self.first.len() == REPORTED_MAX {
            return;
        }
        let message = run.outcome.message();
        let (layout, schedule) = match run.outcome {
            RunOutcome::Violation(violation) => (violation.layout, Some(violation.schedule)),
            RunOutcome::Fine(_) | RunOutcome::Differs { .. } => (String::new(), None),
        };
        let command = run.case.command();
        self.first.push(FailedRun {
            case: run.case,
            message,
            layout,
            schedule,
            shrunk: None,
            command,
        });
    }

    /// Looks for the faults that are needed; of each workload for those of the first failure.
    pub(super) fn shrink(&mut self) {
        let mut workloads: Vec<Workload> = Vec::new();
        for failed in &mut self.first {
            if !workloads.contains(&failed.case.workload) {
                workloads.push(failed.case.workload);
                failed.shrink();
            }
        }
    }

    /// Writes the schedules that were shortened, or that exist nowhere else.
    pub(super) fn write(&mut self, shrinking: &SchedulePaths<'_>) -> Result<(), CommandFailure> {
        self.first.iter_mut().try_for_each(|failed| failed.write(shrinking))
    }

    /// For programs.
    pub(super) fn records(&self) -> Vec<FailureRecord> {
        self.first.iter().map(FailedRun::record).collect()
    }

    /// Of `runs`: a failure if there is one.
    pub(super) fn outcome(&self, runs: u64) -> Result<(), CommandFailure> {
        if self.count == 0 {
            return Ok(());
        }
        let head = match runs {
            1 => "the run failed".to_owned(),
            _ => format!("{} of {runs} runs failed", self.count),
        };
        let untold = self.count - self.first.len() as u64;
        let reports = self.first.iter().map(|failed| failed.lines().join("\n"));
        let rest = (untold > 0).then(|| format!("{untold} more are not shown"));
        let parts: Vec<String> = std::iter::once(head).chain(reports).chain(rest).collect();
        Err(CommandFailure::Wrong(parts.join("\n\n")))
    }
}

impl FailedRun {
    fn shrink(&mut self) {
        let Some(schedule) = self.schedule.take() else { return };
        let lines_before = schedule.items.len();
        let (message, layout) = (self.message.clone(), self.layout.clone());
        let violation = sim::Violation { message, layout, schedule };
        let progress = Progress::of_work(SHRINK_RUNS_MAX.into());
        let start = now();
        let mut tried = 0;
        let shrunk = shrink(&self.case, violation, SHRINK_RUNS_MAX, |left| {
            let message = format!("shrinking: {left} faults, {tried} of {SHRINK_RUNS_MAX} runs");
            progress.at(tried, message);
            tried += 1;
            start.elapsed() < SHRINK_TIME_MAX
        });
        progress.finish();
        self.message = shrunk.violation.message;
        self.schedule = shrunk.case.schedule.clone();
        self.shrunk = Some(ShrinkSummary { lines_before, runs: shrunk.runs });
        self.case = shrunk.case;
    }

    fn write(&mut self, shrinking: &SchedulePaths<'_>) -> Result<(), CommandFailure> {
        if self.case.schedule.is_none() {
            return Ok(());
        }
        let name = || format!("sim-{}-{}.schedule", self.case.workload.name(), self.case.seed);
        let file = match (self.shrunk, shrinking.given) {
            (None, Some(given)) => given.to_owned(),
            _ => shrinking.to.map_or_else(|| PathBuf::from(name()), Path::to_owned),
        };
        self.command = format!("{} --schedule {}", self.case.command(), quoted(&file));
        if self.shrunk.is_none() && shrinking.given.is_some() {
            return Ok(());
        }
        let text = self.schedule_text();
        std::fs::write(&file, text).map_err(|error| CommandFailure::local("write", &file, error))
    }

    /// What the file of the schedule holds.
    fn schedule_text(&self) -> String {
        let head = [self.headline(), self.layout.clone()];
        let head = head.into_iter().chain(self.shrunk_line()).chain([self.command_line()]);
        let head: Vec<String> = head.collect();
        let head = head.join("\n").lines().map(|line| format!("# {line}")).collect::<Vec<_>>();
        head.join("\n")
            + "\n"
            + &self.case.schedule.as_ref().map(Schedule::to_string).unwrap_or_default()
    }

    fn headline(&self) -> String {
        format!("{} {}: {}", self.case.workload.name(), self.case.seed, self.message)
    }

    fn shrunk_line(&self) -> Option<String> {
        let ShrinkSummary { lines_before, runs } = self.shrunk?;
        let lines = self.schedule.as_ref().map_or(0, |schedule| schedule.items.len());
        Some(format!("schedule shortened from {lines_before} lines to {lines} in {runs} runs"))
    }

    fn command_line(&self) -> String {
        format!("to repeat it: {}", self.command)
    }

    /// As people read it.
    fn lines(&self) -> Vec<String> {
        let mut lines = vec![self.headline()];
        if !self.layout.is_empty() {
            lines.push(format!("   {}", self.layout));
        }
        if let (Some(line), Some(schedule)) = (self.shrunk_line(), &self.case.schedule) {
            lines.push(format!("   {line}:"));
            let items = &schedule.items;
            lines.extend(items.iter().take(LINES_SHOWN_MAX).map(|item| format!("   | {item}")));
            if items.len() > LINES_SHOWN_MAX {
                lines.push("   | ... (the file has all)".to_owned());
            }
        }
        lines.push(format!("   {}", self.command_line()));
        lines
    }

    fn record(&self) -> FailureRecord {
        FailureRecord {
            workload: self.case.workload.name(),
            seed: self.case.seed,
            message: self.message.clone(),
            layout: self.layout.clone(),
            schedule: self.schedule.as_ref().map(Schedule::to_string),
            command: self.command.clone(),
        }
    }
}

/// A path as it is typed.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_alphanumeric() || "-_=./,+".contains(c);
    if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}
