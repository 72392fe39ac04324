//! A machine of one thread with virtual time: when nothing can run, the clock jumps to the next
//! timer.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::channel::oneshot;
use futures::executor::{LocalPool, LocalSpawner};
use futures::future::LocalBoxFuture;
use futures::task::LocalSpawnExt as _;
use runtime::buffer::Pool;
use runtime::disk::Disk;
use runtime::host::Host;
use runtime::mail::Envelope;
use runtime::net::{Address, Listener};
use runtime::seed::Rng;
use runtime::{Context, Epoch, Machine, NodeId};

/// What the world knows.
pub(crate) struct Clock {
    now: Cell<Duration>,
    timers: RefCell<BTreeMap<(Duration, u64), oneshot::Sender<()>>>,
    count: Cell<u64>,
    rng: RefCell<Rng>,
}

impl Clock {
    pub(crate) fn new(seed: u64) -> Rc<Self> {
        Rc::new(Self {
            now: Cell::default(),
            timers: RefCell::default(),
            count: Cell::new(0),
            rng: RefCell::new(Rng::new(seed)),
        })
    }

    pub(crate) fn sleep(&self, duration: Duration) -> LocalBoxFuture<'static, ()> {
        if duration.is_zero() {
            return futures::future::ready(()).boxed_local();
        }
        let (timer, rung) = oneshot::channel();
        self.count.set(self.count.get() + 1);
        self.timers.borrow_mut().insert((self.now.get() + duration, self.count.get()), timer);
        async move {
            let _ = rung.await;
        }
        .boxed_local()
    }

    pub(crate) fn random(&self) -> u64 {
        self.rng.borrow_mut().bits()
    }

    /// Forgets all timers: the tasks that slept are gone.
    fn clear(&self) {
        self.timers.borrow_mut().clear();
    }
}

struct TestMachine {
    clock: Rc<Clock>,
    spawner: LocalSpawner,
    epoch: Epoch,
    pool: Pool,
}

impl Machine for TestMachine {
    fn fs_nodes(&self) -> u32 {
        1
    }
    fn disk_nodes(&self) -> u32 {
        1
    }
    fn epoch(&self) -> Epoch {
        self.epoch
    }
    fn host(&self, _: NodeId) -> Option<Rc<Host>> {
        None
    }
    fn send(&self, _: Envelope) {
        panic!("a store sends no messages");
    }
    fn now(&self, _: NodeId) -> Duration {
        self.clock.now.get()
    }
    fn unix_time(&self, _: NodeId) -> Duration {
        self.clock.now.get()
    }
    fn sleep(&self, _: NodeId, duration: Duration) -> LocalBoxFuture<'static, ()> {
        self.clock.sleep(duration)
    }
    fn random(&self, _: NodeId) -> u64 {
        self.clock.random()
    }
    fn task(&self, _: NodeId, task: LocalBoxFuture<'static, ()>) {
        self.spawner.spawn_local(task).unwrap();
    }
    fn idle(&self, _: NodeId) -> LocalBoxFuture<'static, ()> {
        panic!("a store needs no idle time");
    }
    fn pool(&self) -> &Pool {
        &self.pool
    }
    fn open_disk(&self, _: NodeId, _: &str) -> LocalBoxFuture<'static, io::Result<Rc<dyn Disk>>> {
        panic!("a store opens no disks");
    }
    fn listen(
        &self,
        _: NodeId,
        _: &Address,
    ) -> LocalBoxFuture<'static, io::Result<Box<dyn Listener>>> {
        panic!("a store does not listen");
    }
}

/// One life of the process that hosts the store; dropping it is the crash.
pub(crate) struct World {
    tasks: LocalPool,
    clock: Rc<Clock>,
    pub(crate) ctx: Context,
}

impl World {
    pub(crate) fn new(clock: &Rc<Clock>, epoch: u64) -> Self {
        let tasks = LocalPool::new();
        let machine = TestMachine {
            clock: clock.clone(),
            spawner: tasks.spawner(),
            epoch: Epoch(epoch),
            pool: Pool::new(1 << 20),
        };
        let ctx = Context::new(NodeId::fs(0), Rc::new(machine));
        Self { tasks, clock: clock.clone(), ctx }
    }

    /// Runs `future` to its end; `None` if the world stands still before (`dead` says that this
    /// is meant).
    pub(crate) fn run_unless<T: 'static>(
        &mut self,
        dead: impl Fn() -> bool,
        future: impl Future<Output = T> + 'static,
    ) -> Option<T> {
        let result = Rc::new(RefCell::new(None));
        let place = result.clone();
        self.ctx.task(async move {
            let value = future.await;
            *place.borrow_mut() = Some(value);
        });
        loop {
            self.tasks.run_until_stalled();
            if let Some(value) = result.borrow_mut().take() {
                return Some(value);
            }
            if dead() {
                return None;
            }
            let next = self.clock.timers.borrow_mut().pop_first();
            let ((time, _), timer) = next.expect("something waits for ever");
            self.clock.now.set(time);
            let _ = timer.send(());
        }
    }

    /// Runs `future` to its end.
    pub(crate) fn run<T: 'static>(&mut self, future: impl Future<Output = T> + 'static) -> T {
        self.run_unless(|| false, future).unwrap()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.clock.clear();
    }
}
