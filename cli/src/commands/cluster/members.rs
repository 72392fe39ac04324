//! `mdfs cluster remove` and `mdfs cluster add`: who is of a cluster.

use std::path::{Path, PathBuf};

use ::cluster::membership::ProcessId;
use volume::cluster::{self, Engine};

use super::file::MachineFile;
use crate::exit::CommandFailure;
use crate::session::CommandSession;

/// Take a process out of a cluster: its nodes go to the others, and it does not come back.
///
/// Waits until the process has no nodes; no request fails meanwhile. Then end it (SIGTERM, or
/// `systemctl disable --now`): it refuses to start again until `mdfs cluster add` takes it in. A
/// process with disks stays, since their data would be away with it; ended, it gives its nodes away
/// in the same manner until it is back.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs cluster remove cluster.toml 3
  mdfs cluster status cluster.toml            its state is \"removed\"")]
pub(super) struct Remove {
    /// The machine file.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Which process of it.
    #[arg(value_name = "NUMBER")]
    number: u32,
}

/// Take a process in that was removed.
///
/// It gets nodes as soon as it runs. A process that is new needs only its place in the machine file
/// and its keys (`mdfs cluster certify`): it is taken in when it starts.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs cluster add cluster.toml 3
  mdfs cluster serve cluster.toml 3           on its host")]
pub(super) struct Add {
    /// The machine file.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Which process of it.
    #[arg(value_name = "NUMBER")]
    number: u32,
}

impl Remove {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        let (engine, process) = find(&self.file, self.number)?;
        cluster::remove(&engine, process)
            .map_err(|error| CommandFailure::Wrong(format!("{process} is not removed: {error}")))?;
        session.print(format!(
            "{process} has no nodes, and does not start again; end it if it still runs\n"
        ))
    }
}

impl Add {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        let (engine, process) = find(&self.file, self.number)?;
        cluster::add(&engine, process)
            .map_err(|error| CommandFailure::Wrong(format!("{process} is not added: {error}")))?;
        session.print(format!(
            "{process} is of the cluster; if it does not run, start it: mdfs cluster serve {} {}\n",
            self.file.display(),
            self.number
        ))
    }
}

fn find(file: &Path, number: u32) -> Result<(Engine, ProcessId), CommandFailure> {
    let file = MachineFile::read(file)?;
    file.process(number)?;
    Ok((file.engine()?, ProcessId(number)))
}
