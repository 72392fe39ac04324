//! `mdfs upgrade`: disks of an older version of the format become ones of the newest.

use std::path::PathBuf;

use serde::Serialize;
use volume::UpgradeSummary;

use crate::connection::volume_directory;
use crate::exit::{CommandFailure, ServeError};
use crate::session::CommandSession;

/// Bring the disks of a volume to the newest version of the format, in place.
///
/// The volume must not be served. Older programs refuse it afterwards. It can be repeated after a
/// crash, and until it is done the volume can be used as it is. In a cluster, run it for the
/// directory of each process while that is stopped.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs upgrade scratch")]
pub(crate) struct Upgrade {
    /// The directory of the volume, or of a process of a cluster.
    #[arg(value_name = "VOL", value_parser = volume_directory())]
    volume: PathBuf,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// What was done.
#[derive(Debug, Serialize)]
struct UpgradeReport {
    upgraded: usize,
    newest: usize,
}

impl Upgrade {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        let done = volume::upgrade(&self.volume).map_err(|error| CommandFailure::Serve {
            operation: "upgrade",
            volume: self.volume.clone(),
            error: ServeError::Stack(error),
        })?;
        let UpgradeSummary { upgraded, newest } = done;
        if self.json {
            return session.print_json(&UpgradeReport { upgraded, newest });
        }
        let before = match newest {
            0 => String::new(),
            newest => format!(", {newest} were of the newest version before"),
        };
        session.print(format!("{upgraded} disks upgraded{before}\n"))
    }
}
