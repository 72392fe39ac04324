//! Each node reads all that it has on the disks again and again, in the background, and makes anew
//! what does not match its checksums (ADR 100).
//!
//! A pass begins an interval after the one before began. It is as fast as a gentle move of data
//! ([`MovePace`]), and waits while disks are emptied or rebuilt. How far it is, and what was
//! repaired on which disk, is durable: it goes on after a restart.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use blockio::{DiskName, MovePolicy};
use runtime::wire::to_bytes;

use super::base::NodeBase;
use super::record_log::decode;
use super::scrub::{ScrubFindings, Scrubber};
use super::space::disk_mover::DiskMover;
use crate::keys;
use crate::move_pace::MovePace;
use crate::protocol::{DiskScrub, Error, Scrub, ScrubPart};
use crate::scrub_progress::ScrubProgress;
use crate::store::Batch;

/// The time between the beginnings of two passes, unless the operator says otherwise.
pub const SCRUB_INTERVAL: Duration = Duration::from_hours(7 * 24);
/// Progress is written this often: what is younger is done again after a crash.
const SAVE_PAUSE: Duration = Duration::from_mins(1);
/// The pause before it is looked again whether disks are still emptied or rebuilt.
const MOVES_PAUSE: Duration = Duration::from_secs(5);

/// Chunks that wait to be healed, at most: the next pass finds others.
const HEALS_MAX: usize = 1024;

/// The repeated scrub of one node.
pub(super) struct PeriodicScrub {
    base: Rc<NodeBase>,
    scrubber: Scrubber,
    disks: Rc<DiskMover>,
    pace: Arc<MovePace>,
    /// Zero: never.
    interval: Cell<Duration>,
    /// `None` until it was read.
    progress: RefCell<Option<ScrubProgress>>,
    /// Since when there is something to write.
    unsaved_since: Cell<Option<Duration>>,
    running: Cell<bool>,
    /// What the pass under way has read, since the node started.
    read_bytes: Cell<u64>,
    /// Chunks in which a read has met bad blocks.
    heals: RefCell<BTreeSet<(u64, u64)>>,
    is_healing: Cell<bool>,
}

impl PeriodicScrub {
    pub(super) fn new(base: &Rc<NodeBase>, scrubber: Scrubber, disks: Rc<DiskMover>) -> Rc<Self> {
        Rc::new(Self {
            base: base.clone(),
            scrubber,
            pace: disks.pace(),
            disks,
            interval: Cell::new(SCRUB_INTERVAL),
            progress: RefCell::default(),
            unsaved_since: Cell::default(),
            running: Cell::default(),
            read_bytes: Cell::default(),
            heals: RefCell::default(),
            is_healing: Cell::default(),
        })
    }

    /// Sets the time between the beginnings of two passes; zero for never.
    pub(super) fn set_interval(&self, interval: Duration) {
        self.interval.set(interval);
    }

    /// Answers [`Scrub`].
    pub(super) async fn scrub(&self, request: Scrub) -> Result<ScrubPart, Error> {
        self.load().await?;
        let ScrubFindings { part, bad } = self.scrubber.scrub(request).await?;
        self.note(bad.into_iter().filter(|(_, is_mended)| *is_mended));
        Ok(part)
    }

    /// Answers [`HealChunk`](crate::protocol::HealChunk).
    pub(super) fn heal(self: &Rc<Self>, chunk: (u64, u64)) {
        if self.heals.borrow().len() < HEALS_MAX {
            self.heals.borrow_mut().insert(chunk);
        }
        if self.is_healing.replace(true) {
            return;
        }
        let me = self.clone();
        self.base.context.task(async move {
            loop {
                let next = me.heals.borrow_mut().pop_first();
                let Some((ino, index)) = next else { break };
                match me.heal_one((ino, index)).await {
                    Ok(read_bytes) => me.wait_for_pace(read_bytes).await,
                    Err(error) => tracing::debug!(%error, ino, index, "a chunk is not healed yet"),
                }
            }
            me.is_healing.set(false);
        });
    }

    /// Returns how much was read.
    async fn heal_one(&self, chunk: (u64, u64)) -> Result<u64, Error> {
        self.load().await?;
        let ScrubFindings { part, bad } = self.scrubber.scrub_one(chunk).await?;
        self.note(bad.into_iter());
        Ok(part.read_bytes)
    }

    /// What is known of the disks, and how much the pass under way has read; `None` if there is
    /// none.
    pub(super) fn report(&self) -> (Vec<DiskScrub>, Option<u64>) {
        let progress = self.progress.borrow();
        let Some(progress) = &*progress else { return (Vec::new(), None) };
        let read_bytes = progress.after.is_some().then(|| self.read_bytes.get());
        (progress.report(self.unix_seconds()), read_bytes)
    }

    /// Called regularly while all nodes are there: begins a pass, or goes on with it, if it is
    /// time.
    pub(super) fn tick(self: &Rc<Self>) {
        if !self.is_due() || self.running.replace(true) {
            return;
        }
        let me = self.clone();
        self.base.context.task(async move {
            if let Err(error) = me.run().await {
                tracing::debug!(%error, "the scrub is tried again");
            }
            me.running.set(false);
        });
    }

    fn is_due(&self) -> bool {
        self.progress.borrow().is_none() || self.is_pass_due() || self.is_save_due()
    }

    fn is_pass_due(&self) -> bool {
        let (interval, now) = (self.interval.get(), self.base.context.unix_time());
        let is_due = |progress: &ScrubProgress| {
            progress.after.is_some() || now >= Duration::from_secs(progress.began) + interval
        };
        !interval.is_zero() && self.progress.borrow().as_ref().is_some_and(is_due)
    }

    fn is_save_due(&self) -> bool {
        let now = self.base.context.now();
        self.unsaved_since.get().is_some_and(|since| now >= since + SAVE_PAUSE)
    }

    async fn run(&self) -> Result<(), Error> {
        self.load().await?;
        if self.is_pass_due() {
            let _mover = self.pace.begin_moves(self.base.context.now());
            self.run_pass().await?;
        } else if self.is_save_due() {
            self.save().await?;
        }
        Ok(())
    }

    /// Reads what is known, unless that was done. A new node writes nothing while it starts.
    async fn load(&self) -> Result<(), Error> {
        if self.progress.borrow().is_some() {
            return Ok(());
        }
        let stored = self.base.store.get(&keys::scrub_progress()).await?;
        let known = stored.as_ref().map(|stored| decode(stored)).transpose()?;
        let mut progress = self.progress.borrow_mut();
        // Unless another has read it meanwhile, and noted more.
        if progress.is_none() {
            if known.is_none() {
                self.unsaved_since.set(Some(self.base.context.now()));
            }
            *progress = Some(known.unwrap_or_else(|| ScrubProgress::starting(self.unix_seconds())));
        }
        Ok(())
    }

    async fn save(&self) -> Result<(), Error> {
        self.unsaved_since.set(None);
        let make = || {
            let mut batch = Batch::new();
            let progress = self.progress.borrow().clone().unwrap_or_default();
            batch.put(keys::scrub_progress(), to_bytes(&progress));
            Ok((batch, ()))
        };
        self.base.records.record_within(make).await.map(drop)
    }

    /// Reads all that is left of the pass under way, or all.
    async fn run_pass(&self) -> Result<(), Error> {
        let now = self.unix_seconds();
        let begun = self.change(|progress| progress.begin(now));
        let mut after = begun.unwrap_or_default();
        if after.is_empty() {
            self.read_bytes.set(0);
        }
        loop {
            self.wait_for_moves().await;
            let map = self.base.stripes.map();
            self.change(|progress| progress.note_missed(&map));
            let call = Scrub { after, data: true, repair: true };
            let ScrubFindings { part, bad } = self.scrubber.scrub(call).await?;
            self.note(bad.into_iter());
            self.read_bytes.set(self.read_bytes.get() + part.read_bytes);
            let Some(next) = part.next else { break };
            self.change(|progress| progress.after = Some(next.clone()));
            after = next;
            if self.is_save_due() {
                self.save().await?;
            }
            self.wait_for_pace(part.read_bytes).await;
        }
        let (map, now) = (self.base.stripes.map(), self.unix_seconds());
        self.change(|progress| progress.end(&map, now));
        tracing::info!(node = self.base.node, "all data was compared with its checksums");
        self.save().await
    }

    /// Blocks on disks were bad; some of them were made anew.
    fn note(&self, bad: impl Iterator<Item = (DiskName, bool)>) {
        let (map, now) = (self.base.stripes.map(), self.unix_seconds());
        // What a disk has missed while its host was away is not its fault.
        for (disk, is_mended) in bad.filter(|(disk, _)| !map.state(*disk).is_behind()) {
            self.change(|progress| progress.note_bad(disk, is_mended, now));
        }
    }

    /// Changes what is known, once it was read.
    fn change<T>(&self, change: impl FnOnce(&mut ScrubProgress) -> T) -> Option<T> {
        let changed = self.progress.borrow_mut().as_mut().map(change);
        if changed.is_some() && self.unsaved_since.get().is_none() {
            self.unsaved_since.set(Some(self.base.context.now()));
        }
        changed
    }

    async fn wait_for_moves(&self) {
        while self.disks.is_moving() {
            self.base.context.sleep(MOVES_PAUSE).await;
        }
    }

    async fn wait_for_pace(&self, bytes: u64) {
        self.pace.wait(&self.base.context, || MovePolicy::Gentle {}, bytes).await;
    }

    fn unix_seconds(&self) -> u64 {
        self.base.context.unix_time().as_secs()
    }
}
