//! A whole cluster on the emulated machine, brought up by the product's own code.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use blockio::{BlockClient, Geometry, Stripes};
use cache::CacheClient;
use futures::future::try_join_all;
use machine_emu::{World, WorldShape};
use meta::memory::MemoryBudget;
use meta::store::StoreError;
use meta::{MetaServer, NodeAudit};
use runtime::protocol::Undelivered;
use runtime::seed::Rng;
use runtime::{Context, Epoch, NodeId, NodeKind, VolumeId};
use volume::{NodeHandover, VolumeError, node};

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
    /// Disk nodes.
    pub(super) disk_nodes: u32,
    /// Disks of each disk node.
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

    /// As a geometry.
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
    /// Of the metadata of all nodes: little, so that what can leave memory does.
    memory: Arc<MemoryBudget>,
    epoch: Cell<u64>,
    /// The metadata of the nodes that are mounted, to check it.
    mounted: Rc<RefCell<BTreeMap<NodeId, Rc<MetaServer>>>>,
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
            mounted: Rc::default(),
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
        let mounted = self.mounted.borrow().clone();
        let mut all = NodeAudit::default();
        for meta in mounted.values() {
            all.join(meta.audit().await?);
        }
        Ok(all)
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
            node::format_disks(&context, &geometry, paths).await
        })
        .await?;
        self.serve_disks().await?;
        if phases == Phases::All {
            self.on_fs_nodes(move |context| node::format_node(context, geometry)).await?;
        }
        self.restart();
        self.mount(phases).await
    }

    /// Kills whatever lives and starts all nodes again, in a new epoch. Nothing is served yet.
    pub(super) fn restart(&self) {
        self.mounted.borrow_mut().clear();
        self.epoch.set(self.epoch.get() + 1);
        let epoch = Epoch(self.epoch.get());
        self.world.set_epoch(epoch);
        for index in 0..APPLICATIONS {
            self.world.tell_epoch(NodeId::application(index), epoch);
        }
        for node in self.nodes() {
            self.world.restart(node);
        }
    }

    /// Starts `nodes` again, which may be dead or alive, while all others live on. In a new epoch, so
    /// that no message to or from their last incarnations is processed any more.
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
            self.mounted.borrow_mut().remove(node);
        }
        let applications = (0..APPLICATIONS).map(NodeId::application);
        for other in self.nodes().into_iter().chain(applications) {
            self.world.tell_epoch(other, epoch);
        }
        let (geometry, served) = (self.geometry, Epoch(self.served.get()));
        let disks = nodes.iter().filter_map(|node| match node.kind() {
            NodeKind::Disk(index) => Some(self.paths().swap_remove(index as usize)),
            _ => None,
        });
        let disk_nodes = nodes.iter().filter(|node| matches!(node.kind(), NodeKind::Disk(_)));
        let serving = disk_nodes.zip(disks).map(|(node, paths)| {
            self.on(*node, move |context| node::serve_disks(context, geometry, served, paths))
        });
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
        let told = handed.clone();
        self.on(node, move |context| async move {
            let handed = match (context.node().kind(), phases) {
                (NodeKind::Disk(_), _) => volume::hand_over_disks(&context).await,
                (_, Phases::All) => volume::hand_over(&context).await,
                (_, Phases::Stripes) => volume::hand_over_cache(&context).await,
            };
            told.replace(Some(handed.map_err(VolumeError::Flush)?));
            Ok(())
        })
        .await?;
        self.mounted.borrow_mut().remove(&node);
        // What a disk node has handed over is durable: its host may be turned off now.
        match node.kind() {
            NodeKind::Disk(_) => self.world.crash(node),
            _ => self.world.kill(node),
        }
        handed.take().ok_or(VolumeError::Node(Undelivered::Lost))
    }

    /// Starts `node` elsewhere, or with the same disks, after it was [handed over](Self::hand_over).
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
            self.world.tell_epoch(other, epoch);
        }
        let (geometry, cache_bytes) = (self.geometry, self.cache_bytes);
        let (mounted, memory) = (self.mounted.clone(), self.memory.clone());
        if let NodeKind::Disk(index) = node.kind() {
            let (served, paths) =
                (Epoch(self.served.get()), self.paths().swap_remove(index as usize));
            return self
                .on(node, move |context| async move {
                    node::resume_disks(context, geometry, served, paths, Some(&handed)).await
                })
                .await;
        }
        self.on(node, move |context| async move {
            node::serve_cache(&context, geometry, cache_bytes);
            volume::resume_cache(&context, &handed);
            if phases == Phases::Stripes {
                return Ok(());
            }
            let meta = node::serve_metadata(context.clone(), geometry, memory).await?;
            volume::resume_metadata(&context, &handed);
            mounted.borrow_mut().insert(node, meta);
            while let Err(error) = node::rejoin(context.clone()).await {
                tracing::debug!(%error, "the others are waited for");
                context.sleep(REJOIN_PAUSE).await;
            }
            node::serve_files(&context, geometry);
            volume::resume_files(&context, &handed);
            Ok(())
        })
        .await
    }

    /// Brings up the file-system nodes among `nodes`, in the phases of the product.
    async fn start_some(&self, nodes: &[NodeId], phases: Phases) -> Result<(), VolumeError> {
        let (geometry, cache_bytes) = (self.geometry, self.cache_bytes);
        let nodes = || nodes.iter().copied().filter(|node| matches!(node.kind(), NodeKind::Fs(_)));
        for node in nodes() {
            self.on(node, move |context| async move {
                node::serve_cache(&context, geometry, cache_bytes);
                Ok(())
            })
            .await?;
        }
        if phases == Phases::Stripes {
            return Ok(());
        }
        let mounting = nodes().map(|node| {
            let (mounted, memory) = (self.mounted.clone(), self.memory.clone());
            self.on(node, move |context| async move {
                let meta = node::serve_metadata(context, geometry, memory).await?;
                mounted.borrow_mut().insert(node, meta);
                Ok(())
            })
        });
        try_join_all(mounting).await?;
        let joining = nodes().map(|node| {
            self.on(node, move |context| async move {
                node::rejoin(context.clone()).await?;
                node::serve_files(&context, geometry);
                Ok(())
            })
        });
        try_join_all(joining).await.map(drop)
    }

    /// Brings up the layers, in the phases of the product.
    pub(super) async fn mount(&self, phases: Phases) -> Result<(), VolumeError> {
        let (geometry, cache_bytes) = (self.geometry, self.cache_bytes);
        self.serve_disks().await?;
        if phases == Phases::All {
            self.on_fs_nodes(move |context| node::examine_metadata(context, geometry)).await?;
        }
        self.served.set(self.epoch.get());
        self.on_fs_nodes(move |context| async move {
            node::serve_cache(&context, geometry, cache_bytes);
            Ok(())
        })
        .await?;
        if phases == Phases::All {
            let (mounted, memory) = (self.mounted.clone(), self.memory.clone());
            self.on_fs_nodes(move |context| {
                let (mounted, memory) = (mounted.clone(), memory.clone());
                async move {
                    let node = context.node();
                    let meta = node::serve_metadata(context, geometry, memory).await?;
                    mounted.borrow_mut().insert(node, meta);
                    Ok(())
                }
            })
            .await?;
            self.on_fs_nodes(node::finish_intents).await?;
            self.on_fs_nodes(node::end_recovery).await?;
            self.on_fs_nodes(move |context| async move {
                node::serve_files(&context, geometry);
                Ok(())
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
        let (geometry, served) = (self.geometry, Epoch(self.served.get()));
        let serving = (0..).map(NodeId::disk).zip(self.paths()).map(|(node, paths)| {
            self.on(node, move |context| node::serve_disks(context, geometry, served, paths))
        });
        try_join_all(serving).await.map(drop)
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
