//! Files that clients have open.

use std::collections::BTreeMap;

use meta::attributes::access;
use runtime::protocol::Undelivered;

use super::state::{ModelState, permit};
use crate::locks::{LockRefusal, LockTable};
use crate::protocol::{
    Attributes, ByteRange, CallId, CloseHandle, Error, FileLock, Kind, Lock, LockResult, Lookup,
    Open, OpenHandle, OpenNew, OpenedFile, OpenedNewFile, TestLock, Time, Unlock,
};

/// The lease of all clients.
pub(super) const LEASE_ID: u64 = 1;

/// Clients that have files open, and their locks. Leases never end.
#[derive(Debug, Default)]
pub(super) struct ModelOpenFiles {
    /// For each file the clients, with the call that opened it last.
    clients: BTreeMap<u64, BTreeMap<u64, u64>>,
    locks: LockTable,
}

impl ModelOpenFiles {
    pub(super) fn has_any(&self) -> bool {
        !self.clients.is_empty()
    }

    pub(super) fn is_open(&self, ino: u64) -> bool {
        self.clients.contains_key(&ino)
    }

    fn has_open(&self, ino: u64, client: u64) -> bool {
        self.clients.get(&ino).is_some_and(|clients| clients.contains_key(&client))
    }

    /// The number may be given to another file.
    pub(super) fn forget(&mut self, ino: u64) {
        self.clients.remove(&ino);
    }

    pub(super) fn lock(&mut self, r: &Lock) -> Result<LockResult, Error> {
        check_range(r.range)?;
        let clients = self.clients.get(&r.file.ino);
        if r.lease != LEASE_ID || !clients.is_some_and(|all| all.contains_key(&r.owner.client)) {
            return Ok(LockResult::Unheld {});
        }
        if r.reclaim {
            return Ok(LockResult::Late {});
        }
        match self.locks.lock(r.file.ino, r.owner, r.range, r.kind) {
            Ok(()) => Ok(LockResult::Granted {}),
            Err(LockRefusal::Conflict(lock)) => Ok(LockResult::Conflict { lock }),
            Err(LockRefusal::Full) => Err(Undelivered::Busy.into()),
        }
    }

    pub(super) fn test_lock(&self, r: &TestLock) -> Result<Option<FileLock>, Error> {
        check_range(r.range)?;
        Ok(self.locks.conflict(r.file.ino, r.owner, r.range, r.kind))
    }

    pub(super) fn unlock(&mut self, r: &Unlock) -> Result<(), Error> {
        check_range(r.range)?;
        let unlocked = self.locks.unlock(r.file.ino, r.owner, r.range);
        unlocked.map_err(|_| Undelivered::Busy.into())
    }

    fn open(&mut self, call: CallId, attributes: Attributes) -> OpenedFile {
        if attributes.kind != (Kind::File {}) {
            return OpenedFile { attributes, lease: 0 };
        }
        self.keep(call, attributes)
    }

    fn keep(&mut self, call: CallId, attributes: Attributes) -> OpenedFile {
        let clients = self.clients.entry(attributes.ino).or_default();
        let last = clients.entry(call.client).or_default();
        *last = call.number.max(*last);
        OpenedFile { attributes, lease: LEASE_ID }
    }

    /// Closes a file for the client of `call`; false if it is still open.
    fn close(&mut self, ino: u64, call: CallId) -> bool {
        let Some(clients) = self.clients.get_mut(&ino) else { return false };
        // The client has opened it again since.
        if clients.get(&call.client).is_none_or(|last| *last > call.number) {
            return false;
        }
        clients.remove(&call.client);
        self.locks.release(ino, call.client);
        let is_last = clients.is_empty();
        if is_last {
            self.clients.remove(&ino);
        }
        is_last
    }
}

impl ModelState {
    pub(super) fn open_handle(&mut self, r: &OpenHandle) -> Result<OpenedFile, Error> {
        let attributes = self.attributes(&r.file)?;
        let lists = attributes.kind == (Kind::Directory {}) && r.access == access::READ;
        if attributes.kind != (Kind::File {}) && !lists {
            return Ok(OpenedFile { attributes, lease: 0 });
        }
        permit(attributes.permits(&r.who, r.access))?;
        if r.access != 0 {
            let inode = self.inode_mut(&r.file)?;
            *inode.rights.entry((r.who.uid, r.call.client)).or_default() |= r.access;
        }
        Ok(self.open_files.keep(r.call, attributes))
    }

    pub(super) fn close_handle(&mut self, r: &CloseHandle) {
        let ino = r.file.ino;
        // The number may be another file's by now.
        if self.attributes(&r.file).is_err() {
            return;
        }
        let is_closed = self.open_files.close(ino, r.call);
        let client = r.call.client;
        if !self.open_files.has_open(ino, client)
            && let Ok(inode) = self.inode_mut(&r.file)
        {
            inode.rights.retain(|(_, holder), _| *holder != client);
        }
        if is_closed && self.attributes(&r.file).is_ok_and(|file| file.links == 0) {
            self.end(ino);
        }
    }

    pub(super) fn open(&mut self, r: &Open) -> Result<OpenedFile, Error> {
        let (who, directory, name) = (r.who.clone(), r.directory, r.name.clone());
        let attributes = self.lookup(&Lookup { who, directory, name })?;
        Ok(self.open_files.open(r.call, attributes))
    }

    pub(super) fn open_new(&mut self, r: &OpenNew, now: Time) -> Result<OpenedNewFile, Error> {
        let created = self.create(&r.creation(), now)?;
        let OpenedFile { lease, .. } = self.open_files.open(r.call, created.attributes);
        Ok(OpenedNewFile { created, lease })
    }
}

fn check_range(range: ByteRange) -> Result<(), Error> {
    if range.first <= range.last { Ok(()) } else { Err(Error::Invalid {}) }
}
