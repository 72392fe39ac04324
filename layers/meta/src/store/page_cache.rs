//! Tree pages in memory; the least recently used are evicted first. An evicted leaf leaves a Bloom
//! filter behind, a hundredth of its size. Creating a file looks up its name first: the filter
//! excludes most absent keys without reading the leaf (as in LSM trees, for their tables).

use std::collections::BTreeMap;
use std::rc::Rc;

use runtime::Table;

use super::page::{PageRef, TreePage};
use crate::memory::{MemoryKind, MemoryShare};

/// Bytes that the tables need for one page.
const ENTRY_BYTES: usize = 192;
/// Bytes that the table needs for one filter.
const FILTER_ENTRY_BYTES: usize = 96;
/// Bits of a filter for each key, and how many of them each key sets: one in 120 keys that a leaf
/// has not is looked for in vain.
const KEY_BITS: usize = 10;
const KEY_PROBES: u64 = 7;

/// Tells of some keys that they are not among those it was made of.
#[derive(Debug)]
struct Filter {
    words: Box<[u64]>,
}

impl Filter {
    fn of<'a>(keys: impl Iterator<Item = &'a [u8]>, count: usize) -> Self {
        let mut words = vec![0; (count * KEY_BITS).div_ceil(64).max(1)].into_boxed_slice();
        for key in keys {
            for bit in Self::probes(key, words.len()) {
                words[bit / 64] |= 1 << (bit % 64);
            }
        }
        Self { words }
    }

    fn lacks(&self, key: &[u8]) -> bool {
        Self::probes(key, self.words.len()).any(|bit| self.words[bit / 64] >> (bit % 64) & 1 == 0)
    }

    /// The bits of a key: from one hash, by two halves of it (Kirsch and Mitzenmacher, 2006).
    fn probes(key: &[u8], words: usize) -> impl Iterator<Item = usize> {
        let (hash, bits) = (runtime::hash::xxh3(key), 64 * words as u64);
        let (first, step) = (hash >> 32, (hash & 0xffff_ffff) | 1);
        (0..KEY_PROBES).map(move |probe| ((first + probe * step) % bits) as usize)
    }

    fn memory_bytes(&self) -> usize {
        8 * self.words.len() + FILTER_ENTRY_BYTES
    }
}

/// Pages by their full reference: after a block was freed and written again its new page has other
/// checksums, so an old page can never be taken for it.
#[derive(Debug)]
pub(crate) struct PageCache {
    share: Rc<MemoryShare>,
    pages: Table<PageRef, (Rc<TreePage>, u64)>,
    /// Last use, a number that only grows, to page.
    uses: BTreeMap<u64, PageRef>,
    clock: u64,
    /// Filters of leaves that were in memory once.
    filters: Table<PageRef, Filter>,
    filters_bytes: usize,
}

impl PageCache {
    pub(crate) fn new(share: Rc<MemoryShare>) -> Self {
        Self {
            share,
            pages: Table::default(),
            uses: BTreeMap::new(),
            clock: 0,
            filters: Table::default(),
            filters_bytes: 0,
        }
    }

    pub(crate) fn get(&mut self, place: &PageRef) -> Option<Rc<TreePage>> {
        let (page, used) = self.pages.get_mut(place)?;
        self.clock += 1;
        self.uses.remove(used);
        self.uses.insert(self.clock, *place);
        *used = self.clock;
        Some(page.clone())
    }

    /// Is it known that the leaf at `place` has not this key?
    pub(crate) fn lacks(&self, place: &PageRef, key: &[u8]) -> bool {
        self.filters.get(place).is_some_and(|filter| filter.lacks(key))
    }

    pub(crate) fn insert(&mut self, place: PageRef, page: Rc<TreePage>) {
        self.take(&place);
        self.clock += 1;
        self.share.add(MemoryKind::Pages, bytes_of(&page).cast_signed());
        self.pages.insert(place, (page, self.clock));
        self.uses.insert(self.clock, place);
        self.shed(self.share.excess(MemoryKind::Pages));
    }

    /// Evicts pages of `bytes` bytes in total, the least recently used first.
    pub(crate) fn shed(&mut self, bytes: usize) {
        let used = self.share.used(MemoryKind::Pages);
        while used.saturating_sub(self.share.used(MemoryKind::Pages)) < bytes {
            let Some((_, &oldest)) = self.uses.first_key_value() else { return };
            if let Some(page) = self.take(&oldest).filter(|page| page.is_leaf()) {
                self.keep_filter(oldest, &page);
            }
        }
    }

    /// The page at `place` is not needed any more.
    pub(crate) fn remove(&mut self, place: &PageRef) {
        self.take(place);
        if let Some(filter) = self.filters.remove(place) {
            self.note_filters(-filter.memory_bytes().cast_signed());
        }
    }

    fn take(&mut self, place: &PageRef) -> Option<Rc<TreePage>> {
        let (page, used) = self.pages.remove(place)?;
        self.uses.remove(&used);
        self.share.add(MemoryKind::Pages, -bytes_of(&page).cast_signed());
        Some(page)
    }

    /// A leaf has left memory.
    fn keep_filter(&mut self, place: PageRef, page: &TreePage) {
        if self.filters.contains_key(&place) {
            return;
        }
        if self.filters_bytes > self.share.filters_max() {
            // Those of leaves that are in use come again.
            self.filters.clear();
            self.note_filters(-self.filters_bytes.cast_signed());
        }
        let filter = Filter::of(page.keys(), page.len());
        self.note_filters(filter.memory_bytes().cast_signed());
        self.filters.insert(place, filter);
    }

    fn note_filters(&mut self, bytes: isize) {
        self.filters_bytes = self.filters_bytes.wrapping_add_signed(bytes);
        self.share.add(MemoryKind::Pages, bytes);
    }
}

/// Bytes of a page with its entries in both tables.
fn bytes_of(page: &TreePage) -> usize {
    page.memory_bytes() + ENTRY_BYTES
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use runtime::VolumeId;

    use super::*;
    use crate::memory::MemoryBudget;
    use crate::store::groups::Run;
    use crate::store::page::{self, PageKind, PagePlaces, StoreOwner};

    fn page(block: u64) -> (PageRef, Rc<TreePage>) {
        let owner = StoreOwner { volume: VolumeId(1), node: 0 };
        let entries = [(Bytes::from_static(b"key"), Bytes::from(vec![0; 1000]))];
        let places = PagePlaces::new(Run { start: block, count: 1 }, &[]);
        let (raw, place) = page::draft(0, &entries).0.finish((owner, 3), 1, places);
        let opened = page::open(&raw, owner, PageKind::TreeRoot, &place).unwrap();
        (place, Rc::new(TreePage::new(opened, 0).unwrap()))
    }

    #[test]
    fn the_page_that_was_used_last_stays() {
        let memory = MemoryBudget::new(1 << 20);
        let mut cache = PageCache::new(MemoryShare::new(memory.clone()));
        let [(first, a), (second, b), (third, c)] = [1, 2, 3].map(page);
        cache.insert(first, a);
        cache.insert(second, b);
        assert!(cache.get(&first).is_some());
        cache.insert(third, c);
        cache.shed(1);
        assert!(cache.get(&second).is_none());
        assert!(cache.get(&first).is_some() && cache.get(&third).is_some());
        assert!(cache.lacks(&second, b"other") && !cache.lacks(&second, b"key"));
        assert!(!cache.lacks(&first, b"other"), "it never left");
        cache.remove(&first);
        cache.remove(&second);
        cache.remove(&third);
        assert_eq!((memory.used_bytes(), cache.uses.len()), (0, 0));
    }

    #[test]
    fn a_filter_knows_each_key_and_lacks_nearly_all_others() {
        let key = |number: u32| number.to_le_bytes();
        let keys: Vec<_> = (0..100).map(key).collect();
        let filter = Filter::of(keys.iter().map(|key| &key[..]), keys.len());
        assert!(keys.iter().all(|key| !filter.lacks(key)));
        let taken_for_one = (100..10_100).filter(|&number| !filter.lacks(&key(number))).count();
        assert!(taken_for_one < 200, "{taken_for_one} of 10,000");
    }

    #[test]
    fn filters_take_no_more_than_their_part() {
        let memory = MemoryBudget::new(1);
        let mut cache = PageCache::new(MemoryShare::new(memory));
        for block in 0..10_000 {
            let (place, page) = page(block);
            cache.insert(place, page);
            cache.shed(1);
        }
        let most = cache.share.filters_max() + 2 * FILTER_ENTRY_BYTES;
        assert!(cache.filters_bytes <= most && cache.filters.len() > 10);
        let counted: usize = cache.filters.values().map(Filter::memory_bytes).sum();
        assert_eq!(counted, cache.filters_bytes);
    }
}
