//! `mdfs cluster recover`: rebuilds what etcd holds of a cluster from its disks.

use std::path::PathBuf;

use ::cluster::membership::ProcessId;
use volume::cluster;

use super::file::MachineFile;
use crate::exit::CommandFailure;
use crate::session::CommandSession;

/// Rebuild the records of a cluster in etcd from its disks, after etcd was lost or an older copy of
/// it was brought back.
///
/// Stop all processes first, and run it on a host that has disks of the cluster, with the machine
/// file by which the cluster was made. Nothing on the disks is changed. Files that were open and
/// not synced are as after a crash.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs cluster recover cluster.toml
  mdfs cluster serve cluster.toml 1               on the host of process 1; the others likewise")]
pub(super) struct Recover {
    /// The machine file.
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

impl Recover {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        let file = MachineFile::read(&self.file)?;
        let directories: Vec<(ProcessId, PathBuf)> = file
            .processes
            .iter()
            .map(|process| (ProcessId(process.number), process.directory.clone()))
            .collect();
        let done = cluster::recover(&file.engine()?, &file.shape()?, &directories);
        let done = done.map_err(|error| {
            CommandFailure::Wrong(format!("the cluster is not recovered: {error}"))
        })?;
        let what = if done.had_map { "brought forward" } else { "made anew" };
        session.print(format!(
            "volume {}: records {what} from {} disks here, epoch {}\n\
             start each process: mdfs cluster serve {} NUMBER\n",
            done.volume.volume(),
            done.disks,
            done.epoch.0,
            self.file.display(),
        ))
    }
}
