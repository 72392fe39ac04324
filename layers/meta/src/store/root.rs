//! Root records: the ring of slots from which a node is mounted. `docs/format.md`, "Roots".

use std::collections::BTreeSet;

use blockio::disk_state::DRAINING_MAX;
use blockio::geometry::SLOTS_PER_NODE;
use blockio::protocol::{Error as DiskError, SLOT_SIZE};
use blockio::redundancy::METADATA_COPIES_MAX;
use blockio::{DiskName, DiskStage, VolumeMap};
use bytes::Bytes;
use futures::future::join_all;
use runtime::VolumeId;
use runtime::hash::crc32c;
use runtime::wire::{Decoder, Encoder, Malformed, Wire};

use super::device::Device;
use super::error::{StoreError, StoreResult};
use super::log::Segment;
use super::log::format::{LogId, SegmentCopies};
use super::page::{
    COUNTER_END, FORMAT_VERSION, HEIGHT_MAX, NUMBER_END, PageRef, StoreOwner, VERSION_MORE_PLACES,
    VERSION_TWO_PLACES, version_of,
};
use super::tree::TreeRoot;

const MAGIC: u32 = u32::from_le_bytes(*b"mdRT");

/// Disks that hold copies of a node's roots, at most.
const COPIES_MAX: usize = copies_for(METADATA_COPIES_MAX);
/// The same with two copies of other metadata.
const COPIES_OF_TWO: usize = copies_for(2);

/// Disks that hold a node's roots, where other metadata has this number of copies. If disks with
/// all but one of these are lost, as many copies of the root remain, and one of them is the newest.
const fn copies_for(metadata_copies: u32) -> usize {
    2 * metadata_copies as usize - 1
}

/// The state of a node at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Root {
    /// One more than that of the root before.
    pub(crate) generation: u64,
    /// The log that goes on from here; its epoch is the root's.
    pub(crate) log: LogId,
    /// The segment where a replay starts.
    pub(crate) start: Segment,
    /// Records up to this one are in the tree.
    pub(crate) position: u64,
    /// The next inode number.
    pub(crate) counter: u64,
    /// Copies of the root before that could not be written, in a root that does not say who has it:
    /// one bit for each of its disks.
    pub(crate) lacking: u32,
    /// The disks that have got the root before.
    pub(crate) before: RootHolders,
    /// The version of the volume's record by which its own holders were chosen; 0 in older ones.
    pub(crate) record_version: u64,
    pub(crate) tree: TreeRoot,
    /// The first page of the space map.
    pub(crate) map: PageRef,
}

/// Disks that hold a root; none if that is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RootHolders {
    disks: [DiskName; COPIES_MAX],
    count: u8,
}

impl RootHolders {
    /// Places for them in a root of this version.
    fn places(version: u16) -> usize {
        if version < VERSION_MORE_PLACES { COPIES_OF_TWO } else { COPIES_MAX }
    }

    fn put(&self, version: u16, out: &mut Encoder) {
        self.count.put(out);
        self.disks[..Self::places(version)].iter().for_each(|disk| disk.put(out));
    }

    fn take(version: u16, input: &mut Decoder<'_>) -> Result<Self, Malformed> {
        let count = u8::take(input)?;
        let mut disks = [DiskName::default(); COPIES_MAX];
        let places = Self::places(version);
        for disk in &mut disks[..places] {
            *disk = DiskName::take(input)?;
        }
        if usize::from(count) > places {
            return Err(Malformed("the holders of a root"));
        }
        Ok(Self { disks, count })
    }

    /// These disks, of which there are no more than hold a root.
    pub(crate) fn of(holders: &[DiskName]) -> Self {
        let mut known = Self::default();
        for (place, disk) in known.disks.iter_mut().zip(holders) {
            *place = *disk;
            known.count += 1;
        }
        known
    }

    pub(crate) fn disks(&self) -> &[DiskName] {
        &self.disks[..usize::from(self.count)]
    }
}

/// What the copies of a node's roots tell of the disks that hold them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RootCopies {
    /// Copies of the newest root that there should be.
    pub(crate) count: usize,
    /// Disks that have it.
    pub(crate) holding: Vec<DiskName>,
    /// Disks that could be read and do not have it: its write was under way, or it is damaged.
    pub(crate) lacking: Vec<DiskName>,
    /// Disks that could not be read.
    pub(crate) unreadable: Vec<DiskName>,
    /// A disk that does not even have the root before: that was on all of them before the newest
    /// one was written anywhere.
    pub(crate) outdated: Option<DiskName>,
}

/// What a slot holds.
#[derive(Clone, Debug, PartialEq, Eq)]
enum RootSlot {
    Root(Box<Root>),
    Foreign,
    Future(u16),
    /// Something that was written, and is not whole.
    Rotten,
    Nothing,
}

impl Root {
    fn encode(&self, version: u16) -> Bytes {
        let mut out = Encoder::new();
        MAGIC.put(&mut out);
        version.put(&mut out);
        self.start.copies.put_count::<u16>(&mut out);
        self.log.owner.volume.put(&mut out);
        self.log.owner.node.put(&mut out);
        self.lacking.put(&mut out);
        for field in [self.generation, self.log.epoch, self.log.id, self.start.sequence] {
            field.put(&mut out);
        }
        self.start.copies.put(&mut out);
        for field in [self.position, self.counter, self.tree.keys, self.tree.pages] {
            field.put(&mut out);
        }
        self.tree.height.put(&mut out);
        self.tree.top.unwrap_or_default().put(version, &mut out);
        self.map.put(version, &mut out);
        self.tree.incomplete.put(&mut out);
        self.before.put(version, &mut out);
        self.record_version.put(&mut out);
        let mut slot = out.finish_joined();
        slot.resize(SLOT_SIZE - 4, 0);
        slot.extend_from_slice(&crc32c(&slot).to_le_bytes());
        slot.into()
    }

    /// Reads a slot; anything that is not a root of this node is `Nothing`, so that a broken root
    /// counts as absent.
    fn decode(slot: &[u8], owner: StoreOwner) -> RootSlot {
        let Some((content, checksum)) = slot.split_at_checked(SLOT_SIZE - 4) else {
            return RootSlot::Nothing;
        };
        if crc32c(content).to_le_bytes() != checksum {
            let is_empty = slot.iter().all(|&byte| byte == 0);
            return if is_empty { RootSlot::Nothing } else { RootSlot::Rotten };
        }
        Self::decode_content(content, owner).unwrap_or(RootSlot::Nothing)
    }

    fn decode_content(content: &[u8], owner: StoreOwner) -> Result<RootSlot, Malformed> {
        let mut input = Decoder::new(content, Bytes::new());
        let input = &mut input;
        if u32::take(input)? != MAGIC {
            return Ok(RootSlot::Nothing);
        }
        let version = u16::take(input)?;
        if version > FORMAT_VERSION {
            return Ok(RootSlot::Future(version));
        }
        let segment_copies = u16::take(input)?;
        let found = StoreOwner { volume: VolumeId::take(input)?, node: u32::take(input)? };
        let lacking = u32::take(input)?;
        if found.volume != owner.volume {
            return Ok(RootSlot::Foreign);
        }
        if found != owner {
            return Ok(RootSlot::Nothing);
        }
        let generation = u64::take(input)?;
        let (epoch, id) = (u64::take(input)?, u64::take(input)?);
        let sequence = u64::take(input)?;
        let copies = SegmentCopies::take(segment_copies.into(), input)?;
        let start = Segment { sequence, copies };
        let (position, counter) = (u64::take(input)?, u64::take(input)?);
        let (keys, pages) = (u64::take(input)?, u64::take(input)?);
        let growing = [generation, sequence, position, counter, keys, pages];
        let height = u8::take(input)?;
        let grown = growing.into_iter().any(|number| number >= NUMBER_END);
        if grown || counter >= COUNTER_END || height > HEIGHT_MAX {
            return Ok(RootSlot::Nothing);
        }
        let top = if height == 0 {
            input.bytes(PageRef::length(version))?;
            None
        } else {
            Some(PageRef::take(version, input)?)
        };
        let map = PageRef::take(version, input)?;
        let incomplete = if version < VERSION_TWO_PLACES { pages } else { u64::take(input)? };
        // Zeros in older ones.
        let before = RootHolders::take(version, input)?;
        let record_version = u64::take(input)?;
        Ok(RootSlot::Root(Box::new(Self {
            generation,
            log: LogId { owner, id, epoch },
            start,
            position,
            counter,
            lacking,
            tree: TreeRoot { top, height, keys, pages, incomplete: incomplete.min(pages) },
            map,
            before,
            record_version,
        })))
    }

    /// The order of roots: a later epoch wins over whatever an earlier one left behind.
    fn age(&self) -> (u64, u64) {
        (self.log.epoch, self.generation)
    }

    /// Writes the root to its slot on all its holders. It counts once as many have it as there are
    /// copies of other metadata, so that [`newest`] meets at least one of these if all but one are
    /// lost. Returns those that have it.
    pub(crate) async fn write(&self, device: &Device) -> Result<Vec<DiskName>, DiskError> {
        loop {
            let map = device.map();
            let version = map.version();
            let disks = holders(&map, self.log.owner.node);
            let root = Self { record_version: version, ..*self };
            let (written, error) = root.write_to(device, &disks).await;
            match error.filter(|_| written.len() < needed(&map, disks.len())) {
                None => return Ok(written),
                // A disk was given up: another one takes its place.
                Some(DiskError::Missing { .. }) if device.follows(version).await => {}
                Some(error) => return Err(error),
            }
        }
    }

    /// Writes the root again to those of its holders that lack it, so that it is on all before the
    /// next one is on any. Returns those that have it then.
    pub(crate) async fn heal(&self, device: &Device, copies: &RootCopies) -> Vec<DiskName> {
        let lacking: Vec<DiskName> =
            copies.lacking.iter().chain(&copies.unreadable).copied().collect();
        let (written, _) = self.write_to(device, &lacking).await;
        copies.holding.iter().copied().chain(written).collect()
    }

    /// The disks on which this succeeded, and one of the errors.
    async fn write_to(
        &self,
        device: &Device,
        to: &[DiskName],
    ) -> (Vec<DiskName>, Option<DiskError>) {
        let node = self.log.owner.node;
        let slot = slot(node, self.generation);
        let content = self.encode(version_of(device.copies));
        let writes = to.iter().map(|&disk| device.write_slot(disk, slot, content.clone()));
        let results = join_all(writes).await;
        let (mut written, mut failure) = (Vec::new(), None);
        for (&disk, result) in to.iter().zip(results) {
            match result {
                Ok(()) => written.push(disk),
                Err(error) => {
                    tracing::warn!(%error, node, %disk, self.generation, "a root copy is missing");
                    failure = Some(error);
                }
            }
        }
        (written, failure)
    }
}

/// How many of these copies of a root must be written.
fn needed(map: &VolumeMap, copies: usize) -> usize {
    copies.min(map.redundancy().metadata_copies() as usize)
}

/// The slot of a root.
fn slot(node: u32, generation: u64) -> u32 {
    node * SLOTS_PER_NODE + (generation % u64::from(SLOTS_PER_NODE)) as u32
}

/// The order of all disks, retired ones too, in which those that hold roots of `node` are chosen.
/// The first set goes over the disk nodes first, so neighbours are on different disk nodes where
/// there are several. Disks that were added come after it.
fn ring(map: &VolumeMap, node: u32) -> Vec<DiskName> {
    let (mut ring, mut known) = (Vec::new(), BTreeSet::new());
    for placed in map.sets() {
        let members = placed.set.members.iter().map(|member| member.disk);
        let mut new: Vec<DiskName> = members.filter(|disk| known.insert(*disk)).collect();
        if ring.is_empty() {
            let count = new.len().max(1);
            new.rotate_left(node as usize % count);
        }
        ring.extend(new);
    }
    ring
}

/// The disks that hold the next root of `node`: the first ones in use.
pub(crate) fn holders(map: &VolumeMap, node: u32) -> Vec<DiskName> {
    let ring = ring(map, node);
    let online = ring.iter().copied().filter(|&disk| map.state(disk) == (DiskStage::Online {}));
    online.take(copies_for(map.redundancy().metadata_copies())).collect()
}

/// Has each root a copy elsewhere, if the disks of `disk_node` are away?
pub fn roots_survive(map: &VolumeMap, disk_node: u32) -> bool {
    let fs_nodes = 0..map.geometry().fs_nodes;
    fs_nodes.into_iter().all(|node| {
        let holders = holders(map, node);
        let away = holders.iter().filter(|disk| disk.disk_node == disk_node).count();
        away < needed(map, holders.len())
    })
}

/// The disks on which roots of `node` may be: its holders, and those that were while others were
/// drained, or are now.
fn candidates(map: &VolumeMap, node: u32) -> Vec<DiskName> {
    let changes = if map.version() == 0 { 0 } else { DRAINING_MAX };
    let ring = ring(map, node).into_iter();
    // What is on a disk that is behind is older than what others have ([`roots_survive`]).
    let kept = ring.filter(|&disk| !map.state(disk).is_gone() && !map.state(disk).is_behind());
    kept.take(copies_for(map.redundancy().metadata_copies()) + changes).collect()
}

/// The slots of one disk; `None` if it cannot be read.
struct RootCopy {
    disk: DiskName,
    /// It is to hold the next root.
    is_holder: bool,
    slots: Option<Vec<RootSlot>>,
}

impl RootCopy {
    fn roots(&self) -> impl Iterator<Item = &Root> {
        self.slots.iter().flatten().filter_map(|slot| match slot {
            RootSlot::Root(root) => Some(&**root),
            RootSlot::Foreign | RootSlot::Future(_) | RootSlot::Rotten | RootSlot::Nothing => None,
        })
    }

    /// The disk has not got the root `before` nor any later one, and what is in its place says so.
    fn is_before(&self, before: &Root) -> bool {
        let place = (before.generation % u64::from(SLOTS_PER_NODE)) as usize;
        let slot = self.slots.as_ref().and_then(|slots| slots.get(place));
        slot.is_some_and(|slot| *slot != RootSlot::Rotten)
            && self.roots().all(|root| root.age() < before.age())
    }
}

/// The newest root of a node, and what its copies tell.
pub(crate) async fn newest(device: &Device, owner: StoreOwner) -> StoreResult<(Root, RootCopies)> {
    let slots = 0..u64::from(SLOTS_PER_NODE);
    let map = device.map();
    let holders = holders(&map, owner.node);
    let reads = candidates(&map, owner.node).into_iter().map(|disk| {
        let slots = slots.clone().map(move |index| device.read_slot(disk, slot(owner.node, index)));
        async move { (disk, join_all(slots).await.into_iter().collect::<Result<Vec<_>, _>>()) }
    });
    let (mut copies, mut failure) = (Vec::new(), None);
    for (disk, read) in join_all(reads).await {
        let decode = |read: Vec<Bytes>| read.iter().map(|slot| Root::decode(slot, owner)).collect();
        let slots = read.map(decode).map_err(|error| failure = Some(error)).ok();
        copies.push(RootCopy { disk, is_holder: holders.contains(&disk), slots });
    }
    let root = choose(copies.iter().filter_map(|copy| copy.slots.clone()).flatten().collect());
    // One that was written since the holders are what they are: those that come after it are there,
    // too, and what other disks have is older.
    let is_current =
        map.version() > 0 && root.is_ok_and(|root| root.record_version == map.version());
    // A root is on as many of its holders, so it is on at least one of these.
    let counts = |copy: &&RootCopy| copy.slots.is_none() && (copy.is_holder || !is_current);
    let unreadable = copies.iter().filter(counts).count();
    if let Some(error) = failure
        && unreadable >= needed(&map, holders.len())
    {
        return Err(error.into());
    }
    let root = root?;
    let is_lacking = failure.filter(|_| map.version() > 0 && !is_current);
    let mut told = compare(&copies, &root);
    if root.record_version != map.version() {
        // Disks that are to hold the next one.
        told.lacking.clear();
    }
    // Where holders have changed, a newer one may be on what cannot be read.
    match is_lacking {
        Some(error) if told.holding.len() < needed(&map, holders.len()) => Err(error.into()),
        _ => Ok((root, told)),
    }
}

/// What the copies tell, of which `newest` is the newest root.
fn compare(copies: &[RootCopy], newest: &Root) -> RootCopies {
    let earlier = copies.iter().flat_map(RootCopy::roots).filter(|root| root.age() < newest.age());
    let before = earlier.max_by_key(|root| root.age());
    let holders = copies.iter().filter(|copy| copy.is_holder);
    let mut told = RootCopies { count: holders.count(), ..RootCopies::default() };
    for (bit, copy) in copies.iter().enumerate() {
        let is_excused = match newest.before.disks() {
            [] => bit >= COPIES_OF_TWO || newest.lacking & (1 << bit) != 0,
            holders => !holders.contains(&copy.disk),
        };
        if copy.slots.is_none() {
            if copy.is_holder {
                told.unreadable.push(copy.disk);
            }
        } else if copy.roots().all(|root| root.age() < newest.age()) {
            if copy.is_holder {
                told.lacking.push(copy.disk);
            }
            if !is_excused && before.is_some_and(|before| copy.is_before(before)) {
                told.outdated = Some(copy.disk);
            }
        } else {
            told.holding.push(copy.disk);
        }
    }
    told
}

fn choose(slots: Vec<RootSlot>) -> StoreResult<Root> {
    let (mut best, mut foreign) = (None::<Root>, false);
    for slot in slots {
        match slot {
            RootSlot::Root(root) => {
                if best.is_none_or(|best| best.age() < root.age()) {
                    best = Some(*root);
                }
            }
            RootSlot::Foreign => foreign = true,
            RootSlot::Future(version) => {
                return Err(StoreError::FutureVersion { version, known: FORMAT_VERSION });
            }
            RootSlot::Rotten | RootSlot::Nothing => {}
        }
    }
    best.ok_or(if foreign { StoreError::ForeignVolume } else { StoreError::NoRoot })
}

#[cfg(test)]
mod tests {
    use blockio::{Geometry, VolumeRecord};
    use runtime::seed::with_seed;

    use super::*;

    const OWNER: StoreOwner = StoreOwner { volume: VolumeId(7), node: 3 };

    fn disk_of(disk_node: u32) -> DiskName {
        DiskName { disk_node, disk: 0 }
    }

    fn root() -> Root {
        let map = PageRef::of_value(&[
            20, 0, 0, 0, 0, 0, 0, 0, 1, 9, 9, 9, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 21, 0, 0,
            0, 0, 0, 0, 0,
        ]);
        Root {
            generation: 11,
            log: LogId { owner: OWNER, id: 13, epoch: 12 },
            start: Segment { sequence: 14, copies: SegmentCopies::new(&[15, 16]) },
            position: 17,
            counter: 18,
            lacking: 5,
            before: RootHolders::of(&[DiskName { disk_node: 21, disk: 22 }]),
            record_version: 23,
            tree: TreeRoot { top: None, height: 0, keys: 0, pages: 0, incomplete: 0 },
            map: map.unwrap(),
        }
    }

    #[test]
    fn the_bytes_of_a_root_are_frozen() {
        let slot = root().encode(3);
        let mut golden = b"mdRT\x03\x00\x00\x00".to_vec();
        golden.extend_from_slice(&[7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        golden.extend_from_slice(&[3, 0, 0, 0, 5, 0, 0, 0]);
        for field in [11u64, 12, 13, 14, 15, 16, 17, 18, 0, 0] {
            golden.extend_from_slice(&field.to_le_bytes());
        }
        golden.extend_from_slice(&[0; 1 + 33]);
        golden.extend_from_slice(&[20, 0, 0, 0, 0, 0, 0, 0, 1, 9, 9, 9, 9]);
        golden.extend_from_slice(&[0; 12]);
        golden.extend_from_slice(&[21, 0, 0, 0, 0, 0, 0, 0]);
        golden.extend_from_slice(&[0; 8]);
        golden.extend_from_slice(&[1, 21, 0, 0, 0, 22, 0, 0, 0]);
        golden.extend_from_slice(&[0; 16]);
        golden.extend_from_slice(&23u64.to_le_bytes());
        assert_eq!(slot[..golden.len()], golden);
        assert!(slot[golden.len()..SLOT_SIZE - 4].iter().all(|&byte| byte == 0));
        assert_eq!(slot[SLOT_SIZE - 4..], crc32c(&slot[..SLOT_SIZE - 4]).to_le_bytes());
        assert_eq!(Root::decode(&slot, OWNER), RootSlot::Root(Box::new(root())));
    }

    #[test]
    fn the_bytes_of_a_root_with_three_copies_of_metadata_are_frozen() {
        let disks: Vec<DiskName> = (0..5).map(disk_of).collect();
        let start = Segment { sequence: 14, copies: SegmentCopies::new(&[15, 16, 24]) };
        let before = RootHolders::of(&disks);
        let root = Root { start, before, ..root() };
        let slot = root.encode(4);
        let mut golden = b"mdRT\x04\x00\x03\x00".to_vec();
        golden.extend_from_slice(&[7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        golden.extend_from_slice(&[3, 0, 0, 0, 5, 0, 0, 0]);
        for field in [11u64, 12, 13, 14, 15, 16, 24, 17, 18, 0, 0] {
            golden.extend_from_slice(&field.to_le_bytes());
        }
        golden.extend_from_slice(&[0; 1 + 57]);
        golden.extend_from_slice(&[20, 0, 0, 0, 0, 0, 0, 0, 1, 9, 9, 9, 9]);
        golden.extend_from_slice(&[0; 12]);
        golden.extend_from_slice(&[21, 0, 0, 0, 0, 0, 0, 0]);
        golden.extend_from_slice(&[0; 24 + 8]);
        golden.push(5);
        for disk in 0..9u32 {
            golden.extend_from_slice(&if disk < 5 { disk } else { 0 }.to_le_bytes());
            golden.extend_from_slice(&[0; 4]);
        }
        golden.extend_from_slice(&23u64.to_le_bytes());
        assert_eq!(slot[..golden.len()], golden);
        assert_eq!(Root::decode(&slot, OWNER), RootSlot::Root(Box::new(root)));
    }

    fn stamp(mut slot: Vec<u8>) -> Vec<u8> {
        let checksum = crc32c(&slot[..SLOT_SIZE - 4]).to_le_bytes();
        slot[SLOT_SIZE - 4..].copy_from_slice(&checksum);
        slot
    }

    #[test]
    fn a_foreign_a_future_and_a_broken_root_are_told_apart() {
        let slot = root().encode(3);
        let other = StoreOwner { volume: VolumeId(8), ..OWNER };
        assert_eq!(Root::decode(&slot, other), RootSlot::Foreign);
        assert_eq!(Root::decode(&slot, StoreOwner { node: 4, ..OWNER }), RootSlot::Nothing);
        assert_eq!(Root::decode(&[0; SLOT_SIZE], OWNER), RootSlot::Nothing);
        let mut future = slot.to_vec();
        future[4] = 5;
        assert_eq!(Root::decode(&future, OWNER), RootSlot::Rotten, "its checksum is wrong");
        assert_eq!(Root::decode(&stamp(future), OWNER), RootSlot::Future(5));
        assert_eq!(
            choose(vec![RootSlot::Foreign, RootSlot::Nothing]),
            Err(StoreError::ForeignVolume)
        );
        assert_eq!(choose(vec![RootSlot::Nothing]), Err(StoreError::NoRoot));
    }

    #[test]
    fn a_root_of_an_old_version_has_references_with_one_place() {
        for version in 1..VERSION_TWO_PLACES {
            let (slot, mut old) = (root().encode(3), root());
            let mut short = slot[..113].to_vec();
            short[4] = version as u8;
            short[104] = 6;
            // 25 zeros for no top page, the map with its first place, and zeros to the end.
            short.extend_from_slice(&[0; 25]);
            short.extend_from_slice(&slot[146..171]);
            short.resize(SLOT_SIZE, 0);
            let map = [&slot[146..171], &[0; 8]].concat();
            old.map = PageRef::of_value(&map).unwrap();
            (old.tree.pages, old.tree.incomplete) = (6, 6);
            (old.before, old.record_version) = (RootHolders::default(), 0);
            assert_eq!(Root::decode(&stamp(short), OWNER), RootSlot::Root(Box::new(old)));
        }
    }

    #[test]
    fn a_later_epoch_wins_over_a_later_generation() {
        let with = |epoch, generation| {
            let log = LogId { epoch, ..root().log };
            RootSlot::Root(Box::new(Root { generation, log, ..root() }))
        };
        let best = choose(vec![with(3, 9), with(4, 7), with(4, 8), with(2, 20)]).unwrap();
        assert_eq!(best.age(), (4, 8));
    }

    /// A disk with these generations, and `rotten` ones.
    fn copy(disk: u32, generations: &[u64], rotten: &[u64]) -> RootCopy {
        let mut slots = vec![RootSlot::Nothing; SLOTS_PER_NODE as usize];
        for &generation in generations {
            let root = Root { generation, lacking: 0, ..root() };
            slots[(generation % 8) as usize] = RootSlot::Root(Box::new(root));
        }
        for generation in rotten {
            slots[(generation % 8) as usize] = RootSlot::Rotten;
        }
        RootCopy { disk: disk_of(disk), is_holder: true, slots: Some(slots) }
    }

    #[test]
    fn a_disk_that_lacks_two_roots_is_told_from_a_crash_and_from_rot() {
        let before = RootHolders::default();
        let newest = |lacking| Root { generation: 20, lacking, before, ..root() };
        let whole = || copy(1, &[17, 18, 19, 20], &[]);
        let other = |generations: &[u64], rotten: &[u64], lacking| {
            compare(&[whole(), copy(2, generations, rotten)], &newest(lacking))
        };
        let holding = vec![disk_of(1), disk_of(2)];
        let all = RootCopies { count: 2, holding, ..RootCopies::default() };
        assert_eq!(other(&[18, 19, 20], &[], 0), all);
        let crash = other(&[17, 18, 19], &[], 0);
        assert_eq!(
            (crash.lacking, crash.outdated),
            (vec![disk_of(2)], None),
            "a crash at its last write"
        );
        assert_eq!(other(&[16, 17, 18], &[], 0).outdated, Some(disk_of(2)));
        assert_eq!(other(&[], &[], 0).outdated, Some(disk_of(2)), "it was empty then");
        assert_eq!(other(&[16, 17, 18], &[19], 0).outdated, None, "rot, and a crash");
        assert_eq!(other(&[16, 17, 18], &[], 0b10).outdated, None, "its write failed");
        assert_eq!(
            other(&[16, 17, 18], &[], 0b01).outdated,
            Some(disk_of(2)),
            "another's write failed"
        );
        let dead = RootCopy { disk: disk_of(2), is_holder: true, slots: None };
        let told = compare(&[whole(), dead], &newest(0));
        assert_eq!((told.unreadable, told.outdated), (vec![disk_of(2)], None));
    }

    #[test]
    fn any_bytes_are_read_or_refused() {
        with_seed(|rng| {
            for _ in 0..5000 {
                let mut slot = root().encode(3 + rng.below(2) as u16).to_vec();
                for _ in 0..=rng.below(4) {
                    slot[rng.index(200)] = rng.bits() as u8;
                }
                let _ = Root::decode(&stamp(slot), OWNER);
            }
        });
    }

    #[test]
    fn the_copies_of_a_root_are_on_different_disk_nodes() {
        let geometry = Geometry { volume: VolumeId(1), stripe_size: 65536, fs_nodes: 8 };
        let map = VolumeMap::grid(geometry, 3, 2, 30).expect("a small volume");
        for node in 0..8 {
            let mut nodes: Vec<u32> =
                holders(&map, node).iter().map(|disk| disk.disk_node).collect();
            nodes.sort_unstable();
            assert_eq!(nodes, [0, 1, 2]);
        }
    }

    #[test]
    fn holders_change_with_the_disks_and_are_always_among_the_candidates() {
        with_seed(|rng| {
            let geometry = Geometry { volume: VolumeId(1), stripe_size: 65536, fs_nodes: 8 };
            let map = VolumeMap::grid(geometry, 3, 2, 30).expect("a small volume");
            let all = map.disks();
            let mut record = VolumeRecord::of(&map);
            for node in 0..8 {
                assert_eq!(candidates(&map, node).len(), COPIES_OF_TWO, "never changed");
            }
            // Where a node has written last may be any holders since a disk was retired.
            let mut since: Vec<Vec<DiskName>> = Vec::new();
            for _ in 0..40 {
                let disk = all[rng.index(all.len())];
                let (online, draining) = (DiskStage::Online {}, DiskStage::Draining {});
                let count = |state| all.iter().filter(|&&disk| map.state(disk) == state).count();
                let next = match map.state(disk) {
                    DiskStage::Online {} if count(online) > 1 && count(draining) < DRAINING_MAX => {
                        draining
                    }
                    DiskStage::Draining {} if rng.chance(1, 3) => DiskStage::Retired {},
                    DiskStage::Draining {} => online,
                    _ => continue,
                };
                record = record.with_state(disk, next);
                map.advance(&record).expect("a later one");
                for node in 0..8 {
                    let candidates = candidates(&map, node);
                    let now = holders(&map, node);
                    assert_eq!(now.len(), count(online).min(COPIES_OF_TWO));
                    assert!(now.iter().all(|disk| candidates.contains(disk)));
                    if next == (DiskStage::Retired {}) {
                        for holders in &mut since {
                            holders.retain(|held| *held != disk);
                        }
                    }
                    if node == 0 {
                        let mut old = since.iter().flatten();
                        assert!(old.all(|disk| candidates.contains(disk)), "{since:?}");
                        since.push(now);
                    }
                }
            }
        });
    }

    #[test]
    fn a_disk_that_became_a_holder_has_missed_nothing() {
        let before = RootHolders::of(&[disk_of(1), disk_of(2)]);
        let newest = Root { generation: 20, lacking: 0, before, ..root() };
        let told = |disk, generations: &[u64]| {
            compare(&[copy(1, &[19, 20], &[]), copy(disk, generations, &[])], &newest)
        };
        let fresh = told(4, &[]);
        assert_eq!((fresh.lacking, fresh.outdated), (vec![disk_of(4)], None));
        assert_eq!(told(4, &[12, 13]).outdated, None, "it was a holder long ago");
        assert_eq!(told(2, &[17, 18]).outdated, Some(disk_of(2)), "it had the root before");
    }
}
