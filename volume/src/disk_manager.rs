//! Disks that come and go, for a volume that is in use. One change at a time, at the node of the
//! root directory:
//!
//! 1. The disk nodes make new disks ready. They are not used yet.
//! 2. The record of the volume gets its next version, by compare-and-swap. From here on the change
//!    is decided: this node brings it about when it starts again, or with the next change.
//! 3. All disk nodes make the record durable in the superblocks of their disks, and serve new ones.
//! 4. All file-system nodes take over their groups of new sets, and move what has to move.

mod away;
mod failed;
mod list;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::time::Duration;

use blockio::disk_state::DRAINING_MAX;
use blockio::geometry::{BLOCK_SIZE, GeometryError, SETS_MAX, STATES_MAX};
use blockio::plan::{FreeDisk, Spread, check_added, plan_class, plan_sets};
use blockio::protocol::{BlockIo, Error as DiskNodeAnswer, FollowRecord, PrepareDisks};
use blockio::redundancy::CLASSES_MAX;
use blockio::volume_map::classes_of;
use blockio::{
    DiskName, DiskStage, MovePolicy, VolumeMap, VolumeRecord, has_lost_disk, lost_disks,
};
use cluster::coordination::{Coordination, CoordinationError, Expect, Record, WriteOutcome};
use fileio::disk_types::DiskAdministration;
use fileio::protocol::{AddedDisk, DiskChange, DiskList, DiskRefusal, Error};
use futures::FutureExt as _;
use futures::future::{Either, LocalBoxFuture, join_all, select};
use meta::protocol::{AdoptRecord, GetMoves, NodeMoves};
use runtime::ids::DISK_NODES_MAX;
use runtime::protocol::ErrorOf;
use runtime::protocol::Undelivered;
use runtime::sync::KeyedLock;
use runtime::wire::to_bytes;
use runtime::{Call, Context, NodeId};

pub use self::away::can_do_without;
use self::list::MoveMeter;
pub use crate::record::VOLUME_KEY;

/// Opens the coordination engine.
pub type OpenEngine = Box<dyn Fn() -> Result<Rc<dyn Coordination>, CoordinationError>>;

/// Tries of a request to a node that is away, or busy.
const TRIES_MAX: u32 = 50;
/// The pause before the next.
const TRY_PAUSE: Duration = Duration::from_millis(200);
/// Who asks for the disks gets what nodes have answered within this time.
const LIST_WAIT: Duration = Duration::from_secs(2);
/// How often it is looked whether disks are even, and something is left on a lost one.
const WATCH_PAUSE: Duration = Duration::from_secs(1);
/// The pause before a change that could not be brought about is tried again.
const AGAIN_PAUSE: Duration = Duration::from_secs(2);

/// Changes the disks of a volume.
pub struct DiskManager {
    me: Weak<Self>,
    context: Context,
    map: VolumeMap,
    engine: OpenEngine,
    /// One change at a time.
    changing: KeyedLock<()>,
    /// It is looked at whether disks are even, and something is left on a lost one.
    watching: Cell<bool>,
    /// What is decided is being brought about in the background.
    resuming: Cell<bool>,
    /// Disks whose host is back are being brought up to date.
    taking_back: Cell<bool>,
    /// The version of the record that was brought about last.
    brought_about: Cell<u64>,
    /// Since when hosts are away: of their disk nodes.
    away_since: RefCell<BTreeMap<u32, Duration>>,
    /// How fast data moves.
    meter: MoveMeter,
}

impl DiskManager {
    /// At the node of the root directory. What was begun before goes on.
    pub fn start(context: Context, map: VolumeMap, engine: OpenEngine) -> Rc<Self> {
        let manager = Self::new(context, map, engine);
        if manager.map.version() > 0 {
            manager.resume_later();
        }
        manager.watch_disks();
        manager
    }

    /// For a volume that is only read: lists its disks, and brings nothing about.
    pub(crate) fn to_list(context: Context, map: VolumeMap) -> Rc<Self> {
        let refused = || Err(CoordinationError::Refused("the volume is only read".to_owned()));
        Self::new(context, map, Box::new(refused))
    }

    fn new(context: Context, map: VolumeMap, engine: OpenEngine) -> Rc<Self> {
        Rc::new_cyclic(|me| Self {
            me: me.clone(),
            context,
            map,
            engine,
            changing: KeyedLock::default(),
            watching: Cell::new(false),
            resuming: Cell::new(false),
            taking_back: Cell::new(false),
            brought_about: Cell::new(0),
            away_since: RefCell::default(),
            meter: MoveMeter::default(),
        })
    }

    /// Brings about what is decided, in the background.
    fn resume_later(&self) {
        let Some(me) = self.me.upgrade() else { return };
        if !self.resuming.replace(true) {
            self.context.task(async move {
                me.resume().await;
                me.resuming.set(false);
            });
        }
    }

    async fn resume(&self) {
        loop {
            let alone = self.changing.exclusive(()).await;
            let resumed = match self.read().await {
                Ok((record, _)) => self.bring_about_unless_failed(&record, &record).await,
                Err(error) => Err(error),
            };
            match resumed {
                Ok(()) => break,
                Err(error) => tracing::warn!(%error, "a change of the disks is not complete yet"),
            }
            drop(alone);
            self.context.sleep(AGAIN_PAUSE).await;
        }
        self.watch_moves();
    }

    /// The record of the volume.
    async fn read(&self) -> Result<(VolumeRecord, Option<Record>), Error> {
        let engine = (self.engine)().map_err(|error| no_record(&error))?;
        let stored = engine.get(VOLUME_KEY).await.map_err(|error| no_record(&error))?;
        let map = stored.as_ref().and_then(|stored| VolumeRecord::decode(&stored.value));
        let map = map.ok_or(DiskRefusal::NoRecord {})?;
        Ok((VolumeRecord::of(&map), stored))
    }

    /// Replaces the record, if it is still as it was read.
    async fn write(&self, next: &VolumeRecord, read: Option<&Record>) -> Result<(), Error> {
        let engine = (self.engine)().map_err(|error| no_record(&error))?;
        let written = engine.write(VOLUME_KEY, &next.to_stored(), Expect::still(read), None).await;
        match written.map_err(|error| no_record(&error))? {
            WriteOutcome::Done { .. } => Ok(()),
            WriteOutcome::Differs { .. } => Err(Undelivered::Busy.into()),
        }
    }

    async fn change_once(&self, change: DiskChange) -> Result<(), Error> {
        let _alone = self.changing.exclusive(()).await;
        let (record, stored) = self.read().await?;
        // What is asked of the nodes waits for a disk that has failed.
        let is_loss = matches!(change, DiskChange::DeclareLost { .. });
        if record.version > 0 && !is_loss {
            self.bring_about_unless_failed(&record, &record).await?;
        }
        let Some(next) = self.next(&record, change).await? else { return Ok(()) };
        let prepare = PrepareDisks { record: to_bytes(&next) };
        let asked = if is_loss { BTreeSet::new() } else { nodes_of(&next)? };
        self.disk_nodes(asked, &prepare).await?;
        self.write(&next, stored.as_ref()).await?;
        tracing::info!(version = next.version, "the disks of the volume change");
        if let Err(error) = self.bring_about_unless_failed(&record, &next).await {
            self.resume_later();
            return Err(error);
        }
        self.watch_moves();
        Ok(())
    }

    /// Brings about what the record says, at all nodes. Disk nodes whose last disk is retired by
    /// it, which `before` names, are told now or never: they are not needed any more.
    async fn bring_about(&self, before: &VolumeRecord, record: &VolumeRecord) -> Result<(), Error> {
        let nodes = &nodes_of(before)? | &nodes_of(record)?;
        let version = record.version;
        let record = to_bytes(record);
        self.disk_nodes(nodes, &FollowRecord { record: record.clone() }).await?;
        let adopt = AdoptRecord { record };
        let nodes = (0..self.context.fs_nodes()).map(NodeId::fs);
        let asked = nodes.map(|node| self.ask(node, adopt.clone(), is_away));
        for adopted in join_all(asked).await {
            adopted.map_err(|error| refused(&error))?;
        }
        self.brought_about.set(version);
        Ok(())
    }

    async fn disk_nodes<C>(&self, nodes: BTreeSet<u32>, call: &C) -> Result<(), Error>
    where
        C: Call<Protocol = BlockIo, Reply = ()> + Clone,
    {
        let nodes = nodes.into_iter().map(NodeId::disk);
        let asked = nodes.map(|node| self.ask(node, call.clone(), DiskNodeAnswer::is_transient));
        for done in join_all(asked).await {
            done.map_err(|error| refused(&error))?;
        }
        Ok(())
    }

    /// Asks until the node answers.
    async fn ask<C: Call + Clone>(
        &self,
        node: NodeId,
        call: C,
        is_transient: fn(&ErrorOf<C>) -> bool,
    ) -> Result<C::Reply, ErrorOf<C>> {
        for _ in 1..TRIES_MAX {
            match self.context.spawn(node, call.clone()).await {
                Err(error) if is_transient(&error) => self.context.sleep(TRY_PAUSE).await,
                answer => return answer,
            }
        }
        self.context.spawn(node, call).await
    }

    /// The record after a change; `None` if there is nothing to change.
    async fn next(
        &self,
        record: &VolumeRecord,
        change: DiskChange,
    ) -> Result<Option<VolumeRecord>, Error> {
        let (online, draining) = (DiskStage::Online {}, DiskStage::Draining {});
        let state_of = |disk| {
            let is_in_use = self.map.disks().contains(&disk);
            if is_in_use { Ok(record.state(disk)) } else { Err(DiskRefusal::NoSuchDisk {}) }
        };
        let is_complete = !record.states.iter().any(|entry| entry.state.is_behind());
        let next = match change {
            // Once no host is away any more.
            DiskChange::Add { .. } if !is_complete => return Err(Undelivered::Busy.into()),
            DiskChange::Drain { .. } if !is_complete => return Err(DiskRefusal::NotReady {}.into()),
            DiskChange::Add { disks } => {
                let known = self.map.disks();
                let is_known = |added: &AddedDisk| {
                    known.contains(&DiskName { disk_node: added.disk_node, disk: added.disk })
                };
                if disks.iter().all(is_known) {
                    return Ok(None);
                }
                let next = record.with_sets(self.new_sets(&disks)?);
                check_added(&self.map, &next).map_err(refused_map)?;
                next
            }
            DiskChange::Keep { disk_node, disk } | DiskChange::Retire { disk_node, disk }
                if record.state(DiskName { disk_node, disk }).is_behind() =>
            {
                return Err(DiskRefusal::NotReady {}.into());
            }
            DiskChange::Drain { disk_node, disk } => {
                let disk = DiskName { disk_node, disk };
                // What is on a lost one moves already.
                if record.state(disk) == (DiskStage::Lost {}) || state_of(disk)? == draining {
                    return Ok(None);
                }
                self.check_drain(record, disk).await?;
                record.with_state(disk, draining)
            }
            DiskChange::Keep { disk_node, disk } => {
                let disk = DiskName { disk_node, disk };
                if state_of(disk)? == online {
                    return Ok(None);
                }
                record.with_state(disk, online)
            }
            DiskChange::Retire { disk_node, disk } => {
                let disk = DiskName { disk_node, disk };
                if record.state(disk) == (DiskStage::Retired {}) {
                    return Ok(None);
                }
                if !record.state(disk).is_left() {
                    state_of(disk)?;
                    return Err(DiskRefusal::NotDraining {}.into());
                }
                self.check_drained(record, disk).await?;
                record.with_state(disk, DiskStage::Retired {})
            }
            DiskChange::Balance {} => record.with_balancing(true),
            DiskChange::StopBalance {} if !record.balancing => return Ok(None),
            DiskChange::StopBalance {} => record.with_balancing(false),
            DiskChange::SetPace { pace } => {
                let policy = MovePolicy::ALL.into_iter().find(|policy| policy.name() == pace);
                let policy = policy.ok_or(DiskRefusal::NoPace {})?;
                VolumeRecord { version: record.version + 1, policy, ..record.clone() }
            }
            DiskChange::SetLossDelay { seconds } => {
                let version = record.version + 1;
                VolumeRecord { version, loss_delay_seconds: seconds, ..record.clone() }
            }
            DiskChange::AllowClass { class } => {
                let class = class.parse().map_err(|_| DiskRefusal::NoClass {})?;
                return Ok(plan_class(&self.map, class).map_err(refused_map)?);
            }
            DiskChange::DeclareLost { disk_node, disk } => {
                let disk = DiskName { disk_node, disk };
                if record.state(disk) == (DiskStage::Lost {}) {
                    return Ok(None);
                }
                state_of(disk)?;
                self.check_loss(record, disk).await?;
                record.with_state(disk, DiskStage::Lost {})
            }
        };
        Ok(Some(next))
    }

    /// The sets that new disks make.
    fn new_sets(&self, disks: &[AddedDisk]) -> Result<Vec<blockio::DiskSet>, Error> {
        let geometry = self.map.geometry();
        let mut next: BTreeMap<u32, u32> = BTreeMap::new();
        let mut disks = disks.to_vec();
        disks.sort_unstable_by_key(|added| (added.disk_node, added.disk));
        let mut free = Vec::new();
        for AddedDisk { disk_node, disk, bytes } in disks {
            // One that has none yet has joined just now: it has to make them ready.
            if disk_node >= DISK_NODES_MAX {
                return Err(DiskRefusal::NoSuchDisk {}.into());
            }
            let number = next.entry(disk_node).or_insert_with(|| self.map.next_disk(disk_node));
            if *number != disk {
                return Err(DiskRefusal::OtherNumber { disk_node, disk: *number }.into());
            }
            *number += 1;
            let disk = DiskName { disk_node, disk };
            free.push(FreeDisk { disk, base: 0, stripes: geometry.stripes_on_disk(bytes) });
        }
        let has_units = self.map.set_of(0).set.lanes > 0;
        let spread = if has_units { Spread::Units } else { Spread::Modulo };
        let sets = plan_sets(&geometry, self.map.stripes(), &free, spread);
        Ok(sets.map_err(refused_map)?)
    }

    async fn moves(&self) -> Result<Vec<NodeMoves>, Error> {
        let nodes = (0..self.context.fs_nodes()).map(NodeId::fs);
        let asked = nodes.map(|node| self.ask(node, GetMoves {}, is_away));
        let answers = join_all(asked).await.into_iter();
        answers.map(|answer| answer.map_err(|error| refused(&error))).collect()
    }

    /// What nodes say that answer soon, and how many do not.
    async fn moves_now(&self) -> (Vec<NodeMoves>, u32) {
        let nodes = (0..self.context.fs_nodes()).map(NodeId::fs);
        let asked = nodes.map(|node| self.ask_within(LIST_WAIT, node, GetMoves {}, is_away));
        let answers = join_all(asked).await;
        let silent = answers.iter().filter(|answer| answer.is_none()).count();
        (answers.into_iter().flatten().collect(), silent as u32)
    }

    /// Asks until the node answers, for this long.
    async fn ask_within<C: Call + Clone>(
        &self,
        wait: Duration,
        node: NodeId,
        call: C,
        is_transient: fn(&ErrorOf<C>) -> bool,
    ) -> Option<C::Reply> {
        let limit = self.context.sleep(wait);
        match select(pin!(self.ask(node, call, is_transient)), limit).await {
            Either::Left((answer, _)) => answer.ok(),
            Either::Right(_) => None,
        }
    }

    /// Can all that is on `disk` move to others?
    async fn check_drain(&self, record: &VolumeRecord, disk: DiskName) -> Result<(), Error> {
        let draining = record.states.iter().filter(|entry| entry.state == DiskStage::Draining {});
        if draining.count() >= DRAINING_MAX {
            return Err(DiskRefusal::TooMany { max: DRAINING_MAX as u32 }.into());
        }
        self.check_room(record, disk).await
    }

    /// Have the other disks room for all that is on `disk`?
    async fn check_room(&self, record: &VolumeRecord, disk: DiskName) -> Result<(), Error> {
        let (mut needed, mut free, mut used) = (0, 0, 0);
        for share in self.moves().await?.iter().flat_map(|moves| &moves.disks) {
            let name = DiskName { disk_node: share.disk_node, disk: share.disk };
            used += share.used_blocks;
            if name == disk || record.state(name) == (DiskStage::Draining {}) {
                needed += share.used_blocks;
            } else if record.state(name) == (DiskStage::Online {}) {
                free += share.blocks - share.used_blocks;
            }
        }
        // What nodes keep back for their logs and checkpoints stays with them.
        let next = VolumeMap::of_record(&record.with_state(disk, DiskStage::Draining {}));
        let next = next.map_err(refused_map)?;
        let copies = classes_of(&next).copies_max();
        let stay =
            next.disks().into_iter().filter(|disk| next.state(*disk) == DiskStage::Online {});
        if (stay.count() as u32) < copies {
            return Err(DiskRefusal::TooFewDisks { needed: copies }.into());
        }
        let kept = meta::store::kept_blocks(&next) * u64::from(self.context.fs_nodes());
        // Nor is all that is free on one large disk, where each block has copies on others.
        let stripe_blocks = u64::from(next.geometry().stripe_size) / BLOCK;
        let room = next.stripes_in_copies(copies) * stripe_blocks * u64::from(copies);
        let left = if copies > 1 { (room + needed).saturating_sub(used) } else { free };
        let free = free.min(left).saturating_sub(kept);
        if needed + needed / 50 > free {
            let (needed_bytes, free_bytes) = (needed * BLOCK, free * BLOCK);
            return Err(DiskRefusal::NoRoom { needed_bytes, free_bytes }.into());
        }
        Ok(())
    }

    /// Is nothing on `disk` any more?
    async fn check_drained(&self, record: &VolumeRecord, disk: DiskName) -> Result<(), Error> {
        let moves = self.moves().await?;
        if moves.iter().any(|moves| moves.version < record.version) {
            return Err(Undelivered::Busy.into());
        }
        Ok(check_left(&moves, disk)?)
    }

    /// Waits, in the background, until disks are even, and lost ones can be retired.
    fn watch_moves(&self) {
        let Some(me) = self.me.upgrade() else { return };
        let is_watched = |map: &VolumeMap| map.moves().balancing || has_lost_disk(map);
        if !is_watched(&self.map) || self.watching.replace(true) {
            return;
        }
        self.context.task(async move {
            while is_watched(&me.map) {
                me.context.sleep(WATCH_PAUSE).await;
                let version = me.map.version();
                let Ok(moves) = me.moves().await else { continue };
                me.meter.note(me.context.now(), &moves);
                if moves.iter().any(|moves| moves.version < version) {
                    // A node has started since.
                    me.resume_later();
                } else {
                    me.end_moves(&moves).await;
                }
            }
            me.watching.set(false);
        });
    }

    /// Decides what has come about. What fails is tried again.
    async fn end_moves(&self, moves: &[NodeMoves]) {
        if self.map.moves().balancing && !moves.iter().any(|moves| moves.balancing) {
            let _ = self.change_once(DiskChange::StopBalance {}).await;
        }
        let lost = lost_disks(&self.map).into_iter();
        for disk in lost.filter(|disk| check_left(moves, *disk).is_ok()) {
            let DiskName { disk_node, disk } = disk;
            if self.change_once(DiskChange::Retire { disk_node, disk }).await.is_ok() {
                tracing::info!(disk_node, disk, "all that was on a lost disk is on others");
            }
        }
    }
}

impl DiskAdministration for DiskManager {
    fn list(&self) -> LocalBoxFuture<'_, Result<DiskList, Error>> {
        self.list_all().map(Ok).boxed_local()
    }

    fn change(&self, change: DiskChange) -> LocalBoxFuture<'_, Result<(), Error>> {
        self.change_once(change).boxed_local()
    }
}

impl std::fmt::Debug for DiskManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DiskManager").finish_non_exhaustive()
    }
}

const BLOCK: u64 = BLOCK_SIZE as u64;

/// Refused if something is left on `disk`.
fn check_left(moves: &[NodeMoves], disk: DiskName) -> Result<(), DiskRefusal> {
    let is_it = |share: &&meta::protocol::DiskShare| {
        (share.disk_node, share.disk) == (disk.disk_node, disk.disk)
    };
    let shares: Vec<_> = moves.iter().flat_map(|moves| &moves.disks).filter(is_it).collect();
    let left: u64 = shares.iter().map(|share| share.used_blocks).sum();
    if left > 0 || shares.iter().any(|share| share.has_roots || share.is_open) {
        return Err(DiskRefusal::NotDrained { left_bytes: left * BLOCK });
    }
    Ok(())
}

/// The disk nodes that have disks in use by a record, and whose host is not away.
fn nodes_of(record: &VolumeRecord) -> Result<BTreeSet<u32>, Error> {
    let map = VolumeMap::of_record(record).map_err(refused_map)?;
    let there = map.disks().into_iter().filter(|disk| !map.state(*disk).is_absent());
    Ok(there.map(|disk| disk.disk_node).collect())
}

/// Why disks as they would be are not possible.
fn refused_map(error: GeometryError) -> DiskRefusal {
    match error {
        GeometryError::TooManySets => DiskRefusal::TooManySets { max: SETS_MAX as u32 },
        GeometryError::TooManyStates => DiskRefusal::TooManyStates { max: STATES_MAX as u32 },
        GeometryError::TooFewDisks { needed, .. } => DiskRefusal::TooFewDisks { needed },
        GeometryError::TooFewDiskNodes { needed, .. } => DiskRefusal::TooFewDiskNodes { needed },
        GeometryError::MetadataCopies { found, .. } => {
            DiskRefusal::FewerMetadataCopies { copies: found }
        }
        GeometryError::WeakerClass { .. } => DiskRefusal::Weaker {},
        GeometryError::TooManyClasses => DiskRefusal::TooManyClasses { max: CLASSES_MAX as u32 },
        GeometryError::WideStripe { largest_bytes, .. } => {
            DiskRefusal::LongStripes { largest_bytes }
        }
        _ => DiskRefusal::BadSize {},
    }
}

fn is_away(error: &meta::protocol::Error) -> bool {
    matches!(error, meta::protocol::Error::Undelivered { why } if why.is_transient())
        || error.is_unwritable()
}

fn no_record(error: &CoordinationError) -> Error {
    tracing::error!(%error, "the record of the volume cannot be used");
    DiskRefusal::NoRecord {}.into()
}

fn refused(error: &dyn std::fmt::Display) -> Error {
    tracing::error!(%error, "a node did not do its part in a change of the disks");
    DiskRefusal::NotReady {}.into()
}
