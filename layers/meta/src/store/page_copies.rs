//! Looking at all copies of pages, and letting checkpoints write anew those that lack a good one.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use blockio::{DiskName, has_lost_disk};
use bytes::Bytes;

use super::Store;
use super::bad_pages::BadCopy;
use super::error::StoreResult;
use super::groups::Run;
use super::page::PageRef;
use super::state::ChangeMode;
use super::tree::{TreeRoot, step};

/// Leaves that get a missing copy each time, at most: a node writes some hundred KiB for them.
const LEAVES_COPIED_MAX: u64 = 8;
/// Leaves that are looked at for that, at most. Only the pages above them are read.
const LEAVES_SEEN_MAX: u64 = 1024;

/// The time between two looks at some leaves in all copies: of a further copy that is bad nothing
/// else learns. A node with a hundred leaves, which is some 30,000 files, looks at all of them in
/// five minutes.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Leaves of one such look.
const LEAVES_CHECKED: u64 = 4;

/// The searches for pages with too few copies, and for bad copies.
#[derive(Debug, Default)]
pub(super) struct CopySearch {
    is_running: Cell<bool>,
    /// The key where the search for missing copies goes on.
    missing_from: RefCell<Bytes>,
    /// The same for bad ones.
    bad_from: RefCell<Bytes>,
    /// When that was looked for last.
    checked: Cell<Duration>,
}

/// What a look at the copies of pages found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopiesReport {
    /// Leaves that were looked at, with all pages above them.
    pub leaves: u64,
    /// Bad copies of pages of which another copy is good.
    pub bad: Vec<BadCopy>,
    /// Leaves whose pages, some of which had too few copies or a bad one, are written anew.
    pub written_anew: u64,
    /// The key to go on with; `None` at the end.
    pub next: Option<Bytes>,
}

/// The pages from the top of a tree to a leaf.
#[derive(Debug, Default)]
struct CheckedPath {
    /// One of them has too few copies.
    is_incomplete: bool,
    /// Bad copies of them.
    bad: Vec<(PageRef, BadCopy)>,
    /// The first key of a later leaf.
    end: Option<Bytes>,
}

/// The pages of a store, by their copies.
#[derive(Debug)]
pub struct PageCopies<'a>(&'a Rc<Store>);

impl<'a> PageCopies<'a> {
    /// Those of this store.
    pub fn of(store: &'a Rc<Store>) -> Self {
        Self(store)
    }

    /// Reads all copies of the pages that `from` and the keys behind it lead to, up to `leaves`
    /// leaves. Pages with a bad copy, or too few, are written by the next checkpoint, if there is
    /// space.
    pub async fn check(&self, from: &[u8], leaves: u64) -> StoreResult<CopiesReport> {
        self.look(from, true, (leaves, leaves)).await
    }

    /// Lets the next checkpoint write all pages that are on too few disks, if there is space.
    pub(super) async fn make_missing(&self) -> StoreResult<()> {
        let mut from = Some(Bytes::new());
        while let Some(begin) = from {
            from = self.look(&begin, false, (LEAVES_SEEN_MAX, LEAVES_SEEN_MAX)).await?.next;
        }
        Ok(())
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
            let path = self.check_path(root.tree, &from, read, &mut seen).await;
            // The pages of that tree were given back meanwhile.
            if self.0.generation() != root.generation {
                seen.clear();
                continue;
            }
            let Some(path) = path? else { break };
            report.leaves += 1;
            for (place, bad) in &path.bad {
                self.0.pages.note_bad(*place, from.clone(), bad);
                report.bad.push(*bad);
            }
            let is_whole = path.bad.is_empty() && !path.is_incomplete;
            if !is_whole && touch_leaf(self.0, &from).await {
                report.written_anew += 1;
            }
            report.next = path.end;
            let Some(end) = report.next.clone() else { break };
            from = end;
        }
        Ok(report)
    }

    /// Looks at the pages from the top to the leaf of `key`, but not at those that were `seen`.
    async fn check_path(
        &self,
        tree: TreeRoot,
        key: &[u8],
        read: bool,
        seen: &mut BTreeSet<PageRef>,
    ) -> StoreResult<Option<CheckedPath>> {
        let Some(mut place) = tree.top else { return Ok(None) };
        let mut path = CheckedPath::default();
        for level in (0..tree.height).rev() {
            if seen.insert(place) {
                path.is_incomplete |= self.is_incomplete(place);
                if read {
                    let (_, bad) = self.0.pages.read_copies(place, "a tree page").await?;
                    path.bad.extend(bad.map(|bad| (place, bad)));
                }
            }
            if level > 0 {
                let page = self.0.pages.load(place, level).await?;
                place = step(&page, place, key, &mut path.end)?;
            }
        }
        Ok(Some(path))
    }

    /// Has it too few copies, or, while a disk is lost, two on one disk?
    fn is_incomplete(&self, place: PageRef) -> bool {
        let device = &self.0.pages.device;
        let map = device.map();
        let disk_of = |run: Run| map.place(map.geometry().block(run.start).0).disk;
        let disks = || place.runs().map(disk_of).collect::<BTreeSet<DiskName>>().len();
        place.has_fewer_than(device.copies) || has_lost_disk(&map) && disks() < place.runs().count()
    }

    /// Now and then looks at a few leaves. Those with too few copies, which there are in a store of
    /// an old version and where there was no space, get more; if there are none, all copies of some
    /// are read. Called regularly.
    pub(super) fn keep_whole(&self) {
        let search = &self.0.copying;
        let is_incomplete = {
            let state = self.0.state.borrow();
            let is_written = state.changes == ChangeMode::Logged && state.stopped.is_none();
            if !is_written || state.checkpointing || search.is_running.get() {
                return;
            }
            state.root.tree.incomplete > 0
        };
        let now = self.0.ctx.now();
        if !is_incomplete && now < search.checked.get() + CHECK_INTERVAL {
            return;
        }
        search.is_running.set(true);
        let store = self.0.clone();
        self.0.ctx.task(async move {
            let search = &store.copying;
            let (from, most) = if is_incomplete {
                (&search.missing_from, (LEAVES_SEEN_MAX, LEAVES_COPIED_MAX))
            } else {
                search.checked.set(now);
                (&search.bad_from, (LEAVES_CHECKED, LEAVES_CHECKED))
            };
            let begin = from.borrow().clone();
            let looked = PageCopies(&store).look(&begin, !is_incomplete, most).await;
            search.is_running.set(false);
            let written_anew = looked.as_ref().map_or(0, |report| report.written_anew);
            from.replace(looked.ok().and_then(|report| report.next).unwrap_or_default());
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
