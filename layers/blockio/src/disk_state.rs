//! What becomes of the disks of a volume, and the record of all that.

use std::collections::BTreeSet;

use runtime::wire::{from_bytes, to_bytes};

use crate::disk_set::{DiskName, DiskSet};
use crate::geometry::Geometry;
use crate::redundancy::RedundancyClass;
use crate::volume_map::{VolumeMap, classes_of};

/// Disks that are being drained at the same time, at most.
pub const DRAINING_MAX: usize = 4;

runtime::choice! {
    /// What a volume does with a disk, as decided. Whether it can be reached is another matter.
    #[derive(Copy, PartialOrd, Ord)]
    pub enum DiskStage {
        /// It is in use.
        1 Online {},
        /// What it holds moves to other disks, and nothing new comes to it.
        2 Draining {},
        /// It is not part of the volume any more. Its stripes hold nothing, for ever.
        3 Retired {},
        /// It is gone, with what was on it. That is made anew on other disks, from other copies.
        4 Lost {},
        /// Its host is away, and the volume goes on without it: it misses what is written.
        5 Offline {},
        /// Its host is back. It takes writes again, and gets what it has missed.
        6 Returning {},
    }
}

impl DiskStage {
    /// Is there no such disk, to be opened, read or written?
    pub fn is_gone(self) -> bool {
        match self {
            Self::Online {} | Self::Draining {} | Self::Offline {} | Self::Returning {} => false,
            Self::Retired {} | Self::Lost {} => true,
        }
    }

    /// Is it asked for nothing?
    pub fn is_absent(self) -> bool {
        self == Self::Offline {}
    }

    /// May it lack what it should have?
    pub fn is_behind(self) -> bool {
        matches!(self, Self::Offline {} | Self::Returning {})
    }

    /// Does what is on it move to other disks?
    pub fn is_left(self) -> bool {
        matches!(self, Self::Draining {} | Self::Lost {})
    }

    /// Its name for users.
    pub fn name(self) -> &'static str {
        match self {
            Self::Online {} => "online",
            Self::Draining {} => "draining",
            Self::Retired {} => "retired",
            Self::Lost {} => "lost",
            Self::Offline {} => "offline",
            Self::Returning {} => "returning",
        }
    }
}

/// The disks that are lost, of which not all is on others yet.
pub fn lost_disks(map: &VolumeMap) -> Vec<DiskName> {
    let states = map.states().into_iter();
    states.filter(|entry| entry.state == DiskStage::Lost {}).map(|entry| entry.disk).collect()
}

/// Is one lost?
pub fn has_lost_disk(map: &VolumeMap) -> bool {
    map.version() > 0 && !lost_disks(map).is_empty()
}

/// The disks that the volume does without, or that lack something.
pub fn incomplete_disks(map: &VolumeMap) -> BTreeSet<DiskName> {
    let is_incomplete = |state: DiskStage| state.is_behind() || state == DiskStage::Lost {};
    let states = map.states().into_iter();
    states.filter(|entry| is_incomplete(entry.state)).map(|entry| entry.disk).collect()
}

/// May a disk lack what it should have, since its host is away, or is just back?
pub fn has_disk_behind(map: &VolumeMap) -> bool {
    map.version() > 0 && map.states().iter().any(|entry| entry.state.is_behind())
}

/// May the disk that holds `stripe` lack what it should have?
pub fn is_behind(map: &VolumeMap, stripe: u64) -> bool {
    map.version() > 0 && map.state(map.place(stripe).disk).is_behind()
}

runtime::record! {
    /// A disk that is not simply in use.
    #[derive(Copy, PartialOrd, Ord)]
    pub struct DiskEntry {
        /// The disk.
        disk: DiskName,
        /// What is done with it.
        state: DiskStage,
    }
}

runtime::choice! {
    /// How fast data moves between disks, beside the work of others.
    #[derive(Copy)]
    pub enum MovePolicy {
        /// Hardly noticed.
        1 Gentle {},
        /// Most of the time is for others.
        2 Balanced {},
        /// As fast as it goes.
        3 Fast {},
    }
}

impl Default for MovePolicy {
    fn default() -> Self {
        Self::Balanced {}
    }
}

impl MovePolicy {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Gentle {}, Self::Balanced {}, Self::Fast {}];

    /// Its name for users.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gentle {} => "gentle",
            Self::Balanced {} => "balanced",
            Self::Fast {} => "fast",
        }
    }

    /// Bytes per second of one process that always has other work.
    pub fn floor_bytes(self) -> u64 {
        match self {
            Self::Gentle {} => 8 << 20,
            Self::Balanced {} => 32 << 20,
            Self::Fast {} => u64::MAX,
        }
    }

    /// Bytes per second of one process that has none.
    pub fn ceiling_bytes(self) -> u64 {
        match self {
            Self::Gentle {} => 256 << 20,
            Self::Balanced {} | Self::Fast {} => u64::MAX,
        }
    }
}

/// Disks of a host that is away are given up after this time, unless the operator says otherwise.
pub const LOSS_DELAY_SECONDS: u32 = 600;

/// When data moves between disks, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveSettings {
    /// See [`VolumeRecord::policy`].
    pub policy: MovePolicy,
    /// See [`VolumeRecord::balancing`].
    pub balancing: bool,
    /// See [`VolumeRecord::loss_delay_seconds`].
    pub loss_delay_seconds: u32,
}

impl Default for MoveSettings {
    fn default() -> Self {
        let (policy, loss_delay_seconds) = (MovePolicy::default(), LOSS_DELAY_SECONDS);
        Self { policy, balancing: false, loss_delay_seconds }
    }
}

runtime::record! {
    /// All that a volume decides about its disks, as its coordination engine keeps it. It can be
    /// found out from the superblocks, too.
    pub struct VolumeRecord {
        /// What is fixed.
        geometry: Geometry,
        /// One more with each change.
        version: u64,
        /// How many sets, the first ones, are as old as the volume: their groups have owners from
        /// birth.
        born_sets: u32,
        /// The sets, in order.
        sets: Vec<DiskSet>,
        /// The disks that are not simply in use, in order.
        states: Vec<DiskEntry>,
        /// How fast data moves.
        policy: MovePolicy,
        /// Data moves from fuller disks to emptier ones.
        balancing: bool,
        /// How data survives the loss of disks.
        redundancy: RedundancyClass,
        /// Disks are given up once their host has been away for this many seconds; with the
        /// greatest number never.
        loss_delay_seconds: u32,
        /// What else directories and files may have in place of `redundancy`, at most
        /// [`CLASSES_MAX`](crate::redundancy::CLASSES_MAX). It only grows.
        classes: Vec<RedundancyClass>,
    }
}

runtime::record! {
    /// The record of a volume of version 1.
    #[derive(Copy)]
    pub struct OneSetRecord {
        /// What is fixed.
        geometry: Geometry,
        /// Disk nodes.
        disk_nodes: u32,
        /// Disks of each.
        disks_per_node: u32,
        /// Stripes on each disk.
        stripes_per_disk: u64,
    }
}

impl VolumeRecord {
    /// What is decided about the disks of `map`.
    pub fn of(map: &VolumeMap) -> Self {
        Self {
            geometry: map.geometry(),
            version: map.version(),
            born_sets: map.born_sets() as u32,
            sets: map.sets().map(|placed| placed.set.clone()).collect(),
            states: map.states(),
            policy: map.moves().policy,
            balancing: map.moves().balancing,
            redundancy: map.redundancy(),
            loss_delay_seconds: map.moves().loss_delay_seconds,
            classes: classes_of(map).others,
        }
    }

    /// What a record says; `None` if it is damaged. Volumes of version 1 had another one, and the
    /// first ones of version 2 said nothing of redundancy, of hosts that are away, or of classes of
    /// directories.
    pub fn decode(bytes: &[u8]) -> Option<VolumeMap> {
        let (delay, none) = (to_bytes(&LOSS_DELAY_SECONDS), to_bytes(&0_u32));
        // What an older one lacks at its end.
        let lacking = [Vec::new(), none.clone(), [&delay[..], &none].concat()];
        let without_class = [&[0], &delay[..], &none].concat();
        let mut records = lacking.into_iter().chain([without_class]);
        let record = records.find_map(|end| from_bytes::<Self>(&[bytes, &end].concat()).ok());
        if let Some(record) = record {
            return VolumeMap::of_record(&record).ok();
        }
        let OneSetRecord { geometry, disk_nodes, disks_per_node, stripes_per_disk } =
            from_bytes(bytes).ok()?;
        VolumeMap::grid(geometry, disk_nodes, disks_per_node, stripes_per_disk).ok()
    }

    /// As the coordination engine keeps it: older programs know no classes of directories, and read
    /// it as long as there are none.
    pub fn to_stored(&self) -> Vec<u8> {
        let mut stored = to_bytes(self);
        if self.classes.is_empty() {
            stored.truncate(stored.len() - to_bytes(&0_u32).len());
        }
        stored
    }

    /// What is done with `disk`.
    pub fn state(&self, disk: DiskName) -> DiskStage {
        let entry = self.states.iter().find(|entry| entry.disk == disk);
        entry.map_or(DiskStage::Online {}, |entry| entry.state)
    }

    /// Of how many disks or hosts that are away the volume does without what is on them, besides
    /// the disks of `disk_node`: each has at most one copy of anything. A lost disk of a host that
    /// is away, or just back, is counted with that host.
    fn losses_besides(&self, disk_node: u32) -> u32 {
        let behind = self.states.iter().filter(|entry| entry.state.is_behind());
        let behind: BTreeSet<u32> = behind.map(|entry| entry.disk.disk_node).collect();
        let is_apart = |entry: &&DiskEntry| !behind.contains(&entry.disk.disk_node);
        let lost = self.states.iter().filter(|entry| entry.state == DiskStage::Lost {});
        let hosts = behind.iter().filter(|node| **node != disk_node);
        (lost.filter(is_apart).count() + hosts.count()) as u32
    }

    /// How many disks more may be lost, each with a copy of the same.
    pub fn losses_left(&self) -> u32 {
        self.losses_left_with(self.redundancy.copies())
    }

    /// The same for metadata alone.
    pub fn metadata_losses_left(&self) -> u32 {
        self.losses_left_with(self.redundancy.metadata_copies())
    }

    fn losses_left_with(&self, copies: u32) -> u32 {
        copies.saturating_sub(1 + self.losses_besides(u32::MAX))
    }

    /// Has what is on `disk` copies elsewhere, whatever is lost already? If its host is away, the
    /// lost disks of that are retired first: else each of them would count once it is back.
    pub fn can_lose(&self, disk: DiskName) -> bool {
        let is_lost_beside = |entry: &DiskEntry| {
            entry.state == DiskStage::Lost {} && entry.disk.disk_node == disk.disk_node
        };
        let state = self.state(disk);
        let waits = state.is_absent() && self.states.iter().any(is_lost_beside);
        !state.is_gone() && !waits && self.can_lose_node(disk.disk_node)
    }

    /// The same for a disk of `disk_node`, or for all of it as long as its host is away.
    pub fn can_lose_node(&self, disk_node: u32) -> bool {
        self.losses_besides(disk_node) + 1 < self.redundancy.copies()
    }

    /// The same with another state of `disk`, as the next version.
    #[must_use]
    pub fn with_state(&self, disk: DiskName, state: DiskStage) -> Self {
        let mut next = Self { version: self.version + 1, ..self.clone() };
        next.states.retain(|entry| entry.disk != disk);
        if state != (DiskStage::Online {}) {
            next.states.push(DiskEntry { disk, state });
            next.states.sort_unstable();
        }
        next
    }

    /// The same where directories and files may have `class`, too, as the next version.
    #[must_use]
    pub fn with_class(&self, class: RedundancyClass) -> Self {
        let mut next = Self { version: self.version + 1, ..self.clone() };
        next.classes.push(class);
        next
    }

    /// The same where data moves from fuller disks to emptier ones, or not, as the next version.
    #[must_use]
    pub fn with_balancing(&self, balancing: bool) -> Self {
        Self { version: self.version + 1, balancing, ..self.clone() }
    }

    /// The same with more sets, as the next version.
    #[must_use]
    pub fn with_sets(&self, sets: Vec<DiskSet>) -> Self {
        let sets = self.sets.iter().cloned().chain(sets).collect();
        Self { version: self.version + 1, sets, ..self.clone() }
    }
}
