//! Tree pages in memory, the least recently used leave first.

use std::collections::BTreeMap;
use std::rc::Rc;

use runtime::Table;

use super::page::{PageRef, TreePage};
use crate::memory::{Kind, Share};

/// Bytes that the tables need for one page.
const ENTRY_BYTES: usize = 192;

/// Pages by their full reference: after a block was freed and written again its new page has other
/// checksums, so an old page can never be taken for it.
#[derive(Debug)]
pub(crate) struct PageCache {
    share: Rc<Share>,
    pages: Table<PageRef, (Rc<TreePage>, u64)>,
    /// Last use, a number that only grows, to page.
    uses: BTreeMap<u64, PageRef>,
    clock: u64,
}

impl PageCache {
    pub(crate) fn new(share: Rc<Share>) -> Self {
        Self { share, pages: Table::default(), uses: BTreeMap::new(), clock: 0 }
    }

    pub(crate) fn get(&mut self, place: &PageRef) -> Option<Rc<TreePage>> {
        let (page, used) = self.pages.get_mut(place)?;
        self.clock += 1;
        self.uses.remove(used);
        self.uses.insert(self.clock, *place);
        *used = self.clock;
        Some(page.clone())
    }

    pub(crate) fn insert(&mut self, place: PageRef, page: Rc<TreePage>) {
        self.remove(&place);
        self.clock += 1;
        self.share.add(Kind::Pages, bytes_of(&page).cast_signed());
        self.pages.insert(place, (page, self.clock));
        self.uses.insert(self.clock, place);
        self.shed(self.share.excess(Kind::Pages));
    }

    /// Lets pages go that have `bytes` together, the least recently used first.
    pub(crate) fn shed(&mut self, bytes: usize) {
        let used = self.share.used(Kind::Pages);
        while used.saturating_sub(self.share.used(Kind::Pages)) < bytes {
            let Some((_, &oldest)) = self.uses.first_key_value() else { return };
            self.remove(&oldest);
        }
    }

    pub(crate) fn remove(&mut self, place: &PageRef) {
        if let Some((page, used)) = self.pages.remove(place) {
            self.uses.remove(&used);
            self.share.add(Kind::Pages, -bytes_of(&page).cast_signed());
        }
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
    use crate::memory::Memory;
    use crate::store::page::{self, Owner, PageKind};

    fn page(block: u64) -> (PageRef, Rc<TreePage>) {
        let owner = Owner { volume: VolumeId(1), node: 0 };
        let entries = [(Bytes::from_static(b"key"), Bytes::from(vec![0; 1000]))];
        let (raw, place) = page::draft(0, &entries).finish(owner, 1, block);
        let opened = page::open(&raw, owner, PageKind::Tree, &place).unwrap();
        (place, Rc::new(TreePage::new(opened, 0).unwrap()))
    }

    #[test]
    fn the_page_that_was_used_last_stays() {
        let memory = Memory::new(1 << 20);
        let mut cache = PageCache::new(Share::new(memory.clone()));
        let [(first, a), (second, b), (third, c)] = [1, 2, 3].map(page);
        cache.insert(first, a);
        cache.insert(second, b);
        assert!(cache.get(&first).is_some());
        cache.insert(third, c);
        cache.shed(1);
        assert!(cache.get(&second).is_none());
        assert!(cache.get(&first).is_some() && cache.get(&third).is_some());
        cache.remove(&first);
        cache.remove(&third);
        assert_eq!((memory.used_bytes(), cache.uses.len()), (0, 0));
    }
}
