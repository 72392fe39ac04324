//! Making a volume, and finding out what an existing one is.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use blockio::{DiskError, Geometry, GeometryError};
use cluster::coordination::{Coordination as _, Sled, last_epoch, next_epoch};
use futures::executor::block_on;
use meta::store::StoreError;
use runtime::embedded::{Config, DiskAccess, Embedded};
use runtime::wire::{from_bytes, to_bytes};
use runtime::{Epoch, NodeId};

use super::boot::{boot_disks, boot_nodes, disk_paths, examine_nodes, format_nodes};
use super::directory::{DirectoryError, VolumeDirectory, new_volume_id};
use super::error::VolumeError;
use super::host_disk::inspect_all;
use super::new_disks::{NewDisk, OverwriteConsent, open_new_disks, write_superblocks};
use super::node::open_disk;
use super::options::{FS_NODES, FormatOptions, RunOptions};
use super::record::{FORMAT_EPOCH, VOLUME_KEY};
use super::running_volume::RunningVolume;
use super::superblocks::newest_epoch;

/// The key of the last epoch that was durable on all disks.
const SERVED_KEY: &str = "served";

/// Buffers for transfers under way, besides the cache.
pub(super) const TRANSFER_BYTES: usize = 256 << 20;

/// Makes a volume in `directory`.
pub fn format(directory: &Path, options: &FormatOptions) -> Result<Geometry, VolumeError> {
    let FormatOptions { disk_nodes, disks_per_node, fs_nodes, stripe_size, .. } = *options;
    check_disks(options)?;
    // Before anything is made: can there be such a volume?
    let volume = new_volume_id();
    let shape = |length: u64| {
        let disks = u64::from(disk_nodes) * u64::from(disks_per_node);
        let nodes = match fs_nodes {
            0 => fs_nodes_for(stripe_size, disks.saturating_mul(length)),
            given => given,
        };
        Geometry::for_disks(volume, stripe_size, nodes, disk_nodes, disks_per_node, length)
    };
    if options.disks.is_empty() {
        check_size(&shape(options.disk_bytes)?)?;
    }
    // Nor is anything made if a disk cannot be one.
    inspect_all(options.disks.iter()).map_err(DirectoryError::from)?;
    let mut directory = VolumeDirectory::create(directory, volume)?;
    let has_written = Arc::new(AtomicBool::new(false));
    match fill(&mut directory, options, shape, &has_written) {
        Ok(geometry) => Ok(geometry),
        Err(error) => {
            directory.discard(has_written.load(Relaxed) && !options.disks.is_empty());
            Err(error)
        }
    }
}

/// Makes the disks of a new volume and what is on them.
fn fill(
    directory: &mut VolumeDirectory,
    options: &FormatOptions,
    shape: impl Fn(u64) -> Result<Geometry, GeometryError>,
    has_written: &Arc<AtomicBool>,
) -> Result<Geometry, VolumeError> {
    let FormatOptions { disk_nodes, disks_per_node, .. } = *options;
    let mut length = u64::MAX;
    let mut new_disks = Vec::new();
    let mut elsewhere = options.disks.iter();
    for (node, disk) in all_disks(disk_nodes, disks_per_node) {
        let place = elsewhere.next().map(PathBuf::as_path);
        let (found, bytes) = directory.make_disk(node, disk, options.disk_bytes, place)?;
        length = length.min(bytes);
        let path = directory.disk(node, disk);
        let name = place.unwrap_or(&path).to_owned();
        new_disks.push(NewDisk { node, disk, path, name, device_id: found.device_id });
    }
    let geometry = shape(length)?;
    check_size(&geometry)?;

    let machine = start(&geometry, FORMAT_EPOCH, &RunOptions::default())?;
    let mut consent = OverwriteConsent::of_ids(options.force.clone());
    consent.begun = directory.begun().to_vec();
    let (elsewhere, begins) = (options.disks.clone(), has_written.clone());
    let work = move |context| async move {
        let disks = open_new_disks(&context, new_disks, &consent, None).await?;
        consent.check_all_used(&disks)?;
        VolumeDirectory::take_over(&elsewhere)?;
        begins.store(true, Relaxed);
        write_superblocks(&context, &geometry, disks).await
    };
    block_on(machine.on_node(NodeId::disk(0), work))??;
    boot_disks(&machine, &geometry, Epoch(0), &disk_paths(directory, &geometry))?;
    format_nodes(&machine, &geometry, options.owner)?;
    drop(machine);

    // The record makes it a volume: last, so that a format that was cut off can be repeated.
    let engine = directory.coordination()?;
    block_on(engine.put(VOLUME_KEY, &to_bytes(&geometry)))?;
    block_on(next_epoch(&engine, FORMAT_EPOCH))?;
    drop(engine);
    directory.finish()?;
    Ok(geometry)
}

/// How many nodes suit a volume of `bytes` bytes.
pub(super) fn fs_nodes_for(stripe_size: u32, bytes: u64) -> u32 {
    meta::store::suitable_nodes(stripe_size, bytes / u64::from(stripe_size.max(1)), FS_NODES)
}

fn check_disks(options: &FormatOptions) -> Result<(), VolumeError> {
    let FormatOptions { disk_nodes, disks_per_node, .. } = *options;
    let needed = disk_nodes.saturating_mul(disks_per_node);
    let given = options.disks.len();
    if given == 0 || given == needed as usize {
        return Ok(());
    }
    Err(VolumeError::DiskCount { given, needed, disk_nodes, disks_per_node })
}

pub(super) fn check_size(geometry: &Geometry) -> Result<(), VolumeError> {
    let (stripes, fs_nodes) = (geometry.stripes(), geometry.fs_nodes);
    let share = meta::store::smallest_share(geometry);
    let needed = meta::store::stripes_min(geometry);
    if share >= needed {
        return Ok(());
    }
    Err(VolumeError::TooSmall { stripes, fs_nodes, share, needed })
}

fn all_disks(disk_nodes: u32, disks_per_node: u32) -> impl Iterator<Item = (u32, u32)> {
    (0..disk_nodes).flat_map(move |node| (0..disks_per_node).map(move |disk| (node, disk)))
}

/// Opens the volume in the directory `path`, alone.
pub fn open(path: &Path, options: &RunOptions) -> Result<RunningVolume, VolumeError> {
    let mut directory = VolumeDirectory::open(path)?;
    // Only its last step was cut off.
    directory.finish()?;
    let engine = directory.coordination()?;
    let (geometry, seen) = match recorded(&engine)? {
        Some(geometry) => (geometry, epoch_of_disks(path, &engine)?),
        None => rebuild(&directory, &engine)?,
    };
    let served = Epoch(served(&engine)?);
    let epoch = block_on(next_epoch(&engine, seen))?;
    let machine = start(&geometry, epoch, options)?;
    boot_disks(&machine, &geometry, served, &disk_paths(&directory, &geometry))?;
    let examined = examine_nodes(&machine, &geometry);
    examined.map_err(|error| with_path(error, &directory, &geometry))?;
    // Nothing was written in this epoch yet: a disk that does not know it misses nothing.
    block_on(engine.put(SERVED_KEY, &to_bytes(&epoch.0)))?;
    drop(engine);
    let booted = boot_nodes(&machine, &geometry, options.cache_bytes);
    booted.map_err(|error| with_path(error, &directory, &geometry))?;
    let client_budget = std::sync::Arc::default();
    Ok(RunningVolume { machine, geometry, process: 0, client_budget, directory })
}

/// The operator knows disks by their paths.
fn with_path(error: VolumeError, directory: &VolumeDirectory, geometry: &Geometry) -> VolumeError {
    match error {
        // Block 0 says that it is nowhere in particular.
        VolumeError::Metadata { node, error: StoreError::Damaged { what, block: block @ 1.. } }
            if geometry.block(block).0 < geometry.stripes() =>
        {
            let place = geometry.place(geometry.block(block).0);
            let path = directory.disk(place.disk_node, place.disk);
            VolumeError::DamagedDisk { path, node, what, block }
        }
        VolumeError::Metadata { node, error: StoreError::Outdated { disk_node, disk, what } } => {
            VolumeError::OldDisk { path: directory.disk(disk_node, disk), node, what }
        }
        error => error,
    }
}

pub(super) fn recorded(engine: &Sled) -> Result<Option<Geometry>, VolumeError> {
    let record = block_on(engine.get(VOLUME_KEY))?;
    Ok(record.and_then(|record| from_bytes(&record.value).ok()))
}

/// The last epoch that was durable on all disks, 0 if that is not known.
pub(super) fn served(engine: &Sled) -> Result<u64, VolumeError> {
    let record = block_on(engine.get(SERVED_KEY))?;
    Ok(record.and_then(|record| from_bytes(&record.value).ok()).unwrap_or(0))
}

/// The epoch in which the disks were opened last. The volume's record may be older, where an older
/// copy of it was brought back.
fn epoch_of_disks(directory: &Path, engine: &Sled) -> Result<Epoch, VolumeError> {
    let (recorded, newest) = (block_on(last_epoch(engine))?, newest_epoch(directory));
    if recorded < newest {
        let (record, disks) = (recorded.0, newest.0);
        tracing::warn!(record, disks, "the volume's record is older than its disks; they count");
    }
    Ok(newest)
}

/// Finds out from the disks what the volume is, and in which epoch it was opened last.
fn rebuild(directory: &VolumeDirectory, engine: &Sled) -> Result<(Geometry, Epoch), VolumeError> {
    tracing::warn!("the volume's record is missing; it is rebuilt from the disks");
    let (geometry, epoch) = identify_disks(directory, DiskAccess::from_environment()?)?;
    block_on(engine.put(VOLUME_KEY, &to_bytes(&geometry)))?;
    Ok((geometry, epoch))
}

/// What the disks say the volume is, and in which epoch it was opened last.
pub(super) fn identify_disks(
    directory: &VolumeDirectory,
    disk_access: DiskAccess,
) -> Result<(Geometry, Epoch), VolumeError> {
    let found = directory.disks()?;
    let paths: Vec<PathBuf> =
        found.iter().map(|&(node, disk)| directory.disk(node, disk)).collect();
    let config = Config {
        threads: 1,
        fs_nodes: 1,
        disk_nodes: 1,
        epoch: Epoch(0),
        pool_bytes: 64 << 20,
        disk_access,
    };
    let machine = Embedded::start(config)?;
    let identified = machine.on_node(NodeId::disk(0), move |context| async move {
        let mut volumes = Vec::new();
        let mut troubles = Vec::new();
        for path in paths {
            match open_disk(&context, &path).await {
                Ok(disk) => match blockio::identify(&*disk).await {
                    Ok(superblock) => volumes.push((superblock.geometry, superblock.epoch)),
                    Err(error) => troubles.push(trouble(path, error)),
                },
                Err(error) => troubles.push(error.to_string()),
            }
        }
        (volumes, troubles)
    });
    let (volumes, troubles) = block_on(identified)?;
    let Some((geometry, _)) = volumes.first() else {
        return Err(VolumeError::Unknown(troubles.join("; ")));
    };
    let epoch = volumes.iter().map(|(_, epoch)| *epoch).max().unwrap_or_default();
    Ok((*geometry, epoch))
}

fn trouble(path: PathBuf, error: DiskError) -> String {
    VolumeError::Disk { path, error }.to_string()
}

pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn start(geometry: &Geometry, epoch: Epoch, options: &RunOptions) -> Result<Embedded, VolumeError> {
    let threads = if options.threads == 0 { cores() } else { options.threads };
    let machine = Embedded::start(Config {
        threads: threads.min(geometry.fs_nodes as usize),
        fs_nodes: geometry.fs_nodes,
        disk_nodes: geometry.disk_nodes,
        epoch,
        pool_bytes: options.cache_bytes + TRANSFER_BYTES,
        disk_access: DiskAccess::from_environment()?,
    })?;
    options.find_memory(&machine, geometry);
    Ok(machine)
}
