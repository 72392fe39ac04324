//! `mdfs bench`: the speed of a volume for checkpoints (IOR's patterns) and for names (mdtest's),
//! compared with a directory of this computer.
//!
//! | file | holds |
//! | --- | --- |
//! | `ior.rs`, `mdtest.rs` | one pattern each: its options, its work |
//! | `options.rs` | the options of both patterns, and their repetitions |
//! | `side.rs` | where a pattern runs; threads in the place of processes |
//! | `report.rs` | the table, JSON |

mod ior;
mod mdtest;
mod options;
mod report;
mod side;
#[cfg(test)]
mod tests;

use clap::Subcommand;

use crate::exit::CommandFailure;
use crate::session::CommandSession;

/// Measure a volume with the patterns of IOR and mdtest.
///
/// The options mean what they mean there. Ranks are threads of this program (-N); each has a
/// connection of its own if the volume is served. With --on the same is done in a directory of this
/// computer, each repetition once here and once there, so that both see the same load.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs bench ior -N 4 -b 64MiB -t 1MiB -F -e scratch:/
  mdfs bench mdtest -N 4 -n 1000 -F -u scratch:/ --on /tmp")]
pub(crate) struct BenchCommand {
    #[command(subcommand)]
    pattern: BenchPattern,
}

#[derive(Debug, Subcommand)]
enum BenchPattern {
    Ior(ior::Ior),
    Mdtest(mdtest::Mdtest),
}

impl BenchCommand {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        match &self.pattern {
            BenchPattern::Ior(ior) => {
                ior.check()?;
                ior.common.each(session, &ior.words(), |side, repetition, report| {
                    ior.run(side, repetition, report)
                })
            }
            BenchPattern::Mdtest(mdtest) => {
                mdtest.check()?;
                mdtest
                    .common
                    .each(session, &mdtest.words(), |side, _, report| mdtest.run(side, report))
            }
        }
    }
}
