//! A small volume on the emulated machine, brought up by the product's own code.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;

use blockio::DiskName;
use fileio::client::ask;
use fileio::protocol::{CallId, Error, FileIo};
use futures::future::join_all;
use machine_emu::World;
use meta::memory::MemoryBudget;
use meta::{MetaServer, NodeAudit};
use runtime::{Call, Context, Epoch, NodeId, VolumeId};
use volume::new_disks::{self, OverwriteConsent};
use volume::node::{self, ProcessMemory};
use volume::{Geometry, RootOwner, VolumeError, VolumeMap};

const DISK: &str = "disk";

/// The machine and what is on its one disk.
pub(crate) struct Volume {
    pub(crate) world: World,
    map: VolumeMap,
    epoch: Cell<u64>,
    /// The metadata of all nodes, to check it.
    mounted: Rc<RefCell<BTreeMap<NodeId, Rc<MetaServer>>>>,
    calls: Cell<u64>,
}

fn memory() -> ProcessMemory {
    ProcessMemory::unshared(MemoryBudget::new(1 << 20))
}

impl Volume {
    /// A fresh volume, served by all nodes of the world.
    pub(crate) async fn format(world: &World, fs_nodes: u32) -> Self {
        let geometry = Geometry { volume: VolumeId(0x51ED), stripe_size: 16 << 10, fs_nodes };
        let map = VolumeMap::grid(geometry, 1, 1, u64::from(fs_nodes) * 512);
        let map = map.expect("a small volume");
        world.create_disk(DISK, map.disk_length(DiskName::default()));
        let volume = Self {
            world: world.clone(),
            map: map.clone(),
            epoch: Cell::new(1),
            mounted: Rc::default(),
            calls: Cell::default(),
        };
        let disks = map.clone();
        let disk = move |context: Context| async move {
            let (paths, consent) = (vec![vec![DISK.into()]], OverwriteConsent::of_anything());
            new_disks::format_disks(&context, &disks, paths, &consent).await?;
            node::serve_disks(context, disks, Epoch(0), vec![DISK.into()]).await.map(drop)
        };
        volume.on(NodeId::disk(0), disk).await;
        let format = |context| node::format_node(context, map.clone(), RootOwner::default());
        volume.on_all(format).await;
        volume.restart().await;
        volume
    }

    /// Starts all nodes again and brings them up.
    pub(crate) async fn restart(&self) {
        self.mounted.borrow_mut().clear();
        self.epoch.set(self.epoch.get() + 1);
        let epoch = Epoch(self.epoch.get());
        self.world.set_epoch(epoch);
        self.world.node(NodeId::application(0)).set_epoch(epoch);
        self.world.restart(NodeId::disk(0));
        let fs_nodes = 0..self.map.geometry().fs_nodes;
        fs_nodes.map(NodeId::fs).for_each(|node| drop(self.world.restart(node)));
        let map = &self.map;
        let disks = map.clone();
        let disk = move |context| async move {
            node::serve_disks(context, disks, Epoch(0), vec![DISK.into()]).await.map(drop)
        };
        self.on(NodeId::disk(0), disk).await;
        self.on_all(|context| {
            node::serve_cache(&context, map, 4 << 20);
            async { Ok(()) }
        })
        .await;
        self.on_all(|context| {
            let (mounted, map) = (self.mounted.clone(), map.clone());
            async move {
                let node = context.node();
                let meta = node::serve_metadata(context, map, memory()).await?;
                mounted.borrow_mut().insert(node, meta);
                Ok(())
            }
        })
        .await;
        self.on_all(node::finish_intents).await;
        self.on_all(node::end_recovery).await;
        self.on_all(|context| {
            let meta = self.mounted.borrow()[&context.node()].clone();
            node::serve_files(&context, map, &meta, memory());
            async { Ok(()) }
        })
        .await;
    }

    async fn on_all<F: Future<Output = Result<(), VolumeError>> + 'static>(
        &self,
        work: impl Fn(Context) -> F,
    ) {
        let nodes = (0..self.map.geometry().fs_nodes).map(NodeId::fs);
        join_all(nodes.map(|node| self.on(node, &work))).await;
    }

    async fn on<F: Future<Output = Result<(), VolumeError>> + 'static>(
        &self,
        node: NodeId,
        work: impl FnOnce(Context) -> F,
    ) {
        self.world.on(node, work).await.expect("it lives").unwrap();
    }

    /// Where the client is.
    pub(crate) fn client(&self) -> Context {
        self.world.context(NodeId::application(0))
    }

    /// The id of a new call.
    pub(crate) fn call_id(&self) -> CallId {
        self.calls.set(self.calls.get() + 1);
        CallId { client: 1, number: self.calls.get() }
    }

    /// Asks as a client.
    pub(crate) async fn ask<C: Call<Protocol = FileIo> + Clone>(
        &self,
        call: C,
    ) -> Result<C::Reply, Error> {
        ask(&self.client(), call).await
    }

    /// What all nodes hold.
    pub(crate) async fn audit(&self) -> NodeAudit {
        let mounted = self.mounted.borrow().clone();
        let mut all = NodeAudit::default();
        for meta in mounted.values() {
            all.join(meta.audit().await.unwrap());
        }
        all
    }
}
