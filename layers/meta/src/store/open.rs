//! Format and mount. Both end alike: a fresh log, and a checkpoint into a new root before anything
//! is accepted; so what an earlier host of the node left behind is never built upon.

use std::collections::BTreeSet;
use std::rc::Rc;

use blockio::{DiskName, Stripes};
use runtime::Context;
use runtime::wire::Malformed;

use super::Store;
use super::allocate::{close_disks, closed_disks};
use super::bad_pages::BadCopy;
use super::batch::{BatchOp, RecordHead};
use super::bits::Bits;
use super::device::Device;
use super::error::{StoreError, StoreResult};
use super::groups::GroupLayout;
use super::limits;
use super::log::copies::LogCopies;
use super::log::format::{LogId, SegmentCopies};
use super::log::replay::replay;
use super::log::{Log, Segment};
use super::map;
use super::overlay::Overlay;
use super::page::{self, COUNTER_END, Opened, PageKind, PageRef, StoreOwner};
use super::root::{self, Root, RootHolders};
use super::space::{BlockAllocator, ClosedDisks, KeptBlocks};
use super::state::{NUMBERS_AHEAD, StoreState};
use super::tree::{TreeReader, TreeRoot};
use crate::memory::{MemoryBudget, MemoryShare};

/// Bytes in memory of a store that is opened alone: to make it, or to look at it.
pub const ALONE_BYTES: usize = 4 << 20;

/// The first inode number; those below are for the system.
const NUMBER_FIRST: u64 = 16;

/// What a node was before it is started.
#[derive(Debug)]
pub(super) struct RecoveredState {
    pub(super) space: BlockAllocator,
    pub(super) overlay: Overlay,
    /// Its newest root, with position and counter as of the end of the log.
    pub(super) root: Root,
    pub(super) map_pages: Vec<PageRef>,
    /// Copies of these that were bad.
    pub(super) bad_map_copies: Vec<BadCopy>,
    pub(super) segments: Vec<Segment>,
    pub(super) log_copies: LogCopies,
}

/// Does the store of `node` have `key`? Read from the disks, whether it is open or not; nothing
/// is changed.
pub(crate) async fn has_at_rest(
    ctx: &Context,
    stripes: &Rc<dyn Stripes>,
    node: u32,
    key: &[u8],
) -> StoreResult<bool> {
    let pages = pages(ctx, stripes.clone(), node, alone());
    let (root, _) = root::newest(&pages.device, pages.owner).await?;
    let past = recover(&pages, &root).await?;
    match past.overlay.get(key) {
        Some(changed) => Ok(changed.is_some()),
        None => Ok(pages.find(root.tree, key).await?.is_some()),
    }
}

impl Store {
    /// Writes the first root of `node`: an empty tree, an empty log, and the allocation groups that
    /// it owns at birth. A node that has a root on this volume is refused: it would lose all.
    pub async fn format(ctx: Context, stripes: &Rc<dyn Stripes>, node: u32) -> StoreResult<()> {
        let pages = pages(&ctx, stripes.clone(), node, alone());
        match root::newest(&pages.device, pages.owner).await {
            Ok(_) => return Err(StoreError::Formatted),
            // Roots of another volume are those of an earlier use of the disks.
            Err(StoreError::NoRoot | StoreError::ForeignVolume) => {}
            Err(error) => return Err(error),
        }
        let layout = GroupLayout::of(&pages.device.map());
        let mut space = BlockAllocator::new(layout.clone());
        for group in layout.born(node) {
            let blocks = layout.blocks_of(group);
            let bits = Bits::new((blocks.end - blocks.start) as u32, false);
            space.add_group(group, &Rc::new(bits));
        }
        let needed = limits::stripes_min(&pages.device.geometry, pages.device.copies);
        if space.owned_stripes() < needed {
            return Err(StoreError::TooSmall { stripes: space.owned_stripes(), needed });
        }
        let nothing = Segment { sequence: 0, copies: SegmentCopies::nowhere() };
        let root = Root {
            generation: 0,
            log: LogId { owner: pages.owner, id: 0, epoch: 0 },
            start: nothing,
            position: 0,
            counter: NUMBER_FIRST,
            lacking: 0,
            before: RootHolders::default(),
            record_version: 0,
            tree: TreeRoot::default(),
            map: PageRef::default(),
        };
        let holders = root::holders(&pages.device.map(), node);
        Self::start(ctx, pages, RecoveredState::before_log(space, &root), holders).await?;
        Ok(())
    }

    /// Opens the store of `node`: the newest root, and what the log says since. It has a budget of
    /// its own of [`ALONE_BYTES`].
    ///
    /// No other process may have it open; a stale host is fenced off by the epoch of its writes.
    /// Errors leave the volume as it was.
    pub async fn mount(ctx: Context, stripes: Rc<dyn Stripes>, node: u32) -> StoreResult<Rc<Self>> {
        Self::mount_within(ctx, stripes, node, alone()).await
    }

    /// As [`mount`](Self::mount), with a part of the memory of its process.
    pub(crate) async fn mount_within(
        ctx: Context,
        stripes: Rc<dyn Stripes>,
        node: u32,
        share: Rc<MemoryShare>,
    ) -> StoreResult<Rc<Self>> {
        let pages = pages(&ctx, stripes, node, share);
        let (root, copies) = root::newest(&pages.device, pages.owner).await?;
        if root.log.epoch > ctx.epoch().0 {
            return Err(StoreError::Fenced { epoch: root.log.epoch });
        }
        if let Some(disk) = copies.outdated {
            return Err(StoreError::Outdated { disk, what: "root records" });
        }
        let past = recover(&pages, &root).await?;
        if let Some(disk) = past.log_copies.outdated() {
            return Err(StoreError::Outdated { disk, what: "entries of a log" });
        }
        past.log_copies.warn(node);
        past.bad_map_copies.iter().for_each(|bad| bad.warn(node));
        let holders = root.heal(&pages.device, &copies).await;
        Self::start(ctx, pages, past, holders).await
    }

    /// Goes on from `past`, whose root the disks `holders` have.
    async fn start(
        ctx: Context,
        pages: TreeReader,
        past: RecoveredState,
        holders: Vec<DiskName>,
    ) -> StoreResult<Rc<Self>> {
        let id = LogId { owner: pages.owner, id: ctx.random(), epoch: ctx.epoch().0 };
        let geometry = pages.device.geometry;
        let last = past.segments.last().map_or(0, |segment| segment.sequence);
        let mut space = past.space;
        let mut segment = |after| space.allocate_segment(after).ok_or(StoreError::NoSpace);
        let here = segment(None)?;
        let next = segment(Some(here))?;
        let position = past.root.position;
        let mut log = Log::new(id, &geometry, position, past.segments, (last + 1, here, next));
        let header = log.first_round();
        let content = (space, past.overlay);
        let share = pages.share.clone();
        let mut state = StoreState::new(geometry, content, log, (past.root, past.map_pages), share);
        state.root_holders = holders;
        let store = Self::new(ctx, pages, state);
        store.write_round(&header).await?;
        store.write_checkpoint().await?;
        Ok(store)
    }
}

/// The memory of a store that has a budget of its own.
pub(super) fn alone() -> Rc<MemoryShare> {
    MemoryShare::new(MemoryBudget::new(ALONE_BYTES))
}

pub(super) fn pages(
    ctx: &Context,
    stripes: Rc<dyn Stripes>,
    node: u32,
    share: Rc<MemoryShare>,
) -> TreeReader {
    let device = Device::new(ctx.clone(), stripes);
    let owner = StoreOwner { volume: device.geometry.volume, node };
    TreeReader::new(device, owner, share)
}

/// The state of the node at the end of its log.
pub(super) async fn recover(pages: &TreeReader, root: &Root) -> StoreResult<RecoveredState> {
    let SpaceMap { pages: map_pages, bad_copies, kept } = read_map(pages, root.map).await?;
    let map = pages.device.map();
    let mut space = BlockAllocator::new(GroupLayout::of(&map));
    ClosedDisks(&mut space).set(closed_disks(&map, true));
    for (group, bits) in kept {
        space.add_group(group, &bits);
    }
    for page in &map_pages {
        if !page.runs().all(|run| space.owns(run)) {
            return Err(page.damaged("the space map"));
        }
        page.runs().for_each(|run| space.set_busy(run.blocks(), true));
    }
    let mut past = RecoveredState::before_log(space, root);
    past.map_pages = map_pages;
    let mut last = None;
    let apply = |head, ops| past.replay_record(&mut last, head, ops, RecoveredState::replay_op);
    let (segments, log_copies) = replay(&pages.device, root.log, root.start, apply).await?;
    // Only now: a block that a record freed may have become a part of the log later.
    for stripe in segments.iter().flat_map(|segment| segment.copies.stripes()) {
        let run = past.space.layout.stripe_run(*stripe);
        if !past.space.owns(run) {
            return Err(StoreError::Damaged { what: "the chain of the log", block: run.start });
        }
        past.space.set_busy(run.blocks(), true);
    }
    past.bad_map_copies = bad_copies;
    past.space.begin_at(pages.owner.node);
    past.segments = segments;
    past.log_copies = log_copies;
    past.root.counter += NUMBERS_AHEAD;
    // One that there is no room to close now is closed later.
    let floor = past.stripes_to_begin();
    close_disks(&mut past.space, &map, floor);
    Ok(past)
}

impl RecoveredState {
    /// What the newest root says, before the log is replayed.
    pub(super) fn before_log(space: BlockAllocator, root: &Root) -> Self {
        let root = *root;
        let (overlay, log_copies) = (Overlay::default(), LogCopies::default());
        let (map_pages, bad_map_copies, segments) = (vec![], vec![], vec![]);
        Self { space, overlay, root, map_pages, bad_map_copies, segments, log_copies }
    }

    /// Whole stripes that the log and the checkpoint of a start need, and those that are left to
    /// the log then.
    pub(super) fn stripes_to_begin(&self) -> u64 {
        let layout = &self.space.layout;
        let map_blocks = self.map_pages.iter().map(|page| u64::from(page.blocks)).sum();
        let (keys, bytes) = (self.overlay.keys(), self.overlay.bytes);
        let copies = limits::copies(layout.map());
        let blocks = copies * limits::checkpoint_blocks(&self.root.tree, keys, bytes, map_blocks);
        let segments = limits::log_segments_max(layout.map()) + limits::MOUNT_SEGMENTS;
        let left = segments.saturating_sub(self.segments.len() as u64);
        let log = copies * left.max(limits::MOUNT_SEGMENTS);
        log + blocks.div_ceil(layout.blocks_per_stripe())
    }

    /// Applies a record by `replay`, unless it is in the tree already. `last` is the position
    /// before.
    pub(super) fn replay_record(
        &mut self,
        last: &mut Option<u64>,
        head: RecordHead,
        ops: Vec<BatchOp>,
        replay: fn(&mut Self, BatchOp) -> StoreResult<()>,
    ) -> StoreResult<()> {
        // The first record of a segment may be older than the root, but not leave a gap.
        let in_order = match *last {
            Some(last) => head.position == last + 1,
            None => (1..=self.root.position + 1).contains(&head.position),
        };
        if !in_order {
            let block = self.space.layout.stripe_run(self.root.start.copies.first()).start;
            return Err(StoreError::Damaged { what: "the order of the log's records", block });
        }
        if head.counter >= COUNTER_END {
            return Err(StoreError::Damaged { what: "the counter of a log record", block: 0 });
        }
        *last = Some(head.position);
        if head.position <= self.root.position {
            return Ok(());
        }
        self.root.position = head.position;
        self.root.counter = self.root.counter.max(head.counter);
        ops.into_iter().try_for_each(|op| replay(self, op))
    }

    fn replay_op(&mut self, op: BatchOp) -> StoreResult<()> {
        let damaged = |block| StoreError::Damaged { what: "the space of a log record", block };
        match op {
            BatchOp::Put { key, value } => self.overlay.set(key, Some(value)),
            BatchOp::Delete { key } => self.overlay.set(key, None),
            BatchOp::Allocated { run } | BatchOp::Freed { run } if !self.space.owns(run) => {
                return Err(damaged(run.start));
            }
            BatchOp::Allocated { run } => {
                self.space.set_busy(run.blocks(), true);
                self.space.set_kept(run, true);
            }
            BatchOp::Freed { run } => {
                self.space.set_kept(run, false);
                self.space.set_busy(run.blocks(), false);
            }
            BatchOp::GiveGroup { group } if !self.space.is_free_group(group) => {
                return Err(damaged(self.space.layout.blocks_of(group).start));
            }
            BatchOp::GiveGroup { group } => self.space.remove_group(group),
            BatchOp::TakeGroup { group } => {
                if self.space.owns_group(group) || group >= self.space.layout.count() {
                    return Err(damaged(0));
                }
                self.space.add_blocked_group(group);
                self.space.set_busy(self.space.layout.blocks_of(group), false);
            }
        }
        Ok(())
    }
}

/// A space map that was read.
struct SpaceMap {
    pages: Vec<PageRef>,
    /// First copies of them that are bad.
    bad_copies: Vec<BadCopy>,
    /// What is kept in each group.
    kept: KeptBlocks,
}

/// The space map that begins at `first`.
async fn read_map(pages: &TreeReader, first: PageRef) -> StoreResult<SpaceMap> {
    const WHAT: &str = "the space map";
    let (mut places, mut seen, mut bytes) = (Vec::new(), BTreeSet::new(), Vec::new());
    let mut bad_copies = Vec::new();
    let mut next = Some(first);
    while let Some(place) = next {
        if !seen.insert(place.block) {
            return Err(place.damaged(WHAT));
        }
        let (raw, bad) = pages.read_page(place, WHAT).await?;
        bad_copies.extend(bad);
        let opened = page::open(&raw, pages.owner, PageKind::SpaceMap, &place);
        let Opened { version, body, .. } = opened.map_err(|_| place.damaged(WHAT))?;
        let (after, piece) = map::open(version, &body).map_err(|_| place.damaged(WHAT))?;
        bytes.extend_from_slice(piece);
        places.push(place);
        next = after;
    }
    let layout = GroupLayout::of(&pages.device.map());
    let kept = map::decode(&bytes, &layout).map_err(|_: Malformed| first.damaged(WHAT))?;
    Ok(SpaceMap { pages: places, bad_copies, kept })
}
