//! One process: it does what its keeper says, and answers all the time.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use cluster::membership::{Duties, Evidence, Keeper, KeeperEvent, LEASE, NodeMap, ProcessId};
use machine_emu::{SimulatedEngine, World};
use runtime::{Context, Epoch, NodeId};

use super::oracle::{ENGINE, ProcessIncarnation, ServiceOracle};

/// What settling a node takes, at most.
const SETTLE_MAX_US: u64 = 200_000;
/// What beginning to serve a node takes, at most: its log is replayed.
const BEGIN_MAX_US: u64 = 100_000;
/// The longest pause between two requests.
const PAUSE_MAX_US: u64 = 30_000;
/// The mean pause between two looks at the others.
const WATCH_PAUSE_US: u64 = 100_000;
/// A process that does nothing for longer is found silent.
const SILENCE_MAX: Duration = Duration::from_secs(1);
/// One look of this number finds a process dead that is not; in some runs, of the second number.
pub(super) const WRONG_ONE_OF: [u64; 2] = [200, 5];

pub(super) struct KeeperProcess {
    id: ProcessId,
    world: World,
    oracle: Rc<ServiceOracle>,
    keeper: RefCell<Option<Keeper>>,
    /// The life that its record named when it last started.
    before: Cell<Option<u64>>,
    /// One of [`WRONG_ONE_OF`].
    wrong_one_of: u64,
}

/// What one incarnation does.
struct ProcessDuties {
    id: ProcessId,
    context: Context,
    oracle: Rc<ServiceOracle>,
    keeper: RefCell<Option<Keeper>>,
    /// Nodes that the keeper has given to the process, in which epoch.
    given: RefCell<BTreeMap<NodeId, Epoch>>,
    /// Those of them that have begun.
    nodes: RefCell<BTreeMap<NodeId, Epoch>>,
    map_epoch: Cell<Epoch>,
    incarnation: Cell<ProcessIncarnation>,
    wrong_one_of: u64,
}

impl KeeperProcess {
    pub(super) fn new(
        id: ProcessId,
        world: World,
        oracle: Rc<ServiceOracle>,
        wrong_one_of: u64,
    ) -> Self {
        let (keeper, before) = (RefCell::default(), Cell::new(None));
        Self { id, world, oracle, keeper, before, wrong_one_of }
    }

    pub(super) fn id(&self) -> ProcessId {
        self.id
    }

    /// Where it is in the world.
    pub(super) fn node(&self) -> NodeId {
        NodeId::fs(self.id.0 - 1)
    }

    pub(super) fn is_alive(&self) -> bool {
        self.keeper.borrow().is_some()
    }

    /// It has begun a life since it started, and that is the one that the map knows.
    pub(super) fn has_joined(&self, map: &NodeMap) -> bool {
        let said = self.oracle.said(self.id);
        let known = map.process(self.id).map(|known| known.incarnation);
        self.is_alive() && said.is_some() && said != self.before.get() && said == known
    }

    pub(super) fn kill(&self) {
        self.keeper.take();
        self.oracle.incarnation(self.id);
        self.world.kill(self.node());
    }

    /// A fresh incarnation, unless it lives.
    pub(super) fn start(&self) {
        if self.is_alive() {
            return;
        }
        self.before.set(self.oracle.said(self.id));
        let context = self.world.restart(self.node());
        let work = Rc::new(ProcessDuties {
            id: self.id,
            context: context.clone(),
            oracle: self.oracle.clone(),
            keeper: RefCell::default(),
            given: RefCell::default(),
            nodes: RefCell::default(),
            map_epoch: Cell::new(Epoch(0)),
            incarnation: Cell::new(self.oracle.incarnation(self.id)),
            wrong_one_of: self.wrong_one_of,
        });
        let engine = Rc::new(SimulatedEngine::new(context.clone(), ENGINE));
        let addresses = [format!("host{}:7000", self.id.0)];
        let duties = Rc::new(WeakDuties(Rc::downgrade(&work)));
        let keeper = Keeper::start(&context, engine, (self.id, &addresses), LEASE, duties);
        *work.keeper.borrow_mut() = Some(keeper.clone());
        *self.keeper.borrow_mut() = Some(keeper);
        let watching = work.clone();
        context.task(async move { watching.watch_peers().await });
        context.task(async move { work.answer_requests().await });
    }

    /// Stops in order.
    pub(super) async fn end(&self) {
        let keeper = self.keeper.borrow().clone();
        if let Some(keeper) = keeper {
            self.world.on(self.node(), |_| async move { keeper.end().await }).await;
        }
        self.kill();
    }
}

/// The keeper is held by the work, and does not hold it.
struct WeakDuties(std::rc::Weak<ProcessDuties>);

impl Duties for WeakDuties {
    fn tell(&self, event: KeeperEvent) {
        if let Some(work) = self.0.upgrade() {
            work.tell(event);
        }
    }
}

impl ProcessDuties {
    fn tell(self: &Rc<Self>, event: KeeperEvent) {
        match event {
            KeeperEvent::Map(map) => {
                self.oracle.saw(self.id, &map, self.map_epoch.replace(map.epoch));
            }
            KeeperEvent::Serve { node, epoch } => {
                self.oracle.begins(self.incarnation.get(), node, epoch);
                self.given.borrow_mut().insert(node, epoch);
                let work = self.clone();
                self.context.task(async move { work.begin(node, epoch).await });
            }
            KeeperEvent::Stop { node } => {
                self.given.borrow_mut().remove(&node);
                self.nodes.borrow_mut().remove(&node);
                self.flush(node);
            }
            KeeperEvent::Fenced => {
                self.given.borrow_mut().clear();
                self.nodes.borrow_mut().clear();
                self.incarnation.set(self.oracle.incarnation(self.id));
                let Some(map) = self.keeper.borrow().as_ref().and_then(Keeper::map) else { return };
                map.assignments().for_each(|(node, _)| self.flush(node));
            }
        }
    }

    /// Finds out which of the others are dead, as by connections to them; now and then it takes one
    /// for dead that is not.
    async fn watch_peers(&self) {
        loop {
            self.some_time(2 * WATCH_PAUSE_US).await;
            let Some(keeper) = self.keeper.borrow().clone() else { continue };
            let Some(map) = keeper.map() else { continue };
            let peers = map.processes.iter().filter(|peer| peer.is_living() && peer.id != self.id);
            for peer in peers {
                let is_wrong = self.context.random().is_multiple_of(self.wrong_one_of);
                let evidence = if !self.oracle.is_alive(peer.id) {
                    Evidence::Refused
                } else if self.oracle.silent_for(peer.id) > SILENCE_MAX {
                    Evidence::Silent
                } else if is_wrong {
                    // As behind a firewall that rejects connections.
                    if self.context.random().is_multiple_of(2) {
                        Evidence::Refused
                    } else {
                        Evidence::Silent
                    }
                } else {
                    continue;
                };
                keeper.suspect(peer.id, peer.incarnation, evidence);
            }
        }
    }

    async fn some_time(&self, most_us: u64) {
        let us = 1 + self.context.random() % most_us;
        self.context.sleep(Duration::from_micros(us)).await;
    }

    async fn begin(&self, node: NodeId, epoch: Epoch) {
        self.some_time(BEGIN_MAX_US).await;
        // It may have been stopped meanwhile. A pause of the process only delays it: the keeper
        // does not tell again what it has told.
        if self.given.borrow().get(&node) == Some(&epoch) {
            self.nodes.borrow_mut().insert(node, epoch);
        }
    }

    fn flush(self: &Rc<Self>, node: NodeId) {
        let work = self.clone();
        self.context.task(async move {
            work.some_time(SETTLE_MAX_US).await;
            if let Some(keeper) = &*work.keeper.borrow() {
                work.oracle.stopped(work.incarnation.get(), node);
                keeper.stopped(node);
            }
        });
    }

    async fn answer_requests(&self) {
        loop {
            self.some_time(PAUSE_MAX_US).await;
            self.oracle.hears(self.id);
            let nodes = self.nodes.borrow().clone();
            for (node, epoch) in nodes {
                let may = self.keeper.borrow().as_ref().and_then(|keeper| keeper.may_answer(node));
                if may == Some(epoch) {
                    self.oracle.answered(self.incarnation.get(), node, epoch);
                }
            }
        }
    }
}
