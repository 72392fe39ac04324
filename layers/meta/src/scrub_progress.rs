//! How far a node has compared what it has with its checksums, and what it found on which disk:
//! stored under [`keys::scrub_progress`](crate::keys::scrub_progress).

use std::mem::take;

use blockio::{DiskName, DiskStage, VolumeMap};

use crate::protocol::DiskScrub;

const HOUR: u64 = 3600;
/// Hours of which the repairs are remembered.
const HOURS: u64 = 24;

runtime::record! {
    /// How far a node is. Times are seconds since 1970.
    #[derive(Default)]
    pub struct ScrubProgress {
        /// When the last pass began; before the first one, when the node first looked at this.
        began: u64,
        /// The key from which on the pass goes on; `None` if none is under way.
        after: Option<Vec<u8>>,
        /// Disk nodes and their disks that were not there during all of the pass.
        missed: Vec<(u32, u32)>,
        /// What is known of the disks.
        disks: Vec<DiskHealth>,
    }
}

runtime::record! {
    /// What a node has found on a disk.
    #[derive(Default)]
    pub struct DiskHealth {
        /// The disk node.
        disk_node: u32,
        /// The disk within the node.
        disk: u32,
        /// When a pass over all that is on it ended last; 0 for never.
        scrubbed: u64,
        /// Blocks that were made anew.
        repairs: u64,
        /// How many of these in which of the last hours, counted since 1970.
        recent: Vec<(u64, u64)>,
        /// Blocks that the last pass could not make anew.
        damaged: u64,
        /// The same of the pass under way.
        damaged_now: u64,
    }
}

impl ScrubProgress {
    /// Of a node that has never looked: what is new need not be read soon.
    pub(crate) fn starting(now: u64) -> Self {
        Self { began: now, ..Self::default() }
    }

    /// Begins a pass, or goes on with the one under way. Returns the key to read from.
    pub(crate) fn begin(&mut self, now: u64) -> Vec<u8> {
        if let Some(after) = &self.after {
            return after.clone();
        }
        (self.began, self.after) = (now, Some(Vec::new()));
        self.missed.clear();
        for health in &mut self.disks {
            health.damaged_now = 0;
        }
        Vec::new()
    }

    /// What is on disks that are not there now is not read.
    pub(crate) fn note_missed(&mut self, map: &VolumeMap) {
        let is_there = |stage| matches!(stage, DiskStage::Online {} | DiskStage::Draining {});
        for disk in map.disks().into_iter().filter(|disk| !is_there(map.state(*disk))) {
            let missed = (disk.disk_node, disk.disk);
            if !self.missed.contains(&missed) {
                self.missed.push(missed);
            }
        }
    }

    /// A block on a disk was bad.
    pub(crate) fn note_bad(&mut self, disk: DiskName, is_mended: bool, now: u64) {
        let health = self.health(disk);
        if !is_mended {
            health.damaged_now += 1;
            return;
        }
        health.repairs += 1;
        let hour = now / HOUR;
        health.recent.retain(|(then, _)| is_recent(*then, hour));
        match health.recent.iter_mut().find(|(then, _)| *then == hour) {
            Some((_, repairs)) => *repairs += 1,
            None => health.recent.push((hour, 1)),
        }
    }

    /// All was read, on all disks that were there all the time. Disks that are gone are forgotten.
    pub(crate) fn end(&mut self, map: &VolumeMap, now: u64) {
        self.after = None;
        let (missed, disks) = (take(&mut self.missed), map.disks());
        self.disks.retain(|health| disks.contains(&health.name()));
        for health in &mut self.disks {
            health.damaged = health.damaged_now;
        }
        for disk in disks {
            if !missed.contains(&(disk.disk_node, disk.disk)) {
                self.health(disk).scrubbed = now;
            }
        }
    }

    pub(crate) fn report(&self, now: u64) -> Vec<DiskScrub> {
        let report = |health: &DiskHealth| DiskScrub {
            disk_node: health.disk_node,
            disk: health.disk,
            scrubbed: health.scrubbed,
            repairs: health.repairs,
            repairs_in_day: health.in_day(now),
            damaged: health.damaged.max(health.damaged_now),
        };
        self.disks.iter().map(report).collect()
    }

    fn health(&mut self, disk: DiskName) -> &mut DiskHealth {
        let at = self.disks.iter().position(|health| health.name() == disk).unwrap_or_else(|| {
            let DiskName { disk_node, disk } = disk;
            self.disks.push(DiskHealth { disk_node, disk, ..DiskHealth::default() });
            self.disks.len() - 1
        });
        &mut self.disks[at]
    }
}

impl DiskHealth {
    fn name(&self) -> DiskName {
        DiskName { disk_node: self.disk_node, disk: self.disk }
    }

    fn in_day(&self, now: u64) -> u64 {
        let recent = self.recent.iter().filter(|(then, _)| is_recent(*then, now / HOUR));
        recent.map(|(_, repairs)| repairs).sum()
    }
}

/// A clock that was set back does not keep counts for ever.
fn is_recent(then: u64, hour: u64) -> bool {
    (then..then + HOURS).contains(&hour)
}

#[cfg(test)]
mod tests {
    use runtime::wire::{from_bytes, to_bytes};

    use super::*;

    const DISK: DiskName = DiskName { disk_node: 1, disk: 0 };

    #[test]
    fn repairs_are_counted_in_all_and_within_a_day() {
        let mut progress = ScrubProgress::starting(0);
        for hour in 0..48 {
            progress.note_bad(DISK, true, hour * HOUR + 7);
            progress.note_bad(DISK, true, hour * HOUR + 8);
        }
        progress.note_bad(DISK, false, 47 * HOUR);
        let progress: ScrubProgress = from_bytes(&to_bytes(&progress)).unwrap();
        let [found] = progress.report(47 * HOUR + 9)[..] else { panic!("one disk") };
        assert_eq!((found.repairs, found.repairs_in_day, found.damaged), (96, 48, 1));
        assert_eq!(progress.report(60 * HOUR)[0].repairs_in_day, 2 * 11);
        assert_eq!(progress.report(100 * HOUR)[0].repairs_in_day, 0);
        assert_eq!(progress.disks[0].recent.len(), 24);
    }

    #[test]
    fn a_pass_goes_on_where_it_was_and_the_next_one_begins_anew() {
        let mut progress = ScrubProgress::starting(5);
        assert!(progress.begin(10).is_empty());
        progress.note_bad(DISK, false, 10);
        progress.after = Some(vec![7]);
        assert_eq!((progress.begin(20), progress.began), (vec![7], 10));
        progress.after = None;
        assert!(progress.begin(30).is_empty());
        assert_eq!((progress.began, progress.disks[0].damaged_now), (30, 0));
    }
}
