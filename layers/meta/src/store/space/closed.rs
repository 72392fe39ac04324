//! Disks of which nothing is handed out, since they are being drained or are retired; and disks of
//! which some of the content moves to others.
//!
//! A free block of a closed disk is busy like one in use, so that no search meets it; what is
//! withheld in this way is noted, and free again when the disk is opened.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use blockio::DiskName;

use super::{BlockAllocator, EmptyingGroups};

/// The disks of which nothing is handed out.
pub(crate) struct ClosedDisks<'a>(pub(crate) &'a mut BlockAllocator);

impl ClosedDisks<'_> {
    /// Some of what is on these disks moves to others.
    pub(crate) fn set_shedding(self, disks: BTreeSet<DiskName>) {
        self.0.shedding = disks;
    }

    /// From now on these disks are closed, and others are open.
    pub(crate) fn set(self, closed: BTreeSet<DiskName>) {
        let space = self.0;
        let changed: BTreeSet<DiskName> =
            space.closed.symmetric_difference(&closed).copied().collect();
        if changed.is_empty() {
            return;
        }
        let map = space.layout.map().clone();
        let owned: Vec<u64> = space.groups().collect();
        let stripes = owned.into_iter().flat_map(|group| space.layout.stripes_of(group));
        let stripes: Vec<(u64, bool)> = stripes
            .map(|stripe| (stripe, map.place(stripe).disk))
            .filter(|(_, disk)| changed.contains(disk))
            .map(|(stripe, disk)| (stripe, closed.contains(&disk)))
            .collect();
        // Until all is decided stripe by stripe none counts as closed.
        space.closed.clear();
        let mut to_withhold = Vec::new();
        for (stripe, closes) in stripes {
            let run = space.layout.stripe_run(stripe).blocks();
            let number = space.layout.group_of_stripe(stripe);
            let Some(group) = space.groups.get_mut(&number) else { continue };
            let (local, start) = (group.local(run), group.start);
            let global =
                |part: Range<u32>| start + u64::from(part.start)..start + u64::from(part.end);
            if closes {
                let free: Vec<_> = group.busy.runs(local, false).map(global).collect();
                to_withhold.extend(free.iter().cloned());
                for blocks in free {
                    space.set_busy(blocks, true);
                }
            } else if let Some(withheld) = &mut group.withheld {
                let free: Vec<_> = withheld.runs(local.clone(), true).map(global).collect();
                withheld.fill(local, false);
                for blocks in free {
                    space.set_busy(blocks, false);
                }
            }
        }
        space.closed = closed;
        // Busy as they are, they count as withheld.
        for blocks in to_withhold {
            space.set_busy(blocks, false);
        }
    }
}

/// Why the content of blocks moves elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveReason {
    /// Their group is being emptied, so that another node can have it.
    Group,
    /// Their disk is being drained.
    Drain,
    /// Their disk is fuller than others.
    Balance,
}

/// What is where on the disks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpaceOnDisks<'a>(pub(crate) &'a BlockAllocator);

impl SpaceOnDisks<'_> {
    fn disk_of(self, stripe: u64) -> DiskName {
        self.0.layout.map().place(stripe).disk
    }

    /// Is nothing of this disk handed out?
    pub(crate) fn is_closed(self, disk: DiskName) -> bool {
        self.0.closed.contains(&disk)
    }

    /// Does what is in `block` move, for this reason?
    pub(crate) fn moves(self, block: u64, reason: MoveReason) -> bool {
        let on = |disks: &BTreeSet<DiskName>| {
            !disks.is_empty() && disks.contains(&self.disk_of(self.0.layout.stripe_of(block)))
        };
        match reason {
            MoveReason::Group => EmptyingGroups(self.0).has(block),
            MoveReason::Drain => on(&self.0.closed),
            MoveReason::Balance => on(&self.0.shedding),
        }
    }

    /// Blocks of this node on each disk: in use, and in all.
    pub(crate) fn blocks(self) -> BTreeMap<DiskName, (u64, u64)> {
        let (space, mut on) = (self.0, BTreeMap::<DiskName, (u64, u64)>::new());
        for (&number, group) in &space.groups {
            for stripe in space.layout.stripes_of(number) {
                let local = group.local(space.layout.stripe_run(stripe).blocks());
                let withheld =
                    group.withheld.as_ref().map_or(0, |bits| bits.ones_in(local.clone()));
                let used = group.busy.ones_in(local.clone()) - withheld;
                let counts = on.entry(self.disk_of(stripe)).or_default();
                counts.0 += u64::from(used);
                counts.1 += u64::from(local.end - local.start);
            }
        }
        on
    }

    /// Blocks that are withheld.
    pub(crate) fn withheld(self) -> u64 {
        self.0.groups.values().map(|group| u64::from(group.withheld_blocks())).sum()
    }
}
