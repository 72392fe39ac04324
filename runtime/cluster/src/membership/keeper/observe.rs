//! Seeing who is there, and proposing the next map.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use futures::future::{Either, select};

use super::{
    CALL_TIME_MAX, GATHER, Keeper, LOOK_EVERY, MAP_KEY, MEMBERS_PREFIX, PREFIX, PROPOSE_STEP,
    PROPOSE_STEPS_MAX, RETRY_PAUSE, TAKE_OVER_PAUSE,
};
use crate::coordination::{
    CoordinationError, Expect, LeaseId, Listing, RecordChange, Version, Watch, WriteOutcome,
};
use crate::membership::gone::{GONE_PREFIX, GoneRecord, gone_key};
use crate::membership::map::{MemberRecord, NodeMap, Process, ProcessId};

/// All that is known of the cluster at one instant.
pub(super) struct ClusterView {
    pub(super) map: NodeMap,
    pub(super) map_version: Version,
    pub(super) members: Vec<MemberRecord>,
    /// Incarnations that have said that they answer nothing any more.
    pub(super) silent: BTreeSet<u64>,
}

/// Reads a listing. What is no map or member is left alone: it is of another version of the
/// program.
pub(super) fn view_in(listing: &Listing) -> Option<ClusterView> {
    let mut map = None;
    let mut members = Vec::new();
    let mut silent = BTreeSet::new();
    for (key, record) in &listing.records {
        if key == MAP_KEY {
            match NodeMap::from_record(&record.value) {
                Ok(read) => map = Some((read, record.version)),
                Err(error) => tracing::error!(%error, "the node map cannot be read"),
            }
        } else if key.starts_with(MEMBERS_PREFIX) {
            match MemberRecord::from_record(&record.value) {
                Ok(member) => members.push(member),
                Err(error) => tracing::error!(key, %error, "a member cannot be read"),
            }
        } else if key.starts_with(GONE_PREFIX)
            && let Ok(gone) = GoneRecord::from_record(&record.value)
            && gone.is_silent
        {
            silent.insert(gone.incarnation);
        }
    }
    let (map, map_version) = map?;
    members.retain(|member| !silent.contains(&member.incarnation));
    Some(ClusterView { map, map_version, members, silent })
}

impl Keeper {
    /// Looks whenever something has changed, and now and then.
    pub(super) async fn look_around(&self) {
        let mut watch: Option<Box<dyn Watch>> = None;
        while !self.state.ending.get() {
            let rung = self.state.look.next();
            let (seen, wait) = match self.look().await {
                Ok(seen) => seen,
                Err(error) => {
                    tracing::debug!(process = self.id.0, %error, "the cluster cannot be seen");
                    watch = None;
                    self.context.sleep(RETRY_PAUSE).await;
                    continue;
                }
            };
            let watching = watch.get_or_insert_with(|| self.engine.watch(PREFIX, seen));
            let watched = self.wait(&mut **watching, seen, rung, wait).await;
            if let Err(error) = watched {
                tracing::debug!(process = self.id.0, %error, "the watch is over");
                watch = None;
                self.context.sleep(RETRY_PAUSE).await;
            }
        }
    }

    /// Waits for a change after `seen`, for the bell, or for `limit`.
    async fn wait(
        &self,
        watch: &mut dyn Watch,
        seen: Version,
        rung: impl Future<Output = ()>,
        limit: Duration,
    ) -> Result<(), CoordinationError> {
        let told = std::pin::pin!(changed_since(watch, seen));
        let rung = std::pin::pin!(rung);
        match select(told, select(rung, self.context.sleep(limit))).await {
            Either::Left((told, _)) => told,
            Either::Right(_) => Ok(()),
        }
    }

    /// Reads all, does what it asks for; up to which version that was all, and when to look again.
    async fn look(&self) -> Result<(Version, Duration), CoordinationError> {
        // One reading at one instant: who saw members and map apart could take the living for dead.
        let before = self.state.age.before(self.map().as_deref());
        let listing = self.within(CALL_TIME_MAX, self.engine.list(PREFIX)).await?;
        let Some(view) = view_in(&listing) else { return Ok((listing.version, LOOK_EVERY)) };
        let known = self.map();
        let checked = self.state.age.check_view(before, listing.version, &view, known.as_deref());
        self.note_age(checked)?;
        self.note_missing(&view);
        self.adopt(view.map.clone());
        self.refute(&listing).await;
        forget_past_end(self, &view, &listing).await;
        let wait = self.propose(&view).await;
        Ok((listing.version, wait))
    }

    /// The map is the present one, unless a later one was seen.
    pub(super) fn adopt(&self, map: NodeMap) {
        let known = self.map().map(|known| known.epoch);
        if known.is_none_or(|known| known < map.epoch) {
            let map = Rc::new(map);
            *self.state.map.borrow_mut() = Some(map.clone());
            self.duties.tell(super::KeeperEvent::Map(map));
        }
        self.look_to_duties();
    }

    /// Notes since when the records of processes that live by the map are missing.
    pub(super) fn note_missing(&self, view: &ClusterView) {
        let now = self.context.now();
        let mut missing = self.state.missing.borrow_mut();
        let living = view.map.processes.iter().filter(|process| process.is_living());
        // The record of its next incarnation is that of a process that is about to return.
        let is_there = |process: &Process| {
            let life = (process.id, process.incarnation);
            view.members.iter().any(|member| (member.id, member.incarnation) == life)
        };
        let gone = living.filter(|process| !is_there(process));
        *missing = gone
            .map(|process| {
                let before = missing.get(&process.id).filter(|it| it.0 == process.incarnation);
                (process.id, before.copied().unwrap_or((process.incarnation, now)))
            })
            .collect();
    }

    /// When a process whose record is missing answers nothing any more for sure.
    fn silent_at(&self, view: &ClusterView, id: ProcessId) -> Option<Duration> {
        let (incarnation, since) = *self.state.missing.borrow().get(&id)?;
        let is_silent = view.silent.contains(&incarnation);
        Some(if is_silent { Duration::ZERO } else { since + TAKE_OVER_PAUSE })
    }

    /// The record of a process that lives by the map is missing, and that for long enough.
    pub(super) fn is_silent(&self, view: &ClusterView, id: ProcessId) -> bool {
        self.silent_at(view, id).is_some_and(|at| at <= self.context.now())
    }

    /// The members by which the next map is made: those that are there, and those that may still
    /// answer; and when the first of these does not.
    fn members_for_plan(&self, view: &ClusterView) -> (Vec<MemberRecord>, Duration) {
        let (mut members, mut wait) = (view.members.clone(), LOOK_EVERY);
        let now = self.context.now();
        for process in view.map.processes.iter().filter(|process| process.is_living()) {
            let rest = self.silent_at(view, process.id).map(|at| at.saturating_sub(now));
            let Some(rest) = rest.filter(|rest| !rest.is_zero()) else { continue };
            wait = wait.min(rest);
            let (id, incarnation) = (process.id, process.incarnation);
            let addresses = process.addresses.clone();
            members.retain(|member| member.id != id);
            members.push(MemberRecord { id, incarnation, addresses, lease: LeaseId(0) });
        }
        (members, wait)
    }

    /// Proposes the map that follows, if one is needed and it is our turn; when to look again.
    async fn propose(&self, view: &ClusterView) -> Duration {
        let Some(life) = self.valid_lease() else { return LOOK_EVERY };
        let settled = view.map.settled(self.id, life.incarnation, &self.settled_nodes(&view.map));
        // Only we can say that we have settled a node; any process can propose the rest.
        let next = if let Some(next) = settled {
            next
        } else {
            let (members, silent_in) = self.members_for_plan(view);
            let Some(next) = view.map.next(&members) else {
                self.state.noticed.set(None);
                return silent_in;
            };
            let wait = self.turn_in(view, life.begun);
            if !wait.is_zero() {
                return wait.min(silent_in);
            }
            next
        };
        let expect = Expect::Unchanged { since: view.map_version };
        let record = next.to_record();
        let write = self.engine.write(MAP_KEY, &record, expect, None);
        match self.within(CALL_TIME_MAX, write).await {
            Ok(WriteOutcome::Done { .. }) => {
                self.adopt(next.clone());
                self.note_gone(&view.map, &next).await;
            }
            // Another process was faster, or the outcome is unknown: look again.
            Ok(WriteOutcome::Differs { .. }) => {}
            Err(error) => tracing::debug!(process = self.id.0, %error, "a map is not proposed"),
        }
        RETRY_PAUSE
    }

    /// Keeps since when processes are gone, for operators. A record that says more stays.
    async fn note_gone(&self, before: &NodeMap, now: &NodeMap) {
        let ended = before.processes.iter().filter(|process| process.is_living());
        let ended =
            ended.filter(|process| !now.process(process.id).is_some_and(Process::is_living));
        for Process { id, incarnation, .. } in ended {
            let gone = GoneRecord::new(*incarnation, self.context.unix_time(), false);
            let key = gone_key(*id);
            let Ok(seen) = self.within(CALL_TIME_MAX, self.engine.get(&key)).await else { return };
            let said = seen.as_ref().and_then(|seen| GoneRecord::from_record(&seen.value).ok());
            if said.is_none_or(|said| said.incarnation != *incarnation) {
                let (record, expect) = (gone.to_record(), Expect::still(seen.as_ref()));
                let write = self.engine.write(&key, &record, expect, None);
                let _ = self.within(CALL_TIME_MAX, write).await;
            }
        }
    }

    /// How long to wait until it is our turn to propose what follows this map.
    fn turn_in(&self, view: &ClusterView, life_begun: Duration) -> Duration {
        let now = self.context.now();
        let noticed = self.state.noticed.get().filter(|(epoch, _)| *epoch == view.map.epoch);
        let (_, since) = noticed.unwrap_or((view.map.epoch, now));
        self.state.noticed.set(Some((view.map.epoch, since)));
        let before_us = view.members.iter().filter(|member| member.id < self.id).count();
        let steps = before_us.min(PROPOSE_STEPS_MAX) as u32;
        let turn = (since + steps * PROPOSE_STEP).max(life_begun + GATHER);
        turn.saturating_sub(now)
    }
}

/// This process runs, and the map says so: what is noted of the end of its last incarnation is
/// removed, so that operators do not take it for the end of this one.
async fn forget_past_end(keeper: &Keeper, view: &ClusterView, listing: &Listing) {
    let key = gone_key(keeper.id);
    let Some((_, record)) = listing.records.iter().find(|(at, _)| *at == key) else { return };
    let known = view.map.process(keeper.id).map_or(0, |known| known.incarnation);
    let is_known = keeper.valid_lease().is_some_and(|life| life.incarnation == known);
    let noted = GoneRecord::from_record(&record.value).map(|gone| gone.incarnation);
    if is_known && noted.is_ok_and(|noted| noted != known) {
        let expect = Expect::Unchanged { since: record.version };
        let _ = keeper.within(CALL_TIME_MAX, keeper.engine.remove(&key, expect)).await;
    }
}

/// Resolves at the first change after `seen`.
async fn changed_since(watch: &mut dyn Watch, seen: Version) -> Result<(), CoordinationError> {
    loop {
        match watch.next().await? {
            RecordChange::Put { record, .. } if record.version <= seen => {}
            RecordChange::Removed { version, .. } if version <= seen => {}
            RecordChange::Put { .. } | RecordChange::Removed { .. } => return Ok(()),
            RecordChange::Missed {} => {
                return Err(CoordinationError::Unreachable("changes were missed".to_owned()));
            }
        }
    }
}
