//! Processes that are found dead lose their leases before these are over.
//!
//! Evidence is never proof: that the others wait for `TAKE_OVER_PAUSE` after the record is gone
//! is what makes take-over safe.

use super::{CALL_TIME_MAX, Keeper, REFUTE_TIME, lease::member_key};
use crate::coordination::{CoordinationError, Expect, Listing};
use crate::membership::gone::{SuspectRecord, suspect_key};
use crate::membership::map::{MemberRecord, ProcessId};

/// Why a process is thought to be dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// Its connection was closed, and its host refuses another one: no process listens there.
    Refused,
    /// It does not answer. It may only be cut off from who says so, and can refute it.
    Silent,
}

impl Keeper {
    /// There is evidence that `process`, as `incarnation`, is dead: ends its lease, unless it
    /// refutes that in time.
    pub fn suspect(&self, process: ProcessId, incarnation: u64, evidence: Evidence) {
        let keeper = self.clone();
        self.context.task(async move {
            if let Err(error) = keeper.evict(process, incarnation, evidence).await {
                tracing::debug!(suspect = process.0, %error, "is not evicted");
            }
        });
    }

    async fn evict(
        &self,
        process: ProcessId,
        incarnation: u64,
        evidence: Evidence,
    ) -> Result<(), CoordinationError> {
        let Some(life) = self.valid_lease().filter(|_| process != self.id) else { return Ok(()) };
        let key = member_key(process);
        let found = self.within(CALL_TIME_MAX, self.engine.get(&key)).await?;
        let member = found.and_then(|found| MemberRecord::from_record(&found.value).ok());
        let Some(member) = member.filter(|member| member.incarnation == incarnation) else {
            return Ok(());
        };
        if evidence == Evidence::Silent {
            let key = suspect_key(process);
            let said = SuspectRecord { incarnation, by: self.id }.to_record();
            let write = self.engine.write(&key, &said, Expect::Any {}, Some(life.lease));
            self.within(CALL_TIME_MAX, write).await?;
            self.context.sleep(REFUTE_TIME).await;
            let found = self.within(CALL_TIME_MAX, self.engine.get(&key)).await?;
            if found.is_none_or(|found| found.value != said) || self.valid_lease().is_none() {
                tracing::debug!(suspect = process.0, "has refuted that it is dead");
                return Ok(());
            }
        }
        tracing::warn!(suspect = process.0, ?evidence, "loses its lease: it does not answer");
        self.within(CALL_TIME_MAX, self.engine.revoke(member.lease)).await?;
        let key = suspect_key(process);
        let _ = self.within(CALL_TIME_MAX, self.engine.remove(&key, Expect::Any {})).await;
        Ok(())
    }

    /// A suspicion against this process is removed, if it may answer.
    pub(super) async fn refute(&self, listing: &Listing) {
        let key = suspect_key(self.id);
        let Some((_, record)) = listing.records.iter().find(|(at, _)| *at == key) else { return };
        let suspected = SuspectRecord::from_record(&record.value);
        if let (Some(life), Ok(suspected)) = (self.valid_lease(), suspected)
            && suspected.incarnation == life.incarnation
        {
            tracing::info!(process = self.id.0, by = suspected.by.0, "refutes that it is dead");
            let expect = Expect::Unchanged { since: record.version };
            let _ = self.within(CALL_TIME_MAX, self.engine.remove(&key, expect)).await;
        }
    }
}
