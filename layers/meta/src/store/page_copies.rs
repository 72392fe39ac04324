//! Looking at both copies of pages, and letting checkpoints write anew those that have not two good
//! ones.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use bytes::Bytes;

use super::Store;
use super::bad_pages::BadCopy;
use super::error::StoreResult;
use super::page::PageRef;
use super::state::ChangeMode;
use super::tree::{TreeRoot, step};

/// Leaves that get a missing copy each time, at most: a node writes some hundred KiB for them.
const LEAVES_COPIED_MAX: u64 = 8;
/// Leaves that are looked at for that, at most. Only the pages above them are read.
const LEAVES_SEEN_MAX: u64 = 1024;

/// The search for pages with one copy only.
#[derive(Debug, Default)]
pub(super) struct CopySearch {
    is_running: Cell<bool>,
    /// The key where it goes on.
    from: RefCell<Bytes>,
}

impl CopySearch {
    /// Where to begin, unless it is running.
    fn begin(&self) -> Option<Bytes> {
        (!self.is_running.replace(true)).then(|| self.from.borrow().clone())
    }

    /// It goes on with `next`, or from the beginning.
    fn end(&self, next: Option<Bytes>) {
        self.is_running.set(false);
        self.from.replace(next.unwrap_or_default());
    }
}

/// What a look at the copies of pages found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopiesReport {
    /// Leaves that were looked at, with all pages above them.
    pub leaves: u64,
    /// Bad copies of pages whose other copy is good.
    pub bad: Vec<BadCopy>,
    /// Leaves whose pages, some of which had one copy only or a bad one, are written anew.
    pub written_anew: u64,
    /// The key to go on with; `None` at the end.
    pub next: Option<Bytes>,
}

/// The pages of a store, by their copies.
#[derive(Debug)]
pub struct PageCopies<'a>(&'a Rc<Store>);

impl<'a> PageCopies<'a> {
    /// Those of this store.
    pub fn of(store: &'a Rc<Store>) -> Self {
        Self(store)
    }

    /// Reads both copies of the pages that `from` and the keys behind it lead to, up to `leaves`
    /// leaves. Pages with a bad copy, or with one copy only, are written by the next checkpoint, if
    /// there is space.
    pub async fn check(&self, from: &[u8], leaves: u64) -> StoreResult<CopiesReport> {
        self.look(from, true, (leaves, leaves)).await
    }

    /// The same, until one of these numbers of leaves has been looked at, or has to be written.
    /// Without `read` no copy is read: only missing ones are found.
    async fn look(
        &self,
        from: &[u8],
        read: bool,
        (looked_at_max, written_max): (u64, u64),
    ) -> StoreResult<CopiesReport> {
        let mut report = CopiesReport::default();
        let mut seen = BTreeSet::new();
        let mut from = Bytes::copy_from_slice(from);
        while report.leaves < looked_at_max && report.written_anew < written_max {
            let root = self.0.state.borrow().root;
            let checked = self.check_path(root.tree, &from, read, &mut seen, &mut report).await;
            // The pages of that tree were given back meanwhile.
            if self.0.generation() != root.generation {
                continue;
            }
            let Some((is_whole, end)) = checked? else { break };
            report.leaves += 1;
            if !is_whole && touch_leaf(self.0, &from).await {
                report.written_anew += 1;
            }
            report.next = end;
            let Some(end) = report.next.clone() else { break };
            from = end;
        }
        Ok(report)
    }

    /// Are all pages from the top to the leaf of `key` whole, those aside that were `seen`? And the
    /// first key of a later leaf.
    async fn check_path(
        &self,
        tree: TreeRoot,
        key: &[u8],
        read: bool,
        seen: &mut BTreeSet<PageRef>,
        report: &mut CopiesReport,
    ) -> StoreResult<Option<(bool, Option<Bytes>)>> {
        let Some(mut place) = tree.top else { return Ok(None) };
        let (mut is_whole, mut end) = (true, None);
        for level in (0..tree.height).rev() {
            if seen.insert(place) {
                is_whole &= place.second().is_some();
                if read {
                    let (_, bad) = self.0.pages.read_copies(place, "a tree page").await?;
                    is_whole &= bad.is_none();
                    report.bad.extend(bad);
                }
            }
            if level > 0 {
                let page = self.0.pages.load(place, level).await?;
                place = step(&page, place, key, &mut end)?;
            }
        }
        Ok(Some((is_whole, end)))
    }

    /// Gives pages with one copy only a second one, a few at a time, as long as there are any:
    /// those of a store of an old version, and those for which there was no space. Called
    /// regularly.
    pub(super) fn add_missing(&self) {
        let has_some = {
            let state = self.0.state.borrow();
            let is_written = state.changes == ChangeMode::Logged && state.stopped.is_none();
            is_written && state.root.tree.single > 0 && !state.checkpointing
        };
        let Some(from) = has_some.then(|| self.0.copying.begin()).flatten() else { return };
        let store = self.0.clone();
        self.0.ctx.task(async move {
            let most = (LEAVES_SEEN_MAX, LEAVES_COPIED_MAX);
            let looked = PageCopies(&store).look(&from, false, most).await;
            let written_anew = looked.as_ref().map_or(0, |report| report.written_anew);
            store.copying.end(looked.ok().and_then(|report| report.next));
            if written_anew > 0 {
                store.start_checkpoint();
            }
        });
    }
}

/// Lets the checkpoint that begins next write the pages with a bad copy: at another place, with
/// all pages above them. Those for which there is no space stay as they are.
pub(super) async fn touch_bad_pages(store: &Store) {
    let keys = store.pages.bad.borrow_mut().take_keys();
    for key in keys {
        touch_leaf(store, &key).await;
    }
}

/// Lets the next checkpoint write the leaf that `key` belongs to, and all pages above it. False if
/// there is no space for that, or the leaf cannot be read.
async fn touch_leaf(store: &Store, key: &[u8]) -> bool {
    let root = store.state.borrow().root;
    let Ok(Some((leaf, _))) = store.pages.leaf(root.tree, key).await else { return false };
    let (key, value) = leaf.entry(0);
    let mut state = store.state.borrow_mut();
    state.root.generation == root.generation && state.touch(key, value)
}
