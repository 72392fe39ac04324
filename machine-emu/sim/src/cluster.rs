//! A whole cluster on the emulated machine, brought up by the product's own code.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use blockio::plan::{Spread, plan_redundancy, plan_volume};
use blockio::{BlockClient, DiskName, Geometry, Stripes, VolumeMap, VolumeRecord};
use cache::CacheClient;
use cluster::coordination::{Coordination, Records};
use fileio::client::SharedFileServer;
use fileio::protocol::FileIo;
use futures::future::try_join_all;
use machine_emu::{World, WorldShape};
use meta::memory::MemoryBudget;
use meta::store::{Examination, StoreError};
use meta::{NodeAudit, SharedAttrCache};
use runtime::protocol::Undelivered;
use runtime::seed::Rng;
use runtime::wire::to_bytes;
use runtime::{Context, Epoch, NodeId, NodeKind, SharedServers, VolumeId};
use volume::disk_manager::{OpenEngine, VOLUME_KEY};
use volume::new_disks::{self, OverwriteConsent};
use volume::node::{self, NodeServers, ProcessMemory};
use volume::{NodeHandover, RootOwner, VolumeError};

use super::content_form::ContentForm;
use super::local_engine::LocalEngine;

/// Application nodes.
pub(super) const APPLICATIONS: u32 = 8;
/// The one that no client works on.
pub(super) const OBSERVER: u32 = APPLICATIONS - 1;

/// The pause before a node that has moved tries again to come back to the others.
const REJOIN_PAUSE: Duration = Duration::from_millis(10);

/// The shape of a cluster.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClusterLayout {
    /// File-system nodes.
    pub(super) fs_nodes: u32,
    pub(super) disk_nodes: u32,
    pub(super) disks_per_node: u32,
    /// Bytes per stripe.
    pub(super) stripe_size: u32,
    /// How stripes are spread over disks and caches.
    pub(super) spread: Spread,
    /// Stripes that each file-system node owns, about.
    pub(super) stripes_per_node: u64,
    /// Bytes of cached stripes of all nodes together.
    pub(super) cache_bytes: usize,
    /// The form of the content of files.
    pub(super) content: ContentForm,
    /// The coordination engine takes its time.
    pub(super) slow_engine: bool,
}

impl ClusterLayout {
    /// Some small cluster. Stripes are smaller than in use, so that little data crosses many.
    pub(super) fn draw(rng: &mut Rng) -> Self {
        let stripe_size = [16 << 10, 32 << 10, 64 << 10][rng.index(3)];
        let fs_nodes = 1 + rng.below(4) as u32;
        Self {
            fs_nodes,
            disk_nodes: 1 + rng.below(3) as u32,
            disks_per_node: 1 + rng.below(2) as u32,
            stripe_size,
            spread: if rng.chance(1, 2) { Spread::Units } else { Spread::Modulo },
            stripes_per_node: (12 << 20) / u64::from(stripe_size),
            // From a few stripes per node to all that is ever used.
            cache_bytes: (fs_nodes as usize * stripe_size as usize) << (2 + rng.below(6)),
            content: ContentForm::USUAL,
            slow_engine: false,
        }
    }

    pub(super) fn geometry(&self) -> Geometry {
        let Self { stripe_size, fs_nodes, .. } = *self;
        Geometry { volume: VolumeId(0x51ED), stripe_size, fs_nodes }
    }

    pub(super) fn map(&self) -> VolumeMap {
        let disks = u64::from(self.disk_nodes * self.disks_per_node);
        let stripes = u64::from(self.fs_nodes) * self.stripes_per_node;
        let geometry = self.geometry();
        let length = geometry.disk_length(stripes.div_ceil(disks));
        let names = (0..self.disk_nodes).flat_map(|disk_node| {
            (0..self.disks_per_node).map(move |disk| DiskName { disk_node, disk })
        });
        let disks: Vec<_> = names.map(|name| (name, length)).collect();
        let map = plan_volume(geometry, &disks, self.spread).expect("a small volume");
        plan_redundancy(&map, self.content.redundancy).expect("enough disks")
    }
}

/// A cluster: all layers, unmodified, on nodes of a [`World`].
pub(super) struct SimulatedCluster {
    world: World,
    /// As those know it that live.
    map: RefCell<VolumeMap>,
    /// What a coordination engine keeps.
    records: Rc<RefCell<Records>>,
    cache_bytes: usize,
    slow_engine: bool,
    content: ContentForm,
    /// Of all nodes: little for metadata, so that what can leave memory does.
    memory: Arc<MemoryBudget>,
    /// By shared memory.
    shared_attrs: OnceCell<Vec<Arc<SharedAttrCache>>>,
    epoch: Cell<u64>,
    /// Of the nodes that have come up, to hand over and to check their metadata.
    servers: Rc<RefCell<BTreeMap<NodeId, NodeServers>>>,
    /// The last epoch that was durable on all disks.
    served: Cell<u64>,
}

impl std::fmt::Debug for SimulatedCluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("map", &self.map()).finish_non_exhaustive()
    }
}

/// Where a disk is.
pub(super) fn path_of(DiskName { disk_node, disk }: DiskName) -> String {
    format!("disk-{disk_node}-{disk}")
}

impl SimulatedCluster {
    /// Nodes and used disks, nothing formatted.
    pub(super) fn new(seed: u64, layout: ClusterLayout) -> Self {
        let ClusterLayout { fs_nodes, disk_nodes, cache_bytes, content, slow_engine, .. } = layout;
        let world = World::new(seed, WorldShape { fs_nodes, disk_nodes });
        let map = layout.map();
        for disk in (0..disk_nodes).flat_map(|node| map.disks_of(node)) {
            world.create_used_disk(&path_of(disk), map.disk_length(disk));
        }
        let records = Rc::new(RefCell::new(Records::restore([(
            VOLUME_KEY.to_owned(),
            to_bytes(&VolumeRecord::of(&map)),
        )])));
        Self {
            world,
            map: RefCell::new(map),
            records,
            slow_engine,
            cache_bytes,
            content,
            memory: MemoryBudget::beside_cache(cache_bytes),
            epoch: Cell::new(1),
            served: Cell::new(0),
            shared_attrs: OnceCell::new(),
            servers: Rc::default(),
        }
    }

    /// The same, so that the next [`restart`](Self::restart) is in `epoch`.
    pub(super) fn before_epoch(seed: u64, layout: ClusterLayout, epoch: u64) -> Self {
        let cluster = Self::new(seed, layout);
        cluster.epoch.set(epoch - 1);
        cluster
    }

    /// The metadata of all nodes together, read to its last byte.
    pub(super) async fn audit(&self) -> Result<NodeAudit, StoreError> {
        let servers = self.servers.borrow().clone();
        let mut all = NodeAudit::default();
        for meta in servers.values().filter_map(|node| node.meta.as_ref()) {
            all.join(meta.audit().await?);
        }
        Ok(all)
    }

    /// From now on the nodes share `count` memories.
    pub(super) fn share_memory(&self, count: u32) {
        let cache = |_| Arc::new(SharedAttrCache::new(self.geometry().fs_nodes));
        let caches: Vec<Arc<SharedAttrCache>> = (0..count).map(cache).collect();
        let memories = caches.iter().map(|cache| {
            let servers = SharedServers::default();
            servers.serve::<FileIo>(Arc::new(SharedFileServer(cache.clone())));
            servers
        });
        self.world.share_memory(memories.collect());
        assert!(self.shared_attrs.set(caches).is_ok(), "memory is shared once");
    }

    fn memory_of(&self, node: NodeId) -> ProcessMemory {
        let shared_attrs = self.shared_attrs.get().and_then(|caches| {
            let NodeKind::Fs(index) = node.kind() else { return None };
            caches.get(index as usize % caches.len()).cloned()
        });
        let unshared = ProcessMemory::unshared(self.memory.clone());
        ProcessMemory { shared_attrs, ..unshared }
    }

    /// The paths of all disks, in the order in which they were created.
    pub(super) fn disk_paths(&self) -> Vec<String> {
        let map = self.map();
        let disks = (0..map.disk_nodes()).flat_map(|node| map.disks_of(node));
        disks.map(path_of).collect()
    }

    /// The machine.
    pub(super) fn world(&self) -> &World {
        &self.world
    }

    /// Bytes of a logical block of a file.
    pub(super) fn block_bytes(&self) -> u64 {
        u64::from(self.content.unit) * blockio::BLOCK_SIZE as u64
    }

    /// In what form files are stored.
    pub(super) fn content(&self) -> ContentForm {
        self.content
    }

    /// Copies of the data of files, at least, that are in no wide stripe.
    pub(super) fn data_copies(&self) -> u32 {
        self.content.copies()
    }

    /// What is fixed of the volume.
    pub(super) fn geometry(&self) -> Geometry {
        self.map.borrow().geometry()
    }

    /// The disks of the volume.
    pub(super) fn map(&self) -> VolumeMap {
        self.map.borrow().clone()
    }

    /// What the coordination engine keeps.
    pub(super) fn records(&self) -> Rc<RefCell<Records>> {
        self.records.clone()
    }

    /// Who starts next knows of the disks what `map` says. No node lives any more.
    pub(super) fn know(&self, map: VolumeMap) {
        *self.map.borrow_mut() = map;
    }

    /// All nodes but the applications.
    pub(super) fn nodes(&self) -> Vec<NodeId> {
        let (fs_nodes, disk_nodes) = (self.geometry().fs_nodes, self.map().disk_nodes());
        (0..fs_nodes).map(NodeId::fs).chain((0..disk_nodes).map(NodeId::disk)).collect()
    }

    /// An application node: what clients ask from.
    pub(super) fn application(&self, index: u32) -> Context {
        self.world.context(NodeId::application(index))
    }

    /// The logical disk as the application `index` sees it: through the cache, or without it.
    pub(super) fn stripes(&self, index: u32, cached: bool) -> Rc<dyn Stripes> {
        let context = self.application(index);
        let below: Rc<dyn Stripes> = Rc::new(BlockClient::new(context.clone(), self.map()));
        if cached { Rc::new(CacheClient::new(context, self.map(), below)) } else { below }
    }

    fn paths(&self) -> Vec<Vec<PathBuf>> {
        let map = self.map();
        let paths_of = |node| map.disks_of(node).into_iter().map(|disk| path_of(disk).into());
        (0..map.disk_nodes()).map(|node| paths_of(node).collect()).collect()
    }

    /// Makes the volume. All nodes serve it afterwards, up to `phases`.
    pub(super) async fn format(&self, phases: Phases) -> Result<(), VolumeError> {
        let (map, paths) = (self.map(), self.paths());
        self.on(NodeId::disk(0), move |context| async move {
            let consent = OverwriteConsent::of_anything();
            new_disks::format_disks(&context, &map, paths, &consent).await
        })
        .await?;
        self.serve_disks().await?;
        if phases == Phases::All {
            let map = self.map();
            self.on_fs_nodes(move |context| {
                node::format_node(context, map.clone(), RootOwner::default())
            })
            .await?;
        }
        self.restart();
        self.mount(phases).await
    }

    /// Kills whatever lives and starts all nodes again, in a new epoch. Nothing is served yet.
    pub(super) fn restart(&self) {
        self.servers.borrow_mut().clear();
        self.epoch.set(self.epoch.get() + 1);
        let epoch = Epoch(self.epoch.get());
        self.world.set_epoch(epoch);
        for index in 0..APPLICATIONS {
            self.world.node(NodeId::application(index)).set_epoch(epoch);
        }
        for node in self.nodes() {
            self.world.restart(node);
        }
    }

    /// Starts `nodes` again, which may be dead or alive, while all others live on. In a new epoch,
    /// so that no message to or from their last incarnations is processed any more.
    pub(super) async fn restart_some(
        &self,
        nodes: &[NodeId],
        phases: Phases,
    ) -> Result<(), VolumeError> {
        self.epoch.set(self.epoch.get() + 1);
        let epoch = Epoch(self.epoch.get());
        self.world.set_epoch(epoch);
        for node in nodes {
            self.world.restart(*node);
            self.servers.borrow_mut().remove(node);
        }
        let applications = (0..APPLICATIONS).map(NodeId::application);
        for other in self.nodes().into_iter().chain(applications) {
            self.world.node(other).set_epoch(epoch);
        }
        let served = Epoch(self.served.get());
        let disks = nodes.iter().filter_map(|node| match node.kind() {
            NodeKind::Disk(index) => Some(self.paths().swap_remove(index as usize)),
            _ => None,
        });
        let disk_nodes = nodes.iter().filter(|node| matches!(node.kind(), NodeKind::Disk(_)));
        let serving = disk_nodes
            .zip(disks)
            .map(|(node, paths)| self.serve_disks_of(*node, paths, served, None));
        try_join_all(serving).await?;
        self.start_some(nodes, phases).await
    }

    /// Ends `node` as a process does that the node map takes it from.
    pub(super) async fn hand_over(
        &self,
        node: NodeId,
        phases: Phases,
    ) -> Result<NodeHandover, VolumeError> {
        let handed: Rc<RefCell<Option<NodeHandover>>> = Rc::default();
        let result = handed.clone();
        let servers = self.servers.borrow().get(&node).cloned().unwrap_or_default();
        self.on(node, move |context| async move {
            let handed = match (context.node().kind(), phases) {
                (NodeKind::Disk(_), _) => servers.hand_over_disks(&context).await,
                (_, Phases::All) => servers.hand_over(&context).await,
                (_, Phases::Stripes) => servers.hand_over_cache().await,
            };
            result.replace(Some(handed.map_err(VolumeError::Flush)?));
            Ok(())
        })
        .await?;
        self.servers.borrow_mut().remove(&node);
        // What a disk node has handed over is durable: its host may be turned off now.
        match node.kind() {
            NodeKind::Disk(_) => self.world.crash(node),
            _ => self.world.kill(node),
        }
        handed.take().ok_or(VolumeError::Node(Undelivered::Lost))
    }

    /// Starts `node` elsewhere, or with the same disks, after it was [handed
    /// over](Self::hand_over).
    pub(super) async fn take_over(
        &self,
        node: NodeId,
        handed: NodeHandover,
        phases: Phases,
    ) -> Result<(), VolumeError> {
        self.epoch.set(self.epoch.get() + 1);
        let epoch = Epoch(self.epoch.get());
        self.world.set_epoch(epoch);
        self.world.restart(node);
        let applications = (0..APPLICATIONS).map(NodeId::application);
        for other in self.nodes().into_iter().chain(applications) {
            self.world.node(other).set_epoch(epoch);
        }
        let (map, cache_bytes) = (self.map(), self.cache_bytes);
        let (servers, memory) = (self.servers.clone(), self.memory_of(node));
        let (content, records, slow_engine) = (self.content, self.records(), self.slow_engine);
        if let NodeKind::Disk(index) = node.kind() {
            let (served, paths) =
                (Epoch(self.served.get()), self.paths().swap_remove(index as usize));
            return self.serve_disks_of(node, paths, served, Some(handed)).await;
        }
        self.on(node, move |context| async move {
            let cache = node::serve_cache(&context, &map, cache_bytes);
            handed.resume_cache(&cache);
            servers.borrow_mut().entry(node).or_default().cache = Some(cache);
            if phases == Phases::Stripes {
                return Ok(());
            }
            let meta = node::serve_metadata(context.clone(), map.clone(), memory.clone()).await?;
            handed.resume_metadata(&meta);
            servers.borrow_mut().entry(node).or_default().meta = Some(meta.clone());
            while let Err(error) = node::rejoin(context.clone()).await {
                tracing::debug!(%error, "the others are waited for");
                context.sleep(REJOIN_PAUSE).await;
            }
            let files = node::serve_files(&context, &map, &meta, memory);
            content.set(&files, &meta);
            let engine = open_engine(records, slow_engine.then(|| context.clone()));
            node::administrate_disks(&context, &map, &files, engine);
            handed.resume_files(&files);
            servers.borrow_mut().entry(node).or_default().files = Some(files);
            Ok(())
        })
        .await
    }

    /// Brings up the file-system nodes among `nodes`, in the phases of the product.
    async fn start_some(&self, nodes: &[NodeId], phases: Phases) -> Result<(), VolumeError> {
        let nodes = || nodes.iter().copied().filter(|node| matches!(node.kind(), NodeKind::Fs(_)));
        for node in nodes() {
            self.serve_cache(node).await?;
        }
        if phases == Phases::Stripes {
            return Ok(());
        }
        try_join_all(nodes().map(|node| self.serve_metadata(node))).await?;
        let joining = nodes().map(|node| {
            let serving = self.serve_files(node);
            self.on(node, move |context| async move {
                node::rejoin(context.clone()).await?;
                serving(context);
                Ok(())
            })
        });
        try_join_all(joining).await.map(drop)
    }

    /// Brings up the layers, in the phases of the product.
    pub(super) async fn mount(&self, phases: Phases) -> Result<(), VolumeError> {
        let map = self.map();
        self.serve_disks().await?;
        if phases == Phases::All {
            self.on_fs_nodes(move |context| {
                node::examine_metadata(context, map.clone(), Examination::Mount)
            })
            .await?;
        }
        self.served.set(self.epoch.get());
        let nodes = || (0..self.geometry().fs_nodes).map(NodeId::fs);
        try_join_all(nodes().map(|node| self.serve_cache(node))).await?;
        if phases == Phases::All {
            try_join_all(nodes().map(|node| self.serve_metadata(node))).await?;
            self.on_fs_nodes(node::finish_intents).await?;
            self.on_fs_nodes(node::end_recovery).await?;
            self.on_fs_nodes(|context| {
                let serving = self.serve_files(context.node());
                async move {
                    serving(context);
                    Ok(())
                }
            })
            .await?;
        }
        Ok(())
    }

    /// Ends all metadata cleanly, after it was settled.
    pub(super) async fn final_checkpoint(&self, phases: Phases) -> Result<(), VolumeError> {
        match phases {
            Phases::Stripes => Ok(()),
            Phases::All => self.on_fs_nodes(node::final_checkpoint).await,
        }
    }

    async fn serve_disks(&self) -> Result<(), VolumeError> {
        let served = Epoch(self.served.get());
        let disks = (0..).map(NodeId::disk).zip(self.paths());
        let serving = disks.map(|(node, paths)| self.serve_disks_of(node, paths, served, None));
        try_join_all(serving).await.map(drop)
    }

    async fn serve_disks_of(
        &self,
        node: NodeId,
        paths: Vec<PathBuf>,
        served: Epoch,
        handed: Option<NodeHandover>,
    ) -> Result<(), VolumeError> {
        let (map, servers) = (self.map(), self.servers.clone());
        self.on(node, move |context| async move {
            let disks = node::resume_disks(context, map, served, paths, handed.as_ref());
            let disks = disks.await?;
            disks.find_new_disks(path_of);
            servers.borrow_mut().entry(node).or_default().disks = Some(disks);
            Ok(())
        })
        .await
    }

    async fn serve_cache(&self, node: NodeId) -> Result<(), VolumeError> {
        let (map, cache_bytes) = (self.map(), self.cache_bytes);
        let servers = self.servers.clone();
        self.on(node, move |context| async move {
            let cache = node::serve_cache(&context, &map, cache_bytes);
            servers.borrow_mut().entry(node).or_default().cache = Some(cache);
            Ok(())
        })
        .await
    }

    async fn serve_metadata(&self, node: NodeId) -> Result<(), VolumeError> {
        let (map, memory) = (self.map(), self.memory_of(node));
        let servers = self.servers.clone();
        self.on(node, move |context| async move {
            let meta = node::serve_metadata(context, map, memory).await?;
            servers.borrow_mut().entry(node).or_default().meta = Some(meta);
            Ok(())
        })
        .await
    }

    /// Serves the files of `node`, whose metadata is served, when called at it.
    fn serve_files(&self, node: NodeId) -> impl FnOnce(Context) + 'static {
        let (map, memory) = (self.map(), self.memory_of(node));
        let (servers, records) = (self.servers.clone(), self.records());
        let (content, slow_engine) = (self.content, self.slow_engine);
        move |context| {
            let meta = servers.borrow()[&node].meta.clone().expect("its metadata is served");
            let files = node::serve_files(&context, &map, &meta, memory);
            content.set(&files, &meta);
            let engine = open_engine(records, slow_engine.then(|| context.clone()));
            node::administrate_disks(&context, &map, &files, engine);
            servers.borrow_mut().entry(node).or_default().files = Some(files);
        }
    }

    /// What the cluster knows of its disks besides their bytes: the last epoch that was durable on
    /// all of them. A caller that restores old images of all disks restores this, too.
    pub(super) fn served(&self) -> &Cell<u64> {
        &self.served
    }

    async fn on_fs_nodes<F: Future<Output = Result<(), VolumeError>> + 'static>(
        &self,
        work: impl Fn(Context) -> F,
    ) -> Result<(), VolumeError> {
        let nodes = (0..self.geometry().fs_nodes).map(NodeId::fs);
        try_join_all(nodes.map(|node| self.on(node, &work))).await.map(|_| ())
    }

    /// Runs `work` as a task of `node`, so that it ends with the node.
    async fn on<F: Future<Output = Result<(), VolumeError>> + 'static>(
        &self,
        node: NodeId,
        work: impl FnOnce(Context) -> F,
    ) -> Result<(), VolumeError> {
        self.world.on(node, work).await.unwrap_or(Err(VolumeError::Node(Undelivered::Lost)))
    }
}

/// An engine with these records; with a node, at which it takes its time.
fn open_engine(records: Rc<RefCell<Records>>, slow_at: Option<Context>) -> OpenEngine {
    Box::new(move || {
        Ok(Rc::new(LocalEngine::new(records.clone(), slow_at.clone())) as Rc<dyn Coordination>)
    })
}

/// How much of the stack is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phases {
    /// Disks and cache.
    Stripes,
    /// Metadata and files too.
    All,
}

#[cfg(test)]
mod tests {
    use runtime::delivery::{StoreDeposit, StoredDeposit};

    use super::*;

    #[test]
    fn a_node_that_is_handed_over_stores_nothing_that_clients_have_left() {
        let layout = ClusterLayout {
            fs_nodes: 2,
            disk_nodes: 1,
            disks_per_node: 1,
            stripe_size: 16 << 10,
            spread: Spread::default(),
            stripes_per_node: 768,
            cache_bytes: 1 << 20,
            content: ContentForm::USUAL,
            slow_engine: false,
        };
        let cluster = SimulatedCluster::new(1, layout);
        let world = cluster.world().clone();
        world.run(async {
            cluster.format(Phases::All).await.unwrap();
            let (node, asker) = (NodeId::fs(0), world.context(NodeId::fs(1)));
            let store = || {
                let (parts, parity) = (Vec::new(), Vec::new());
                asker.spawn(node, StoreDeposit { port: 0, client: 1, transfer: 1, parts, parity })
            };
            // Nothing was left.
            assert_eq!(store().await, Ok(StoredDeposit::default()));
            let servers = cluster.servers.borrow().get(&node).cloned().unwrap();
            let handing_over = move |context: Context| async move {
                servers.hand_over(&context).await.map(drop).map_err(VolumeError::Flush)
            };
            cluster.on(node, handing_over).await.unwrap();
            assert_eq!(store().await, Err(Undelivered::Unreachable));
        });
    }
}
