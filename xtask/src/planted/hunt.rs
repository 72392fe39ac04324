//! One hunt: a process with one bug switched on, and what came of it.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A run that takes so much longer than the hunt was given never ends.
const GRACE: Duration = Duration::from_mins(1);
/// The layers' tests take so long at most, with what is still to be built.
const TESTS_TIME_MAX: Duration = Duration::from_mins(10);
/// The pause between two looks at a process.
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// How hunts are done.
#[derive(Debug)]
pub(super) struct Hunt<'a> {
    /// The program.
    pub(super) program: &'a Path,
    /// The folder for what it prints.
    pub(super) logs: &'a Path,
    /// The time for each.
    pub(super) budget: Duration,
}

/// What came of a hunt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
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

impl fmt::Display for Outcome {
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
    /// Hunts with the bug `id` switched on.
    pub(super) fn run(&self, id: &str) -> io::Result<Outcome> {
        let log = |ending| self.logs.join(format!("{id}.{ending}"));
        let mut process = Command::new(self.program)
            .arg(self.budget.as_secs().to_string())
            .env("PLANTED", id)
            .stdin(Stdio::null())
            .stdout(File::create(log("out"))?)
            .stderr(File::create(log("err"))?)
            .spawn()?;
        let start = now();
        let status = wait(&mut process, start + self.budget + GRACE)?;
        Ok(outcome(&fs::read_to_string(log("out"))?, status, start.elapsed()))
    }
}

/// True if the layers' own tests fail with the bug `id` switched on; `line` runs them.
pub(super) fn is_seen_by_tests(line: &str, id: &str, logs: &Path) -> io::Result<bool> {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words).env("PLANTED", id).stdin(Stdio::null());
    let log = File::create(logs.join(format!("{id}.tests")))?;
    let mut process = command.stdout(log.try_clone()?).stderr(log).spawn()?;
    let status = wait(&mut process, now() + TESTS_TIME_MAX)?;
    Ok(!status.is_some_and(|status| status.success()))
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

/// Reads what the program printed: see its own page.
fn outcome(printed: &str, status: Option<ExitStatus>, time: Duration) -> Outcome {
    let runs = printed.lines().filter(|line| line.starts_with("run ")).count() as u64;
    let last = printed.lines().last().unwrap_or_default();
    if last.starts_with("nothing ") {
        return Outcome::Nothing { runs };
    }
    let mut words = last.splitn(6, ' ');
    let (kind, hunter, seed) = (words.next(), words.next(), words.next());
    let by = format!("{} {}", hunter.unwrap_or("?"), seed.unwrap_or("?"));
    if kind == Some("caught") {
        let reason = words.nth(2).unwrap_or_default().to_owned();
        return Outcome::Caught { by, runs, time, reason };
    }
    // It died in the middle of a run, or had to be killed.
    let reason = status.map_or("the run never ends".to_owned(), |status| status.to_string());
    Outcome::Caught { by, runs, time, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_program_printed_is_understood() {
        let time = Duration::from_secs(1);
        let caught = |by: &str, reason: &str| Outcome::Caught {
            by: by.to_owned(),
            runs: 2,
            time,
            reason: reason.to_owned(),
        };
        let printed = "run files 0\nrun names 0\n";
        let found = format!("{printed}caught names 0 2 7 a file is lost\n");
        assert_eq!(outcome(&found, None, time), caught("names 0", "a file is lost"));
        assert_eq!(outcome(printed, None, time), caught("names 0", "the run never ends"));
        let nothing = format!("{printed}nothing 2 7\n");
        assert_eq!(outcome(&nothing, None, time), Outcome::Nothing { runs: 2 });
    }
}
