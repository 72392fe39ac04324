//! Running programs as named steps: what runs is printed before, how long it took after, and for
//! one that fails the command that repeats it.

use std::process::Command;
use std::time::{Duration, Instant};

/// The exit code for a command line that has no meaning.
pub(crate) const USAGE: u8 = 2;

/// One program call that must succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProgramCall {
    program: String,
    arguments: Vec<String>,
}

impl ProgramCall {
    /// Calls `line`, whose words are separated by blanks.
    pub(crate) fn new(line: &str) -> Self {
        let mut words = line.split_whitespace().map(str::to_owned);
        Self {
            program: words.next().expect("a call names its program"),
            arguments: words.collect(),
        }
    }

    /// The same call with `more` arguments.
    pub(crate) fn with(mut self, more: &[String]) -> Self {
        self.arguments.extend_from_slice(more);
        self
    }

    /// The call as it would be typed.
    pub(crate) fn line(&self) -> String {
        let words = std::iter::once(&self.program).chain(&self.arguments);
        words.map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
    }

    /// Runs it with our own input and output; its exit code, 1 if it has none.
    pub(crate) fn run(&self) -> u8 {
        match self.command().status() {
            Ok(status) => {
                if status.code().is_none() {
                    eprintln!("xtask: {} was ended by a signal", self.program);
                }
                status.code().map_or(1, |code| u8::try_from(code).unwrap_or(1))
            }
            Err(error) => {
                eprintln!("xtask: cannot run {}: {error}", self.program);
                1
            }
        }
    }

    /// Runs it unseen; what it printed, if it succeeded.
    pub(crate) fn output(&self) -> Option<String> {
        let output = self.command().output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn command(&self) -> Command {
        // The cargo that runs us, not another one of the PATH.
        let cargo = std::env::var_os("CARGO").filter(|_| self.program == "cargo");
        let mut command = Command::new(cargo.unwrap_or_else(|| self.program.clone().into()));
        command.args(&self.arguments);
        // What cargo tells this program about itself. Build scripts that read it (ring's does)
        // would run again after each build without xtask, and all that depends on them would be
        // built again.
        let of_xtask = std::env::vars_os().map(|(name, _)| name).filter(|name| {
            let name = name.to_string_lossy();
            name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
        });
        for name in of_xtask {
            command.env_remove(name);
        }
        // A build that nothing is built on later: what the next one would go on from takes as much
        // space again as the build itself.
        if std::env::var_os("CI").is_some() {
            command.env("CARGO_INCREMENTAL", "0");
        }
        command
    }
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,@+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// The steps done so far, for the summary at the end.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    done: Vec<StepResult>,
}

#[derive(Debug)]
struct StepResult {
    name: &'static str,
    /// The command that repeats the step.
    line: String,
    passed: bool,
    time: Duration,
}

/// A step failed, and was told on the standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepFailed {
    /// What the step's program said.
    pub(crate) code: u8,
}

impl Steps {
    /// Runs `call` as the step `name`.
    pub(crate) fn call(
        &mut self,
        name: &'static str,
        call: &ProgramCall,
    ) -> Result<(), StepFailed> {
        let line = call.line();
        self.step(name, &line, || call.run())
    }

    /// Runs `work` as the step `name`; `line` is the command that repeats it. The result of `work`
    /// is an exit code.
    pub(crate) fn step(
        &mut self,
        name: &'static str,
        line: &str,
        work: impl FnOnce() -> u8,
    ) -> Result<(), StepFailed> {
        println!("\n== {name}: {line}");
        let (code, time) = timed(work);
        let passed = code == 0;
        self.done.push(StepResult { name, line: line.to_owned(), passed, time });
        if passed {
            println!("== {name}: passed in {}", seconds(time));
            return Ok(());
        }
        eprintln!("== {name}: FAILED after {}", seconds(time));
        eprintln!("   to repeat it alone: {line}");
        Err(StepFailed { code })
    }

    /// How many steps failed.
    pub(crate) fn failures(&self) -> usize {
        self.done.iter().filter(|step| !step.passed).count()
    }

    /// One line for each step: outcome, time and, for one that failed, the command that repeats it.
    pub(crate) fn summary(&self) -> String {
        let rows = self.done.iter().map(|step| {
            let (outcome, repeat) = if step.passed {
                ("passed", String::new())
            } else {
                ("FAILED", format!("   {}", step.line))
            };
            format!("   {:<14} {outcome} {:>9}{repeat}\n", step.name, seconds(step.time))
        });
        rows.collect()
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[allow(clippy::disallowed_methods, reason = "this tool runs beside the system, not in it")]
fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_prints_as_it_would_be_typed() {
        let call =
            ProgramCall::new("cargo  bench").with(&["it's".into(), "--list".into(), String::new()]);
        assert_eq!(call.line(), r"cargo bench 'it'\''s' --list ''");
    }

    #[test]
    fn a_failed_step_gives_the_exit_code_of_its_program() {
        let mut steps = Steps::default();
        let call =
            ProgramCall { program: "sh".into(), arguments: vec!["-c".into(), "exit 7".into()] };
        assert_eq!(steps.call("fails", &call), Err(StepFailed { code: 7 }));
        assert_eq!(
            steps.call("is missing", &ProgramCall::new("/no/such/program")),
            Err(StepFailed { code: 1 })
        );
        assert_eq!(steps.call("works", &ProgramCall::new("true")), Ok(()));
        assert_eq!(steps.failures(), 2);
        let summary = steps.summary();
        let outcomes: Vec<_> = summary.lines().map(|row| row.contains("FAILED")).collect();
        assert_eq!(outcomes, [true, true, false], "{summary}");
        assert!(summary.contains("/no/such/program"), "the line that repeats it: {summary}");
    }
}
