//! `mdfs-lab crashes`: every crash of every small workload, one after the other.

use sim::enumerate::{EnumerationOptions, EnumerationReport, replay, run, workloads};

use mdfs_cli::exit::CommandFailure;
use mdfs_cli::session::CommandSession;

/// States of two operations; the shares of small groups of workloads are not used up.
const STATES: u64 = 620_000;

/// Cut the power at every moment of every small workload, and look at what is left.
///
/// All workloads of a few operations run on a small volume. Of the writes that no flush has covered
/// every subset is left, whole and torn; each state is mounted and compared with what was promised.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs-lab crashes                                     a minute: some 600,000 states
  mdfs-lab crashes --operations 3 --states 5000000     longer workloads, some of their states")]
pub(crate) struct CrashSearch {
    /// Operations of a workload, at most
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=4))]
    operations: u8,
    /// States, at most: of more than that some are drawn
    #[arg(long, value_name = "COUNT", default_value_t = STATES)]
    states: u64,
    /// What is drawn
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// Look at one state again, by the name that it was reported with
    #[arg(long, value_name = "STATE", conflicts_with_all = ["operations", "states", "seed"])]
    state: Option<String>,
}

impl CrashSearch {
    pub(crate) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        if let Some(state) = &self.state {
            let told = replay(state);
            let told = told.ok_or_else(|| CommandFailure::Usage(format!("no state: {state}")))?;
            return session.print(told + "\n");
        }
        let options = EnumerationOptions {
            operations: self.operations.into(),
            states_max: self.states,
            seed: self.seed,
            ..EnumerationOptions::default()
        };
        session.print(format!("{} workloads\n", workloads(options.operations)))?;
        let report = run(&options, |_| {});
        session.print(told(&report))?;
        match report.wrong {
            0 => Ok(()),
            wrong => Err(CommandFailure::Wrong(format!("{wrong} states are wrong: see above"))),
        }
    }
}

fn told(report: &EnumerationReport) -> String {
    let EnumerationReport { workloads, points, states, distinct, wrong, ref violations } = *report;
    let mut lines: Vec<String> =
        violations.iter().map(|violation| format!("{}\n\n", violation.text)).collect();
    lines.push(format!(
        "{workloads} workloads, {points} crash points, {states} states, {distinct} of them \
         distinct; wrong {wrong}\n"
    ));
    lines.concat()
}
