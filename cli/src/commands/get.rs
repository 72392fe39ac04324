//! `mdfs get`: copies out of a volume.

use std::path::{Path, PathBuf};

use crate::connection::ConnectionArguments;
use crate::copy::CopyOptions;
use crate::copy::command::{self, CopyEnd};
use crate::exit::CommandFailure;
use crate::session::CommandSession;
use crate::volume_path::VolumePath;

/// Copy a file, or a tree of files, out of a volume.
///
/// As `mdfs cp` does it, which can do more: several files at once, compare, verify. Permissions and
/// times are kept, symbolic links stay links, holes stay holes. If the destination is a directory,
/// the copy goes into it under its own name. What is there already, with the same size and time, is
/// not copied again.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs get scratch:/run1/results.h5 .           one file, as ./results.h5
  mdfs get -r scratch:/run2 backup              a tree
  mdfs get scratch:/run3.tar - | tar x          for another program")]
pub(crate) struct Get {
    /// Copy directories with all that is in them.
    #[arg(short, long)]
    recursive: bool,
    #[command(flatten)]
    connection: ConnectionArguments,
    /// What to copy.
    #[arg(value_name = "VOL:/PATH", value_parser = VolumePath::parser())]
    from: VolumePath,
    /// Where to put it on this computer; - for standard output.
    #[arg(value_name = "LOCAL", value_hint = clap::ValueHint::AnyPath)]
    to: PathBuf,
}

impl Get {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        session.connect_with(&self.connection);
        if self.to == Path::new("-") {
            return super::cat::print(&self.from, session);
        }
        let (from, to) =
            (CopyEnd::VolumeFileTree(self.from.clone()), CopyEnd::HostTree(self.to.clone()));
        let wish = CopyOptions { recursive: self.recursive, ..CopyOptions::default() };
        command::run(session, &[from], &to, wish).map(drop)
    }
}
