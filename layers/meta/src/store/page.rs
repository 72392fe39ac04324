//! Pages: the pieces of the tree and of the space map. `docs/format.md`, "Pages".

use std::ops::Bound;

use blockio::BLOCK_SIZE;
use bytes::Bytes;
use runtime::VolumeId;
use runtime::hash::crc32c;
use runtime::seed::Rng;
use runtime::wire::{Decoder, Encoder, Malformed, Wire};

use super::error::StoreError;
use super::groups::Run;

/// Version of all structures that the store writes.
pub const FORMAT_VERSION: u16 = 3;

/// From this version on references to pages have a second place.
pub(crate) const VERSION_TWO_PLACES: u16 = 3;

/// Pages and segments of these versions are read.
pub(crate) const FORMAT_VERSIONS: std::ops::RangeInclusive<u16> = 1..=FORMAT_VERSION;

/// Blocks of one page, at most: the smallest stripe holds one.
pub(crate) const PAGE_BLOCKS_MAX: u32 = 4;
/// Bytes of a page before its body.
const HEADER: usize = 56;
/// Bytes of a page's body, at most.
pub(crate) const BODY_MAX: usize = PAGE_BLOCKS_MAX as usize * BLOCK_SIZE - HEADER;
/// Bytes of an entry besides key and value.
pub(crate) const ENTRY_HEAD: usize = 4;
/// Bytes of one key, at most.
pub const KEY_BYTES_MAX: usize = 300;
/// Bytes of one value, at most.
pub const VALUE_BYTES_MAX: usize = 8192;

const MAGIC: u32 = u32::from_le_bytes(*b"mdPG");

/// Numbers that only grow (generations, positions, counts) stay below this; a greater one on a disk
/// is damage.
pub(crate) const NUMBER_END: u64 = 1 << 62;

/// Inode numbers are this counter times the number of nodes, and must fit 62 bits too.
pub(crate) const COUNTER_END: u64 = NUMBER_END / runtime::ids::FS_NODES_MAX as u64;

/// Levels of a tree, at most: with two children per page it would have more pages than there are
/// blocks.
pub(crate) const HEIGHT_MAX: u8 = 62;

/// The volume and node that metadata belongs to: part of the identity of everything on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoreOwner {
    pub(crate) volume: VolumeId,
    pub(crate) node: u32,
}

/// What a page is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageKind {
    TreeRoot = 1,
    SpaceMap = 2,
}

/// The first blocks of the two copies of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PagePlaces {
    pub(crate) first: u64,
    /// None if there was no space for it.
    pub(crate) second: Option<u64>,
}

impl PagePlaces {
    /// In this order, unless the second begins with block 0, which stands for no second place.
    pub(crate) fn new(first: Run, second: Option<Run>) -> Self {
        match second.map(|run| run.start) {
            Some(0) => Self { first: 0, second: Some(first.start) },
            second => Self { first: first.start, second },
        }
    }
}

/// Where a page is, and the checksums of its blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PageRef {
    pub(crate) block: u64,
    pub(crate) blocks: u8,
    checksums: [u32; PAGE_BLOCKS_MAX as usize],
    /// The first block of the second copy, which has the same bytes; 0 if there is none.
    second: u64,
}

impl PageRef {
    /// Bytes of a reference.
    pub(crate) const LENGTH: usize = Self::LENGTH_ONE_PLACE + 8;
    /// The same before there were second places.
    pub(crate) const LENGTH_ONE_PLACE: usize = 8 + 1 + 4 * PAGE_BLOCKS_MAX as usize;

    /// The reference to a page with this content, at `places`.
    fn new(places: PagePlaces, raw: &[u8]) -> Self {
        let mut checksums = [0; PAGE_BLOCKS_MAX as usize];
        for (checksum, content) in checksums.iter_mut().zip(raw.chunks(BLOCK_SIZE)) {
            *checksum = crc32c(content);
        }
        let PagePlaces { first, second } = places;
        let blocks = (raw.len() / BLOCK_SIZE) as u8;
        Self { block: first, blocks, checksums, second: second.unwrap_or(0) }
    }

    /// Bytes of a reference in a page or root of this version.
    pub(crate) fn length(version: u16) -> usize {
        if version < VERSION_TWO_PLACES { Self::LENGTH_ONE_PLACE } else { Self::LENGTH }
    }

    /// Reads a reference in a page or root of this version.
    pub(crate) fn take_of(version: u16, input: &mut Decoder) -> Result<Self, Malformed> {
        let one_place = Self::take_one_place(input)?;
        let second = if version < VERSION_TWO_PLACES { 0 } else { u64::take(input)? };
        Ok(Self { second, ..one_place })
    }

    fn take_one_place(input: &mut Decoder) -> Result<Self, Malformed> {
        let (block, blocks) = (u64::take(input)?, u8::take(input)?);
        if !(1..=PAGE_BLOCKS_MAX).contains(&u32::from(blocks)) {
            return Err(Malformed("a page has 1 to 4 blocks"));
        }
        let mut checksums = [0; PAGE_BLOCKS_MAX as usize];
        for checksum in &mut checksums {
            *checksum = u32::take(input)?;
        }
        Ok(Self { block, blocks, checksums, second: 0 })
    }

    /// The first copy.
    pub(crate) fn run(&self) -> Run {
        Run { start: self.block, count: u32::from(self.blocks) }
    }

    /// The second copy, if there is one.
    pub(crate) fn second(&self) -> Option<Run> {
        (self.second != 0).then(|| Run { start: self.second, count: u32::from(self.blocks) })
    }

    /// All copies.
    pub(crate) fn runs(&self) -> impl Iterator<Item = Run> + use<> {
        std::iter::once(self.run()).chain(self.second())
    }

    /// The checksum of each block.
    pub(crate) fn checksums(&self) -> &[u32] {
        &self.checksums[..usize::from(self.blocks)]
    }

    pub(crate) fn damaged(&self, what: &'static str) -> StoreError {
        StoreError::Damaged { what, block: self.block }
    }
}

/// Block (u64), blocks (u8, 1 to 4), one checksum for each of four blocks (u32 each, 0 past the
/// end), block of the second copy (u64).
impl Wire for PageRef {
    fn put(&self, out: &mut Encoder) {
        self.block.put(out);
        self.blocks.put(out);
        self.checksums.iter().for_each(|checksum| checksum.put(out));
        self.second.put(out);
    }
    fn take(input: &mut Decoder) -> Result<Self, Malformed> {
        Self::take_of(FORMAT_VERSION, input)
    }
    fn sample(rng: &mut Rng) -> Self {
        let raw = vec![rng.bits() as u8; BLOCK_SIZE * (1 + rng.index(PAGE_BLOCKS_MAX as usize))];
        let second = rng.chance(1, 2).then(|| rng.bits() | 1);
        Self::new(PagePlaces { first: rng.bits(), second }, &raw)
    }
}

/// Blocks of a page with a body of `body` bytes.
pub(crate) fn blocks_for(body: usize) -> u32 {
    (HEADER + body).div_ceil(BLOCK_SIZE) as u32
}

/// A page before it has a place.
#[derive(Debug)]
pub(crate) struct PageDraft {
    kind: PageKind,
    level: u8,
    count: u32,
    /// Space for the header, and the body.
    raw: Vec<u8>,
}

impl PageDraft {
    /// A page without entries, with space for a body of `body_bytes` bytes.
    pub(crate) fn new(kind: PageKind, level: u8, body_bytes: usize) -> Self {
        assert!(body_bytes <= BODY_MAX, "a page holds its body");
        let mut raw = Vec::with_capacity(blocks_for(body_bytes) as usize * BLOCK_SIZE);
        raw.resize(HEADER, 0);
        Self { kind, level, count: 0, raw }
    }

    /// The body goes on with these bytes.
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        self.raw.extend_from_slice(bytes);
    }

    fn entry(&mut self, key: &[u8], value: &[u8]) {
        self.count += 1;
        self.extend(&(key.len() as u16).to_le_bytes());
        self.extend(&(value.len() as u16).to_le_bytes());
        self.extend(key);
        self.extend(value);
    }

    fn body_bytes(&self) -> usize {
        self.raw.len() - HEADER
    }

    /// Blocks that the page needs.
    pub(crate) fn blocks(&self) -> u32 {
        blocks_for(self.body_bytes())
    }

    /// The page's bytes at `places`, the same at both, and the reference to them.
    pub(crate) fn finish(
        mut self,
        owner: StoreOwner,
        generation: u64,
        places: PagePlaces,
    ) -> (Bytes, PageRef) {
        let (blocks, body_bytes) = (self.blocks(), self.body_bytes());
        let mut head = Encoder::new();
        MAGIC.put(&mut head);
        FORMAT_VERSION.put(&mut head);
        head.bytes(&[self.kind as u8, self.level]);
        owner.volume.put(&mut head);
        owner.node.put(&mut head);
        self.count.put(&mut head);
        generation.put(&mut head);
        places.first.put(&mut head);
        (body_bytes as u32).put(&mut head);
        0u32.put(&mut head);
        self.raw[..HEADER].copy_from_slice(&head.finish_joined());
        self.raw.resize(blocks as usize * BLOCK_SIZE, 0);
        let reference = PageRef::new(places, &self.raw);
        (self.raw.into(), reference)
    }
}

/// The header of a page that was read.
pub(crate) struct Opened {
    pub(crate) version: u16,
    pub(crate) level: u8,
    pub(crate) count: u32,
    pub(crate) body: Bytes,
}

/// Checks that `raw` is the page it should be. Its checksums have been checked by the disk.
pub(crate) fn open(
    raw: &Bytes,
    owner: StoreOwner,
    kind: PageKind,
    place: &PageRef,
) -> Result<Opened, Malformed> {
    let mut input = Decoder::new(raw, Bytes::new());
    let (magic, version) = (u32::take(&mut input)?, u16::take(&mut input)?);
    if magic != MAGIC || !FORMAT_VERSIONS.contains(&version) {
        return Err(Malformed("not a page"));
    }
    let (page_kind, level) = (u8::take(&mut input)?, u8::take(&mut input)?);
    let volume = VolumeId::take(&mut input)?;
    let node = u32::take(&mut input)?;
    let count = u32::take(&mut input)?;
    let _generation = u64::take(&mut input)?;
    let block = u64::take(&mut input)?;
    let length = u32::take(&mut input)? as usize;
    if page_kind != kind as u8 || (StoreOwner { volume, node }) != owner || block != place.block {
        return Err(Malformed("another page"));
    }
    if length > raw.len().saturating_sub(HEADER) {
        return Err(Malformed("short page"));
    }
    Ok(Opened { version, level, count, body: raw.slice(HEADER..HEADER + length) })
}

/// A page of the tree, ready to be searched: sorted keys with their values. The values of a page
/// above the leaves are the references to its children, with two places whatever its version.
#[derive(Debug)]
pub(crate) struct TreePage {
    level: u8,
    body: Bytes,
    offsets: Vec<u16>,
}

/// Where the entries of a page are.
pub(crate) struct PageLayout {
    body_bytes: usize,
    offsets: Vec<u16>,
}

impl TreePage {
    /// A page that was drafted here, and is `raw` now.
    pub(crate) fn written(level: u8, raw: &Bytes, layout: PageLayout) -> Self {
        let PageLayout { body_bytes, offsets } = layout;
        let page = Self { level, body: raw.slice(HEADER..HEADER + body_bytes), offsets };
        debug_assert!(page.keys().is_sorted_by(|one, next| one < next), "keys out of order");
        page
    }

    /// Reads a page that should be at `level`.
    pub(crate) fn new(opened: Opened, level: u8) -> Result<Self, Malformed> {
        let Opened { version, level: found, count, body } = opened;
        if found != level {
            return Err(Malformed("a page of another level"));
        }
        // Each entry has four bytes at least: the count is checked before memory is taken for it.
        if count == 0 || count as usize > body.len() / ENTRY_HEAD {
            return Err(Malformed("fewer entries than the page says"));
        }
        let mut page = Self { level, body, offsets: Vec::with_capacity(count as usize) };
        let mut offset = 0;
        for _ in 0..count {
            page.offsets.push(offset as u16);
            offset = page.check_entry(offset, version)?;
        }
        if offset != page.body.len() {
            return Err(Malformed("overlong page"));
        }
        if level > 0 && version < VERSION_TWO_PLACES {
            page.add_second_places();
        }
        if !page.keys().is_sorted_by(|one, next| one < next) {
            return Err(Malformed("keys out of order"));
        }
        Ok(page)
    }

    /// Gives the references of a page of an old version their second places, which are none.
    fn add_second_places(&mut self) {
        let longer = PageRef::LENGTH - PageRef::LENGTH_ONE_PLACE;
        let mut body = Vec::with_capacity(self.body.len() + longer * self.offsets.len());
        let mut offsets = Vec::with_capacity(self.offsets.len());
        for (key, value) in self.entries() {
            offsets.push(body.len() as u16);
            body.extend_from_slice(&(key.len() as u16).to_le_bytes());
            body.extend_from_slice(&(PageRef::LENGTH as u16).to_le_bytes());
            body.extend_from_slice(&key);
            body.extend_from_slice(&value);
            body.resize(body.len() + longer, 0);
        }
        (self.body, self.offsets) = (body.into(), offsets);
    }

    /// Checks the entry at `offset` and says where it ends.
    fn check_entry(&self, offset: usize, version: u16) -> Result<usize, Malformed> {
        let mut input = Decoder::new(&self.body[offset..], Bytes::new());
        let key = usize::from(u16::take(&mut input)?);
        let value = usize::from(u16::take(&mut input)?);
        if key > KEY_BYTES_MAX || value > VALUE_BYTES_MAX {
            return Err(Malformed("overlong entry"));
        }
        input.bytes(key)?;
        let content = input.bytes(value)?;
        if self.level > 0 {
            let mut content = Decoder::new(content, Bytes::new());
            PageRef::take_of(version, &mut content)?;
            content.finish()?;
        }
        Ok(offset + ENTRY_HEAD + key + value)
    }

    /// How many entries.
    pub(crate) fn len(&self) -> usize {
        self.offsets.len()
    }

    /// Is it at the lowest level?
    pub(crate) fn is_leaf(&self) -> bool {
        self.level == 0
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map(|index| self.key(index))
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.body.len() + HEADER + 2 * self.offsets.len()
    }

    /// Where the key starts, where the value starts, where it ends.
    fn bounds(&self, index: usize) -> (usize, usize, usize) {
        let offset = usize::from(self.offsets[index]);
        let length =
            |at: usize| usize::from(u16::from_le_bytes([self.body[at], self.body[at + 1]]));
        let key = offset + ENTRY_HEAD;
        let value = key + length(offset);
        (key, value, value + length(offset + 2))
    }

    /// The key of entry `index`.
    pub(crate) fn key(&self, index: usize) -> &[u8] {
        let (key, value, _) = self.bounds(index);
        &self.body[key..value]
    }

    /// Key and value of entry `index`; slices that keep the page alive.
    pub(crate) fn entry(&self, index: usize) -> (Bytes, Bytes) {
        let (key, value, end) = self.bounds(index);
        (self.body.slice(key..value), self.body.slice(value..end))
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = (Bytes, Bytes)> + '_ {
        (0..self.len()).map(|index| self.entry(index))
    }

    /// The entries after `from` and before `to`, as changes.
    pub(crate) fn range<'a>(
        &'a self,
        from: Bound<&[u8]>,
        to: &'a [u8],
    ) -> impl Iterator<Item = (Bytes, Option<Bytes>)> + 'a {
        let start = match from {
            Bound::Included(from) => self.position(from),
            Bound::Excluded(from) => {
                let at = self.position(from);
                if at < self.len() && self.key(at) == from { at + 1 } else { at }
            }
            Bound::Unbounded => 0,
        };
        let range = start..self.position(to).max(start);
        range.map(|index| self.entry(index)).map(|(key, value)| (key, Some(value)))
    }

    /// The first entry that is not below `key`.
    pub(crate) fn position(&self, key: &[u8]) -> usize {
        self.offsets.partition_point(|&offset| {
            let index = usize::from(offset);
            let length = u16::from_le_bytes([self.body[index], self.body[index + 1]]);
            let start = index + ENTRY_HEAD;
            &self.body[start..start + usize::from(length)] < key
        })
    }

    /// The value of `key`.
    pub(crate) fn find(&self, key: &[u8]) -> Option<Bytes> {
        let index = self.position(key);
        (index < self.len() && self.key(index) == key).then(|| self.entry(index).1)
    }

    /// The child that `key` belongs to. What is below the first key belongs to the first child.
    pub(crate) fn child_index(&self, key: &[u8]) -> usize {
        let index = self.position(key);
        let exact = index < self.len() && self.key(index) == key;
        if exact { index } else { index.saturating_sub(1) }
    }

    /// The reference in entry `index` of a page above the leaves.
    pub(crate) fn child(&self, index: usize) -> Result<PageRef, Malformed> {
        let (_, value, end) = self.bounds(index);
        runtime::wire::from_bytes(&self.body[value..end])
    }
}

/// The draft of a tree page with these entries, which must fit, and what [`TreePage::written`]
/// needs to know.
pub(crate) fn draft(level: u8, entries: &[(Bytes, Bytes)]) -> (PageDraft, PageLayout) {
    let bytes = entries.iter().map(|(key, value)| ENTRY_HEAD + key.len() + value.len()).sum();
    let mut draft = PageDraft::new(PageKind::TreeRoot, level, bytes);
    let mut offsets = Vec::with_capacity(entries.len());
    for (key, value) in entries {
        offsets.push(draft.body_bytes() as u16);
        draft.entry(key, value);
    }
    (draft, PageLayout { body_bytes: bytes, offsets })
}

#[cfg(test)]
mod tests {
    use runtime::seed::with_seed;

    use super::*;

    const OWNER: StoreOwner = StoreOwner { volume: VolumeId(7), node: 3 };
    const PLACES: PagePlaces = PagePlaces { first: 100, second: Some(200) };

    fn leaf() -> (Bytes, PageRef) {
        let entries = [
            (b"ab".as_slice().into(), b"value".as_slice().into()),
            (b"abc".as_slice().into(), Bytes::new()),
        ];
        draft(0, &entries).0.finish(OWNER, 9, PLACES)
    }

    fn read(
        raw: &Bytes,
        owner: StoreOwner,
        place: &PageRef,
        level: u8,
    ) -> Result<TreePage, Malformed> {
        TreePage::new(open(raw, owner, PageKind::TreeRoot, place)?, level)
    }

    #[test]
    fn the_bytes_of_a_page_are_frozen() {
        let (raw, place) = leaf();
        let mut golden = b"mdPG\x03\x00\x01\x00".to_vec();
        golden.extend_from_slice(&[7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        golden.extend_from_slice(&[3, 0, 0, 0, 2, 0, 0, 0]);
        golden.extend_from_slice(&[9, 0, 0, 0, 0, 0, 0, 0, 100, 0, 0, 0, 0, 0, 0, 0]);
        golden.extend_from_slice(&[18, 0, 0, 0, 0, 0, 0, 0]);
        golden.extend_from_slice(b"\x02\x00\x05\x00abvalue\x03\x00\x00\x00abc");
        assert_eq!(raw[..golden.len()], golden);
        assert!(raw[golden.len()..].iter().all(|&byte| byte == 0));
        assert_eq!(raw.len(), BLOCK_SIZE);
        let mut reference = vec![100, 0, 0, 0, 0, 0, 0, 0, 1];
        reference.extend_from_slice(&crc32c(&raw).to_le_bytes());
        reference.extend_from_slice(&[0; 12]);
        reference.extend_from_slice(&[200, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(runtime::wire::to_bytes(&place), reference);
        for (version, is_read) in [(0, false), (1, true), (2, true), (4, false)] {
            let mut other = raw.to_vec();
            other[4] = version;
            assert_eq!(read(&other.into(), OWNER, &place, 0).is_ok(), is_read, "{version}");
        }
    }

    #[test]
    fn a_page_above_the_leaves_of_an_old_version_has_references_with_one_place() {
        let places = |first| PagePlaces { first, second: None };
        let children: Vec<PageRef> = (0..BODY_MAX / 31)
            .map(|number| PageRef::new(places(number as u64), &[number as u8; 2 * BLOCK_SIZE]))
            .collect();
        let old: Vec<(Bytes, Bytes)> = (0u16..)
            .zip(&children)
            .map(|(number, child)| {
                let key = number.to_be_bytes().to_vec().into();
                (key, runtime::wire::to_bytes(child)[..PageRef::LENGTH_ONE_PLACE].to_vec().into())
            })
            .collect();
        let (raw, place) = draft(1, &old).0.finish(OWNER, 9, PLACES);
        assert!(read(&raw, OWNER, &place, 1).is_err(), "as a page of today");
        for version in 1..VERSION_TWO_PLACES {
            let mut raw = raw.to_vec();
            raw[4] = version as u8;
            let page = read(&raw.into(), OWNER, &place, 1).unwrap();
            let found: Vec<PageRef> = (0..page.len()).map(|at| page.child(at).unwrap()).collect();
            assert_eq!(found, children);
            assert!(page.keys().eq(old.iter().map(|(key, _)| key)));
            let new: Vec<(Bytes, Bytes)> = page.entries().take(300).collect();
            let (raw, place) = draft(1, &new).0.finish(OWNER, 10, PLACES);
            assert_eq!(read(&raw, OWNER, &place, 1).unwrap().child(299), Ok(children[299]));
        }
    }

    #[test]
    fn block_0_is_never_a_second_place() {
        let run = |start| Run { start, count: 1 };
        let both = |first, second| PagePlaces::new(run(first), Some(run(second)));
        assert_eq!(both(0, 7), both(7, 0));
        assert_eq!(both(7, 0), PagePlaces { first: 0, second: Some(7) });
        assert_eq!(PagePlaces::new(run(0), None), PagePlaces { first: 0, second: None });
    }

    #[test]
    fn a_page_of_another_volume_node_place_or_level_is_found_out() {
        let (raw, place) = leaf();
        assert_eq!(read(&raw, OWNER, &place, 0).unwrap().find(b"ab").unwrap(), "value");
        assert!(read(&raw, StoreOwner { node: 4, ..OWNER }, &place, 0).is_err());
        assert!(read(&raw, StoreOwner { volume: VolumeId(8), ..OWNER }, &place, 0).is_err());
        assert!(read(&raw, OWNER, &PageRef { block: 101, ..place }, 0).is_err());
        assert!(read(&raw, OWNER, &place, 1).is_err());
        assert!(open(&raw, OWNER, PageKind::SpaceMap, &place).is_err());
    }

    #[test]
    fn any_bytes_are_read_or_refused() {
        with_seed(|rng| {
            for _ in 0..5000 {
                let (raw, place) = leaf();
                let mut raw = raw.to_vec();
                for _ in 0..=rng.below(3) {
                    // The header up to the identity is left alone, so that the body is reached.
                    let index = 28 + rng.index(60);
                    raw[index] = rng.bits() as u8;
                }
                raw.truncate(if rng.chance(1, 4) { HEADER + rng.index(40) } else { raw.len() });
                for level in 0..2 {
                    let _ = read(&raw.clone().into(), OWNER, &place, level);
                }
            }
        });
    }
}
