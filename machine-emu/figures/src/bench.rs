//! A machine with as many nodes and layers as an experiment needs.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use blockio::{BlockClient, Geometry, Stripes, VolumeMap};
use cache::CacheClient;
use futures::future::try_join_all;
use machine_emu::jmachine::{JMachine, Profile, Topology, TopologyError};
use machine_emu::mesh::ForwardPolicy;
use machine_emu::{LinkError, MeshSetup, World, WorldShape};
use runtime::{Context, Epoch, NodeId, Undelivered, VolumeId};
use volume::new_disks::{self, OverwriteConsent};
use volume::node::{self, NodeServers, ProcessMemory};
use volume::{MemoryBudget, RootOwner, VolumeError};

use crate::Rig;

/// Memory of the metadata of each node: the figures are not about it, so it is never short.
const METADATA_BYTES: usize = 8 << 20;

/// Bytes of a stripe, the thesis'.
pub(crate) const STRIPE: u32 = 64 << 10;

/// Chunks of a stripe each that an experiment writes: 4 MB, as in thesis 4.3.
pub(crate) const CHUNKS: u64 = 64;

/// An experiment could not be done.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// There is no such machine.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// There is no such mesh.
    #[error(transparent)]
    Mesh(#[from] LinkError),
    /// The layers cannot be brought up.
    #[error("the layers cannot be brought up on the emulated machine: {0}")]
    Stack(#[from] VolumeError),
    /// A disk node cannot start.
    #[error("a disk node of the emulated machine cannot start: {0}")]
    DiskNode(#[from] blockio::DiskNodeError),
    /// The layers refused what an experiment asked.
    #[error("the layers refused a request of the experiment: {0}")]
    Block(#[from] blockio::protocol::Error),
    /// The file system refused what an experiment asked.
    #[error("the file system refused a request of the experiment: {0}")]
    Files(#[from] client::Error),
    /// A node ended.
    #[error("a node of the emulated machine ended: {0}")]
    Node(#[from] Undelivered),
}

/// How large a machine is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MachineSize {
    pub(crate) fs_nodes: u32,
    pub(crate) disk_nodes: u32,
    pub(crate) clients: u32,
}

/// An emulated machine and what runs on it.
pub(crate) struct FigureBench {
    pub(crate) world: World,
    pub(crate) map: VolumeMap,
    profile: Profile,
}

fn path(node: u32, disk: u32) -> String {
    format!("disk-{node}-{disk}")
}

impl FigureBench {
    /// A machine with disks of zeros; nothing is served.
    pub(crate) fn new(rig: &Rig, layout: MachineSize) -> Result<Self, RunError> {
        let MachineSize { fs_nodes, disk_nodes, clients } = layout;
        let Rig { profile, traffic } = rig;
        let topology = Topology::parse(&format!("8x8x8 disks={disk_nodes}"))?;
        let numbers = profile.numbers();
        let disks_per_node = numbers.bus.disks.value as u32;
        let capacity = numbers.disk.capacity.value as u64;
        let geometry = Geometry { volume: VolumeId(0x1996), stripe_size: STRIPE, fs_nodes };
        let on_each = geometry.stripes_on_disk(capacity);
        let map = VolumeMap::grid(geometry, disk_nodes, disks_per_node, on_each);
        let map = map.map_err(VolumeError::from)?;
        // Nothing is drawn from the seed once the world is a J-Machine.
        let world = World::new(1996, WorldShape { fs_nodes, disk_nodes });
        for node in 0..disk_nodes {
            for disk in 0..disks_per_node {
                world.create_disk(&path(node, disk), geometry.disk_length(on_each));
            }
        }
        let machine = JMachine { profile: profile.clone(), topology, host: None };
        world.emulate(&machine, clients);
        if *traffic {
            world.network().use_mesh(MeshSetup::machine(&machine, ForwardPolicy::Canonical)?)?;
        }
        Ok(Self { world, map, profile: profile.clone() })
    }

    fn paths(&self) -> Vec<Vec<PathBuf>> {
        let disks = |node| self.map.disks_of(node).into_iter().map(|name| name.disk);
        let paths = |node| disks(node).map(|disk| path(node, disk).into()).collect();
        (0..self.map.disk_nodes()).map(paths).collect()
    }

    /// Formats all disks and serves them as the disk nodes of the thesis do: a request at a time
    /// for each disk, and room for a few writes.
    pub(crate) async fn serve_disks(&self) -> Result<(), RunError> {
        let (map, paths) = (self.map.clone(), self.paths());
        self.on(NodeId::disk(0), move |context| async move {
            let consent = OverwriteConsent::of_anything();
            Ok(new_disks::format_disks(&context, &map, paths, &consent).await?)
        })
        .await?;
        let buffers = self.profile.numbers().disk_node.buffers.value as usize;
        let config = blockio::Config {
            depth_per_disk: 1,
            write_buffer_bytes: buffers * STRIPE as usize,
            served: Epoch(0),
            ..blockio::Config::default()
        };
        let serving = (0..).map(NodeId::disk).zip(self.paths()).map(|(node, paths)| {
            let map = self.map.clone();
            self.on(node, move |context| async move {
                let opened =
                    paths.iter().map(|path| context.open_disk(path.to_str().unwrap_or("")));
                let disks = try_join_all(opened).await;
                let disks = disks.map_err(VolumeError::Machine)?;
                let server = blockio::Server::open(&context, &map, disks, config).await?;
                context.serve::<blockio::protocol::BlockIo>(server);
                Ok(())
            })
        });
        try_join_all(serving).await.map(|_| ())
    }

    /// Serves the cache on all file-system nodes, each with as many lines as its memory holds.
    pub(crate) fn serve_caches(&self) {
        let lines = self.profile.lines();
        let all = lines * STRIPE as usize * self.map.geometry().fs_nodes as usize;
        for index in 0..self.map.geometry().fs_nodes {
            node::serve_cache(&self.world.context(NodeId::fs(index)), &self.map, all);
        }
    }

    /// Serves disks, caches, metadata and files: the whole stack.
    pub(crate) async fn serve_files(&self) -> Result<(), RunError> {
        let map = &self.map;
        self.serve_disks().await?;
        self.on_fs_nodes(|context| node::format_node(context, map.clone(), RootOwner::default()))
            .await?;
        self.serve_caches();
        let memory = || ProcessMemory::unshared(MemoryBudget::new(METADATA_BYTES));
        let mounted: Rc<RefCell<BTreeMap<NodeId, NodeServers>>> = Rc::default();
        self.on_fs_nodes(|context| {
            let (mounted, map) = (mounted.clone(), map.clone());
            async move {
                let node = context.node();
                let meta = Some(node::serve_metadata(context, map, memory()).await?);
                mounted.borrow_mut().insert(node, NodeServers { meta, ..NodeServers::default() });
                Ok(())
            }
        })
        .await?;
        self.on_fs_nodes(node::finish_intents).await?;
        self.on_fs_nodes(node::end_recovery).await?;
        self.on_fs_nodes(|context| {
            let (servers, map) = (mounted.borrow()[&context.node()].clone(), map.clone());
            async move {
                let meta = servers.meta.expect("it is mounted");
                node::serve_files(&context, &map, &meta, memory());
                Ok(())
            }
        })
        .await
    }

    async fn on_fs_nodes<F: Future<Output = Result<(), VolumeError>> + 'static>(
        &self,
        work: impl Fn(Context) -> F,
    ) -> Result<(), RunError> {
        let nodes = (0..self.map.geometry().fs_nodes).map(NodeId::fs);
        let works = nodes.map(|node| {
            let work = work(self.world.context(node));
            self.on(node, |_| async move { Ok(work.await?) })
        });
        try_join_all(works).await.map(|_| ())
    }

    /// Runs `work` as a task of `node`.
    pub(crate) async fn on<T: 'static, F: Future<Output = Result<T, RunError>> + 'static>(
        &self,
        node: NodeId,
        work: impl FnOnce(Context) -> F,
    ) -> Result<T, RunError> {
        self.world.on(node, work).await.unwrap_or(Err(Undelivered::Lost.into()))
    }

    /// Lets each client do its `work` and waits for all; how long it took, and what came out.
    pub(crate) async fn time<T: 'static, F: Future<Output = Result<T, RunError>> + 'static>(
        &self,
        clients: u32,
        work: impl Fn(Context, u32) -> F,
    ) -> Result<(Duration, Vec<T>), RunError> {
        let start = self.world.now();
        let work = &work;
        let works = (0..clients).map(|client| {
            self.on(NodeId::application(client), move |context| work(context, client))
        });
        let done = try_join_all(works).await?;
        Ok((self.world.now().saturating_sub(start), done))
    }

    /// The processor of a node, for both priorities.
    pub(crate) fn worked(&self, node: NodeId) -> Duration {
        self.world.load(node).processor.iter().sum()
    }

    /// What the arms and surfaces of all disks have moved.
    pub(crate) fn moved(&self) -> Duration {
        let nodes = (0..self.map.disk_nodes()).map(NodeId::disk);
        nodes.map(|node| self.world.load(node).disks.iter().sum::<Duration>()).sum()
    }
}

/// The logical disk as `context` sees it, without the cache.
pub(crate) fn disk_of(context: &Context, map: VolumeMap) -> BlockClient {
    BlockClient::new(context.clone(), map)
}

/// The logical disk as `context` sees it, through the cache.
pub(crate) fn cache_of(context: &Context, map: VolumeMap) -> CacheClient {
    let below: Rc<dyn Stripes> = Rc::new(disk_of(context, map.clone()));
    CacheClient::new(context.clone(), map, below)
}

/// Writes a stripe, and asks again as long as the answer is to retry later.
pub(crate) async fn write_stripe(
    stripes: &dyn Stripes,
    stripe: u64,
    data: bytes::Bytes,
) -> Result<(), RunError> {
    loop {
        match stripes.write(stripe, 0, vec![data.clone()]).await {
            Err(error) if error.is_transient() => {}
            answer => return Ok(answer.map(|_| ())?),
        }
    }
}
