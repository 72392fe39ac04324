//! A process whose disks become part of a volume that is in use.
//!
//! 1. A record says that it joins, and the node map gives it a disk node, which has no disks yet.
//! 2. When it starts it puts its disks into their places, if they hold nothing, and serves the disk
//!    node.
//! 3. Once the volume answers, it asks for the change by which all disks are added (ADR 92). That
//!    is what decides: before, no stripe is on them.
//! 4. The record is removed.
//!
//! A process that is killed on the way goes on with its next start. A disk that was made ready and
//! not decided upon is made ready again, and not used meanwhile.

use std::path::{Path, PathBuf};
use std::time::Duration;

use blockio::{DiskName, VolumeMap};
use cluster::membership::{NodeMap, ProcessId, take_disk_node};
use fileio::protocol::{AddedDisk, ChangeDisks, Credentials, DiskChange, Error, ROOT};
use runtime::wire::to_bytes;
use runtime::{Context, NodeId, NodeKind};

use super::bootstrap::{ClusterStatus, ask, status};
use super::records::joining_key;
use super::{ClusterError, Engine};
use crate::VolumeError;
use crate::added_disk::{NewPlaces, PlacedDisk};
use crate::directory::VolumeDirectory;
use crate::new_disks::NewDisk;
use crate::superblocks::FoundDisk;

/// The pause before disks that could not be added are tried again.
const JOIN_PAUSE: Duration = Duration::from_secs(2);

/// The disks that a process shall have.
#[derive(Clone, Debug, Default)]
pub struct MemberDisks {
    /// Its disk node; `None` if it shall have no disks.
    pub disk_node: Option<u32>,
    /// How many.
    pub count: u32,
    /// Block devices or files, in their order; if none is named, files in its directory.
    pub paths: Vec<PathBuf>,
    /// Bytes of each file that does not exist yet.
    pub bytes: u64,
}

impl MemberDisks {
    /// Each of these disks with its path.
    fn with_paths(
        &self,
        process: ProcessId,
        names: Vec<DiskName>,
    ) -> Result<Vec<(DiskName, Option<&Path>)>, ClusterError> {
        let (given, needed) = (self.paths.len(), names.len());
        if given > 0 && given != needed {
            return Err(ClusterError::DiskCount { process, given, needed });
        }
        let paths = self.paths.iter().map(|path| Some(path.as_path()));
        Ok(names.into_iter().zip(paths.chain(std::iter::repeat(None))).collect())
    }
}

/// The disk node of a process.
pub(super) fn disk_node_of(map: &NodeMap, process: ProcessId) -> Option<u32> {
    map.assignments().find_map(|(node, assignment)| match node.kind() {
        NodeKind::Disk(index) if assignment.owner() == process => Some(index),
        _ => None,
    })
}

/// Gives the process the disk node that the machine file names, if it has none. The cluster as it
/// is then.
pub(super) fn claim(
    engine: &Engine,
    found: ClusterStatus,
    process: ProcessId,
    disks: &MemberDisks,
) -> Result<ClusterStatus, VolumeError> {
    let Some(wanted) = disks.disk_node else { return Ok(found) };
    match disk_node_of(&found.map, process) {
        Some(has) if has != wanted => {
            tracing::warn!(
                "{process} has disk node {has}, and the machine file counts {wanted}: write \
                 `disk-node = {has}` there, which `mdfs cluster recover` needs"
            );
            return Ok(found);
        }
        Some(_) => return Ok(found),
        None => {}
    }
    // If it is with another process, what that one has said stays.
    found.map.with_disk_node(process, wanted).map_err(|error| ClusterError::Map(error.into()))?;
    ask(engine, move |_, engine| async move {
        // Before it could be served without being known to join.
        engine.put(&joining_key(wanted), &to_bytes(&process)).await?;
        Ok(take_disk_node(&*engine, process, wanted).await?)
    })?;
    tracing::info!(disk_node = wanted, "this process joins with its disks");
    status(engine)
}

/// Disks in the directory of a process that the record of the volume does not know, though it was
/// decided: the record is an older one.
pub(super) fn check_record(found: &[FoundDisk], volume: &VolumeMap) -> Result<(), ClusterError> {
    let is_later = |disk: &&FoundDisk| {
        let superblock = &disk.superblock;
        superblock.volume() == volume.volume()
            && superblock.decided.is_decided
            && superblock.decided.version > volume.version()
    };
    match found.iter().find(is_later) {
        Some(disk) => Err(ClusterError::OldRecord(disk.path.clone())),
        None => Ok(()),
    }
}

/// The disks of a process that starts.
pub(super) struct OwnDisks {
    /// Its disks, as the host has them.
    pub(super) known: Vec<NewDisk>,
    /// Those that are to become part of the volume.
    pub(super) joining: Vec<AddedDisk>,
    /// The disk node whose disks became part of it when the process was stopped.
    pub(super) joined: Option<u32>,
}

/// Puts the disks of a process into their places, unless they are there.
pub(super) fn place(
    directory: &mut VolumeDirectory,
    path: &Path,
    status: &ClusterStatus,
    process: ProcessId,
    (disks, force): (&MemberDisks, &[String]),
) -> Result<OwnDisks, VolumeError> {
    let volume = &status.volume;
    let places = NewPlaces {
        directory: path,
        volume: volume.volume(),
        bytes: disks.bytes,
        force,
        retired: &[],
        keeps_own: true,
    };
    let (mut known, mut joining, mut joined) = (Vec::new(), Vec::new(), None);
    let own = status.map.assignments().filter(|(_, assignment)| assignment.owner() == process);
    for index in own.filter_map(|(node, _)| disk_index(node)) {
        let names = volume.disks_of(index);
        // One that never had disks can only be about to have some.
        let is_new = volume.next_disk(index) == 0 && disks.disk_node.is_some();
        let joins = is_new || status.joining.get(&index) == Some(&process);
        if joins && !names.is_empty() {
            joined = Some(index);
        }
        if !names.is_empty() && status.served.contains(&index) {
            for name in names {
                let (found, _) = directory.make_disk(name, disks.bytes, None)?;
                let new = NewDisk::of_path(name, directory.disk(name));
                known.push(NewDisk { device_id: found.device_id, ..new });
            }
        } else if !names.is_empty() {
            let filled = places.fill(&disks.with_paths(process, names)?)?;
            known.extend(filled.into_iter().map(|placed| placed.new));
        } else if joins {
            let first = volume.next_disk(index);
            let names =
                (first..first + disks.count).map(|disk| DiskName { disk_node: index, disk });
            let places = NewPlaces { keeps_own: false, ..places };
            let filled = places.fill(&disks.with_paths(process, names.collect())?)?;
            joining.extend(filled.iter().map(|PlacedDisk { disk, bytes, .. }| AddedDisk {
                disk_node: disk.disk_node,
                disk: disk.disk,
                bytes: *bytes,
            }));
        }
    }
    Ok(OwnDisks { known, joining, joined })
}

fn disk_index(node: NodeId) -> Option<u32> {
    match node.kind() {
        NodeKind::Disk(index) => Some(index),
        _ => None,
    }
}

/// Makes the disks part of the volume, however long that takes. An error is one that stays.
pub(super) async fn join(context: &Context, disks: Vec<AddedDisk>) -> Result<(), Error> {
    let change = DiskChange::Add { disks };
    let call = ChangeDisks { who: Credentials::root(), root: ROOT, change };
    let mut last = None;
    loop {
        match fileio::client::ask(context, call.clone()).await {
            Ok(()) => return Ok(()),
            Err(error @ Error::DisksUnchanged { why }) if why.is_of_these_disks() => {
                return Err(error);
            }
            Err(error) if last.as_ref() == Some(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "the disks of this process are not added yet");
                last = Some(error);
            }
        }
        context.sleep(JOIN_PAUSE).await;
    }
}
