//! The space of a store: what is free, and who gets it.

use blockio::geometry::Near;

use super::Store;
use super::error::{StoreError, StoreResult};
use super::groups::Run;

/// The space of a node, in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceStatus {
    /// In its allocation groups.
    pub owned_blocks: u64,
    /// What [`StoreSpace::allocate`] could hand out now.
    pub free_blocks: u64,
    /// Free, but kept back for deletions, checkpoints and the log.
    pub reserved_blocks: u64,
    /// Freed, and free again soon.
    pub waiting_blocks: u64,
    /// Handed out, and not yet named by a batch.
    pub loaned_blocks: u64,
}

/// The allocation groups of one store, and the blocks in them.
#[derive(Debug)]
pub struct StoreSpace<'a>(pub(super) &'a Store);

impl StoreSpace<'_> {
    /// How much space there is.
    pub fn status(&self) -> SpaceStatus {
        let state = self.0.state.borrow();
        let free = state.space.free_blocks;
        let usable = state.space.available(state.data_floor());
        SpaceStatus {
            owned_blocks: state.space.owned_blocks,
            free_blocks: usable,
            reserved_blocks: free - usable,
            waiting_blocks: state.waiting_blocks,
            loaned_blocks: state.space.loaned_blocks,
        }
    }

    /// Hands out `blocks` blocks, all or none: whole stripes one after the other, so that they go
    /// round the disks, and the rest from a stripe that is partly used already. They are the
    /// caller's until a batch names them ([`Batch::allocated`](super::Batch::allocated)) or they
    /// are given back ([`release`](Self::release)); a crash gives them back.
    pub fn allocate(&self, blocks: u32) -> StoreResult<Vec<Run>> {
        self.allocate_near(blocks, Near::Anywhere {})
    }

    /// As [`allocate`](Self::allocate), at a preferred place, if it is free.
    pub fn allocate_near(&self, blocks: u32, near: Near) -> StoreResult<Vec<Run>> {
        self.allocate_for(blocks, near, &|_| false)
    }

    /// The same, where the process of [`Near::On`] caches those stripes for which `caches` is true.
    pub fn allocate_for(
        &self,
        blocks: u32,
        near: Near,
        caches: &dyn Fn(u64) -> bool,
    ) -> StoreResult<Vec<Run>> {
        let (floor, kept_back) = {
            let state = self.0.state.borrow();
            (state.data_floor(), state.reserve_blocks())
        };
        self.allocate_above(blocks, (near, caches), floor, kept_back)
    }

    /// As [`allocate`](Self::allocate), for a few blocks of a change that frees space (a cut inside
    /// of a block, a hole): on a full volume they come from the reserve, of which the batches of
    /// such changes ([`Batch::take_from_reserve`](super::Batch::take_from_reserve)) keep a part of
    /// their own.
    pub fn allocate_from_reserve(&self, blocks: u32) -> StoreResult<Vec<Run>> {
        let (floor, kept_back) = {
            let state = self.0.state.borrow();
            (state.deletion_floor(), state.deletion_reserve_blocks())
        };
        self.allocate_above(blocks, (Near::Anywhere {}, &|_| false), floor, kept_back)
    }

    /// Little is left above what data must leave: less than what
    /// [`spare_groups`](Self::spare_groups) leaves, so that nodes that look for more do not take it
    /// from each other in turn.
    pub fn is_short(&self) -> bool {
        let state = self.0.state.borrow();
        2 * state.space.whole_stripes < 3 * state.data_floor()
    }

    /// Leaves `floor` whole stripes; `kept_back` blocks once checkpoints have little to do.
    fn allocate_above(
        &self,
        blocks: u32,
        (near, caches): (Near, &dyn Fn(u64) -> bool),
        floor: u64,
        kept_back: u64,
    ) -> StoreResult<Vec<Run>> {
        let mut state = self.0.state.borrow_mut();
        if let Some(stopped) = state.stopped {
            return Err(stopped);
        }
        if let Some(runs) = state.space.allocate(blocks, floor, near, caches) {
            return Ok(runs);
        }
        let may_find = state.may_find(blocks, kept_back);
        drop(state);
        if !may_find {
            return Err(StoreError::NoSpace);
        }
        self.0.write_now();
        self.0.start_checkpoint();
        Err(StoreError::Busy)
    }

    /// Takes back blocks that were handed out and that no batch has named, whole runs or parts.
    ///
    /// No write to them may be in flight.
    pub fn release(&self, runs: &[Run]) -> StoreResult<()> {
        let mut state = self.0.state.borrow_mut();
        for &run in runs {
            if !state.space.is_loaned(run) {
                return Err(StoreError::BadBatch("the released blocks were not handed out"));
            }
            state.space.return_loan(run);
        }
        Ok(())
    }

    /// Up to `count` wholly free groups that this node could give away
    /// ([`Batch::give_group`](super::Batch::give_group)) and still have twice its reserve.
    pub fn spare_groups(&self, count: usize) -> Vec<u64> {
        let state = self.0.state.borrow();
        let layout = state.space.layout;
        let mut left = state.space.whole_stripes;
        let floor = 2 * state.data_floor();
        let spare = state.space.free_groups().take_while(|&group| {
            let stripes = layout.stripes_of(group);
            left = left.saturating_sub(stripes.end - stripes.start);
            left >= floor
        });
        spare.take(count).collect()
    }

    /// The groups that this node owns, in order.
    pub fn groups(&self) -> Vec<u64> {
        self.0.state.borrow().space.groups().collect()
    }
}
