//! Making a volume, and finding out what an existing one is.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use blockio::VolumeRecord;
use blockio::plan::{plan_redundancy, plan_volume};
use blockio::{
    DiskError, DiskName, Geometry, GeometryError, RedundancyClass, Superblock, VolumeMap,
};
use cluster::coordination::{Coordination as _, Sled, last_epoch, next_epoch};
use futures::executor::block_on;
use meta::store::{Examination, StoreError};
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
use super::superblocks::{newest_epoch, newest_version};

/// The key of the last epoch that was durable on all disks.
const SERVED_KEY: &str = "served";

/// Buffers for transfers under way, besides the cache.
pub(super) const TRANSFER_BYTES: usize = 256 << 20;

/// Makes a volume in `directory`.
pub fn format(directory: &Path, options: &FormatOptions) -> Result<VolumeMap, VolumeError> {
    let FormatOptions { disk_nodes, disks_per_node, fs_nodes, stripe_size, .. } = *options;
    check_disks(options)?;
    let volume = new_volume_id();
    let plan = |disks: &[(DiskName, u64)]| {
        // A number of nodes is chosen only for a stripe that can be.
        Geometry { volume, stripe_size, fs_nodes: fs_nodes.max(1) }.check()?;
        let bytes = disks.iter().fold(0_u64, |all, (_, length)| all.saturating_add(*length));
        let fs_nodes = match fs_nodes {
            0 => fs_nodes_for((stripe_size, options.redundancy), bytes, disk_nodes),
            given => given,
        };
        let geometry = Geometry { volume, stripe_size, fs_nodes };
        plan_redundancy(&plan_volume(geometry, disks, options.spread)?, options.redundancy)
    };
    if options.disks.is_empty() {
        // Before anything is made: can there be such a volume?
        let disks = all_disks(disk_nodes, disks_per_node).map(|disk| (disk, options.disk_bytes));
        check_size(&plan(&disks.collect::<Vec<_>>())?)?;
    }
    // Nor is anything made if a disk cannot be one.
    inspect_all(options.disks.iter()).map_err(DirectoryError::from)?;
    let mut directory = VolumeDirectory::create(directory, volume)?;
    let has_written = Arc::new(AtomicBool::new(false));
    match fill(&mut directory, options, plan, &has_written) {
        Ok(map) => Ok(map),
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
    plan: impl Fn(&[(DiskName, u64)]) -> Result<VolumeMap, GeometryError>,
    has_written: &Arc<AtomicBool>,
) -> Result<VolumeMap, VolumeError> {
    let FormatOptions { disk_nodes, disks_per_node, .. } = *options;
    let (mut lengths, mut new_disks) = (Vec::new(), Vec::new());
    let mut elsewhere = options.disks.iter();
    for disk in all_disks(disk_nodes, disks_per_node) {
        let place = elsewhere.next().map(PathBuf::as_path);
        let (found, bytes) = directory.make_disk(disk, options.disk_bytes, place)?;
        lengths.push((disk, bytes));
        let path = directory.disk(disk);
        let name = place.unwrap_or(&path).to_owned();
        new_disks.push(NewDisk { disk, path, name, device_id: found.device_id });
    }
    let map = plan(&lengths)?;
    check_size(&map)?;

    let machine = start(&map, FORMAT_EPOCH, &RunOptions::default())?;
    let mut consent = OverwriteConsent::of_ids(options.force.clone());
    consent.begun = directory.begun().to_vec();
    let (elsewhere, begins) = (options.disks.clone(), has_written.clone());
    let volume = map.clone();
    let work = move |context| async move {
        let disks = open_new_disks(&context, new_disks, &consent, None).await?;
        consent.check_all_used(&disks)?;
        VolumeDirectory::take_over(&elsewhere)?;
        begins.store(true, Relaxed);
        write_superblocks(&context, &volume, disks).await
    };
    block_on(machine.on_node(NodeId::disk(0), work))??;
    boot_disks(&machine, &map, Epoch(0), directory)?;
    format_nodes(&machine, &map, options.owner)?;
    drop(machine);

    // The record makes it a volume: last, so that a format that was cut off can be repeated.
    let engine = directory.coordination()?;
    block_on(engine.put(VOLUME_KEY, &VolumeRecord::of(&map).to_stored()))?;
    block_on(next_epoch(&engine, FORMAT_EPOCH))?;
    drop(engine);
    directory.finish()?;
    Ok(map)
}

/// How many nodes suit a volume of `bytes` bytes: a multiple of the disk nodes if there are enough,
/// so that caches can be near their disks (ADR 90).
pub(super) fn fs_nodes_for(
    (stripe_size, class): (u32, RedundancyClass),
    bytes: u64,
    disk_nodes: u32,
) -> u32 {
    let stripes = bytes / u64::from(stripe_size.max(1));
    let shape = (stripe_size, class.metadata_copies());
    let nodes = meta::store::suitable_nodes(shape, stripes, FS_NODES);
    if nodes < disk_nodes { nodes } else { nodes - nodes % disk_nodes.max(1) }
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

pub(super) fn check_size(map: &VolumeMap) -> Result<(), VolumeError> {
    let (stripes, fs_nodes) = (map.stripes(), map.geometry().fs_nodes);
    let share = meta::store::smallest_share(map);
    let needed = meta::store::stripes_min(&map.geometry(), map.redundancy().metadata_copies());
    if share >= needed {
        return Ok(());
    }
    Err(VolumeError::TooSmall { stripes, fs_nodes, share, needed })
}

/// The disks of a volume that has as many at each disk node, node by node.
pub(super) fn all_disks(disk_nodes: u32, disks_per_node: u32) -> impl Iterator<Item = DiskName> {
    let disks_of =
        move |disk_node| (0..disks_per_node).map(move |disk| DiskName { disk_node, disk });
    (0..disk_nodes).flat_map(disks_of)
}

/// Opens the volume in the directory `path`, alone.
pub fn open(path: &Path, options: &RunOptions) -> Result<RunningVolume, VolumeError> {
    let mut directory = VolumeDirectory::open(path)?;
    // Only its last step was cut off.
    directory.finish()?;
    let engine = directory.coordination()?;
    let (map, seen) = current_map(&directory, &engine, path)?;
    let served = Epoch(served(&engine)?);
    let epoch = block_on(next_epoch(&engine, seen))?;
    let machine = start(&map, epoch, options)?;
    let booted = boot_disks(&machine, &map, served, &directory);
    let paths = disk_paths(&directory, &map).concat();
    booted.map_err(|error| with_missing(error, &paths))?;
    let examined = examine_nodes(&machine, &map, Examination::Mount);
    examined.map_err(|error| with_path(error, &directory, &map))?;
    // Nothing was written in this epoch yet: a disk that does not know it misses nothing.
    block_on(engine.put(SERVED_KEY, &to_bytes(&epoch.0)))?;
    drop(engine);
    let booted = boot_nodes(&machine, &map, options, &directory);
    booted.map_err(|error| with_path(error, &directory, &map))?;
    Ok(RunningVolume::alone(machine, map, false, directory))
}

/// What the volume is, and in which epoch it was opened last: as its record says, unless the disks
/// know better.
pub(super) fn current_map(
    directory: &VolumeDirectory,
    engine: &Sled,
    path: &Path,
) -> Result<(VolumeMap, Epoch), VolumeError> {
    match recorded(engine)? {
        Some(map) if map.version() >= newest_version(path) => {
            Ok((map, epoch_of_disks(path, engine)?))
        }
        found => rebuild(directory, engine, found.is_some()),
    }
}

/// If more than one disk is not there, the operator should hear of all at once.
fn with_missing(first: VolumeError, paths: &[PathBuf]) -> VolumeError {
    let missing: Vec<PathBuf> = paths.iter().filter(|path| !path.exists()).cloned().collect();
    if missing.len() < 2 {
        return first;
    }
    VolumeError::MissingDisks { first: Box::new(first), missing }
}

/// The operator knows disks by their paths.
pub(super) fn with_path(
    error: VolumeError,
    directory: &VolumeDirectory,
    map: &VolumeMap,
) -> VolumeError {
    match error {
        // Block 0 says that it is nowhere in particular.
        VolumeError::Metadata { node, error: StoreError::Damaged { what, block: block @ 1.. } }
            if map.geometry().block(block).0 < map.stripes() =>
        {
            let path = directory.disk(map.place(map.geometry().block(block).0).disk);
            VolumeError::DamagedDisk { path, node, what, block }
        }
        VolumeError::Metadata { node, error: StoreError::Outdated { disk, what } } => {
            VolumeError::OldDisk { path: directory.disk(disk), node, what }
        }
        error => error,
    }
}

pub(super) fn recorded(engine: &Sled) -> Result<Option<VolumeMap>, VolumeError> {
    let record = block_on(engine.get(VOLUME_KEY))?;
    Ok(record.and_then(|record| VolumeRecord::decode(&record.value)))
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

/// Finds out from the disks what the volume is, and in which epoch it was opened last, since the
/// record is missing, or an old copy.
fn rebuild(
    directory: &VolumeDirectory,
    engine: &Sled,
    is_old: bool,
) -> Result<(VolumeMap, Epoch), VolumeError> {
    let how = if is_old { "an old copy" } else { "missing" };
    tracing::warn!("the volume's record is {how}; it is rebuilt from the disks");
    let (map, epoch) = identify_disks(directory, DiskAccess::from_environment()?)?;
    block_on(engine.put(VOLUME_KEY, &VolumeRecord::of(&map).to_stored()))?;
    Ok((map, epoch))
}

/// What the disks say the volume is, and in which epoch it was opened last.
pub(super) fn identify_disks(
    directory: &VolumeDirectory,
    disk_access: DiskAccess,
) -> Result<(VolumeMap, Epoch), VolumeError> {
    let paths: Vec<PathBuf> =
        directory.disks()?.into_iter().map(|name| directory.disk(name)).collect();
    let machine = start_for_disks(disk_access)?;
    let identified = machine.on_node(NodeId::disk(0), move |context| async move {
        let mut disks: Vec<Superblock> = Vec::new();
        let mut troubles = Vec::new();
        for path in paths {
            match open_disk(&context, &path).await {
                Ok(disk) => match blockio::identify(&*disk).await {
                    Ok(superblock) => disks.push(superblock),
                    Err(error) => troubles.push(trouble(path, error)),
                },
                Err(error) => troubles.push(error.to_string()),
            }
        }
        (disks, troubles)
    });
    let (disks, mut troubles) = block_on(identified)?;
    let epoch = disks.iter().map(|disk| disk.epoch).max().unwrap_or_default();
    match VolumeMap::from_superblocks(&disks) {
        Ok(map) => Ok((map, epoch)),
        Err(error) => {
            troubles.push(error.to_string());
            Err(VolumeError::Unknown(troubles.join("; ")))
        }
    }
}

/// A machine with one disk node, to look at disks of which nothing is known.
pub(super) fn start_for_disks(disk_access: DiskAccess) -> Result<Embedded, VolumeError> {
    let machine = Embedded::start(Config {
        threads: 1,
        fs_nodes: 1,
        disk_nodes: 1,
        epoch: Epoch(0),
        pool_bytes: 64 << 20,
        disk_access,
    })?;
    Ok(machine)
}

fn trouble(path: PathBuf, error: DiskError) -> String {
    VolumeError::Disk { path, error }.to_string()
}

pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn start(map: &VolumeMap, epoch: Epoch, options: &RunOptions) -> Result<Embedded, VolumeError> {
    let geometry = map.geometry();
    let threads = if options.threads == 0 { cores() } else { options.threads };
    let machine = Embedded::start(Config {
        threads: threads.min(geometry.fs_nodes as usize),
        fs_nodes: geometry.fs_nodes,
        disk_nodes: map.disk_nodes(),
        epoch,
        pool_bytes: options.cache_bytes + TRANSFER_BYTES,
        disk_access: DiskAccess::from_environment()?,
    })?;
    options.find_memory(&machine, &geometry);
    Ok(machine)
}
