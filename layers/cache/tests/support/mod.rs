//! A machine of one thread with virtual time, and disks in memory that can be slow, broken and
//! dishonest.

#![allow(dead_code, reason = "each test program uses its part of the kit")]

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use blockio::{Answer, Geometry, Stripes};
use bytes::Bytes;
use cache::protocol::{Cache, Error};
use cache::{CacheClient, Config, Server};
use futures::FutureExt as _;
use futures::channel::oneshot;
use futures::executor::{LocalPool, LocalSpawner};
use futures::future::{LocalBoxFuture, ready};
use futures::task::LocalSpawnExt as _;
use runtime::buffer::Pool;
use runtime::disk::Disk;
use runtime::mail::Envelope;
use runtime::net::{Address, Listener};
use runtime::seed::Rng;
use runtime::{Context, Epoch, Host, Machine, NodeId, Undelivered, VolumeId};

/// Three nodes, small stripes.
pub(crate) fn geometry() -> Geometry {
    Geometry {
        volume: VolumeId(1),
        stripe_size: 16384,
        fs_nodes: 3,
        disk_nodes: 1,
        disks_per_node: 1,
        stripes_per_disk: 1000,
    }
}

/// What a world is made of.
pub(crate) struct Setup {
    pub(crate) geometry: Geometry,
    pub(crate) lines_per_node: usize,
    pub(crate) pool_bytes: usize,
    pub(crate) seed: u64,
}

impl Default for Setup {
    fn default() -> Self {
        Self { geometry: geometry(), lines_per_node: 100, pool_bytes: 64 << 20, seed: 1 }
    }
}

/// The caches of all nodes over one memory disk.
pub(crate) struct World {
    executor: RefCell<LocalPool>,
    machine: Rc<OneThread>,
    pub(crate) disk: Rc<MemoryDisk>,
    pub(crate) client: CacheClient,
}

impl World {
    pub(crate) fn new(setup: &Setup) -> Self {
        let executor = LocalPool::new();
        let geometry = setup.geometry;
        let machine = Rc::new(OneThread {
            hosts: RefCell::default(),
            spawner: executor.spawner(),
            now: Cell::new(Duration::from_secs(1000)),
            timers: RefCell::default(),
            timer_count: Cell::new(0),
            rng: RefCell::new(Rng::new(setup.seed)),
            pool: Pool::new(setup.pool_bytes),
            fs_nodes: geometry.fs_nodes,
        });
        let asker = Context::new(NodeId::application(0), machine.clone());
        let disk = Rc::new(MemoryDisk::new(asker.clone(), geometry));
        let below: Rc<dyn Stripes> = Rc::new(Below(disk.clone()));
        let stripe_size = geometry.stripe_size as usize;
        let config = Config { node_budget_bytes: setup.lines_per_node * stripe_size };
        for index in 0..geometry.fs_nodes {
            let node = NodeId::fs(index);
            machine.hosts.borrow_mut().insert(node, Host::new(node, Epoch(1)));
            let context = Context::new(node, machine.clone());
            let server = Server::new(context.clone(), geometry, config, below.clone());
            context.serve::<Cache>(server);
        }
        let client = CacheClient::new(asker, geometry, below);
        Self { executor: RefCell::new(executor), machine, disk, client }
    }

    /// The context of an application node.
    pub(crate) fn context(&self) -> Context {
        Context::new(NodeId::application(0), self.machine.clone())
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.machine.pool
    }

    /// Runs `future` to its end; time passes when everybody waits for it.
    pub(crate) fn run<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        let result = Rc::new(Cell::new(None));
        let slot = result.clone();
        let task = future.map(move |value| slot.set(Some(value)));
        self.machine.spawner.spawn_local(task).expect("the executor lives");
        loop {
            self.executor.borrow_mut().run_until_stalled();
            if let Some(value) = result.take() {
                return value;
            }
            assert!(self.machine.advance(), "everybody waits for ever");
        }
    }

    /// Runs until nobody waits for time any more; returns how long that took.
    pub(crate) fn run_out(&self) -> Duration {
        let start = self.machine.now.get();
        loop {
            self.executor.borrow_mut().run_until_stalled();
            if !self.machine.advance() {
                return self.machine.now.get().saturating_sub(start);
            }
        }
    }
}

struct OneThread {
    hosts: RefCell<BTreeMap<NodeId, Rc<Host>>>,
    spawner: LocalSpawner,
    now: Cell<Duration>,
    timers: RefCell<BTreeMap<(Duration, u64), oneshot::Sender<()>>>,
    timer_count: Cell<u64>,
    rng: RefCell<Rng>,
    pool: Pool,
    fs_nodes: u32,
}

impl OneThread {
    /// Lets time pass until the next timer; false if there is none.
    fn advance(&self) -> bool {
        let Some(((time, _), timer)) = self.timers.borrow_mut().pop_first() else { return false };
        self.now.set(time);
        let _ = timer.send(());
        true
    }
}

impl Machine for OneThread {
    fn fs_nodes(&self) -> u32 {
        self.fs_nodes
    }
    fn disk_nodes(&self) -> u32 {
        1
    }
    fn epoch(&self) -> Epoch {
        Epoch(1)
    }
    fn host(&self, node: NodeId) -> Option<Rc<Host>> {
        self.hosts.borrow().get(&node).cloned()
    }
    fn send(&self, envelope: Envelope) {
        envelope.message.refuse(Undelivered::Unreachable);
    }
    fn now(&self, _: NodeId) -> Duration {
        self.now.get()
    }
    fn unix_time(&self, _: NodeId) -> Duration {
        self.now.get()
    }
    fn sleep(&self, _: NodeId, duration: Duration) -> LocalBoxFuture<'static, ()> {
        let (timer, rings) = oneshot::channel();
        self.timer_count.set(self.timer_count.get() + 1);
        let key = (self.now.get() + duration, self.timer_count.get());
        self.timers.borrow_mut().insert(key, timer);
        rings.map(|_| ()).boxed_local()
    }
    fn random(&self, _: NodeId) -> u64 {
        self.rng.borrow_mut().bits()
    }
    fn task(&self, _: NodeId, task: LocalBoxFuture<'static, ()>) {
        self.spawner.spawn_local(task).expect("the executor lives");
    }
    fn idle(&self, _: NodeId) -> LocalBoxFuture<'static, ()> {
        ready(()).boxed_local()
    }
    fn pool(&self) -> &Pool {
        &self.pool
    }
    fn open_disk(&self, _: NodeId, _: &str) -> LocalBoxFuture<'static, io::Result<Rc<dyn Disk>>> {
        ready(Err(io::ErrorKind::Unsupported.into())).boxed_local()
    }
    fn listen(
        &self,
        _: NodeId,
        _: &Address,
    ) -> LocalBoxFuture<'static, io::Result<Box<dyn Listener>>> {
        ready(Err(io::ErrorKind::Unsupported.into())).boxed_local()
    }
}

/// The error of a disk that was told to fail.
pub(crate) const FAILURE: Error = Error::DiskFailed { disk: 0 };

/// All stripes in memory. A stripe never written holds [`old_byte`]s.
pub(crate) struct MemoryDisk {
    context: Context,
    geometry: Geometry,
    content: RefCell<BTreeMap<u64, Vec<u8>>>,
    /// Writes under way: two must never overlap.
    writing: RefCell<Vec<(u64, Range<u32>)>>,
    pub(crate) reads: Cell<u64>,
    pub(crate) writes: Cell<u64>,
    pub(crate) written_bytes: Cell<u64>,
    pub(crate) syncs: RefCell<Vec<Vec<u64>>>,
    /// Each request takes up to this long.
    pub(crate) delay: Cell<Duration>,
    /// Of 100 reads or writes so many fail.
    pub(crate) failing_percent: Cell<u64>,
    /// Of 100 reads so many return a wrong bit.
    pub(crate) damaging_percent: Cell<u64>,
}

/// What the disk holds where nothing was written.
pub(crate) fn old_byte(stripe: u64, offset: usize) -> u8 {
    (stripe * 31 + offset as u64 * 7 + (offset as u64 >> 8)) as u8
}

impl MemoryDisk {
    fn new(context: Context, geometry: Geometry) -> Self {
        Self {
            context,
            geometry,
            content: RefCell::default(),
            writing: RefCell::default(),
            reads: Cell::default(),
            writes: Cell::default(),
            written_bytes: Cell::default(),
            syncs: RefCell::default(),
            delay: Cell::new(Duration::from_millis(2)),
            failing_percent: Cell::default(),
            damaging_percent: Cell::default(),
        }
    }

    /// What the disk holds of a stripe.
    pub(crate) fn content(&self, stripe: u64) -> Vec<u8> {
        let known = self.content.borrow().get(&stripe).cloned();
        let size = self.geometry.stripe_size as usize;
        known.unwrap_or_else(|| (0..size).map(|offset| old_byte(stripe, offset)).collect())
    }

    fn happens(&self, percent: &Cell<u64>) -> bool {
        self.context.random() % 100 < percent.get()
    }

    async fn pass_time(&self) {
        let delay = self.delay.get();
        let part = self.context.random() % (delay.as_micros() as u64 / 2 + 1);
        self.context.sleep(delay / 2 + Duration::from_micros(part)).await;
    }

    async fn do_read(self: Rc<Self>, stripe: u64, range: Range<usize>) -> Result<Bytes, Error> {
        self.reads.set(self.reads.get() + 1);
        self.pass_time().await;
        if self.happens(&self.failing_percent) {
            return Err(FAILURE);
        }
        let mut bytes = self.content(stripe)[range].to_vec();
        if self.happens(&self.damaging_percent) {
            let at = self.context.random() as usize % bytes.len();
            bytes[at] ^= 4;
        }
        Ok(bytes.into())
    }

    async fn do_write(self: Rc<Self>, stripe: u64, at: u32, data: Bytes) -> Result<(), Error> {
        self.writes.set(self.writes.get() + 1);
        self.written_bytes.set(self.written_bytes.get() + data.len() as u64);
        let range = at..at + data.len() as u32;
        for (other, busy) in self.writing.borrow().iter() {
            let overlaps = busy.start < range.end && range.start < busy.end;
            assert!(*other != stripe || !overlaps, "two writes of the same bytes at once");
        }
        self.writing.borrow_mut().push((stripe, range.clone()));
        self.pass_time().await;
        self.writing.borrow_mut().retain(|busy| *busy != (stripe, range.clone()));
        let fails = self.happens(&self.failing_percent);
        // A failed write may have been done nevertheless.
        if !fails || self.context.random().is_multiple_of(2) {
            let mut content = self.content(stripe);
            content[range.start as usize..range.end as usize].copy_from_slice(&data);
            self.content.borrow_mut().insert(stripe, content);
        }
        if fails { Err(FAILURE) } else { Ok(()) }
    }
}

/// The disk as the cache sees it.
struct Below(Rc<MemoryDisk>);

impl Stripes for Below {
    fn geometry(&self) -> Geometry {
        self.0.geometry
    }
    fn read(&self, stripe: u64, offset: u32, length: u32, expect: Vec<u32>) -> Answer<Bytes> {
        assert!(expect.is_empty(), "the cache compares checksums itself");
        self.0.clone().do_read(stripe, offset as usize..(offset + length) as usize).boxed_local()
    }
    fn write(&self, stripe: u64, offset: u32, data: Vec<Bytes>) -> Answer<()> {
        self.0.clone().do_write(stripe, offset, data.concat().into()).boxed_local()
    }
    fn write_zeros(&self, _: u64, _: u32, _: u32) -> Answer<()> {
        unreachable!("the cache keeps zeros as bytes")
    }
    fn sync(&self, stripes: Vec<u64>) -> Answer<()> {
        self.0.syncs.borrow_mut().push(stripes);
        ready(Ok(())).boxed_local()
    }
    fn forget(&self, _: u64, _: u32, _: u32) -> Answer<()> {
        unreachable!("a disk has nothing to forget")
    }
    fn read_slot(&self, disk: u32, slot: u32) -> Answer<Bytes> {
        ready(Ok(Bytes::from(format!("slot {slot} of disk {disk}")))).boxed_local()
    }
    fn write_slot(&self, _: u32, _: u32, _: Bytes) -> Answer<()> {
        ready(Ok(())).boxed_local()
    }
}
