//! Open files and their share reservations (RFC 8881 sections 9.7 and 18.16).

use std::collections::BTreeSet;

use bytes::Bytes;
use fileio::protocol::Handle;

use super::stateids::{OpenState, READ, ShareReservation, StateEntry, StateidTable, next_seqid};
use crate::v4::status::Status;
use crate::v4::types::Stateid;

/// A file that was closed.
#[derive(Debug)]
pub(crate) struct ClosedFile {
    pub(crate) file: Handle,
    /// The ids of its lock owners at the nodes.
    pub(crate) lock_owners: Vec<u64>,
}

impl StateidTable {
    /// Does an open with the reservation `wanted` conflict with another one?
    pub(crate) fn check_share(
        &self,
        file: Handle,
        client: u64,
        owner: &Bytes,
        wanted: ShareReservation,
    ) -> Result<(), Status> {
        let others = self.by_file.get(&file).into_iter().flatten();
        for number in others {
            let Some(StateEntry::Open(open)) = self.states.get(number) else { continue };
            let is_own = open.client == client && open.owner == *owner;
            let conflicts = open.share.deny & wanted.access | open.share.access & wanted.deny;
            if !is_own && conflicts != 0 {
                return Err(Status::SHARE_DENIED);
            }
        }
        Ok(())
    }

    /// Adds an open; returns its number, and whether this owner had the file open before.
    //= rfc8881 9.7: the second opening of an owner adds to the first
    pub(crate) fn open(
        &mut self,
        client: u64,
        owner: Bytes,
        file: Handle,
        wanted: ShareReservation,
    ) -> Result<(u64, bool), Status> {
        self.check_share(file, client, &owner, wanted)?;
        let of_file = self.by_file.get(&file).cloned().unwrap_or_default();
        for number in of_file {
            let Some(StateEntry::Open(open)) = self.states.get(&number) else { continue };
            if open.client == client && open.owner == owner {
                let ShareReservation { access, deny } = open.share;
                let deny = deny | wanted.deny;
                self.set_share(number, ShareReservation { access: access | wanted.access, deny })?;
                return Ok((number, true));
            }
        }
        self.check_limits(client)?;
        let locks = BTreeSet::new();
        let open = OpenState { client, owner, file, share: wanted, seqid: 1, locks };
        Ok((self.insert(StateEntry::Open(open)), false))
    }

    //= rfc8881 18.18.3: only less than before
    /// Reduces the share reservation of an open file.
    pub(crate) fn downgrade(
        &mut self,
        number: u64,
        to: ShareReservation,
    ) -> Result<Stateid, Status> {
        let open = self.open_state(number)?;
        let more = to.access & !open.share.access | to.deny & !open.share.deny;
        if more != 0 || to.access == 0 {
            return Err(Status::INVAL);
        }
        self.set_share(number, to)?;
        Ok(self.stateid(number))
    }

    /// Sets the share reservation of an open file.
    fn set_share(&mut self, number: u64, to: ShareReservation) -> Result<(), Status> {
        let open = self.open_state(number)?;
        let before = usize::from(open.denies());
        open.share = to;
        open.seqid = next_seqid(open.seqid);
        let after = usize::from(open.denies());
        self.denials = self.denials - before + after;
        Ok(())
    }

    pub(crate) fn close(&mut self, number: u64) -> Result<ClosedFile, Status> {
        let locks = self.open_state(number)?.locks.clone();
        let owners = locks.into_iter().filter_map(|locks| match self.remove(locks) {
            Some(StateEntry::Locks(locks)) => Some(locks.owner_id),
            _ => None,
        });
        let lock_owners = owners.collect();
        match self.remove(number) {
            Some(StateEntry::Open(open)) => Ok(ClosedFile { file: open.file, lock_owners }),
            _ => Err(Status::BAD_STATEID),
        }
    }

    /// The file of a state, and what it may be used for.
    pub(crate) fn open_file(&self, number: u64) -> Result<(Handle, u32), Status> {
        match self.states.get(&number) {
            Some(StateEntry::Open(open)) => Ok((open.file, open.share.access)),
            Some(StateEntry::Locks(locks)) => self.open_file(locks.open),
            Some(StateEntry::Delegation(_)) => {
                let delegation = self.delegation(number)?;
                Ok((delegation.file, READ))
            }
            None => Err(Status::BAD_STATEID),
        }
    }

    /// Does an open deny others `access` to the file?
    pub(crate) fn denies(&self, file: Handle, access: u32) -> bool {
        let of_file = self.by_file.get(&file).into_iter().flatten();
        of_file
            .filter_map(|number| self.states.get(number))
            .any(|state| matches!(state, StateEntry::Open(open) if open.share.deny & access != 0))
    }

    /// Does any open deny others something?
    pub(crate) fn has_denials(&self) -> bool {
        self.denials > 0
    }

    pub(super) fn open_state(&mut self, number: u64) -> Result<&mut OpenState, Status> {
        match self.states.get_mut(&number) {
            Some(StateEntry::Open(open)) => Ok(open),
            _ => Err(Status::BAD_STATEID),
        }
    }
}
