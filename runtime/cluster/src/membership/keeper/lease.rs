//! The lease of a process.

use std::time::Duration;

use futures::FutureExt as _;

use super::{
    CALL_TIME_MAX, Keeper, KeeperEvent, LEASE, MARGIN, MEMBERS_PREFIX, MembershipLease,
    RENEW_EVERY, RETRY_PAUSE, ServeState,
};
use crate::coordination::{CoordinationError, Expect, LeaseId, Record, WriteOutcome};
use crate::membership::map::MemberRecord;

/// How long a lease holds for sure that the engine began anew after `sent`.
fn valid_until(sent: Duration) -> Duration {
    (sent + LEASE).saturating_sub(MARGIN)
}

impl Keeper {
    /// One life after the other, until the process ends.
    pub(super) async fn live(&self) {
        while !self.state.ending.get() {
            match self.acquire_lease().await {
                Ok(Some(life)) if self.state.ending.get() => {
                    let _ = self.within(CALL_TIME_MAX, self.engine.revoke(life.lease)).await;
                    return;
                }
                Ok(Some(life)) => {
                    tracing::info!(process = self.id.0, incarnation = life.incarnation, "joined");
                    self.set_lease(life);
                    self.state.look.tell();
                    self.keep().await;
                    if self.state.ending.get() {
                        return;
                    }
                    self.fence();
                    // Nothing is answered any more: the others need not wait for its end.
                    let _ = self.within(CALL_TIME_MAX, self.engine.revoke(life.lease)).await;
                }
                Ok(None) => {}
                Err(error) => tracing::debug!(process = self.id.0, %error, "cannot join yet"),
            }
            self.context.sleep(RETRY_PAUSE).await;
        }
    }

    fn member_key(&self) -> String {
        format!("{MEMBERS_PREFIX}{:010}", self.id.0)
    }

    /// Takes a lease and publishes the process. `None`: an earlier life is not over yet, and might
    /// still answer.
    async fn acquire_lease(&self) -> Result<Option<MembershipLease>, CoordinationError> {
        let key = self.member_key();
        if self.within(CALL_TIME_MAX, self.engine.get(&key)).await?.is_some() {
            return Ok(None);
        }
        let sent = self.context.now();
        let lease = self.within(CALL_TIME_MAX, self.engine.grant(LEASE)).await?;
        let valid_until = valid_until(sent);
        let incarnation = self.context.random() | 1;
        let published = self.publish(&key, incarnation, lease).boxed_local().await;
        let begun = self.context.now();
        if !matches!(published, Ok(true)) || begun >= valid_until {
            let _ = self.within(CALL_TIME_MAX, self.engine.revoke(lease)).await;
            return published.map(|_| None);
        }
        Ok(Some(MembershipLease { incarnation, lease, valid_until, begun }))
    }

    /// Says that this life is there; false if another one of this process is.
    async fn publish(
        &self,
        key: &str,
        incarnation: u64,
        lease: LeaseId,
    ) -> Result<bool, CoordinationError> {
        let addresses = self.addresses.to_vec();
        let member = MemberRecord { id: self.id, incarnation, addresses }.to_record();
        let is_ours = |found: Option<Record>| found.is_some_and(|found| found.value == member);
        let write = self.engine.write(key, &member, Expect::Absent {}, Some(lease));
        match self.within(CALL_TIME_MAX, write).await {
            Ok(WriteOutcome::Done { .. }) => Ok(true),
            Ok(WriteOutcome::Differs { found }) => Ok(is_ours(found)),
            Err(error) if error.is_unknown() => {
                Ok(is_ours(self.within(CALL_TIME_MAX, self.engine.get(key)).await?))
            }
            Err(error) => Err(error),
        }
    }

    /// Renews the lease until it is over, or could be.
    async fn keep(&self) {
        let mut pause = RENEW_EVERY;
        loop {
            let Some(life) = self.valid_lease() else { return };
            let rest = life.valid_until.saturating_sub(self.context.now());
            self.context.sleep(pause.min(rest)).await;
            let sent = self.context.now();
            let Some(life) = self.valid_lease() else { return };
            let limit = CALL_TIME_MAX.min(life.valid_until.saturating_sub(sent));
            match self.within(limit, self.engine.keep_alive(life.lease)).await {
                // An answer that comes too late is one that others did not wait for.
                Ok(()) if self.valid_lease().is_some() => {
                    let valid_until = valid_until(sent);
                    self.set_lease(MembershipLease { valid_until, ..life });
                    pause = RENEW_EVERY;
                }
                Ok(()) | Err(CoordinationError::LeaseOver) => return,
                Err(error) => {
                    tracing::debug!(process = self.id.0, %error, "the lease is not renewed");
                    pause = RETRY_PAUSE;
                }
            }
        }
    }

    /// The life is over: nothing of it goes on.
    fn fence(&self) {
        if self.drop_lease().is_none() {
            return;
        }
        tracing::warn!(process = self.id.0, "the lease could not be kept: all nodes stop");
        for standing in self.state.standing.borrow_mut().values_mut() {
            *standing = ServeState::Stopping;
        }
        self.duties.tell(KeeperEvent::Fenced);
    }
}
