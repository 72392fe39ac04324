//! A whole cluster on the emulated machine, brought up by the product's own code.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use blockio::{BlockClient, Geometry, Stripes};
use cache::CacheClient;
use fileio::client::SharedFileServer;
use fileio::protocol::FileIo;
use futures::future::try_join_all;
use machine_emu::{World, WorldShape};
use meta::memory::MemoryBudget;
use meta::store::StoreError;
use meta::{NodeAudit, SharedAttrCache};
use runtime::protocol::Undelivered;
use runtime::seed::Rng;
use runtime::{Context, Epoch, NodeId, NodeKind, SharedServers, VolumeId};
use volume::new_disks::{self, OverwriteConsent};
use volume::node::{self, NodeServers, ProcessMemory};
use volume::{NodeHandover, RootOwner, VolumeError};

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
    /// Stripes that each file-system node owns, about.
    pub(super) stripes_per_node: u64,
    /// Bytes of cached stripes of all nodes together.
    pub(super) cache_bytes: usize,
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
            stripes_per_node: (12 << 20) / u64::from(stripe_size),
            // From a few stripes per node to all that is ever used.
            cache_bytes: (fs_nodes as usize * stripe_size as usize) << (2 + rng.below(6)),
        }
    }

    pub(super) fn geometry(&self) -> Geometry {
        let disks = u64::from(self.disk_nodes * self.disks_per_node);
        let stripes = u64::from(self.fs_nodes) * self.stripes_per_node;
        Geometry {
            volume: VolumeId(0x51ED),
            stripe_size: self.stripe_size,
            fs_nodes: self.fs_nodes,
            disk_nodes: self.disk_nodes,
            disks_per_node: self.disks_per_node,
            stripes_per_disk: stripes.div_ceil(disks),
        }
    }
}

/// A cluster: all layers, unmodified, on nodes of a [`World`].
pub(super) struct SimulatedCluster {
    world: World,
    geometry: Geometry,
    cache_bytes: usize,
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
        f.debug_struct("Cluster").field("geometry", &self.geometry).finish_non_exhaustive()
    }
}

fn path_of(node: u32, disk: u32) -> String {
    format!("disk-{node}-{disk}")
}

impl SimulatedCluster {
    /// Nodes and used disks, nothing formatted.
    pub(super) fn new(seed: u64, layout: ClusterLayout) -> Self {
        let ClusterLayout { fs_nodes, disk_nodes, disks_per_node, cache_bytes, .. } = layout;
        let world = World::new(seed, WorldShape { fs_nodes, disk_nodes });
        let geometry = layout.geometry();
        for node in 0..disk_nodes {
            for disk in 0..disks_per_node {
                world.create_used_disk(&path_of(node, disk), geometry.disk_length());
            }
        }
        Self {
            world,
            geometry,
            cache_bytes,
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
        let cache = |_| Arc::new(SharedAttrCache::new(self.geometry.fs_nodes));
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
        ProcessMemory { metadata: self.memory.clone(), shared_attrs }
    }

    /// The paths of all disks, in the order in which they were created.
    pub(super) fn disk_paths(&self) -> Vec<String> {
        let Geometry { disk_nodes, disks_per_node, .. } = self.geometry;
        let paths = |node| (0..disks_per_node).map(move |disk| path_of(node, disk));
        (0..disk_nodes).flat_map(paths).collect()
    }

    /// The machine.
    pub(super) fn world(&self) -> &World {
        &self.world
    }

    /// The shape of the volume.
    pub(super) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// All nodes but the applications.
    pub(super) fn nodes(&self) -> Vec<NodeId> {
        let Geometry { fs_nodes, disk_nodes, .. } = self.geometry;
        (0..fs_nodes).map(NodeId::fs).chain((0..disk_nodes).map(NodeId::disk)).collect()
    }

    /// An application node: what clients ask from.
    pub(super) fn application(&self, index: u32) -> Context {
        self.world.context(NodeId::application(index))
    }

    /// The logical disk as the application `index` sees it: through the cache, or without it.
    pub(super) fn stripes(&self, index: u32, cached: bool) -> Rc<dyn Stripes> {
        let context = self.application(index);
        let below: Rc<dyn Stripes> = Rc::new(BlockClient::new(context.clone(), self.geometry));
        if cached { Rc::new(CacheClient::new(context, self.geometry, below)) } else { below }
    }

    fn paths(&self) -> Vec<Vec<PathBuf>> {
        let Geometry { disk_nodes, disks_per_node, .. } = self.geometry;
        let disks = |node| (0..disks_per_node).map(move |disk| path_of(node, disk).into());
        (0..disk_nodes).map(|node| disks(node).collect()).collect()
    }

    /// Makes the volume. All nodes serve it afterwards, up to `phases`.
    pub(super) async fn format(&self, phases: Phases) -> Result<(), VolumeError> {
        let (geometry, paths) = (self.geometry, self.paths());
        self.on(NodeId::disk(0), move |context| async move {
            new_disks::format_disks(&context, &geometry, paths, &OverwriteConsent::of_anything())
                .await
        })
        .await?;
        self.serve_disks().await?;
        if phases == Phases::All {
            self.on_fs_nodes(move |context| {
                node::format_node(context, geometry, RootOwner::default())
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
        let (geometry, cache_bytes) = (self.geometry, self.cache_bytes);
        let (servers, memory) = (self.servers.clone(), self.memory_of(node));
        if let NodeKind::Disk(index) = node.kind() {
            let (served, paths) =
                (Epoch(self.served.get()), self.paths().swap_remove(index as usize));
            return self.serve_disks_of(node, paths, served, Some(handed)).await;
        }
        self.on(node, move |context| async move {
            let cache = node::serve_cache(&context, geometry, cache_bytes);
            handed.resume_cache(&cache);
            servers.borrow_mut().entry(node).or_default().cache = Some(cache);
            if phases == Phases::Stripes {
                return Ok(());
            }
            let meta = node::serve_metadata(context.clone(), geometry, memory.clone()).await?;
            handed.resume_metadata(&meta);
            servers.borrow_mut().entry(node).or_default().meta = Some(meta.clone());
            while let Err(error) = node::rejoin(context.clone()).await {
                tracing::debug!(%error, "the others are waited for");
                context.sleep(REJOIN_PAUSE).await;
            }
            let files = node::serve_files(&context, geometry, &meta, memory);
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
        let geometry = self.geometry;
        self.serve_disks().await?;
        if phases == Phases::All {
            self.on_fs_nodes(move |context| node::examine_metadata(context, geometry)).await?;
        }
        self.served.set(self.epoch.get());
        let nodes = || (0..geometry.fs_nodes).map(NodeId::fs);
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
        let (geometry, servers) = (self.geometry, self.servers.clone());
        self.on(node, move |context| async move {
            let disks = node::resume_disks(context, geometry, served, paths, handed.as_ref());
            let disks = disks.await?;
            servers.borrow_mut().entry(node).or_default().disks = Some(disks);
            Ok(())
        })
        .await
    }

    async fn serve_cache(&self, node: NodeId) -> Result<(), VolumeError> {
        let (geometry, cache_bytes) = (self.geometry, self.cache_bytes);
        let servers = self.servers.clone();
        self.on(node, move |context| async move {
            let cache = node::serve_cache(&context, geometry, cache_bytes);
            servers.borrow_mut().entry(node).or_default().cache = Some(cache);
            Ok(())
        })
        .await
    }

    async fn serve_metadata(&self, node: NodeId) -> Result<(), VolumeError> {
        let (geometry, memory) = (self.geometry, self.memory_of(node));
        let servers = self.servers.clone();
        self.on(node, move |context| async move {
            let meta = node::serve_metadata(context, geometry, memory).await?;
            servers.borrow_mut().entry(node).or_default().meta = Some(meta);
            Ok(())
        })
        .await
    }

    /// Serves the files of `node`, whose metadata is served, when called at it.
    fn serve_files(&self, node: NodeId) -> impl FnOnce(Context) + 'static {
        let (geometry, memory) = (self.geometry, self.memory_of(node));
        let servers = self.servers.clone();
        move |context| {
            let meta = servers.borrow()[&node].meta.clone().expect("its metadata is served");
            let files = node::serve_files(&context, geometry, &meta, memory);
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
        let nodes = (0..self.geometry.fs_nodes).map(NodeId::fs);
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
    use runtime::delivery::StoreDeposit;

    use super::*;

    #[test]
    fn a_node_that_is_handed_over_stores_nothing_that_clients_have_left() {
        let layout = ClusterLayout {
            fs_nodes: 2,
            disk_nodes: 1,
            disks_per_node: 1,
            stripe_size: 16 << 10,
            stripes_per_node: 768,
            cache_bytes: 1 << 20,
        };
        let cluster = SimulatedCluster::new(1, layout);
        let world = cluster.world().clone();
        world.run(async {
            cluster.format(Phases::All).await.unwrap();
            let (node, asker) = (NodeId::fs(0), world.context(NodeId::fs(1)));
            let store = || {
                let call = StoreDeposit { port: 0, client: 1, transfer: 1, parts: Vec::new() };
                asker.spawn(node, call)
            };
            // Nothing was left.
            assert_eq!(store().await, Ok(Vec::new()));
            let servers = cluster.servers.borrow().get(&node).cloned().unwrap();
            let handing_over = move |context: Context| async move {
                servers.hand_over(&context).await.map(drop).map_err(VolumeError::Flush)
            };
            cluster.on(node, handing_over).await.unwrap();
            assert_eq!(store().await, Err(Undelivered::Unreachable));
        });
    }
}
