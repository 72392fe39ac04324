//! Checkpoints: the changes since the last root go into fresh pages, then a new root names them.
//!
//! Nothing that the old root needs is touched before the new one is durable, so a crash at any
//! point leaves one of the two. Reads and commits go on meanwhile.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use blockio::DiskName;
use blockio::protocol::{Error as DiskError, Unsynced};
use futures::future::try_join_all;

use super::error::{StoreError, StoreResult};
use super::groups::Run;
use super::limits;
use super::log::Segment;
use super::map;
use super::overlay::Overlay;
use super::page::{PagePlaces, PageRef, version_of};
use super::page_copies::touch_bad_pages;
use super::rewrite::{PageAllocator, Rewrite};
use super::root::{Root, RootHolders};
use super::space::{CopyPlaces, KeptBlocks};
use super::state::{ChangeMode, StoreState};
use super::{LOSSES_MAX, Position, Store};

/// The state at the moment of the freeze.
struct CheckpointInput {
    overlay: Rc<Overlay>,
    position: u64,
    counter: u64,
    kept: KeptBlocks,
    start: Segment,
    old: Root,
    /// Blocks that the first copies of its pages take, at most.
    first_blocks: u64,
}

/// What a checkpoint has written.
struct CheckpointOutput {
    tree_pages: Vec<PageRef>,
    dropped: Vec<PageRef>,
    map_pages: Vec<PageRef>,
    unsynced: Vec<Unsynced>,
    /// The disks that have the root.
    root_holders: Vec<DiskName>,
}

struct PageSpace<'a> {
    state: &'a RefCell<StoreState>,
    /// Blocks that first copies may still take.
    first_blocks: Cell<u64>,
}

impl PageAllocator for PageSpace<'_> {
    /// A further copy never takes space that the first copies of later pages need: a store without
    /// second copies, as of an old version, may be too full for them.
    fn page(&self, blocks: u32) -> Option<PagePlaces> {
        let mut state = self.state.borrow_mut();
        let floor = state.page_floor();
        let first = state.space.allocate_page(blocks, floor)?;
        let left = self.first_blocks.get().saturating_sub(blocks.into());
        self.first_blocks.set(left);
        let kept = left.div_ceil(u64::from(state.geometry.blocks_per_stripe()));
        let further = CopyPlaces(&mut state.space).allocate(first, floor + kept);
        Some(PagePlaces::new(first, &further))
    }
}

impl Store {
    /// Resolves once everything committed before this call is in the tree of a durable root, and
    /// the log before it is given back. Fails while a disk takes no writes; the checkpoint goes on
    /// by itself.
    pub async fn checkpoint(&self) -> StoreResult<()> {
        let position = self.state.borrow().log.last;
        loop {
            let finished = {
                let state = self.state.borrow();
                if state.root.position >= position {
                    return Ok(());
                }
                if let Some(stopped) = state.stopped {
                    return Err(stopped);
                }
                self.pages.device.pauses.check()?;
                // Also told when something begins to wait for a disk.
                self.checkpointed.next()
            };
            self.start_checkpoint();
            finished.await;
            self.pages.device.pauses.check()?;
            let error = self.state.borrow().checkpoint_error;
            if let Some(error) = error {
                return Err(error);
            }
        }
    }

    pub(super) fn checkpoint_if_due(&self) {
        let due = self.state.borrow().checkpoint_is_due();
        if due {
            self.start_checkpoint();
        }
    }

    /// Starts a checkpoint beside everything else, unless one is running.
    pub(super) fn start_checkpoint(&self) {
        let Some(me) = self.me.upgrade() else { return };
        {
            let mut state = self.state.borrow_mut();
            let is_written = state.changes == ChangeMode::Logged && state.stopped.is_none();
            if !is_written || std::mem::replace(&mut state.checkpointing, true) {
                return;
            }
        }
        self.ctx.task(async move {
            let result = me.write_checkpoint().await;
            {
                let mut state = me.state.borrow_mut();
                state.checkpointing = false;
                state.checkpoint_error = result.err();
            }
            me.checkpointed.tell();
            if result.is_ok() {
                me.checkpoint_if_due();
            }
        });
    }

    /// Writes one checkpoint, whether there is something to write or not.
    ///
    /// A damaged page of the old tree leaves the store as it was. What had been written by then
    /// stays out of use until the next mount: writes to it may still be on their way.
    pub(super) async fn write_checkpoint(&self) -> StoreResult<()> {
        touch_bad_pages(self).await;
        let frozen = self.state.borrow_mut().freeze();
        let mut outcome = self.write_frozen(&frozen).await;
        for _ in 0..LOSSES_MAX {
            if !matches!(outcome, Err(StoreError::Disk(DiskError::LostWrites { .. }))) {
                break;
            }
            outcome = self.write_frozen(&frozen).await;
        }
        match outcome {
            Ok((root, written)) => {
                self.state.borrow_mut().finish(&root, &written);
                written.dropped.iter().for_each(|page| self.pages.drop_page(page));
                Ok(())
            }
            Err(error) => {
                if matches!(error, StoreError::Failed(_)) {
                    self.stop(error);
                }
                self.state.borrow_mut().thaw();
                Err(error)
            }
        }
    }

    async fn write_frozen(
        &self,
        frozen: &CheckpointInput,
    ) -> StoreResult<(Root, CheckpointOutput)> {
        let generation = frozen.old.generation + 1;
        let first_blocks = Cell::new(frozen.first_blocks);
        let space = PageSpace { state: &self.state, first_blocks };
        let mut rewrite = Rewrite::new(&self.pages, &space, generation);
        let tree = rewrite.merge(frozen.old.tree, &frozen.overlay.changes()).await?;
        let mut written = CheckpointOutput {
            tree_pages: std::mem::take(&mut rewrite.written),
            dropped: std::mem::take(&mut rewrite.dropped),
            map_pages: Vec::new(),
            unsynced: std::mem::take(&mut rewrite.unsynced),
            root_holders: Vec::new(),
        };
        self.write_map(frozen, &mut written, &space, generation).await?;
        // The header of the segment where the log goes on may be on its way with the records that
        // were pending at the freeze.
        self.durable(Position(frozen.position)).await?;
        match self.pages.device.sync(&written.unsynced).await {
            Err(lost @ DiskError::LostWrites { .. }) => {
                // All writes were answered: nothing is on its way to the pages any more.
                self.state.borrow_mut().give_back(&written);
                return Err(lost.into());
            }
            synced => synced.map_err(StoreError::Failed)?,
        }
        let root = Root {
            generation,
            log: self.state.borrow().log.id,
            start: frozen.start,
            position: frozen.position,
            counter: frozen.counter,
            lacking: 0,
            before: RootHolders::of(&self.state.borrow().root_holders),
            record_version: 0, // as it is written
            tree,
            map: written.map_pages[0],
        };
        let holders = root.write(&self.pages.device).await;
        written.root_holders = holders.map_err(StoreError::Failed)?;
        Ok((root, written))
    }

    async fn write_map(
        &self,
        frozen: &CheckpointInput,
        written: &mut CheckpointOutput,
        space: &PageSpace<'_>,
        generation: u64,
    ) -> StoreResult<()> {
        let map = map::encode(&frozen.kept_after(written, &self.state.borrow()));
        let (mut places, version) = (Vec::new(), version_of(self.pages.device.copies));
        for count in map::page_blocks(map.len(), version) {
            places.push(space.page(count).ok_or(StoreError::NoSpace)?);
        }
        let pages = map::pages(&map, &places, (self.pages.owner, version), generation);
        let device = &self.pages.device;
        let writes = pages
            .iter()
            .flat_map(|(raw, place)| place.runs().map(|run| device.write(run.start, raw.clone())));
        written.unsynced.extend(try_join_all(writes).await.map_err(StoreError::Failed)?);
        written.map_pages = pages.into_iter().map(|(_, place)| place).collect();
        Ok(())
    }
}

impl CheckpointInput {
    /// What the new root keeps. Not in it: the space map itself and the log, which a mount finds by
    /// following them.
    fn kept_after(&self, written: &CheckpointOutput, state: &StoreState) -> KeptBlocks {
        let layout = &state.space.layout;
        let mut kept = self.kept.clone();
        let with = |pages: &[PageRef], value| {
            let runs: Vec<Run> = pages.iter().flat_map(PageRef::runs).collect();
            runs.into_iter().filter(|run| layout.is_run(*run)).map(move |run| (run, value))
        };
        for (run, value) in with(&written.tree_pages, true).chain(with(&written.dropped, false)) {
            let group = layout.group_of(run.start);
            if let Some(bits) = kept.get_mut(&group) {
                let first = layout.blocks_of(group).start;
                let local = (run.start - first) as u32..(run.blocks().end - first) as u32;
                Rc::make_mut(bits).fill(local, value);
            }
        }
        kept
    }
}

impl StoreState {
    /// From now on changes go to a fresh overlay.
    fn freeze(&mut self) -> CheckpointInput {
        let first_blocks = self.checkpoint_blocks(0, 0) / limits::copies(self.space.layout.map());
        let overlay = Rc::new(std::mem::take(&mut self.active));
        self.frozen = Some(overlay.clone());
        self.frozen_position = Some(self.log.last);
        CheckpointInput {
            overlay,
            position: self.log.last,
            counter: self.counter,
            kept: self.space.kept(),
            start: self.log.start(),
            old: self.root,
            first_blocks,
        }
    }

    /// The root is durable: what only the old one needed is free.
    fn finish(&mut self, root: &Root, written: &CheckpointOutput) {
        self.frozen = None;
        self.frozen_position = None;
        self.note_changes();
        self.root = *root;
        self.root_holders.clone_from(&written.root_holders);
        let runs = written.tree_pages.iter().flat_map(PageRef::runs);
        runs.for_each(|run| self.space.set_kept(run, true));
        let old_map = std::mem::replace(&mut self.map_pages, written.map_pages.clone());
        written.dropped.iter().chain(&old_map).for_each(|page| self.free_page(page));
        for copies in self.log.trim(root.start.sequence) {
            copies.stripes().iter().for_each(|stripe| self.free_stripe(*stripe));
        }
        self.flush();
    }

    /// Pages that were written in vain are free again.
    fn give_back(&mut self, written: &CheckpointOutput) {
        for run in written.tree_pages.iter().chain(&written.map_pages).flat_map(PageRef::runs) {
            self.space.set_busy(run.blocks(), false);
        }
    }

    /// The checkpoint was not to be: its changes are changes like all others again.
    fn thaw(&mut self) {
        if let Some(frozen) = self.frozen.take() {
            let newer = std::mem::replace(&mut self.active, Rc::unwrap_or_clone(frozen));
            self.active.cover(newer);
        }
        self.note_changes();
        self.frozen_position = None;
        self.flush();
    }
}
