//! The bytes of a sparse file: the pages that were ever written.

use std::collections::BTreeMap;

/// The unit in which space is counted.
pub(super) const PAGE: u64 = 4096;

#[derive(Clone, Debug, Default)]
pub(super) struct SparseContent {
    size: u64,
    pages: BTreeMap<u64, Vec<u8>>,
}

impl SparseContent {
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.pages.len() as u64 * PAGE
    }

    /// Bytes of space that a write of `length` bytes at `offset` would take.
    pub(super) fn growth_bytes(&self, offset: u64, length: u64) -> u64 {
        let touched = pages_of(offset, length);
        let present = self.pages.range(touched.clone()).count() as u64;
        (touched.end - touched.start - present) * PAGE
    }

    /// At most `length` bytes from `offset`; fewer at the end.
    pub(super) fn read(&self, offset: u64, length: u64) -> Vec<u8> {
        let end = self.size.min(offset.saturating_add(length)).max(offset);
        let mut bytes = vec![0; (end - offset) as usize];
        for (&number, page) in self.pages.range(pages_of(offset, end - offset)) {
            let start = number * PAGE;
            let (from, to) = (offset.max(start), end.min(start + PAGE));
            bytes[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&page[(from - start) as usize..(to - start) as usize]);
        }
        bytes
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        for number in pages_of(offset, data.len() as u64) {
            let start = number * PAGE;
            let (from, to) = (offset.max(start), end.min(start + PAGE));
            let page = self.pages.entry(number).or_insert_with(|| vec![0; PAGE as usize]);
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
        let to = if to < self.size { to } else { self.size.next_multiple_of(PAGE) };
        for number in pages_of(from, to.saturating_sub(from)) {
            let start = number * PAGE;
            let (lo, hi) = (from.max(start) - start, to.min(start + PAGE) - start);
            if (lo, hi) == (0, PAGE) {
                self.pages.remove(&number);
            } else if let Some(page) = self.pages.get_mut(&number) {
                page[lo as usize..hi as usize].fill(0);
            }
        }
    }

    /// The first byte from `offset` on that is in a page (or in none, if not `in_page`).
    pub(super) fn seek(&self, offset: u64, in_page: bool) -> Option<u64> {
        let is_wanted = |number: &u64| self.pages.contains_key(number) == in_page;
        let first = (offset / PAGE..self.size.div_ceil(PAGE)).find(is_wanted);
        match first {
            _ if offset >= self.size => None,
            Some(number) => Some(offset.max(number * PAGE)),
            None if in_page => None,
            None => Some(self.size),
        }
    }

    /// Cuts the content, or lengthens it by a hole.
    pub(super) fn set_size(&mut self, size: u64) {
        self.size = size;
        self.pages.split_off(&size.div_ceil(PAGE));
        if let Some(last) = self.pages.get_mut(&(size / PAGE)) {
            last[(size % PAGE) as usize..].fill(0);
        }
    }
}

fn pages_of(offset: u64, length: u64) -> std::ops::Range<u64> {
    let first = offset / PAGE;
    first..if length == 0 { first } else { (offset + length).div_ceil(PAGE) }
}
