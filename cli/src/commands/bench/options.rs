//! The options of both patterns, and their repetitions.

use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use super::report::BenchReport;
use super::side::{BenchSide, RANKS_MAX};
use crate::connection::ConnectionArguments;
use crate::exit::CommandFailure;
use crate::session::CommandSession;
use crate::tree::{FileTree, HostTree, VolumeFileTree, into};
use crate::volume_path::VolumePath;

/// The options of both patterns.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct CommonOptions {
    /// Ranks.
    #[arg(short = 'N', long = "ranks", value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=RANKS_MAX))]
    pub(super) ranks: u16,
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
    #[command(flatten)]
    connection: ConnectionArguments,
    /// A directory to work in; what is made there is removed again.
    #[arg(value_name = "VOL:/PATH", value_parser = VolumePath::parser())]
    directory: VolumePath,
}

impl CommonOptions {
    /// Does `work` on each side in turns and prints the results.
    pub(super) fn each(
        &self,
        session: &mut CommandSession,
        words: &str,
        mut work: impl FnMut(&BenchSide, u16, &mut BenchReport) -> Result<(), CommandFailure>,
    ) -> Result<(), CommandFailure> {
        session.connect_with(&self.connection);
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
        let VolumePath { volume: address, path } = &self.directory;
        let shared = session.open(address)?;
        let connect = |_| -> Box<dyn FileTree> {
            // If this process has the volume alone, all ranks share it.
            let volume = session.open_again(address).unwrap_or_else(|_| shared.clone());
            Box::new(VolumeFileTree { volume, address: address.clone() })
        };
        let trees = (0..self.ranks).map(connect).collect();
        let shown = format!("{address}:");
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
