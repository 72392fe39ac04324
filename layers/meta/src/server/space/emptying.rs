//! Emptying of partly used allocation groups, so that a node without space can have them: their
//! blocks move to other groups of this node. Without that, free space that is strewn over the
//! groups of a node could be used by no other one: one file got 189 of 484 MiB on a volume of 1 GiB
//! from which every second file of 1 MiB had been removed.
//!
//! Nothing more is taken from the chosen groups, and `content_mover.rs` moves what is in them.
//!
//! What a volume calls available counts this: what all nodes would give, and the least that a node
//! has beyond that, is what any one file can have. Blocks of the groups of other nodes in a file
//! would make two nodes of each allocation.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{LocalBoxFuture, ready};

use super::content_mover::{ContentMover, MovePlan};
use crate::protocol::{Error, Near, Run};
use crate::server::base::NodeBase;
use crate::store::MoveReason;

/// Blocks that are moved for one request of another node, about: 16 MiB.
const MOVED_BLOCKS_MAX: u64 = 4096;
/// Rounds of moves until groups are empty. What is written while one runs, or waits for a commit,
/// moves in the next.
const ROUNDS_MAX: u32 = 8;
/// The pause before the next.
const ROUND_PAUSE: Duration = Duration::from_millis(100);
/// A group that is empty waits this long for the node that needs it.
const EMPTIED_STAY: Duration = Duration::from_secs(5);
/// After groups could not be emptied it is not tried again for this long.
const FAILURE_PAUSE: Duration = Duration::from_secs(10);

/// Empties groups of one node.
pub(crate) struct GroupEmptier {
    base: Rc<NodeBase>,
    mover: Rc<ContentMover>,
    running: Cell<bool>,
    failed_at: Cell<Option<Duration>>,
}

impl GroupEmptier {
    pub(super) fn new(base: &Rc<NodeBase>, mover: Rc<ContentMover>) -> Self {
        let (running, failed_at) = (Cell::default(), Cell::default());
        Self { base: base.clone(), mover, running, failed_at }
    }

    /// Has it not failed just now?
    pub(crate) fn is_usable(&self) -> bool {
        let now = self.base.context.now();
        self.failed_at.get().is_none_or(|failed_at| failed_at + FAILURE_PAUSE <= now)
    }

    /// Begins to empty up to `count` groups in the background; false if none can be emptied.
    pub(crate) fn start(self: &Rc<Self>, count: usize) -> bool {
        if self.running.get() {
            return true;
        }
        if !self.is_usable() || self.base.store.space().begin_emptying(count, MOVED_BLOCKS_MAX) == 0
        {
            return false;
        }
        self.running.set(true);
        let me = self.clone();
        self.base.context.task(async move {
            let emptied = me.run().await;
            let space = me.base.store.space();
            if emptied.is_err() || space.emptying() > 0 {
                tracing::debug!(?emptied, left = space.emptying(), "groups could not be emptied");
                me.failed_at.set(Some(me.base.context.now()));
            }
            space.end_emptying(false);
            me.running.set(false);
            me.base.context.sleep(EMPTIED_STAY).await;
            if !me.running.get() {
                me.base.store.space().end_emptying(true);
            }
        });
        true
    }

    async fn run(&self) -> Result<(), Error> {
        for round in 0..ROUNDS_MAX {
            if round > 0 {
                self.base.context.sleep(ROUND_PAUSE).await;
            }
            self.mover.commit_files(self).await?;
            self.mover.move_files(self).await?;
            self.base.store.space().move_pages(MoveReason::Group).await?;
            if self.base.store.space().emptying() == 0 {
                break;
            }
        }
        Ok(())
    }
}

impl MovePlan for GroupEmptier {
    fn is_moving(&self, block: u64) -> bool {
        self.base.store.space().moves(block, MoveReason::Group)
    }

    fn allocate(
        &self,
        blocks: u32,
        unit: u32,
    ) -> LocalBoxFuture<'_, Result<Option<Vec<Run>>, Error>> {
        let taken = self.base.store.space().allocate_near(blocks, unit, Near::Anywhere {});
        ready(taken.map(Some).map_err(Error::from)).boxed_local()
    }

    fn allocate_beside(
        &self,
        copies: Vec<Vec<Run>>,
        unit: u32,
    ) -> LocalBoxFuture<'_, Result<Option<Vec<Run>>, Error>> {
        let taken = self.base.store.space().allocate_mirrors(&copies, (unit, 1), false);
        ready(taken.map(|mut taken| taken.pop()).map_err(Error::from)).boxed_local()
    }

    fn moved(&self, _: &[Run]) {}
}
