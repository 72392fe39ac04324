//! One hunt: processes with one bug switched on, and what came of them.
//!
//! 1. The hunters that the list names for the bug, for half of the time.
//! 2. The layers' own tests on the emulated machine, which take seconds.
//! 3. All hunters in turn, with other seeds, for the rest of the time.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A run that takes so much longer than the hunt was given never ends.
const GRACE: Duration = Duration::from_mins(1);
/// Time limit for one program of the layers' tests.
const TESTS_TIME_MAX: Duration = Duration::from_mins(5);
/// Where the seeds begin when all hunters take turns: none of those that came first gets so far.
const TURNS_SEED: u64 = 1_000_000;
/// The pause between two looks at a process.
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// How hunts are done.
#[derive(Debug)]
pub(super) struct Hunt<'a> {
    /// The program.
    pub(super) program: &'a Path,
    /// The programs of the layers' tests.
    pub(super) tests: &'a [PathBuf],
    /// The folder for what it prints.
    pub(super) logs: &'a Path,
    /// The time for each.
    pub(super) budget: Duration,
}

/// What came of a hunt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HuntOutcome {
    /// Something was found.
    Caught {
        /// By whom, under which seed.
        by: String,
        /// Runs that it took.
        runs: u64,
        /// Time that it took.
        time: Duration,
        /// What was seen.
        reason: String,
    },
    /// Nothing was found.
    Nothing {
        /// Runs that were done.
        runs: u64,
    },
}

impl fmt::Display for HuntOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Caught { by, runs, time, reason } => {
                let reason: String = reason.chars().take(100).collect();
                write!(f, "{by:<14} {runs:>5} runs {:>6.1} s  {reason}", time.as_secs_f64())
            }
            Self::Nothing { runs } => write!(f, "NOTHING        {runs:>5} runs"),
        }
    }
}

impl Hunt<'_> {
    /// Hunts with the bug `id` switched on; `first` are the hunters that begin.
    pub(super) fn run(&self, id: &str, first: &[String]) -> io::Result<HuntOutcome> {
        let (mut runs_before, mut rest) = (0, self.budget);
        if !first.is_empty() {
            match self.part(id, "first", self.budget / 2, 0, first)? {
                HuntOutcome::Nothing { runs } => runs_before = runs,
                caught @ HuntOutcome::Caught { .. } => return Ok(caught),
            }
            rest = self.budget / 2;
        }
        if let Some(caught) = self.ask_the_layers(id)? {
            return Ok(caught);
        }
        self.part(id, "turns", rest, TURNS_SEED, &[]).map(|outcome| outcome.after(runs_before))
    }

    /// One process, in which `hunters` take turns; all of them if none is named.
    fn part(
        &self,
        id: &str,
        name: &str,
        budget: Duration,
        seed: u64,
        hunters: &[String],
    ) -> io::Result<HuntOutcome> {
        let log = |ending| self.logs.join(format!("{id}.{name}.{ending}"));
        let mut process = Command::new(self.program)
            .arg(budget.as_secs().max(1).to_string())
            .arg(seed.to_string())
            .args(hunters)
            .env("PLANTED", id)
            .stdin(Stdio::null())
            .stdout(File::create(log("out"))?)
            .stderr(File::create(log("err"))?)
            .spawn()?;
        let start = now();
        let status = wait(&mut process, start + budget + GRACE)?;
        let printed = fs::read_to_string(log("out"))?;
        outcome(&printed, status, start.elapsed()).ok_or_else(|| {
            let log = log("err");
            io::Error::other(format!("no hunter ran, see {}", log.display()))
        })
    }

    /// Runs the layers' own tests until one fails.
    fn ask_the_layers(&self, id: &str) -> io::Result<Option<HuntOutcome>> {
        let path = self.logs.join(format!("{id}.tests"));
        let log = File::create(&path)?;
        let start = now();
        for program in self.tests {
            let mut process = Command::new(program)
                .env("PLANTED", id)
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log.try_clone()?)
                .spawn()?;
            let status = wait(&mut process, now() + TESTS_TIME_MAX)?;
            if !status.is_some_and(|status| status.success()) {
                let reason = failed_test(&String::from_utf8_lossy(&fs::read(&path)?));
                let (by, time) = ("tests".to_owned(), start.elapsed());
                return Ok(Some(HuntOutcome::Caught { by, runs: 1, time, reason }));
            }
        }
        Ok(None)
    }
}

impl HuntOutcome {
    /// The same after `before` runs that found nothing.
    fn after(mut self, before: u64) -> Self {
        let (Self::Caught { runs, .. } | Self::Nothing { runs }) = &mut self;
        *runs += before;
        self
    }
}

/// The name of the test that failed, from what the tests printed.
fn failed_test(printed: &str) -> String {
    let failed =
        |line: &str| Some(line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?.to_owned());
    printed.lines().find_map(failed).unwrap_or("they never end, or died".to_owned())
}

#[allow(clippy::disallowed_methods, reason = "this tool runs beside the system, not in it")]
fn now() -> Instant {
    Instant::now()
}

/// Waits for the end of a process; one that does not end until `limit` is killed: `None`.
#[allow(clippy::disallowed_methods, reason = "this tool runs beside the system, not in it")]
fn wait(process: &mut Child, limit: Instant) -> io::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = process.try_wait()? {
            return Ok(Some(status));
        }
        if now() >= limit {
            process.kill()?;
            process.wait()?;
            return Ok(None);
        }
        std::thread::sleep(LOOK_PAUSE);
    }
}

/// Reads what the program printed, see its own page; `None` if not even a run began.
fn outcome(printed: &str, status: Option<ExitStatus>, time: Duration) -> Option<HuntOutcome> {
    let runs = printed.lines().filter(|line| line.starts_with("run ")).count() as u64;
    let last = printed.lines().last()?;
    if last.starts_with("nothing ") {
        return Some(HuntOutcome::Nothing { runs });
    }
    let mut words = last.splitn(6, ' ');
    let (kind, hunter, seed) = (words.next(), words.next(), words.next());
    let by = format!("{} {}", hunter.unwrap_or("?"), seed.unwrap_or("?"));
    if kind == Some("caught") {
        let reason = words.nth(2).unwrap_or_default().to_owned();
        return Some(HuntOutcome::Caught { by, runs, time, reason });
    }
    // It died in the middle of a run, or had to be killed.
    let reason = status.map_or("the run never ends".to_owned(), |status| status.to_string());
    Some(HuntOutcome::Caught { by, runs, time, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_program_printed_is_understood() {
        let time = Duration::from_secs(1);
        let caught = |by: &str, reason: &str| HuntOutcome::Caught {
            by: by.to_owned(),
            runs: 2,
            time,
            reason: reason.to_owned(),
        };
        let printed = "run files 0\nrun names 0\n";
        let found = format!("{printed}caught names 0 2 7 a file is lost\n");
        assert_eq!(outcome(&found, None, time), Some(caught("names 0", "a file is lost")));
        assert_eq!(outcome(printed, None, time), Some(caught("names 0", "the run never ends")));
        let nothing = format!("{printed}nothing 2 7\n");
        assert_eq!(outcome(&nothing, None, time), Some(HuntOutcome::Nothing { runs: 2 }));
        assert_eq!(outcome("", None, time), None);
        assert_eq!(HuntOutcome::Nothing { runs: 2 }.after(3), HuntOutcome::Nothing { runs: 5 });
    }

    #[test]
    fn the_test_that_failed_is_named() {
        let printed = "running 2 tests\ntest a ... ok\ntest b ... FAILED\n";
        assert_eq!(failed_test(printed), "b");
        assert_eq!(failed_test("running 2 tests\n"), "they never end, or died");
    }
}
