//! The disk sets that new disks make: how disks of any sizes are cut, and how stripes go round them
//! (ADR 90).

use std::collections::{BTreeMap, BTreeSet};

use runtime::ids::DISK_NODES_MAX;

use crate::disk_set::{DiskName, DiskSet, SET_DISKS_MAX, SetMember, SetMembers};
use crate::disk_state::{DiskStage, VolumeRecord};
use crate::failure_domains::FailureDomains;
use crate::geometry::{
    Geometry, GeometryError, STRIPES_PER_FS_NODE_MIN, STRIPES_PER_GROUP_MAX, VOLUME_SIZE_MAX,
};
use crate::redundancy::{CLASSES_MAX, RedundancyClass, WideStripeShape};
use crate::volume_map::VolumeMap;

/// Bytes that are together on one disk, and in one cache: a unit.
pub const UNIT_BYTES: u32 = 1 << 20;
/// Groups that each file-system node gets of a set, about.
const GROUPS_PER_NODE: u64 = 64;
/// Sets that disks added together make, at most.
pub const LAYERS_MAX: usize = 8;

/// How the stripes of a new set are spread over disks and caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spread {
    /// In units of [`UNIT_BYTES`], each on one disk and in a cache that can be near it.
    #[default]
    Units,
    /// Stripe by stripe, caches by the stripe's number alone (thesis sections 2.3.4, 2.4.4).
    Modulo,
}

/// Room for stripes on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeDisk {
    /// The disk.
    pub disk: DiskName,
    /// Stripes before the room.
    pub base: u64,
    /// Stripes that have room.
    pub stripes: u64,
}

/// A new volume on disks of these lengths, in bytes.
pub fn plan_volume(
    geometry: Geometry,
    disks: &[(DiskName, u64)],
    spread: Spread,
) -> Result<VolumeMap, GeometryError> {
    geometry.check()?;
    let room = |&(disk, length): &(DiskName, u64)| FreeDisk {
        disk,
        base: 0,
        stripes: geometry.stripes_on_disk(length),
    };
    let rooms: Vec<FreeDisk> = disks.iter().map(room).collect();
    let needed = STRIPES_PER_FS_NODE_MIN * u64::from(geometry.fs_nodes);
    let on_each = needed.div_ceil(disks.len().max(1) as u64);
    let found = rooms.iter().fold(0_u64, |all, disk| all.saturating_add(disk.stripes));
    if found < needed {
        let found_bytes = disks.iter().map(|&(_, length)| length).max().unwrap_or(0);
        let needed_bytes = geometry.disk_length(on_each);
        return Err(GeometryError::TooSmall { found_bytes, needed_bytes });
    }
    VolumeMap::new(geometry, plan_sets(&geometry, 0, &rooms, spread)?)
}

/// The same volume, not in use yet, with this redundancy. Refused if its disks are too few.
pub fn plan_redundancy(
    map: &VolumeMap,
    class: RedundancyClass,
) -> Result<VolumeMap, GeometryError> {
    check_disks_for(map, class)?;
    VolumeMap::of_record(&VolumeRecord { redundancy: class, ..VolumeRecord::of(map) })
}

/// The record of the same volume once directories and files may have `class`, too; `None` if they
/// may already. Refused if its disks are too few, if more data than metadata would survive, or if
/// less would than the volume's class promises: it goes on without disks by that.
pub fn plan_class(
    map: &VolumeMap,
    class: RedundancyClass,
) -> Result<Option<VolumeRecord>, GeometryError> {
    let record = VolumeRecord::of(map);
    if class == record.redundancy || record.classes.contains(&class) {
        return Ok(None);
    }
    let (needed, found) = (class.metadata_copies(), record.redundancy.metadata_copies());
    if needed > found {
        return Err(GeometryError::MetadataCopies { class, needed, found });
    }
    if class.copies() < record.redundancy.copies() {
        return Err(GeometryError::WeakerClass { class, copies: record.redundancy.copies() });
    }
    if record.classes.len() >= CLASSES_MAX {
        return Err(GeometryError::TooManyClasses);
    }
    check_disks_for(map, class)?;
    Ok(Some(record.with_class(class)))
}

/// Are there disks, and stripes of the right size, for this class?
fn check_disks_for(map: &VolumeMap, class: RedundancyClass) -> Result<(), GeometryError> {
    let is_online = |disk: &DiskName| map.state(*disk) == DiskStage::Online {};
    let disks: Vec<DiskName> = map.disks().into_iter().filter(is_online).collect();
    let (found, needed) = (disks.len() as u32, class.disks_needed());
    if found < needed {
        return Err(GeometryError::TooFewDisks { class, needed, found });
    }
    if let Some(shape) = class.wide_stripes() {
        let nodes: BTreeSet<u32> = disks.iter().map(|disk| disk.disk_node).collect();
        let found = nodes.len() as u32;
        if found > 1 && found < needed {
            return Err(GeometryError::TooFewDiskNodes { class, needed, found });
        }
        let largest_bytes = shape.stripe_size_max();
        if map.geometry().stripe_size > largest_bytes {
            return Err(GeometryError::WideStripe { class, largest_bytes });
        }
    }
    Ok(())
}

/// Refused if `next`, by which disks are added, has too few disk nodes for a class that files may
/// have, and had more places apart before: disks of one disk node are apart only while there is no
/// other.
pub fn check_added(map: &VolumeMap, next: &VolumeRecord) -> Result<(), GeometryError> {
    let before = FailureDomains::in_use(map).count();
    let found = FailureDomains::in_use(&VolumeMap::of_record(next)?).count();
    let shards = |class: &RedundancyClass| class.wide_stripes().map_or(0, WideStripeShape::shards);
    let classes = next.classes.iter().chain([&next.redundancy]).copied();
    match classes.max_by_key(shards) {
        Some(class) if found < before && found < shards(&class) => {
            Err(GeometryError::TooFewDiskNodes { class, needed: shards(&class), found })
        }
        _ => Ok(()),
    }
}

/// The sets that use all of `disks`, of which the first begins at stripe `first`.
///
/// Disks of different sizes are cut in layers: the first set has as much of each disk as the
/// smallest has, the next has the rest of the others, and so on. A layer that would be thinner than
/// a hundredth of its largest disk is left out.
pub fn plan_sets(
    geometry: &Geometry,
    first: u64,
    disks: &[FreeDisk],
    spread: Spread,
) -> Result<Vec<DiskSet>, GeometryError> {
    let (mut sets, mut first, mut level) = (Vec::new(), first, 0);
    while sets.len() < LAYERS_MAX {
        let most = disks.iter().map(|disk| disk.stripes).max().unwrap_or(0);
        let thinnest = (most / 100).max(1);
        let rest: Vec<FreeDisk> =
            disks.iter().copied().filter(|disk| disk.stripes >= level + thinnest).collect();
        let Some(height) = rest.iter().map(|disk| disk.stripes - level).min() else { break };
        let Some(set) = plan_layer(geometry, first, &rest, (level, height), spread)? else { break };
        (first, level) = (set.end(), level + set.stripes_per_disk);
        sets.push(set);
    }
    if sets.is_empty() { Err(GeometryError::Set { first }) } else { Ok(sets) }
}

/// One set on all of `disks`, from their stripe `level` on, at most `height` stripes high.
fn plan_layer(
    geometry: &Geometry,
    first: u64,
    disks: &[FreeDisk],
    (level, height): (u64, u64),
    spread: Spread,
) -> Result<Option<DiskSet>, GeometryError> {
    let all = height.checked_mul(disks.len() as u64);
    let bytes = all.and_then(|all| all.checked_mul(geometry.stripe_size.into()));
    let (Some(all), Some(0..=VOLUME_SIZE_MAX)) = (all, bytes) else {
        return Err(GeometryError::TooLarge);
    };
    let wanted = (all / (u64::from(geometry.fs_nodes) * GROUPS_PER_NODE))
        .clamp(1, STRIPES_PER_GROUP_MAX.into()) as u32;
    let unit = match spread {
        Spread::Units => (UNIT_BYTES / geometry.stripe_size).clamp(1, 1 << wanted.ilog2()),
        Spread::Modulo => 1,
    };
    let members = ordered(disks, level);
    let set = DiskSet {
        first,
        stripes_per_disk: height - height % u64::from(unit),
        group_stripes: wanted - wanted % unit,
        unit_stripes: unit,
        lanes: match spread {
            Spread::Units => lanes(&members, geometry.fs_nodes),
            Spread::Modulo => 0,
        },
        members: compact(members)?,
    };
    Ok((set.stripes_per_disk > 0).then_some(set))
}

/// The disks in the order in which units go round them: over the disk nodes first.
fn ordered(disks: &[FreeDisk], level: u64) -> Vec<SetMember> {
    let mut by_node: BTreeMap<u32, Vec<SetMember>> = BTreeMap::new();
    for free in disks {
        let member = SetMember { disk: free.disk, base: free.base + level };
        by_node.entry(free.disk.disk_node).or_default().push(member);
    }
    for members in by_node.values_mut() {
        members.sort_unstable_by_key(|member| member.disk);
    }
    let rounds = by_node.values().map(Vec::len).max().unwrap_or(0);
    let round = |index: usize| by_node.values().filter_map(move |members| members.get(index));
    (0..rounds).flat_map(round).copied().collect()
}

/// How many neighbouring units are on different disk nodes again and again, if caches can follow
/// that.
fn lanes(members: &[SetMember], fs_nodes: u32) -> u32 {
    let node = |index: usize| members[index].disk.disk_node;
    let period = (1..members.len()).find(|&index| node(index) == node(0)).unwrap_or(members.len());
    let repeats = members.len().is_multiple_of(period)
        && (0..members.len()).all(|index| node(index) == node(index % period));
    let lanes = period as u32;
    if repeats && lanes <= DISK_NODES_MAX && fs_nodes.is_multiple_of(lanes) { lanes } else { 1 }
}

/// The shortest form of a list of disks.
fn compact(members: Vec<SetMember>) -> Result<SetMembers, GeometryError> {
    let disk_nodes = members.iter().map(|member| member.disk.disk_node + 1).max().unwrap_or(0);
    if disk_nodes > 0 && members.len().is_multiple_of(disk_nodes as usize) {
        let grid =
            SetMembers::Grid { disk_nodes, disks_per_node: members.len() as u32 / disk_nodes };
        if grid.iter().eq(members.iter().copied()) {
            return Ok(grid);
        }
    }
    let (found, max) = (members.len() as u32, SET_DISKS_MAX as u32);
    if members.len() > SET_DISKS_MAX {
        return Err(GeometryError::Count { what: "disks of different sizes", found, max });
    }
    Ok(SetMembers::List { disks: members })
}

#[cfg(test)]
mod tests {
    use runtime::VolumeId;

    use super::*;

    const GEOMETRY: Geometry = Geometry { volume: VolumeId(1), stripe_size: 65536, fs_nodes: 64 };

    fn free(disk_node: u32, disk: u32, stripes: u64) -> FreeDisk {
        FreeDisk { disk: DiskName { disk_node, disk }, base: 0, stripes }
    }

    fn used(sets: &[DiskSet], disk: DiskName) -> u64 {
        let mine = sets.iter().filter(|set| set.members.iter().any(|member| member.disk == disk));
        mine.map(|set| set.stripes_per_disk).sum()
    }

    #[test]
    fn equal_disks_make_one_set_of_units_that_go_over_the_disk_nodes_first() {
        let disks: Vec<FreeDisk> =
            (0..4).flat_map(|node| (0..2).map(move |disk| free(node, disk, 65536))).collect();
        let sets = plan_sets(&GEOMETRY, 0, &disks, Spread::Units).expect("they fit");
        let [set] = &sets[..] else { panic!("{sets:?}") };
        assert_eq!(set.members, SetMembers::Grid { disk_nodes: 4, disks_per_node: 2 });
        assert_eq!((set.unit_stripes, set.lanes, set.group_stripes), (16, 4, 128));
        assert_eq!(set.stripes(), 8 * 65536);
    }

    #[test]
    fn uneven_disks_are_used_to_their_ends_in_layers() {
        let disks = [free(0, 0, 10_000), free(0, 1, 20_000), free(0, 2, 50_000)];
        let sets = plan_sets(&GEOMETRY, 0, &disks, Spread::Units).expect("they fit");
        let counts: Vec<u32> = sets.iter().map(|set| set.members.count()).collect();
        assert_eq!(counts, [3, 2, 1]);
        for disk in disks {
            let used = used(&sets, disk.disk);
            assert!(used <= disk.stripes && used * 100 >= disk.stripes * 98, "{used} of {disk:?}");
        }
        let map = VolumeMap::new(GEOMETRY, sets).expect("sets that follow one another");
        let mut places: Vec<_> = (0..map.stripes())
            .map(|stripe| map.place(stripe))
            .map(|place| (place.disk, place.index))
            .collect();
        places.sort_unstable();
        assert!(places.windows(2).all(|pair| pair[0] != pair[1]));
        assert!(disks.iter().all(|disk| map.stripes_on(disk.disk) <= disk.stripes));
    }

    #[test]
    fn a_small_volume_has_small_units_and_groups() {
        for (stripes, unit, group) in [(4096, 1, 1), (65536, 16, 16), (100_000, 16, 16)] {
            let set = &plan_sets(&GEOMETRY, 0, &[free(0, 0, stripes)], Spread::Units).unwrap()[0];
            assert_eq!((set.unit_stripes, set.group_stripes), (unit, group), "{stripes}");
        }
    }

    #[test]
    fn caches_follow_the_disk_nodes_only_where_their_numbers_allow() {
        let of =
            |disks: &[FreeDisk]| plan_sets(&GEOMETRY, 0, disks, Spread::Units).unwrap()[0].lanes;
        assert_eq!(of(&[free(0, 0, 65536), free(1, 0, 65536)]), 2);
        let three = [free(0, 0, 65536), free(1, 0, 65536), free(2, 0, 65536)];
        assert_eq!(of(&three), 1, "3 does not divide 64");
        let uneven = [free(0, 0, 65536), free(1, 0, 65536), free(1, 1, 65536)];
        assert_eq!(of(&uneven), 1);
    }

    #[test]
    fn the_thesis_spread_has_neither_units_nor_lanes() {
        let disks = [free(0, 0, 65536), free(1, 0, 65536)];
        let set = &plan_sets(&GEOMETRY, 7, &disks, Spread::Modulo).unwrap()[0];
        assert_eq!((set.first, set.unit_stripes, set.lanes), (7, 1, 0));
    }

    #[test]
    fn disks_without_room_make_nothing() {
        assert!(plan_sets(&GEOMETRY, 0, &[], Spread::Units).is_err());
        assert!(plan_sets(&GEOMETRY, 0, &[free(0, 0, 0)], Spread::Units).is_err());
        let huge = [free(0, 0, u64::MAX), free(0, 1, u64::MAX)];
        assert_eq!(plan_sets(&GEOMETRY, 0, &huge, Spread::Units), Err(GeometryError::TooLarge));
    }
}
