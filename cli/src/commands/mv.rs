//! `mdfs mv`: moves and renames within a volume.

use crate::copy::Copy;
use crate::exit::Failure;
use crate::progress::Progress;
use crate::session::Session;
use crate::volume_path::{VolumePath, join};

/// Move or rename a file or a directory within its volume.
///
/// What has the new name is replaced. If the destination is a directory, the file goes into it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs mv scratch:/run1/tmp scratch:/run1/result     another name
  mdfs mv scratch:/run1 scratch:/archive             into the directory scratch:/archive")]
pub(crate) struct Mv {
    /// The old name.
    #[arg(value_name = "VOL:/FROM", value_parser = VolumePath::parser())]
    from: VolumePath,
    /// The new name, or a directory to move it into.
    #[arg(value_name = "VOL:/TO", value_parser = VolumePath::parser())]
    to: VolumePath,
}

impl Mv {
    pub(super) fn run(&self, session: &mut Session) -> Result<(), Failure> {
        if self.from.volume != self.to.volume {
            let text = "a move stays within one volume; use `mdfs get` and `mdfs put` between two";
            return Err(Failure::Usage(text.into()));
        }
        let volume = session.open(&self.from.volume)?;
        let file_system = volume.file_system();
        let copy = Copy { file_system, volume: &self.to.volume, progress: Progress::new(0, 0) };
        let into = futures::executor::block_on(copy.is_directory(&self.to.path))?;
        let to = match self.from.last_name() {
            Some(name) if into => join(&self.to.path, name),
            _ => self.to.path.clone(),
        };
        volume.rename(&self.from.path, to).map_err(|error| copy.inside(error))
    }
}
