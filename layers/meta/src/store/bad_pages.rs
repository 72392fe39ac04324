//! Pages of which one copy is bad, so that a checkpoint writes them anew.

use std::collections::BTreeMap;

use blockio::DiskName;
use bytes::Bytes;

use super::error::StoreError;
use super::page::PageRef;

/// Pages with a bad copy that are known at the same time, at most. Others are read from their
/// second copy too, and are noted when some of these have been written anew.
const BAD_PAGES_MAX: usize = 1024;

/// A copy of a page that cannot be read as it was written, while the other one can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadCopy {
    /// Its first block.
    pub block: u64,
    /// The disk that it is on.
    pub disk: DiskName,
    /// What is wrong.
    pub error: StoreError,
}

/// Pages of the tree of which one copy is bad, each with a key that leads to it.
#[derive(Debug, Default)]
pub(crate) struct BadPages {
    pages: BTreeMap<PageRef, Bytes>,
    /// Some were noted since the last checkpoint began.
    are_new: bool,
    /// How many pages of old trees were given back.
    pub(crate) dropped: u64,
}

impl BadPages {
    /// A key of each page, for a checkpoint that begins.
    pub(crate) fn take_keys(&mut self) -> Vec<Bytes> {
        self.are_new = false;
        self.pages.values().cloned().collect()
    }

    /// Is there something for a checkpoint to write anew that none has tried?
    pub(crate) fn are_new(&self) -> bool {
        self.are_new
    }

    /// The page at `place` belongs to no tree any more.
    pub(crate) fn drop_page(&mut self, place: &PageRef) {
        self.dropped += 1;
        self.pages.remove(place);
    }

    /// Notes a page. False if it was known, or if there are too many.
    pub(crate) fn note(&mut self, place: PageRef, key: Bytes) -> bool {
        if self.pages.len() >= BAD_PAGES_MAX || self.pages.contains_key(&place) {
            return false;
        }
        self.pages.insert(place, key);
        self.are_new = true;
        true
    }
}

impl BadCopy {
    /// Says that a page has lost it.
    pub(crate) fn warn(&self, node: u32) {
        let Self { block, disk, error } = self;
        tracing::warn!(
            node, block, %disk, %error,
            "one copy of a page of metadata is bad, so the page is written anew; watch that disk"
        );
    }
}
