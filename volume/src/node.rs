//! What one node does to come up, on any machine. The phases follow one another for all nodes of
//! a volume together: a layer asks the layers below it, at any node.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use blockio::degraded::DiskTrouble;
use blockio::{BlockClient, DiskName, DiskNodeError, Geometry, Stripes, VolumeMap};
use cache::CacheClient;
use fileio::client::SharedFileServer;
use fileio::protocol::FileIo;
use fileio::{FileServer, LostFiles};
use futures::future::{join_all, try_join_all};
use meta::memory::MemoryBudget;
use meta::protocol::{EndRecovery, FinalCheckpoint, FinishIntents, Meta, Rejoin};
use meta::store::{Examination, StoreError};
use meta::{LostMetadata, MetaServer, MovePace, RootOwner, SCRUB_INTERVAL, SharedAttrCache};
use runtime::disk::Disk;
use runtime::embedded::Embedded;
use runtime::{Call, Context, Epoch, NodeKind};

use super::disk_manager::{DiskManager, OpenEngine};
use super::error::VolumeError;
use super::hand_over::NodeHandover;
pub use super::hand_over::NodeServers;
use super::options::RunOptions;

/// The pause before a phase of a start is tried again, while a disk takes no writes.
const UNWRITABLE_PAUSE: Duration = Duration::from_millis(500);

/// What the nodes of one process share, and how they use it.
#[derive(Clone)]
pub struct ProcessMemory {
    /// For their metadata.
    pub metadata: Arc<MemoryBudget>,
    /// What they publish to all threads; `None` if the threads share no memory.
    pub shared_attrs: Option<Arc<SharedAttrCache>>,
    /// How fast they move data between disks.
    pub pace: Arc<MovePace>,
    /// The time between two comparisons of all data with its checksums; zero for never.
    pub scrub_interval: Duration,
}

impl ProcessMemory {
    /// Of nodes that share only a budget for metadata.
    pub fn unshared(metadata: Arc<MemoryBudget>) -> Self {
        Self { metadata, shared_attrs: None, pace: Arc::default(), scrub_interval: SCRUB_INTERVAL }
    }

    /// Of the nodes of `machine`: half as much for metadata as for stripes.
    pub(super) fn of_machine(machine: &Embedded, geometry: &Geometry, run: &RunOptions) -> Self {
        let shared_attrs = Arc::new(SharedAttrCache::new(geometry.fs_nodes));
        machine.serve_shared::<FileIo>(Arc::new(SharedFileServer(shared_attrs.clone())));
        let metadata = MemoryBudget::beside_cache(run.cache_bytes);
        let (shared_attrs, scrub_interval) = (Some(shared_attrs), run.scrub_interval);
        Self { metadata, shared_attrs, pace: Arc::default(), scrub_interval }
    }
}

/// Opens one disk.
pub(super) async fn open_disk(context: &Context, path: &Path) -> Result<Rc<dyn Disk>, VolumeError> {
    let opened = context.open_disk(&path.to_string_lossy()).await;
    opened.map_err(|error| VolumeError::OpenDisk { path: path.to_owned(), error })
}

/// The number of a new disk.
pub(super) fn random_id(context: &Context) -> u128 {
    u128::from(context.random()) << 64 | u128::from(context.random())
}

/// Phase 1, at each disk node: opens its disks, for the epoch of the machine, and serves them.
///
/// `last_served` is the epoch in which this phase last ended at all disk nodes, 0 if unknown: a
/// disk that was not there then is refused.
pub async fn serve_disks(
    context: Context,
    map: VolumeMap,
    last_served: Epoch,
    paths: Vec<PathBuf>,
) -> Result<Rc<blockio::Server>, VolumeError> {
    resume_disks(context, map, last_served, paths, None).await
}

/// As [`serve_disks`], at a disk node that ended in order before, and has handed this over.
pub async fn resume_disks(
    context: Context,
    map: VolumeMap,
    last_served: Epoch,
    paths: Vec<PathBuf>,
    handed: Option<&NodeHandover>,
) -> Result<Rc<blockio::Server>, VolumeError> {
    let boot_id = handed.and_then(|handed| handed.disks);
    let disks = try_join_all(paths.iter().map(|path| open_disk(&context, path))).await?;
    let config = blockio::Config { served: last_served, boot_id, ..blockio::Config::default() };
    let server = blockio::Server::open(&context, &map, disks, config).await;
    let server = server.map_err(|error| with_path(error, &map, &paths))?;
    context.serve::<blockio::protocol::BlockIo>(server.clone());
    Ok(server)
}

/// As [`serve_disks`], to examine a volume that is not being served: nothing is written. Returns
/// the paths of disks with a damaged superblock beside a good one.
pub async fn serve_disks_to_read(
    context: Context,
    map: VolumeMap,
    last_served: Epoch,
    paths: Vec<PathBuf>,
) -> Result<Vec<PathBuf>, VolumeError> {
    let disks = try_join_all(paths.iter().map(|path| open_disk(&context, path))).await?;
    let config = blockio::Config { served: last_served, ..blockio::Config::default() };
    let opened = blockio::Server::open_to_read(&context, &map, disks, config).await;
    let (server, hurt) = match opened {
        Ok(opened) => opened,
        Err(error) => return Err(with_path(error, &map, &paths)),
    };
    context.serve::<blockio::protocol::BlockIo>(server);
    Ok(hurt.into_iter().filter_map(|disk| paths.get(disk as usize).cloned()).collect())
}

/// As [`serve_disks`], with what is there of the disks, to read a volume of which a part may be
/// missing: nothing is written. Returns what is wrong with which disk.
pub(super) async fn serve_disks_degraded(
    context: Context,
    map: VolumeMap,
    last_served: Epoch,
    paths: Vec<PathBuf>,
) -> Result<Vec<DiskTrouble>, VolumeError> {
    let opened = paths.iter().map(|path| path.to_string_lossy());
    let opened = opened.map(|path| {
        let context = context.clone();
        async move { context.open_disk(&path).await }
    });
    let disks = join_all(opened).await;
    let config = blockio::Config { served: last_served, ..blockio::Config::default() };
    let (server, troubles) = blockio::Server::open_degraded(&context, &map, disks, config).await?;
    context.serve::<blockio::protocol::BlockIo>(server);
    Ok(troubles)
}

/// The operator knows disks by their paths, which are those of the disks of `map` in their order.
fn with_path(error: DiskNodeError, map: &VolumeMap, paths: &[PathBuf]) -> VolumeError {
    match error {
        DiskNodeError::Disk { disk_node, disk, why } => {
            let name = DiskName { disk_node, disk };
            let place = map.disks_of(disk_node).iter().position(|other| *other == name);
            let path = place.and_then(|place| paths.get(place)).cloned();
            VolumeError::Disk { path: path.unwrap_or_else(|| name.to_string().into()), error: why }
        }
        other @ DiskNodeError::Count { .. } => other.into(),
    }
}

/// Between phases 1 and 2, at each file-system node: reads what it is to be mounted from. Nothing
/// is written, at any node, unless all find their metadata whole and on disks of today: a disk in
/// the wrong state can be replaced, and nothing has happened.
pub async fn examine_metadata(
    context: Context,
    map: VolumeMap,
    examination: Examination,
) -> Result<(), VolumeError> {
    let stripes: Rc<dyn Stripes> = Rc::new(BlockClient::new(context.clone(), map));
    let NodeKind::Fs(node) = context.node().kind() else { return Ok(()) };
    let examined = meta::store::StoreImage::examine(&context, stripes, node, examination).await;
    examined.map_err(|error| VolumeError::Metadata { node: context.node(), error })
}

/// After phase 1, once in the life of a volume, at each file-system node: writes its first
/// metadata; the root directory belongs to `owner`. Without the cache: little is written, once. A
/// node that has some is refused
/// ([`Formatted`](meta::store::StoreError::Formatted)).
pub async fn format_node(
    context: Context,
    map: VolumeMap,
    owner: RootOwner,
) -> Result<(), VolumeError> {
    let stripes: Rc<dyn Stripes> = Rc::new(BlockClient::new(context.clone(), map));
    let formatted = MetaServer::format(&context, &stripes, owner).await;
    formatted.map_err(|error| VolumeError::Metadata { node: context.node(), error })
}

/// Phase 2, at each file-system node: its part of the cache. `cache_bytes` is for all nodes
/// together.
pub fn serve_cache(context: &Context, map: &VolumeMap, cache_bytes: usize) -> Rc<cache::Server> {
    let below: Rc<dyn Stripes> = Rc::new(BlockClient::new(context.clone(), map.clone()));
    let config = cache::Config::share(cache_bytes, map.geometry().fs_nodes);
    let server = cache::Server::new(context.clone(), map.clone(), config, below);
    context.serve::<cache::protocol::Cache>(server.clone());
    server
}

/// Phase 3, at each file-system node: mounts its metadata and serves it to the other nodes.
pub async fn serve_metadata(
    context: Context,
    map: VolumeMap,
    memory: ProcessMemory,
) -> Result<Rc<MetaServer>, VolumeError> {
    let ProcessMemory { metadata, shared_attrs, pace, scrub_interval } = memory;
    let stripes = cached(&context, &map);
    let mounted = MetaServer::mount(context.clone(), stripes, metadata, shared_attrs, pace).await;
    let meta = mounted.map_err(|error| VolumeError::Metadata { node: context.node(), error })?;
    meta.scrub_every(scrub_interval);
    context.serve::<meta::protocol::Meta>(meta.clone());
    Ok(meta)
}

/// The metadata of a node that is only read, and what of it is damaged.
pub(super) type MetadataToRead = (Rc<MetaServer>, Vec<StoreError>);

/// As [`serve_metadata`], to be read. A node of which nothing can be read answers so.
pub(super) async fn serve_metadata_to_read(
    context: &Context,
    map: &VolumeMap,
    memory: ProcessMemory,
) -> Result<MetadataToRead, StoreError> {
    let ProcessMemory { metadata, shared_attrs, .. } = memory;
    let stripes = cached(context, map);
    let mounted = MetaServer::mount_to_read(context.clone(), stripes, metadata, shared_attrs).await;
    match &mounted {
        Ok((meta, _)) => context.serve::<Meta>(meta.clone()),
        Err(error) => {
            let lost = LostMetadata::new(*error);
            context.serve::<FileIo>(LostFiles::new(lost.error()));
            context.serve::<Meta>(lost);
        }
    }
    mounted
}

/// Phase 4, at each file-system node: brings about at other nodes what was promised before a crash.
pub async fn finish_intents(context: Context) -> Result<(), VolumeError> {
    let finished = ask_own(&context, FinishIntents {}).await;
    finished.map_err(|error| VolumeError::Recovery { node: context.node(), error })
}

/// Phase 5, at each file-system node: cleans up behind phase 4.
pub async fn end_recovery(context: Context) -> Result<(), VolumeError> {
    let ended = ask_own(&context, EndRecovery {}).await;
    ended.map_err(|error| VolumeError::Recovery { node: context.node(), error })
}

/// In place of phases 4 and 5, at a file-system node that comes back while others have lived on, in
/// a new epoch that all know: keeps what it has promised, and is told what it may have forgotten.
pub async fn rejoin(context: Context) -> Result<(), VolumeError> {
    let joined = ask_own(&context, Rejoin {}).await;
    joined.map_err(|error| VolumeError::Recovery { node: context.node(), error })
}

/// Asks the metadata of the node of `context`, again while a disk takes no writes.
async fn ask_own<C>(context: &Context, call: C) -> Result<C::Reply, meta::protocol::Error>
where
    C: Call<Protocol = Meta> + Clone,
{
    loop {
        match meta::client::ask(context, context.node(), call.clone()).await {
            Err(error) if error.is_unwritable() => context.sleep(UNWRITABLE_PAUSE).await,
            answer => return answer,
        }
    }
}

/// Phase 6, at each file-system node: serves files. No client has seen anything before.
pub fn serve_files(
    context: &Context,
    map: &VolumeMap,
    meta: &MetaServer,
    memory: ProcessMemory,
) -> Rc<FileServer> {
    let (stripes, information) = (cached(context, map), meta.information());
    let server = FileServer::new(context.clone(), stripes, information, memory.shared_attrs);
    context.serve::<FileIo>(server.clone());
    server
}

/// As [`serve_files`], to be read.
pub(super) fn serve_files_to_read(
    context: &Context,
    map: &VolumeMap,
    meta: &MetaServer,
    memory: ProcessMemory,
) {
    let (stripes, information) = (cached(context, map), meta.information());
    let server = FileServer::to_read(context.clone(), stripes, information, memory.shared_attrs);
    if has_root(context) {
        server.administrate(DiskManager::to_list(context.clone(), map.clone()));
    }
    context.serve::<FileIo>(server);
}

/// After phase 6, at the node of the root directory: changes the disks of the volume as its
/// operator wants. Elsewhere it does nothing.
pub fn administrate_disks(
    context: &Context,
    map: &VolumeMap,
    files: &FileServer,
    engine: OpenEngine,
) {
    if has_root(context) {
        files.administrate(DiskManager::start(context.clone(), map.clone(), engine));
    }
}

/// Is the root directory at this node?
fn has_root(context: &Context) -> bool {
    fileio::hash::ino_node(fileio::protocol::ROOT.ino, context.fs_nodes()) == context.node()
}

/// At a clean stop, at each file-system node, after all of them have settled.
pub async fn final_checkpoint(context: Context) -> Result<(), VolumeError> {
    let checkpointed = meta::client::ask(&context, context.node(), FinalCheckpoint {}).await;
    checkpointed.map_err(|error| VolumeError::Flush(error.into()))
}

fn cached(context: &Context, map: &VolumeMap) -> Rc<dyn Stripes> {
    let below: Rc<dyn Stripes> = Rc::new(BlockClient::new(context.clone(), map.clone()));
    Rc::new(CacheClient::new(context.clone(), map.clone(), below))
}
