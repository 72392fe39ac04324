//! `mdfs stat`: all that is known of a file.

use client::Kind;

use crate::connection::ConnectionArguments;
use crate::exit::CommandFailure;
use crate::output::{FileRecord, describe};
use crate::session::CommandSession;
use crate::volume_path::VolumePath;

/// Show all that is known of a file (of a symbolic link itself).
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs stat scratch:/run1/results.h5
  mdfs stat --json scratch:/run1/results.h5 | jq .size_bytes")]
pub(crate) struct StatCommand {
    /// As JSON, sizes in bytes.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArguments,
    /// The file.
    #[arg(value_name = "VOL:/PATH", value_parser = VolumePath::parser())]
    path: VolumePath,
}

impl StatCommand {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        session.connect_with(&self.connection);
        let volume = session.open(&self.path.volume)?;
        let inside = |error| CommandFailure::inside(&self.path.volume, error);
        let found = volume.symlink_metadata(&self.path.path).map_err(inside)?;
        let is_link = found.kind == (Kind::Symlink {});
        let target =
            if is_link { Some(volume.read_link(&self.path.path).map_err(inside)?) } else { None };
        if self.json {
            return session.print_json(&FileRecord::new(
                &self.path.path,
                &found,
                target.as_deref(),
            ));
        }
        session.print(describe(&self.path.path, &found, target.as_deref(), session.terminal))
    }
}
