//! Lock owners (RFC 8881 sections 9.1 to 9.5). The byte-range locks themselves are at the nodes.

use bytes::Bytes;
use fileio::protocol::{Handle, LockOwner};

use super::stateids::{LockOwnerState, StateEntry, StateidTable, next_seqid};
use crate::v4::status::Status;
use crate::v4::types::Stateid;

/// A lock owner on an open file (`locker4`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Locker {
    /// The number of its lock state.
    pub(crate) number: u64,
    pub(crate) file: Handle,
    /// The owner's id at the nodes.
    pub(crate) owner_id: u64,
}

/// The id of the lock owner `owner` of `client` at the nodes: the same for all its files and opens.
pub(crate) fn owner_id(client: u64, owner: &Bytes) -> u64 {
    let key = [&client.to_be_bytes()[..], owner].concat();
    runtime::hash::xxh3(&key)
}

/// The name of the owner of the lock state `number`.
pub(crate) fn owner_name(states: &StateidTable, number: u64) -> Option<Bytes> {
    match states.states.get(&number) {
        Some(StateEntry::Locks(locks)) => Some(locks.owner.clone()),
        _ => None,
    }
}

impl StateidTable {
    /// The lock owner `owner` on the open file `open`; it is added if it is new there.
    pub(crate) fn locker_of_open(&mut self, open: u64, owner: Bytes) -> Result<Locker, Status> {
        let (client, file, locks) = {
            let open = self.open_state(open)?;
            (open.client, open.file, open.locks.clone())
        };
        for number in locks {
            if matches!(self.states.get(&number), Some(StateEntry::Locks(locks)) if locks.owner == owner)
            {
                return self.locker(number);
            }
        }
        //= rfc8881 18.10: LOCK has no other error for it
        self.check_limits(client).map_err(|_| Status::SERVERFAULT)?;
        let owner_id = owner_id(client, &owner);
        let locks =
            LockOwnerState { client, owner, open, file, owner_id, seqid: 0, has_locks: false };
        let number = self.insert(StateEntry::Locks(locks));
        self.open_state(open)?.locks.insert(number);
        self.locker(number)
    }

    /// The lock owner of an existing lock state.
    pub(crate) fn locker(&self, number: u64) -> Result<Locker, Status> {
        match self.states.get(&number) {
            Some(StateEntry::Locks(locks)) => {
                Ok(Locker { number, file: locks.file, owner_id: locks.owner_id })
            }
            _ => Err(Status::BAD_STATEID),
        }
    }

    /// Is it a lock state?
    pub(crate) fn is_of_locks(&self, number: u64) -> bool {
        matches!(self.states.get(&number), Some(StateEntry::Locks(_)))
    }

    /// Records a LOCK or LOCKU, after which the owner has locks on the file or not.
    pub(crate) fn set_has_locks(&mut self, number: u64, has_locks: bool) -> Stateid {
        if let Some(StateEntry::Locks(locks)) = self.states.get_mut(&number) {
            locks.has_locks = has_locks;
            locks.seqid = next_seqid(locks.seqid);
        }
        self.stateid(number)
    }

    /// A LOCK has failed: removes a lock state that was never returned to the client, unless the
    /// node may have locked what was wanted.
    pub(crate) fn note_failed_lock(&mut self, number: u64, may_be_locked: bool) {
        let Some(StateEntry::Locks(locks)) = self.states.get_mut(&number) else { return };
        locks.has_locks |= may_be_locked;
        if locks.seqid == 0 && !may_be_locked {
            self.remove_locks(number);
        }
    }

    //= rfc8881 18.38.3: not if there are locks, nor for an open file
    /// Removes a lock state without locks, or whose locks were lost, or a revoked delegation.
    pub(crate) fn free(&mut self, number: u64, is_lost: bool) -> Result<(), Status> {
        match self.states.get(&number) {
            Some(StateEntry::Locks(locks)) if is_lost || !locks.has_locks => {
                self.remove_locks(number);
                Ok(())
            }
            Some(StateEntry::Delegation(known)) if known.is_revoked => {
                self.remove(number);
                Ok(())
            }
            Some(_) => Err(Status::LOCKS_HELD),
            None => Err(Status::BAD_STATEID),
        }
    }

    fn remove_locks(&mut self, number: u64) {
        if let Some(StateEntry::Locks(locks)) = self.remove(number)
            && let Ok(open) = self.open_state(locks.open)
        {
            open.locks.remove(&number);
        }
    }

    /// The client and name of a lock owner, if it locked through this gateway.
    pub(crate) fn name_of(&self, owner: LockOwner) -> Option<(u64, Bytes)> {
        self.states.values().find_map(|state| match state {
            StateEntry::Locks(locks) if locks.owner_id == owner.id => {
                Some((locks.client, locks.owner.clone()))
            }
            _ => None,
        })
    }
}
