//! Whole stripes that can be had in pairs, each of the two on another disk.

use blockio::DiskName;

use super::BlockAllocator;

/// The whole stripes that are to be left in all so that `floor` are left that have a partner.
pub(crate) fn floor_in_pairs(space: &BlockAllocator, floor: u64) -> u64 {
    match stripes_without_partner(space) {
        0 => floor,
        alone => floor.next_multiple_of(2) + alone,
    }
}

/// Whole stripes that data may not take although they are free: of two copies one only would have a
/// place there. If data went on until the smaller disks are full, both copies of the log and of
/// pages would be on the largest one. None if data has one copy, or all is on one disk.
pub(crate) fn stripes_without_partner(space: &BlockAllocator) -> u64 {
    let map = space.layout.map();
    if map.redundancy().copies() < 2 {
        return 0;
    }
    let alone = space.whole.without_partner();
    if alone == 0 {
        return 0;
    }
    let is_open = |disk: &&DiskName| !space.closed.contains(disk);
    let has_disks = space.whole.disks().filter(is_open).nth(1).is_some()
        || map.disks().iter().filter(is_open).nth(1).is_some();
    if has_disks { alone } else { 0 }
}
