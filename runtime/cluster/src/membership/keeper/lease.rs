//! The lease of a process, and its return after the lease could not be kept.

use std::time::Duration;

use futures::FutureExt as _;
use futures::future::join;

use super::{
    ANSWER_WINDOW, CALL_TIME_MAX, Keeper, KeeperEvent, MAP_KEY, MEMBERS_PREFIX, MembershipLease,
    PREFIX, RENEW_EVERY, RETRY_PAUSE, ServeState,
};
use crate::coordination::{CoordinationError, Expect, LeaseId, Record, WriteOutcome};
use crate::membership::gone::{GoneRecord, gone_key};
use crate::membership::map::{MemberRecord, ProcessId};
use runtime::ids::NodeId;

/// How long a process may answer that read its own record, by a call that began at `sent`.
fn valid_until(sent: Duration) -> Duration {
    sent + ANSWER_WINDOW
}

/// The key of a process' record.
pub(super) fn member_key(id: ProcessId) -> String {
    format!("{MEMBERS_PREFIX}{:010}", id.0)
}

/// What came of a renewal.
enum Renewal {
    /// The record was there when a call that began at this time was answered.
    Confirmed(Duration),
    /// The record is gone, or another one is there: others may take over, or have.
    Gone,
}

/// What came of a return after the record was gone.
enum Return {
    /// The process has a new lease and what it served.
    Back,
    /// The map gives what it served to others, or to another process of its number.
    Replaced,
}

impl Keeper {
    /// One incarnation after the other, until the process ends.
    pub(super) async fn live(&self) {
        let mut is_first = true;
        while !self.state.ending.get() {
            match self.acquire_lease(is_first).await {
                Ok(Some(life)) if self.state.ending.get() => {
                    let _ = self.within(CALL_TIME_MAX, self.engine.revoke(life.lease)).await;
                    return;
                }
                Ok(Some(life)) => {
                    is_first = false;
                    tracing::info!(process = self.id.0, incarnation = life.incarnation, "joined");
                    self.set_lease(life);
                    self.state.look.tell();
                    self.keep().await;
                    if self.state.ending.get() {
                        return;
                    }
                    self.fence();
                }
                Ok(None) => {}
                Err(error) => tracing::debug!(process = self.id.0, %error, "cannot join yet"),
            }
            self.context.sleep(RETRY_PAUSE).await;
        }
    }

    /// Takes a lease and publishes the process. `None`: an earlier incarnation might still answer.
    ///
    /// A process that has just started ends the lease of the one before, which has its number and
    /// is dead as a rule. Later it waits: of two with one number the later start counts.
    async fn acquire_lease(
        &self,
        is_first: bool,
    ) -> Result<Option<MembershipLease>, CoordinationError> {
        let key = member_key(self.id);
        let Some(view) = self.view().await? else { return Ok(None) };
        if let Some(before) = view.members.iter().find(|member| member.id == self.id) {
            if is_first || self.state.past.borrow().contains(before.incarnation) {
                self.within(CALL_TIME_MAX, self.engine.revoke(before.lease)).await?;
            }
            return Ok(None);
        }
        let known = view.map.process(self.id).map_or(0, |known| known.incarnation);
        let is_past = self.state.past.borrow().contains(known);
        if known != 0 && !is_past && !self.is_silent(&view, self.id) {
            return Ok(None);
        }
        let lease = self.within(CALL_TIME_MAX, self.engine.grant(self.lease)).await?;
        let incarnation = self.context.random() | 1;
        let sent = match self.publish(&key, incarnation, lease).boxed_local().await {
            Ok(Some(sent)) => sent,
            other => {
                // The record may be there, and the map may name it: it has answered nothing.
                self.state.past.borrow_mut().insert(incarnation);
                let _ = self.within(CALL_TIME_MAX, self.engine.revoke(lease)).await;
                return other.map(|_| None);
            }
        };
        let begun = self.context.now();
        Ok(Some(MembershipLease { incarnation, lease, valid_until: valid_until(sent), begun }))
    }

    /// Says that this incarnation is there, and reads it: when the reading began. `None` if another
    /// one is there.
    async fn publish(
        &self,
        key: &str,
        incarnation: u64,
        lease: LeaseId,
    ) -> Result<Option<Duration>, CoordinationError> {
        let addresses = self.addresses.to_vec();
        let member = MemberRecord { id: self.id, incarnation, addresses, lease }.to_record();
        let write = self.engine.write(key, &member, Expect::Absent {}, Some(lease));
        match self.within(CALL_TIME_MAX, write).await {
            Ok(_) => {}
            Err(error) if error.is_unknown() => {}
            Err(error) => return Err(error),
        }
        let sent = self.context.now();
        let found: Option<Record> = self.within(CALL_TIME_MAX, self.engine.get(key)).await?;
        Ok(found.is_some_and(|found| found.value == member).then_some(sent))
    }

    /// Renews the lease as long as the incarnation lasts. While it cannot be renewed nothing is
    /// answered and everything is kept.
    async fn keep(&self) {
        let mut pause = RENEW_EVERY;
        loop {
            self.context.sleep(pause).await;
            let Some(life) = self.state.life.get() else { return };
            if self.state.age.take_overtaken() {
                return;
            }
            pause = RETRY_PAUSE;
            match self.renew(life).await {
                Ok(Renewal::Confirmed(sent)) => {
                    if self.confirm(life, sent) {
                        pause = RENEW_EVERY;
                    }
                }
                Ok(Renewal::Gone) => {
                    self.pause_answers();
                    match self.come_back(life).await {
                        Ok(Return::Back) => pause = RENEW_EVERY,
                        Ok(Return::Replaced) => return,
                        Err(error) => {
                            tracing::debug!(process = self.id.0, %error, "cannot return yet");
                        }
                    }
                }
                Err(error) => {
                    tracing::debug!(process = self.id.0, %error, "the lease is not renewed");
                    if self.valid_lease().is_none() && !self.state.paused.replace(true) {
                        tracing::warn!(
                            process = self.id.0,
                            "the lease cannot be renewed: nothing is answered until it is"
                        );
                    }
                }
            }
        }
    }

    /// Renews the lease, and reads the record that goes with it. Only the reading counts: a leader
    /// of etcd that is one no more may renew a lease that is revoked (etcd-io/etcd#15247), and
    /// reads are linearizable.
    async fn renew(&self, life: MembershipLease) -> Result<Renewal, CoordinationError> {
        let key = member_key(self.id);
        let (sent, before) = (self.context.now(), self.state.age.before(self.map().as_deref()));
        let renewed = self.within(CALL_TIME_MAX, self.engine.keep_alive(life.lease));
        // The listing of one key tells how new the store is, too.
        let read = self.within(CALL_TIME_MAX, self.engine.list(&key));
        let (renewed, read) = join(renewed, read).await;
        let read = read?;
        self.note_age(self.state.age.check_version(before, read.version))?;
        let found = read.records.into_iter().find(|(at, _)| *at == key);
        let member = found.and_then(|(_, found)| MemberRecord::from_record(&found.value).ok());
        if member.is_none_or(|member| member.incarnation != life.incarnation) {
            return Ok(Renewal::Gone);
        }
        match renewed {
            // The record goes at any moment.
            Err(error @ CoordinationError::LeaseOver) => Err(error),
            // It is there still; the lease is long enough for another attempt.
            Ok(()) | Err(_) => Ok(Renewal::Confirmed(sent)),
        }
    }

    /// The record of `life` was there after `sent`. False if that was too long ago to answer.
    fn confirm(&self, life: MembershipLease, sent: Duration) -> bool {
        let valid_until = valid_until(sent);
        if self.state.life.get().is_none() || self.context.now() >= valid_until {
            return false;
        }
        self.set_lease(MembershipLease { valid_until, ..life });
        if self.state.paused.replace(false) {
            tracing::info!(process = self.id.0, "the lease is renewed: requests are answered");
            self.state.look.tell();
        }
        true
    }

    /// The record is gone. If the map is as it was no other process has taken over: a new
    /// incarnation replaces the one that is gone, and that no other map came between proves it.
    ///
    /// The record of the new incarnation is there before the map names it: others that know it by
    /// the map and miss it have seen its end, and need not ask whether it had begun.
    async fn come_back(&self, life: MembershipLease) -> Result<Return, CoordinationError> {
        // An engine without a map is no proof of anything.
        let view = self.view().await?.ok_or(CoordinationError::Busy)?;
        let known = view.map.process(self.id).map_or(0, |known| known.incarnation);
        let is_ours = known == life.incarnation || self.state.tried.borrow().contains(known);
        let is_kept = |node: &NodeId| {
            view.map.assignment(*node).is_some_and(|assignment| assignment.owner() == self.id)
        };
        if !is_ours || !self.state.standing.borrow().keys().all(is_kept) {
            self.drop_candidate().await;
            self.state.past.borrow_mut().append(&mut self.state.tried.borrow_mut());
            return Ok(Return::Replaced);
        }
        let next = match self.state.returning.get() {
            Some(next) => next,
            None => self.new_candidate(life).await?,
        };
        let key = member_key(self.id);
        match self.publish(&key, next.incarnation, next.lease).boxed_local().await {
            Ok(Some(_)) => {}
            Ok(None) => return Err(CoordinationError::Busy),
            Err(error) => {
                if matches!(error, CoordinationError::LeaseOver) {
                    self.drop_candidate().await;
                }
                return Err(error);
            }
        }
        let map = if known == next.incarnation {
            view.map
        } else {
            let returned = view.map.returned(self.id, known, next.incarnation);
            let map = returned.ok_or(CoordinationError::Busy)?;
            let expect = Expect::Unchanged { since: view.map_version };
            let record = map.to_record();
            // The outcome may stay unknown: the next attempt sees it in the map.
            let write = self.engine.write(MAP_KEY, &record, expect, None);
            match self.within(CALL_TIME_MAX, write).await? {
                WriteOutcome::Done { .. } => map,
                WriteOutcome::Differs { .. } => return Err(CoordinationError::Busy),
            }
        };
        let sent = self.context.now();
        let found = self.within(CALL_TIME_MAX, self.engine.get(&key)).await?;
        let member = found.and_then(|found| MemberRecord::from_record(&found.value).ok());
        if member.is_none_or(|member| member.incarnation != next.incarnation) {
            self.drop_candidate().await;
            return Err(CoordinationError::Busy);
        }
        let begun = self.context.now();
        let back = MembershipLease { valid_until: valid_until(sent), begun, ..next };
        if self.state.life.get().is_none() || begun >= back.valid_until {
            return Err(CoordinationError::Busy);
        }
        tracing::info!(process = self.id.0, incarnation = back.incarnation, "is back");
        self.state.returning.set(None);
        {
            let (mut past, mut tried) =
                (self.state.past.borrow_mut(), self.state.tried.borrow_mut());
            past.insert(life.incarnation);
            past.append(&mut tried);
            past.remove(back.incarnation);
        }
        self.adopt(map);
        self.state.paused.set(false);
        self.set_lease(back);
        self.state.look.tell();
        Ok(Return::Back)
    }

    /// The incarnation by which the process is to return.
    async fn new_candidate(
        &self,
        life: MembershipLease,
    ) -> Result<MembershipLease, CoordinationError> {
        let lease = self.within(CALL_TIME_MAX, self.engine.grant(self.lease)).await?;
        let incarnation = self.context.random() | 1;
        let next = MembershipLease { incarnation, lease, ..life };
        self.state.tried.borrow_mut().insert(incarnation);
        self.state.returning.set(Some(next));
        Ok(next)
    }

    /// The process does not return by this incarnation: it never comes back.
    async fn drop_candidate(&self) {
        if let Some(next) = self.state.returning.take() {
            let _ = self.within(CALL_TIME_MAX, self.engine.revoke(next.lease)).await;
        }
    }

    /// Nothing is answered until the lease is renewed; all is kept.
    fn pause_answers(&self) {
        let Some(life) = self.state.life.get() else { return };
        let now = self.context.now();
        if life.valid_until > now {
            self.set_lease(MembershipLease { valid_until: now, ..life });
        }
        if !self.state.paused.replace(true) {
            tracing::warn!(process = self.id.0, "the lease is over: nothing is answered");
        }
    }

    /// A reading was checked. While the records are an older copy nothing is answered.
    pub(super) fn note_age(
        &self,
        checked: Result<(), CoordinationError>,
    ) -> Result<(), CoordinationError> {
        if self.state.age.is_older() && !self.state.told_older.replace(true) {
            self.pause_answers();
            tracing::error!(
                process = self.id.0,
                epoch = self.map().map_or(0, |map| map.epoch.0),
                "etcd holds an older copy of the records than this process has seen: nothing is \
                 answered; bring the newer copy back, or stop all processes and run `mdfs cluster \
                 recover`; leave the disks as they are"
            );
        } else if checked.is_ok() {
            self.state.told_older.set(false);
        }
        checked
    }

    /// The incarnation is over: nothing of it goes on.
    fn fence(&self) {
        let Some(life) = self.drop_lease() else { return };
        self.state.past.borrow_mut().insert(life.incarnation);
        self.state.paused.set(false);
        tracing::warn!(process = self.id.0, "others have taken over: all nodes begin anew");
        for standing in self.state.standing.borrow_mut().values_mut() {
            *standing = ServeState::Stopping;
        }
        self.duties.tell(KeeperEvent::Fenced);
    }

    /// Gives the lease back, so that the others take over immediately.
    pub(super) async fn leave_in_order(&self, life: MembershipLease) {
        let gone = GoneRecord::new(life.incarnation, self.context.unix_time(), true).to_record();
        let key = gone_key(self.id);
        let said = self.engine.put(&key, &gone);
        // If this fails the others wait until nothing more could be answered.
        let _ = self.within(CALL_TIME_MAX, said).await;
        // If this fails the lease ends by itself.
        let _ = self.within(CALL_TIME_MAX, self.engine.revoke(life.lease)).await;
    }

    /// All records, at one instant. `None` if there is no map.
    async fn view(&self) -> Result<Option<super::observe::ClusterView>, CoordinationError> {
        let before = self.state.age.before(self.map().as_deref());
        let listing = self.within(CALL_TIME_MAX, self.engine.list(PREFIX)).await?;
        let view = super::observe::view_in(&listing);
        if let Some(view) = &view {
            let known = self.map();
            let age = &self.state.age;
            let checked = age.check_view(before, listing.version, view, known.as_deref());
            self.note_age(checked)?;
            self.note_missing(view);
        }
        Ok(view)
    }
}
