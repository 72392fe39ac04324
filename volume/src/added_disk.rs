//! A disk that shall become part of a volume that is in use: it is looked at, and put into its
//! place in the directory of the volume or process, before the servers are asked to take it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use blockio::DiskName;
use futures::executor::block_on;
use runtime::NodeId;
use runtime::embedded::DiskAccess;

use crate::VolumeError;
use crate::access::{file_options, restrict};
use crate::directory::DirectoryError;
use crate::host_disk::inspect;
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
    /// Files and links that were made for it.
    made: Vec<PathBuf>,
}

/// The disk nodes of which the disks are in `directory`, with as many disks as each has.
pub fn disk_nodes_in(directory: &Path) -> Vec<(u32, usize)> {
    let disks = formatted_disks(directory);
    let nodes: BTreeSet<u32> = disks.iter().map(|disk| disk.superblock.disk.disk_node).collect();
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

impl PlacedDisk {
    /// Puts a disk into its place: the device or file `elsewhere`, of which a link is made, or a
    /// file in the directory. A file that does not exist gets `bytes` bytes.
    ///
    /// One that holds anything is refused, unless its id is in `force`; so is one that another
    /// program has open, or that the host has mounted.
    pub fn place(
        directory: &Path,
        disk: DiskName,
        elsewhere: Option<&Path>,
        bytes: u64,
        force: &[String],
    ) -> Result<Self, VolumeError> {
        let mut added = Self { disk, bytes, made: Vec::new() };
        match added.try_place(directory, elsewhere, force) {
            Ok(()) => Ok(added),
            Err(error) => {
                added.discard();
                Err(error)
            }
        }
    }

    /// The servers did not take it: what was made for it is removed.
    pub fn discard(self) {
        for made in self.made {
            // What cannot be removed is seen by the next attempt.
            let _ = fs::remove_file(made);
        }
    }

    fn try_place(
        &mut self,
        directory: &Path,
        elsewhere: Option<&Path>,
        force: &[String],
    ) -> Result<(), VolumeError> {
        let of_volume = formatted_disks(directory);
        let volume = of_volume.first().ok_or(DirectoryError::NoVolume)?.superblock.volume();
        let name = directory.join(DISKS).join(self.disk.to_string());
        // A command that was stopped has left it; the servers say that the disk is not theirs.
        let is_left = fs::symlink_metadata(&name).is_ok_and(|found| {
            found.is_symlink()
                || match read_superblock(&name) {
                    Ok(Some(found)) => found.volume() == volume,
                    Ok(None) => true,
                    Err(_) => false,
                }
        });
        if is_left && elsewhere.is_some() {
            fs::remove_file(&name).map_err(failed("cannot remove", &name))?;
        }
        let target = match elsewhere {
            Some(elsewhere) => {
                let target =
                    std::path::absolute(elsewhere).map_err(failed("cannot find", elsewhere))?;
                inspect(&target).map_err(DirectoryError::from)?;
                std::os::unix::fs::symlink(&target, &name).map_err(failed("cannot make", &name))?;
                self.made.push(name.clone());
                target
            }
            None => name.clone(),
        };
        let found = inspect(&target).map_err(DirectoryError::from)?;
        match found.length {
            Some(there) if there > 0 || found.is_device => self.bytes = there,
            there => {
                let file = file_options().create_new(there.is_none()).open(&target);
                let file = file.map_err(failed("cannot open the disk", &target))?;
                if there.is_none() {
                    self.made.push(target.clone());
                }
                file.set_len(self.bytes)
                    .map_err(failed("cannot lengthen the disk file", &target))?;
            }
        }
        let shown = elsewhere.map_or_else(|| target.clone(), Path::to_owned);
        let new = NewDisk {
            disk: self.disk,
            path: name,
            name: shown,
            device_id: found.device_id.clone(),
        };
        let mut consent = OverwriteConsent::of_ids(force.to_vec());
        // One that was made ready and never used.
        consent.begun = vec![volume];
        let machine = start_for_disks(DiskAccess::from_environment()?)?;
        let work = move |context| async move {
            let opened = open_new_disks(&context, vec![new], &consent, None).await?;
            consent.check_all_used(&opened)
        };
        block_on(machine.on_node(NodeId::disk(0), work))??;
        let file = File::options().write(true).open(&target);
        let file = file.map_err(failed("cannot take over the disk file", &target))?;
        if !found.is_device {
            restrict(&file).map_err(failed("cannot take over the disk file", &target))?;
        }
        Ok(())
    }
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> DirectoryError {
    let path = path.to_owned();
    move |error| DirectoryError::Host { what, path, error }
}
