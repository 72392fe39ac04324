//! Locking one name for another node ([`LockName`], [`UnlockName`]).

use std::rc::Rc;

use runtime::NodeId;

use super::names::NameLocks;
use super::owner::RemoteLockId;
use crate::keys;
use crate::protocol::{Error, LockName, LockedName, UnlockName};
use crate::server::base::NodeBase;
use crate::server::record_log::decode;

/// Locks and unlocks names of one node.
pub(crate) struct NameLocking {
    base: Rc<NodeBase>,
    name_locks: Rc<NameLocks>,
}

impl NameLocking {
    pub(crate) fn new(base: &Rc<NodeBase>, name_locks: Rc<NameLocks>) -> Self {
        Self { base: base.clone(), name_locks }
    }

    pub(crate) async fn lock_name(
        &self,
        caller: NodeId,
        request: LockName,
    ) -> Result<LockedName, Error> {
        let LockName { directory, name, lock } = request;
        let key = keys::name(directory, &name);
        let _alone = self.name_locks.lock(&key, false).await?;
        let value = self.base.store.get(&key).await?;
        // What is decided elsewhere on the strength of this must find it so after a crash.
        let (from, to) = keys::only(&key);
        let changed = self
            .base
            .records
            .dependency_for(caller, self.base.store.last_change(&from, &to))
            .await?;
        self.name_locks.claim(key, RemoteLockId { node: caller, number: lock })?;
        Ok(LockedName { dentry: value.map(|value| decode(&value)).transpose()?, changed })
    }

    pub(crate) fn unlock_name(&self, request: &UnlockName, by: NodeId) {
        let UnlockName { directory, name, lock } = request;
        let lock = RemoteLockId { node: by, number: *lock };
        self.name_locks.release(&keys::name(*directory, name), |claimed_by| claimed_by == lock);
    }
}
