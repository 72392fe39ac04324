//! Which process answered for which node, and whether it was allowed to.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cluster::membership::{Assignment, MemberRecord, NodeMap, ProcessId};
use machine_emu::{EngineStore, World};
use runtime::{Epoch, NodeId};

/// The node of the engine.
pub(super) const ENGINE: NodeId = NodeId::disk(0);

/// A process answers no longer than this after its record is gone: the answer window by a clock
/// that is 2 % slow, and the time until the process was seen to have the record last.
const ANSWERED_MAX: Duration = Duration::from_millis(2_600);

fn member_key(process: ProcessId) -> String {
    format!("cluster/members/{:010}", process.0)
}

/// One incarnation of a process: it ends when the process dies, and when it is fenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ProcessIncarnation {
    pub(super) process: ProcessId,
    /// Unique.
    pub(super) number: u64,
}

/// Sees all answers of all processes, at the time of the world.
pub(super) struct ServiceOracle {
    world: World,
    store: EngineStore,
    /// The latest epoch in which each node was answered for, by whom, and when last.
    nodes: RefCell<BTreeMap<NodeId, (Epoch, ProcessIncarnation, Duration)>>,
    /// Processes that were assigned a node and have not reported yet that they stopped.
    assigned: RefCell<BTreeSet<(NodeId, ProcessIncarnation)>>,
    incarnations: Cell<u64>,
    /// When each process last did anything, and when its record was last seen to be there.
    heard: RefCell<BTreeMap<ProcessId, Duration>>,
    leased: RefCell<BTreeMap<ProcessId, Duration>>,
    /// All maps that any process saw.
    maps: RefCell<BTreeMap<Epoch, NodeMap>>,
    /// The life of each process in the last map that it saw itself: by that it holds its nodes.
    own_lives: RefCell<BTreeMap<ProcessId, u64>>,
    answers: Cell<u64>,
}

impl ServiceOracle {
    pub(super) fn new(world: World, store: EngineStore) -> Self {
        Self {
            world,
            store,
            nodes: RefCell::default(),
            assigned: RefCell::default(),
            incarnations: Cell::new(0),
            heard: RefCell::default(),
            leased: RefCell::default(),
            maps: RefCell::default(),
            own_lives: RefCell::default(),
            answers: Cell::new(0),
        }
    }

    pub(super) fn answers(&self) -> u64 {
        self.answers.get()
    }

    /// A new incarnation of `process` begins; it holds no node.
    pub(super) fn incarnation(&self, process: ProcessId) -> ProcessIncarnation {
        self.incarnations.set(self.incarnations.get() + 1);
        self.assigned.borrow_mut().retain(|(_, incarnation)| incarnation.process != process);
        ProcessIncarnation { process, number: self.incarnations.get() }
    }

    /// Whether `process` has a lease that is not over at the engine; `None` while the engine is
    /// down.
    fn is_leased(&self, process: ProcessId) -> Option<bool> {
        // The engine's clock begins anew with the engine, and leases with it.
        let end = self.store.end_of(&member_key(process));
        let now = self.world.is_alive(ENGINE).then(|| self.world.context(ENGINE).now())?;
        Some(end.is_some_and(|end| end > now))
    }

    /// The life that the record of `process` names.
    pub(super) fn said(&self, process: ProcessId) -> Option<u64> {
        let record = self.store.record(&member_key(process))?;
        MemberRecord::from_record(&record.value).ok().map(|member| member.incarnation)
    }

    /// Does the engine still hold when `process` has ended last?
    pub(super) fn has_noted_end(&self, process: ProcessId) -> bool {
        self.store.record(&format!("cluster/gone/{:010}", process.0)).is_some()
    }

    /// The record of `process` goes, as if another process had found it dead.
    pub(super) fn evict(&self, process: ProcessId) {
        self.store.end_lease_of(&member_key(process));
    }

    /// Whether the record of `process` is that of its life in the last map before `epoch`. One that
    /// tries to return has a record of a life that no map knows yet, or none that it has seen
    /// itself: by that it holds nothing.
    fn lives_as_before(&self, process: ProcessId, epoch: Epoch) -> bool {
        let known = self.map_before(epoch, |map| map.process(process).map(|it| it.incarnation));
        let said = self.said(process);
        said.is_some()
            && said == self.own_lives.borrow().get(&process).copied()
            && known.flatten().is_none_or(|known| said == Some(known))
    }

    /// `process` does something.
    pub(super) fn hears(&self, process: ProcessId) {
        self.heard.borrow_mut().insert(process, self.world.now());
        self.note_lease(process);
    }

    /// To be called often: a process may stand still from the moment when it gets its record.
    pub(super) fn note_lease(&self, process: ProcessId) {
        if self.is_leased(process) != Some(false) {
            self.leased.borrow_mut().insert(process, self.world.now());
        }
    }

    /// Since when `process` does nothing.
    pub(super) fn silent_for(&self, process: ProcessId) -> Duration {
        let heard = self.heard.borrow().get(&process).copied();
        self.world.now().saturating_sub(heard.unwrap_or_default())
    }

    /// Does `process` run?
    pub(super) fn is_alive(&self, process: ProcessId) -> bool {
        self.world.is_alive(NodeId::fs(process.0 - 1))
    }

    /// A request for `node` is answered now, in `epoch`.
    pub(super) fn answered(&self, incarnation: ProcessIncarnation, node: NodeId, epoch: Epoch) {
        let process = incarnation.process;
        self.answers.set(self.answers.get() + 1);
        let now = self.world.now();
        let mut nodes = self.nodes.borrow_mut();
        if let Some(&(latest, by, _)) = nodes.get(&node) {
            assert!(
                epoch >= latest,
                "{incarnation:?} answers for {node} in {epoch:?}, {by:?} has in {latest:?}: a stale read"
            );
            assert!(
                epoch > latest || by == incarnation,
                "{incarnation:?} and {by:?} answer for {node} in one epoch, {epoch:?}"
            );
        }
        let leased = self.leased.borrow().get(&process).copied().unwrap_or_default();
        assert!(
            now.saturating_sub(leased) <= ANSWERED_MAX,
            "{process} answers for {node} {:?} after its record was gone",
            now.saturating_sub(leased)
        );
        nodes.insert(node, (epoch, incarnation, now));
    }

    /// A process is assigned `node` in `epoch`.
    pub(super) fn begins(&self, incarnation: ProcessIncarnation, node: NodeId, epoch: Epoch) {
        if let Some(&(latest, by, _)) = self.nodes.borrow().get(&node) {
            assert!(
                epoch > latest || (epoch == latest && by == incarnation),
                "{incarnation:?} is assigned {node} in {epoch:?}, and {by:?} has in {latest:?}"
            );
        }
        // What an earlier map gave to others was checked as that map was seen.
        let owner = self.map_before(epoch, |map| map.assignment(node).map(Assignment::owner));
        if let Some(process) = owner.flatten().filter(|owner| *owner != incarnation.process) {
            self.assert_let_go(process, node, epoch);
        }
        let mut assigned = self.assigned.borrow_mut();
        assigned.insert((node, incarnation));
    }

    /// Of the last map before `epoch`, if any process saw one.
    fn map_before<T>(&self, epoch: Epoch, of: impl FnOnce(&NodeMap) -> T) -> Option<T> {
        self.maps.borrow().range(..epoch).next_back().map(|(_, map)| of(map))
    }

    /// `process` had `node`, and the map of `epoch` gives it to others: it has settled the node, or
    /// is over.
    fn assert_let_go(&self, process: ProcessId, node: NodeId, epoch: Epoch) {
        let assigned = self.assigned.borrow();
        let holder = assigned.iter().find(|(it, by)| *it == node && by.process == process);
        let Some((_, holder)) = holder else { return };
        assert!(
            self.is_leased(process) != Some(true) || !self.lives_as_before(process, epoch),
            "{epoch:?} gives {node} to others, and {holder:?} has not settled it"
        );
    }

    /// What the process assigned of `node` is settled.
    pub(super) fn stopped(&self, incarnation: ProcessIncarnation, node: NodeId) {
        self.assigned.borrow_mut().remove(&(node, incarnation));
    }

    /// `process` saw this map; `before` is the epoch of the one it saw last.
    pub(super) fn saw(&self, process: ProcessId, map: &NodeMap, before: Epoch) {
        if !self.maps.borrow().contains_key(&map.epoch) {
            for (node, assignment) in map.assignments() {
                let owner = self.map_before(map.epoch, |map| map.assignment(node));
                let owner = owner.flatten().map(Assignment::owner);
                if let Some(process) = owner.filter(|owner| *owner != assignment.owner()) {
                    self.assert_let_go(process, node, map.epoch);
                }
            }
        }
        let life = map.process(process).map_or(0, |known| known.incarnation);
        self.own_lives.borrow_mut().insert(process, life);
        assert!(map.epoch > before, "after the map of {before:?} comes one of {:?}", map.epoch);
        let mut maps = self.maps.borrow_mut();
        let known = maps.entry(map.epoch).or_insert_with(|| map.clone());
        assert!(known == map, "two maps of {:?}: {known:?} and {map:?}", map.epoch);
    }

    /// When a process last answered for `node`.
    pub(super) fn last_answer(&self, node: NodeId) -> Duration {
        self.nodes.borrow().get(&node).map_or(Duration::ZERO, |(_, _, at)| *at)
    }

    pub(super) fn has_answered_after(&self, node: NodeId, time: Duration) -> bool {
        self.last_answer(node) > time
    }
}
