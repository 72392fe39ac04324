//! Seeing who is there, and proposing the next map.

use std::rc::Rc;
use std::time::Duration;

use futures::future::{Either, select};

use super::{
    CALL_TIME_MAX, GATHER, Keeper, LOOK_EVERY, MAP_KEY, MEMBERS_PREFIX, PREFIX, PROPOSE_STEP,
    PROPOSE_STEPS_MAX, RETRY_PAUSE,
};
use crate::coordination::{
    CoordinationError, Expect, Listing, RecordChange, Version, Watch, WriteOutcome,
};
use crate::membership::map::{MemberRecord, NodeMap};

/// All that is known of the cluster at one instant.
struct ClusterView {
    map: NodeMap,
    map_version: Version,
    members: Vec<MemberRecord>,
}

/// Reads a listing. What is no map or member is left alone: it is of another version of the
/// program.
fn view_in(listing: &Listing) -> Option<ClusterView> {
    let mut map = None;
    let mut members = Vec::new();
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
        }
    }
    let (map, map_version) = map?;
    Some(ClusterView { map, map_version, members })
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
        let listing = self.within(CALL_TIME_MAX, self.engine.list(PREFIX)).await?;
        let Some(view) = view_in(&listing) else { return Ok((listing.version, LOOK_EVERY)) };
        self.adopt(view.map.clone());
        let wait = self.propose(&view).await;
        Ok((listing.version, wait))
    }

    /// The map is the present one, unless a later one was seen.
    fn adopt(&self, map: NodeMap) {
        let known = self.map().map(|known| known.epoch);
        if known.is_none_or(|known| known < map.epoch) {
            let map = Rc::new(map);
            *self.state.map.borrow_mut() = Some(map.clone());
            self.duties.tell(super::KeeperEvent::Map(map));
        }
        self.look_to_duties();
    }

    /// Proposes the map that follows, if one is needed and it is our turn; when to look again.
    async fn propose(&self, view: &ClusterView) -> Duration {
        let Some(life) = self.valid_lease() else { return LOOK_EVERY };
        let settled = view.map.settled(self.id, life.incarnation, &self.settled_nodes(&view.map));
        // Only we can say that we have settled a node; any process can propose the rest.
        let next = match settled {
            Some(next) => next,
            None => match view.map.next(&view.members) {
                None => {
                    self.state.noticed.set(None);
                    return LOOK_EVERY;
                }
                Some(next) => {
                    let wait = self.turn_in(view, life.begun);
                    if !wait.is_zero() {
                        return wait.min(LOOK_EVERY);
                    }
                    next
                }
            },
        };
        let expect = Expect::Unchanged { since: view.map_version };
        let record = next.to_record();
        let write = self.engine.write(MAP_KEY, &record, expect, None);
        match self.within(CALL_TIME_MAX, write).await {
            Ok(WriteOutcome::Done { .. }) => self.adopt(next),
            // Another process was faster, or the outcome is unknown: look again.
            Ok(WriteOutcome::Differs { .. }) => {}
            Err(error) => tracing::debug!(process = self.id.0, %error, "a map is not proposed"),
        }
        RETRY_PAUSE
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
