//! Workload: processes with keepers, which come, go, freeze, are cut off and take over from each
//! other.
//!
//! Each process is a node of the world (`fs:0` and on), and answers for the logical nodes that its
//! keeper gives it; the coordination engine is at `disk:0`. No file system is above: only who may
//! answer when is of interest.
//!
//! # Promise
//!
//! - No two processes answer for a node in one epoch, none answers once a later epoch has begun to,
//!   and none longer than the answer window after its record is gone.
//! - Epochs only grow, and there is one map for each.
//! - Once the faults are over all nodes are answered for within seven seconds, all processes that
//!   run become members, and the load becomes even.
//! - The nodes of a process that dies then are answered for by others within five seconds; those of
//!   one that leaves move without a longer gap than a move takes.

mod faults;
mod oracle;
mod process;
#[cfg(test)]
mod tests;

use std::rc::Rc;
use std::time::Duration;

use cluster::membership::{
    Assignment, CommandError, Founder, LOOK_EVERY, NodeMap, ProcessId, found, leave, node_map,
};
use machine_emu::{EngineStore, SimulatedEngine, World, WorldShape};
use runtime::seed::Rng;
use runtime::{Context, NodeId};

use crate::nemesis::{FaultSource, ScheduleRecord};
use crate::random::pick;
use crate::report::{RUN_TIME_MAX, RunReport};
use crate::schedule::{RunPart, Schedule};
use faults::MembersFaults;
use oracle::{ENGINE, ServiceOracle};
use process::{KeeperProcess, WRONG_ONE_OF};

/// Where the operator is, whom no fault meets.
const OPERATOR: NodeId = NodeId::application(0);
/// After a death what the process served is served by others after this.
const TAKEN_OVER_MAX: Duration = Duration::from_secs(5);
/// After the last fault all is served after this, disks included: a process that starts again
/// waits until its predecessor is silent for sure, and joins.
const SERVED_AFTER_MAX: Duration = Duration::from_secs(7);
/// Moves, sixteen at a time, have ended after this.
const EVEN_AFTER_MAX: Duration = Duration::from_secs(20);
/// How often it is noted which processes have their records.
const LEASES_NOTED_EVERY: Duration = Duration::from_millis(20);
/// How long a node that moves may be unserved: it is settled, and the map changes twice.
const GAP_MAX: Duration = Duration::from_millis(1_500);

/// What a run consists of.
#[derive(Clone, Copy, Debug)]
struct MembersPlan {
    processes: u32,
    fs_nodes: u32,
    disk_nodes: u32,
    rounds: u32,
}

/// The processes, and what is known of them all.
struct MembersCluster {
    world: World,
    store: EngineStore,
    oracle: Rc<ServiceOracle>,
    processes: Vec<Rc<KeeperProcess>>,
}

/// Runs the workload of `seed`.
pub(super) fn run(seed: u64, source: &FaultSource, record: &ScheduleRecord) -> RunReport {
    let mut rng = Rng::new(seed ^ 0x4D45_4D42);
    let processes = 2 + rng.below(5) as u32;
    let plan = MembersPlan {
        processes,
        fs_nodes: 1 + rng.below(40) as u32,
        disk_nodes: 1 + rng.below(2 * u64::from(processes)) as u32,
        rounds: 1 + rng.below(3) as u32,
    };
    // A node of the world for each process, and one for the engine.
    let shape = WorldShape { fs_nodes: plan.processes, disk_nodes: 1 };
    let world = World::new(seed, shape);
    let store = EngineStore::default();
    store.serve(&world.context(ENGINE));
    if rng.chance(1, 2) {
        store.renew_gone_leases();
    }
    let oracle = Rc::new(ServiceOracle::new(world.clone(), store.clone()));
    let ids = (1..=plan.processes).map(ProcessId);
    let wrong_one_of = pick(&mut rng, &WRONG_ONE_OF);
    let begin = |id| Rc::new(KeeperProcess::new(id, world.clone(), oracle.clone(), wrong_one_of));
    let processes = ids.map(begin).collect();
    let cluster = MembersCluster { world: world.clone(), store, oracle, processes };
    let done = world.run_within(RUN_TIME_MAX, cluster.go(plan, &mut rng, source, record));
    assert!(done.is_some(), "the world stands still, or never ends");
    cluster.processes.iter().for_each(|process| process.kill());
    RunReport {
        trace_hash: world.trace_hash(),
        counters: world.counters(),
        virtual_time: world.now(),
        operations: cluster.oracle.answers(),
        schedule: Schedule::default(),
    }
}

impl MembersCluster {
    fn operator(&self) -> (Context, SimulatedEngine) {
        let context = self.world.context(OPERATOR);
        (context.clone(), SimulatedEngine::new(context, ENGINE))
    }

    async fn go(
        &self,
        plan: MembersPlan,
        rng: &mut Rng,
        source: &FaultSource,
        record: &ScheduleRecord,
    ) {
        self.found(plan).await;
        let faults = MembersFaults::new(self, rng);
        // Drawn in any case: a schedule that is given changes nothing but the faults.
        let mut drawing = Rng::new(rng.bits());
        let setup = source.plan(RunPart::Setup, record, || faults.draw_setup(&mut drawing));
        faults.inject(&setup).await;
        for process in &self.processes {
            process.start();
        }
        self.watch_leases();
        for round in 1..=plan.rounds {
            let mut drawing = Rng::new(rng.bits());
            let drawn = || faults.draw_round(&mut drawing);
            let items = source.plan(RunPart::Round(round), record, drawn);
            faults.inject(&items).await;
            faults.calm();
            self.assert_all_served("the faults").await;
            self.assert_balanced().await;
        }
        self.kill_one_process(rng).await;
        self.remove_one_process(rng).await;
    }

    /// Notes all the time which processes have their records.
    fn watch_leases(&self) {
        let (context, _) = self.operator();
        let (watching, oracle) = (context.clone(), self.oracle.clone());
        let processes: Vec<ProcessId> = self.processes.iter().map(|process| process.id()).collect();
        context.task(async move {
            loop {
                for process in &processes {
                    oracle.note_lease(*process);
                }
                watching.sleep(LEASES_NOTED_EVERY).await;
            }
        });
    }

    /// Makes the first map.
    async fn found(&self, plan: MembersPlan) {
        let disks = |id: ProcessId| {
            (0..plan.disk_nodes).filter(move |disk| disk % plan.processes == id.0 - 1).collect()
        };
        let founder = |id| Founder { id, disks: disks(id) };
        let founders: Vec<Founder> =
            (1..=plan.processes).map(|id| founder(ProcessId(id))).collect();
        let first = NodeMap::first(plan.fs_nodes, &founders).expect("a cluster that can be");
        let (_, engine) = self.operator();
        found(&engine, &first).await.expect("nothing is wrong yet");
    }

    /// The map, by a way that nothing hinders.
    async fn map(&self) -> NodeMap {
        let (_, engine) = self.operator();
        node_map(&engine).await.expect("the operator is never cut off")
    }

    async fn sleep(&self, duration: Duration) {
        self.operator().0.sleep(duration).await;
    }

    /// After this all nodes are answered for again within the time.
    async fn assert_all_served(&self, after: &str) {
        let (nodes, begun): (Vec<NodeId>, _) =
            (self.map().await.assignments().map(|(node, _)| node).collect(), self.world.now());
        loop {
            let silent = nodes.iter().find(|node| !self.oracle.has_answered_after(**node, begun));
            let Some(silent) = silent else { break };
            let waited = self.world.now().saturating_sub(begun);
            assert!(
                waited <= SERVED_AFTER_MAX,
                "no process answers for {silent} {waited:?} after {after}: {:?}",
                self.map().await
            );
            self.sleep(Duration::from_millis(20)).await;
        }
    }

    /// All that live come to have as many nodes as each other, and are members: the map may still
    /// know a process as it was before it started again, while it waits for its own silence. Were
    /// the only other one killed then, 3 s would pass before it joins, and 3 s more before it may
    /// take over.
    async fn assert_balanced(&self) {
        let begun = self.world.now();
        loop {
            let map = self.map().await;
            let of = |id| {
                let serves = |assignment: &&Assignment| matches!(assignment, Assignment::Serving { by, .. } if *by == id);
                map.fs.iter().filter(serves).count()
            };
            let staying = map.processes.iter().filter(|one| one.is_living() && !one.leaving);
            let counts: Vec<usize> = staying.map(|one| of(one.id)).collect();
            let alive = self.processes.iter().filter(|process| process.is_alive()).count();
            let mut running = self.processes.iter().filter(|process| process.is_alive());
            let have_joined = running.all(|process| process.has_joined(&map));
            let leaving = map.processes.iter().filter(|one| one.is_living() && one.leaving).count();
            let (least, most) = (counts.iter().min(), counts.iter().max());
            let even = most.unwrap_or(&0) - least.unwrap_or(&0) <= 1;
            if even
                && have_joined
                && counts.len() + leaving == alive
                && counts.iter().sum::<usize>() == map.fs.len()
            {
                return;
            }
            let waited = self.world.now().saturating_sub(begun);
            assert!(waited <= EVEN_AFTER_MAX, "the load is not even after {waited:?}: {map:?}");
            self.sleep(Duration::from_millis(50)).await;
        }
    }

    /// In quiet times a process dies: the others take over, and it gets its disks again when it is
    /// back.
    async fn kill_one_process(&self, rng: &mut Rng) {
        let victim = &self.processes[rng.index(self.processes.len())];
        // At any time between two renewals.
        self.sleep(Duration::from_micros(rng.below(1_000_000))).await;
        let map = self.map().await;
        let begun = self.world.now();
        victim.kill();
        let orphans =
            map.fs.iter().zip(0..).filter(|(assignment, _)| assignment.owner() == victim.id());
        for node in orphans.map(|(_, index)| NodeId::fs(index)) {
            while !self.oracle.has_answered_after(node, begun) {
                let waited = self.world.now().saturating_sub(begun);
                assert!(waited <= TAKEN_OVER_MAX, "no process took over {node} after {waited:?}");
                self.sleep(Duration::from_millis(5)).await;
            }
        }
        tracing::debug!(took = ?self.world.now().saturating_sub(begun), "taken over");
        victim.start();
        self.assert_all_served("a restart").await;
        self.assert_balanced().await;
        // Operators would take the noted end for one of the incarnation that runs.
        self.sleep(2 * LOOK_EVERY).await;
        assert!(!self.oracle.has_noted_end(victim.id()), "{} runs", victim.id());
    }

    /// In quiet times a process leaves: no node is silent for longer than a move takes.
    async fn remove_one_process(&self, rng: &mut Rng) {
        let leaver = &self.processes[rng.index(self.processes.len())];
        let (_, engine) = self.operator();
        leave(&engine, leaver.id(), true).await.expect("it is there");
        let unknown = leave(&engine, ProcessId(99), true).await;
        assert!(matches!(unknown, Err(CommandError::Plan(_))), "{unknown:?}");
        let begun = self.world.now();
        loop {
            let map = self.map().await;
            let now = self.world.now();
            for (node, _) in map.assignments() {
                let gap = now.saturating_sub(self.oracle.last_answer(node));
                assert!(gap <= GAP_MAX, "no process answers for {node} for {gap:?} while it moves");
            }
            if map.fs.iter().all(|assignment| assignment.owner() != leaver.id()) {
                break;
            }
            assert!(now.saturating_sub(begun) <= EVEN_AFTER_MAX, "it never leaves: {map:?}");
            self.sleep(Duration::from_millis(10)).await;
        }
        // It ends in order: its disks are silent, and nothing else.
        leaver.end().await;
        self.assert_balanced().await;
    }
}
