//! Delegations (RFC 8881 section 10.4; ADR 101). The gateway holds a file at its node, once for all
//! its clients; here are the clients that it has passed the file on to.

use std::collections::{BTreeMap, VecDeque};

use fileio::protocol::Handle;

use super::stateids::{StateEntry, StateidTable};
use crate::v4::limits::DELEGATIONS_MAX;
use crate::v4::status::Status;
use crate::v4::types::SessionRequest;

/// A read delegation of a file to a client.
#[derive(Clone, Debug)]
pub(crate) struct ClientDelegation {
    pub(crate) client: u64,
    pub(crate) file: Handle,
    /// The file handle by which the client knows the file.
    pub(crate) handle: Vec<u8>,
    /// The request that granted it.
    pub(crate) granted_by: SessionRequest,
    /// It is being recalled.
    pub(crate) is_recalled: bool,
    /// It is over; the client must free its stateid.
    pub(crate) is_revoked: bool,
}

/// How often delegations were granted and ended, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DelegationTotals {
    pub(crate) granted: u64,
    pub(crate) recalled: u64,
    /// By their clients, recalled or not.
    pub(crate) returned: u64,
    /// Not returned in time, or by a client whose lease is over.
    pub(crate) revoked: u64,
}

/// Counts of delegations, and those that are to be recalled.
#[derive(Debug, Default)]
pub(crate) struct DelegationCounts {
    pub(super) totals: DelegationTotals,
    total: usize,
    of_client: BTreeMap<u64, usize>,
    revoked: BTreeMap<u64, usize>,
    /// The numbers of states to be recalled, each once.
    recall_queue: VecDeque<u64>,
}

impl DelegationCounts {
    /// The number of valid delegations, and what became of earlier ones.
    pub(crate) fn summary(&self) -> (usize, DelegationTotals) {
        let revoked: usize = self.revoked.values().sum();
        (self.total - revoked, self.totals)
    }

    /// Counts a delegation that was added or removed.
    pub(super) fn count(&mut self, delegation: &ClientDelegation, is_added: bool) {
        self.total = if is_added { self.total + 1 } else { self.total - 1 };
        count(&mut self.of_client, delegation.client, is_added);
        if delegation.is_revoked {
            count(&mut self.revoked, delegation.client, is_added);
        }
    }
}

/// Counts one more or one less of `client`.
fn count(counts: &mut BTreeMap<u64, usize>, client: u64, is_added: bool) {
    let count = counts.entry(client).or_default();
    *count = if is_added { *count + 1 } else { count.saturating_sub(1) };
    if *count == 0 {
        counts.remove(&client);
    }
}

impl StateidTable {
    /// The valid delegations of `file`.
    fn delegations(&self, file: Handle) -> impl Iterator<Item = (u64, &ClientDelegation)> {
        let of_file = self.by_file.get(&file).into_iter().flatten();
        of_file.filter_map(|number| match self.states.get(number) {
            Some(StateEntry::Delegation(known)) if !known.is_revoked => Some((*number, known)),
            _ => None,
        })
    }

    /// Has any client a valid delegation of `file`?
    pub(crate) fn is_delegated(&self, file: Handle) -> bool {
        self.delegations(file).next().is_some()
    }

    /// Has `client` a valid delegation of `file`?
    pub(crate) fn has_delegation(&self, client: u64, file: Handle) -> bool {
        self.delegations(file).any(|(_, known)| known.client == client)
    }

    /// Is `file` open in a way that excludes delegations, or being recalled?
    pub(crate) fn is_contended(&self, file: Handle) -> bool {
        let of_file = self.by_file.get(&file).into_iter().flatten();
        of_file.filter_map(|number| self.states.get(number)).any(|state| match state {
            StateEntry::Open(open) => open.share.conflicts_with_readers(),
            StateEntry::Delegation(known) => known.is_recalled && !known.is_revoked,
            StateEntry::Locks(_) => false,
        })
    }

    /// Adds a delegation.
    pub(crate) fn add_delegation(&mut self, granted: ClientDelegation) -> Result<u64, Status> {
        self.check_limits(granted.client)?;
        if self.delegated.total >= DELEGATIONS_MAX {
            return Err(Status::DELAY);
        }
        self.delegated.totals.granted += 1;
        Ok(self.insert(StateEntry::Delegation(granted)))
    }

    /// The delegation behind a state, if it is valid.
    //= rfc8881 15.1.5.3: NFS4ERR_DELEG_REVOKED
    pub(crate) fn delegation(&self, number: u64) -> Result<&ClientDelegation, Status> {
        match self.states.get(&number) {
            Some(StateEntry::Delegation(known)) if known.is_revoked => Err(Status::DELEG_REVOKED),
            Some(StateEntry::Delegation(known)) => Ok(known),
            _ => Err(Status::BAD_STATEID),
        }
    }

    /// The delegation to recall; one that was revoked is recalled, too, so that its client stops to
    /// trust it.
    pub(crate) fn recalled(&self, number: u64) -> Option<&ClientDelegation> {
        match self.states.get(&number)? {
            StateEntry::Delegation(known) => Some(known),
            StateEntry::Open(_) | StateEntry::Locks(_) => None,
        }
    }

    /// Removes a delegation that its client returns.
    pub(crate) fn return_delegation(&mut self, number: u64) -> Result<(), Status> {
        self.delegation(number)?;
        self.remove(number);
        self.delegated.totals.returned += 1;
        Ok(())
    }

    /// Begins to recall `file` from all clients but `except`; true if any of them has it still.
    pub(crate) fn begin_recall(&mut self, file: Handle, except: Option<u64>) -> bool {
        let others = self.delegations(file).filter(|(_, known)| Some(known.client) != except);
        let numbers: Vec<u64> = others.map(|(number, _)| number).collect();
        for number in &numbers {
            if let Some(StateEntry::Delegation(known)) = self.states.get_mut(number)
                && !std::mem::replace(&mut known.is_recalled, true)
            {
                self.delegated.totals.recalled += 1;
                self.delegated.recall_queue.push_back(*number);
                self.recall_begun.tell();
            }
        }
        !numbers.is_empty()
    }

    /// Takes the states that are to be recalled.
    pub(crate) fn take_recalls(&mut self) -> VecDeque<u64> {
        std::mem::take(&mut self.delegated.recall_queue)
    }

    /// Revokes all delegations of `file`: it may have been changed.
    pub(crate) fn revoke_all(&mut self, file: Handle) {
        let numbers: Vec<u64> = self.delegations(file).map(|(number, _)| number).collect();
        for number in numbers {
            self.revoke(number);
        }
    }

    /// Revokes a delegation: its stateid is refused from now on. Returns its file if it was valid.
    pub(crate) fn revoke(&mut self, number: u64) -> Option<Handle> {
        let Some(StateEntry::Delegation(known)) = self.states.get_mut(&number) else { return None };
        if std::mem::replace(&mut known.is_revoked, true) {
            return None;
        }
        count(&mut self.delegated.revoked, known.client, true);
        self.delegated.totals.revoked += 1;
        self.delegation_ended.tell();
        Some(known.file)
    }

    /// Has `client` stateids of revoked delegations?
    pub(crate) fn has_revoked(&self, client: u64) -> bool {
        self.delegated.revoked.contains_key(&client)
    }

    /// The number of delegations of `client`.
    pub(crate) fn delegations_of(&self, client: u64) -> usize {
        self.delegated.of_client.get(&client).copied().unwrap_or(0)
    }
}
