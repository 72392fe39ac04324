//! The bytes of a sparse file: the pages that were ever written.

use std::collections::BTreeMap;

/// The unit in which space is counted, usually.
pub(super) const PAGE: u64 = 4096;

#[derive(Clone, Debug)]
pub(super) struct SparseContent {
    /// Bytes of a page.
    page: u64,
    size: u64,
    pages: BTreeMap<u64, Vec<u8>>,
}

impl SparseContent {
    /// No bytes, in pages of `page` bytes.
    pub(super) fn new(page: u64) -> Self {
        Self { page, size: 0, pages: BTreeMap::new() }
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.pages.len() as u64 * self.page
    }

    /// Bytes of space that a write of `length` bytes at `offset` would take.
    pub(super) fn growth_bytes(&self, offset: u64, length: u64) -> u64 {
        let touched = self.pages_of(offset, length);
        let present = self.pages.range(touched.clone()).count() as u64;
        (touched.end - touched.start - present) * self.page
    }

    /// At most `length` bytes from `offset`; fewer at the end.
    pub(super) fn read(&self, offset: u64, length: u64) -> Vec<u8> {
        let end = self.size.min(offset.saturating_add(length)).max(offset);
        let mut bytes = vec![0; (end - offset) as usize];
        for (&number, page) in self.pages.range(self.pages_of(offset, end - offset)) {
            let start = number * self.page;
            let (from, to) = (offset.max(start), end.min(start + self.page));
            bytes[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&page[(from - start) as usize..(to - start) as usize]);
        }
        bytes
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        for number in self.pages_of(offset, data.len() as u64) {
            let start = number * self.page;
            let (from, to) = (offset.max(start), end.min(start + self.page));
            let page = self.pages.entry(number).or_insert_with(|| vec![0; self.page as usize]);
            page[(from - start) as usize..(to - start) as usize]
                .copy_from_slice(&data[(from - offset) as usize..(to - offset) as usize]);
        }
        if !data.is_empty() {
            self.size = self.size.max(end);
        }
    }

    /// Makes a hole: whole pages go, the edges become zeros. The last page is whole if all of its
    /// bytes that are before the end go.
    pub(super) fn punch(&mut self, from: u64, to: u64) {
        let to = if to < self.size { to } else { self.size.next_multiple_of(self.page) };
        for number in self.pages_of(from, to.saturating_sub(from)) {
            let start = number * self.page;
            let (lo, hi) = (from.max(start) - start, to.min(start + self.page) - start);
            if (lo, hi) == (0, self.page) {
                self.pages.remove(&number);
            } else if let Some(page) = self.pages.get_mut(&number) {
                page[lo as usize..hi as usize].fill(0);
            }
        }
    }

    /// The first byte from `offset` on that is in a page (or in none, if not `in_page`).
    pub(super) fn seek(&self, offset: u64, in_page: bool) -> Option<u64> {
        let is_wanted = |number: &u64| self.pages.contains_key(number) == in_page;
        let first = (offset / self.page..self.size.div_ceil(self.page)).find(is_wanted);
        match first {
            _ if offset >= self.size => None,
            Some(number) => Some(offset.max(number * self.page)),
            None if in_page => None,
            None => Some(self.size),
        }
    }

    /// Cuts the content, or lengthens it by a hole.
    pub(super) fn set_size(&mut self, size: u64) {
        self.size = size;
        self.pages.split_off(&size.div_ceil(self.page));
        if let Some(last) = self.pages.get_mut(&(size / self.page)) {
            last[(size % self.page) as usize..].fill(0);
        }
    }

    fn pages_of(&self, offset: u64, length: u64) -> std::ops::Range<u64> {
        let first = offset / self.page;
        first..if length == 0 { first } else { (offset + length).div_ceil(self.page) }
    }
}
