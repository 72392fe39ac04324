//! Copies of data that a scrub found bad are made anew, elsewhere, of those that are good.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;

use super::allocate::Allocator;
use super::content_mover::{ContentMover, MovePlan};
use crate::protocol::{Error, Run};

/// Repairs the content of one node.
pub(crate) struct ContentRepairer {
    mover: Rc<ContentMover>,
    allocator: Rc<Allocator>,
}

impl ContentRepairer {
    pub(super) fn new(mover: Rc<ContentMover>, allocator: Rc<Allocator>) -> Self {
        Self { mover, allocator }
    }

    /// Replaces copies of a chunk, which begin at the blocks `bad`, durably. Returns which of them:
    /// what has no good copy stays.
    pub(crate) async fn repair(
        &self,
        (ino, index): (u64, u64),
        bad: BTreeSet<u64>,
    ) -> Result<BTreeSet<u64>, Error> {
        let plan = self.plan(bad);
        let moved = self.mover.move_chunks(&plan, (ino, vec![index])).await;
        plan.outcome(moved)
    }

    /// The same of the shards of a wide stripe, of which `first` is the first chunk.
    pub(crate) async fn repair_shards(
        &self,
        (ino, first): (u64, u64),
        bad: BTreeSet<u64>,
    ) -> Result<BTreeSet<u64>, Error> {
        let plan = self.plan(bad);
        let moved = self.mover.move_shards(&plan, (ino, first)).await;
        plan.outcome(moved)
    }

    fn plan(&self, bad: BTreeSet<u64>) -> RepairPlan<'_> {
        RepairPlan { bad, allocator: &self.allocator, repaired: RefCell::default() }
    }
}

/// What is bad moves away.
struct RepairPlan<'a> {
    /// Where the bad copies begin.
    bad: BTreeSet<u64>,
    allocator: &'a Allocator,
    /// Those that were replaced.
    repaired: RefCell<BTreeSet<u64>>,
}

impl RepairPlan<'_> {
    /// What was repaired; an error if that is nothing.
    fn outcome(&self, moved: Result<(), Error>) -> Result<BTreeSet<u64>, Error> {
        let repaired = self.repaired.take();
        match moved {
            Err(error) if repaired.is_empty() => Err(error),
            _ => Ok(repaired),
        }
    }
}

impl MovePlan for RepairPlan<'_> {
    fn is_moving(&self, block: u64) -> bool {
        self.bad.contains(&block)
    }

    fn allocate_beside(
        &self,
        copies: Vec<Vec<Run>>,
        unit: u32,
    ) -> LocalBoxFuture<'_, Result<Option<Vec<Run>>, Error>> {
        self.allocator.allocate_beside(copies, unit).boxed_local()
    }

    fn dissolves_wide_stripes(&self) -> bool {
        true
    }

    fn dissolves_for_room(&self) -> bool {
        true
    }

    fn moved(&self, freed: &[Run]) {
        self.repaired.borrow_mut().extend(freed.iter().map(|run| run.start));
    }
}
