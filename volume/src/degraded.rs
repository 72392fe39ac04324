//! Opening a volume to be read, with what is there of it: some disks are missing, or parts of the
//! metadata are damaged. Nothing is written to any disk.

use std::path::Path;

use blockio::degraded::DiskTrouble;
use blockio::{DiskName, VolumeMap};
use cluster::coordination::last_epoch;
use futures::executor::block_on;
use runtime::Epoch;
use runtime::embedded::{Config, DiskAccess, Embedded};

use super::boot::{self, disk_paths};
use super::directory::VolumeDirectory;
use super::error::VolumeError;
use super::impaired::{ImpairedDisk, MissingParts};
use super::options::RunOptions;
use super::running_volume::RunningVolume;
use super::superblocks::newest_epoch;
use super::volume::{TRANSFER_BYTES, cores, identify_disks, recorded, served};

/// What is known of a volume that is not changed.
pub(super) struct KnownVolume {
    pub(super) map: VolumeMap,
    /// The epoch in which it was opened last.
    pub(super) epoch: Epoch,
    /// The last epoch that was durable on all disks, 0 if that is not known.
    pub(super) served: Epoch,
}

impl KnownVolume {
    /// As its record says, or else its disks. Nothing is written.
    pub(super) fn of(directory: &VolumeDirectory, path: &Path) -> Result<Self, VolumeError> {
        if let Some(engine) = directory.coordination_if_sound()
            && let Some(map) = recorded(&engine)?
        {
            let epoch = block_on(last_epoch(&engine))?.max(newest_epoch(path));
            return Ok(Self { map, epoch, served: Epoch(served(&engine)?) });
        }
        let (map, epoch) = identify_disks(directory, DiskAccess::ReadOnly)?;
        Ok(Self { map, epoch, served: Epoch(0) })
    }

    /// A machine for its nodes that cannot write to disks, with `cache_bytes` for stripes.
    pub(super) fn start_to_read(
        &self,
        threads: usize,
        cache_bytes: usize,
    ) -> Result<Embedded, VolumeError> {
        let fs_nodes = self.map.geometry().fs_nodes;
        let threads = if threads == 0 { cores() } else { threads };
        Ok(Embedded::start(Config {
            threads: threads.min(fs_nodes as usize),
            fs_nodes,
            disk_nodes: self.map.disk_nodes(),
            epoch: self.epoch,
            pool_bytes: cache_bytes.saturating_add(TRANSFER_BYTES),
            disk_access: DiskAccess::ReadOnly,
        })?)
    }
}

/// Serves what is there of the disks, without a write to any.
pub(super) fn serve_disks(
    machine: &Embedded,
    directory: &VolumeDirectory,
    known: &KnownVolume,
) -> Result<Vec<ImpairedDisk>, VolumeError> {
    let paths = disk_paths(directory, &known.map);
    let troubles = boot::boot_disks_to_read(machine, &known.map, known.served, &paths)?;
    let impaired = troubles.into_iter().map(|(node, trouble)| {
        let DiskTrouble { disk, why, is_left_out } = trouble;
        let path = directory.disk(DiskName { disk_node: node as u32, disk });
        ImpairedDisk { path, why: why.to_string(), is_left_out }
    });
    Ok(impaired.collect())
}

/// Opens the volume in the directory `path` to be read, alone, as far as its disks are there and
/// its metadata is whole. Nothing is written to its disks. Also says what is missing.
pub fn open_degraded(
    path: &Path,
    options: &RunOptions,
) -> Result<(RunningVolume, MissingParts), VolumeError> {
    let directory = VolumeDirectory::open(path)?;
    let known = KnownVolume::of(&directory, path)?;
    let machine = known.start_to_read(options.threads, options.cache_bytes)?;
    options.find_memory(&machine, &known.map.geometry());
    let disks = serve_disks(&machine, &directory, &known)?;
    let nodes = boot::boot_nodes_to_read(&machine, &known.map, options)?;
    let running = RunningVolume::alone(machine, known.map, true, directory);
    Ok((running, MissingParts { disks, nodes }))
}
