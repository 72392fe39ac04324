//! A store that is only read: its newest root, with the log replayed in memory. Nothing is written,
//! so nothing is cleaned up either. Damage is reported, and reading continues where it can.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::rc::Rc;

use blockio::{DiskStage, Stripes};
use bytes::Bytes;
use runtime::Context;

use super::bad_pages::BadCopy;
use super::error::{StoreError, StoreResult};
use super::groups::Run;
use super::limits;
use super::open::{RecoveredState, alone, pages, recover};
use super::overlay::{Changes, Merged};
use super::page::{KEY_BYTES_MAX, PAGE_BLOCKS_MAX, PageRef, TreePage};
use super::root::{self, RootCopies};
use super::space::SpaceOnDisks;
use super::to_read::recover_to_read;
use super::tree::TreeReader;

/// Above every key.
const KEYS_END: [u8; KEY_BYTES_MAX + 1] = [u8::MAX; KEY_BYTES_MAX + 1];

/// One node's store at the end of its log, to be looked at.
#[derive(Debug)]
pub struct StoreImage {
    pages: TreeReader,
    past: RecoveredState,
    root_copies: RootCopies,
    /// What of its log and space map cannot be read.
    damage: Vec<StoreError>,
}

/// What every block that the store itself needs is used for.
#[derive(Clone, Debug, Default)]
pub struct ImageSpace {
    /// The allocation groups of the node.
    pub groups: Vec<u64>,
    /// Blocks in them.
    pub owned_blocks: u64,
    /// Blocks that files could have after a mount.
    pub free_blocks: u64,
    /// Blocks that batches hold: tree pages, and what they named.
    pub kept: Vec<Run>,
    /// Pages of the space map.
    pub map: Vec<Run>,
    /// Stripes of the log.
    pub log: Vec<Run>,
}

/// What is looked at before a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Examination {
    /// The newest root, space map and log can be read, and no disk lacks what was durable on it.
    Mount,
    /// And all keys can be read, and there is room for a mount.
    All,
}

impl StoreImage {
    /// Reads the newest root of `node`, its space map and its log, with any epoch. Of a damaged log
    /// what comes before the damage counts.
    pub async fn read(context: &Context, stripes: Rc<dyn Stripes>, node: u32) -> StoreResult<Self> {
        let pages = pages(context, stripes, node, alone());
        let (root, root_copies) = root::newest(&pages.device, pages.owner).await?;
        let (past, damage) = recover_to_read(&pages, &root).await;
        Ok(Self { pages, past, root_copies, damage })
    }

    /// What of its log and space map cannot be read. Without them nothing is known of its space,
    /// and its newest changes may be missing.
    pub fn damage(&self) -> &[StoreError] {
        &self.damage
    }

    /// Looks whether `node` can be mounted, as far as `examination` says.
    pub async fn examine(
        context: &Context,
        stripes: Rc<dyn Stripes>,
        node: u32,
        examination: Examination,
    ) -> StoreResult<()> {
        let pages = pages(context, stripes, node, alone());
        let (root, root_copies) = root::newest(&pages.device, pages.owner).await?;
        if let Some(disk) = root_copies.outdated {
            return Err(StoreError::Outdated { disk, what: "root records" });
        }
        let past = recover(&pages, &root).await?;
        let image = Self { pages, past, root_copies, damage: Vec::new() };
        if let Some(error) = image.outdated() {
            return Err(error);
        }
        if examination == Examination::Mount {
            return Ok(());
        }
        if image.lacking_stripes().is_some() {
            return Err(StoreError::NoSpace);
        }
        let mut walk = image.walk();
        while let Some(part) = walk.next().await {
            if let ImagePart::Damaged { error, .. } = part {
                return Err(error);
            }
        }
        Ok(())
    }

    /// How many disks that should have a copy of the newest root have none, of how many.
    pub fn missing_roots(&self) -> (usize, usize) {
        let RootCopies { count, lacking, unreadable, .. } = &self.root_copies;
        (lacking.len() + unreadable.len(), *count)
    }

    /// What one copy of the log lacks and the other has, in words, disk by disk.
    pub fn missing_log(&self) -> Vec<String> {
        self.past.log_copies.tell()
    }

    /// A disk that lacks what was durable on it, as a mount would tell it.
    pub fn outdated(&self) -> Option<StoreError> {
        let by_roots = self.root_copies.outdated.map(|disk| (disk, "root records"));
        let (disk, what) =
            by_roots.or_else(|| Some((self.past.log_copies.outdated()?, "entries of a log")))?;
        Some(StoreError::Outdated { disk, what })
    }

    /// What a mount keeps back from data, once it has written all that is in the log.
    fn kept_blocks(&self) -> u64 {
        let RecoveredState { space, root, map_pages, .. } = &self.past;
        let (map, tree) = (space.layout.map(), &root.tree);
        let map_blocks = map_pages.iter().map(|page| u64::from(page.blocks)).sum();
        let checkpoint = limits::copies(map) * limits::checkpoint_blocks(tree, 0, 0, map_blocks);
        let reserve = limits::reserve_blocks(map);
        let data = limits::data_reserve_blocks(map, tree).max(checkpoint + reserve / 2);
        limits::kept_blocks(map) - reserve + data
    }

    /// Stripes that a mount needs to begin its log and write a checkpoint, if fewer are free, and
    /// those that are.
    pub fn lacking_stripes(&self) -> Option<(u64, u64)> {
        let (needed, space) = (self.past.stripes_to_begin(), &self.past.space);
        // Pages of the checkpoint go into stripes that are partly used, too.
        let has = space.available(0, PAGE_BLOCKS_MAX) / space.layout.blocks_per_stripe();
        let copies = limits::copies(space.layout.map());
        let begins = space.whole.total() >= copies * limits::MOUNT_SEGMENTS && has >= needed;
        (!begins).then_some((needed, has))
    }

    /// Blocks of the node on disks that are retired.
    fn retired_blocks(&self) -> u64 {
        let space = &self.past.space;
        let map = space.layout.map();
        if map.states().is_empty() {
            return 0;
        }
        let on_disks = SpaceOnDisks(space).blocks().into_iter();
        let retired = on_disks.filter(|(disk, _)| map.state(*disk) == (DiskStage::Retired {}));
        retired.map(|(_, (_, blocks))| blocks).sum()
    }

    /// How its space is used.
    pub fn space(&self) -> ImageSpace {
        let RecoveredState { space, map_pages, segments, .. } = &self.past;
        let stripes = segments.iter().flat_map(|segment| segment.copies.stripes());
        // Several copies on one stripe are one use of it.
        let stripes: BTreeSet<u64> = stripes.copied().collect();
        let geometry = &self.pages.device.geometry;
        // A mount gives the log back, and begins another one.
        let per_stripe = u64::from(geometry.blocks_per_stripe());
        let log_blocks = stripes.len() as u64 * per_stripe;
        let kept_stripes = self.kept_blocks().div_ceil(per_stripe);
        let has_room = space.whole.total() + stripes.len() as u64 >= kept_stripes;
        let free_blocks = if has_room { space.free_blocks + log_blocks } else { 0 };
        ImageSpace {
            groups: space.groups().collect(),
            owned_blocks: space.owned_blocks - self.retired_blocks(),
            free_blocks: free_blocks.saturating_sub(kept_stripes * per_stripe),
            kept: space.kept_runs(),
            map: map_pages.iter().flat_map(PageRef::runs).collect(),
            log: stripes.into_iter().map(|stripe| space.layout.stripe_run(stripe)).collect(),
        }
    }

    /// Copies of the pages of its space map that are bad, while the other one is good.
    pub async fn bad_map_copies(&self) -> Vec<BadCopy> {
        let mut bad = Vec::new();
        for page in &self.past.map_pages {
            // A mount could not be without a good one, so there is one.
            let read = self.pages.read_copies(*page, "the space map").await;
            bad.extend(read.ok().and_then(|(_, bad)| bad));
        }
        bad
    }

    /// A walk over all its keys, in order.
    pub fn walk(&self) -> ImageWalk<'_> {
        let tree = &self.past.root.tree;
        let top = tree.top.map(|place| PageVisit {
            place,
            level: tree.height.saturating_sub(1),
            from: Bytes::new(),
            to: Bytes::from_static(&KEYS_END),
        });
        ImageWalk {
            image: self,
            todo: top.into_iter().collect(),
            seen: BTreeSet::new(),
            next_key: Bytes::new(),
            is_over: false,
            damaged: None,
            tree_runs: Vec::new(),
            bad_copies: Vec::new(),
            keys: 0,
            pages: 0,
            incomplete: 0,
        }
    }
}

/// A page still to be visited, and the keys that it may have.
#[derive(Clone, Debug)]
struct PageVisit {
    place: PageRef,
    level: u8,
    from: Bytes,
    to: Bytes,
}

/// A part of the keys, or a page that cannot be used: what it held is left out.
#[derive(Debug)]
pub enum ImagePart {
    /// Keys with their values, in order.
    Entries(Vec<(Bytes, Bytes)>),
    /// A page that cannot be used: how, and the keys that it may have had. Those of them that the
    /// log has came before.
    Damaged {
        /// What is wrong.
        error: StoreError,
        /// The first key.
        from: Bytes,
        /// The first key behind them.
        to: Bytes,
        /// Of these keys, those that the log has changed: they are known all the same.
        known: Vec<Bytes>,
    },
}

/// A walk through the tree of an [`StoreImage`], with the changes of its log. Every page is read
/// once, so the walk ends even if damage has made the tree cyclic.
#[derive(Debug)]
pub struct ImageWalk<'a> {
    image: &'a StoreImage,
    todo: Vec<PageVisit>,
    seen: BTreeSet<u64>,
    /// Keys before this one were returned.
    next_key: Bytes,
    is_over: bool,
    /// Damage that is told next.
    damaged: Option<ImagePart>,
    /// Pages that were read, all copies of each.
    pub tree_runs: Vec<Run>,
    /// Copies of them that are bad, while the other one is good.
    pub bad_copies: Vec<BadCopy>,
    keys: u64,
    pages: u64,
    incomplete: u64,
}

impl ImageWalk<'_> {
    /// The next part; `None` at the end.
    pub async fn next(&mut self) -> Option<ImagePart> {
        if let Some(damaged) = self.damaged.take() {
            return Some(damaged);
        }
        while let Some(step) = self.todo.pop() {
            match self.visit(&step).await {
                Ok(None) => {}
                Ok(Some(leaf)) => return Some(self.entries(Some(&leaf), &step.to)),
                Err(error) => {
                    let PageVisit { from, to, .. } = step.clone();
                    let changes = self.image.past.overlay.range(Bound::Included(&from), &to);
                    let known = changes.map(|(key, _)| key).collect();
                    self.damaged = Some(ImagePart::Damaged { error, from, to, known });
                    // What the log has changed of it can be read all the same.
                    return Some(self.entries(None, &step.to));
                }
            }
        }
        if self.is_over {
            return None;
        }
        self.is_over = true;
        let rest = self.entries(None, &Bytes::from_static(&KEYS_END));
        if let Some(error) = self.miscounted() {
            let end = Bytes::from_static(&KEYS_END);
            let (from, known) = (end.clone(), Vec::new());
            self.damaged = Some(ImagePart::Damaged { error, from, to: end, known });
        }
        Some(rest)
    }

    /// Reads a page: a leaf is returned, the children of any other are put on the list.
    async fn visit(&mut self, step: &PageVisit) -> StoreResult<Option<Rc<TreePage>>> {
        let PageVisit { place, level, from, to } = step;
        if !self.seen.insert(place.block) {
            return Err(place.damaged("a tree page that is named twice"));
        }
        let (raw, bad) = self.image.pages.read_copies(*place, "a tree page").await?;
        let page = self.image.pages.parse(&raw, place, *level)?;
        self.bad_copies.extend(bad);
        self.tree_runs.extend(place.runs());
        self.pages += 1;
        self.incomplete += u64::from(place.has_fewer_than(self.image.pages.device.copies));
        let (first, last) = (page.key(0), page.key(page.len() - 1));
        // What is below the first key of a page belongs to its first child.
        if (*level == 0 && first < &from[..]) || last >= &to[..] {
            return Err(place.damaged("the order of the keys in a tree page"));
        }
        if *level == 0 {
            self.keys += page.len() as u64;
            return Ok(Some(page));
        }
        let mut end = to.clone();
        for index in (0..page.len()).rev() {
            let child = page.child(index).map_err(|_| place.damaged("a tree page"))?;
            let start = if index == 0 { from.clone() } else { page.entry(index).0 };
            self.todo.push(PageVisit {
                place: child,
                level: level - 1,
                from: start.clone(),
                to: end,
            });
            end = start;
        }
        Ok(None)
    }

    /// The keys from where the walk is to `to`, of a leaf and of the log.
    fn entries(&mut self, leaf: Option<&TreePage>, to: &Bytes) -> ImagePart {
        let from = Bound::Included(&self.next_key[..]);
        let mut lists: Vec<Changes<'_>> = vec![Box::new(self.image.past.overlay.range(from, to))];
        if let Some(leaf) = leaf {
            lists.push(Box::new(leaf.range(from, to)));
        }
        let entries = Merged::new(lists).collect();
        self.next_key = self.next_key.clone().max(to.clone());
        ImagePart::Entries(entries)
    }

    fn miscounted(&self) -> Option<StoreError> {
        let tree = &self.image.past.root.tree;
        let found = (self.keys, self.pages, self.incomplete);
        let is_whole = self.seen.len() as u64 == self.pages;
        (is_whole && found != (tree.keys, tree.pages, tree.incomplete))
            .then(|| tree.top.unwrap_or_default().damaged("the count of keys or pages of the tree"))
    }
}
