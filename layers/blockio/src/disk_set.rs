//! Disk sets: the parts of which the logical disk consists, one after the other (ADR 90). A set
//! never changes, so a stripe keeps its place for life.

use runtime::ids::DISK_NODES_MAX;

use crate::geometry::{
    DISKS_PER_NODE_MAX, Geometry, GeometryError, SETS_MAX, STRIPES_PER_GROUP_MAX, check_count,
};

runtime::record! {
    /// A disk of the volume, by its place: `n0d1` is disk 1 of disk node 0.
    #[derive(Copy, PartialOrd, Ord, Hash, Default)]
    pub struct DiskName {
        /// The disk node.
        disk_node: u32,
        /// The disk within the node.
        disk: u32,
    }
}

impl std::fmt::Display for DiskName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "n{}d{}", self.disk_node, self.disk)
    }
}

runtime::record! {
    /// A disk of a set.
    #[derive(Copy)]
    pub struct SetMember {
        /// The disk.
        disk: DiskName,
        /// Stripes of the disk before those of the set: they are of other sets.
        base: u64,
    }
}

runtime::choice! {
    /// The disks of a set, in the order in which its units go round them.
    pub enum SetMembers {
        /// The first disk of each disk node, then the second of each, and so on; from their
        /// beginning.
        1 Grid {
            /// Disk nodes.
            disk_nodes: u32,
            /// Disks of each.
            disks_per_node: u32,
        },
        /// Any disks.
        2 List {
            /// Each at most once.
            disks: Vec<SetMember>,
        },
    }
}

runtime::record! {
    /// Consecutive stripes of the logical disk that lie on the same disks, as many on each: in
    /// units that go round the disks.
    pub struct DiskSet {
        /// Its first stripe.
        first: u64,
        /// Stripes on each disk.
        stripes_per_disk: u64,
        /// Stripes of an allocation group.
        group_stripes: u32,
        /// Stripes of a unit, which are neighbours on one disk.
        unit_stripes: u32,
        /// Units next to each other whose caches are apart like their disks; 0 for caches by the
        /// stripe's number alone, as in volumes of version 1.
        lanes: u32,
        /// Its disks.
        members: SetMembers,
    }
}

/// A stripe of a disk: where a stripe of the logical disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskStripe {
    /// The disk.
    pub disk: DiskName,
    /// The stripe within the disk.
    pub index: u64,
}

impl SetMembers {
    /// How many disks.
    pub fn count(&self) -> u32 {
        match self {
            Self::Grid { disk_nodes, disks_per_node } => disk_nodes * disks_per_node,
            Self::List { disks } => disks.len() as u32,
        }
    }

    /// The disk at `position`, which is below [`count`](Self::count).
    pub fn member(&self, position: u32) -> SetMember {
        match self {
            Self::Grid { disk_nodes, .. } => {
                let (disk_node, disk) = (position % disk_nodes, position / disk_nodes);
                SetMember { disk: DiskName { disk_node, disk }, base: 0 }
            }
            Self::List { disks } => disks[position as usize],
        }
    }

    /// The position of `disk`, if it is one of them.
    pub fn position(&self, disk: DiskName) -> Option<u32> {
        match self {
            Self::Grid { disk_nodes, disks_per_node } => {
                let is_in = disk.disk_node < *disk_nodes && disk.disk < *disks_per_node;
                is_in.then(|| disk.disk_node + disk.disk * disk_nodes)
            }
            Self::List { disks } => {
                disks.iter().position(|member| member.disk == disk).map(|position| position as u32)
            }
        }
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = SetMember> + '_ {
        (0..self.count()).map(|position| self.member(position))
    }
}

impl DiskSet {
    /// Its stripes.
    pub fn stripes(&self) -> u64 {
        self.stripes_per_disk * u64::from(self.members.count())
    }

    /// The stripe after its last.
    pub fn end(&self) -> u64 {
        self.first + self.stripes()
    }

    /// Its allocation groups; the last one may be shorter.
    pub fn groups(&self) -> u64 {
        self.stripes().div_ceil(u64::from(self.group_stripes))
    }

    /// Where a stripe of the set is: the stripes of a unit are neighbours on one disk, the next
    /// unit is on the next disk.
    pub fn place(&self, stripe: u64) -> DiskStripe {
        let (local, unit_stripes) = (stripe - self.first, u64::from(self.unit_stripes));
        let (unit, count) = (local / unit_stripes, u64::from(self.members.count()));
        let SetMember { disk, base } = self.members.member((unit % count) as u32);
        DiskStripe { disk, index: base + unit / count * unit_stripes + local % unit_stripes }
    }

    /// Checks a set that comes from a disk or from outside.
    pub(crate) fn check(&self, geometry: &Geometry) -> Result<(), GeometryError> {
        self.check_counts(geometry)?;
        let count = u64::from(self.members.count());
        let bytes = u64::from(geometry.stripe_size)
            .checked_mul(count)
            .and_then(|bytes| bytes.checked_mul(self.stripes_per_disk));
        if bytes.is_none() || self.first.checked_add(count * self.stripes_per_disk).is_none() {
            return Err(GeometryError::TooLarge);
        }
        Ok(())
    }

    fn check_counts(&self, geometry: &Geometry) -> Result<(), GeometryError> {
        let unit = self.unit_stripes;
        let divides = unit > 0 && self.stripes_per_disk.is_multiple_of(u64::from(unit));
        let groups = 1..=STRIPES_PER_GROUP_MAX;
        let has_lanes = self.lanes == 0 || geometry.fs_nodes.is_multiple_of(self.lanes);
        if self.stripes_per_disk == 0 || !divides || !groups.contains(&self.group_stripes) {
            return Err(GeometryError::Set { first: self.first });
        }
        if !has_lanes || !self.has_disks() {
            return Err(GeometryError::Set { first: self.first });
        }
        Ok(())
    }

    fn has_disks(&self) -> bool {
        match &self.members {
            SetMembers::Grid { disk_nodes, disks_per_node } => {
                check_grid(*disk_nodes, *disks_per_node).is_ok()
            }
            SetMembers::List { disks } => {
                let mut names: Vec<DiskName> = disks.iter().map(|member| member.disk).collect();
                names.sort_unstable();
                let is_once = names.windows(2).all(|pair| pair[0] != pair[1]);
                let exist = names
                    .iter()
                    .all(|name| name.disk_node < DISK_NODES_MAX && name.disk < DISKS_PER_NODE_MAX);
                is_once && exist && !names.is_empty() && names.len() <= SET_DISKS_MAX
            }
        }
    }
}

/// Refuses numbers of disk nodes, and of disks of each, that cannot be.
pub(crate) fn check_grid(disk_nodes: u32, disks_per_node: u32) -> Result<(), GeometryError> {
    check_count("disk nodes", disk_nodes, DISK_NODES_MAX)?;
    check_count("disks per disk node", disks_per_node, DISKS_PER_NODE_MAX)
}

/// Disks of a set that are named one by one, at most: the record of a volume stays short enough for
/// the coordination engine.
pub const SET_DISKS_MAX: usize = 256;

const _: () = assert!(SETS_MAX * SET_DISKS_MAX * 16 < 1 << 20);
