//! The caches of a few emulated nodes, over a logical disk in memory that can be slow, broken and
//! dishonest.

#![allow(dead_code, reason = "each test program uses its part of the kit")]

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use blockio::{Answer, BootId, DiskName, Geometry, Stripes, VolumeMap};
use bytes::Bytes;
use cache::protocol::{Cache, Error, Unsynced};
use cache::{CacheClient, Config, Server};
use futures::FutureExt as _;
use futures::future::ready;
use machine_emu::WorldShape;
use runtime::buffer::Pool;
use runtime::{Context, NodeId, VolumeId};

/// Three nodes, small stripes.
pub(crate) fn geometry() -> Geometry {
    Geometry { volume: VolumeId(1), stripe_size: 16384, fs_nodes: 3 }
}

/// Stripes of the logical disk.
pub(crate) const STRIPES: u64 = 1000;

fn map_of(setup: &Setup) -> VolumeMap {
    VolumeMap::grid(setup.geometry, 1, 1, setup.stripes).expect("a small volume")
}

/// Syncs what was written to these stripes in the present lives of their caches.
pub(crate) async fn sync(client: &CacheClient, stripes: Vec<u64>) -> Result<(), Error> {
    let mut written = Vec::new();
    for stripe in stripes {
        // Writing nothing tells the life.
        written.push(Unsynced { stripe, boot_id: client.write(stripe, 0, Vec::new()).await? });
    }
    client.sync(written).await
}

/// What a world is made of.
pub(crate) struct Setup {
    pub(crate) geometry: Geometry,
    pub(crate) stripes: u64,
    pub(crate) lines_per_node: usize,
    pub(crate) pool_bytes: usize,
    pub(crate) seed: u64,
}

impl Default for Setup {
    fn default() -> Self {
        let pool_bytes = 64 << 20;
        Self { geometry: geometry(), stripes: STRIPES, lines_per_node: 100, pool_bytes, seed: 1 }
    }
}

/// The caches of all nodes over one memory disk.
pub(crate) struct World {
    machine: machine_emu::World,
    map: VolumeMap,
    config: Config,
    pub(crate) disk: Rc<MemoryDisk>,
    /// Asks from an application node.
    pub(crate) client: CacheClient,
}

impl World {
    pub(crate) fn new(setup: &Setup) -> Self {
        let (geometry, map) = (setup.geometry, map_of(setup));
        let shape = WorldShape { fs_nodes: geometry.fs_nodes, disk_nodes: 1 };
        let machine = machine_emu::World::new(setup.seed, shape);
        machine.set_pool_limit_bytes(setup.pool_bytes);
        let asker = machine.context(NodeId::application(0));
        let disk = Rc::new(MemoryDisk::new(asker.clone(), map.clone()));
        let below: Rc<dyn Stripes> = Rc::new(Below(disk.clone()));
        let stripe_size = geometry.stripe_size as usize;
        let config = Config { node_budget_bytes: setup.lines_per_node * stripe_size };
        let client = CacheClient::new(asker, map.clone(), below);
        let world = Self { machine, map, config, disk, client };
        // A fresh incarnation has a pool with the limit that was set above.
        (0..geometry.fs_nodes).for_each(|index| world.restart(index));
        world
    }

    /// A file-system node begins a new life, with nothing in its cache.
    pub(crate) fn restart(&self, index: u32) {
        let context = self.machine.restart(NodeId::fs(index));
        let below = Rc::new(Below(self.disk.clone()));
        let server = Server::new(context.clone(), self.map.clone(), self.config, below);
        context.serve::<Cache>(server);
    }

    /// How long each step of a node takes.
    pub(crate) fn slow(&self, node: NodeId, step: Duration) {
        self.machine.node(node).slow(1, step);
    }

    /// The context of an application node.
    pub(crate) fn context(&self) -> Context {
        self.machine.context(NodeId::application(0))
    }

    /// Asks from a file-system node: stripes that are cached there come without a message.
    pub(crate) fn client_at(&self, index: u32) -> CacheClient {
        let context = self.machine.context(NodeId::fs(index));
        CacheClient::new(context, self.map.clone(), Rc::new(Below(self.disk.clone())))
    }

    /// The buffers of a file-system node.
    pub(crate) fn pool(&self, index: u32) -> Pool {
        self.machine.context(NodeId::fs(index)).pool().clone()
    }

    /// Runs `future` to its end; time passes when everybody waits for it.
    pub(crate) fn run<F: Future>(&self, future: F) -> F::Output {
        self.machine.run(future)
    }

    /// Runs until no task waits for time any more; returns how long that took.
    pub(crate) fn run_out(&self) -> Duration {
        let start = self.machine.now();
        self.machine.run_until_idle();
        self.machine.now().saturating_sub(start)
    }
}

/// The error of a disk that was told to fail.
pub(crate) const FAILURE: Error = Error::DiskFailed { disk: 0 };

/// All stripes in memory. A stripe never written holds [`old_byte`]s.
pub(crate) struct MemoryDisk {
    context: Context,
    map: VolumeMap,
    content: RefCell<BTreeMap<u64, Vec<u8>>>,
    /// What of it survives a restart of the disk node.
    flushed: RefCell<BTreeMap<u64, Vec<u8>>>,
    boot_id: Cell<BootId>,
    /// Writes under way: two must never overlap.
    writing: RefCell<Vec<(u64, Range<u32>)>>,
    pub(crate) reads: Cell<u64>,
    pub(crate) read_bytes: Cell<u64>,
    /// If set: what each read takes of the disk's time, and for each block.
    pub(crate) costs: Cell<Option<(Duration, Duration)>>,
    /// If set: what each write takes of the disk's time.
    pub(crate) write_cost: Cell<Option<Duration>>,
    /// When the disk has done all that it was asked for so far.
    free_at: Cell<Duration>,
    pub(crate) writes: Cell<u64>,
    pub(crate) written_bytes: Cell<u64>,
    pub(crate) syncs: RefCell<Vec<Vec<u64>>>,
    /// Each request takes up to this long.
    pub(crate) delay: Cell<Duration>,
    /// Reads or writes that fail, in percent.
    pub(crate) failing_percent: Cell<u64>,
    /// What writes fail with.
    pub(crate) failure: Cell<Error>,
    /// Reads that return a wrong bit, in percent.
    pub(crate) damaging_percent: Cell<u64>,
    /// A byte of a stripe that cannot be read.
    pub(crate) bad_sector: Cell<Option<(u64, usize)>>,
}

/// What the disk holds where nothing was written.
pub(crate) fn old_byte(stripe: u64, offset: usize) -> u8 {
    (stripe * 31 + offset as u64 * 7 + (offset as u64 >> 8)) as u8
}

impl MemoryDisk {
    fn new(context: Context, map: VolumeMap) -> Self {
        Self {
            context,
            map,
            content: RefCell::default(),
            flushed: RefCell::default(),
            boot_id: Cell::new(100),
            writing: RefCell::default(),
            reads: Cell::default(),
            read_bytes: Cell::default(),
            costs: Cell::default(),
            write_cost: Cell::default(),
            free_at: Cell::default(),
            writes: Cell::default(),
            written_bytes: Cell::default(),
            syncs: RefCell::default(),
            delay: Cell::new(Duration::from_millis(2)),
            failing_percent: Cell::default(),
            failure: Cell::new(FAILURE),
            damaging_percent: Cell::default(),
            bad_sector: Cell::default(),
        }
    }

    /// What the disk holds of a stripe.
    pub(crate) fn content(&self, stripe: u64) -> Vec<u8> {
        let known = self.content.borrow().get(&stripe).cloned();
        let size = self.map.geometry().stripe_size as usize;
        known.unwrap_or_else(|| (0..size).map(|offset| old_byte(stripe, offset)).collect())
    }

    /// The disk node restarts, and what was not flushed is gone.
    pub(crate) fn restart(&self) {
        *self.content.borrow_mut() = self.flushed.borrow().clone();
        self.boot_id.set(self.boot_id.get() + 1);
    }

    fn happens(&self, percent: &Cell<u64>) -> bool {
        self.context.random() % 100 < percent.get()
    }

    async fn pass_time(&self) {
        let delay = self.delay.get();
        let part = self.context.random() % (delay.as_micros() as u64 / 2 + 1);
        self.context.sleep(delay / 2 + Duration::from_micros(part)).await;
    }

    /// One after the other, as one head or one queue does them.
    async fn take_turn(&self, cost: Duration) {
        let start = self.free_at.get().max(self.context.now());
        self.free_at.set(start + cost);
        self.context.sleep(self.free_at.get().saturating_sub(self.context.now())).await;
    }

    async fn do_read(self: Rc<Self>, stripe: u64, range: Range<usize>) -> Result<Bytes, Error> {
        self.reads.set(self.reads.get() + 1);
        self.read_bytes.set(self.read_bytes.get() + range.len() as u64);
        match self.costs.get() {
            None => self.pass_time().await,
            Some((fixed, per_block)) => {
                let blocks = (range.len() / 4096) as u32;
                self.take_turn(fixed + per_block * blocks).await;
            }
        }
        if self.happens(&self.failing_percent) {
            return Err(FAILURE);
        }
        if self.bad_sector.get().is_some_and(|(at, byte)| at == stripe && range.contains(&byte)) {
            return Err(Error::Unreadable { disk: 0, offset: 0 });
        }
        let mut bytes: Vec<u8> = match self.content.borrow().get(&stripe) {
            Some(known) => known[range].to_vec(),
            None => range.map(|offset| old_byte(stripe, offset)).collect(),
        };
        if self.happens(&self.damaging_percent) {
            let at = self.context.random() as usize % bytes.len();
            bytes[at] ^= 4;
        }
        Ok(bytes.into())
    }

    async fn do_write(self: Rc<Self>, stripe: u64, at: u32, data: Bytes) -> Result<BootId, Error> {
        self.writes.set(self.writes.get() + 1);
        self.written_bytes.set(self.written_bytes.get() + data.len() as u64);
        let range = at..at + data.len() as u32;
        for (other, busy) in self.writing.borrow().iter() {
            let overlaps = busy.start < range.end && range.start < busy.end;
            assert!(*other != stripe || !overlaps, "two writes of the same bytes at once");
        }
        self.writing.borrow_mut().push((stripe, range.clone()));
        match self.write_cost.get() {
            None => self.pass_time().await,
            Some(cost) => self.take_turn(cost).await,
        }
        self.writing.borrow_mut().retain(|busy| *busy != (stripe, range.clone()));
        let fails = self.happens(&self.failing_percent);
        // A failed write may have been done nevertheless.
        if !fails || self.context.random().is_multiple_of(2) {
            let mut content = self.content(stripe);
            content[range.start as usize..range.end as usize].copy_from_slice(&data);
            self.content.borrow_mut().insert(stripe, content);
        }
        if fails { Err(self.failure.get()) } else { Ok(self.boot_id.get()) }
    }
}

/// The disk as the cache sees it.
struct Below(Rc<MemoryDisk>);

impl Stripes for Below {
    fn map(&self) -> VolumeMap {
        self.0.map.clone()
    }
    fn read(&self, stripe: u64, offset: u32, length: u32, expect: Vec<u32>) -> Answer<Bytes> {
        assert!(expect.is_empty(), "the cache compares checksums itself");
        self.0.clone().do_read(stripe, offset as usize..(offset + length) as usize).boxed_local()
    }
    fn write(&self, stripe: u64, offset: u32, data: Vec<Bytes>) -> Answer<BootId> {
        self.0.clone().do_write(stripe, offset, data.concat().into()).boxed_local()
    }
    fn write_zeros(&self, _: u64, _: u32, _: u32) -> Answer<BootId> {
        unreachable!("the cache keeps zeros as bytes")
    }
    fn sync(&self, written: Vec<Unsynced>) -> Answer<()> {
        let disk = &self.0;
        disk.syncs.borrow_mut().push(written.iter().map(|unsynced| unsynced.stripe).collect());
        *disk.flushed.borrow_mut() = disk.content.borrow().clone();
        let boot_id = disk.boot_id.get();
        let lost = written.into_iter().find(|unsynced| unsynced.boot_id != boot_id);
        let synced =
            lost.map_or(Ok(()), |lost| Err(Error::LostWrites { stripe: lost.stripe, boot_id }));
        ready(synced).boxed_local()
    }
    fn forget(&self, _: u64, _: u32, _: u32) -> Answer<()> {
        unreachable!("a disk has nothing to forget")
    }
    fn read_slot(&self, disk: DiskName, slot: u32) -> Answer<Bytes> {
        ready(Ok(Bytes::from(format!("slot {slot} of disk {disk}")))).boxed_local()
    }
    fn write_slot(&self, _: DiskName, _: u32, _: Bytes) -> Answer<()> {
        ready(Ok(())).boxed_local()
    }
}
