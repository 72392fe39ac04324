//! Runs of few processes whose faults are given.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use cluster::coordination::{Expect, Records};
use cluster::membership::{
    Duties, Evidence, Founder, Keeper, KeeperEvent, LEASE, NodeMap, Process, ProcessId, found,
    node_map,
};
use machine_emu::{EngineStore, SimulatedEngine, World, WorldShape};
use runtime::{Epoch, NodeId};

use super::oracle::{ENGINE, ServiceOracle};
use super::process::KeeperProcess;
use super::{MembersCluster, MembersPlan};

/// Takes note of nothing.
struct NoDuties;

impl Duties for NoDuties {
    fn tell(&self, _: KeeperEvent) {}
}

/// Processes with keepers, and the engine that they all reach.
struct TestCluster {
    world: World,
    store: EngineStore,
    keepers: RefCell<Vec<Keeper>>,
}

impl TestCluster {
    fn new(seed: u64, count: u32) -> Self {
        let world = World::new(seed, WorldShape { fs_nodes: count, disk_nodes: 1 });
        let store = EngineStore::default();
        store.serve(&world.context(ENGINE));
        Self { world, store, keepers: RefCell::default() }
    }

    /// Makes the cluster, and waits until all have joined.
    async fn start(&self, count: u32) {
        let founders: Vec<Founder> =
            (1..=count).map(|id| Founder { id: ProcessId(id), disks: vec![id - 1] }).collect();
        let first = NodeMap::first(8, &founders).unwrap();
        let operator = self.world.context(NodeId::application(0));
        found(&SimulatedEngine::new(operator, ENGINE), &first).await.unwrap();
        for id in 1..=count {
            let context = self.world.context(NodeId::fs(id - 1));
            let engine = Rc::new(SimulatedEngine::new(context.clone(), ENGINE));
            let process = (ProcessId(id), &[format!("host{id}:7000")][..]);
            let keeper = Keeper::start(&context, engine, process, LEASE, Rc::new(NoDuties));
            self.keepers.borrow_mut().push(keeper);
        }
        self.pass(Duration::from_secs(2)).await;
        assert!(self.map(1).processes.iter().all(Process::is_living));
    }

    async fn pass(&self, duration: Duration) {
        self.world.context(NodeId::application(0)).sleep(duration).await;
    }

    /// How many nodes a process may answer for.
    fn answers_for(&self, id: u32) -> usize {
        let keeper = &self.keepers.borrow()[id as usize - 1];
        let map = keeper.map().unwrap();
        map.assignments().filter(|(node, _)| keeper.may_answer(*node).is_some()).count()
    }

    /// The engine has these records from now on.
    fn restore(&self, snapshot: &Records) {
        self.store.restore(snapshot, self.world.context(ENGINE).now());
    }

    /// The epoch of the map that the engine has.
    async fn stored_epoch(&self) -> Epoch {
        let operator = self.world.context(NodeId::application(0));
        node_map(&SimulatedEngine::new(operator, ENGINE)).await.unwrap().epoch
    }

    /// The map as a process knows it.
    fn map(&self, id: u32) -> Rc<NodeMap> {
        self.keepers.borrow()[id as usize - 1].map().unwrap()
    }

    /// Process `by` finds that the host of `suspect` refuses its connections.
    fn refuse(&self, by: u32, suspect: u32) {
        let map = self.map(by);
        let Some(process) = map.process(ProcessId(suspect)).filter(|it| it.is_living()) else {
            return;
        };
        let keeper = &self.keepers.borrow()[by as usize - 1];
        keeper.suspect(process.id, process.incarnation, Evidence::Refused);
    }
}

/// A firewall that rejects connections looks like a process that is dead.
#[test]
fn processes_that_refuse_each_other_and_reach_etcd_stay() {
    let all = TestCluster::new(1, 3);
    let world = all.world.clone();
    world.run(async {
        all.start(3).await;
        let before = all.map(1);
        for _ in 0..150 {
            for (by, suspect) in [(1, 2), (2, 1), (3, 1), (3, 2)] {
                all.refuse(by, suspect);
            }
            all.pass(Duration::from_millis(100)).await;
        }
        assert_eq!(all.map(1).processes, before.processes, "none is evicted");
    });
}

/// However many suspect it, and however often.
#[test]
fn a_dead_process_that_all_suspect_is_replaced_in_time() {
    let all = TestCluster::new(2, 6);
    let world = all.world.clone();
    world.run(async {
        all.start(6).await;
        world.kill(NodeId::fs(5));
        let died = world.now();
        let is_living = || all.map(1).process(ProcessId(6)).is_some_and(Process::is_living);
        while is_living() {
            for by in 1..6 {
                all.refuse(by, 6);
                all.pass(Duration::from_millis(20)).await;
            }
        }
        let took = world.now().saturating_sub(died);
        assert!(took < Duration::from_millis(4_500), "{took:?}");
    });
}

/// The older copy names processes that are gone, and a map that was replaced since. It is not built
/// upon, and nothing is dropped: the newer copy may come back.
#[test]
fn an_older_copy_of_etcd_under_running_processes_is_noticed_and_changes_nothing() {
    let all = TestCluster::new(3, 3);
    let world = all.world.clone();
    world.run(async {
        all.start(3).await;
        let old = all.store.snapshot();
        world.kill(NodeId::fs(2));
        all.pass(LEASE + Duration::from_secs(5)).await;
        let before = [1, 2].map(|id| (all.map(id), all.answers_for(id)));
        let fs_nodes = before[0].0.fs.len();
        assert_eq!(before[0].1 + before[1].1, fs_nodes + 2, "all but the disks of the dead");
        let newer = all.store.snapshot();
        all.restore(&old);
        let stored = all.stored_epoch().await;
        assert!(stored < before[0].0.epoch);
        // At once, not only when some lease is over.
        all.pass(Duration::from_secs(2)).await;
        assert_eq!([1, 2].map(|id| all.answers_for(id)), [0, 0], "as without a lease");
        all.pass(2 * LEASE).await;
        assert_eq!([1, 2].map(|id| all.answers_for(id)), [0, 0]);
        assert_eq!(all.stored_epoch().await, stored, "no map is made from the older records");
        all.restore(&newer);
        all.pass(Duration::from_secs(5)).await;
        let now = [1, 2].map(|id| (all.map(id), all.answers_for(id)));
        assert_eq!(now, before, "with all that they had");
    });
}

/// Without the version of the store: it was raised when the snapshot was restored.
#[test]
fn an_older_copy_of_etcd_with_a_later_version_is_noticed_by_its_map() {
    let all = TestCluster::new(4, 3);
    let world = all.world.clone();
    world.run(async {
        all.start(3).await;
        let old = all.store.snapshot();
        world.kill(NodeId::fs(2));
        all.pass(LEASE + Duration::from_secs(5)).await;
        let mut raised = old.clone();
        while raised.version() <= all.store.snapshot().version() {
            raised.write("else", b"x", Expect::Any {}, None).unwrap();
        }
        all.restore(&raised);
        all.pass(Duration::from_secs(4)).await;
        assert_eq!([1, 2].map(|id| all.answers_for(id)), [0, 0], "as without a lease");
        assert_eq!(all.stored_epoch().await, node_map_epoch(&old));
    });
}

/// What `recover` makes in an empty etcd is a store whose version is low, with a map of a later
/// epoch. Processes that were not stopped before drop what they served, and join it.
#[test]
fn processes_that_run_while_etcd_is_recovered_join_what_was_recovered() {
    let all = TestCluster::new(6, 3);
    let world = all.world.clone();
    world.run(async {
        all.start(3).await;
        let before = all.map(1);
        let served: usize = (1..=3).map(|id| all.answers_for(id)).sum();
        let mut recovered = Records::default();
        let raised = before.raised(Epoch(before.epoch.0 + 1000)).to_record();
        recovered.write("cluster/map", &raised, Expect::Absent {}, None).unwrap();
        assert!(recovered.version() < all.store.snapshot().version());
        all.restore(&recovered);
        all.pass(Duration::from_secs(2)).await;
        assert_eq!([1, 2, 3].map(|id| all.answers_for(id)), [0, 0, 0], "others may have it");
        for id in 1..=3_usize {
            // The duties of these processes end nothing by themselves.
            let keeper = all.keepers.borrow()[id - 1].clone();
            before.assignments().for_each(|(node, _)| keeper.stopped(node));
        }
        all.pass(Duration::from_secs(20)).await;
        assert!((1..=3).all(|id| all.map(id).epoch > Epoch(before.epoch.0 + 1000)));
        let now: usize = (1..=3).map(|id| all.answers_for(id)).sum();
        assert_eq!(now, served);
    });
}

/// After a full stop, by kills or in order, each process finds its nodes, in each order of starts.
#[test]
fn processes_come_back_in_every_order_after_a_full_stop() {
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    let world = World::new(5, WorldShape { fs_nodes: 3, disk_nodes: 1 });
    let store = EngineStore::default();
    store.serve(&world.context(ENGINE));
    let oracle = Rc::new(ServiceOracle::new(world.clone(), store.clone()));
    let begin = |id| KeeperProcess::new(ProcessId(id), world.clone(), oracle.clone(), 200);
    let processes = (1..=3).map(|id| Rc::new(begin(id))).collect();
    let cluster = MembersCluster { world: world.clone(), store, oracle, processes };
    let plan = MembersPlan { processes: 3, fs_nodes: 10, disk_nodes: 3, rounds: 0 };
    world.run(async {
        cluster.found(plan).await;
        cluster.watch_leases();
        cluster.processes.iter().for_each(|process| process.start());
        cluster.assert_all_served("the first start").await;
        for (number, order) in orders.into_iter().enumerate() {
            for process in &cluster.processes {
                if number % 2 == 0 { process.kill() } else { process.end().await }
            }
            cluster.sleep(Duration::from_secs(20)).await;
            for index in order {
                cluster.processes[index].start();
                cluster.sleep(Duration::from_secs(4)).await;
            }
            cluster.assert_all_served("a full stop").await;
            cluster.assert_balanced().await;
        }
        cluster.processes.iter().for_each(|process| process.kill());
    });
}

/// The epoch of the map in a snapshot.
fn node_map_epoch(records: &Records) -> Epoch {
    NodeMap::from_record(&records.get("cluster/map").unwrap().value).unwrap().epoch
}
