//! What is known of the disks, for who asks.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use blockio::protocol::{Describe, DiskStatus, Error as DiskNodeAnswer};
use blockio::{DiskName, DiskStage, VolumeRecord};
use fileio::protocol::{DiskCondition, DiskList, DiskReport};
use futures::future::{join, join_all};
use meta::protocol::{DiskScrub, NodeMoves};
use runtime::NodeId;

use super::{BLOCK, DiskManager, LIST_WAIT};

/// The rate at which data moves is that over at least the first of these, and at most the second.
const METER_MIN: Duration = Duration::from_secs(1);
const METER_MAX: Duration = Duration::from_mins(1);

/// How fast data moves between disks.
#[derive(Default)]
pub(super) struct MoveMeter {
    /// Bytes that had moved, and when.
    last: Cell<Option<(Duration, u64)>>,
    per_second: Cell<u64>,
}

impl MoveMeter {
    /// Takes over what nodes say now. Returns bytes per second; 0 if it is not known.
    pub(super) fn note(&self, now: Duration, moves: &[NodeMoves]) -> u64 {
        self.note_bytes(now, moved_bytes(moves))
    }

    fn note_bytes(&self, now: Duration, moved: u64) -> u64 {
        let passed = self.last.get().map(|(then, before)| (now.saturating_sub(then), before));
        match passed {
            Some((passed, _)) if passed < METER_MIN => return self.per_second.get(),
            Some((passed, before)) if passed <= METER_MAX => {
                let millis = u64::try_from(passed.as_millis()).unwrap_or(u64::MAX);
                self.per_second.set(moved.saturating_sub(before).saturating_mul(1000) / millis);
            }
            _ => self.per_second.set(0),
        }
        self.last.set(Some((now, moved)));
        self.per_second.get()
    }
}

fn moved_bytes(moves: &[NodeMoves]) -> u64 {
    moves.iter().map(|moves| moves.moved_blocks * BLOCK).sum()
}

/// What all nodes have found together.
struct Scrubs {
    disks: BTreeMap<DiskName, DiskScrub>,
    /// What has been read of the scrubs under way.
    under_way: Option<u64>,
}

impl Scrubs {
    fn of(moves: &[NodeMoves]) -> Self {
        let mut disks: BTreeMap<DiskName, DiskScrub> = BTreeMap::new();
        for scrub in moves.iter().flat_map(|moves| &moves.scrubs) {
            let name = DiskName { disk_node: scrub.disk_node, disk: scrub.disk };
            let all = disks.entry(name).or_insert(DiskScrub {
                repairs: 0,
                repairs_in_day: 0,
                damaged: 0,
                ..*scrub
            });
            // All of it was read when the last node had read its part.
            all.scrubbed = all.scrubbed.min(scrub.scrubbed);
            all.repairs += scrub.repairs;
            all.repairs_in_day += scrub.repairs_in_day;
            all.damaged += scrub.damaged;
        }
        // A node that has not found anything on a disk has not read what is on it either.
        for (name, all) in &mut disks {
            let knows = |moves: &&NodeMoves| {
                let is_it = |scrub: &DiskScrub| {
                    (scrub.disk_node, scrub.disk) == (name.disk_node, name.disk)
                };
                moves.scrubs.iter().any(is_it)
            };
            if moves.iter().any(|moves| !knows(&moves)) {
                all.scrubbed = 0;
            }
        }
        let under_way = moves.iter().filter_map(|moves| moves.scrubbed_bytes).reduce(|a, b| a + b);
        Self { disks, under_way }
    }
}

/// How many disks more may be lost. One that does not answer counts as lost before the record of
/// the volume says so, unless nothing is on it.
fn losses_left(record: &VolumeRecord, disks: &[DiskReport], silent_nodes: u32) -> u32 {
    let has_data = |disk: &DiskReport| disk.used_bytes > 0 || disk.has_roots || silent_nodes > 0;
    let is_away =
        |disk: &&DiskReport| disk.condition == DiskCondition::Offline {} && has_data(disk);
    let name = |report: &DiskReport| DiskName { disk_node: report.disk_node, disk: report.disk };
    let seen = disks
        .iter()
        .filter(is_away)
        .fold(record.clone(), |record, disk| record.with_state(name(disk), DiskStage::Offline {}));
    seen.losses_left()
}

impl DiskManager {
    /// What disk nodes say of their disks.
    pub(super) async fn describe(&self) -> BTreeMap<DiskName, DiskStatus> {
        let nodes: BTreeSet<u32> = self.map.disks().iter().map(|disk| disk.disk_node).collect();
        let asked = nodes.into_iter().map(|node| async move {
            let is_transient = DiskNodeAnswer::is_transient;
            (node, self.ask_within(LIST_WAIT, NodeId::disk(node), Describe {}, is_transient).await)
        });
        let mut found = BTreeMap::new();
        for (disk_node, answer) in join_all(asked).await {
            for status in answer.unwrap_or_default() {
                found.insert(DiskName { disk_node, disk: status.disk }, status);
            }
        }
        found
    }

    pub(super) async fn list_all(&self) -> DiskList {
        let ((moves, silent_nodes), there) = join(self.moves_now(), self.describe()).await;
        let record = VolumeRecord::of(&self.map);
        let scrubs = Scrubs::of(&moves);
        let mut used: BTreeMap<DiskName, (u64, bool, bool)> = BTreeMap::new();
        for share in moves.iter().flat_map(|moves| &moves.disks) {
            let name = DiskName { disk_node: share.disk_node, disk: share.disk };
            let (blocks, has_roots, is_open) = used.entry(name).or_default();
            *blocks += share.used_blocks;
            *has_roots |= share.has_roots;
            *is_open |= share.is_open;
        }
        let gone = record.states.iter().filter(|entry| entry.state.is_gone());
        let names = self.map.disks().into_iter().chain(gone.map(|entry| entry.disk));
        let report = |disk: DiskName| {
            let (blocks, has_roots, is_open) = used.get(&disk).copied().unwrap_or_default();
            let is_empty = blocks == 0 && !has_roots && !is_open && silent_nodes == 0;
            let status = there.get(&disk);
            let is_there = status.is_some_and(|status| status.healthy);
            let condition = match record.state(disk) {
                DiskStage::Retired {} => DiskCondition::Retired {},
                DiskStage::Lost {} => DiskCondition::Lost {},
                DiskStage::Offline {} => DiskCondition::Offline {},
                _ if !is_there => DiskCondition::Offline {},
                DiskStage::Online {} => DiskCondition::Online {},
                DiskStage::Returning {} => DiskCondition::Returning {},
                DiskStage::Draining {} if is_empty => DiskCondition::Drained {},
                DiskStage::Draining {} => DiskCondition::Draining {},
            };
            let scrub = scrubs.disks.get(&disk);
            DiskReport {
                disk_node: disk.disk_node,
                disk: disk.disk,
                condition,
                bytes: self.map.stripes_on(disk) * u64::from(self.map.geometry().stripe_size),
                used_bytes: blocks * BLOCK,
                has_roots,
                path: status.map_or_else(String::new, |status| status.path.clone()),
                obstacle: status.and_then(|status| status.obstacle),
                scrubbed: scrub.map_or(0, |scrub| scrub.scrubbed),
                repairs: scrub.map_or(0, |scrub| scrub.repairs),
                repairs_in_day: scrub.map_or(0, |scrub| scrub.repairs_in_day),
                damaged: scrub.map_or(0, |scrub| scrub.damaged),
            }
        };
        let mut disks: Vec<DiskReport> = names.map(report).collect();
        disks.sort_unstable_by_key(|report| (report.disk_node, report.disk));
        let losses_left = losses_left(&record, &disks, silent_nodes);
        let trouble = moves.iter().find(|moves| !moves.trouble.is_empty());
        DiskList {
            version: record.version,
            disks,
            next: (0..self.map.disk_nodes()).map(|node| self.map.next_disk(node)).collect(),
            pace: record.policy.name().to_owned(),
            redundancy: record.redundancy.to_string(),
            classes: record.classes.iter().map(ToString::to_string).collect(),
            waiting_pieces: moves.iter().map(|moves| moves.waiting_pieces).sum(),
            losses_left,
            loss_delay_seconds: record.loss_delay_seconds,
            balancing: record.balancing,
            moved_per_second: self.meter.note(self.context.now(), &moves),
            scrubbed_bytes: scrubs.under_way,
            moved_bytes: moves.iter().map(|moves| moves.moved_blocks * BLOCK).sum(),
            trouble: trouble.map_or_else(String::new, |moves| moves.trouble.clone()),
            silent_nodes,
        }
    }
}

#[cfg(test)]
mod tests {
    use blockio::{Geometry, RedundancyClass, VolumeMap};
    use runtime::VolumeId;

    use super::*;

    #[test]
    fn a_disk_that_does_not_answer_counts_as_lost() {
        let geometry = Geometry { volume: VolumeId(1), stripe_size: 65536, fs_nodes: 4 };
        let map = VolumeMap::grid(geometry, 4, 1, 1000).expect("a small volume");
        let redundancy = RedundancyClass::Copies { count: 3 };
        let record = VolumeRecord { redundancy, ..VolumeRecord::of(&map) };
        let disk = |disk_node, condition, used_bytes| DiskReport {
            disk_node,
            disk: 0,
            condition,
            bytes: 1000,
            used_bytes,
            has_roots: false,
            path: String::new(),
            obstacle: None,
            scrubbed: 0,
            repairs: 0,
            repairs_in_day: 0,
            damaged: 0,
        };
        let (online, offline) = (DiskCondition::Online {}, DiskCondition::Offline {});
        assert_eq!(losses_left(&record, &[disk(0, online, 1), disk(1, online, 1)], 0), 2);
        assert_eq!(losses_left(&record, &[disk(0, online, 1), disk(1, offline, 1)], 0), 1);
        assert_eq!(losses_left(&record, &[disk(0, offline, 1), disk(1, offline, 1)], 0), 0);
        let drained = [disk(1, offline, 0)];
        assert_eq!(losses_left(&record, &drained, 0), 2, "nothing is on it");
        assert_eq!(losses_left(&record, &drained, 1), 1, "a node may have something on it");
        let away = DiskName { disk_node: 1, disk: 0 };
        let told = record.with_state(away, DiskStage::Offline {});
        assert_eq!(losses_left(&told, &[disk(1, offline, 1)], 0), 1, "it counts once");
    }

    #[test]
    fn the_rate_is_that_of_the_last_seconds() {
        let meter = MoveMeter::default();
        let at = |millis, moved| meter.note_bytes(Duration::from_millis(millis), moved);
        assert_eq!(at(5000, 100), 0, "nothing is known yet");
        assert_eq!(at(5500, 600), 0, "too soon");
        assert_eq!(at(7000, 2100), 1000);
        assert_eq!(at(7001, 9999), 1000, "as before");
        assert_eq!(at(9000, 50), 0, "a node has started anew");
        assert_eq!(at(100_000, 5000), 0, "the last look was long ago");
    }
}
