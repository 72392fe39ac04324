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

    /// Those that are left once all others have been taken, `copies` at a time, each of them on
    /// another disk.
    pub(super) fn without_partner(&self, copies: u32) -> u64 {
        let mut counts: Vec<u64> = self.on_disks.values().copied().collect();
        counts.sort_unstable_by(|one, other| other.cmp(one));
        // With each of the largest disks in every set, the rest of a set is on the others.
        let left = |largest: u32| {
            let others = counts.iter().skip(largest as usize).sum::<u64>();
            let sets = others / u64::from(copies - largest);
            self.total.saturating_sub(u64::from(copies) * sets)
        };
        (1..copies).map(left).max().unwrap_or(0)
    }

    /// Where data has copies, of which `left` are to be placed on the disks that are allowed: the
    /// largest of these, if others are left without a partner unless it has a copy of everything,
    /// or nearly.
    pub(super) fn largest_part(
        &self,
        map: &VolumeMap,
        left: usize,
        is_allowed: impl Fn(DiskName) -> bool,
    ) -> Option<DiskName> {
        let copies = u64::from(map.redundancy().copies());
        if copies > 1 { self.fullest((copies, left as u64), is_allowed) } else { None }
    }

    fn fullest(
        &self,
        (copies, left): (u64, u64),
        is_allowed: impl Fn(DiskName) -> bool,
    ) -> Option<DiskName> {
        let allowed = || self.on_disks.iter().filter(|(disk, _)| is_allowed(**disk));
        let (disk, most) = allowed().max_by_key(|(_, count)| **count)?;
        let all: u64 = allowed().map(|(_, count)| count).sum();
        let is_needed = copies * (most + 1) >= self.total || left * (most + 1) >= all;
        is_needed.then_some(*disk)
    }
}

/// The disks that have copies of something.
#[derive(Clone, Debug, Default)]
pub(super) struct CopyDisks(BTreeSet<DiskName>);

impl CopyDisks {
    pub(super) fn add(&mut self, disk: DiskName) {
        self.0.insert(disk);
    }

    pub(super) fn first(&self) -> Option<&DiskName> {
        self.0.first()
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Has the node of `disk` none of them?
    pub(super) fn is_on_other_node(&self, disk: DiskName) -> bool {
        self.0.iter().all(|other| other.disk_node != disk.disk_node)
    }

    /// Has `disk` none of them?
    pub(super) fn is_on_other_disk(&self, disk: DiskName) -> bool {
        !self.0.contains(&disk)
    }
}

#[cfg(test)]
mod tests {
    use runtime::seed::with_seed;

    use super::*;

    #[test]
    fn sets_of_copies_take_all_but_those_without_a_partner() {
        with_seed(|rng| {
            for _ in 0..400 {
                let mut whole = WholeStripes::default();
                let copies = 2 + rng.below(3) as u32;
                let disks = copies + rng.below(3) as u32;
                let disk = |disk| DiskName { disk_node: 0, disk };
                let most = 1 << rng.below(9);
                (0..disks).for_each(|at| whole.add(disk(at), rng.below(most).cast_signed()));
                let left = whole.without_partner(copies);
                let free = |whole: &WholeStripes, away: &CopyDisks| {
                    let has =
                        |disk: DiskName| whole.on_disks[&disk] > 0 && away.is_on_other_disk(disk);
                    let left = u64::from(copies) - away.count() as u64;
                    let must_have = whole.fullest((copies.into(), left), has);
                    must_have.or_else(|| (0..disks).map(disk).find(|disk| has(*disk)))
                };
                loop {
                    let mut away = CopyDisks::default();
                    for _ in 0..copies {
                        let Some(disk) = free(&whole, &away) else { break };
                        whole.add(disk, -1);
                        away.add(disk);
                    }
                    if away.count() < copies as usize {
                        away.0.into_iter().for_each(|disk| whole.add(disk, 1));
                        break;
                    }
                }
                let odd = whole.total() - left;
                assert!(
                    odd <= 2 * u64::from(copies),
                    "{odd} more than {left} of {copies}: {whole:?}"
                );
            }
        });
    }
}
