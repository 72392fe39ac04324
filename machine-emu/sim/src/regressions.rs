//! Cases that failed once, so that they do not fail again.

use crate::{Case, Schedule, ScheduleError, Workload};

/// A case that fails without the fix of one bug; see `docs/bugs.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegressionCase {
    /// What clients do.
    pub workload: Workload,
    /// Draws everything that is not given here.
    pub seed: u64,
    /// The text of the faults, if not those that the seed draws.
    pub schedule: Option<&'static str>,
    /// What was wrong, in a few words.
    pub what: &'static str,
}

impl RegressionCase {
    /// As a run. The error is in the text of the schedule.
    pub fn case(&self) -> Result<Case, ScheduleError> {
        let schedule = self.schedule.map(str::parse::<Schedule>).transpose()?;
        Ok(Case { schedule, ..Case::new(self.workload, self.seed) })
    }
}

const fn regression(workload: Workload, seed: u64, what: &'static str) -> RegressionCase {
    RegressionCase { workload, seed, schedule: None, what }
}

/// All of them.
pub const REGRESSIONS: &[RegressionCase] = &[
    regression(Workload::Entries, 0, "a name outlived its inode over a crash"),
    regression(Workload::Entries, 1, "half a rename: two names, one link"),
    regression(Workload::Entries, 91073, "a page of an old tree was read where another is now"),
    regression(Workload::Files, 9, "a block taken and freed in one record"),
    regression(Workload::Full, 5003, "a refused write left old checksums"),
    regression(Workload::Full, 6, "a volume too small for one node"),
    regression(Workload::Files, 20526, "what was written after a seal was not known as dirty"),
    regression(Workload::Files, 40321, "what was written after a seal was not known as dirty"),
    regression(Workload::Disks, 5, "a flush that did not notice a restart of the disk node"),
    regression(Workload::Cache, 8, "a flush that did not notice a restart of the cache"),
    regression(Workload::Client, 223, "a commit undid what changed the inode meanwhile"),
    regression(Workload::Client, 75, "what was written after a seal was not known as dirty"),
    regression(Workload::Full, 435_633_446, "a group offered again after a crash had two owners"),
    regression(Workload::Contention, 9, "a later removal got the error of a stale handle"),
    regression(Workload::Contention, 256, "a lookup took a rename that was slow for damage"),
    regression(Workload::Damage, 5020, "an old image of one disk was mounted with newer others"),
    regression(
        Workload::OpenUnlinked,
        878_300_681,
        "a node that crashed alone forgot a part of a rename",
    ),
    regression(Workload::Full, 2_669_246_294, "groups offered and not taken had no owner"),
    regression(
        Workload::Names,
        113_955_505,
        "a checkpoint waited for lines that its own writes held",
    ),
    regression(Workload::Nfs4, 52_007_084, "a removal that was done was to be asked again"),
    regression(Workload::Nfs, 151, "a durable create that met its own name was not durable"),
    regression(Workload::Nfs, 5000, "a directory had the times of an earlier state after a crash"),
    regression(
        Workload::Members,
        500_393,
        "a process waited for the lease of a record that it had published and not read back",
    ),
    regression(
        Workload::Members,
        3_101_476_482,
        "the workload took nodes that an earlier map had given away for ones not settled",
    ),
    RegressionCase {
        workload: Workload::Members,
        seed: 1_471_323_409,
        schedule: Some(FROZEN_AT_A_BEGINNING),
        what: "a process that was frozen while it began a node never served it",
    },
    regression(
        Workload::Elastic,
        394_481_169,
        "a node closed a disk that was drained and had no room elsewhere to begin",
    ),
    regression(
        Workload::Elastic,
        1_002_149,
        "a sync that failed for a superblock lost what others had written",
    ),
    regression(
        Workload::Elastic,
        1_002_298,
        "a file that was cut said that its blocks were fewer than they were, after a crash",
    ),
    regression(Workload::Elastic, 1_003_244, "a store stopped since a new disk was not served yet"),
    RegressionCase {
        workload: Workload::Elastic,
        seed: 3_003_205,
        schedule: Some(FULL_HOST_AT_SUPERBLOCKS),
        what: "a superblock that was not durable was taken for good, and the other one written",
    },
    regression(
        Workload::Elastic,
        1074,
        "a disk that failed at its superblock while it was brought up to date was not given up",
    ),
    regression(
        Workload::Elastic,
        299,
        "a host that was away counted twice once one of its disks was lost",
    ),
];

/// The host of a disk is full while its superblocks learn of another disk.
const FULL_HOST_AT_SUPERBLOCKS: &str = "\
setup       at 0 us: network loss_ppm=0 corrupt_ppm=0 duplicate_ppm=10973 reorder_ppm=195960 \
delay_ppm=32085 delay_max_ns=2048000 jitter_ns=4000 loses_any=true
round 1     at 24509 us: power-cut
round 2     at 29261 us: fill-disk disk=disk-0-0 after=8
round 2     at 67715 us: end
";

/// Process 6 is frozen just after it was told to serve its nodes.
const FROZEN_AT_A_BEGINNING: &str = "\
round 1     at 533208 us: freeze node=fs:5 for_us=8289046
round 1     at 706751 us: cut-link from=disk:0 to=fs:3
round 1     at 706751 us: cut-link from=disk:0 to=fs:4
round 1     at 1967388 us: restart node=fs:2 for_us=4500498 keeps_power=true
round 1     at 2143585 us: cut-link from=fs:0 to=disk:0
round 1     at 2143585 us: cut-link from=disk:0 to=fs:1
round 1     at 8108192 us: end
";

#[cfg(test)]
mod tests {
    use runtime::seed::Rng;

    use super::*;

    #[test]
    fn what_failed_once_is_repeated_with_the_shortest_blocks() {
        const OLDER_THAN_LONGER_BLOCKS: usize = 25;
        for regression in &REGRESSIONS[..OLDER_THAN_LONGER_BLOCKS] {
            let case = regression.case().expect("a schedule");
            assert_eq!(
                case.layout(&mut Rng::new(case.seed)).content.unit,
                1,
                "{}",
                regression.what
            );
        }
    }

    #[test]
    fn what_failed_once_is_repeated_with_a_fast_engine() {
        const OLDER_THAN_SLOW_ENGINES: usize = 30;
        for regression in &REGRESSIONS[..OLDER_THAN_SLOW_ENGINES] {
            let case = regression.case().expect("a schedule");
            let layout = case.layout(&mut Rng::new(case.seed));
            assert!(!layout.slow_engine, "{}", regression.what);
        }
    }

    #[test]
    fn what_failed_once_is_repeated_with_one_copy_of_data() {
        const OLDER_THAN_COPIES: usize = 30;
        for regression in &REGRESSIONS[..OLDER_THAN_COPIES] {
            let case = regression.case().expect("a schedule");
            let layout = case.layout(&mut Rng::new(case.seed));
            assert_eq!(layout.content.copies(), 1, "{}", regression.what);
        }
    }

    #[test]
    fn data_has_copies_in_some_runs() {
        let copies = |seed| {
            let layout = Case::new(Workload::Damage, seed).layout(&mut Rng::new(seed));
            assert!(layout.content.copies() <= layout.disk_nodes * layout.disks_per_node);
            layout.content.copies()
        };
        let found: std::collections::BTreeSet<u32> = (0..200).map(copies).collect();
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[test]
    fn data_is_in_wide_stripes_in_some_runs() {
        let shape = |seed| {
            let layout = Case::new(Workload::Elastic, seed).layout(&mut Rng::new(seed));
            layout.map();
            layout.content.redundancy.wide_stripes().map(|shape| shape.data)
        };
        let found: std::collections::BTreeSet<_> = (0..300).map(shape).collect();
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [None, Some(2), Some(3)]);
    }

    #[test]
    fn files_have_longer_blocks_in_some_runs() {
        let unit = |seed| Case::new(Workload::Files, seed).layout(&mut Rng::new(seed)).content.unit;
        let units: std::collections::BTreeSet<u32> = (0..200).map(unit).collect();
        assert_eq!(units.into_iter().collect::<Vec<_>>(), [1, 2, 4, 8, 16]);
        assert_eq!(Case::new(Workload::Names, 0).layout(&mut Rng::new(0)).content.unit, 1);
    }
}
