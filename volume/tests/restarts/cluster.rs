//! A small cluster on the emulated machine, whose nodes can die one by one.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use blockio::{Geometry, VolumeMap};
use bytes::Bytes;
use fileio::protocol::*;
use machine_emu::{World, WorldShape};
use meta::memory::MemoryBudget;
use meta::{MetaServer, NodeAudit};
use runtime::protocol::{Call, Undelivered};
use runtime::{Context, Epoch, NodeId, NodeKind, VolumeId};
use volume::new_disks::{self, OverwriteConsent};
use volume::node::{self, ProcessMemory};
use volume::{RootOwner, VolumeError};

pub(crate) const FS_NODES: u32 = 3;
pub(crate) const DISK_NODES: u32 = 2;
/// Application nodes: a client asks from any of them.
pub(crate) const APPLICATIONS: u32 = 2;
pub(crate) const BLOCK: u64 = 4096;
/// Bytes of a stripe, and of a chunk of a file.
pub(crate) const STRIPE_SIZE: u32 = 16 << 10;
/// Bytes that each file-system node may cache: all that a test writes.
const CACHE_BYTES: usize = 8 << 20;
/// Attempts of a request while nodes restart.
const TRIES_MAX: u32 = 2_000;

pub(crate) struct Cluster {
    pub(crate) world: World,
    map: VolumeMap,
    cache_bytes: usize,
    unit: u32,
    epoch: Cell<u64>,
    mounted: Rc<RefCell<BTreeMap<NodeId, Rc<MetaServer>>>>,
}

fn memory() -> ProcessMemory {
    ProcessMemory::unshared(MemoryBudget::new(1 << 20))
}

impl Cluster {
    /// A fresh volume, served.
    pub(crate) fn new(seed: u64) -> Self {
        Self::with_cache(seed, CACHE_BYTES)
    }

    /// The same, with a limit of cached bytes for each file-system node.
    pub(crate) fn with_cache(seed: u64, cache_bytes: usize) -> Self {
        Self::of_shape(seed, cache_bytes, STRIPE_SIZE, 1)
    }

    /// The same, with stripes of `stripe_size` bytes and logical blocks of `unit` blocks.
    pub(crate) fn of_units(seed: u64, stripe_size: u32, unit: u32) -> Self {
        Self::of_shape(seed, CACHE_BYTES, stripe_size, unit)
    }

    fn of_shape(seed: u64, cache_bytes: usize, stripe_size: u32, unit: u32) -> Self {
        let geometry = Geometry { volume: VolumeId(7), stripe_size, fs_nodes: FS_NODES };
        let stripes_per_disk =
            u64::from(FS_NODES) * (12 << 20) / u64::from(stripe_size * DISK_NODES);
        let map = VolumeMap::grid(geometry, DISK_NODES, 1, stripes_per_disk);
        let map = map.expect("a small volume");
        let world = World::new(seed, WorldShape { fs_nodes: FS_NODES, disk_nodes: DISK_NODES });
        (0..DISK_NODES).for_each(|node| {
            world.create_used_disk(&path(node), geometry.disk_length(stripes_per_disk));
        });
        let (epoch, mounted) = (Cell::new(1), Rc::default());
        let cluster = Self { world, map, cache_bytes, unit, epoch, mounted };
        let world = cluster.world.clone();
        world.run(cluster.format()).expect("an empty volume");
        cluster
    }

    async fn format(&self) -> Result<(), VolumeError> {
        let map = self.map.clone();
        let paths = (0..DISK_NODES).map(|node| vec![path(node).into()]).collect();
        let format = |context: Context| async move {
            let consent = OverwriteConsent::of_anything();
            new_disks::format_disks(&context, &map, paths, &consent).await
        };
        self.on(NodeId::disk(0), format).await?;
        for node in disk_nodes() {
            self.serve(node).await?;
        }
        for node in fs_nodes() {
            self.format_again(node).await?;
        }
        self.restart_all().await
    }

    /// Writes the first metadata of a node, though it may have some.
    pub(crate) async fn format_again(&self, node: NodeId) -> Result<(), VolumeError> {
        let map = self.map.clone();
        self.on(node, move |context| node::format_node(context, map, RootOwner::default())).await
    }

    /// Runs `work` as a task of `node`, so that it ends with the node.
    async fn on<F: Future<Output = Result<(), VolumeError>> + 'static>(
        &self,
        node: NodeId,
        work: impl FnOnce(Context) -> F,
    ) -> Result<(), VolumeError> {
        self.world.on(node, work).await.unwrap_or(Err(VolumeError::Node(Undelivered::Lost)))
    }

    /// Brings the layers of one node up, or those below its metadata.
    async fn serve(&self, node: NodeId) -> Result<(), VolumeError> {
        let (map, cache_bytes) = (self.map.clone(), self.cache_bytes);
        match node.kind() {
            NodeKind::Disk(index) => {
                let paths = vec![path(index).into()];
                self.on(node, move |context| async move {
                    node::serve_disks(context, map, Epoch(0), paths).await.map(drop)
                })
                .await
            }
            _ => {
                self.on(node, move |context| async move {
                    node::serve_cache(&context, &map, cache_bytes);
                    Ok(())
                })
                .await
            }
        }
    }

    async fn serve_metadata(&self, node: NodeId) -> Result<(), VolumeError> {
        let (map, mounted) = (self.map.clone(), self.mounted.clone());
        self.on(node, move |context| async move {
            let meta = node::serve_metadata(context, map, memory()).await?;
            mounted.borrow_mut().insert(node, meta);
            Ok(())
        })
        .await
    }

    async fn serve_files(&self, node: NodeId) -> Result<(), VolumeError> {
        let (map, unit) = (self.map.clone(), self.unit);
        let meta = self.mounted.borrow()[&node].clone();
        self.on(node, move |context| async move {
            node::serve_files(&context, &map, &meta, memory()).set_unit(unit);
            Ok(())
        })
        .await
    }

    /// One node, while the others live on.
    async fn serve_alone(&self, node: NodeId) -> Result<(), VolumeError> {
        self.serve(node).await?;
        if matches!(node.kind(), NodeKind::Fs(_)) {
            self.serve_metadata(node).await?;
            self.on(node, node::rejoin).await?;
            self.serve_files(node).await?;
        }
        Ok(())
    }

    fn next_epoch(&self) {
        self.epoch.set(self.epoch.get() + 1);
        self.world.set_epoch(Epoch(self.epoch.get()));
    }

    fn tell_epoch(&self) {
        for node in nodes().chain((0..APPLICATIONS).map(NodeId::application)) {
            self.world.node(node).set_epoch(Epoch(self.epoch.get()));
        }
    }

    /// Starts all nodes again.
    pub(crate) async fn restart_all(&self) -> Result<(), VolumeError> {
        self.next_epoch();
        nodes().for_each(|node| drop(self.world.restart(node)));
        self.tell_epoch();
        for node in disk_nodes().chain(fs_nodes()) {
            self.serve(node).await?;
        }
        for node in fs_nodes() {
            self.serve_metadata(node).await?;
        }
        for node in fs_nodes() {
            self.on(node, node::finish_intents).await?;
        }
        for node in fs_nodes() {
            self.on(node, node::end_recovery).await?;
        }
        for node in fs_nodes() {
            self.serve_files(node).await?;
        }
        Ok(())
    }

    /// Starts one node again while the others live on, after the power of its disks was cut. Asks
    /// again if a node that it needs is away.
    pub(crate) async fn restart(&self, node: NodeId) {
        self.world.crash(node);
        for _ in 0..TRIES_MAX {
            self.next_epoch();
            self.world.restart(node);
            self.tell_epoch();
            match self.serve_alone(node).await {
                Ok(()) => return,
                Err(error) => println!("{node} starts once more: {error}"),
            }
            self.pass(Duration::from_millis(10)).await;
        }
        panic!("{node} cannot be started");
    }

    pub(crate) async fn pass(&self, duration: Duration) {
        self.application(0).sleep(duration).await;
    }

    pub(crate) fn application(&self, index: u32) -> Context {
        self.world.context(NodeId::application(index))
    }

    /// What a name in the root names.
    pub(crate) async fn find(&self, name: &Name) -> Option<Handle> {
        self.find_in(ROOT, name).await
    }

    /// What a name names.
    pub(crate) async fn find_in(&self, directory: Handle, name: &Name) -> Option<Handle> {
        let lookup = Lookup { who: Credentials::root(), directory, name: name.clone() };
        match self.ask_for(lookup).await {
            Ok(found) => Some(Handle { ino: found.ino, generation: found.generation }),
            Err(Error::NotFound {}) => None,
            Err(error) => panic!("{name:?}: {error}"),
        }
    }

    /// Asks until it is done.
    pub(crate) async fn ask<C>(&self, call: C) -> C::Reply
    where
        C: Call<Protocol = FileIo> + Clone + Debug,
    {
        let told = format!("{call:?}");
        self.ask_for(call).await.unwrap_or_else(|error| panic!("{told}: {error}"))
    }

    /// Asks until it is done or refused.
    pub(crate) async fn ask_for<C>(&self, call: C) -> Result<C::Reply, Error>
    where
        C: Call<Protocol = FileIo> + Clone + Debug,
    {
        let mut last = None;
        for _ in 0..TRIES_MAX {
            match fileio::client::ask(&self.application(0), call.clone()).await {
                // Damage is to be over once the nodes are there again and have looked.
                Err(error @ (Error::Undelivered { .. } | Error::Damaged {})) => last = Some(error),
                answer => return answer,
            }
            self.pass(Duration::from_millis(10)).await;
        }
        panic!("asked in vain: {call:?}: {last:?}");
    }

    /// A file whose inode is on the node `node`.
    pub(crate) async fn create(&self, node: NodeId) -> Handle {
        self.create_from(node, 0).await
    }

    /// The same; two calls with numbers that are far apart make two files.
    pub(crate) async fn create_from(&self, node: NodeId, first: u64) -> Handle {
        let (call, name) = name_at(node, first);
        self.make(call, &name).await
    }

    /// The same on a volume that may be full.
    pub(crate) async fn try_create_from(&self, node: NodeId, first: u64) -> Result<Handle, Error> {
        let (call, name) = name_at(node, first);
        let made = self.ask_for(create(call, &name)).await?.attributes;
        Ok(Handle { ino: made.ino, generation: made.generation })
    }

    /// Removes a file that was made so.
    pub(crate) async fn remove_from(&self, node: NodeId, first: u64) {
        let (CallId { number, .. }, name) = name_at(node, first);
        let (who, call) = (Credentials::root(), CallId { client: 2, number });
        self.ask(Remove { who, call, directory: ROOT, name, durable: true }).await;
    }

    /// A new file in the root.
    pub(crate) async fn make(&self, call: CallId, name: &Name) -> Handle {
        let made = self.ask(create(call, name)).await.attributes;
        Handle { ino: made.ino, generation: made.generation }
    }

    /// Fills blocks from `first` on with these numbers; returns the write verifier.
    pub(crate) async fn write(&self, file: Handle, first: u64, numbers: &[u64]) -> u64 {
        let data: Vec<u8> = numbers
            .iter()
            .flat_map(|number| number.to_le_bytes().repeat(BLOCK as usize / 8))
            .collect();
        let (who, offset, data) = (Credentials::root(), first * BLOCK, vec![Bytes::from(data)]);
        self.ask(Write { who, file, offset, data, durable: false }).await.write_verifier
    }

    /// Commits; returns the write verifier.
    pub(crate) async fn commit(&self, file: Handle) -> u64 {
        self.ask(Commit { file }).await.write_verifier
    }

    /// The metadata of all nodes together, read to its last byte.
    pub(crate) async fn audit(&self) -> NodeAudit {
        let mounted = self.mounted.borrow().clone();
        let mut all = NodeAudit::default();
        for meta in mounted.values() {
            all.join(meta.audit().await.expect("whole metadata"));
        }
        all
    }

    /// The bytes that the file has.
    pub(crate) async fn size(&self, file: Handle) -> u64 {
        self.ask(GetAttributes { file }).await.size
    }

    /// The numbers of `count` blocks from `first` on; what is not there is 0.
    pub(crate) async fn read(&self, file: Handle, first: u64, count: u64) -> Vec<u64> {
        let (who, offset, length) = (Credentials::root(), first * BLOCK, (count * BLOCK) as u32);
        let mut data = self.ask(Read { who, file, offset, length }).await.data.concat();
        data.resize(length as usize, 0);
        let number = |block: &[u8]| {
            let number = u64::from_le_bytes(std::array::from_fn(|i| block[i]));
            assert!(block.chunks(8).all(|word| word == number.to_le_bytes()), "a block is torn");
            number
        };
        data.chunks(BLOCK as usize).map(number).collect()
    }

    /// The power of everything goes, and the volume is opened again.
    pub(crate) async fn power_cut(&self) {
        self.world.crash_everything();
        self.restart_all().await.expect("the volume is whole");
    }
}

fn path(node: u32) -> String {
    format!("disk-{node}")
}

fn disk_nodes() -> impl Iterator<Item = NodeId> {
    (0..DISK_NODES).map(NodeId::disk)
}

fn fs_nodes() -> impl Iterator<Item = NodeId> {
    (0..FS_NODES).map(NodeId::fs)
}

pub(crate) fn nodes() -> impl Iterator<Item = NodeId> {
    fs_nodes().chain(disk_nodes())
}

/// The first name from a number on whose inode is on the node.
fn name_at(node: NodeId, first: u64) -> (CallId, Name) {
    let named = (first..).map(|number| {
        let name = Name::new(format!("{node} {number}").into_bytes()).expect("a name");
        (CallId { client: 1, number }, name)
    });
    let is_there = |(call, name): &(CallId, Name)| {
        fileio::hash::owner(create(*call, name).route(), FS_NODES) == node
    };
    named.into_iter().find(is_there).expect("some name is on each node")
}

fn create(call: CallId, name: &Name) -> Create {
    Create {
        who: Credentials::root(),
        call,
        directory: ROOT,
        name: name.clone(),
        existing: Existing::Refuse {},
        change: Change::default(),
        durable: true,
    }
}
