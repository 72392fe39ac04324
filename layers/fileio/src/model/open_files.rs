//! Files that clients have open.

use runtime::protocol::Undelivered;

use super::state::ModelState;
use crate::locks::LockRefusal;
use crate::protocol::{
    Attributes, ByteRange, CallId, CloseHandle, Create, Error, FileLock, Kind, Lock, LockResult,
    Lookup, Open, OpenHandle, OpenNew, OpenedFile, OpenedNewFile, TestLock, Time, Unlock,
};

/// The lease of all clients.
pub(super) const LEASE_ID: u64 = 1;

impl ModelState {
    pub(super) fn hold(&mut self, r: &OpenHandle) -> Result<OpenedFile, Error> {
        let attributes = self.attributes(&r.file)?;
        Ok(self.held(r.call, attributes))
    }

    pub(super) fn close_handle(&mut self, r: &CloseHandle) {
        let ino = r.file.ino;
        // The number may be another file's by now.
        if self.attributes(&r.file).is_err() {
            return;
        }
        let Some(holders) = self.holders.get_mut(&ino) else { return };
        // The client has opened it again since.
        if holders.get(&r.call.client).is_none_or(|held| *held > r.call.number) {
            return;
        }
        holders.remove(&r.call.client);
        self.locks.release(ino, r.call.client);
        if holders.is_empty() {
            self.holders.remove(&ino);
            if self.attributes(&r.file).is_ok_and(|file| file.links == 0) {
                self.end(ino);
            }
        }
    }

    pub(super) fn open(&mut self, r: &Open) -> Result<OpenedFile, Error> {
        let (who, directory, name) = (r.who.clone(), r.directory, r.name.clone());
        let attributes = self.lookup(&Lookup { who, directory, name })?;
        Ok(self.held(r.call, attributes))
    }

    pub(super) fn open_new(&mut self, r: &OpenNew, now: Time) -> Result<OpenedNewFile, Error> {
        let OpenNew { who, call, directory, name, existing, change, durable } = r.clone();
        let create = Create { who, call, directory, name, existing, change, durable };
        let created = self.create(&create, now)?;
        let OpenedFile { lease, .. } = self.held(call, created.attributes);
        Ok(OpenedNewFile { created, lease })
    }

    pub(super) fn lock(&mut self, r: &Lock) -> Result<LockResult, Error> {
        check_range(r.range)?;
        let holders = self.holders.get(&r.file.ino);
        if r.lease != LEASE_ID || !holders.is_some_and(|all| all.contains_key(&r.owner.client)) {
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

    fn held(&mut self, call: CallId, attributes: Attributes) -> OpenedFile {
        if attributes.kind != (Kind::File {}) {
            return OpenedFile { attributes, lease: 0 };
        }
        let holders = self.holders.entry(attributes.ino).or_default();
        let last = holders.entry(call.client).or_default();
        *last = call.number.max(*last);
        OpenedFile { attributes, lease: LEASE_ID }
    }
}

fn check_range(range: ByteRange) -> Result<(), Error> {
    if range.first <= range.last { Ok(()) } else { Err(Error::Invalid {}) }
}
