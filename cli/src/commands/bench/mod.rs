//! `mdfs bench`: what a volume does for programs that write checkpoints (IOR's patterns) and for names
//! (mdtest's), beside what a directory of this computer does.
//!
//! | file | holds |
//! | --- | --- |
//! | `ior.rs`, `mdtest.rs` | one pattern each: its options, its work |
//! | `ranks.rs` | threads in the place of processes |
//! | `report.rs` | the table, JSON |

mod ior;
mod mdtest;
mod ranks;
mod report;
#[cfg(test)]
mod tests;

use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use clap::Subcommand;

use self::report::Report;
use crate::exit::Failure;
use crate::session::Session;
use crate::tree::{Host, Inside, Tree, into};
use crate::volume_path::VolumePath;

/// Measure a volume with the patterns of IOR and mdtest.
///
/// The options mean what they mean there. Ranks are threads of this program (-N); each has a connection of
/// its own if the volume is served. With --on the same is done in a directory of this computer, each
/// repetition once here and once there, so that both see the same load.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs bench ior -N 4 -b 64MiB -t 1MiB -F -e scratch:/
  mdfs bench mdtest -N 4 -n 1000 -F -u scratch:/ --on /tmp")]
pub(crate) struct Bench {
    #[command(subcommand)]
    pattern: Pattern,
}

#[derive(Debug, Subcommand)]
enum Pattern {
    Ior(ior::Ior),
    Mdtest(mdtest::Mdtest),
}

/// What both patterns ask for.
#[derive(Clone, Debug, clap::Args)]
struct Common {
    /// Ranks.
    #[arg(short = 'N', long = "ranks", value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=ranks::RANKS_MAX))]
    ranks: u16,
    /// Repetitions.
    #[arg(short = 'i', long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=1000))]
    repetitions: u16,
    /// Do the same in this directory of this computer, in turns.
    #[arg(long, value_name = "PATH", value_hint = clap::ValueHint::DirPath)]
    on: Option<PathBuf>,
    /// As JSON: every repetition, in seconds.
    #[arg(long)]
    json: bool,
    /// A directory to work in; what is made there is removed again.
    #[arg(value_name = "VOL:/PATH", value_parser = VolumePath::parser())]
    directory: VolumePath,
}

/// Where a pattern is done: one tree for each rank, all of the same files.
struct Side {
    name: String,
    trees: Vec<Box<dyn Tree>>,
    /// A directory of this run.
    directory: Vec<u8>,
}

impl Bench {
    pub(super) fn run(&self, session: &mut Session) -> Result<(), Failure> {
        match &self.pattern {
            Pattern::Ior(ior) => {
                ior.check()?;
                ior.common.each(session, &ior.words(), |side, repetition, report| {
                    ior.run(side, repetition, report)
                })
            }
            Pattern::Mdtest(mdtest) => {
                mdtest.check()?;
                mdtest
                    .common
                    .each(session, &mdtest.words(), |side, _, report| mdtest.run(side, report))
            }
        }
    }
}

impl Common {
    /// Does `work` on each side in turns, and prints what came out.
    fn each(
        &self,
        session: &mut Session,
        words: &str,
        mut work: impl FnMut(&Side, u16, &mut Report) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut sides = self.sides(session)?;
        let mut report = Report::default();
        for repetition in 0..self.repetitions {
            for side in &sides {
                let tree = &side.trees[0];
                tree.make_directory(&side.directory)?;
                work(side, repetition, &mut report)?;
                tree.remove_directory(&side.directory)?;
            }
            // Whoever comes first may find a quieter or a busier machine.
            sides.reverse();
        }
        if self.json {
            return session.print_json(&report.rows());
        }
        session.print(report.table())?;
        session.print(format!("{words}\n"))
    }

    fn sides(&self, session: &mut Session) -> Result<Vec<Side>, Failure> {
        let name = format!("mdfs-bench-{:016x}", client::blocking::random_client());
        let VolumePath { volume: directory, path } = &self.directory;
        let shared = session.open(directory)?;
        let connect = |_| -> Box<dyn Tree> {
            // If this process has the volume alone, all ranks share it.
            let volume = client::volume::open(directory).unwrap_or_else(|_| shared.clone());
            Box::new(Inside { volume, directory: directory.clone() })
        };
        let trees = (0..self.ranks).map(connect).collect();
        let shown = format!("{}:", directory.display());
        let mut sides = vec![Side { name: shown, trees, directory: into(path, name.as_bytes()) }];
        if let Some(host) = &self.on {
            let trees = (0..self.ranks).map(|_| Box::new(Host) as Box<dyn Tree>).collect();
            let directory = into(host.as_os_str().as_bytes(), name.as_bytes());
            sides.push(Side { name: host.display().to_string(), trees, directory });
        }
        Ok(sides)
    }
}
