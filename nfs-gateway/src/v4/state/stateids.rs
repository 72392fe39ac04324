//! Stateids and the states behind them (RFC 8881 section 8.2).

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use fileio::protocol::Handle;
use runtime::sync::Event;

use super::delegations::{ClientDelegation, DelegationCounts};

use crate::v4::limits::{STATES_MAX, STATES_PER_CLIENT_MAX};
use crate::v4::status::Status;
use crate::v4::types::Stateid;

/// To read; or to deny others reading.
pub(crate) const READ: u32 = 1;
/// To write; or to deny others writing.
pub(crate) const WRITE: u32 = 2;

/// A share reservation: bits of [`READ`] and [`WRITE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShareReservation {
    /// What the file is open for.
    pub(crate) access: u32,
    /// What others must not open it for.
    pub(crate) deny: u32,
}

impl ShareReservation {
    /// Does it exclude that others read the file without asking?
    pub(crate) fn conflicts_with_readers(self) -> bool {
        self.access & WRITE != 0 || self.deny & READ != 0
    }
}

/// An open file.
#[derive(Debug)]
pub(super) struct OpenState {
    pub(super) client: u64,
    pub(super) owner: Bytes,
    pub(super) file: Handle,
    pub(super) share: ShareReservation,
    pub(super) seqid: u32,
    /// The lock states that belong to it.
    pub(super) locks: BTreeSet<u64>,
}

impl OpenState {
    /// Does it deny others anything?
    pub(super) fn denies(&self) -> bool {
        self.share.deny != 0
    }
}

/// The byte-range locks of a lock owner on an open file.
#[derive(Debug)]
pub(super) struct LockOwnerState {
    pub(super) client: u64,
    pub(super) owner: Bytes,
    /// The open file that it belongs to.
    pub(super) open: u64,
    pub(super) file: Handle,
    /// The lock owner's id at the nodes.
    pub(super) owner_id: u64,
    pub(super) seqid: u32,
    /// The owner may hold locks on the file.
    pub(super) has_locks: bool,
}

/// The state behind a stateid.
#[derive(Debug)]
pub(super) enum StateEntry {
    /// An open file.
    Open(OpenState),
    /// Byte-range locks on an open file.
    Locks(LockOwnerState),
    /// A delegation of a file.
    Delegation(ClientDelegation),
}

impl StateEntry {
    /// The client and the seqid.
    pub(super) fn version(&self) -> (u64, u32) {
        match self {
            Self::Open(open) => (open.client, open.seqid),
            Self::Locks(locks) => (locks.client, locks.seqid),
            // It never changes.
            Self::Delegation(delegation) => (delegation.client, 1),
        }
    }

    /// The file, if the state is one of those that [`StateidTable::by_file`] lists.
    fn listed_file(&self) -> Option<Handle> {
        match self {
            Self::Open(open) => Some(open.file),
            Self::Delegation(delegation) => Some(delegation.file),
            Self::Locks(_) => None,
        }
    }
}

/// All open, lock and delegation states. `opens.rs`, `lock_owners.rs` and `delegations.rs`
/// implement their operations.
#[derive(Debug)]
pub(crate) struct StateidTable {
    /// Distinguishes this instance of the gateway from others.
    pub(crate) instance: u64,
    last_number: u64,
    pub(super) states: BTreeMap<u64, StateEntry>,
    /// The open states and the delegations of each file.
    pub(super) by_file: BTreeMap<Handle, Vec<u64>>,
    /// The number of states of each client.
    by_client: BTreeMap<u64, usize>,
    /// Open states that deny others something.
    pub(super) denials: usize,
    pub(crate) delegated: DelegationCounts,
    /// Recalls have begun.
    pub(crate) recall_begun: Event,
    /// A delegation was returned or revoked.
    pub(crate) delegation_ended: Event,
}

impl StateidTable {
    /// The empty table of a gateway instance.
    pub(super) fn new(instance: u64) -> Self {
        Self {
            instance,
            last_number: 1,
            states: BTreeMap::new(),
            by_file: BTreeMap::new(),
            by_client: BTreeMap::new(),
            denials: 0,
            delegated: DelegationCounts::default(),
            recall_begun: Event::default(),
            delegation_ended: Event::default(),
        }
    }

    /// Draws the next number of a state or session.
    pub(super) fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// The stateid of the state `number`.
    pub(crate) fn stateid(&self, number: u64) -> Stateid {
        let mut other = [0; 12];
        other[..4].copy_from_slice(&(self.instance as u32).to_be_bytes());
        other[4..].copy_from_slice(&number.to_be_bytes());
        let seqid = self.states.get(&number).map_or(0, |state| state.version().1);
        Stateid { seqid, other }
    }

    /// The number of the state that `client` names by `stateid`.
    //= rfc8881 8.2.2: a seqid of zero stands for the newest; an older one is OLD_STATEID, a newer
    //= one BAD_STATEID
    pub(crate) fn find(&self, client: u64, stateid: &Stateid) -> Result<u64, Status> {
        let (instance, number) = stateid.other.split_at(4);
        let number = u64::from_be_bytes(number.try_into().map_err(|_| Status::BAD_STATEID)?);
        let state = self.states.get(&number).ok_or(Status::BAD_STATEID)?;
        let (owner, seqid) = state.version();
        if owner != client || instance != (self.instance as u32).to_be_bytes() {
            return Err(Status::BAD_STATEID);
        }
        match stateid.seqid {
            0 => Ok(number),
            sent if sent == seqid => Ok(number),
            sent if sent < seqid => Err(Status::OLD_STATEID),
            _ => Err(Status::BAD_STATEID),
        }
    }

    /// The number of states of `client`.
    pub(super) fn count_of(&self, client: u64) -> usize {
        self.by_client.get(&client).copied().unwrap_or(0)
    }

    /// The states of `client`.
    pub(super) fn numbers_of(&self, client: u64) -> Vec<u64> {
        let of_client = self.states.iter().filter(|(_, state)| state.version().0 == client);
        of_client.map(|(number, _)| *number).collect()
    }

    /// May `client` have one more state? If not, programs shall be told: a client that is asked to
    /// wait waits for ever.
    pub(super) fn check_limits(&self, client: u64) -> Result<(), Status> {
        if self.states.len() >= STATES_MAX || self.count_of(client) >= STATES_PER_CLIENT_MAX {
            tracing::debug!(target: "mdfs::nfs", client, "it has too many files open");
            return Err(Status::DQUOT);
        }
        Ok(())
    }

    /// Adds a state and returns its number.
    pub(super) fn insert(&mut self, state: StateEntry) -> u64 {
        let number = self.next_number();
        if let Some(file) = state.listed_file() {
            self.by_file.entry(file).or_default().push(number);
        }
        match &state {
            StateEntry::Open(open) => self.denials += usize::from(open.denies()),
            StateEntry::Delegation(known) => self.delegated.count(known, true),
            StateEntry::Locks(_) => {}
        }
        *self.by_client.entry(state.version().0).or_default() += 1;
        self.states.insert(number, state);
        number
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<StateEntry> {
        let state = self.states.remove(&number)?;
        match &state {
            StateEntry::Open(open) => self.denials -= usize::from(open.denies()),
            StateEntry::Delegation(known) => {
                self.delegated.count(known, false);
                self.delegation_ended.tell();
            }
            StateEntry::Locks(_) => {}
        }
        if let Some(file) = state.listed_file()
            && let Some(of_file) = self.by_file.get_mut(&file)
        {
            of_file.retain(|other| *other != number);
            if of_file.is_empty() {
                self.by_file.remove(&file);
            }
        }
        let client = state.version().0;
        if let Some(count) = self.by_client.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                self.by_client.remove(&client);
            }
        }
        Some(state)
    }
}

/// The clients with an open state on `file`, or a delegation of it.
pub(super) fn clients_of(states: &StateidTable, file: Handle) -> BTreeSet<u64> {
    let numbers = states.by_file.get(&file).into_iter().flatten();
    numbers.filter_map(|number| Some(states.states.get(number)?.version().0)).collect()
}

/// The clients with byte-range locks or delegations, or opens that deny others something.
pub(super) fn clients_in_the_way(states: &StateidTable) -> BTreeSet<u64> {
    let of_state = |state: &StateEntry| match state {
        StateEntry::Locks(locks) => locks.has_locks.then_some(locks.client),
        StateEntry::Delegation(delegation) => Some(delegation.client),
        StateEntry::Open(open) => open.denies().then_some(open.client),
    };
    states.states.values().filter_map(of_state).collect()
}

//= rfc8881 8.2.2: "wraps around to one"
/// The seqid after `seqid`.
pub(super) fn next_seqid(seqid: u32) -> u32 {
    seqid.checked_add(1).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use fileio::protocol::Handle;

    use super::*;
    use crate::v4::state::{READ, ShareReservation};

    #[test]
    fn at_a_limit_programs_get_an_error_and_other_clients_are_served() {
        let mut states = StateidTable::new(1);
        let share = ShareReservation { access: READ, deny: 0 };
        let mut open = |client: u64, ino: usize| {
            let file = Handle { ino: ino as u64, generation: 1 };
            states.open(client, Bytes::from_static(b"owner"), file, share)
        };
        for ino in 0..STATES_PER_CLIENT_MAX {
            assert!(open(1, ino).is_ok(), "{ino}");
        }
        assert_eq!(open(1, STATES_PER_CLIENT_MAX), Err(Status::DQUOT));
        assert!(open(1, 0).is_ok(), "it is open already");
        assert!(open(2, STATES_PER_CLIENT_MAX).is_ok());
    }
}
