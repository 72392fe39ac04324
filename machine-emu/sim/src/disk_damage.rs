//! Damage to the bytes of disks: drawn where it hurts, done, and weighed.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use blockio::{BLOCK_SIZE, Superblock, VolumeMap};
use machine_emu::{DiskControl, DiskFaults, DiskSnapshot};
use runtime::VolumeId;
use runtime::seed::Rng;

use crate::cluster::SimulatedCluster;
use crate::random::pick;
use crate::schedule::Fault;
use crate::stamps::is_stamped;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Disks that hold copies of a node's roots, at most (docs/format.md).
const ROOT_COPIES_MAX: u32 = 3;
/// Bytes that rot at once, at most: less than a block, so that each rot hits one thing.
const ROT_BYTES_MAX: u64 = 64;
/// Rots of one time at rest, at most.
const ROTS_MAX: u64 = 24;

/// What stands at a place of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DiskRegion {
    Superblock,
    Roots,
    Log,
    /// Pages of trees and maps.
    Page,
    /// Other parts of such pages, data, nothing.
    Rest,
}

fn region(map: &VolumeMap, disk: &DiskControl, offset: u64) -> DiskRegion {
    let geometry = map.geometry();
    let stripes = geometry.stripe_offset(0);
    let index = offset.saturating_sub(stripes) / u64::from(geometry.stripe_size);
    if offset < geometry.slot_offset(0) || index >= stripes_per_disk(map) {
        DiskRegion::Superblock
    } else if offset < stripes {
        DiskRegion::Roots
    } else if is_stamped(&disk.peek(offset / BLOCK * BLOCK, BLOCK_SIZE)) {
        // Perhaps in a stripe of which the first block still shows that it was a log once.
        DiskRegion::Rest
    } else if disk.peek(geometry.stripe_offset(index), 4) == b"mdLS" {
        DiskRegion::Log
    } else if disk.peek(offset / BLOCK * BLOCK, 4) == b"mdPG" {
        DiskRegion::Page
    } else {
        DiskRegion::Rest
    }
}

/// Stripes on each disk: a volume begins with disks of one size.
fn stripes_per_disk(map: &VolumeMap) -> u64 {
    map.set_of(0).set.stripes_per_disk
}

/// What was done since the last time at which all was well.
#[derive(Clone, Debug, Default)]
pub(super) struct DamageSummary {
    /// Bytes changed, or did not change when they should have.
    pub(super) hurt: bool,
    /// Damage of other kinds than rot.
    others: u32,
    /// Rots that may have hit data of files.
    pub(super) data: u32,
    /// Disks whose bytes were changed.
    pub(super) disks: BTreeSet<String>,
    /// Rots among root slots, and in the log.
    roots: u32,
    logs: u32,
    /// Writes or flushes were answered and not done, or done elsewhere.
    pub(super) forgets: bool,
    /// A disk is older than others, and its superblock does not show it.
    rolled_back: bool,
    /// Disks that are not the volume's own: they must be refused.
    pub(super) strange: BTreeSet<String>,
}

impl DamageSummary {
    /// Has nothing happened but rot on one disk of several? Then only data can be lost: metadata
    /// has a copy on another disk.
    pub(super) fn spares_metadata(&self, map: &VolumeMap) -> bool {
        self.others == 0 && self.disks.len() <= 1 && map.disks().len() > 1
    }

    /// May what is found be of an earlier time than the last commit, though it is never torn and
    /// never another file's? Each case is a limit of today.
    pub(super) fn may_be_older(&self, map: &VolumeMap) -> bool {
        if self.spares_metadata(map) {
            return false;
        }
        let copies = ROOT_COPIES_MAX.min(map.root_disks().count());
        // All copies of the newest root may be gone; the one before it starts a log of which the
        // rest may have been given back since.
        self.roots >= copies
            // Both copies of the last entries may be gone, which looks like a crash before them.
            || self.logs >= 2
            // A disk that answers and does nothing takes the log's copies, or the roots, along if
            // there is no other, or if all of them do so.
            || self.forgets
            // An old image of the same epoch is recognized by the roots and log entries that it
            // lacks, if it lacks enough of them, and not if all disks are old (ADR 14).
            || self.rolled_back
    }
}

/// Does damage, and remembers what was done.
#[derive(Default)]
pub(super) struct DiskDamage {
    /// The last one of each disk, and the epoch in which it was taken.
    photographs: RefCell<BTreeMap<String, (DiskSnapshot, u64)>>,
    tally: RefCell<DamageSummary>,
}

impl std::fmt::Debug for DiskDamage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Harm").field("tally", &self.tally).finish_non_exhaustive()
    }
}

impl DiskDamage {
    /// What was done since [`forget`](Self::forget).
    pub(super) fn tally(&self) -> DamageSummary {
        self.tally.borrow().clone()
    }

    /// All disks are intact again.
    pub(super) fn forget(&self) {
        self.tally.take();
    }

    /// Does the damage of `fault`; nothing if it is none, or makes no sense.
    pub(super) fn inject(&self, cluster: &SimulatedCluster, fault: &Fault) {
        let control = |disk: &str| cluster.world().disk(disk);
        let mut tally = self.tally.borrow_mut();
        tally.hurt |= !matches!(fault, Fault::SaveImage { .. });
        let is_other = !matches!(fault, Fault::SaveImage { .. } | Fault::BitRot { .. });
        tally.others += u32::from(is_other);
        match fault {
            Fault::SwapDisks { disk, other } => {
                tally.disks.extend([disk.clone(), other.clone()]);
            }
            Fault::BitRot { disk, .. }
            | Fault::RestoreImage { disk }
            | Fault::Wipe { disk }
            | Fault::ForeignDisk { disk } => {
                tally.disks.insert(disk.clone());
            }
            _ => {}
        }
        match fault {
            Fault::BitRot { disk, offset, length } => {
                match region(&cluster.map(), &control(disk), *offset) {
                    DiskRegion::Roots => tally.roots += 1,
                    DiskRegion::Log => tally.logs += 1,
                    DiskRegion::Rest => tally.data += 1,
                    DiskRegion::Superblock | DiskRegion::Page => {}
                }
                control(disk).rot(*offset, *length as usize);
            }
            Fault::LoseWrites { disk, ppm } => {
                tally.forgets = true;
                change_faults(&control(disk), |faults| faults.lost_write_ppm = *ppm);
            }
            Fault::Misdirect { disk, write_ppm, read_ppm } => {
                tally.forgets |= *write_ppm > 0;
                change_faults(&control(disk), |faults| {
                    faults.misdirected_write_ppm = *write_ppm;
                    faults.misdirected_read_ppm = *read_ppm;
                });
            }
            Fault::StaleReads { disk, ppm } => {
                change_faults(&control(disk), |faults| faults.stale_read_ppm = *ppm);
            }
            Fault::IgnoreFlushes { disk, ppm } => {
                tally.forgets = true;
                change_faults(&control(disk), |faults| faults.ignored_sync_ppm = *ppm);
            }
            Fault::SaveImage { disk } => {
                let photograph = (control(disk).snapshot(), cluster.served().get());
                self.photographs.borrow_mut().insert(disk.clone(), photograph);
            }
            Fault::RestoreImage { disk } => {
                if let Some((image, epoch)) = self.photographs.borrow().get(disk) {
                    control(disk).restore(image);
                    tally.strange.remove(disk);
                    if *epoch < cluster.served().get() {
                        tally.strange.insert(disk.clone());
                    } else {
                        tally.rolled_back = true;
                    }
                }
            }
            Fault::Wipe { disk } => {
                control(disk).wipe();
                tally.strange.insert(disk.clone());
            }
            Fault::ForeignDisk { disk } => {
                let done = make_foreign(&control(disk));
                tally.strange.extend(done.then(|| disk.clone()));
            }
            Fault::SwapDisks { disk, other } => {
                let own = ![disk, other].into_iter().any(|disk| tally.strange.contains(disk));
                if own && disk != other {
                    let images = [control(disk).snapshot(), control(other).snapshot()];
                    control(disk).restore(&images[1]);
                    control(other).restore(&images[0]);
                    tally.strange.extend([disk.clone(), other.clone()]);
                }
            }
            _ => {}
        }
    }
}

fn change_faults(disk: &DiskControl, change: impl FnOnce(&mut DiskFaults)) {
    let mut faults = disk.faults();
    change(&mut faults);
    disk.set_faults(faults);
}

/// The disk says from now on that it belongs to another volume. False if it says nothing.
fn make_foreign(disk: &DiskControl) -> bool {
    let Ok(superblock) = Superblock::decode(&disk.peek(0, BLOCK_SIZE)) else { return false };
    let mut foreign = superblock;
    foreign.geometry.volume = VolumeId(foreign.volume().0 ^ 1);
    disk.poke(0, &foreign.encode());
    disk.poke(foreign.copy_offset(), &foreign.encode());
    true
}

/// Damage while the volume is used: of some rounds, of one kind.
pub(super) fn draw_in_use(
    rng: &mut Rng,
    cluster: &SimulatedCluster,
    end_us: u64,
) -> Vec<(u64, Fault)> {
    let disks = cluster.world().disks();
    let at_us = rng.below(end_us);
    let ppm = 1_000 << rng.below(10);
    let disk = pick(rng, &disks);
    let mut faults = match rng.below(10) {
        0 => vec![Fault::LoseWrites { disk, ppm }],
        1 => vec![Fault::Misdirect { disk, write_ppm: ppm, read_ppm: 0 }],
        2 => vec![Fault::Misdirect { disk, write_ppm: 0, read_ppm: ppm }],
        3 => vec![Fault::StaleReads { disk, ppm }],
        4 => disks
            .iter()
            .map(|disk| Fault::IgnoreFlushes { disk: disk.clone(), ppm: 1_000_000 })
            .collect(),
        5 => vec![Fault::IgnoreFlushes { disk, ppm }],
        6 => draw_rots(rng, cluster),
        _ => Vec::new(),
    };
    if rng.chance(1, 2) {
        faults.push(Fault::SaveImage { disk: pick(rng, &disks) });
    }
    faults.into_iter().map(|fault| (at_us, fault)).collect()
}

/// Damage while nothing runs.
pub(super) fn draw_at_rest(rng: &mut Rng, cluster: &SimulatedCluster) -> Vec<(u64, Fault)> {
    let disks = cluster.world().disks();
    let disk = pick(rng, &disks);
    let faults = match rng.below(10) {
        0..5 => draw_rots(rng, cluster),
        5 => vec![Fault::Wipe { disk }],
        6 => vec![Fault::ForeignDisk { disk }],
        7 => vec![Fault::SwapDisks { disk, other: pick(rng, &disks) }],
        _ => disks.iter().map(|disk| Fault::RestoreImage { disk: disk.clone() }).collect(),
    };
    faults.into_iter().map(|fault| (0, fault)).collect()
}

/// Some rots, in one kind of place or anywhere.
fn draw_rots(rng: &mut Rng, cluster: &SimulatedCluster) -> Vec<Fault> {
    let map = cluster.map();
    let disks = cluster.world().disks();
    let wanted = [
        None,
        Some(DiskRegion::Superblock),
        Some(DiskRegion::Roots),
        Some(DiskRegion::Log),
        Some(DiskRegion::Page),
        Some(DiskRegion::Page),
    ];
    let wanted = wanted[rng.index(wanted.len())];
    // A disk that rots mostly does so alone.
    let only = rng.chance(1, 2).then(|| pick(rng, &disks));
    let count = 1 + rng.below(ROTS_MAX);
    let mut faults = Vec::new();
    for _ in 0..count {
        let disk = only.clone().unwrap_or_else(|| pick(rng, &disks));
        let control = cluster.world().disk(&disk);
        let fits =
            |&block: &u64| wanted.is_none_or(|wanted| region(&map, &control, block) == wanted);
        let written: Vec<u64> = control.written().into_iter().filter(fits).collect();
        // Mostly where something is.
        let block = if written.is_empty() || rng.chance(1, 16) {
            rng.below(map.geometry().disk_length(stripes_per_disk(&map)) / BLOCK) * BLOCK
        } else {
            pick(rng, &written)
        };
        let length = 1 + rng.below(ROT_BYTES_MAX);
        let offset = block + rng.below(BLOCK - length);
        faults.push(Fault::BitRot { disk, offset, length });
    }
    faults
}
