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

use self::report::BenchReport;
use crate::exit::CommandFailure;
use crate::session::CommandSession;
use crate::tree::{FileTree, HostTree, VolumeFileTree, into};
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
pub(crate) struct BenchCommand {
    #[command(subcommand)]
    pattern: BenchPattern,
}

#[derive(Debug, Subcommand)]
enum BenchPattern {
    Ior(ior::Ior),
    Mdtest(mdtest::Mdtest),
}

/// What both patterns ask for.
#[derive(Clone, Debug, clap::Args)]
struct CommonOptions {
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
struct BenchSide {
    name: String,
    trees: Vec<Box<dyn FileTree>>,
    /// A directory of this run.
    directory: Vec<u8>,
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

impl CommonOptions {
    /// Does `work` on each side in turns, and prints what came out.
    fn each(
        &self,
        session: &mut CommandSession,
        words: &str,
        mut work: impl FnMut(&BenchSide, u16, &mut BenchReport) -> Result<(), CommandFailure>,
    ) -> Result<(), CommandFailure> {
        let mut sides = self.sides(session)?;
        let mut report = BenchReport::default();
        for repetition in 0..self.repetitions {
            for side in &sides {
                let tree = &side.trees[0];
                tree.make_directory(&side.directory)?;
                work(side, repetition, &mut report)?;
                tree.remove_directory(&side.directory)?;
            }
            // The side that runs first may find a quieter or a busier machine.
            sides.reverse();
        }
        if self.json {
            return session.print_json(&report.rows());
        }
        session.print(report.table())?;
        session.print(format!("{words}\n"))
    }

    fn sides(&self, session: &mut CommandSession) -> Result<Vec<BenchSide>, CommandFailure> {
        let name = format!("mdfs-bench-{:016x}", client::blocking::random_client());
        let VolumePath { volume: directory, path } = &self.directory;
        let shared = session.open(directory)?;
        let connect = |_| -> Box<dyn FileTree> {
            // If this process has the volume alone, all ranks share it.
            let volume = client::volume::open(directory).unwrap_or_else(|_| shared.clone());
            Box::new(VolumeFileTree { volume, directory: directory.clone() })
        };
        let trees = (0..self.ranks).map(connect).collect();
        let shown = format!("{}:", directory.display());
        let mut sides =
            vec![BenchSide { name: shown, trees, directory: into(path, name.as_bytes()) }];
        if let Some(host) = &self.on {
            let trees = (0..self.ranks).map(|_| Box::new(HostTree) as Box<dyn FileTree>).collect();
            let directory = into(host.as_os_str().as_bytes(), name.as_bytes());
            sides.push(BenchSide { name: host.display().to_string(), trees, directory });
        }
        Ok(sides)
    }
}
