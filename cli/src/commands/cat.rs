//! `mdfs cat`: prints files.

use futures::TryStreamExt as _;
use futures::executor::block_on;

use crate::copy::Copy;
use crate::exit::Failure;
use crate::progress::Progress;
use crate::session::Session;
use crate::volume_path::VolumePath;

/// Print files.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs cat scratch:/run1/log.txt
  mdfs cat scratch:/run1/part-0 scratch:/run1/part-1 > whole")]
pub(crate) struct Cat {
    /// The files, one after the other.
    #[arg(value_name = "VOL:/PATH", value_parser = VolumePath::parser(), required = true)]
    files: Vec<VolumePath>,
}

impl Cat {
    pub(super) fn run(&self, session: &mut Session) -> Result<(), Failure> {
        for file in &self.files {
            let volume = session.open(&file.volume)?;
            let progress = Progress::new(0, 0);
            let file_system = volume.file_system();
            let copy = Copy { file_system, volume: &file.volume, progress };
            print(&copy, &file.path, session)?;
        }
        Ok(())
    }
}

/// Prints the file `path`.
pub(super) fn print(copy: &Copy<'_>, path: &[u8], session: &mut Session) -> Result<(), Failure> {
    block_on(async {
        let file = copy.open(path).await?;
        let mut chunks = std::pin::pin!(copy.read(&file).await?);
        while let Some((_, parts)) = chunks.try_next().await? {
            for part in parts {
                session.print(part)?;
            }
        }
        Ok(())
    })
}
