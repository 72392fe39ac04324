//! Owners of locks (RFC 8881 sections 9.1 to 9.5). The locks themselves are at the nodes below.

use std::sync::Arc;

use bytes::Bytes;
use client::leases::Leases;
use fileio::protocol::{Handle, LockOwner};

use super::opens::next;
use super::{State, Tables};
use crate::v4::status::Status;
use crate::v4::words::Stateid;

/// The locks of an owner on a file that is open.
#[derive(Debug)]
pub(crate) struct Locks {
    pub(super) client: u64,
    owner: Bytes,
    /// The open file that they came through.
    pub(super) open: u64,
    file: Handle,
    /// The owner, for the nodes below.
    pub(super) id: u64,
    pub(super) seqid: u32,
    /// Something was locked, and not all was unlocked since.
    holds: bool,
}

/// For whom something is locked.
#[derive(Clone, Debug)]
pub(crate) struct Locker {
    /// The state of the locks.
    pub(crate) number: u64,
    /// The file.
    pub(crate) file: Handle,
    /// The owner, for the nodes below.
    pub(crate) id: u64,
    /// The client's, there.
    pub(crate) leases: Arc<Leases>,
}

/// The owner `owner` of `client`, for the nodes below: the same for all files and openings.
pub(crate) fn owner_id(client: u64, owner: &Bytes) -> u64 {
    let key = [&client.to_be_bytes()[..], owner].concat();
    runtime::hash::xxh3(&key)
}

impl Tables {
    /// The locks of `owner` through the open file `open`.
    pub(crate) fn locker_of_open(&mut self, open: u64, owner: Bytes) -> Result<Locker, Status> {
        let (client, file, lockers) = {
            let open = self.open_state(open)?;
            (open.client, open.file, open.lockers.clone())
        };
        for number in lockers {
            if matches!(self.states.get(&number), Some(State::Locks(locks)) if locks.owner == owner)
            {
                return self.locker(number);
            }
        }
        self.check_room(client)?;
        let id = owner_id(client, &owner);
        let locks = Locks { client, owner, open, file, id, seqid: 0, holds: false };
        let number = self.add(client, State::Locks(locks));
        self.open_state(open)?.lockers.insert(number);
        self.locker(number)
    }

    /// The same for locks that there are.
    pub(crate) fn locker(&self, number: u64) -> Result<Locker, Status> {
        let Some(State::Locks(locks)) = self.states.get(&number) else {
            return Err(Status::BAD_STATEID);
        };
        let leases = self.client(locks.client)?.leases.clone();
        Ok(Locker { number, file: locks.file, id: locks.id, leases })
    }

    /// Is it the state of locks?
    pub(crate) fn is_of_locks(&self, number: u64) -> bool {
        matches!(self.states.get(&number), Some(State::Locks(_)))
    }

    /// Something was locked, or unlocked.
    pub(crate) fn locked(&mut self, number: u64, holds: bool) -> Stateid {
        if let Some(State::Locks(locks)) = self.states.get_mut(&number) {
            locks.holds = holds;
            locks.seqid = next(locks.seqid);
        }
        self.stateid(number)
    }

    /// Nothing was locked by an owner that is new: nobody knows its state.
    pub(crate) fn forget_unused(&mut self, number: u64) {
        let is_unused =
            matches!(self.states.get(&number), Some(State::Locks(locks)) if locks.seqid == 0);
        if is_unused && let Some(State::Locks(locks)) = self.remove(number) {
            self.leave(number, locks.open);
        }
    }

    //= rfc8881 18.38.3: not if there are locks, nor for an open file
    /// Forgets the state of an owner that has no locks any more, or has lost them.
    pub(crate) fn free(&mut self, number: u64, lost: bool) -> Result<(), Status> {
        match self.states.get(&number) {
            Some(State::Locks(locks)) if lost || !locks.holds => {
                let open = locks.open;
                self.remove(number);
                self.leave(number, open);
                Ok(())
            }
            Some(_) => Err(Status::LOCKS_HELD),
            None => Err(Status::BAD_STATEID),
        }
    }

    fn leave(&mut self, number: u64, open: u64) {
        if let Ok(open) = self.open_state(open) {
            open.lockers.remove(&number);
        }
    }

    /// The client and the name of whoever has a lock, if it came through this gateway.
    pub(crate) fn name_of(&self, owner: LockOwner) -> Option<(u64, Bytes)> {
        self.states.values().find_map(|state| match state {
            State::Locks(locks) if locks.id == owner.id => {
                Some((locks.client, locks.owner.clone()))
            }
            _ => None,
        })
    }
}
