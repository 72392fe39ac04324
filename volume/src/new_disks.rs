//! Disks that are to become part of a volume. One that holds anything is refused, unless its id was
//! given: this is the only way to write a superblock, for new volumes, new disks and processes of
//! a cluster alike.

use std::path::PathBuf;
use std::rc::Rc;

use blockio::{DiskContent, DiskName, VolumeMap};
use runtime::disk::Disk;
use runtime::{Context, VolumeId};

use crate::error::VolumeError;
use crate::node::{open_disk, random_id};
use crate::record::FORMAT_EPOCH;
use crate::used_disks::{UsedDisk, UsedDisks};

/// A disk to be formatted, and which one of the volume it becomes.
#[derive(Clone, Debug)]
pub struct NewDisk {
    /// Its place in the volume.
    pub disk: DiskName,
    /// Where the machine finds it.
    pub path: PathBuf,
    /// What the operator calls it.
    pub name: PathBuf,
    /// What the host calls the device; `None` of a file.
    pub device_id: Option<String>,
}

impl NewDisk {
    /// One of which nothing else is known.
    pub(crate) fn of_path(disk: DiskName, path: PathBuf) -> Self {
        Self { disk, name: path.clone(), path, device_id: None }
    }
}

/// What may be overwritten.
#[derive(Clone, Debug, Default)]
pub struct OverwriteConsent {
    /// Ids of disks, as a refusal tells them, once for each disk.
    pub ids: Vec<String>,
    /// Volumes that were begun and never finished: their disks hold nothing.
    pub begun: Vec<VolumeId>,
    /// Anything.
    anything: bool,
}

/// A new disk that was opened and may be written.
pub struct OpenNewDisk {
    new: NewDisk,
    /// The ids that may name it.
    ids: Vec<String>,
    device: Rc<dyn Disk>,
}

impl OverwriteConsent {
    /// What these ids name.
    pub fn of_ids(ids: Vec<String>) -> Self {
        Self { ids, ..Self::default() }
    }

    /// Whatever the disks hold: those of an emulated machine start with old bytes.
    pub fn of_anything() -> Self {
        Self { anything: true, ..Self::default() }
    }

    /// Why the disk is not to be written, if so. Of the ids, `left` are not used yet.
    fn refusal(
        &self,
        left: &mut Vec<String>,
        new: &NewDisk,
        content: &DiskContent,
    ) -> Option<UsedDisk> {
        let is_begun = content.superblock().is_some_and(|found| {
            found.epoch <= FORMAT_EPOCH && self.begun.contains(&found.volume())
        });
        if is_begun {
            return None;
        }
        let id = new.device_id.as_deref().unwrap_or(content.id()).to_owned();
        if let Some(at) = left.iter().position(|known| *known == id) {
            left.swap_remove(at);
            tracing::warn!(disk = %new.name.display(), %content, "is overwritten");
            return None;
        }
        Some(UsedDisk { name: new.name.clone(), content: content.clone(), id })
    }

    /// Ids that name none of the disks.
    fn strange(&self, disks: &[OpenNewDisk]) -> Vec<String> {
        let is_known = |id: &String| disks.iter().any(|disk| disk.ids.contains(id));
        self.ids.iter().filter(|id| !is_known(id)).cloned().collect()
    }

    /// An id that names none of the disks is a mistake, though nothing would be lost. Where a
    /// format is repeated, its disk may have been cleared before.
    pub(crate) fn check_all_used(&self, disks: &[OpenNewDisk]) -> Result<(), VolumeError> {
        let strange = self.strange(disks);
        if strange.is_empty() || !self.begun.is_empty() {
            return Ok(());
        }
        Err(VolumeError::UsedDisks(UsedDisks { disks: Vec::new(), strange }))
    }
}

/// Opens disks to be formatted. If any holds something that may not be overwritten, all are
/// refused, and nothing is written to any. Those that are of the volume `kept` already are left
/// out.
pub async fn open_new_disks(
    context: &Context,
    disks: Vec<NewDisk>,
    consent: &OverwriteConsent,
    kept: Option<VolumeId>,
) -> Result<Vec<OpenNewDisk>, VolumeError> {
    let (mut opened, mut used, mut left) = (Vec::new(), Vec::new(), consent.ids.clone());
    for new in disks {
        let device = open_disk(context, &new.path).await?;
        if consent.anything {
            opened.push(OpenNewDisk { new, ids: Vec::new(), device });
            continue;
        }
        let found = blockio::probe(&*device).await.map_err(|error| VolumeError::Disk {
            path: new.name.clone(),
            error: blockio::DiskError::Io(error),
        })?;
        let mut ids: Vec<String> = new.device_id.iter().cloned().collect();
        if let Some(found) = found {
            if found.superblock().is_some_and(|found| Some(found.volume()) == kept) {
                continue;
            }
            ids.push(found.id().to_owned());
            used.extend(consent.refusal(&mut left, &new, &found));
        }
        opened.push(OpenNewDisk { new, ids, device });
    }
    if used.is_empty() {
        return Ok(opened);
    }
    Err(VolumeError::UsedDisks(UsedDisks { disks: used, strange: consent.strange(&opened) }))
}

/// Makes the disks part of the volume.
pub async fn write_superblocks(
    context: &Context,
    map: &VolumeMap,
    disks: Vec<OpenNewDisk>,
) -> Result<(), VolumeError> {
    let now = context.unix_time();
    for OpenNewDisk { new, device, .. } in disks {
        let formatted =
            blockio::format_disk(&*device, map, new.disk, random_id(context), now).await;
        formatted.map_err(|error| VolumeError::Disk { path: new.name, error })?;
    }
    Ok(())
}

/// Writes the superblocks of all disks, given disk node by disk node. A disk that holds anything
/// else than what `consent` says is refused, and then nothing is written to any.
pub async fn format_disks(
    context: &Context,
    map: &VolumeMap,
    paths: Vec<Vec<PathBuf>>,
    consent: &OverwriteConsent,
) -> Result<(), VolumeError> {
    let of_node = |(disk_node, paths): (u32, Vec<PathBuf>)| {
        let disk = move |(disk, path)| NewDisk::of_path(DiskName { disk_node, disk }, path);
        (0..).zip(paths).map(disk)
    };
    let disks = (0..).zip(paths).flat_map(of_node).collect();
    let disks = open_new_disks(context, disks, consent, None).await?;
    write_superblocks(context, map, disks).await
}

/// The same for disks of one disk node of a cluster, at that node. Those that it has formatted
/// before are left as they are.
pub async fn make_disks(
    context: &Context,
    map: &VolumeMap,
    disks: Vec<NewDisk>,
    consent: &OverwriteConsent,
) -> Result<(), VolumeError> {
    let disks = open_new_disks(context, disks, consent, Some(map.volume())).await?;
    write_superblocks(context, map, disks).await
}
