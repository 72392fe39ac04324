//! Nodes on one thread, in virtual time.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::time::Duration;

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
use runtime::{Context, Epoch, Host, Machine, NodeId, Undelivered};

/// Virtual time.
#[derive(Clone, Default)]
pub(crate) struct Clock(Rc<Timers>);

#[derive(Default)]
struct Timers {
    now: Cell<Duration>,
    set: Cell<u64>,
    waiting: RefCell<BTreeMap<(Duration, u64), oneshot::Sender<()>>>,
}

impl Clock {
    pub(crate) fn now(&self) -> Duration {
        self.0.now.get()
    }

    pub(crate) fn sleep(&self, duration: Duration) -> LocalBoxFuture<'static, ()> {
        let (ring, alarm) = oneshot::channel();
        self.0.set.set(self.0.set.get() + 1);
        let at = self.now() + duration;
        self.0.waiting.borrow_mut().insert((at, self.0.set.get()), ring);
        alarm.map(|_| ()).boxed_local()
    }

    /// Goes on to the next timer; false if there is none.
    fn advance(&self) -> bool {
        let Some(((at, _), ring)) = self.0.waiting.borrow_mut().pop_first() else { return false };
        self.0.now.set(at);
        let _ = ring.send(());
        true
    }
}

/// One thread with all nodes of a volume.
pub(crate) struct World {
    machine: Rc<TestMachine>,
    pool: RefCell<LocalPool>,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let pool = LocalPool::new();
        let machine = TestMachine {
            clock: Clock::default(),
            epoch: Cell::new(Epoch(1)),
            hosts: RefCell::default(),
            spawner: RefCell::new(pool.spawner()),
            rng: RefCell::new(Rng::new(seed)),
            buffers: Pool::new(64 << 20),
        };
        Self { machine: Rc::new(machine), pool: RefCell::new(pool) }
    }

    pub(crate) fn clock(&self) -> Clock {
        self.machine.clock.clone()
    }

    /// The context of a node, which now exists.
    pub(crate) fn context(&self, node: NodeId) -> Context {
        let epoch = self.machine.epoch.get();
        let mut hosts = self.machine.hosts.borrow_mut();
        hosts.entry(node.0).or_insert_with(|| Host::new(node, epoch));
        Context::new(node, self.machine.clone())
    }

    pub(crate) fn set_epoch(&self, epoch: Epoch) {
        self.machine.epoch.set(epoch);
    }

    /// Runs until `future` is done, and time with it.
    pub(crate) fn run<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        let result = Rc::new(RefCell::new(None));
        let slot = result.clone();
        let main = async move { *slot.borrow_mut() = Some(future.await) };
        self.machine.spawner.borrow().spawn_local(main).expect("the pool lives");
        loop {
            self.pool.borrow_mut().run_until_stalled();
            if let Some(result) = result.borrow_mut().take() {
                return result;
            }
            assert!(self.machine.clock.advance(), "everybody waits for nothing");
        }
    }

    /// All nodes lose everything that they knew, in the midst of whatever they did.
    pub(crate) fn restart(&self) {
        let pool = LocalPool::new();
        let spawner = pool.spawner();
        // The old tasks end first: what they leave behind must not run on in the new life.
        drop(self.pool.replace(pool));
        drop(self.machine.hosts.take());
        drop(self.machine.clock.0.waiting.take());
        *self.machine.spawner.borrow_mut() = spawner;
    }
}

struct TestMachine {
    clock: Clock,
    epoch: Cell<Epoch>,
    hosts: RefCell<BTreeMap<u32, Rc<Host>>>,
    spawner: RefCell<LocalSpawner>,
    rng: RefCell<Rng>,
    buffers: Pool,
}

impl Machine for TestMachine {
    fn fs_nodes(&self) -> u32 {
        1
    }

    fn disk_nodes(&self) -> u32 {
        1
    }

    fn epoch(&self) -> Epoch {
        self.epoch.get()
    }

    fn host(&self, node: NodeId) -> Option<Rc<Host>> {
        self.hosts.borrow().get(&node.0).cloned()
    }

    fn send(&self, envelope: Envelope) {
        envelope.message.refuse(Undelivered::Unreachable);
    }

    fn now(&self, _: NodeId) -> Duration {
        self.clock.now()
    }

    fn unix_time(&self, _: NodeId) -> Duration {
        self.clock.now()
    }

    fn sleep(&self, _: NodeId, duration: Duration) -> LocalBoxFuture<'static, ()> {
        self.clock.sleep(duration)
    }

    fn random(&self, _: NodeId) -> u64 {
        self.rng.borrow_mut().bits()
    }

    fn task(&self, _: NodeId, task: LocalBoxFuture<'static, ()>) {
        // A task of a node that is gone is gone too.
        let _ = self.spawner.borrow().spawn_local(task);
    }

    fn idle(&self, _: NodeId) -> LocalBoxFuture<'static, ()> {
        ready(()).boxed_local()
    }

    fn pool(&self) -> &Pool {
        &self.buffers
    }

    fn open_disk(
        &self,
        _: NodeId,
        path: &str,
    ) -> LocalBoxFuture<'static, io::Result<Rc<dyn Disk>>> {
        let error = io::Error::new(io::ErrorKind::NotFound, path.to_owned());
        ready(Err(error)).boxed_local()
    }

    fn listen(
        &self,
        _: NodeId,
        _: &Address,
    ) -> LocalBoxFuture<'static, io::Result<Box<dyn Listener>>> {
        ready(Err(io::ErrorKind::Unsupported.into())).boxed_local()
    }
}
