//! A disk that shall become part of a volume that is in use: it is looked at, and put into its
//! place in the directory of the volume or process, before the servers are asked to take it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use blockio::{BLOCK_SIZE, DiskName};
use futures::executor::block_on;
use runtime::embedded::DiskAccess;
use runtime::{NodeId, VolumeId};

use crate::VolumeError;
use crate::access::{file_options, restrict};
use crate::directory::{DirectoryError, is_of_cluster};
use crate::host_disk::{inspect, inspect_all};
use crate::new_disks::{NewDisk, OverwriteConsent, open_new_disks};
use crate::superblocks::{DISKS, formatted_disks, read_superblock};
use crate::volume::start_for_disks;

/// A disk in its place, of which the servers do not know yet.
#[derive(Debug)]
pub struct PlacedDisk {
    /// Which disk of the volume it becomes.
    pub disk: DiskName,
    /// Its length.
    pub bytes: u64,
    /// What the operator calls it, and the host.
    pub(crate) new: NewDisk,
    /// Files and links that were made for it.
    made: Vec<PathBuf>,
    /// Where it really is; a file there belongs to the volume alone from now on.
    file: Option<PathBuf>,
}

/// Disks that are to be put into their places in `directory`, for a volume.
#[derive(Debug)]
pub struct NewPlaces<'a> {
    /// The directory of the volume, or of a process of a cluster.
    pub directory: &'a Path,
    /// The volume.
    pub volume: VolumeId,
    /// Bytes of a file that does not exist.
    pub bytes: u64,
    /// Ids of disks that may be overwritten.
    pub force: &'a [String],
    /// Disks of the volume that are retired: what is known of them may be overwritten, too.
    pub retired: &'a [DiskName],
    /// Those that are of the volume already stay as they are: they were made in an earlier start.
    pub keeps_own: bool,
}

/// Those of the `disk_nodes` disk nodes of a volume of which the disks are, or would be, in
/// `directory`, with as many disks as each has there.
pub fn disk_nodes_in(directory: &Path, disk_nodes: u32) -> Vec<(u32, usize)> {
    let disks = formatted_disks(directory);
    let mut nodes: BTreeSet<u32> =
        disks.iter().map(|disk| disk.superblock.disk.disk_node).collect();
    if !is_of_cluster(directory) {
        // One whose only disk is lost, too.
        nodes.extend(0..disk_nodes);
    }
    let count = |node| disks.iter().filter(|disk| disk.superblock.disk.disk_node == node).count();
    nodes.into_iter().map(|node| (node, count(node))).collect()
}

/// Waits for other commands that add disks to `directory`, and lets none begin until the result is
/// dropped: they would take the same numbers.
pub fn lock_additions(directory: &Path) -> Result<File, VolumeError> {
    let name = directory.join("adding.lock");
    let file = file_options().open(&name).map_err(failed("cannot open", &name))?;
    file.lock().map_err(failed("cannot lock", &name))?;
    Ok(file)
}

impl NewPlaces<'_> {
    /// Puts disks into their places: each the device or file that is named with it, of which a link
    /// is made, or a file in the directory.
    ///
    /// If one holds anything, and its id is not in `force`, all are refused; so they are if another
    /// program has one open, or the host has it mounted.
    pub fn fill(
        &self,
        disks: &[(DiskName, Option<&Path>)],
    ) -> Result<Vec<PlacedDisk>, VolumeError> {
        let elsewhere: Vec<PathBuf> =
            disks.iter().filter_map(|(_, path)| path.map(Path::to_owned)).collect();
        inspect_all(elsewhere.iter()).map_err(DirectoryError::from)?;
        let mut placed = Vec::new();
        let done = disks.iter().try_for_each(|&(disk, elsewhere)| {
            let mut made = Vec::new();
            match self.place(disk, elsewhere, &mut made) {
                Ok((new, bytes, file)) => placed.push(PlacedDisk { disk, bytes, new, made, file }),
                Err(error) => {
                    remove(made);
                    return Err(error);
                }
            }
            Ok(())
        });
        match done.and_then(|()| self.take(&placed)) {
            Ok(()) => Ok(placed),
            Err(error) => {
                placed.into_iter().for_each(PlacedDisk::discard);
                Err(error)
            }
        }
    }

    /// Puts one into its place. What is made for it is added to `made`.
    fn place(
        &self,
        disk: DiskName,
        elsewhere: Option<&Path>,
        made: &mut Vec<PathBuf>,
    ) -> Result<(NewDisk, u64, Option<PathBuf>), VolumeError> {
        let path = self.directory.join(DISKS).join(disk.to_string());
        // A command or start that was cut off has left it; the servers say that the disk is not
        // theirs. A file that is kept may have all that is known of it.
        let there = fs::symlink_metadata(&path).ok();
        let is_link = there.as_ref().is_some_and(fs::Metadata::is_symlink);
        let is_left = is_link
            || there.is_some()
                && match read_superblock(&path) {
                    Ok(Some(found)) => found.volume() == self.volume && !self.keeps_own,
                    Ok(None) => true,
                    Err(_) => false,
                };
        // A link is to a disk that the command that was cut off has named.
        if is_left && (elsewhere.is_some() || is_link && !self.keeps_own) {
            fs::remove_file(&path).map_err(failed("cannot remove", &path))?;
        }
        let target = match elsewhere {
            Some(elsewhere) => {
                let target =
                    std::path::absolute(elsewhere).map_err(failed("cannot find", elsewhere))?;
                std::os::unix::fs::symlink(&target, &path).map_err(failed("cannot make", &path))?;
                made.push(path.clone());
                target
            }
            None => path.clone(),
        };
        let found = inspect(&target).map_err(DirectoryError::from)?;
        let bytes = match found.length {
            Some(there) if there > 0 || found.is_device => there,
            there => {
                let file = file_options().create_new(there.is_none()).open(&target);
                let file = file.map_err(failed("cannot open the disk", &target))?;
                if there.is_none() {
                    made.push(target.clone());
                }
                file.set_len(self.bytes)
                    .map_err(failed("cannot lengthen the disk file", &target))?;
                self.bytes
            }
        };
        let name = elsewhere.map_or_else(|| target.clone(), Path::to_owned);
        let file = (!found.is_device).then_some(target);
        Ok((NewDisk { disk, path, name, device_id: found.device_id }, bytes, file))
    }

    /// Looks at all of them, and takes those that are files from other users.
    fn take(&self, placed: &[PlacedDisk]) -> Result<(), VolumeError> {
        let new: Vec<NewDisk> = placed.iter().map(|placed| placed.new.clone()).collect();
        let mut consent = OverwriteConsent::of_ids(self.force.to_vec());
        if !self.keeps_own {
            // One that was made ready and never used.
            consent.begun = vec![self.volume];
        }
        let kept = self.keeps_own.then_some(self.volume);
        let machine = start_for_disks(DiskAccess::from_environment()?)?;
        let work = move |context| async move {
            open_new_disks(&context, new, &consent, kept).await.map(drop)
        };
        block_on(machine.on_node(NodeId::disk(0), work))??;
        for target in placed.iter().filter_map(|placed| placed.file.as_ref()) {
            let file = File::options().write(true).open(target);
            let file = file.map_err(failed("cannot take over the disk file", target))?;
            restrict(&file).map_err(failed("cannot take over the disk file", target))?;
        }
        placed.iter().try_for_each(|placed| self.clear_if_retired(&placed.new.path))
    }

    /// A disk node overwrites no disk that says it is one of its volume. One that was retired, and
    /// may be overwritten, says so no more.
    fn clear_if_retired(&self, path: &Path) -> Result<(), VolumeError> {
        let cannot_clear = || failed("cannot clear the retired disk", path);
        let found = read_superblock(path).map_err(cannot_clear())?;
        let is_retired = found.as_ref().is_some_and(|found| {
            found.volume() == self.volume && self.retired.contains(&found.disk)
        });
        if !is_retired {
            return Ok(());
        }
        let copy = found.map_or(0, |found| found.copy_offset());
        let file = File::options().write(true).open(path).map_err(cannot_clear())?;
        for at in [copy, 0] {
            file.write_all_at(&[0; BLOCK_SIZE], at).map_err(cannot_clear())?;
        }
        Ok(file.sync_data().map_err(cannot_clear())?)
    }
}

impl PlacedDisk {
    /// The servers did not take it: what was made for it is removed.
    pub fn discard(self) {
        remove(self.made);
    }
}

fn remove(made: Vec<PathBuf>) {
    for made in made {
        // What cannot be removed is seen by the next attempt.
        let _ = fs::remove_file(made);
    }
}

/// The volume of which a disk is in `directory`.
pub fn volume_in(directory: &Path) -> Result<VolumeId, VolumeError> {
    let of_volume = formatted_disks(directory);
    let first = of_volume.first().ok_or(DirectoryError::NoVolume)?;
    Ok(first.superblock.volume())
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> DirectoryError {
    let path = path.to_owned();
    move |error| DirectoryError::Host { what, path, error }
}
