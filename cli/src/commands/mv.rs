//! `mdfs mv`: moves and renames within a volume.

use client::Kind;

use crate::connection::ConnectionArguments;
use crate::exit::CommandFailure;
use crate::session::CommandSession;
use crate::volume_path::{VolumePath, join};

/// Move or rename a file or a directory within its volume.
///
/// What has the new name is replaced. If the destination is a directory, the file goes into it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs mv scratch:/run1/tmp scratch:/run1/result     another name
  mdfs mv scratch:/run1 scratch:/archive             into the directory scratch:/archive")]
pub(crate) struct Mv {
    #[command(flatten)]
    connection: ConnectionArguments,
    /// The old name.
    #[arg(value_name = "VOL:/FROM", value_parser = VolumePath::parser())]
    from: VolumePath,
    /// The new name, or a directory to move it into.
    #[arg(value_name = "VOL:/TO", value_parser = VolumePath::parser())]
    to: VolumePath,
}

impl Mv {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        session.connect_with(&self.connection);
        if self.from.volume != self.to.volume {
            let text = "a move stays within one volume; use `mdfs cp` between two";
            return Err(CommandFailure::Usage(text.into()));
        }
        let volume = session.open(&self.from.volume)?;
        let failed = |error| CommandFailure::inside(&self.to.volume, error);
        let into = match volume.metadata(&self.to.path) {
            Ok(found) => found.kind == Kind::Directory {},
            Err(error) if error.cause.is_not_found() => false,
            Err(error) => return Err(failed(error)),
        };
        let to = match self.from.last_name() {
            Some(name) if into => join(&self.to.path, name),
            _ => self.to.path.clone(),
        };
        volume.rename(&self.from.path, to).map_err(failed)
    }
}
