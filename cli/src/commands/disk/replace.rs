//! `mdfs disk replace`.

use std::fs;
use std::path::PathBuf;

use client::VolumeAddress;
use client::protocol::{AddedDisk, DiskCondition, DiskList};

use super::add::{NewDiskArguments, add, disk_at, name_of, settled_list};
use super::moving::{ChangeReport, DiskArgument, MoveArguments, drain, is, retire, retired};
use crate::connection::volume_directory;
use crate::disk_report::name;
use crate::exit::CommandFailure;
use crate::session::CommandSession;

/// Put a new disk in the place of an old one, while the volume is in use.
///
/// Adds the new disk, drains the old one and retires it. If it is stopped before its end, the same
/// command does the rest.
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
        let list = settled_list(session, &address)?;
        let Some(old) = list.disks.iter().find(|report| is(report, self.old)) else {
            let text = format!("there is no disk {}: see `mdfs disk list {address}`", self.old);
            return Err(CommandFailure::Usage(text));
        };
        let mut report = ChangeReport::new(&address, Some(self.old), "retired");
        report.added = self.added_before(&list);
        let there = self.path.as_deref().and_then(|path| disk_at(&self.volume, &list, path));
        let is_over = old.condition == DiskCondition::Retired {};
        if let (Some(there), Some(path), None) = (there, &self.path, &report.added) {
            if !is_over {
                let (path, there) = (path.display(), name(there));
                let text = format!("{path} is disk {there} of the volume already");
                return Err(CommandFailure::Usage(text));
            }
            report.added = Some(name(there));
        }
        if report.added.is_none() && is_over && self.path.is_some() {
            let text = format!("{} is retired already: `mdfs disk add` adds another", self.old);
            return Err(CommandFailure::Usage(text));
        }
        if report.added.is_none() && !is_over {
            let note = |added: &[AddedDisk]| self.note(added);
            let added = add(session, &self.volume, &[self.path.as_deref()], &self.new, note)?;
            report.added = added.first().map(name_of);
        }
        if let Some(added) = report.added.as_ref().filter(|_| !self.moves.json) {
            session.print(format!("{added} is added\n"))?;
        }
        let mut is_drained = is_over;
        if !is_over {
            let moved = drain(session, &address, self.old, &self.moves)?;
            is_drained = moved.is_some();
            report = report.with_moved(moved);
        }
        if is_drained {
            retire(session, &address, self.old)?;
            // What is left of it is no disk that could be taken for a new one.
            let _ = fs::remove_file(self.note_path());
        }
        if self.moves.json {
            report.state = if is_drained { "retired" } else { "draining" };
            return session.print_json(&report);
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

    /// The disk that the same command has added before it was cut off.
    fn added_before(&self, list: &DiskList) -> Option<String> {
        let noted = fs::read_to_string(self.note_path()).unwrap_or_default();
        let in_use = list.disks.iter().filter(|it| it.condition != DiskCondition::Retired {});
        let added = in_use.map(name).find(|name| *name == noted)?;
        let is_it = self.path.as_deref().is_none_or(|path| {
            disk_at(&self.volume, list, path).is_some_and(|there| name(there) == added)
        });
        is_it.then_some(added)
    }

    /// Notes which disk the new one becomes: nothing else tells it from other disks.
    fn note(&self, added: &[AddedDisk]) -> Result<(), CommandFailure> {
        let Some(added) = added.first() else { return Ok(()) };
        let path = self.note_path();
        fs::write(&path, name_of(added)).map_err(|error| {
            let thing = path.display().to_string();
            CommandFailure::Local { operation: "write", thing, error }
        })
    }

    fn note_path(&self) -> PathBuf {
        self.volume.join(format!("replacing-{}", self.old))
    }
}
