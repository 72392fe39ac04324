//! How many stripes are wholly free on each disk.

use std::collections::{BTreeMap, BTreeSet};

use blockio::{DiskName, VolumeMap};

/// Wholly free stripes, by disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct WholeStripes {
    on_disks: BTreeMap<DiskName, u64>,
    total: u64,
}

impl WholeStripes {
    /// `more` stripes of this disk became free, or were taken.
    pub(super) fn add(&mut self, disk: DiskName, more: i64) {
        let count = self.on_disks.entry(disk).or_default();
        *count = count.saturating_add_signed(more);
        self.total = self.total.saturating_add_signed(more);
    }

    /// The disks that have, or had, some.
    pub(super) fn disks(&self) -> impl Iterator<Item = &DiskName> {
        self.on_disks.keys()
    }

    /// All of them.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Those on these disks.
    pub(crate) fn on(&self, disks: &BTreeSet<DiskName>) -> u64 {
        disks.iter().filter_map(|disk| self.on_disks.get(disk)).sum()
    }

    /// Those that are left on one disk once all others have been taken two at a time, each of the
    /// two on another disk.
    pub(super) fn without_partner(&self) -> u64 {
        let most = self.on_disks.values().copied().max().unwrap_or(0);
        (2 * most).saturating_sub(self.total)
    }

    /// Where data has copies, the disk with as many as all others together, or nearly: one of two
    /// copies must be there, or others are left without a partner.
    pub(super) fn largest_part(&self, map: &VolumeMap) -> Option<DiskName> {
        if map.redundancy().copies() > 1 { self.fullest_half() } else { None }
    }

    fn fullest_half(&self) -> Option<DiskName> {
        let (disk, most) = self.on_disks.iter().max_by_key(|(_, count)| **count)?;
        (2 * most + 2 >= self.total).then_some(*disk)
    }
}

#[cfg(test)]
mod tests {
    use runtime::seed::with_seed;

    use super::*;

    #[test]
    fn two_at_a_time_take_all_but_those_without_a_partner() {
        with_seed(|rng| {
            for _ in 0..200 {
                let mut whole = WholeStripes::default();
                let disks = 2 + rng.below(3) as u32;
                let disk = |disk| DiskName { disk_node: 0, disk };
                (0..disks).for_each(|at| whole.add(disk(at), rng.below(20).cast_signed()));
                let left = whole.without_partner();
                let free = |whole: &WholeStripes, away: Option<DiskName>| {
                    let largest = whole.fullest_half().filter(|disk| Some(*disk) != away);
                    let has = |disk: &DiskName| whole.on_disks[disk] > 0 && Some(*disk) != away;
                    largest.filter(has).or_else(|| (0..disks).map(disk).find(has))
                };
                while let Some(one) = free(&whole, None) {
                    whole.add(one, -1);
                    let Some(other) = free(&whole, Some(one)) else {
                        whole.add(one, 1);
                        break;
                    };
                    whole.add(other, -1);
                }
                let odd = whole.total() - left;
                assert!(odd <= 1, "{odd} more than {left}");
            }
        });
    }
}
