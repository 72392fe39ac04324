//! Blocks for this node's files ([`Allocate`], [`Release`](crate::protocol::Release),
//! [`GetSpace`](crate::protocol::GetSpace)).

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use blockio::{FailureDomains, VolumeMap};
use runtime::protocol::Undelivered;

use super::emptying::GroupEmptier;
use super::groups::{
    BUSY_PAUSE, BUSY_TRIES_MAX, GroupExchange, RECLAIM_BLOCKS_MIN, RECLAIM_TRIES_MAX,
};
use super::reclaim::Reclaim;
use crate::protocol::{
    Allocate, AllocateMirrors, Error, GroupUrgency, MIRRORS_MAX, Near, NodeSpace, Run,
};
use crate::server::base::NodeBase;
use crate::store::{CopyWishes, StoreError, StripeKind};

/// The pause after a search ahead of time has found no space.
const AHEAD_PAUSE: Duration = Duration::from_secs(5);

/// Where something had best be, by the present map.
struct PlaceWish<'a> {
    allocator: &'a Allocator,
    near: Near,
    map: VolumeMap,
    domains: FailureDomains,
}

impl<'a> PlaceWish<'a> {
    fn new(allocator: &'a Allocator, near: Near) -> Self {
        let map = allocator.base.stripes.map();
        let domains = match near {
            Near::InDomain { .. } => FailureDomains::in_use(&map),
            _ => FailureDomains::default(),
        };
        Self { allocator, near, map, domains }
    }

    /// For copy `number`.
    fn near(&self, number: u32) -> Near {
        match self.near {
            Near::InDomain { domain, process, skip } => {
                let domain = domain.wrapping_add(number) % self.domains.count().max(1);
                Near::InDomain { domain, process, skip }
            }
            near => near,
        }
    }

    fn is_of(&self, kind: StripeKind, stripe: u64) -> bool {
        let base = &self.allocator.base;
        let node = || base.stripes.node_of(stripe);
        let process = || node().and_then(|node| base.context.process_of(node));
        let domain = || self.domains.number(self.map.place(stripe).disk);
        match kind {
            StripeKind::OfProcess(wanted) => process() == Some(wanted),
            StripeKind::InDomain(wanted) => domain() == Some(wanted),
            StripeKind::InDomainOf(wanted, by) => domain() == Some(wanted) && process() == Some(by),
        }
    }
}

/// Allocates the blocks of one node.
pub(crate) struct Allocator {
    base: Rc<NodeBase>,
    reclaim: Rc<Reclaim>,
    groups: Rc<GroupExchange>,
    emptier: Rc<GroupEmptier>,
    /// Space is being looked for before it is needed.
    looking_ahead: Cell<bool>,
}

impl Allocator {
    pub(crate) fn new(
        base: &Rc<NodeBase>,
        reclaim: Rc<Reclaim>,
        groups: Rc<GroupExchange>,
        emptier: Rc<GroupEmptier>,
    ) -> Self {
        let looking_ahead = Cell::default();
        Self { base: base.clone(), reclaim, groups, emptier, looking_ahead }
    }

    /// Answers [`Allocate`], if this node has the space at hand.
    pub(crate) fn try_allocate_now(self: &Rc<Self>, request: &Allocate) -> Option<Vec<Run>> {
        let &Allocate { blocks, unit, from_reserve, near } = request;
        if from_reserve || !self.is_whole(blocks, unit) {
            return None;
        }
        // Once for each chunk that is begun.
        let begins = matches!(near, Near::Apart { .. } | Near::On { .. } | Near::InDomain { .. });
        if begins && self.base.store.space().is_short() {
            self.look_ahead();
        }
        self.allocate_near(blocks, unit, near).ok()
    }

    /// Do `blocks` blocks make whole logical blocks of `unit` blocks?
    fn is_whole(&self, blocks: u32, unit: u32) -> bool {
        self.base.stripes.geometry().is_unit(unit) && blocks.is_multiple_of(unit)
    }

    fn allocate_near(&self, blocks: u32, unit: u32, near: Near) -> Result<Vec<Run>, StoreError> {
        let space = self.base.store.space();
        match near {
            Near::On { .. } | Near::InDomain { .. } => {
                let wish = PlaceWish::new(self, near);
                space.allocate_for(blocks, unit, wish.near(0), &|kind, at| wish.is_of(kind, at))
            }
            _ => space.allocate_near(blocks, unit, near),
        }
    }

    /// Looks for space in the background. An allocation that finds none waits for a checkpoint or
    /// for other nodes, and one shortly before gets fragments.
    fn look_ahead(self: &Rc<Self>) {
        if self.looking_ahead.replace(true) {
            return;
        }
        let me = self.clone();
        self.base.context.task(async move {
            if let Err(error) = me.find_space_ahead().await {
                tracing::debug!(%error, "no space was found ahead of time");
                me.base.context.sleep(AHEAD_PAUSE).await;
            }
            me.looking_ahead.set(false);
        });
    }

    /// What was freed here first, then what others can spare.
    async fn find_space_ahead(&self) -> Result<(), Error> {
        if self.base.store.space().status().waiting_blocks >= RECLAIM_BLOCKS_MIN {
            self.base.store.checkpoint().await?;
        }
        if !self.base.store.space().is_short() {
            return Ok(());
        }
        self.groups.refill(0, GroupUrgency::Ahead {}).await
    }

    /// Answers [`Allocate`]. `NoSpace` only if it is certain that there is none: space that is
    /// being freed, or that a node has which does not answer, is worth a retry.
    pub(crate) async fn allocate(&self, request: &Allocate) -> Result<Vec<Run>, Error> {
        let &Allocate { blocks, unit, from_reserve, near } = request;
        if !self.is_whole(blocks, unit) {
            return Err(Undelivered::ProtocolMismatch.into());
        }
        let allocate = || {
            if from_reserve {
                self.base.store.space().allocate_from_reserve(blocks, unit)
            } else {
                self.allocate_near(blocks, unit, near)
            }
        };
        self.find(blocks, allocate).await
    }

    /// Answers [`AllocateMirrors`], in the same way.
    pub(crate) async fn allocate_mirrors(
        &self,
        request: &AllocateMirrors,
    ) -> Result<Vec<Vec<Run>>, Error> {
        let &AllocateMirrors { ref copies, unit, mirrors, from_reserve, near } = request;
        let blocks = copies.first().map_or(0, |runs| runs.iter().map(|run| run.count).sum::<u32>());
        let blocks = blocks.saturating_mul(mirrors);
        let is_whole = |run: &Run| self.is_whole(run.count, unit);
        if !copies.iter().flatten().all(is_whole) || mirrors as usize > MIRRORS_MAX {
            return Err(Undelivered::ProtocolMismatch.into());
        }
        let (space, wish) = (self.base.store.space(), PlaceWish::new(self, near));
        // With fewer domains some of the wishes are where the chunks are.
        let has_domains = wish.domains.count() >= wish.map.redundancy().disks_needed();
        let count = if has_domains { mirrors } else { 0 };
        let wishes = CopyWishes {
            kinds: (0..count).map(|number| StripeKind::wished(wish.near(number))).collect(),
            is_of: &|kind, stripe| wish.is_of(kind, stripe),
        };
        let allocate =
            || space.allocate_mirrors_for(copies, (unit, mirrors), from_reserve, &wishes);
        match allocate() {
            Ok(found) => return Ok(found),
            // Other nodes have no other disks.
            Err(_) if !self.has_disks(copies.len() as u32 + mirrors) => {
                return Err(Error::NoSpace {});
            }
            Err(_) => {}
        }
        self.find(blocks, allocate).await
    }

    /// Are there disks for as many copies of a block?
    fn has_disks(&self, copies: u32) -> bool {
        self.base.stripes.map().stripes_in_copies(copies) > 0
    }

    /// Places for one more copy of blocks that have `copies`, on another disk.
    pub(super) async fn allocate_beside(
        &self,
        copies: Vec<Vec<Run>>,
        unit: u32,
    ) -> Result<Option<Vec<Run>>, Error> {
        let near = Near::Anywhere {};
        let request = AllocateMirrors { copies, unit, mirrors: 1, from_reserve: false, near };
        self.allocate_mirrors(&request).await.map(|mut taken| taken.pop())
    }

    /// Looks for space for `blocks` blocks: what is freed here, then what other nodes have.
    /// `NoSpace` only if it is certain that there is none.
    pub(super) async fn make_room(&self, blocks: u32) -> Result<(), Error> {
        for _ in 0..RECLAIM_TRIES_MAX {
            if !self.groups.reclaim_space().await? {
                break;
            }
        }
        self.groups.refill(blocks, GroupUrgency::Needed {}).await
    }

    /// Repeats `allocate`, which takes `blocks` blocks, until it has found them or there are none.
    async fn find<T>(
        &self,
        blocks: u32,
        allocate: impl Fn() -> Result<T, StoreError>,
    ) -> Result<T, Error> {
        for attempt in 0..BUSY_TRIES_MAX {
            match allocate() {
                Ok(found) => return Ok(found),
                // Space that was freed comes back with a checkpoint.
                Err(StoreError::Busy) => self.base.context.sleep(BUSY_PAUSE).await,
                Err(StoreError::NoSpace)
                    if attempt < RECLAIM_TRIES_MAX && self.groups.reclaim_space().await? => {}
                Err(StoreError::NoSpace) => {
                    self.groups.refill(blocks, GroupUrgency::Needed {}).await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(Undelivered::Busy.into())
    }

    pub(crate) async fn release(&self, runs: Vec<Run>) -> Result<(), Error> {
        self.reclaim.discard_and_release(runs).await
    }

    pub(crate) fn get_space(&self, unit: u32) -> Result<NodeSpace, Error> {
        if !self.base.stripes.geometry().is_unit(unit) {
            return Err(Undelivered::ProtocolMismatch.into());
        }
        let store = self.base.store.space();
        let space = store.status();
        Ok(NodeSpace {
            // What is kept back for deletions, or is on disks that are being drained, can never be
            // used by files.
            total_blocks: space.owned_blocks - space.reserved_blocks - space.withheld_blocks,
            free_blocks: store.free_blocks(unit),
            spare_blocks: store.spare_blocks(self.emptier.is_usable(), unit),
            inodes: self.base.inodes.count(),
        })
    }
}
