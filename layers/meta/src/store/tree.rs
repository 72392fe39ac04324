//! Reading the tree: a copy-on-write B+tree of pages, never changed in place.

use std::cell::RefCell;
use std::rc::Rc;

use blockio::BLOCK_SIZE;
use blockio::protocol::Error as DiskError;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream;
use runtime::hash::crc32c;

use super::bad_pages::{BadCopy, BadPages};
use super::device::Device;
use super::error::{StoreError, StoreResult};
use super::groups::Run;
use super::page::{self, PageKind, PageRef, StoreOwner, TreePage};
use super::page_cache::PageCache;
use crate::memory::{MemoryKind, MemoryShare};

/// Pages that are read at once, at most.
const READS_MAX: usize = 16;

/// A tree, as a root record names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TreeRoot {
    /// The top page; absent while the tree is empty.
    pub(crate) top: Option<PageRef>,
    /// Levels, 0 while the tree is empty.
    pub(crate) height: u8,
    pub(crate) keys: u64,
    pub(crate) pages: u64,
    /// Pages that have fewer copies than they should.
    pub(crate) incomplete: u64,
}

/// Where tree pages are read from.
#[derive(Debug)]
pub(crate) struct TreeReader {
    pub(crate) device: Device,
    pub(crate) owner: StoreOwner,
    cache: RefCell<PageCache>,
    pub(super) bad: RefCell<BadPages>,
    /// The part of the memory that the node has.
    pub(crate) share: Rc<MemoryShare>,
}

impl TreeReader {
    pub(crate) fn new(device: Device, owner: StoreOwner, share: Rc<MemoryShare>) -> Self {
        let cache = RefCell::new(PageCache::new(share.clone()));
        Self { device, owner, cache, bad: RefCell::default(), share }
    }

    /// Gives back what the node has too many of.
    pub(crate) fn shed(&self) {
        self.cache.borrow_mut().shed(self.share.excess(MemoryKind::Pages));
    }

    /// The page at `place`, which should be at `level`.
    pub(crate) async fn load(&self, place: PageRef, level: u8) -> StoreResult<Rc<TreePage>> {
        let known = self.cache.borrow_mut().get(&place);
        if let Some(page) = known {
            return Ok(page);
        }
        let dropped = self.bad.borrow().dropped;
        let (raw, bad) = self.read_page(place, "a tree page").await?;
        let page = self.parse(&raw, &place, level)?;
        // A page that was given back meanwhile has lost its first place to another one.
        if let Some(bad) = bad.filter(|_| self.bad.borrow().dropped == dropped) {
            self.note_bad(place, page.entry(0).0, &bad);
        }
        self.cache.borrow_mut().insert(place, page.clone());
        Ok(page)
    }

    /// The bytes of a page, checked against its reference: of a further copy if the first one
    /// cannot be read as it was written. That one is returned too.
    pub(crate) async fn read_page(
        &self,
        place: PageRef,
        what: &'static str,
    ) -> StoreResult<(Bytes, Option<BadCopy>)> {
        let error = match self.read_copy(place.run(), &place, what).await {
            Ok(raw) => return Ok((raw, None)),
            Err(error) => error,
        };
        for run in place.further_runs() {
            if let Ok(raw) = self.read_copy(run, &place, what).await {
                return Ok((raw, Some(self.bad_copy(place.run(), error))));
            }
        }
        Err(error)
    }

    /// As [`read_page`](Self::read_page), but reads all copies until one is bad.
    pub(crate) async fn read_copies(
        &self,
        place: PageRef,
        what: &'static str,
    ) -> StoreResult<(Bytes, Option<BadCopy>)> {
        let (raw, bad) = self.read_page(place, what).await?;
        if bad.is_some() {
            return Ok((raw, bad));
        }
        for run in place.further_runs() {
            if let Err(error) = self.read_copy(run, &place, what).await {
                return Ok((raw, Some(self.bad_copy(run, error))));
            }
        }
        Ok((raw, None))
    }

    async fn read_copy(&self, run: Run, place: &PageRef, what: &'static str) -> StoreResult<Bytes> {
        let damaged = StoreError::Damaged { what, block: run.start };
        let raw = self.device.read(run, place.checksums()).await.map_err(|error| match error {
            DiskError::Corrupt { .. } | DiskError::OutOfRange { .. } => damaged,
            other => StoreError::Disk(other),
        })?;
        // What the cache has not read from a disk it does not compare. A page that was given back
        // while this waited may have another one in its place there.
        let blocks = raw.chunks(BLOCK_SIZE).map(crc32c);
        if !blocks.eq(place.checksums().iter().copied()) {
            return Err(damaged);
        }
        // The slice may be a small part of a large buffer, which it would keep alive.
        Ok(Bytes::copy_from_slice(&raw))
    }

    fn bad_copy(&self, run: Run, error: StoreError) -> BadCopy {
        let stripe = self.device.geometry.block(run.start).0;
        BadCopy { block: run.start, disk: self.device.map().place(stripe).disk, error }
    }

    /// Notes that a page of the tree to which `key` leads has a bad copy.
    pub(crate) fn note_bad(&self, place: PageRef, key: Bytes, bad: &BadCopy) {
        let is_damage = matches!(
            bad.error,
            StoreError::Damaged { .. } | StoreError::Disk(DiskError::Unreadable { .. })
        );
        // A disk that is away or has failed is no matter of single pages.
        if is_damage && self.bad.borrow_mut().note(place, key) {
            bad.warn(self.owner.node);
        }
    }

    /// Keeps a page that has just been written.
    pub(crate) fn remember(&self, place: PageRef, page: TreePage) {
        self.cache.borrow_mut().insert(place, Rc::new(page));
    }

    /// Drops a page that is not used any more.
    pub(crate) fn drop_page(&self, place: &PageRef) {
        self.cache.borrow_mut().remove(place);
        self.bad.borrow_mut().drop_page(place);
    }

    pub(crate) fn parse(
        &self,
        raw: &Bytes,
        place: &PageRef,
        level: u8,
    ) -> StoreResult<Rc<TreePage>> {
        page::open(raw, self.owner, PageKind::TreeRoot, place)
            .and_then(|opened| TreePage::new(opened, level))
            .map(Rc::new)
            .map_err(|_| place.damaged("a tree page"))
    }

    /// Brings pages into the cache, several at once. Errors will show when a page is used.
    pub(crate) async fn prefetch(&self, places: impl Iterator<Item = PageRef>, level: u8) {
        stream::iter(places)
            .map(|place| async move {
                let _ = self.load(place, level).await;
            })
            .buffer_unordered(READS_MAX)
            .collect::<()>()
            .await;
    }

    /// The value of `key` in `tree`.
    pub(crate) async fn find(&self, tree: TreeRoot, key: &[u8]) -> StoreResult<Option<Bytes>> {
        let Some((place, _)) = self.leaf_place(tree, key).await? else { return Ok(None) };
        if self.cache.borrow().lacks(&place, key) {
            return Ok(None);
        }
        Ok(self.load(place, 0).await?.find(key))
    }

    /// As [`find`](Self::find), if nothing has to be read from the disk.
    pub(crate) fn try_find_now(
        &self,
        tree: TreeRoot,
        key: &[u8],
    ) -> Option<StoreResult<Option<Bytes>>> {
        let Some(mut place) = tree.top else { return Some(Ok(None)) };
        let mut cache = self.cache.borrow_mut();
        for _ in 1..tree.height {
            let page = cache.get(&place)?;
            place = page.child(page.child_index(key)).ok()?;
        }
        match cache.get(&place) {
            Some(leaf) => Some(Ok(leaf.find(key))),
            None => cache.lacks(&place, key).then_some(Ok(None)),
        }
    }

    /// As [`leaf`](Self::leaf), if all pages on the path are in memory.
    pub(crate) fn try_leaf_now(&self, tree: TreeRoot, key: &[u8]) -> Option<StoreResult<Leaf>> {
        let Some(mut place) = tree.top else { return Some(Ok(None)) };
        let mut cache = self.cache.borrow_mut();
        let mut end = None;
        for _ in 1..tree.height {
            let page = cache.get(&place)?;
            match step(&page, place, key, &mut end) {
                Ok(child) => place = child,
                Err(error) => return Some(Err(error)),
            }
        }
        Some(Ok(Some((cache.get(&place)?, end))))
    }

    /// The leaf that `key` belongs to, and the first key that belongs to a later leaf.
    pub(crate) async fn leaf(&self, tree: TreeRoot, key: &[u8]) -> StoreResult<Leaf> {
        let Some((place, end)) = self.leaf_place(tree, key).await? else { return Ok(None) };
        Ok(Some((self.load(place, 0).await?, end)))
    }

    /// Where that leaf is, and the first key that belongs to a later one.
    async fn leaf_place(&self, tree: TreeRoot, key: &[u8]) -> StoreResult<LeafPlace> {
        let Some(mut place) = tree.top else { return Ok(None) };
        let mut end = None;
        for level in (1..tree.height).rev() {
            let page = self.load(place, level).await?;
            place = step(&page, place, key, &mut end)?;
        }
        Ok(Some((place, end)))
    }
}

/// The place of a leaf, and the first key that belongs to a later one; `None` if the tree is empty.
type LeafPlace = Option<(PageRef, Option<Bytes>)>;

/// A leaf, and the first key that belongs to a later one; `None` if the tree is empty.
pub(crate) type Leaf = Option<(Rc<TreePage>, Option<Bytes>)>;

/// The child of `page`, which is at `place`, that `key` belongs to; `end` becomes the first key
/// that belongs to a later child, if there is one.
pub(super) fn step(
    page: &TreePage,
    place: PageRef,
    key: &[u8],
    end: &mut Option<Bytes>,
) -> StoreResult<PageRef> {
    let index = page.child_index(key);
    if index + 1 < page.len() {
        *end = Some(page.entry(index + 1).0);
    }
    page.child(index).map_err(|_| place.damaged("a tree page"))
}
