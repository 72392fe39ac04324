//! `mdfs cat`: prints files.

use client::OpenOptions;
use futures::executor::block_on;
use futures::{StreamExt as _, TryStreamExt as _, stream};

use crate::connection::ConnectionArguments;
use crate::exit::CommandFailure;
use crate::local::CHUNK;
use crate::session::CommandSession;
use crate::volume_path::VolumePath;

/// Parts that are read at once, at most.
const AHEAD: usize = 4;

/// Print files.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs cat scratch:/run1/log.txt
  mdfs cat scratch:/run1/part-0 scratch:/run1/part-1 > whole")]
pub(crate) struct Cat {
    #[command(flatten)]
    connection: ConnectionArguments,
    /// The files, one after the other.
    #[arg(value_name = "VOL:/PATH", value_parser = VolumePath::parser(), required = true)]
    files: Vec<VolumePath>,
}

impl Cat {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        session.connect_with(&self.connection);
        for file in &self.files {
            print(file, session)?;
        }
        Ok(())
    }
}

/// Prints a file, as far as it reaches now. While one part is printed the next is on its way.
pub(super) fn print(path: &VolumePath, session: &mut CommandSession) -> Result<(), CommandFailure> {
    let volume = session.open(&path.volume)?;
    let failed = |error| CommandFailure::inside(&path.volume, error);
    let file = volume.open(&path.path, OpenOptions::new().read(true)).map_err(failed)?.shared();
    let size = block_on(file.metadata()).map_err(failed)?.size;
    let reads = stream::iter((0..size).step_by(CHUNK));
    let mut reads = reads.map(|offset| file.read_bytes_at(offset, CHUNK)).buffered(AHEAD);
    while let Some(parts) = block_on(reads.try_next()).map_err(failed)? {
        for part in parts {
            session.print(part)?;
        }
        if session.is_output_closed() {
            break;
        }
    }
    Ok(())
}
