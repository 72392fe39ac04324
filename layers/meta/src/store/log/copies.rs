//! Comparing the copies of a log while it is replayed: which disk has rotten, and which is not
//! of today.

use std::collections::BTreeMap;

use blockio::{DiskName, VolumeMap};

use super::format::{ENTRY_HEAD, SegmentCopies};

/// Entries before the last one that a disk must miss at its end to be called old. A single one may
/// be one lost write, which the other copy makes good.
const MISSED_MIN: u64 = 2;
/// Bytes of an entry's head that an entry with some rot still has.
const ALIKE_MIN: usize = 48;

/// One entry or header as a copy has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyState {
    /// As it was written.
    Whole,
    /// It is there, with other bytes.
    Rotten,
    /// Something else is there.
    Missing,
    /// The disk could not read it.
    Unreadable,
}

impl CopyState {
    /// What a copy that cannot be decoded has at a place, where the other copy has `good`.
    pub(crate) fn beside(good: &[u8], found: &[u8]) -> Self {
        if good == found {
            return Self::Whole;
        }
        let heads = good.iter().zip(found).take(ENTRY_HEAD);
        let alike = heads.filter(|(good, found)| good == found).count();
        if alike >= ALIKE_MIN { Self::Rotten } else { Self::Missing }
    }
}

/// What one disk has of the entries that had copies on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DiskLog {
    pub(crate) rotten: u64,
    /// The last entry so far is rotten: a crash may have cut its writing short.
    last_is_rotten: bool,
    pub(crate) unreadable: u64,
    /// Entries that are missing, in all.
    pub(crate) missing: u64,
    /// Of these, since the last one that is there, and not counting the last entry of the log,
    /// whose writing a crash may have cut short.
    missing_at_end: u64,
    /// The last entry so far is missing.
    last_is_missing: bool,
}

impl DiskLog {
    /// Entries that are rotten, and missing, but for a last one that a crash may have cut short.
    fn durable_losses(&self) -> (u64, u64) {
        let last = [self.last_is_rotten, self.last_is_missing].map(u64::from);
        (self.rotten - last[0], self.missing - last[1])
    }
}

/// What the copies of a log tell of the disks that hold them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogCopies {
    pub(crate) disks: BTreeMap<DiskName, DiskLog>,
}

impl LogCopies {
    /// One more entry was read; `seen` is how each copy has it.
    pub(crate) fn entry(&mut self, map: &VolumeMap, copies: &SegmentCopies, seen: &[CopyState]) {
        for log in self.disks.values_mut() {
            // What is missing there came before this entry, so it was durable.
            log.missing_at_end += u64::from(std::mem::take(&mut log.last_is_missing));
            log.last_is_rotten = false;
        }
        let disks = || copies.stripes().iter().map(|stripe| map.place(*stripe).disk);
        for (disk, seen) in disks().zip(seen) {
            let is_apart = disks().filter(|other| *other == disk).count() == 1;
            let log = self.disks.entry(disk).or_default();
            match seen {
                CopyState::Whole if is_apart => {
                    (log.missing_at_end, log.last_is_missing) = (0, false);
                }
                CopyState::Whole => {}
                CopyState::Rotten => {
                    log.rotten += 1;
                    log.last_is_rotten = true;
                }
                CopyState::Unreadable => log.unreadable += 1,
                CopyState::Missing => {
                    log.missing += 1;
                    log.last_is_missing = is_apart;
                }
            }
        }
    }

    /// A disk that ends too early: what it misses was durable on it before later entries were
    /// written.
    pub(crate) fn outdated(&self) -> Option<DiskName> {
        let mut old = self.disks.iter().filter(|(_, log)| log.missing_at_end >= MISSED_MIN);
        old.next().map(|(&disk, _)| disk)
    }

    /// Tells what was read from one copy only. The mount goes on with a fresh log, which has both.
    pub(crate) fn warn(&self, node: u32) {
        for (disk, log) in &self.disks {
            let unreadable = log.unreadable;
            let (rotten, missing) = log.durable_losses();
            if rotten + unreadable + missing > 0 {
                tracing::warn!(
                    node,
                    %disk,
                    rotten,
                    unreadable,
                    missing,
                    "log entries were read from another copy; watch that disk"
                );
            }
        }
    }

    /// The same in words, for a check.
    pub(crate) fn tell(&self) -> Vec<String> {
        let mut told = Vec::new();
        for (disk, log) in &self.disks {
            let (rotten, missing) = log.durable_losses();
            for (count, what) in
                [(rotten, "damaged"), (log.unreadable, "unreadable"), (missing, "missing")]
            {
                if count > 0 {
                    told.push(format!(
                        "{count} entries are {what} on disk {disk}, and whole in another copy"
                    ));
                }
            }
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use blockio::Geometry;
    use runtime::VolumeId;

    use super::*;

    fn map() -> VolumeMap {
        let geometry = Geometry { volume: VolumeId(1), stripe_size: 65536, fs_nodes: 1 };
        VolumeMap::grid(geometry, 2, 2, 100).expect("a small volume")
    }

    fn told(seen: &[[CopyState; 2]]) -> LogCopies {
        let mut copies = LogCopies::default();
        for seen in seen {
            // Disk 0 of both disk nodes.
            copies.entry(&map(), &SegmentCopies::new(&[0, 1]), seen);
        }
        copies
    }

    #[test]
    fn a_disk_that_ends_two_entries_early_is_old_and_one_that_a_crash_cut_short_is_not() {
        use CopyState::{Missing, Rotten, Whole};
        assert_eq!(told(&[[Whole, Whole]; 4]).outdated(), None);
        let torn = told(&[[Whole, Whole], [Whole, Missing]]);
        assert_eq!((torn.outdated(), torn.tell().len()), (None, 0));
        let cut_short = told(&[[Whole, Whole], [Whole, Rotten]]);
        assert_eq!((cut_short.outdated(), cut_short.tell().len()), (None, 0), "its head is there");
        let rotten = told(&[[Whole, Rotten], [Whole, Whole]]);
        assert_eq!((rotten.outdated(), rotten.tell().len()), (None, 1));
        let one = told(&[[Whole, Missing], [Whole, Missing]]);
        assert_eq!((one.outdated(), one.tell().len()), (None, 1), "one lost write at the end");
        let old = [[Whole, Whole], [Whole, Missing], [Whole, Missing], [Whole, Missing]];
        assert_eq!(told(&old).outdated(), Some(DiskName { disk_node: 1, disk: 0 }));
        let lost = [[Whole, Missing], [Whole, Missing], [Whole, Missing], [Whole, Whole]];
        assert_eq!(told(&lost).outdated(), None, "it has a later one");
        let rotten = [[Rotten, Whole], [Rotten, Whole], [Rotten, Whole], [Rotten, Whole]];
        assert_eq!((told(&rotten).outdated(), told(&rotten).tell().len()), (None, 1));
    }

    #[test]
    fn two_copies_on_one_disk_say_nothing_of_its_age() {
        let mut copies = LogCopies::default();
        for _ in 0..5 {
            let places = SegmentCopies::new(&[0, 4]);
            copies.entry(&map(), &places, &[CopyState::Whole, CopyState::Missing]);
        }
        assert_eq!(copies.outdated(), None);
    }

    #[test]
    fn rot_is_told_from_what_was_never_written() {
        let entry: Vec<u8> = (0..200).collect();
        let mut rotten = entry.clone();
        rotten[3] ^= 1;
        rotten[100] = 0;
        assert_eq!(CopyState::beside(&entry, &entry), CopyState::Whole);
        assert_eq!(CopyState::beside(&entry, &rotten), CopyState::Rotten);
        assert_eq!(CopyState::beside(&entry, &[0; 200]), CopyState::Missing);
    }
}
