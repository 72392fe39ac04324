//! A formatted volume with its disk nodes.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use blockio::protocol::{BlockIo, Error, Unsynced};
use blockio::{
    BlockClient, BootId, Config, DiskName, DiskNodeError, Geometry, Server, Stripes as _,
    VolumeMap, format_disk,
};
use runtime::disk::Disk;
use runtime::{Context, Epoch, NodeId, VolumeId};

use super::disk::{Kind, Log, MemoryDisk, Started};
use super::machine::World;

pub(crate) const STRIPE: u32 = 16 << 10;

/// Syncs what was written to these stripes in the present lives of their disk nodes.
pub(crate) async fn sync(client: &BlockClient, stripes: Vec<u64>) -> Result<(), Error> {
    let mut written = Vec::new();
    for stripe in stripes {
        // Writing nothing tells the life.
        written.push(Unsynced { stripe, boot_id: client.write(stripe, 0, Vec::new()).await? });
    }
    client.sync(written).await
}

/// Syncs all disk nodes.
pub(crate) async fn sync_all(client: &BlockClient) -> Result<(), Error> {
    sync(client, (0..u64::from(client.map().disk_nodes())).collect()).await
}

pub(crate) struct Volume {
    pub(crate) world: World,
    pub(crate) map: VolumeMap,
    pub(crate) geometry: Geometry,
    /// In order of disk nodes, then disks within the node.
    pub(crate) disks: Vec<MemoryDisk>,
    log: Log,
    servers: RefCell<Vec<Rc<Server>>>,
}

impl Volume {
    /// Formats a volume; no server runs yet.
    pub(crate) fn format(seed: u64, disk_nodes: u32, disks_per_node: u32) -> Self {
        let world = World::new(seed);
        let disk_length = 1 << 20;
        let map =
            VolumeMap::for_disks(VolumeId(7), STRIPE, 1, disk_nodes, disks_per_node, disk_length)
                .expect("a small volume");
        let log = Log::default();
        let new_disk = |index| MemoryDisk::new(world.clock(), index, log.clone(), disk_length);
        let disks: Vec<_> = (0..map.disks().len()).map(new_disk).collect();
        for (disk, index) in disks.iter().cloned().zip(0..) {
            let name = DiskName { disk_node: index / disks_per_node, disk: index % disks_per_node };
            let (map, id) = (map.clone(), index.into());
            world
                .run(
                    async move { format_disk(&disk, &map, name, id, Duration::from_secs(1)).await },
                )
                .expect("the disk is good");
        }
        let geometry = map.geometry();
        Self { world, map, geometry, disks, log, servers: RefCell::default() }
    }

    /// A volume with its servers running.
    pub(crate) fn start(seed: u64, disk_nodes: u32, disks_per_node: u32, config: Config) -> Self {
        let volume = Self::format(seed, disk_nodes, disks_per_node);
        volume.serve(config).expect("the disks are good");
        volume.log.borrow_mut().clear();
        volume
    }

    /// Starts the server of each disk node.
    pub(crate) fn serve(&self, config: Config) -> Result<(), DiskNodeError> {
        let disks_per_node = self.map.disks_of(0).len();
        let mut servers = Vec::new();
        for (index, disks) in (0..).zip(self.disks.chunks(disks_per_node)) {
            let disks = disks.iter().map(|disk| Rc::new(disk.clone()) as Rc<dyn Disk>).collect();
            let context = self.world.context(NodeId::disk(index));
            let map = self.map.clone();
            let server = self.world.run(async move {
                let server = Server::open(&context, &map, disks, config).await?;
                context.serve::<BlockIo>(server.clone());
                Ok::<_, DiskNodeError>(server)
            })?;
            servers.push(server);
        }
        self.servers.replace(servers);
        Ok(())
    }

    /// Cuts the power and starts again, in the next epoch.
    pub(crate) fn crash(&self, epoch: Epoch, rng: &mut runtime::seed::Rng) {
        self.crash_to(Config::default(), epoch, rng);
    }

    /// The same with this configuration afterwards.
    pub(crate) fn crash_to(&self, config: Config, epoch: Epoch, rng: &mut runtime::seed::Rng) {
        self.world.restart();
        self.world.set_epoch(epoch);
        self.disks.iter().for_each(|disk| disk.crash(rng));
        self.serve(config).expect("a crash harms no superblock");
    }

    /// The first disk node ends in order; its life.
    pub(crate) fn hand_over(&self) -> BootId {
        let context = self.world.context(NodeId::disk(0));
        let server = self.servers.borrow()[0].clone();
        self.world.run(async move { server.hand_over(&context).await.expect("the disks are good") })
    }

    /// An application node.
    pub(crate) fn context(&self) -> Context {
        self.world.context(NodeId::application(0))
    }

    pub(crate) fn client(&self) -> BlockClient {
        BlockClient::new(self.context(), self.map.clone())
    }

    /// What a client of this volume is answered.
    pub(crate) fn ask<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        question: impl FnOnce(BlockClient) -> F,
    ) -> T {
        self.world.run(question(self.client()))
    }

    pub(crate) fn set_latency(&self, latency: Duration) {
        self.disks.iter().for_each(|disk| disk.set_latency(latency));
    }

    /// What the disks were asked since the last call.
    pub(crate) fn started(&self) -> Vec<Started> {
        self.log.take()
    }

    /// When each request of this kind began, in ms.
    pub(crate) fn started_ms(&self, kind: Kind) -> Vec<u128> {
        let started = self.started();
        started
            .iter()
            .filter(|event| event.kind == kind)
            .map(|event| event.at.as_millis())
            .collect()
    }
}
