//! Whole stripes with partners: as many on other disks as there are further copies.
//!
//! Where data has copies, data takes no other whole stripes: if it went on until the smaller disks
//! are full, all copies of the log and of pages would be on the largest ones.

use blockio::DiskName;

use super::BlockAllocator;
use super::whole::WholeStripes;

/// Does data have copies on several disks, and are there enough for all of them?
pub(crate) fn needs_partners(space: &BlockAllocator) -> bool {
    let map = space.layout.map();
    let is_open = |disk: &&DiskName| !space.closed.contains(disk);
    let further = map.redundancy().copies() as usize - 1;
    further > 0
        && (space.whole.disks().filter(is_open).nth(further).is_some()
            // None of its groups may be on the other disks.
            || map.disks().iter().filter(is_open).nth(further).is_some())
}

/// Of these whole stripes, those that data may take.
pub(crate) fn usable_stripes(space: &BlockAllocator, whole: &WholeStripes) -> u64 {
    let copies = space.layout.map().redundancy().copies();
    let alone = if needs_partners(space) { whole.without_partner(copies) } else { 0 };
    whole.total() - alone
}

/// Whole stripes that data may not take although they are free.
pub(crate) fn stripes_without_partner(space: &BlockAllocator) -> u64 {
    space.whole.total() - usable_stripes(space, &space.whole)
}

/// The whole stripes that are to be left in all so that `floor` are left that have a partner.
pub(crate) fn floor_with_partners(space: &BlockAllocator, floor: u64) -> u64 {
    match stripes_without_partner(space) {
        0 => floor,
        alone => {
            let copies = space.layout.map().redundancy().copies();
            floor.next_multiple_of(copies.into()) + alone
        }
    }
}

/// Takes the stripes of a free group off `whole`, or puts them back.
pub(crate) fn count_free_group(
    space: &BlockAllocator,
    whole: &mut WholeStripes,
    (group, more): (u64, i64),
) {
    let map = space.layout.map();
    for stripe in space.layout.stripes_of(group) {
        let disk = map.place(stripe).disk;
        if !space.closed.contains(&disk) {
            whole.add(disk, more);
        }
    }
}
