//! Pages: the pieces of the tree and of the space map. `docs/format.md`, "Pages".

use std::ops::Bound;

use blockio::BLOCK_SIZE;
use blockio::redundancy::METADATA_COPIES_MAX;
use bytes::Bytes;
use runtime::VolumeId;
use runtime::hash::crc32c;
use runtime::wire::{Decoder, Encoder, Malformed, Wire};

use super::error::StoreError;
use super::groups::Run;

/// The newest version of the structures of a store.
pub const FORMAT_VERSION: u16 = 4;

/// From this version on references to pages have a second place.
pub(crate) const VERSION_TWO_PLACES: u16 = 3;

/// From this version on there may be more than two copies of pages and of the log.
pub(crate) const VERSION_MORE_PLACES: u16 = 4;

/// The version of what a store with this many copies of its metadata writes: the oldest one that
/// can say it, so that older programs can read it.
pub(crate) fn version_of(copies: u32) -> u16 {
    if copies > 2 { VERSION_MORE_PLACES } else { VERSION_TWO_PLACES }
}

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

/// Copies of a page besides the first one, at most.
pub(crate) const FURTHER_MAX: usize = METADATA_COPIES_MAX as usize - 1;

/// The first blocks of the copies of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PagePlaces {
    first: u64,
    /// Those of the copies for which there was space, then 0.
    further: [u64; FURTHER_MAX],
}

impl PagePlaces {
    /// In this order, unless a further copy begins with block 0, which stands for no copy.
    pub(crate) fn new(first: Run, further: &[Run]) -> Self {
        let mut places = Self { first: first.start, further: [0; FURTHER_MAX] };
        for (place, run) in places.further.iter_mut().zip(further) {
            *place = run.start;
            if run.start == 0 {
                std::mem::swap(place, &mut places.first);
            }
        }
        places
    }
}

/// Where a page is, and the checksums of its blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PageRef {
    pub(crate) block: u64,
    pub(crate) blocks: u8,
    checksums: [u32; PAGE_BLOCKS_MAX as usize],
    /// The first blocks of further copies, which have the same bytes, then 0.
    further: [u64; FURTHER_MAX],
}

impl PageRef {
    /// Bytes of a reference with two places.
    const LENGTH_TWO_PLACES: usize = Self::LENGTH_ONE_PLACE + 8;
    /// The same before there were second places.
    const LENGTH_ONE_PLACE: usize = 8 + 1 + 4 * PAGE_BLOCKS_MAX as usize;

    /// The reference to a page with this content, at `places`.
    fn new(places: PagePlaces, raw: &[u8]) -> Self {
        let mut checksums = [0; PAGE_BLOCKS_MAX as usize];
        for (checksum, content) in checksums.iter_mut().zip(raw.chunks(BLOCK_SIZE)) {
            *checksum = crc32c(content);
        }
        let PagePlaces { first, further } = places;
        let blocks = (raw.len() / BLOCK_SIZE) as u8;
        Self { block: first, blocks, checksums, further }
    }

    /// Bytes of a reference in a space map or root of this version.
    pub(crate) fn length(version: u16) -> usize {
        Self::LENGTH_ONE_PLACE + 8 * Self::further_places(version)
    }

    fn further_places(version: u16) -> usize {
        match version {
            VERSION_MORE_PLACES.. => FURTHER_MAX,
            VERSION_TWO_PLACES => 1,
            _ => 0,
        }
    }

    /// Writes a reference into a space map or root of this version: with all places that it could
    /// have.
    pub(crate) fn put(&self, version: u16, out: &mut Encoder) {
        self.put_places(Self::further_places(version), out);
    }

    /// Block (u64), blocks (u8, 1 to 4), one checksum for each of four blocks (u32 each, 0 past
    /// the end), blocks of further copies (u64 each).
    fn put_places(&self, further: usize, out: &mut Encoder) {
        self.block.put(out);
        self.blocks.put(out);
        self.checksums.iter().for_each(|checksum| checksum.put(out));
        self.further[..further].iter().for_each(|place| place.put(out));
    }

    /// Reads a reference in a space map or root of this version.
    pub(crate) fn take(version: u16, input: &mut Decoder) -> Result<Self, Malformed> {
        Self::take_places(Self::further_places(version), input)
    }

    fn take_places(further: usize, input: &mut Decoder) -> Result<Self, Malformed> {
        let mut reference = Self::take_one_place(input)?;
        for place in &mut reference.further[..further] {
            *place = u64::take(input)?;
        }
        Ok(reference)
    }

    /// The value of an entry of a tree page: with two places, or as many as there are.
    pub(crate) fn to_value(self) -> Bytes {
        let mut out = Encoder::new();
        self.put_places(self.further_runs().count().max(1), &mut out);
        out.finish_joined().into()
    }

    /// Reads the value of an entry of a tree page of this version.
    fn from_value(version: u16, value: &[u8]) -> Result<Self, Malformed> {
        let further = value.len().saturating_sub(Self::LENGTH_ONE_PLACE) / 8;
        let is_known = match version {
            VERSION_MORE_PLACES.. => (1..=FURTHER_MAX).contains(&further),
            _ => further == Self::further_places(version),
        };
        if !is_known {
            return Err(Malformed("the places of a page"));
        }
        let mut input = Decoder::new(value, Bytes::new());
        let reference = Self::take_places(further, &mut input)?;
        input.finish()?;
        Ok(reference)
    }

    /// The same of a page in memory.
    pub(crate) fn of_value(value: &[u8]) -> Result<Self, Malformed> {
        Self::from_value(VERSION_MORE_PLACES, value)
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
        Ok(Self { block, blocks, checksums, further: [0; FURTHER_MAX] })
    }

    /// The first copy.
    pub(crate) fn run(&self) -> Run {
        Run { start: self.block, count: u32::from(self.blocks) }
    }

    /// The copies besides the first one.
    pub(crate) fn further_runs(&self) -> impl Iterator<Item = Run> + use<> {
        let count = u32::from(self.blocks);
        let places = self.further.into_iter().filter(|place| *place != 0);
        places.map(move |start| Run { start, count })
    }

    /// All copies.
    pub(crate) fn runs(&self) -> impl Iterator<Item = Run> + use<> {
        std::iter::once(self.run()).chain(self.further_runs())
    }

    /// Are there fewer copies than this?
    pub(crate) fn has_fewer_than(&self, copies: u32) -> bool {
        self.runs().count() < copies as usize
    }

    /// The checksum of each block.
    pub(crate) fn checksums(&self) -> &[u32] {
        &self.checksums[..usize::from(self.blocks)]
    }

    pub(crate) fn damaged(&self, what: &'static str) -> StoreError {
        StoreError::Damaged { what, block: self.block }
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

    /// The page's bytes at `places`, the same at all, and the reference to them.
    pub(crate) fn finish(
        mut self,
        (owner, version): (StoreOwner, u16),
        generation: u64,
        places: PagePlaces,
    ) -> (Bytes, PageRef) {
        let (blocks, body_bytes) = (self.blocks(), self.body_bytes());
        let mut head = Encoder::new();
        MAGIC.put(&mut head);
        version.put(&mut head);
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
/// above the leaves are the references to its children, with two places or more whatever its
/// version.
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
        let longer = PageRef::LENGTH_TWO_PLACES - PageRef::LENGTH_ONE_PLACE;
        let mut body = Vec::with_capacity(self.body.len() + longer * self.offsets.len());
        let mut offsets = Vec::with_capacity(self.offsets.len());
        for (key, value) in self.entries() {
            offsets.push(body.len() as u16);
            body.extend_from_slice(&(key.len() as u16).to_le_bytes());
            body.extend_from_slice(&(PageRef::LENGTH_TWO_PLACES as u16).to_le_bytes());
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
            PageRef::from_value(version, content)?;
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
        PageRef::of_value(&self.body[value..end])
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
    const PLACES: PagePlaces = PagePlaces { first: 100, further: [200, 0, 0, 0] };

    fn leaf() -> (Bytes, PageRef) {
        let entries = [
            (b"ab".as_slice().into(), b"value".as_slice().into()),
            (b"abc".as_slice().into(), Bytes::new()),
        ];
        draft(0, &entries).0.finish((OWNER, 3), 9, PLACES)
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
        assert_eq!(place.to_value(), reference);
        for (version, is_read) in [(0, false), (1, true), (2, true), (4, true), (5, false)] {
            let mut other = raw.to_vec();
            other[4] = version;
            assert_eq!(read(&other.into(), OWNER, &place, 0).is_ok(), is_read, "{version}");
        }
    }

    #[test]
    fn a_page_above_the_leaves_of_an_old_version_has_references_with_one_place() {
        let places = |first| PagePlaces { first, further: [0; FURTHER_MAX] };
        let children: Vec<PageRef> = (0..BODY_MAX / 31)
            .map(|number| PageRef::new(places(number as u64), &[number as u8; 2 * BLOCK_SIZE]))
            .collect();
        let old: Vec<(Bytes, Bytes)> = (0u16..)
            .zip(&children)
            .map(|(number, child)| {
                let key = number.to_be_bytes().to_vec().into();
                (key, child.to_value().slice(..PageRef::LENGTH_ONE_PLACE))
            })
            .collect();
        let (raw, place) = draft(1, &old).0.finish((OWNER, 3), 9, PLACES);
        assert!(read(&raw, OWNER, &place, 1).is_err(), "as a page of today");
        for version in 1..VERSION_TWO_PLACES {
            let mut raw = raw.to_vec();
            raw[4] = version as u8;
            let page = read(&raw.into(), OWNER, &place, 1).unwrap();
            let found: Vec<PageRef> = (0..page.len()).map(|at| page.child(at).unwrap()).collect();
            assert_eq!(found, children);
            assert!(page.keys().eq(old.iter().map(|(key, _)| key)));
            let new: Vec<(Bytes, Bytes)> = page.entries().take(300).collect();
            let (raw, place) = draft(1, &new).0.finish((OWNER, 3), 10, PLACES);
            assert_eq!(read(&raw, OWNER, &place, 1).unwrap().child(299), Ok(children[299]));
        }
    }

    #[test]
    fn block_0_is_never_a_further_place() {
        let run = |start| Run { start, count: 1 };
        let places = |first, further: [u64; 2]| PagePlaces::new(run(first), &further.map(run));
        assert_eq!(places(7, [0, 9]), PagePlaces { first: 0, further: [7, 9, 0, 0] });
        assert_eq!(places(7, [9, 0]), PagePlaces { first: 0, further: [9, 7, 0, 0] });
        assert_eq!(places(0, [7, 9]), PagePlaces { first: 0, further: [7, 9, 0, 0] });
        let alone = PagePlaces { first: 0, further: [0; FURTHER_MAX] };
        assert_eq!(PagePlaces::new(run(0), &[]), alone);
    }

    #[test]
    fn references_have_as_many_places_as_there_are() {
        for further in 0..=FURTHER_MAX {
            let runs: Vec<Run> =
                (1..=further as u64).map(|start| Run { start, count: 1 }).collect();
            let places = PagePlaces::new(Run { start: 90, count: 1 }, &runs);
            let child = PageRef::new(places, &[7; BLOCK_SIZE]);
            assert_eq!(child.runs().count(), 1 + further);
            let value = child.to_value();
            assert_eq!(value.len(), PageRef::LENGTH_ONE_PLACE + 8 * further.max(1));
            let entries = [(Bytes::from_static(b"key"), value)];
            let (raw, place) = draft(1, &entries).0.finish((OWNER, 4), 9, PLACES);
            assert_eq!(read(&raw, OWNER, &place, 1).unwrap().child(0), Ok(child));
            let mut of_version_3 = raw.to_vec();
            of_version_3[4] = 3;
            assert_eq!(read(&of_version_3.into(), OWNER, &place, 1).is_ok(), further < 2);
        }
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
