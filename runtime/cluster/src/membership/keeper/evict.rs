//! Processes that are found dead lose their leases before these are over.
//!
//! Evidence is never proof: that the others wait for `TAKE_OVER_PAUSE` after the record is gone
//! is what makes take-over safe.

use super::{CALL_TIME_MAX, Keeper, REFUTE_TIME, lease::member_key};
use crate::coordination::{CoordinationError, Expect, LeaseId, Listing, Version, WriteOutcome};
use crate::membership::gone::{SuspectRecord, suspect_key};
use crate::membership::map::{MemberRecord, ProcessId};

/// Why a process is thought to be dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// Its host refuses a connection: no process listens there, or a firewall rejects who asks.
    Refused,
    /// It does not answer.
    Silent,
}

impl Keeper {
    /// There is evidence that `process`, as `incarnation`, is dead: ends its lease, unless it
    /// refutes that in time. Whatever the evidence, it may only be cut off from who says so.
    pub fn suspect(&self, process: ProcessId, incarnation: u64, evidence: Evidence) {
        if !self.state.suspected.borrow_mut().insert(process) {
            return;
        }
        let keeper = self.clone();
        self.context.task(async move {
            if let Err(error) = keeper.evict(process, incarnation, evidence).await {
                tracing::debug!(suspect = process.0, %error, "is not evicted");
            }
            keeper.state.suspected.borrow_mut().remove(&process);
        });
    }

    async fn evict(
        &self,
        process: ProcessId,
        incarnation: u64,
        evidence: Evidence,
    ) -> Result<(), CoordinationError> {
        let Some(life) = self.valid_lease().filter(|_| process != self.id) else { return Ok(()) };
        let found = self.within(CALL_TIME_MAX, self.engine.get(&member_key(process))).await?;
        let member = found.and_then(|found| MemberRecord::from_record(&found.value).ok());
        let Some(member) = member.filter(|member| member.incarnation == incarnation) else {
            return Ok(());
        };
        let Some(said) = say_suspected(self, process, incarnation, life.lease).await? else {
            return Ok(());
        };
        self.context.sleep(REFUTE_TIME).await;
        let key = suspect_key(process);
        let found = self.within(CALL_TIME_MAX, self.engine.get(&key)).await?;
        if found.is_none_or(|found| found.version != said) || self.valid_lease().is_none() {
            tracing::debug!(suspect = process.0, "has refuted that it is dead");
            return Ok(());
        }
        tracing::warn!(suspect = process.0, ?evidence, "loses its lease: it does not answer");
        self.within(CALL_TIME_MAX, self.engine.revoke(member.lease)).await?;
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

/// Says that a process is suspected, unless another process says so already; the version of the
/// record. Were it written anew each time, one that many suspect would never be evicted, and one
/// that has refuted it would be taken for silent by a second suspicion.
async fn say_suspected(
    keeper: &Keeper,
    process: ProcessId,
    incarnation: u64,
    lease: LeaseId,
) -> Result<Option<Version>, CoordinationError> {
    let key = suspect_key(process);
    let record = SuspectRecord { incarnation, by: keeper.id }.to_record();
    let write = keeper.engine.write(&key, &record, Expect::Absent {}, Some(lease));
    let found = match keeper.within(CALL_TIME_MAX, write).await? {
        WriteOutcome::Done { version } => return Ok(Some(version)),
        WriteOutcome::Differs { found: None } => return Ok(None),
        WriteOutcome::Differs { found: Some(found) } => found,
    };
    let said = SuspectRecord::from_record(&found.value);
    if said.is_ok_and(|said| said.incarnation == incarnation) {
        return Ok(Some(found.version));
    }
    // Against an incarnation that is over, which does not refute it any more.
    let expect = Expect::Unchanged { since: found.version };
    let _ = keeper.within(CALL_TIME_MAX, keeper.engine.remove(&key, expect)).await?;
    Ok(None)
}
