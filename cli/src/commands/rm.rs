//! `mdfs rm`: removes files and trees.

use crate::connection::ConnectionArguments;
use crate::exit::CommandFailure;
use crate::session::CommandSession;
use crate::volume_path::VolumePath;

/// Remove files, or directories with all that is in them.
///
/// Symbolic links are removed, never what they point to.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs rm scratch:/run1/core
  mdfs rm -r scratch:/run1          a directory and all that is in it
  mdfs rm -f scratch:/lock          no error if it is not there")]
pub(crate) struct Rm {
    /// Remove directories with all that is in them.
    #[arg(short, long)]
    recursive: bool,
    /// What does not exist is no error.
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    connection: ConnectionArguments,
    /// What to remove.
    #[arg(value_name = "VOL:/PATH", value_parser = VolumePath::parser(), required = true)]
    paths: Vec<VolumePath>,
}

impl Rm {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        session.connect_with(&self.connection);
        for path in &self.paths {
            let volume = session.open(&path.volume)?;
            let removed = if self.recursive {
                volume.remove_all(&path.path)
            } else {
                volume.remove_file(&path.path)
            };
            match removed {
                Err(error) if self.force && error.cause.is_not_found() => {}
                removed => removed.map_err(|error| {
                    CommandFailure::inside(&path.volume, error).for_directory("remove it with -r")
                })?,
            }
        }
        Ok(())
    }
}
