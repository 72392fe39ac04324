//! Bringing the disks of a volume to the newest version of the format.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use blockio::{DiskName, Superblock, VolumeMap};
use futures::executor::block_on;
use runtime::disk::Disk;
use runtime::embedded::DiskAccess;
use runtime::{Context, NodeId};

use crate::VolumeError;
use crate::directory::VolumeDirectory;
use crate::node::{open_disk, random_id};
use crate::volume::start_for_disks;

/// What an upgrade has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpgradeSummary {
    /// Disks that are of the newest version now and were not before.
    pub upgraded: usize,
    /// Disks that were already.
    pub newest: usize,
}

/// Upgrades all disks in `directory`: of a volume of one process, or of one process of a cluster.
/// It must not run. Older programs refuse the disks afterwards.
///
/// All of them are read before any is written. After a crash or an error it can be repeated; until
/// then the volume can be used as it is, with disks of both versions.
pub fn upgrade(directory: &Path) -> Result<UpgradeSummary, VolumeError> {
    let directory = VolumeDirectory::open_any(directory)?;
    let named = directory.disks()?.into_iter().map(|name| (name, directory.disk(name)));
    let named: Vec<(DiskName, PathBuf)> = named.collect();
    let machine = start_for_disks(DiskAccess::from_environment()?)?;
    let work = move |context| async move { upgrade_all(&context, named).await };
    block_on(machine.on_node(NodeId::disk(0), work))?
}

/// A disk, and what it says that it is.
async fn identified(
    context: &Context,
    path: &Path,
) -> Result<(Rc<dyn Disk>, Superblock), VolumeError> {
    let device = open_disk(context, path).await?;
    match blockio::identify(&*device).await {
        Ok(superblock) => Ok((device, superblock)),
        Err(error) => Err(VolumeError::Disk { path: path.to_owned(), error }),
    }
}

async fn upgrade_all(
    context: &Context,
    named: Vec<(DiskName, PathBuf)>,
) -> Result<UpgradeSummary, VolumeError> {
    let (mut disks, mut superblocks, mut failures) = (Vec::new(), Vec::new(), Vec::new());
    for (name, path) in named {
        match identified(context, &path).await {
            Ok((device, superblock)) => {
                superblocks.push(superblock);
                disks.push((path, device));
            }
            Err(error) => failures.push((name, error)),
        }
    }
    // What a command that was refused has left, or a disk that is retired, is none of the volume.
    let map = VolumeMap::from_superblocks(&superblocks).ok();
    let is_needed = |name: &DiskName| map.as_ref().is_none_or(|map| map.disks().contains(name));
    if let Some((_, error)) = failures.into_iter().find(|(name, _)| is_needed(name)) {
        return Err(error);
    }
    let mut summary = UpgradeSummary::default();
    for (path, device) in disks {
        let upgraded = blockio::upgrade_disk(&*device, random_id(context)).await;
        if upgraded.map_err(|error| VolumeError::Disk { path, error })? {
            summary.upgraded += 1;
        } else {
            summary.newest += 1;
        }
    }
    Ok(summary)
}
