//! Open files and their share modes (RFC 8881 sections 9.7 and 18.16).

use std::collections::BTreeSet;

use bytes::Bytes;
use fileio::protocol::Handle;

use super::{State, Tables};
use crate::v4::status::Status;
use crate::v4::words::Stateid;

/// To read; or that others do.
pub(crate) const READ: u32 = 1;
/// To write; or that others do.
pub(crate) const WRITE: u32 = 2;

/// An open file.
#[derive(Debug)]
pub(crate) struct Open {
    pub(super) client: u64,
    owner: Bytes,
    pub(super) file: Handle,
    sharing: Sharing,
    pub(super) seqid: u32,
    /// The owners of locks that came through it.
    pub(super) lockers: BTreeSet<u64>,
}

/// How a file is open: bits of [`READ`] and [`WRITE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sharing {
    /// What it is open for.
    pub(crate) access: u32,
    /// What others may not do.
    pub(crate) deny: u32,
}

/// A file that was closed.
#[derive(Debug)]
pub(crate) struct Closed {
    /// It.
    pub(crate) file: Handle,
    /// The numbers of the owners of its locks.
    pub(crate) lockers: Vec<u64>,
}

impl Open {
    /// Does it forbid others something?
    pub(super) fn denies(&self) -> bool {
        self.sharing.deny != 0
    }
}

impl Tables {
    /// Would an opening like this be in the way of another one, or the other way round?
    pub(crate) fn check_share(
        &self,
        file: Handle,
        client: u64,
        owner: &Bytes,
        wanted: Sharing,
    ) -> Result<(), Status> {
        let others = self.by_file.get(&file).into_iter().flatten();
        for number in others {
            let Some(State::Open(open)) = self.states.get(number) else { continue };
            let is_own = open.client == client && open.owner == *owner;
            let conflicts = open.sharing.deny & wanted.access | open.sharing.access & wanted.deny;
            if !is_own && conflicts != 0 {
                return Err(Status::SHARE_DENIED);
            }
        }
        Ok(())
    }

    /// Notes that a file is open; whether it was open for this owner before, and so need not be held
    /// once more.
    //= rfc8881 9.7: the second opening of an owner adds to the first
    pub(crate) fn open(
        &mut self,
        client: u64,
        owner: Bytes,
        file: Handle,
        wanted: Sharing,
    ) -> Result<(u64, bool), Status> {
        self.check_share(file, client, &owner, wanted)?;
        let of_file = self.by_file.get(&file).cloned().unwrap_or_default();
        for number in of_file {
            let Some(State::Open(open)) = self.states.get(&number) else { continue };
            if open.client == client && open.owner == owner {
                let Sharing { access, deny } = open.sharing;
                let both = Sharing { access: access | wanted.access, deny: deny | wanted.deny };
                self.share(number, both)?;
                return Ok((number, true));
            }
        }
        self.check_room(client)?;
        let lockers = BTreeSet::new();
        let open = Open { client, owner, file, sharing: wanted, seqid: 1, lockers };
        Ok((self.add(client, State::Open(open)), false))
    }

    //= rfc8881 18.18.3: only less than before
    /// Opens a file for less.
    pub(crate) fn downgrade(&mut self, number: u64, to: Sharing) -> Result<Stateid, Status> {
        let open = self.open_state(number)?;
        let more = to.access & !open.sharing.access | to.deny & !open.sharing.deny;
        if more != 0 || to.access == 0 {
            return Err(Status::INVAL);
        }
        self.share(number, to)?;
        Ok(self.stateid(number))
    }

    /// The file is open in another way from now on.
    fn share(&mut self, number: u64, to: Sharing) -> Result<(), Status> {
        let open = self.open_state(number)?;
        let before = usize::from(open.denies());
        open.sharing = to;
        open.seqid = next(open.seqid);
        let after = usize::from(open.denies());
        self.denials = self.denials - before + after;
        Ok(())
    }

    /// Closes a file.
    pub(crate) fn close(&mut self, number: u64) -> Result<Closed, Status> {
        let lockers = self.open_state(number)?.lockers.clone();
        let owners = lockers.into_iter().filter_map(|locks| match self.remove(locks) {
            Some(State::Locks(locks)) => Some(locks.id),
            _ => None,
        });
        let lockers = owners.collect();
        match self.remove(number) {
            Some(State::Open(open)) => Ok(Closed { file: open.file, lockers }),
            _ => Err(Status::BAD_STATEID),
        }
    }

    /// The open file behind a state, its own or that of locks, and what it is open for.
    pub(crate) fn opened(&self, number: u64) -> Result<(Handle, u32), Status> {
        match self.states.get(&number) {
            Some(State::Open(open)) => Ok((open.file, open.sharing.access)),
            Some(State::Locks(locks)) => self.opened(locks.open),
            None => Err(Status::BAD_STATEID),
        }
    }

    /// Is there an opening that lets others do less?
    pub(crate) fn denies(&self, file: Handle, access: u32) -> bool {
        let of_file = self.by_file.get(&file).into_iter().flatten();
        of_file
            .filter_map(|number| self.states.get(number))
            .any(|state| matches!(state, State::Open(open) if open.sharing.deny & access != 0))
    }

    /// Does any opening forbid others something?
    pub(crate) fn has_denials(&self) -> bool {
        self.denials > 0
    }

    pub(super) fn open_state(&mut self, number: u64) -> Result<&mut Open, Status> {
        match self.states.get_mut(&number) {
            Some(State::Open(open)) => Ok(open),
            _ => Err(Status::BAD_STATEID),
        }
    }
}

//= rfc8881 8.2.2: "wraps around to one"
pub(super) fn next(seqid: u32) -> u32 {
    seqid.checked_add(1).unwrap_or(1)
}
