//! Writing the tree: sorted changes are merged into it level by level, every touched page goes to a
//! fresh place, and the old tree stays as it is.

use std::pin::pin;
use std::rc::Rc;

use blockio::protocol::Unsynced;
use bytes::Bytes;
use futures::future::{Either, FutureExt as _, LocalBoxFuture, select};
use futures::stream::{FuturesUnordered, StreamExt as _};

use super::error::{StoreError, StoreResult};
use super::page::{self, BODY_MAX, ENTRY_HEAD, PagePlaces, PageRef, TreePage, version_of};
use super::tree::{TreeReader, TreeRoot};

/// A page with fewer bytes is merged with a neighbour when it is rewritten.
const BODY_MIN: usize = BODY_MAX / 4;

/// Page writes in flight, at most.
const WRITES_MAX: usize = 16;

/// A key and what it shall become; `None` deletes it.
pub(crate) type TreeChange = (Bytes, Option<Bytes>);

/// A key and its value, or the first key of a page and the reference to it.
type TreeEntry = (Bytes, Bytes);

/// Where fresh pages come from.
pub(crate) trait PageAllocator {
    /// Allocates the places of a page of `blocks` blocks; `None` if there is no space.
    fn page(&self, blocks: u32) -> Option<PagePlaces>;
}

/// One rewrite of a tree and what came of it.
pub(crate) struct Rewrite<'a> {
    pages: &'a TreeReader,
    space: &'a dyn PageAllocator,
    generation: u64,
    writes: FuturesUnordered<LocalBoxFuture<'a, StoreResult<Unsynced>>>,
    /// Pages written.
    pub(crate) written: Vec<PageRef>,
    /// What has to be synced for them.
    pub(crate) unsynced: Vec<Unsynced>,
    /// Pages of the old tree that the new one does not use.
    pub(crate) dropped: Vec<PageRef>,
    keys_added: u64,
    keys_removed: u64,
}

impl<'a> Rewrite<'a> {
    pub(crate) fn new(
        pages: &'a TreeReader,
        space: &'a dyn PageAllocator,
        generation: u64,
    ) -> Self {
        Self {
            pages,
            space,
            generation,
            writes: FuturesUnordered::new(),
            written: Vec::new(),
            unsynced: Vec::new(),
            dropped: Vec::new(),
            keys_added: 0,
            keys_removed: 0,
        }
    }

    /// The tree with `changes` (sorted by key) merged in. All its pages have been written, and none
    /// is durable.
    pub(crate) async fn merge(
        &mut self,
        old: TreeRoot,
        changes: &[TreeChange],
    ) -> StoreResult<TreeRoot> {
        if changes.is_empty() {
            return Ok(old);
        }
        let (top, height) = self.merge_top(old, changes).await?;
        self.all_writes().await?;
        let copies = self.pages.device.copies;
        let is_incomplete = |page: &&PageRef| page.has_fewer_than(copies);
        let incomplete = |pages: &[PageRef]| pages.iter().filter(is_incomplete).count() as u64;
        let (written, dropped) = (&self.written, &self.dropped);
        // A root that tells wrong counts is found by an audit; it must not stop anything here.
        Ok(TreeRoot {
            top,
            height,
            keys: (old.keys + self.keys_added).saturating_sub(self.keys_removed),
            pages: (old.pages + written.len() as u64).saturating_sub(dropped.len() as u64),
            incomplete: (old.incomplete + incomplete(written)).saturating_sub(incomplete(dropped)),
        })
    }

    async fn merge_top(
        &mut self,
        old: TreeRoot,
        changes: &[TreeChange],
    ) -> StoreResult<(Option<PageRef>, u8)> {
        let mut level = old.height.saturating_sub(1);
        let mut content = match old.top {
            Some(top) => self.content(level, top, changes).await?,
            None => self.merged(&[], changes),
        };
        loop {
            if content.is_empty() {
                return Ok((None, 0));
            }
            if level > 0 && content.len() == 1 {
                return self.collapse(reference(&content[0])?, level - 1).await;
            }
            content = self.pack(level, content).await?;
            if content.len() == 1 {
                return Ok((Some(reference(&content[0])?), level + 1));
            }
            level += 1;
        }
    }

    /// The topmost page from `place` down that has more than one child.
    async fn collapse(
        &mut self,
        mut place: PageRef,
        mut level: u8,
    ) -> StoreResult<(Option<PageRef>, u8)> {
        while level > 0 {
            // A page that is still on its way to the disk is in the cache or waited for here.
            self.all_writes().await?;
            let page = self.load(place, level).await?;
            if page.len() > 1 {
                break;
            }
            self.dropped.push(place);
            place = page.child(0).map_err(|_| place.damaged("a tree page"))?;
            level -= 1;
        }
        Ok((Some(place), level + 1))
    }

    /// Writes `content` into pages of `level`.
    async fn pack(&mut self, level: u8, content: Vec<TreeEntry>) -> StoreResult<Vec<TreeEntry>> {
        let (mut packer, mut out) = (Packer::default(), Vec::new());
        packer.extend(content);
        self.write_full(level, &mut packer, &mut out).await?;
        self.write_rest(level, &mut packer, &mut out).await?;
        Ok(out)
    }

    /// The entries of the page at `place` with `changes` merged in; the page itself is dropped.
    fn content<'b>(
        &'b mut self,
        level: u8,
        place: PageRef,
        changes: &'b [TreeChange],
    ) -> LocalBoxFuture<'b, StoreResult<Vec<TreeEntry>>> {
        async move {
            let page = self.load(place, level).await?;
            self.dropped.push(place);
            let entries: Vec<TreeEntry> = page.entries().collect();
            match (level, changes.is_empty()) {
                (_, true) => Ok(entries),
                (0, false) => Ok(self.merged(&entries, changes)),
                (_, false) => self.rewrite(level - 1, &page, entries, changes).await,
            }
        }
        .boxed_local()
    }

    /// The new list of children of a page, the children being at `level`.
    async fn rewrite(
        &mut self,
        level: u8,
        page: &Rc<TreePage>,
        children: Vec<TreeEntry>,
        changes: &[TreeChange],
    ) -> StoreResult<Vec<TreeEntry>> {
        let parts = partition(page, changes);
        self.prefetch(level, &children, &parts).await?;
        let (mut packer, mut out) = (Packer::default(), Vec::new());
        for (child, part) in children.into_iter().zip(parts) {
            if part.is_empty() && !packer.is_hungry() {
                self.write_rest(level, &mut packer, &mut out).await?;
                out.push(child);
                continue;
            }
            packer.extend(self.content(level, reference(&child)?, part).await?);
            self.write_full(level, &mut packer, &mut out).await?;
        }
        // A packer that is hungry has written nothing since the last child that was left alone.
        if packer.is_hungry()
            && let Some(left) = out.pop()
        {
            packer.prepend(self.content(level, reference(&left)?, &[]).await?);
        }
        self.write_rest(level, &mut packer, &mut out).await?;
        Ok(out)
    }

    async fn prefetch(
        &mut self,
        level: u8,
        children: &[TreeEntry],
        parts: &[&[TreeChange]],
    ) -> StoreResult<()> {
        let mut touched = Vec::new();
        for (child, part) in children.iter().zip(parts) {
            if !part.is_empty() {
                touched.push(reference(child)?);
            }
        }
        let pages = self.pages;
        self.meanwhile(pages.prefetch(touched.into_iter(), level)).await
    }

    async fn load(&mut self, place: PageRef, level: u8) -> StoreResult<Rc<TreePage>> {
        let pages = self.pages;
        self.meanwhile(pages.load(place, level)).await?
    }

    /// Waits for `reading` while the writes go on: they hold lines of the cache, and what is read
    /// may need one of these.
    async fn meanwhile<T>(&mut self, reading: impl Future<Output = T>) -> StoreResult<T> {
        let mut reading = pin!(reading);
        loop {
            match select(reading.as_mut(), self.writes.next()).await {
                Either::Left((read, _)) => return Ok(read),
                Either::Right((Some(written), _)) => self.unsynced.push(written?),
                Either::Right((None, _)) => return Ok(reading.await),
            }
        }
    }

    /// `entries` with `changes` merged in; counts the keys.
    fn merged(&mut self, entries: &[TreeEntry], changes: &[TreeChange]) -> Vec<TreeEntry> {
        let mut out = Vec::with_capacity(entries.len() + changes.len());
        let mut old = entries.iter().peekable();
        for (key, value) in changes {
            while let Some(entry) = old.next_if(|entry| entry.0 < *key) {
                out.push(entry.clone());
            }
            if old.next_if(|entry| entry.0 == *key).is_some() {
                self.keys_removed += 1;
            }
            if let Some(value) = value {
                self.keys_added += 1;
                out.push((key.clone(), value.clone()));
            }
        }
        out.extend(old.cloned());
        out
    }

    /// Writes full pages while the packer has more than two.
    async fn write_full(
        &mut self,
        level: u8,
        packer: &mut Packer,
        out: &mut Vec<TreeEntry>,
    ) -> StoreResult<()> {
        while packer.bytes > 2 * BODY_MAX {
            out.push(self.write(level, &packer.take(BODY_MAX)).await?);
        }
        Ok(())
    }

    /// Writes what the packer has: one page, or halves.
    async fn write_rest(
        &mut self,
        level: u8,
        packer: &mut Packer,
        out: &mut Vec<TreeEntry>,
    ) -> StoreResult<()> {
        while packer.bytes > 0 {
            let wanted = if packer.bytes > BODY_MAX { packer.bytes / 2 } else { packer.bytes };
            out.push(self.write(level, &packer.take(wanted)).await?);
        }
        Ok(())
    }

    /// Starts to write a page and gives the entry for its parent.
    async fn write(&mut self, level: u8, entries: &[TreeEntry]) -> StoreResult<TreeEntry> {
        let (draft, layout) = page::draft(level, entries);
        let places = self.space.page(draft.blocks()).ok_or(StoreError::NoSpace)?;
        let identity = (self.pages.owner, version_of(self.pages.device.copies));
        let (raw, place) = draft.finish(identity, self.generation, places);
        self.written.push(place);
        self.pages.remember(place, TreePage::written(level, &raw, layout));
        let device = &self.pages.device;
        for run in place.runs() {
            let raw = raw.clone();
            let write =
                async move { device.write(run.start, raw).await.map_err(StoreError::Failed) };
            self.writes.push(write.boxed_local());
        }
        while self.writes.len() >= WRITES_MAX {
            self.one_write().await?;
        }
        Ok((entries[0].0.clone(), place.to_value()))
    }

    async fn all_writes(&mut self) -> StoreResult<()> {
        while !self.writes.is_empty() {
            self.one_write().await?;
        }
        Ok(())
    }

    async fn one_write(&mut self) -> StoreResult<()> {
        if let Some(written) = self.writes.next().await {
            self.unsynced.push(written?);
        }
        Ok(())
    }
}

fn reference(entry: &TreeEntry) -> StoreResult<PageRef> {
    // The entries of pages are checked when they are read.
    PageRef::of_value(&entry.1)
        .map_err(|_| StoreError::Damaged { what: "a reference in the tree", block: 0 })
}

/// The changes that belong to each child of `page`.
fn partition<'c>(page: &TreePage, changes: &'c [TreeChange]) -> Vec<&'c [TreeChange]> {
    let mut rest = changes;
    (0..page.len())
        .map(|index| {
            let mine = if index + 1 < page.len() {
                let end = page.key(index + 1);
                rest.partition_point(|(key, _)| &key[..] < end)
            } else {
                rest.len()
            };
            let (part, later) = rest.split_at(mine);
            rest = later;
            part
        })
        .collect()
}

/// Entries on their way into pages.
#[derive(Default)]
struct Packer {
    entries: std::collections::VecDeque<TreeEntry>,
    bytes: usize,
}

fn size(entry: &TreeEntry) -> usize {
    ENTRY_HEAD + entry.0.len() + entry.1.len()
}

impl Packer {
    fn extend(&mut self, entries: Vec<TreeEntry>) {
        self.bytes += entries.iter().map(size).sum::<usize>();
        self.entries.extend(entries);
    }

    fn prepend(&mut self, entries: Vec<TreeEntry>) {
        self.bytes += entries.iter().map(size).sum::<usize>();
        for entry in entries.into_iter().rev() {
            self.entries.push_front(entry);
        }
    }

    /// Too little for a page, but not nothing.
    fn is_hungry(&self) -> bool {
        (1..BODY_MIN).contains(&self.bytes)
    }

    /// Entries from the front until they have `wanted` bytes, never more than a page holds.
    fn take(&mut self, wanted: usize) -> Vec<TreeEntry> {
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while let Some(entry) = self.entries.front() {
            let more = size(entry);
            if bytes >= wanted || bytes + more > BODY_MAX {
                break;
            }
            bytes += more;
            taken.extend(self.entries.pop_front());
        }
        self.bytes -= bytes;
        taken
    }
}
