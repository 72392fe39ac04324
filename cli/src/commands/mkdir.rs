//! `mdfs mkdir`: makes directories.

use crate::connection::ConnectionArguments;
use crate::exit::CommandFailure;
use crate::session::CommandSession;
use crate::volume_path::VolumePath;

/// Make directories.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs mkdir scratch:/run1
  mdfs mkdir -p scratch:/2026/05/run1     with those above it, if they are missing")]
pub(crate) struct Mkdir {
    /// Make the directories above too; what exists is no error.
    #[arg(short, long)]
    parents: bool,
    #[command(flatten)]
    connection: ConnectionArguments,
    /// The directories.
    #[arg(value_name = "VOL:/PATH", value_parser = VolumePath::parser(), required = true)]
    paths: Vec<VolumePath>,
}

impl Mkdir {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        session.connect_with(&self.connection);
        for path in &self.paths {
            let volume = session.open(&path.volume)?;
            let made =
                if self.parents { volume.mkdir_all(&path.path) } else { volume.mkdir(&path.path) };
            made.map_err(|error| CommandFailure::inside(&path.volume, error))?;
        }
        Ok(())
    }
}
