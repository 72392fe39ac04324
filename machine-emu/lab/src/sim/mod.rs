//! `mdfs-lab sim`: whole clusters in virtual time, amid faults, from seeds.
//!
//! | file | holds |
//! | --- | --- |
//! | `plan.rs` | which runs are done |
//! | `runner.rs` | doing them on all cores |
//! | `sums.rs` | what they did, in sum |
//! | `failure.rs` | those that failed |

mod failure;
mod plan;
mod runner;
mod sums;

use std::io;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use sim::{Fault, Planted, REGRESSIONS, Schedule, Workload};

use self::failure::{RunFailures, SchedulePaths};
use self::plan::{RunCases, RunLimit, RunPlan};
use self::runner::{RunOutcome, SimRun};
use self::sums::RunTotals;
use crate::span::TimeSpan;
use mdfs_cli::exit::CommandFailure;
use mdfs_cli::progress::Progress;
use mdfs_cli::session::CommandSession;
use mdfs_cli::time::now;

/// Runs, if nothing else is said.
const SEEDS: u64 = 100;
/// Default of `--twice-in`.
const TWICE_IN: u64 = 50;

/// Run whole clusters in virtual time, amid faults, and look for broken guarantees.
///
/// Each run draws everything from one seed: the shape of a cluster, what its clients do, the
/// faults. Clients compare what they see with a model of what may be. The same seed does the same
/// on any day and machine. A run that breaks a promise of the file system is shortened to the
/// faults that it needs; they go into a file, and the command that replays it is printed.
#[derive(Debug, clap::Args)]
#[allow(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
#[command(after_help = "Examples:
  mdfs-lab sim                                  100 runs of all workloads, from a fresh seed
  mdfs-lab sim --time 8h --keep-going           all night, whatever it finds
  mdfs-lab sim --workload files,full --faults power-cut,fail-flush --seeds 1000
  mdfs-lab sim --workload files --seed 7 --seeds 1 --print-schedule > faults
  mdfs-lab sim --workload files --seed 7 --schedule faults   the same run, or what you made of it

docs/simulation.md tells what the faults are and how to read a failure. The environment variable
MDFS_LOG=sim=debug shows each request of a run.")]
pub(crate) struct Sim {
    /// How many runs, each with a seed of its own [default: 100]
    #[arg(long, value_name = "N")]
    seeds: Option<NonZeroU64>,
    /// The seed of the first run; the next ones count up [default: drawn, and printed]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// What clients do: these in turn [default: all]
    #[arg(long = "workload", value_name = "W,...", value_delimiter = ',', value_parser = workload())]
    workloads: Vec<Workload>,
    /// Of the faults that the seed draws do only these
    #[arg(long, value_name = "WORD,...", value_delimiter = ',', value_parser = faults())]
    faults: Vec<String>,
    /// The faults of one run, instead of drawn ones; - for standard input
    #[arg(long, value_name = "FILE", requires_all = ["workloads", "seed"])]
    #[arg(conflicts_with_all = ["faults", "time"])]
    schedule: Option<PathBuf>,
    /// Run the regression cases: each failed once
    #[arg(long, conflicts_with_all = ["seeds", "seed", "workloads", "faults", "schedule", "time"])]
    regressions: bool,
    /// Begin no new run after this time, as in 90s, 10min or 2h
    #[arg(long, value_name = "TIME", conflicts_with = "seeds")]
    time: Option<TimeSpan>,
    /// Runs at the same time; nothing else depends on it [default: one for each core]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Repeat every N-th run of each workload and compare the traces; 0 for none
    #[arg(long, value_name = "N", default_value_t = TWICE_IN)]
    twice_in: u64,
    /// Go on after a failure
    #[arg(long)]
    keep_going: bool,
    /// Do not look for the faults that a failure needs
    #[arg(long)]
    no_shrink: bool,
    /// Where the shortened faults go [default: sim-WORKLOAD-SEED.schedule]; shrinks --schedule, too
    #[arg(long, value_name = "FILE", conflicts_with_all = ["no_shrink", "keep_going", "regressions"])]
    shrunk: Option<PathBuf>,
    /// Print the faults of one run, as --schedule takes them
    #[arg(long, conflicts_with_all = ["json", "print_hashes", "regressions", "time"])]
    print_schedule: bool,
    /// Print the hash of the trace of each run
    #[arg(long, conflicts_with = "json")]
    print_hashes: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Switch a bug on, to see that it is found
    #[arg(long, hide = true, value_name = "BUG", value_parser = planted())]
    plant: Option<Planted>,
}

fn workload() -> impl TypedValueParser<Value = Workload> {
    let names = PossibleValuesParser::new(Workload::ALL.map(Workload::name));
    names.try_map(|name| Workload::from_name(&name).ok_or("there is no such workload"))
}

fn faults() -> PossibleValuesParser {
    PossibleValuesParser::new(Fault::WORDS)
}

fn planted() -> impl TypedValueParser<Value = Planted> {
    let names = PossibleValuesParser::new(Planted::ALL.map(Planted::name));
    names.try_map(|name| Planted::from_name(&name).ok_or("there is no such bug"))
}

impl Sim {
    pub(crate) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        let plan = self.plan()?;
        let threads = self.threads.map_or_else(cores, NonZeroUsize::get);
        if self.tells_people() {
            session.print(format!("{plan}, {threads} at a time\n"))?;
            session.flush()?;
        }
        let start = now();
        let mut sums = RunTotals::new(&plan);
        let mut failures = RunFailures::default();
        let progress = Progress::of_work(plan.length());
        let finished = runner::run(&plan, threads, self.keep_going, |run| {
            self.note(run, session, &mut sums, &mut failures, &progress)?;
            let elapsed = start.elapsed();
            progress.at(plan.position(sums.runs(), elapsed), sums.line(elapsed));
            Ok(())
        });
        progress.finish();
        finished?;
        sums.took(start.elapsed());
        if !self.no_shrink && (self.schedule.is_none() || self.shrunk.is_some()) {
            failures.shrink();
        }
        let shrinking =
            SchedulePaths { to: self.shrunk.as_deref(), given: self.schedule.as_deref() };
        failures.write(&shrinking)?;
        if self.json {
            session.print_json(&sums.document(failures.records()))?;
        } else if self.tells_people() {
            session.print(sums.tables())?;
        }
        failures.outcome(sums.runs())
    }

    /// The output is for people, not for programs.
    fn tells_people(&self) -> bool {
        !(self.json || self.print_schedule || self.print_hashes)
    }

    fn plan(&self) -> Result<RunPlan, CommandFailure> {
        if self.regressions {
            let cases: Result<Vec<_>, _> =
                REGRESSIONS.iter().map(sim::RegressionCase::case).collect();
            let cases = cases
                .map_err(|error| CommandFailure::Wrong(format!("a regression case: {error}")))?;
            let limit = RunLimit::Runs(cases.len() as u64);
            return Ok(RunPlan {
                cases: RunCases::RegressionCase(cases),
                limit,
                twice_in: self.twice_in,
            });
        }
        let schedule = self.schedule.as_deref().map(read_schedule).transpose()?;
        let single = schedule.is_some() || self.print_schedule;
        let seeds = self.seeds.map_or(if single { 1 } else { SEEDS }, NonZeroU64::get);
        if single && (seeds != 1 || self.workloads.len() != 1) {
            let text = "a schedule is of one run: name one --workload, and no --seeds but 1";
            return Err(CommandFailure::Usage(text.to_owned()));
        }
        let all = || Workload::ALL.to_vec();
        let workloads = Some(self.workloads.clone()).filter(|some| !some.is_empty());
        let faults = Some(self.faults.iter().cloned().collect());
        Ok(RunPlan {
            cases: RunCases::Mix {
                workloads: workloads.unwrap_or_else(all),
                seed: self.seed.unwrap_or_else(fresh_seed),
                schedule,
                faults: faults.filter(|_| !self.faults.is_empty()),
                planted: self.plant,
            },
            limit: self.time.map_or(RunLimit::Runs(seeds), |span| RunLimit::Time(span.0)),
            twice_in: self.twice_in,
        })
    }

    /// Counts a run, in the order of the plan, and prints what the options request.
    fn note(
        &self,
        run: SimRun,
        session: &mut CommandSession,
        sums: &mut RunTotals,
        failures: &mut RunFailures,
        progress: &Progress,
    ) -> Result<(), CommandFailure> {
        let name = format!("{} {}", run.case.workload.name(), run.case.seed);
        sums.add(&run);
        match &run.outcome {
            RunOutcome::Fine(report) => {
                if self.print_hashes {
                    session.print(format!("{name} {:016x}\n", report.trace_hash))?;
                }
                if self.print_schedule {
                    session.print(format!("# {name}\n{}", report.schedule))?;
                }
                return Ok(());
            }
            RunOutcome::Violation(violation) => {
                if self.print_hashes {
                    session.print(format!("{name} {}\n", first_line(&violation.message)))?;
                }
                if self.print_schedule {
                    session.print(format!("# {name}\n{}", violation.schedule))?;
                }
            }
            RunOutcome::Differs { .. } => {}
        }
        // At once: the rest may take long, and shrinking takes minutes.
        progress.print_above(&format!("{name} failed: {}", first_line(&run.outcome.message())));
        failures.add(run);
        Ok(())
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// Short enough to be typed.
#[allow(clippy::disallowed_types, reason = "each call shall try what was never tried")]
fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(0) >> 32
}

fn read_schedule(path: &Path) -> Result<Schedule, CommandFailure> {
    let failed = |error| CommandFailure::local("read schedule", path, error);
    let text = if path == Path::new("-") {
        io::read_to_string(io::stdin())
    } else {
        std::fs::read_to_string(path)
    };
    let schedule = text.map_err(failed)?.parse();
    schedule.map_err(|error| failed(io::Error::new(io::ErrorKind::InvalidData, error)))
}
