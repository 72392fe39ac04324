//! Where data have copies, a volume goes on without the disks of hosts that are away, of as many as
//! it has copies besides one (ADR 96).
//!
//! Its processes decide that together, by compare-and-swap of the record of the volume, when the
//! node map says that the process of the host is gone, and before its nodes begin elsewhere: these
//! read what other disks have then.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use blockio::{DiskStage, VolumeMap, VolumeRecord};
use cluster::coordination::{Coordination, CoordinationError, Expect, WriteOutcome};
use cluster::membership::{NodeMap, Process, ProcessId};
use runtime::{Context, NodeKind};

use super::VOLUME_KEY;
use crate::disk_manager::can_do_without;

/// A host that does not start is waited for this long.
const START_MAX: Duration = Duration::from_secs(20);
/// The time between two looks for such hosts.
const LOOK_PAUSE: Duration = Duration::from_secs(1);
/// Tries to change a record that others change.
const TRIES_MAX: u32 = 16;

/// What one process knows of the hosts that are away.
pub(super) struct AbsentHosts {
    context: Context,
    engine: Rc<dyn Coordination>,
    volume: VolumeMap,
    map: RefCell<Option<NodeMap>>,
    /// This process ends: perhaps all do.
    ends: Cell<bool>,
}

impl AbsentHosts {
    pub(super) fn new(context: Context, engine: Rc<dyn Coordination>, volume: VolumeMap) -> Self {
        let (map, ends) = (RefCell::default(), Cell::new(false));
        Self { context, engine, volume, map, ends }
    }

    /// Hosts that end with this one are not missed.
    pub(super) fn end(&self) {
        self.ends.set(true);
    }

    /// Notes a node map; the disk nodes of those who have gone with it.
    pub(super) fn note(&self, map: &NodeMap) -> BTreeSet<u32> {
        let left = match self.map.borrow().as_ref() {
            Some(last) => {
                let lived = |id| last.process(id).is_some_and(Process::is_living);
                disk_nodes_away(map)
                    .filter(|(_, owner)| lived(*owner))
                    .map(|(node, _)| node)
                    .collect()
            }
            None => BTreeSet::new(),
        };
        let is_newer = |last: &NodeMap| last.epoch < map.epoch;
        if self.map.borrow().as_ref().is_none_or(is_newer) {
            *self.map.borrow_mut() = Some(map.clone());
        }
        left
    }

    /// Watches for hosts that never come, until the process ends.
    pub(super) async fn watch(&self) {
        let mut since: BTreeMap<u32, Duration> = BTreeMap::new();
        while !self.ends.get() {
            self.context.sleep(LOOK_PAUSE).await;
            let now = self.context.now();
            let away: BTreeSet<u32> =
                self.map.borrow().iter().flat_map(disk_nodes_away).map(|(node, _)| node).collect();
            since.retain(|node, _| away.contains(node));
            for node in &away {
                since.entry(*node).or_insert(now);
            }
            let missed = since.iter().filter(|(_, since)| now >= **since + START_MAX);
            let missed: BTreeSet<u32> = missed.map(|(node, _)| *node).collect();
            if let Err(error) = self.do_without(&missed).await {
                tracing::warn!(%error, "the coordination engine is waited for");
            }
        }
    }

    /// Decides that the disks of these disk nodes are away, if the volume can go on without them;
    /// this process knows of it then.
    pub(super) async fn do_without(&self, away: &BTreeSet<u32>) -> Result<(), CoordinationError> {
        for _ in 0..TRIES_MAX {
            if away.is_empty() {
                return Ok(());
            }
            let stored = self.engine.get(VOLUME_KEY).await?;
            let map = stored.as_ref().and_then(|stored| VolumeRecord::decode(&stored.value));
            let Some(map) = map else { return Ok(()) };
            let mut record = VolumeRecord::of(&map);
            let missed = &self.missed(&map) & away;
            if !missed.is_empty() {
                record = without(record, &map, &missed);
                let expect = Expect::still(stored.as_ref());
                let next = record.to_stored();
                let written = self.engine.write(VOLUME_KEY, &next, expect, None).await?;
                if let WriteOutcome::Differs { .. } = written {
                    continue;
                }
                tracing::warn!(disk_nodes = ?missed, "the volume goes on without disks of hosts");
            }
            if let Err(error) = self.volume.advance(&record) {
                tracing::error!(%error, "the record of the volume is not that of its disks");
            }
            return Ok(());
        }
        Err(CoordinationError::Busy)
    }
}

impl AbsentHosts {
    /// The disk nodes that the volume shall do without, and does not yet: those that are away, if
    /// it can do without all of them.
    fn missed(&self, volume: &VolumeMap) -> BTreeSet<u32> {
        let (known, mut missed) = (self.map.borrow(), BTreeSet::new());
        let mut rest = VolumeRecord::of(volume);
        let is_used =
            |node: u32| volume.disks_of(node).iter().any(|disk| !volume.state(*disk).is_absent());
        let away = known.iter().flat_map(disk_nodes_away).map(|(node, _)| node);
        for node in away.filter(|node| is_used(*node)) {
            let Ok(map) = VolumeMap::of_record(&rest) else { return BTreeSet::new() };
            if self.ends.get() || !can_do_without(&map, node) {
                return BTreeSet::new();
            }
            rest = without(rest, volume, &BTreeSet::from([node]));
            missed.insert(node);
        }
        missed
    }
}

/// What is decided if the disks of these disk nodes are away.
fn without(record: VolumeRecord, volume: &VolumeMap, away: &BTreeSet<u32>) -> VolumeRecord {
    let disks = away.iter().flat_map(|node| volume.disks_of(*node));
    disks.fold(record, |record, disk| record.with_state(disk, DiskStage::Offline {}))
}

/// The disk nodes of processes that are away, and whose they are.
fn disk_nodes_away(map: &NodeMap) -> impl Iterator<Item = (u32, ProcessId)> {
    map.assignments().filter_map(|(node, assignment)| {
        let NodeKind::Disk(disk_node) = node.kind() else { return None };
        let owner = assignment.owner();
        let is_away = map.process(owner).is_some_and(|process| !process.is_living());
        is_away.then_some((disk_node, owner))
    })
}
