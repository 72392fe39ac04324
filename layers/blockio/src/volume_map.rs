//! Which disks a volume has, and where its stripes are on them (thesis section 2.3.4; ADR 90).
//!
//! The logical disk is a list of disk sets. It only grows, and all holders of a map see it grow.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard};

use runtime::{NodeId, VolumeId};

use crate::disk_set::{DiskName, DiskSet, DiskStripe, SetMembers, check_grid};
use crate::disk_state::{DiskEntry, DiskStage, MoveSettings, VolumeRecord};
use crate::geometry::{
    Geometry, GeometryError, SETS_MAX, STATES_MAX, STRIPES_PER_FS_NODE_MIN, STRIPES_PER_GROUP_MAX,
    VOLUME_SIZE_MAX,
};
use crate::redundancy::{CLASSES_MAX, RedundancyClass, VolumeClasses, stripes_in_copies};

/// Groups that each node owns at first, if there are enough stripes (volumes of version 1).
const GROUPS_PER_NODE: u64 = 8;

/// The disks of a volume. Clones share it: a set that is [appended](Self::append), and what else is
/// [decided](Self::advance), is seen by all.
#[derive(Clone)]
pub struct VolumeMap(Arc<MapState>);

struct MapState {
    geometry: Geometry,
    /// Filled from the front; never changed.
    sets: [OnceLock<PlacedSet>; SETS_MAX],
    /// How many are filled.
    count: AtomicUsize,
    /// How many of them are as old as the volume.
    born_sets: AtomicUsize,
    /// See [`VolumeRecord::version`]. Set after all that belongs to it.
    version: AtomicU64,
    decisions: RwLock<Decisions>,
}

/// What changes as the operator says.
#[derive(Default)]
struct Decisions {
    /// Disks that are not simply in use.
    states: BTreeMap<DiskName, DiskStage>,
    moves: MoveSettings,
    /// Stripes on disks in use, if there are others.
    online_stripes: Option<u64>,
    /// The last version in which disks of a disk node were away, of those that were.
    absent: BTreeMap<u32, u64>,
    /// Disk nodes that are asked for nothing: their host is away, or has no disk in use.
    silent: BTreeSet<u32>,
    redundancy: RedundancyClass,
    classes: Vec<RedundancyClass>,
}

/// A set in its map.
#[derive(Debug)]
pub struct PlacedSet {
    /// The set.
    pub set: DiskSet,
    /// The number of its first allocation group: groups are numbered set after set.
    pub first_group: u64,
}

impl fmt::Debug for VolumeMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        VolumeRecord::of(self).fmt(f)
    }
}

impl PartialEq for VolumeMap {
    fn eq(&self, other: &Self) -> bool {
        VolumeRecord::of(self) == VolumeRecord::of(other)
    }
}

impl VolumeMap {
    /// A volume of these sets, of which there is at least one.
    pub fn new(
        geometry: Geometry,
        sets: impl IntoIterator<Item = DiskSet>,
    ) -> Result<Self, GeometryError> {
        geometry.check()?;
        let map = Self(Arc::new(MapState {
            geometry,
            sets: [const { OnceLock::new() }; SETS_MAX],
            count: AtomicUsize::new(0),
            born_sets: AtomicUsize::new(0),
            version: AtomicU64::new(0),
            decisions: RwLock::default(),
        }));
        sets.into_iter().try_for_each(|set| map.append(set))?;
        map.0.born_sets.store(map.0.count.load(Ordering::Acquire), Ordering::Release);
        let needed = STRIPES_PER_FS_NODE_MIN * u64::from(geometry.fs_nodes);
        if map.stripes() < needed {
            let stripe = u64::from(geometry.stripe_size);
            let found_bytes = map.stripes() * stripe;
            return Err(GeometryError::TooSmall { found_bytes, needed_bytes: needed * stripe });
        }
        Ok(map)
    }

    /// The volume of a record.
    pub fn of_record(record: &VolumeRecord) -> Result<Self, GeometryError> {
        let map = Self::new(record.geometry, record.sets.iter().cloned())?;
        let born_sets = record.born_sets as usize;
        if !(1..=record.sets.len()).contains(&born_sets) {
            return Err(GeometryError::Set { first: 0 });
        }
        if record.states.len() > STATES_MAX {
            return Err(GeometryError::TooManyStates);
        }
        check_classes(record)?;
        map.0.born_sets.store(born_sets, Ordering::Release);
        map.decide(record);
        Ok(map)
    }

    /// Follows a later record of the same volume; false if it is known already.
    ///
    /// Where it has more sets, their disks are there, and the record is durable in the superblocks
    /// of all disks: what is allocated from now on may be in them.
    pub fn advance(&self, record: &VolumeRecord) -> Result<bool, GeometryError> {
        if record.version <= self.version() {
            return Ok(false);
        }
        let known: Vec<&DiskSet> = self.sets().map(|placed| &placed.set).collect();
        let is_same = record.geometry == self.0.geometry
            && record.born_sets as usize == self.born_sets()
            && record.redundancy == self.redundancy()
            && check_classes(record).is_ok()
            && record.classes.starts_with(&classes_of(self).others)
            && record.states.len() <= STATES_MAX
            && record.sets.len() >= known.len()
            && record.sets.iter().zip(&known).all(|(set, known)| set == *known);
        if !is_same {
            return Err(GeometryError::Set { first: 0 });
        }
        let more = record.sets[known.len()..].iter().cloned();
        more.into_iter().try_for_each(|set| self.append(set))?;
        self.decide(record);
        Ok(true)
    }

    fn decide(&self, record: &VolumeRecord) {
        let states = record.states.iter().map(|entry| (entry.disk, entry.state)).collect();
        let VolumeRecord { policy, balancing, loss_delay_seconds, .. } = *record;
        let moves = MoveSettings { policy, balancing, loss_delay_seconds };
        let closed = record.states.iter().filter(|entry| entry.state != DiskStage::Online {});
        let closed: u64 = closed.map(|entry| self.stripes_on(entry.disk)).sum();
        let online_stripes = (closed > 0).then(|| self.stripes().saturating_sub(closed));
        let (redundancy, classes) = (record.redundancy, record.classes.clone());
        let mut absent = self.decisions().absent.clone();
        let now = record.states.iter().filter(|entry| entry.state.is_absent());
        absent.extend(now.map(|entry| (entry.disk.disk_node, record.version)));
        let silent = silent_disk_nodes(self, &states);
        let decisions =
            Decisions { states, moves, online_stripes, absent, silent, redundancy, classes };
        *self.0.decisions.write().unwrap_or_else(PoisonError::into_inner) = decisions;
        self.0.version.store(record.version, Ordering::Release);
    }

    /// A volume of one set of equal disks, as in version 1 of the format: neighbouring stripes are
    /// on different disk nodes; once round all nodes, on the next disk of each.
    pub fn grid(
        geometry: Geometry,
        disk_nodes: u32,
        disks_per_node: u32,
        stripes_per_disk: u64,
    ) -> Result<Self, GeometryError> {
        Self::new(geometry, [grid_set(&geometry, disk_nodes, disks_per_node, stripes_per_disk)?])
    }

    /// The largest [`grid`](Self::grid) on disks of `disk_length` bytes each.
    pub fn for_disks(
        volume: VolumeId,
        stripe_size: u32,
        fs_nodes: u32,
        disk_nodes: u32,
        disks_per_node: u32,
        disk_length: u64,
    ) -> Result<Self, GeometryError> {
        let geometry = Geometry { volume, stripe_size, fs_nodes };
        geometry.check()?;
        check_grid(disk_nodes, disks_per_node)?;
        let found = geometry.stripes_on_disk(disk_length);
        let disks = u64::from(disk_nodes) * u64::from(disks_per_node);
        let least = (STRIPES_PER_FS_NODE_MIN * u64::from(fs_nodes)).div_ceil(disks);
        if found < least {
            let needed_bytes = geometry.disk_length(least);
            return Err(GeometryError::TooSmall { found_bytes: disk_length, needed_bytes });
        }
        Self::grid(geometry, disk_nodes, disks_per_node, found)
    }

    /// Appends a set, which begins where the last one ends. In a volume that is in use only as
    /// [`advance`](Self::advance) says.
    pub fn append(&self, set: DiskSet) -> Result<(), GeometryError> {
        set.check(&self.0.geometry)?;
        let count = self.0.count.load(Ordering::Acquire);
        let first_group = self.last().map_or(0, |last| last.first_group + last.set.groups());
        if set.first != self.stripes() {
            return Err(GeometryError::Set { first: set.first });
        }
        if set.end().saturating_mul(u64::from(self.0.geometry.stripe_size)) > VOLUME_SIZE_MAX {
            return Err(GeometryError::TooLarge);
        }
        let place = self.0.sets.get(count).ok_or(GeometryError::TooManySets)?;
        let first = set.first;
        place.set(PlacedSet { set, first_group }).map_err(|_| GeometryError::Set { first })?;
        self.0.count.store(count + 1, Ordering::Release);
        Ok(())
    }

    /// What is fixed.
    pub fn geometry(&self) -> Geometry {
        self.0.geometry
    }

    /// The volume.
    pub fn volume(&self) -> VolumeId {
        self.0.geometry.volume
    }

    /// The version of what is decided: [`VolumeRecord::version`].
    pub fn version(&self) -> u64 {
        self.0.version.load(Ordering::Acquire)
    }

    /// How many sets are as old as the volume: the groups of these have owners from birth.
    pub fn born_sets(&self) -> usize {
        self.0.born_sets.load(Ordering::Acquire)
    }

    fn decisions(&self) -> RwLockReadGuard<'_, Decisions> {
        self.0.decisions.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// When data moves, and how.
    pub fn moves(&self) -> MoveSettings {
        self.decisions().moves
    }

    /// How data survives the loss of disks, unless its directory says otherwise.
    pub fn redundancy(&self) -> RedundancyClass {
        self.decisions().redundancy
    }

    /// Stripes of data for which there is room, with `copies` of each, on disks that are in use and
    /// not drained.
    pub fn stripes_in_copies(&self, copies: u32) -> u64 {
        let disks = self.disks().into_iter();
        let online = disks.filter(|disk| self.state(*disk) == DiskStage::Online {});
        let online: Vec<_> = online.map(|disk| (disk.disk_node, self.stripes_on(disk))).collect();
        stripes_in_copies(&online, copies)
    }

    /// The disks that are not simply in use, in order.
    pub fn states(&self) -> Vec<DiskEntry> {
        let decisions = self.decisions();
        decisions.states.iter().map(|(&disk, &state)| DiskEntry { disk, state }).collect()
    }

    /// What is done with `disk`.
    pub fn state(&self, disk: DiskName) -> DiskStage {
        self.decisions().states.get(&disk).copied().unwrap_or(DiskStage::Online {})
    }

    /// The sets, in order.
    pub fn sets(&self) -> impl DoubleEndedIterator<Item = &PlacedSet> {
        let count = self.0.count.load(Ordering::Acquire);
        self.0.sets[..count].iter().filter_map(OnceLock::get)
    }

    fn last(&self) -> Option<&PlacedSet> {
        self.sets().next_back()
    }

    /// The set that `stripe` is in; the last one if it does not exist.
    pub fn set_of(&self, stripe: u64) -> &PlacedSet {
        let found = self.sets().rev().find(|placed| placed.set.first <= stripe);
        found.expect("the first set begins at stripe 0")
    }

    /// The number of the set that `stripe` is in.
    pub fn set_number(&self, stripe: u64) -> usize {
        self.sets().take_while(|placed| placed.set.first <= stripe).count().saturating_sub(1)
    }

    /// The set that allocation group `group` is in; the last one if it does not exist.
    pub fn set_of_group(&self, group: u64) -> &PlacedSet {
        let found = self.sets().rev().find(|placed| placed.first_group <= group);
        found.expect("the first set begins with group 0")
    }

    /// Stripes of the logical disk.
    pub fn stripes(&self) -> u64 {
        self.last().map_or(0, |last| last.set.end())
    }

    /// Stripes of the logical disk that are on disks in use, neither being drained nor retired.
    pub fn online_stripes(&self) -> u64 {
        self.decisions().online_stripes.unwrap_or_else(|| self.stripes())
    }

    /// Bytes of the logical disk.
    pub fn bytes(&self) -> u64 {
        self.stripes() * u64::from(self.0.geometry.stripe_size)
    }

    /// Allocation groups.
    pub fn groups(&self) -> u64 {
        self.last().map_or(0, |last| last.first_group + last.set.groups())
    }

    /// Where `stripe` is.
    pub fn place(&self, stripe: u64) -> DiskStripe {
        self.set_of(stripe).set.place(stripe)
    }

    /// The disk node that holds `stripe`.
    pub fn disk_node(&self, stripe: u64) -> NodeId {
        NodeId::disk(self.place(stripe).disk.disk_node)
    }

    /// Whether bytes `offset..offset + length` of `stripe` exist.
    pub fn contains(&self, stripe: u64, offset: u32, length: u64) -> bool {
        let end = u64::from(offset).checked_add(length);
        stripe < self.stripes() && end.is_some_and(|end| end <= self.0.geometry.stripe_size.into())
    }

    /// All disks that are there, neither retired nor lost: the first of each disk node before the
    /// second of any.
    pub fn disks(&self) -> Vec<DiskName> {
        self.disks_that(|_| true)
    }

    /// Those of them that are `is_wanted`, in the same order.
    fn disks_that(&self, is_wanted: impl Fn(&DiskName) -> bool) -> Vec<DiskName> {
        let states = self.decisions().states.clone();
        let is_gone = |disk: &DiskName| states.get(disk).is_some_and(|state| state.is_gone());
        let members = self.sets().flat_map(|placed| placed.set.members.iter());
        let mut disks: Vec<DiskName> =
            members.map(|member| member.disk).filter(is_wanted).collect();
        disks.retain(|disk| !is_gone(disk));
        disks.sort_unstable_by_key(|name| (name.disk, name.disk_node));
        disks.dedup();
        disks
    }

    /// One more than the number of the last disk node.
    pub fn disk_nodes(&self) -> u32 {
        let of_set = |placed: &PlacedSet| match &placed.set.members {
            SetMembers::Grid { disk_nodes, .. } => *disk_nodes,
            SetMembers::List { disks } => {
                disks.iter().map(|member| member.disk.disk_node + 1).max().unwrap_or(0)
            }
        };
        self.sets().map(of_set).max().unwrap_or(0)
    }

    /// The number of the next disk of a disk node: none had it ever.
    pub fn next_disk(&self, disk_node: u32) -> u32 {
        let members = self.sets().flat_map(|placed| placed.set.members.iter());
        let states = self.states().into_iter().map(|entry| entry.disk);
        let disks = members.map(|member| member.disk).chain(states);
        let here = disks.filter(|disk| disk.disk_node == disk_node);
        here.map(|disk| disk.disk + 1).max().unwrap_or(0)
    }

    /// The disks of a disk node that are neither retired nor lost, in order.
    pub fn disks_of(&self, disk_node: u32) -> Vec<DiskName> {
        self.disks_that(|disk| disk.disk_node == disk_node)
    }

    /// The disks that hold the roots of the nodes: those of the first set, in order.
    pub fn root_disks(&self) -> &SetMembers {
        &self.set_of(0).set.members
    }

    /// Stripes on `disk`.
    pub fn stripes_on(&self, disk: DiskName) -> u64 {
        let ends = self.sets().filter_map(|PlacedSet { set, .. }| {
            let position = set.members.position(disk)?;
            Some(set.members.member(position).base + set.stripes_per_disk)
        });
        ends.max().unwrap_or(0)
    }

    /// Bytes that `disk` needs, both superblocks included.
    pub fn disk_length(&self, disk: DiskName) -> u64 {
        self.0.geometry.disk_length(self.stripes_on(disk))
    }
}

/// The classes that the files of a volume may have.
pub fn classes_of(map: &VolumeMap) -> VolumeClasses {
    let decisions = map.decisions();
    VolumeClasses { default: decisions.redundancy, others: decisions.classes.clone() }
}

/// Does this program know all classes of a record, and are there not too many?
fn check_classes(record: &VolumeRecord) -> Result<(), GeometryError> {
    let mut classes = record.classes.iter().chain([&record.redundancy]);
    match classes.find(|class| !class.is_known()) {
        Some(&class) => Err(GeometryError::Redundancy { class }),
        None if record.classes.len() > CLASSES_MAX => Err(GeometryError::TooManyClasses),
        None => Ok(()),
    }
}

fn silent_disk_nodes(map: &VolumeMap, states: &BTreeMap<DiskName, DiskStage>) -> BTreeSet<u32> {
    let mut silent: BTreeSet<u32> = states.keys().map(|disk| disk.disk_node).collect();
    for member in map.sets().flat_map(|placed| placed.set.members.iter()) {
        let stage = states.get(&member.disk).copied().unwrap_or(DiskStage::Online {});
        if !stage.is_gone() && !stage.is_absent() {
            silent.remove(&member.disk.disk_node);
        }
    }
    silent
}

/// Is the disk node of `disk` asked for nothing? Its host is away, or has no disk in use.
pub fn is_silent(map: &VolumeMap, disk: DiskName) -> bool {
    map.version() > 0 && map.decisions().silent.contains(&disk.disk_node)
}

/// The last version of the record by which disks of the disk node that holds `stripe` were away, as
/// far as this process has heard of it.
pub fn last_absent(map: &VolumeMap, stripe: u64) -> Option<u64> {
    if map.version() == 0 {
        return None;
    }
    let disk_node = map.place(stripe).disk.disk_node;
    map.decisions().absent.get(&disk_node).copied()
}

/// The only set of a volume of version 1.
pub(crate) fn grid_set(
    geometry: &Geometry,
    disk_nodes: u32,
    disks_per_node: u32,
    stripes_per_disk: u64,
) -> Result<DiskSet, GeometryError> {
    check_grid(disk_nodes, disks_per_node)?;
    let disks = u64::from(disk_nodes) * u64::from(disks_per_node);
    let stripes = disks.checked_mul(stripes_per_disk).ok_or(GeometryError::TooLarge)?;
    let group_stripes = stripes / (u64::from(geometry.fs_nodes).max(1) * GROUPS_PER_NODE);
    Ok(DiskSet {
        first: 0,
        stripes_per_disk,
        group_stripes: group_stripes.clamp(1, STRIPES_PER_GROUP_MAX.into()) as u32,
        unit_stripes: 1,
        lanes: 0,
        members: SetMembers::Grid { disk_nodes, disks_per_node },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk_set::SetMember;

    fn small() -> VolumeMap {
        VolumeMap::for_disks(VolumeId(1), 65536, 4, 3, 2, 1 << 20).expect("12 stripes per disk")
    }

    /// On the first two disks of disk node 3, after what other sets have there, in units of 2.
    fn second(map: &VolumeMap) -> DiskSet {
        let member = |disk| SetMember { disk: DiskName { disk_node: 3, disk }, base: 10 };
        DiskSet {
            first: map.stripes(),
            stripes_per_disk: 20,
            group_stripes: 7,
            unit_stripes: 2,
            lanes: 2,
            members: SetMembers::List { disks: (0..2).map(member).collect() },
        }
    }

    fn places(map: &VolumeMap, stripes: std::ops::Range<u64>) -> Vec<(u32, u32, u64)> {
        let places = stripes.map(|stripe| map.place(stripe));
        places.map(|place| (place.disk.disk_node, place.disk.disk, place.index)).collect()
    }

    #[test]
    fn stripes_go_over_nodes_first_then_over_disks() {
        assert_eq!(
            places(&small(), 0..7),
            [(0, 0, 0), (1, 0, 0), (2, 0, 0), (0, 1, 0), (1, 1, 0), (2, 1, 0), (0, 0, 1)]
        );
        assert_eq!(small().geometry().block(17), (1, 4096));
    }

    #[test]
    fn a_set_that_is_appended_moves_no_stripe_and_goes_on_in_units() {
        let map = small();
        let (holder, before) = (map.clone(), places(&map, 0..map.stripes()));
        let first = map.stripes();
        map.append(second(&map)).expect("it begins where the first one ends");
        assert_eq!(places(&holder, 0..first), before);
        assert_eq!(holder.stripes(), first + 40, "all holders see it");
        assert_eq!(
            places(&holder, first..first + 6),
            [(3, 0, 10), (3, 0, 11), (3, 1, 10), (3, 1, 11), (3, 0, 12), (3, 0, 13)]
        );
        assert_eq!(map.stripes_on(DiskName { disk_node: 3, disk: 1 }), 30);
        assert_eq!(map.disk_nodes(), 4);
        assert_eq!(map.disks_of(3).len(), 2);
        assert_eq!(map.disks().len(), 8);
        assert_eq!(map.groups(), 72 / 2 + 6, "the last group of the set is shorter");
    }

    #[test]
    fn each_stripe_has_a_place_of_its_own() {
        let map = small();
        map.append(second(&map)).expect("it begins where the first one ends");
        let mut all = places(&map, 0..map.stripes());
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn a_set_that_cannot_be_is_refused() {
        let map = small();
        let good = second(&map);
        let member = |disk| SetMember { disk: DiskName { disk_node: 3, disk }, base: 0 };
        let twice = SetMembers::List { disks: vec![member(1), member(1)] };
        let many = (0..).map(member).take(crate::disk_set::SET_DISKS_MAX + 1);
        for bad in [
            DiskSet { first: good.first + 1, ..good.clone() },
            DiskSet { stripes_per_disk: 0, ..good.clone() },
            DiskSet { stripes_per_disk: 21, ..good.clone() },
            DiskSet { stripes_per_disk: u64::MAX - 1, ..good.clone() },
            DiskSet { stripes_per_disk: 1 << 60, ..good.clone() },
            DiskSet { group_stripes: 0, ..good.clone() },
            DiskSet { group_stripes: 257, ..good.clone() },
            DiskSet { unit_stripes: 0, ..good.clone() },
            DiskSet { lanes: 3, ..good.clone() },
            DiskSet { members: twice, ..good.clone() },
            DiskSet { members: SetMembers::List { disks: Vec::new() }, ..good.clone() },
            DiskSet { members: SetMembers::List { disks: many.collect() }, ..good.clone() },
        ] {
            assert!(map.append(bad.clone()).is_err(), "{bad:?}");
            assert_eq!(map, small());
        }
        for _ in 1..SETS_MAX {
            map.append(DiskSet { first: map.stripes(), ..good.clone() }).expect("there is room");
        }
        let one_more = DiskSet { first: map.stripes(), ..good };
        assert_eq!(map.append(one_more), Err(GeometryError::TooManySets));
    }

    #[test]
    fn a_disk_is_superblock_slots_aligned_stripes_and_copy() {
        let (map, geometry) = (small(), small().geometry());
        assert_eq!(geometry.slots_per_disk(), 32);
        assert_eq!(geometry.slot_offset(0), 4096);
        assert_eq!(geometry.slot_offset(32), 33 * 4096);
        assert_eq!(geometry.stripe_offset(0), 3 * 65536, "33 blocks, rounded up to a stripe");
        assert_eq!(geometry.stripe_offset(1), 4 * 65536);
        let disk = DiskName { disk_node: 2, disk: 1 };
        assert_eq!(map.stripes_on(disk), 12, "of 13, the last has to give room to the copy");
        assert_eq!(map.disk_length(disk), 15 * 65536 + 4096);
    }

    #[test]
    fn impossible_shapes_are_refused_with_the_limits() {
        let shape = |stripe, fs, nodes, disks, length| {
            VolumeMap::for_disks(VolumeId(1), stripe, fs, nodes, disks, length)
        };
        for found in [0, 8192, 65535, 2 << 20] {
            let refused = shape(found, 4, 1, 1, 1 << 30);
            assert_eq!(refused, Err(GeometryError::StripeSize { found }));
        }
        for (fs, nodes, disks) in
            [(0, 1, 1), (4097, 1, 1), (1, 0, 1), (1, 1025, 1), (1, 1, 0), (1, 1, 257)]
        {
            let refused = shape(65536, fs, nodes, disks, 1 << 40);
            assert!(matches!(refused, Err(GeometryError::Count { .. })), "{refused:?}");
        }
        let needed_bytes = 65536 + 16 * 65536 + 4096;
        let refused = shape(65536, 1, 1, 1, needed_bytes - 1);
        assert!(matches!(refused, Err(GeometryError::TooSmall { .. })), "{refused:?}");
        assert_eq!(shape(65536, 1, 1, 1, u64::MAX), Err(GeometryError::TooLarge));
    }

    #[test]
    fn the_smallest_disk_that_the_error_names_is_large_enough() {
        for (fs, nodes, disks) in [(1, 1, 1), (64, 2, 2), (4096, 3, 5)] {
            let shape = |length| VolumeMap::for_disks(VolumeId(1), 16384, fs, nodes, disks, length);
            let Err(GeometryError::TooSmall { needed_bytes, .. }) = shape(0) else {
                panic!("an empty disk was accepted");
            };
            assert!(shape(needed_bytes - 1).is_err());
            let map = shape(needed_bytes).expect("as large as was asked for");
            assert_eq!(map.disk_length(DiskName::default()), needed_bytes);
            assert!(map.stripes() >= 16 * u64::from(fs));
        }
    }

    #[test]
    fn only_bytes_of_existing_stripes_exist() {
        let map = small();
        assert!(map.contains(0, 0, 65536));
        assert!(map.contains(map.stripes() - 1, 65535, 1));
        assert!(!map.contains(map.stripes(), 0, 0));
        assert!(!map.contains(0, 1, 65536));
        assert!(!map.contains(0, u32::MAX, u64::MAX));
    }
}
