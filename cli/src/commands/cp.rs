//! `mdfs cp`: copies in both directions, and between volumes.

use crate::connection::ConnectionArguments;
use crate::copy::command::{self, CopyEnd};
use crate::copy::{CopyOptions, JOBS};
use crate::exit::CommandFailure;
use crate::session::CommandSession;

/// Most files that one command copies at once.
const JOBS_MAX: i64 = 256;

/// Copy files and trees: into a volume, out of it, or from one to another.
///
/// `VOL:/path` is in a volume, all else on this computer (the directory of a volume, without the
/// colon, is refused). If the destination is a directory, the
/// copies go into it under their own names. Permissions, times, symbolic links, holes and further
/// names of a file (hard links) are kept; owners with --owner; extended attributes are not.
///
/// A file is copied under a name of its own (.mdfs-part-...), made durable, and then gets its final
/// name: what is there is whole. An interrupted copy that is started again copies only what is
/// missing or differs in size or time, or in its bytes with --checksum, and takes up large files
/// where they were left.
#[derive(Debug, clap::Args)]
#[allow(clippy::struct_excessive_bools, reason = "independent switches of the command line")]
#[command(
    override_usage = "mdfs cp [OPTIONS] <FROM>... <TO>",
    after_help = "Examples:
  mdfs cp -r run1 scratch:/                     a tree into a volume, as scratch:/run1
  mdfs cp -rT run1 scratch:/runs/today          as scratch:/runs/today, also a second time
  mdfs cp -r --verify scratch:/run1 /archive    out again, and every byte compared
  mdfs cp -r scratch:/run1 other:/              from one volume to another
  mdfs cp -r -j 32 thousands scratch:/          more files at once"
)]
pub(crate) struct Cp {
    /// Copy directories with all that is in them.
    #[arg(short, long)]
    recursive: bool,
    /// Number of files, or pieces of large files, that are copied concurrently (up to 12 MiB of
    /// memory each).
    #[arg(short, long, value_name = "N", default_value_t = JOBS as u16,
          value_parser = clap::value_parser!(u16).range(1..=JOBS_MAX))]
    jobs: u16,
    /// Compare files by their content, not by size and time.
    #[arg(short, long)]
    checksum: bool,
    /// Read everything back, also what was there already, and compare it with its original.
    #[arg(long)]
    verify: bool,
    /// Copy also what is there already.
    #[arg(short, long)]
    all: bool,
    /// Copy to the destination itself, not into it, also if it is a directory: what can be
    /// repeated.
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// Keep owners and groups, by their numbers: who copies must be root there.
    #[arg(short, long)]
    owner: bool,
    /// Do not wait for the disks. Quicker for small files, but a crash of the destination may take
    /// what was copied: copy again with --checksum then.
    #[arg(long)]
    no_sync: bool,
    #[command(flatten)]
    connection: ConnectionArguments,
    /// What to copy, and last where to.
    #[arg(value_names = ["FROM", "TO"], num_args = 2.., required = true,
          value_parser = CopyEnd::parser(), value_hint = clap::ValueHint::AnyPath)]
    paths: Vec<CopyEnd>,
}

impl Cp {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        session.connect_with(&self.connection);
        let Some((destination, sources)) = self.paths.split_last() else { return Ok(()) };
        let Self { recursive, checksum, verify, all, .. } = *self;
        let (jobs, sync, exact) = (self.jobs.into(), !self.no_sync, self.no_target_directory);
        let owner = self.owner;
        let wish = CopyOptions { recursive, jobs, checksum, verify, all, sync, exact, owner };
        let summary = command::run(session, sources, destination, wish)?;
        if recursive { session.print(summary) } else { Ok(()) }
    }
}
