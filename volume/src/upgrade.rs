//! Bringing the disks of a volume to the newest version of the format.

use std::path::{Path, PathBuf};

use futures::executor::block_on;
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
    let paths: Vec<PathBuf> =
        directory.disks()?.into_iter().map(|name| directory.disk(name)).collect();
    let machine = start_for_disks(DiskAccess::from_environment()?)?;
    let work = move |context| async move { upgrade_all(&context, paths).await };
    block_on(machine.on_node(NodeId::disk(0), work))?
}

async fn upgrade_all(
    context: &Context,
    paths: Vec<PathBuf>,
) -> Result<UpgradeSummary, VolumeError> {
    let mut disks = Vec::new();
    for path in paths {
        let device = open_disk(context, &path).await?;
        let found = blockio::identify(&*device).await;
        found.map_err(|error| VolumeError::Disk { path: path.clone(), error })?;
        disks.push((path, device));
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
