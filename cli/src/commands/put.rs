//! `mdfs put`: copies into a volume.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use client::{File, OpenOptions};
use futures::executor::block_on;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use runtime::ClientHandle;

use crate::connection::ConnectionArguments;
use crate::copy::command::{self, CopyEnd};
use crate::copy::{CopyOptions, PART_PREFIX};
use crate::exit::CommandFailure;
use crate::local;
use crate::session::CommandSession;
use crate::tree::split;
use crate::volume_path::VolumePath;

/// Copy a file, or a tree of files, into a volume.
///
/// As `mdfs cp` does it, which can do more: several files at once, compare, verify. Permissions and
/// times are kept, symbolic links stay links, holes stay holes. If the destination is a directory,
/// the copy goes into it under its own name. What is there already, with the same size and time, is
/// not copied again.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs put results.h5 scratch:/run1/results.h5    one file
  mdfs put -r run2 scratch:/                      a tree, as scratch:/run2
  tar c run3 | mdfs put - scratch:/run3.tar       what another program writes")]
pub(crate) struct Put {
    /// Copy directories with all that is in them.
    #[arg(short, long)]
    recursive: bool,
    #[command(flatten)]
    connection: ConnectionArguments,
    /// A file or directory of this computer; - for standard input.
    #[arg(value_name = "LOCAL", value_hint = clap::ValueHint::AnyPath)]
    from: PathBuf,
    /// Where to put it.
    #[arg(value_name = "VOL:/PATH", value_parser = VolumePath::parser())]
    to: VolumePath,
}

/// Parts of standard input that are written at once, at most.
const BEHIND: usize = 4;

impl Put {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        session.connect_with(&self.connection);
        if self.from == Path::new("-") {
            return self.put_standard_input(session);
        }
        let (from, to) =
            (CopyEnd::HostTree(self.from.clone()), CopyEnd::VolumeFileTree(self.to.clone()));
        let wish = CopyOptions { recursive: self.recursive, ..CopyOptions::default() };
        command::run(session, &[from], &to, wish).map(drop)
    }

    /// The file gets its name when it is whole.
    fn put_standard_input(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        let volume = session.open(&self.to.volume)?;
        let failed = |error| CommandFailure::inside(&self.to.volume, error);
        let (above, _) = split(&self.to.path);
        let own = format!("{PART_PREFIX}{:016x}", client::blocking::random_client());
        let part = [above, own.as_bytes()].concat();
        let options = OpenOptions::new().write(true).create_new(true);
        let file = volume.open(&part, options).map_err(failed)?.shared();
        let done = block_on(fill(&file, io::stdin().lock(), failed));
        let done = done.and_then(|()| volume.rename(&part, &self.to.path).map_err(failed));
        if done.is_err() {
            // If it stays, it is only in the way.
            let _ = volume.remove_file(&part);
        }
        done
    }
}

/// Writes all that `source` gives; what is nothing but zeros becomes a hole.
async fn fill(
    file: &File<ClientHandle>,
    source: impl Read,
    failed: impl Fn(client::Error) -> CommandFailure + Copy,
) -> Result<(), CommandFailure> {
    let write = async |chunk: io::Result<(u64, Bytes)>| {
        let name = Path::new("standard input");
        let (offset, data) = chunk.map_err(|error| CommandFailure::local("read", name, error))?;
        let end = offset + data.len() as u64;
        if !local::is_zero(&data) {
            file.write_at(offset, data).await.map_err(failed)?;
        }
        Ok::<u64, CommandFailure>(end)
    };
    let written = stream::iter(local::chunks(source)).map(write).buffered(BEHIND);
    let size = written.try_fold(0, async |_, end| Ok(end)).await?;
    file.set_len(size).await.map_err(failed)
}
