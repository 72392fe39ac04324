//! `mdfs disk add`.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use client::VolumeAddress;
use client::protocol::{AddedDisk, DiskChange, DiskCondition, DiskList, DiskReport};
use serde::Serialize;
use volume::{DiskName, NewPlaces, PlacedDisk, disk_nodes_in, lock_additions, volume_in};

use super::change::change;
use crate::connection::volume_directory;
use crate::disk_report::name;
use crate::exit::{CommandFailure, ServeError};
use crate::session::CommandSession;
use crate::size::{ByteSize, human};

/// Add disks to a volume, while it is in use.
///
/// New data goes to all disks in proportion to what is free; `mdfs rebalance` moves old data, too.
/// A disk that holds anything is refused as by `mdfs format`. Run this on the host that has the
/// directory: of the volume, or of the process of a cluster that shall have the disk.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs disk add scratch /dev/sdd                 a device
  mdfs disk add --size 100GiB scratch            a file in the volume's directory
  mdfs disk add --node 1 scratch /dev/sdd        at disk node 1")]
pub(super) struct AddDisks {
    #[command(flatten)]
    new: NewDiskArguments,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
    /// The directory of the volume, or of a process of a cluster.
    #[arg(value_name = "VOL", value_parser = volume_directory())]
    volume: PathBuf,
    /// A block device or file; without it a file in the volume's directory.
    #[arg(value_name = "PATH")]
    disks: Vec<PathBuf>,
}

/// What a new disk is.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct NewDiskArguments {
    /// Size of a file that does not exist yet.
    #[arg(long, value_name = "SIZE", default_value = "4GiB")]
    size: ByteSize,
    /// The disk node; without it the one with the fewest disks here.
    #[arg(long, value_name = "N")]
    node: Option<u32>,
    /// Overwrite the disk with this id, as the refusal told it; once for each such disk.
    #[arg(long, value_name = "DEVICE-ID")]
    force: Vec<String>,
}

/// A disk that was added.
#[derive(Debug, Serialize)]
struct AddReport {
    disk: String,
    bytes: u64,
}

impl AddDisks {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        let paths: Vec<Option<&Path>> = match self.disks.as_slice() {
            [] => vec![None],
            disks => disks.iter().map(|path| Some(path.as_path())).collect(),
        };
        let added = add(session, &self.volume, &paths, &self.new, |_| Ok(()))?;
        if self.json {
            let report = |added: &AddedDisk| AddReport { disk: name_of(added), bytes: added.bytes };
            return session.print_json(&added.iter().map(report).collect::<Vec<_>>());
        }
        for added in added {
            session.print(format!("{} is added: {}\n", name_of(&added), human(added.bytes)))?;
        }
        let volume = self.volume.display();
        session.print(format!("to move old data to it, too: mdfs rebalance {volume}\n"))
    }
}

/// The disks, once what a command began that was cut off is complete: changes are made one after
/// the other, also one of nothing.
pub(super) fn settled_list(
    session: &mut CommandSession,
    address: &VolumeAddress,
) -> Result<DiskList, CommandFailure> {
    change(session, address, DiskChange::Add { disks: Vec::new() })?;
    let list = session.open(address)?.disks();
    list.map_err(|error| CommandFailure::inside(address, error))
}

/// Adds a disk for each path, or a file in the directory where there is none. What they become is
/// told to `tell` before the servers are asked.
pub(super) fn add(
    session: &mut CommandSession,
    directory: &Path,
    paths: &[Option<&Path>],
    new: &NewDiskArguments,
    tell: impl Fn(&[AddedDisk]) -> Result<(), CommandFailure>,
) -> Result<Vec<AddedDisk>, CommandFailure> {
    let address = VolumeAddress::from(directory);
    let failed = |error| {
        let (operation, volume) = ("add a disk to", directory.to_owned());
        CommandFailure::Serve { operation, volume, error: ServeError::Stack(error) }
    };
    let _alone = lock_additions(directory).map_err(failed)?;
    let list = settled_list(session, &address)?;
    let mut here = disk_nodes_in(directory, list.next.len() as u32);
    if let Some(node) = new.node {
        here.retain(|(number, _)| *number == node);
        if here.is_empty() {
            let directory = directory.display();
            let text =
                format!("disk node {node} has no disks in {directory}: see `mdfs disk list`");
            return Err(CommandFailure::Usage(text));
        }
    }
    let mut next = list.next.clone();
    let (mut disks, mut known) = (Vec::new(), Vec::new());
    for &path in paths {
        if let Some(path) = path {
            check_elsewhere(directory, path)?;
            // The same command, cut off, has added it.
            if let Some(report) = disk_at(directory, &list, path) {
                known.push(added(report));
                continue;
            }
        }
        let node = here.iter_mut().min_by_key(|(_, disks)| *disks);
        let number = node.and_then(|(node, disks)| {
            *disks += 1;
            let next = next.get_mut(*node as usize)?;
            *next += 1;
            Some((*node, *next - 1))
        });
        let Some((disk_node, disk)) = number else {
            let text = format!("{} has no disks: it is not a volume", directory.display());
            return Err(CommandFailure::Usage(text));
        };
        disks.push((DiskName { disk_node, disk }, path));
    }
    if disks.is_empty() {
        return Ok(known);
    }
    let (bytes, force) = (new.size.0, new.force.as_slice());
    let volume = volume_in(directory).map_err(failed)?;
    let retired = list.disks.iter().filter(|it| it.condition == DiskCondition::Retired {});
    let retired: Vec<DiskName> =
        retired.map(|it| DiskName { disk_node: it.disk_node, disk: it.disk }).collect();
    let retired = retired.as_slice();
    let places = NewPlaces { directory, volume, bytes, force, retired, keeps_own: false };
    let filled = places.fill(&disks).map_err(failed)?;
    let record = |added: &PlacedDisk| {
        let DiskName { disk_node, disk } = added.disk;
        AddedDisk { disk_node, disk, bytes: added.bytes }
    };
    let disks: Vec<AddedDisk> = filled.iter().map(record).collect();
    tell(&disks)?;
    known.extend(disks.iter().copied());
    if let Err(error) = change(session, &address, DiskChange::Add { disks: disks.clone() }) {
        // Where the servers may have it all the same, it stays.
        if matches!(error, CommandFailure::Inside { .. }) && is_refused(&error) {
            filled.into_iter().for_each(PlacedDisk::discard);
        }
        return Err(error);
    }
    Ok(known)
}

/// The disk in use that is at `path`, a device or file.
pub(super) fn disk_at<'a>(
    directory: &Path,
    list: &'a DiskList,
    path: &Path,
) -> Option<&'a DiskReport> {
    let place = |path: &Path| fs::metadata(path).map(|it| (it.dev(), it.ino(), it.rdev())).ok();
    let wanted = place(path)?;
    let in_use = list.disks.iter().filter(|it| it.condition != DiskCondition::Retired {});
    let there = |report: &DiskReport| place(&directory.join("disks").join(name(report)));
    in_use.into_iter().find(|report| there(report) == Some(wanted))
}

/// The name of a disk that is added.
pub(super) fn name_of(&AddedDisk { disk_node, disk, .. }: &AddedDisk) -> String {
    DiskName { disk_node, disk }.to_string()
}

fn added(report: &DiskReport) -> AddedDisk {
    let &DiskReport { disk_node, disk, bytes, .. } = report;
    AddedDisk { disk_node, disk, bytes }
}

/// A file of the volume's own directory has the name of the disk that it is, or was: as another
/// one it would seem to be superfluous.
fn check_elsewhere(directory: &Path, path: &Path) -> Result<(), CommandFailure> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new(".")).canonicalize();
    let own = directory.join("disks").canonicalize();
    if parent.is_ok() && parent.ok() == own.ok() {
        let text = format!(
            "{} is in the directory of the volume's own disks: move it elsewhere, or name no disk, \
             and a file is made there",
            path.display()
        );
        return Err(CommandFailure::Usage(text));
    }
    Ok(())
}

/// Nothing was decided.
fn is_refused(error: &CommandFailure) -> bool {
    use client::protocol::Error;
    match error {
        CommandFailure::Inside { cause: client::Cause::FileIo(error), .. } => match error {
            Error::NotPermitted {} => true,
            Error::DisksUnchanged { why } => why.is_of_these_disks(),
            _ => false,
        },
        _ => false,
    }
}
