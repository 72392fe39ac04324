//! `mdfs disk replace`.

use std::path::{Path, PathBuf};

use client::VolumeAddress;

use super::add::{NewDiskArguments, add};
use super::moving::{DiskArgument, MoveArguments, drain, retire, retired};
use crate::connection::volume_directory;
use crate::exit::CommandFailure;
use crate::session::CommandSession;

/// Put a new disk in the place of an old one, while the volume is in use.
///
/// Adds the new disk, drains the old one and retires it. If it is stopped after the first step,
/// `mdfs disk drain` and `mdfs disk retire` of the old disk do the rest.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs disk replace scratch n0d1 /dev/sdd")]
pub(super) struct Replace {
    #[command(flatten)]
    new: NewDiskArguments,
    #[command(flatten)]
    moves: MoveArguments,
    /// The directory of the volume, or of a process of a cluster.
    #[arg(value_name = "VOL", value_parser = volume_directory())]
    volume: PathBuf,
    /// The old disk, as `mdfs disk list` names it.
    #[arg(value_name = "OLD")]
    old: DiskArgument,
    /// The new one: a block device or file; without it a file in the volume's directory.
    #[arg(value_name = "NEW")]
    path: Option<PathBuf>,
}

impl Replace {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        let address = VolumeAddress::from(self.volume.as_path());
        self.moves.begin(session, &address)?;
        let path: Option<&Path> = self.path.as_deref();
        for added in add(session, &self.volume, &[path], &self.new)? {
            if !self.moves.json {
                session.print(format!("n{}d{} is added\n", added.disk_node, added.disk))?;
            }
        }
        let is_drained = drain(session, &address, self.old, &self.moves)?;
        if is_drained {
            retire(session, &address, self.old)?;
        }
        if self.moves.json {
            return Ok(());
        }
        if is_drained {
            return session.print(retired(self.old));
        }
        let (volume, old) = (self.volume.display(), self.old);
        session.print(format!(
            "{old} is being drained; once `mdfs disk list {volume}` says so: mdfs disk retire \
             {volume} {old}\n"
        ))
    }
}
