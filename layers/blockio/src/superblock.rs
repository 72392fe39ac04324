//! Who a disk is: its first block, with a copy in its last whole block. Bytes: docs/format.md.

use std::cmp::Reverse;

use bytes::Bytes;
use runtime::hash::crc32c;
use runtime::wire::{Decoder, Encoder, Malformed, Wire};
use runtime::{Epoch, VolumeId};

use crate::disk_set::{DiskName, DiskSet, SET_DISKS_MAX, SetMember, SetMembers};
use crate::disk_state::{DiskEntry, DiskStage, MoveSettings, VolumeRecord};
use crate::geometry::{BLOCK_SIZE, Geometry, GeometryError, SETS_MAX, STATES_MAX};
use crate::redundancy::{CLASSES_MAX, RedundancyClass};
use crate::volume_map::{VolumeMap, classes_of, grid_set};

/// The first eight bytes of each superblock.
pub const MAGIC: [u8; 8] = *b"MDFSDISK";

/// The version of the format of new volumes, and the newest that this program reads.
pub const VERSION: u32 = 2;

/// The version of volumes with one set of equal disks, which can be used, and not grow.
pub const VERSION_ONE_SET: u32 = 1;

/// Feature bits that this program understands. A disk with any other is refused.
pub const FEATURES: u32 = FEATURE_COPIES | FEATURE_PARITY | FEATURE_CLASSES;

/// Runs of chunks may name further copies.
pub const FEATURE_COPIES: u32 = 1;
/// Some stripes of data are covered by parity ([`RedundancyClass::Parity`]).
pub const FEATURE_PARITY: u32 = 2;
/// Directories and files may say how their data survives ([`VolumeRecord::classes`]).
pub const FEATURE_CLASSES: u32 = 4;

/// Magic, checksum and their places are the same in every version.
const VERSION_AT: usize = 8;
const CHECKSUM_AT: usize = BLOCK_SIZE - 4;

/// What a disk says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The version of the format.
    pub version: u32,
    /// The place of the disk.
    pub disk: DiskName,
    /// One bit for each feature without which the disk cannot be understood.
    pub features: u32,
    /// The volume that the disk is part of.
    pub geometry: Geometry,
    /// A random number of this disk; 0 in version 1.
    pub id: u128,
    /// Bytes of the disk, in whole blocks; the copy is the last of these.
    pub length: u64,
    /// When it was formatted, in milliseconds since 1970.
    pub formatted_ms: u64,
    /// The highest epoch that opened the disk.
    pub epoch: Epoch,
    /// All sets of the volume, with this disk's part in them.
    pub sets: Vec<SetRow>,
    /// What is decided about the disks.
    pub decided: Decided,
}

runtime::record! {
    /// What each disk knows of all disks, beside the sets.
    #[derive(Default)]
    pub struct Decided {
        /// The version of the volume's record ([`VolumeRecord::version`]).
        version: u64,
        /// See [`VolumeRecord::born_sets`].
        born_sets: u32,
        /// See [`VolumeRecord::states`].
        states: Vec<DiskEntry>,
        /// The record was the volume's when this was written. A new disk is made ready for one that
        /// may never be.
        is_decided: bool,
        /// See [`VolumeRecord::redundancy`]. The zeros that follow in older superblocks say none.
        redundancy: RedundancyClass,
        /// See [`VolumeRecord::classes`].
        classes: Vec<RedundancyClass>,
    }
}

runtime::record! {
    /// What a disk knows of a disk set. The rows of all its disks together tell what it is.
    #[derive(Copy)]
    pub struct SetRow {
        /// Its first stripe.
        first: u64,
        /// Stripes on each of its disks.
        stripes_per_disk: u64,
        /// Stripes of an allocation group.
        group_stripes: u32,
        /// Stripes of a unit.
        unit_stripes: u32,
        /// See [`DiskSet::lanes`].
        lanes: u32,
        /// How many disks it has.
        disks: u32,
        /// Disk nodes of a grid; 0 if it is none.
        columns: u32,
        /// Which of its disks this one is; [`NO_MEMBER`] if it is none.
        position: u32,
        /// Stripes of this disk before those of the set.
        base: u64,
    }
}

/// The position of a disk in a set of other disks.
pub const NO_MEMBER: u32 = u32::MAX;

/// What is wrong with the bytes of a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuperblockFlaw {
    /// They do not even start like one.
    NoMagic,
    /// The checksum does not match, or the content makes no sense.
    Damaged,
    /// A newer program wrote it, in this version.
    Version(u32),
    /// A newer program wrote it, with these features that are unknown here.
    Features(u32),
}

impl SetRow {
    /// What `disk` says of `set`.
    pub fn of(set: &DiskSet, disk: DiskName) -> Self {
        let position = set.members.position(disk);
        let base = position.map_or(0, |position| set.members.member(position).base);
        let position = position.unwrap_or(NO_MEMBER);
        let columns = match set.members {
            SetMembers::Grid { disk_nodes, .. } => disk_nodes,
            SetMembers::List { .. } => 0,
        };
        Self {
            first: set.first,
            stripes_per_disk: set.stripes_per_disk,
            group_stripes: set.group_stripes,
            unit_stripes: set.unit_stripes,
            lanes: set.lanes,
            disks: set.members.count(),
            columns,
            position,
            base,
        }
    }

    /// The stripe after its last.
    fn end(&self) -> Option<u64> {
        self.stripes_per_disk.checked_mul(self.disks.into())?.checked_add(self.first)
    }

    /// The disks of the set if it is a grid.
    fn grid(&self) -> Option<SetMembers> {
        let disks_per_node = self.disks.checked_div(self.columns)?;
        Some(SetMembers::Grid { disk_nodes: self.columns, disks_per_node })
    }

    /// The place of this disk if the set is a grid.
    fn place_in_grid(&self) -> Option<DiskName> {
        let is_in = self.columns > 0 && self.position != NO_MEMBER;
        is_in.then(|| DiskName {
            disk_node: self.position % self.columns,
            disk: self.position / self.columns,
        })
    }
}

/// Why the disks at hand do not tell what their volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownMap {
    /// There are no disks.
    #[error("there is no disk of the volume")]
    NoDisks,
    /// A disk of a set is not there, and only it knows its place.
    #[error("disk {position} of the set that begins at stripe {first} is missing")]
    Missing {
        /// The first stripe of the set.
        first: u64,
        /// Which of its disks, from 0.
        position: u32,
    },
    /// The superblocks name an impossible volume.
    #[error(transparent)]
    Impossible(#[from] GeometryError),
}

impl VolumeMap {
    /// The volume of which these are the disks, as one with the newest superblock has it.
    pub fn from_superblocks(disks: &[Superblock]) -> Result<Self, UnknownMap> {
        let decided = disks.iter().filter(|disk| disk.decided.is_decided);
        let newest = decided.max_by_key(|disk| disk.decided.version);
        let newest = newest.ok_or(UnknownMap::NoDisks)?;
        let Decided { version, born_sets, ref states, redundancy, ref classes, .. } =
            newest.decided;
        // Those that were made ready for this record or one before it, and have not heard of more,
        // come after those that are known to be in use; the latest first.
        let is_there =
            |disk: &&Superblock| disk.decided.is_decided || disk.decided.version <= version;
        let mut there: Vec<&Superblock> = disks.iter().filter(is_there).collect();
        there.sort_by_key(|disk| (!disk.decided.is_decided, Reverse(disk.decided.version)));
        // Sets that were added are of disks that were not there before.
        let grids: Vec<SetMembers> = newest.sets.iter().filter_map(SetRow::grid).collect();
        let is_born = |disk: DiskName| grids.iter().any(|grid| grid.position(disk).is_some());
        let may_be_in = |index: usize| -> Vec<DiskEntry> {
            let is_added = index >= born_sets as usize;
            states.iter().filter(|entry| !is_added || !is_born(entry.disk)).copied().collect()
        };
        let set = |(index, row): (usize, &SetRow)| {
            Ok::<_, UnknownMap>(DiskSet {
                first: row.first,
                stripes_per_disk: row.stripes_per_disk,
                group_stripes: row.group_stripes,
                unit_stripes: row.unit_stripes,
                lanes: row.lanes,
                members: members_of(&there, index, row, &may_be_in(index))?,
            })
        };
        let sets: Result<Vec<DiskSet>, UnknownMap> =
            newest.sets.iter().enumerate().map(set).collect();
        let (geometry, states) = (newest.geometry, states.clone());
        let (sets, moves) = (sets?, MoveSettings::default());
        let record = VolumeRecord {
            geometry,
            version,
            born_sets,
            sets,
            states,
            policy: moves.policy,
            balancing: moves.balancing,
            redundancy,
            loss_delay_seconds: moves.loss_delay_seconds,
            classes: classes.clone(),
        };
        Ok(Self::of_record(&record)?)
    }

    /// What all disks say beside the sets.
    pub fn decided(&self) -> Decided {
        let VolumeRecord { version, born_sets, states, redundancy, classes, .. } =
            VolumeRecord::of(self);
        Decided { version, born_sets, states, is_decided: true, redundancy, classes }
    }

    /// What `disk` says of the sets.
    pub fn rows_of(&self, disk: DiskName) -> Vec<SetRow> {
        self.sets().map(|placed| SetRow::of(&placed.set, disk)).collect()
    }
}

/// What a program has to understand for the disks of `map`.
pub(crate) fn features_of(map: &VolumeMap) -> u32 {
    let classes = classes_of(map);
    let features = [
        (classes.copies_max() > 1, FEATURE_COPIES),
        (classes.have_wide_stripes(), FEATURE_PARITY),
        (classes.differ(), FEATURE_CLASSES),
    ];
    features.iter().filter(|(is_used, _)| *is_used).map(|(_, feature)| feature).sum()
}

/// The disks of the set in row `index`, of which one superblock has `row`.
///
/// One that is missing may be retired: which of those it was does not matter, since nothing is read
/// from any. It may be a lost one, of which it matters, only if there is no other that it could be.
fn members_of(
    disks: &[&Superblock],
    index: usize,
    row: &SetRow,
    states: &[DiskEntry],
) -> Result<SetMembers, UnknownMap> {
    if let Some(grid) = row.grid() {
        return Ok(grid);
    }
    let is_there = |name: DiskName| {
        let mut with_row = disks.iter().filter(|disk| disk.disk == name);
        with_row.any(|disk| disk.sets.get(index).is_some_and(|own| own.position != NO_MEMBER))
    };
    let is_gone = |entry: &&DiskEntry| entry.state.is_gone() && !is_there(entry.disk);
    let gone: Vec<&DiskEntry> = states.iter().filter(is_gone).collect();
    let is_retired = |entry: &&DiskEntry| entry.state == (DiskStage::Retired {});
    let is_certain = gone.len() < 2 || gone.iter().all(is_retired);
    let mut gone = gone.into_iter().filter(|_| is_certain);
    let member = |position| {
        let is_it = |own: &&SetRow| {
            own.position == position
                && **own == SetRow { position: own.position, base: own.base, ..*row }
        };
        let found = disks.iter().find_map(|disk| {
            let own = disk.sets.get(index).filter(is_it)?;
            Some(SetMember { disk: disk.disk, base: own.base })
        });
        let missing = || Some(SetMember { disk: gone.next()?.disk, base: 0 });
        found.or_else(missing).ok_or(UnknownMap::Missing { first: row.first, position })
    };
    let count = 0..row.disks.min(SET_DISKS_MAX as u32);
    Ok(SetMembers::List { disks: count.map(member).collect::<Result<_, _>>()? })
}

impl Superblock {
    /// The volume.
    pub fn volume(&self) -> VolumeId {
        self.geometry.volume
    }

    /// The byte of the disk where the copy starts.
    pub fn copy_offset(&self) -> u64 {
        self.length - BLOCK_SIZE as u64
    }

    /// One block: magic, fields, zeros, checksum.
    pub fn encode(&self) -> Bytes {
        let mut out = Encoder::new();
        out.bytes(&MAGIC);
        for number in [self.version, self.disk.disk_node, self.disk.disk, self.features] {
            number.put(&mut out);
        }
        self.geometry.put(&mut out);
        let rows = self.sets.as_slice();
        if let (VERSION_ONE_SET, [row]) = (self.version, rows) {
            row.columns.put(&mut out);
            (row.disks / row.columns.max(1)).put(&mut out);
            row.stripes_per_disk.put(&mut out);
        } else {
            self.id.put(&mut out);
        }
        self.length.put(&mut out);
        self.formatted_ms.put(&mut out);
        self.epoch.put(&mut out);
        if self.version != VERSION_ONE_SET {
            self.sets.put(&mut out);
            self.decided.put(&mut out);
        }
        let mut block = out.finish_joined();
        block.resize(CHECKSUM_AT, 0);
        let checksum = crc32c(&block);
        block.extend_from_slice(&checksum.to_le_bytes());
        block.into()
    }

    /// Of those blocks that are superblocks, the one of the highest epoch and the latest record.
    pub fn newest<'a>(blocks: impl IntoIterator<Item = &'a [u8]>) -> Option<Self> {
        let found = blocks.into_iter().filter_map(|block| Self::decode(block).ok());
        let age = |found: &Self| (found.epoch, found.decided.version);
        found.reduce(|newest, other| if age(&other) > age(&newest) { other } else { newest })
    }

    /// Reads one block. Whatever passes is consistent in itself.
    pub fn decode(block: &[u8]) -> Result<Self, SuperblockFlaw> {
        if !block.starts_with(&MAGIC) {
            return Err(SuperblockFlaw::NoMagic);
        }
        let (content, checksum) =
            block.split_at_checked(CHECKSUM_AT).ok_or(SuperblockFlaw::Damaged)?;
        if checksum != crc32c(content).to_le_bytes() {
            return Err(SuperblockFlaw::Damaged);
        }
        let mut input = Decoder::new(&content[VERSION_AT..], Bytes::new());
        match u32::take(&mut input.clone()) {
            Ok(VERSION_ONE_SET..=VERSION) => {}
            Ok(newer) if newer > VERSION => return Err(SuperblockFlaw::Version(newer)),
            _ => return Err(SuperblockFlaw::Damaged),
        }
        let superblock = Self::take(&mut input).map_err(|_| SuperblockFlaw::Damaged)?;
        let unknown = superblock.features & !FEATURES;
        if unknown != 0 {
            return Err(SuperblockFlaw::Features(unknown));
        }
        if superblock.makes_sense() { Ok(superblock) } else { Err(SuperblockFlaw::Damaged) }
    }

    fn take(input: &mut Decoder<'_>) -> Result<Self, Malformed> {
        let version = u32::take(input)?;
        let disk = DiskName { disk_node: u32::take(input)?, disk: u32::take(input)? };
        let features = u32::take(input)?;
        let geometry = Geometry::take(input)?;
        let (mut id, mut sets, mut decided) = (0, Vec::new(), Decided::default());
        if version == VERSION_ONE_SET {
            let (disk_nodes, disks_per_node) = (u32::take(input)?, u32::take(input)?);
            let stripes_per_disk = u64::take(input)?;
            let set = grid_set(&geometry, disk_nodes, disks_per_node, stripes_per_disk);
            sets.push(SetRow::of(&set.map_err(|_| Malformed("the shape of a volume"))?, disk));
        } else {
            id = u128::take(input)?;
        }
        let (length, formatted_ms) = (u64::take(input)?, u64::take(input)?);
        let epoch = Epoch::take(input)?;
        if version == VERSION_ONE_SET {
            (decided.born_sets, decided.is_decided) = (1, true);
        } else {
            (sets, decided) = (Vec::take(input)?, Decided::take(input)?);
        }
        Ok(Self {
            version,
            disk,
            features,
            geometry,
            id,
            length,
            formatted_ms,
            epoch,
            sets,
            decided,
        })
    }

    fn makes_sense(&self) -> bool {
        let (geometry, mut next) = (&self.geometry, Some(0));
        let mut end_of_disk = 0;
        for row in &self.sets {
            let is_next = next == Some(row.first) && row.stripes_per_disk > 0;
            let is_in = row.position == NO_MEMBER || row.position < row.disks;
            let is_whole = row.columns == 0 || row.disks.is_multiple_of(row.columns);
            let is_here = is_whole && row.place_in_grid().is_none_or(|place| place == self.disk);
            if !is_next || !is_in || !is_here || row.unit_stripes == 0 || row.group_stripes == 0 {
                return false;
            }
            next = row.end();
            if row.position != NO_MEMBER {
                let Some(end) = row.base.checked_add(row.stripes_per_disk) else { return false };
                end_of_disk = end_of_disk.max(end);
            }
        }
        let room = geometry.check().is_ok().then(|| geometry.stripes_on_disk(self.length));
        (1..=SETS_MAX).contains(&self.sets.len())
            && (1..=self.sets.len()).contains(&(self.decided.born_sets as usize))
            && self.decided.states.len() <= STATES_MAX
            && self.decided.classes.len() <= CLASSES_MAX
            && next.is_some()
            && end_of_disk > 0
            && room.is_some_and(|room| room >= end_of_disk)
            && self.length.is_multiple_of(BLOCK_SIZE as u64)
    }
}

#[cfg(test)]
mod tests {
    use runtime::seed::with_seed;

    use super::*;

    fn superblock() -> Superblock {
        let map = VolumeMap::for_disks(VolumeId(7), 65536, 4, 3, 2, 1 << 20).expect("fits");
        let disk = DiskName { disk_node: 2, disk: 1 };
        Superblock {
            version: VERSION,
            disk,
            features: 0,
            geometry: map.geometry(),
            id: 77,
            length: 1 << 20,
            formatted_ms: 5,
            epoch: Epoch(9),
            sets: map.rows_of(disk),
            decided: map.decided(),
        }
    }

    #[test]
    fn one_flipped_bit_anywhere_is_noticed() {
        with_seed(|rng| {
            let good = superblock().encode();
            assert_eq!(Superblock::decode(&good), Ok(superblock()));
            for _ in 0..2_000 {
                let mut block = good.to_vec();
                block[rng.index(BLOCK_SIZE)] ^= 1 << rng.below(8);
                let flaw = Superblock::decode(&block);
                assert!(
                    matches!(flaw, Err(SuperblockFlaw::Damaged | SuperblockFlaw::NoMagic)),
                    "{flaw:?}"
                );
            }
        });
    }

    #[test]
    fn newer_versions_and_features_are_told_from_damage() {
        let newer = Superblock { version: 3, ..superblock() };
        assert_eq!(Superblock::decode(&newer.encode()), Err(SuperblockFlaw::Version(3)));
        let newer = Superblock { features: 8, ..superblock() };
        assert_eq!(Superblock::decode(&newer.encode()), Err(SuperblockFlaw::Features(8)));
    }

    #[test]
    fn nonsense_with_a_good_checksum_is_damage() {
        let good = superblock();
        let place =
            |disk_node, disk| Superblock { disk: DiskName { disk_node, disk }, ..superblock() };
        let geometry = |change: fn(&mut Geometry)| {
            let mut superblock = superblock();
            change(&mut superblock.geometry);
            superblock
        };
        let row = |change: fn(&mut SetRow)| {
            let mut superblock = superblock();
            superblock.sets.iter_mut().for_each(change);
            superblock
        };
        let bad = [
            Superblock { version: 0, ..superblock() },
            place(3, 1),
            place(2, 2),
            Superblock { length: (1 << 20) - 1, ..superblock() },
            Superblock { length: 4096, ..superblock() },
            Superblock { sets: Vec::new(), ..superblock() },
            Superblock { sets: [good.sets.clone(), good.sets.clone()].concat(), ..superblock() },
            geometry(|geometry| geometry.fs_nodes = 0),
            geometry(|geometry| geometry.stripe_size = 0),
            row(|row| row.stripes_per_disk = u64::MAX),
            row(|row| row.stripes_per_disk = 0),
            row(|row| row.base = u64::MAX),
            row(|row| row.position = row.disks),
            row(|row| row.position = NO_MEMBER),
            row(|row| row.first = 1),
            row(|row| row.unit_stripes = 0),
            row(|row| row.group_stripes = 0),
            Superblock { decided: Decided::default(), ..superblock() },
        ];
        for superblock in bad {
            let flaw = Superblock::decode(&superblock.encode());
            assert_eq!(flaw, Err(SuperblockFlaw::Damaged), "{superblock:?}");
        }
    }

    #[test]
    fn a_superblock_of_version_1_is_one_set_and_keeps_its_bytes() {
        let old = Superblock { version: VERSION_ONE_SET, id: 0, ..superblock() };
        let found = Superblock::decode(&old.encode()).expect("a good superblock");
        assert_eq!(found, old);
        assert_eq!(found.sets, superblock().sets);
    }

    #[test]
    fn as_many_sets_as_there_may_be_have_room() {
        let mut all = superblock();
        let row = SetRow { position: NO_MEMBER, columns: 0, ..all.sets[0] };
        while all.sets.len() < SETS_MAX {
            let first = all.sets.last().and_then(SetRow::end).expect("a small volume");
            all.sets.push(SetRow { first, ..row });
        }
        let entry = DiskEntry { disk: DiskName::default(), state: DiskStage::Retired {} };
        all.decided.states = vec![entry; STATES_MAX];
        assert_eq!(all.encode().len(), BLOCK_SIZE);
        assert_eq!(Superblock::decode(&all.encode()), Ok(all));
    }

    #[test]
    fn short_input_is_damage() {
        assert_eq!(Superblock::decode(b""), Err(SuperblockFlaw::NoMagic));
        assert_eq!(Superblock::decode(&MAGIC), Err(SuperblockFlaw::Damaged));
    }
}
