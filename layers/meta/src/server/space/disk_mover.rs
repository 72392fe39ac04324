//! Disks that come and go, as one node follows it: it takes over the groups that are born at it of
//! new disk sets, moves what it has on disks that are being drained to others, and evens out how
//! full the disks are.
//!
//! All of it goes on where it was after a crash: what is to move is told by the record of the
//! volume and the block maps, what was adopted by a key of the store.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use blockio::geometry::Near;
use blockio::volume_map::{PlacedSet, classes_of};
use blockio::{
    DiskName, DiskStage, VolumeMap, VolumeRecord, has_disk_behind, has_lost_disk, lost_disks,
};
use futures::FutureExt as _;
use futures::future::{LocalBoxFuture, ready};
use runtime::protocol::Undelivered;
use runtime::sync::KeyedLock;
use runtime::wire::{from_bytes, to_bytes};

use super::allocate::Allocator;
use super::content_mover::{ContentMover, MovePlan};
use super::groups::GroupExchange;
use crate::keys;
use crate::move_pace::MovePace;
use crate::protocol::{CheckLoss, DiskScrub, DiskShare, Error, GroupUrgency, NodeMoves, Run};
use crate::server::base::NodeBase;
use crate::server::record_log::decode;
use crate::store::{Batch, GroupLayout, MoveReason, StoreError};

/// Groups that one record takes over, at most.
const ADOPTED_PER_RECORD: usize = 1024;
/// The pause before what is left is looked for again.
const ROUND_PAUSE: Duration = Duration::from_millis(200);
/// The same after something could not be moved.
const TROUBLE_PAUSE: Duration = Duration::from_secs(2);
/// The same after that has happened again and again.
const TROUBLE_PAUSE_MAX: Duration = Duration::from_secs(16);
/// Rounds in which balance moves what it can. What is left then stays: pages, say.
const BALANCE_ROUNDS_MAX: u32 = 4;
/// A disk sheds what it has above the mean if that is more than this part of the mean.
const TOLERANCE: u64 = 100;
/// The number of no process: for blocks on chosen disks instead of in chosen caches.
const NO_PROCESS: u32 = u32::MAX;

/// How far the groups of sets that came later have been taken over: stored under
/// [`keys::adopted`].
type Adopted = (u64, u64);

/// Follows the record of the volume at one node.
pub(crate) struct DiskMover {
    base: Rc<NodeBase>,
    mover: Rc<ContentMover>,
    allocator: Rc<Allocator>,
    groups: Rc<GroupExchange>,
    pace: Arc<MovePace>,
    adopting: KeyedLock<()>,
    /// The version of the record that it follows.
    version: Cell<u64>,
    running: Cell<bool>,
    moved_blocks: Cell<u64>,
    trouble: Cell<Option<Error>>,
    /// For which record disks have been evened out.
    balanced: Cell<Option<u64>>,
    /// Of this version of the record it has looked at all pages, for those on one disk only.
    spread: Cell<Option<u64>>,
}

impl DiskMover {
    pub(super) fn new(
        base: &Rc<NodeBase>,
        mover: Rc<ContentMover>,
        (allocator, groups): (Rc<Allocator>, Rc<GroupExchange>),
        pace: Arc<MovePace>,
    ) -> Self {
        Self {
            base: base.clone(),
            mover,
            allocator,
            groups,
            pace,
            adopting: KeyedLock::default(),
            version: Cell::default(),
            running: Cell::default(),
            moved_blocks: Cell::default(),
            trouble: Cell::default(),
            balanced: Cell::default(),
            spread: Cell::default(),
        }
    }

    /// What the requests to the file layer slow down.
    pub(crate) fn pace(&self) -> Arc<MovePace> {
        self.pace.clone()
    }

    fn map(&self) -> VolumeMap {
        self.base.stripes.map()
    }

    /// Do all disks know what the record of the volume says?
    pub(crate) fn is_recorded(&self) -> bool {
        self.version.get() >= self.map().version()
    }

    /// Answers [`AdoptRecord`](crate::protocol::AdoptRecord).
    pub(crate) async fn adopt_record(self: &Rc<Self>, record: &[u8]) -> Result<(), Error> {
        let record: VolumeRecord = from_bytes(record).map_err(|_| Undelivered::ProtocolMismatch)?;
        self.map().advance(&record).map_err(|_| Undelivered::ProtocolMismatch)?;
        self.base.store.space().follow_map();
        self.adopt_groups(record.sets.len() as u64).await?;
        self.version.set(self.version.get().max(record.version));
        self.base.store.space().move_root();
        self.leave_disks_behind().await;
        self.start();
        Ok(())
    }

    /// Lets the log, and with it all that a mount reads first, go on where all of it is written.
    async fn leave_disks_behind(&self) {
        if has_disk_behind(&self.map())
            && let Err(error) = self.base.store.space().move_log(MoveReason::Drain).await
        {
            let node = self.base.node;
            tracing::warn!(node, %error, "the log stays on a disk whose host is away");
        }
    }

    /// Takes over the groups of all sets before number `end` that it has not taken over yet. Once:
    /// those that were given to others since are not its own any more.
    async fn adopt_groups(&self, end: u64) -> Result<(), Error> {
        let _alone = self.adopting.exclusive(()).await;
        let map = self.map();
        loop {
            let stored = self.base.store.get(&keys::adopted()).await?;
            let (set, done) = match stored {
                Some(value) => decode::<Adopted>(&value)?,
                None => (map.born_sets() as u64, 0),
            };
            if set >= end {
                return Ok(());
            }
            let born = GroupLayout::of(&map).born_of_set(self.base.node, set as usize);
            let left: Vec<u64> = born.skip(done as usize).take(ADOPTED_PER_RECORD).collect();
            let next: Adopted =
                if left.is_empty() { (set + 1, 0) } else { (set, done + left.len() as u64) };
            let make = || {
                let mut batch = Batch::new();
                // It brings more than it takes.
                batch.take_from_reserve();
                for &group in &left {
                    batch.take_group(group);
                }
                batch.put(keys::adopted(), to_bytes(&next));
                Ok((batch, ()))
            };
            let (position, ()) = self.base.records.record_within(make).await?;
            self.base.store.durable(position).await?;
        }
    }

    /// Answers [`GetMoves`](crate::protocol::GetMoves), with what others know.
    pub(crate) fn get_moves(
        &self,
        waiting_pieces: u64,
        (scrubs, scrubbed_bytes): (Vec<DiskScrub>, Option<u64>),
    ) -> NodeMoves {
        let space = self.base.store.space();
        let holders = space.root_holders();
        let mut on = space.blocks_on_disks();
        for disk in &holders {
            on.entry(*disk).or_default();
        }
        for lost in lost_disks(&self.map()) {
            // What is on fewer disks since it was lost is left to make, too.
            on.entry(lost).or_default().0 += self.copies_to_make();
        }
        let share = |(disk, (used_blocks, blocks)): (DiskName, (u64, u64))| DiskShare {
            disk_node: disk.disk_node,
            disk: disk.disk,
            used_blocks,
            blocks,
            has_roots: holders.contains(&disk),
            is_open: !space.is_closed(disk),
        };
        NodeMoves {
            version: self.version.get(),
            disks: on.into_iter().map(share).collect(),
            moved_blocks: self.moved_blocks.get(),
            balancing: self.is_balance_due(),
            trouble: self.trouble.get().map_or_else(String::new, |error| self.explain(error)),
            waiting_pieces,
            scrubs,
            scrubbed_bytes,
        }
    }

    /// Does it move something? Not if it cannot, for lack of space, say.
    pub(crate) fn is_moving(&self) -> bool {
        self.running.get() && self.trouble.get().is_none()
    }

    /// Answers [`CheckLoss`].
    pub(crate) async fn check_loss(&self, request: &CheckLoss) -> Result<bool, Error> {
        let disk = DiskName { disk_node: request.disk_node, disk: request.disk };
        let obstacle = self.base.store.space().check_loss(disk).await?;
        if let Some(why) = obstacle {
            let node = self.base.node;
            tracing::warn!(node, %disk, %why, "this node cannot do without a disk that has failed");
        }
        Ok(obstacle.is_none())
    }

    /// What keeps it from moving something, and what to do.
    fn explain(&self, error: Error) -> String {
        match (error, self.mover.unreadable()) {
            (Error::NoSpace {}, _) => {
                "no space for it on other disks: add a disk, remove files, or cancel the drain if it \
                 is one"
                    .to_owned()
            }
            (_, Some(ino)) => format!(
                "the data of file {ino} cannot be read: `mdfs check --files` names such files, \
                 which are to be restored or removed"
            ),
            (error, None) => error.to_string(),
        }
    }

    /// What of this node is on fewer disks since one was lost; it may be more as long as not all
    /// pages were looked at.
    fn copies_to_make(&self) -> u64 {
        let map = self.map();
        let unseen = has_lost_disk(&map) && self.spread.get() != Some(map.version());
        self.base.store.space().copies_to_make() + u64::from(unseen)
    }

    fn is_balance_due(&self) -> bool {
        let map = self.map();
        map.moves().balancing && self.balanced.get() != Some(map.version())
    }

    /// Is something of this node on disks that are being drained or lost, or may it still come
    /// there?
    fn is_drain_due(&self) -> bool {
        let map = self.map();
        let drains = |disk: &DiskName| map.state(*disk).is_left();
        let space = self.base.store.space();
        map.states().iter().any(|entry| drains(&entry.disk))
            && (!space.is_closed_as_told()
                || self.copies_to_make() > 0
                || space.root_holders().iter().any(drains)
                || space
                    .blocks_on_disks()
                    .iter()
                    .any(|(disk, (used, _))| *used > 0 && drains(disk)))
    }

    /// Begins to move, in the background, if there is something to move.
    pub(crate) fn start(self: &Rc<Self>) {
        let is_due = self.is_drain_due() || self.is_balance_due();
        if !is_due || self.running.replace(true) {
            return;
        }
        let me = self.clone();
        self.base.context.task(async move {
            let _mover = me.pace.begin_moves(me.base.context.now());
            let mut trouble_pause = TROUBLE_PAUSE;
            loop {
                let moved = me.run_round().await;
                me.trouble.set(moved.err());
                if let Err(error) = moved {
                    tracing::debug!(%error, "something could not be moved to another disk yet");
                }
                if !me.is_drain_due() && !me.is_balance_due() {
                    break;
                }
                if moved.is_ok() {
                    trouble_pause = TROUBLE_PAUSE;
                    me.base.context.sleep(ROUND_PAUSE).await;
                } else {
                    me.pause_in_trouble(trouble_pause).await;
                    trouble_pause = (2 * trouble_pause).min(TROUBLE_PAUSE_MAX);
                }
            }
            me.running.set(false);
        });
    }

    /// Waits for that long, or until the disks change.
    async fn pause_in_trouble(&self, pause: Duration) {
        let (version, end) = (self.map().version(), self.base.context.now() + pause);
        while self.map().version() == version && self.base.context.now() < end {
            self.base.context.sleep(TROUBLE_PAUSE).await;
        }
    }

    async fn run_round(&self) -> Result<(), Error> {
        if self.is_drain_due() {
            if !self.base.store.space().follow_map() {
                self.groups.refill(0, GroupUrgency::Needed {}).await?;
                self.base.store.space().follow_map();
            }
            let moved = self.move_off_disks().await;
            // Pages and the log need space, too, of which the disk had a part. On a full volume
            // they have what is kept back for them.
            let refilled = if self.base.store.space().is_short() {
                self.groups.refill(0, GroupUrgency::Needed {}).await
            } else {
                Ok(())
            };
            let version = self.map().version();
            self.base.store.space().move_pages(MoveReason::Drain).await?;
            self.spread.set(Some(version));
            moved.and(refilled)?;
        }
        if self.is_balance_due() && !self.is_drain_due() {
            self.balance().await?;
        }
        Ok(())
    }

    /// Moves content off disks that are being drained or lost.
    async fn move_off_disks(&self) -> Result<(), Error> {
        let map = self.map();
        if map.disks().len() < classes_of(&map).copies_max() as usize {
            // All has a copy on each disk that is there.
            return Err(Error::NoSpace {});
        }
        let (plan, before) = (DrainPlan::new(self), self.moved_blocks.get());
        self.mover.commit_files(&plan).await?;
        let moved = self.mover.move_files(&plan).await;
        plan.make_room().await;
        // While there is room for some of it, the rest is only late.
        let is_late = self.moved_blocks.get() > before;
        moved.and(plan.shortage.get().filter(|_| !is_late).map_or(Ok(()), Err))
    }

    /// Evens out what this node has on the disks in use.
    async fn balance(&self) -> Result<(), Error> {
        let version = self.map().version();
        for _ in 0..BALANCE_ROUNDS_MAX {
            let plan = BalancePlan::new(self);
            if plan.excess.borrow().is_empty() {
                break;
            }
            self.fetch_room(&plan).await;
            plan.show();
            let moved = self.mover.move_files(&plan).await;
            self.base.store.space().set_shedding(BTreeSet::new());
            moved?;
            // What was moved is free once that is durable.
            self.base.store.checkpoint().await?;
        }
        if self.map().version() == version {
            self.balanced.set(Some(version));
        }
        Ok(())
    }

    /// Gets groups of the disks that shall take more from other nodes: this one may have used all
    /// that it had of them.
    async fn fetch_room(&self, plan: &BalancePlan<'_>) {
        let (map, room) = (self.map(), plan.room.borrow().clone());
        let on = self.base.store.space().blocks_on_disks();
        let mut missing: BTreeMap<usize, u64> = BTreeMap::new();
        for (disk, wanted) in room {
            let (used, blocks) = on.get(&disk).copied().unwrap_or_default();
            let of_disk = |placed: &&PlacedSet| placed.set.members.position(disk).is_some();
            let set = map.sets().position(|placed| of_disk(&placed));
            if let Some(set) = set {
                *missing.entry(set).or_default() += wanted.saturating_sub(blocks - used);
            }
        }
        for (set, blocks) in missing {
            if blocks > 0
                && let Err(error) = self.groups.fetch_from_set(set as u32, blocks).await
            {
                tracing::debug!(%error, "no groups of emptier disks came");
            }
        }
    }

    /// Waits until `bytes` more may move.
    pub(super) async fn wait_for_pace(&self, bytes: u64) {
        self.pace.wait(&self.base.context, || self.map().moves().policy, bytes).await;
    }

    fn note_moved(&self, freed: &[Run]) {
        let blocks: u64 = freed.iter().map(|run| u64::from(run.count)).sum();
        self.moved_blocks.set(self.moved_blocks.get() + blocks);
    }
}

/// What is on disks that are being drained moves anywhere else.
struct DrainPlan<'a> {
    mover: &'a DiskMover,
    /// Blocks that were not to be had a moment ago.
    lacking: Cell<u32>,
    /// Why something stays.
    shortage: Cell<Option<Error>>,
    /// No node has space: that is asked once in a round.
    is_full: Cell<bool>,
}

impl<'a> DrainPlan<'a> {
    fn new(mover: &'a DiskMover) -> Self {
        Self {
            mover,
            lacking: Cell::default(),
            shortage: Cell::default(),
            is_full: Cell::default(),
        }
    }

    /// What was found, if anything. For the rest [`make_room`](Self::make_room) looks later, while
    /// no file is locked.
    fn taken(
        &self,
        blocks: u32,
        found: Result<Vec<Run>, StoreError>,
    ) -> Result<Option<Vec<Run>>, Error> {
        match found {
            Ok(taken) => Ok(Some(taken)),
            Err(shortage @ (StoreError::NoSpace | StoreError::Busy)) => {
                self.lacking.set(self.lacking.get().max(blocks));
                self.shortage.set(Some(shortage.into()));
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Looks for space that something had none of.
    async fn make_room(&self) {
        let lacking = self.lacking.take();
        if lacking > 0 && !self.is_full.get() {
            let made = self.mover.allocator.make_room(lacking).await;
            self.is_full.set(matches!(made, Err(Error::NoSpace {})));
            // What found none comes with the next round.
            self.shortage.set(made.err());
        }
    }
}

impl MovePlan for DrainPlan<'_> {
    fn is_moving(&self, block: u64) -> bool {
        self.mover.base.store.space().moves(block, MoveReason::Drain)
    }

    fn begin(&self, bytes: u64) -> LocalBoxFuture<'_, bool> {
        async move {
            self.mover.wait_for_pace(bytes).await;
            self.make_room().await;
            true
        }
        .boxed_local()
    }

    fn allocate(
        &self,
        blocks: u32,
        unit: u32,
    ) -> LocalBoxFuture<'_, Result<Option<Vec<Run>>, Error>> {
        let space = self.mover.base.store.space();
        let taken = self.taken(blocks, space.allocate_near(blocks, unit, Near::Anywhere {}));
        ready(taken).boxed_local()
    }

    fn allocate_beside(
        &self,
        copies: Vec<Vec<Run>>,
        unit: u32,
    ) -> LocalBoxFuture<'_, Result<Option<Vec<Run>>, Error>> {
        let blocks = copies.first().map_or(0, |runs| runs.iter().map(|run| run.count).sum());
        let found = self.mover.base.store.space().allocate_mirrors(&copies, (unit, 1), false);
        let taken = self.taken(blocks, found.map(|mut copies| copies.pop().unwrap_or_default()));
        ready(taken).boxed_local()
    }

    fn moved(&self, freed: &[Run]) {
        self.mover.note_moved(freed);
    }

    fn dissolves_wide_stripes(&self) -> bool {
        true
    }

    /// Not at once: room may only be late.
    fn dissolves_for_room(&self) -> bool {
        self.mover.trouble.get().is_some()
    }
}

/// What is on disks that are fuller than the mean moves to those that are emptier. If what each
/// node has is spread over the disks by their sizes, so is all.
struct BalancePlan<'a> {
    mover: &'a DiskMover,
    /// Blocks that each of the fuller disks sheds.
    excess: RefCell<BTreeMap<DiskName, u64>>,
    /// Blocks that each of the emptier disks takes.
    room: RefCell<BTreeMap<DiskName, u64>>,
}

impl<'a> BalancePlan<'a> {
    fn new(mover: &'a DiskMover) -> Self {
        let map = mover.map();
        let on = mover.base.store.space().blocks_on_disks();
        let mut online = map.disks();
        online.retain(|disk| map.state(*disk) == (DiskStage::Online {}));
        let used_on = |disk: &DiskName| on.get(disk).map_or(0, |(used, _)| *used);
        let used: u64 = online.iter().map(used_on).sum();
        let all: u64 = online.iter().map(|disk| map.stripes_on(*disk)).sum();
        let (mut excess, mut room) = (BTreeMap::new(), BTreeMap::new());
        for disk in online {
            let used_here = used_on(&disk);
            let share =
                u128::from(used) * u128::from(map.stripes_on(disk)) / u128::from(all.max(1));
            let share = share as u64;
            if used_here > share + share / TOLERANCE {
                excess.insert(disk, used_here - share);
            } else if used_here < share {
                room.insert(disk, share - used_here);
            }
        }
        Self { mover, excess: RefCell::new(excess), room: RefCell::new(room) }
    }

    /// Tells the store which disks shed something.
    fn show(&self) {
        let shedding = self.excess.borrow().keys().copied().collect();
        self.mover.base.store.space().set_shedding(shedding);
    }

    fn disk_of(&self, block: u64) -> DiskName {
        let map = self.mover.map();
        map.place(map.geometry().block(block).0).disk
    }

    /// Takes the blocks of `runs` off what is left for their disks; tells whether a disk has
    /// nothing left.
    fn count(&self, left: &RefCell<BTreeMap<DiskName, u64>>, runs: &[Run]) -> bool {
        let mut left = left.borrow_mut();
        let before = left.len();
        for run in runs {
            let disk = self.disk_of(run.start);
            if let Some(blocks) = left.get_mut(&disk) {
                *blocks = blocks.saturating_sub(run.count.into());
            }
        }
        left.retain(|_, blocks| *blocks > 0);
        left.len() < before
    }
}

impl MovePlan for BalancePlan<'_> {
    fn is_moving(&self, block: u64) -> bool {
        self.mover.base.store.space().moves(block, MoveReason::Balance)
    }

    fn begin(&self, bytes: u64) -> LocalBoxFuture<'_, bool> {
        async move {
            if self.excess.borrow().is_empty() || self.room.borrow().is_empty() {
                return false;
            }
            self.mover.wait_for_pace(bytes).await;
            true
        }
        .boxed_local()
    }

    fn allocate(
        &self,
        blocks: u32,
        unit: u32,
    ) -> LocalBoxFuture<'_, Result<Option<Vec<Run>>, Error>> {
        async move {
            let (space, map) = (self.mover.base.store.space(), self.mover.map());
            let has_room = |_, stripe| self.room.borrow().contains_key(&map.place(stripe).disk);
            let near = Near::On { process: NO_PROCESS, skip: 0 };
            // Where there is no room it stays.
            let taken = space.allocate_for(blocks, unit, near, &has_room);
            let Ok(taken) = taken else { return Ok(None) };
            let are_there =
                taken.iter().all(|run| self.room.borrow().contains_key(&self.disk_of(run.start)));
            if !are_there {
                space.release(&taken)?;
                return Ok(None);
            }
            self.count(&self.room, &taken);
            Ok(Some(taken))
        }
        .boxed_local()
    }

    /// Blocks with further copies stay.
    fn allocate_beside(
        &self,
        _: Vec<Vec<Run>>,
        _: u32,
    ) -> LocalBoxFuture<'_, Result<Option<Vec<Run>>, Error>> {
        ready(Ok(None)).boxed_local()
    }

    fn moved(&self, freed: &[Run]) {
        self.mover.note_moved(freed);
        if self.count(&self.excess, freed) {
            self.show();
        }
    }
}
