//! Locks whose holder has lost them
//! ([`ReleaseOrphanedLocks`](crate::protocol::ReleaseOrphanedLocks)).

use std::collections::BTreeSet;
use std::rc::Rc;

use runtime::NodeId;

use super::directories::DirectoryLocks;
use super::names::NameLocks;
use super::owner::{LockValidity, RemoteLockId};
use super::renames::RenameLock;
use crate::attributes::Time;
use crate::protocol::Error;
use crate::server::base::NodeBase;

/// All locks of one node.
pub(crate) struct OrphanedLocks {
    base: Rc<NodeBase>,
    validity: Rc<LockValidity>,
    name_locks: Rc<NameLocks>,
    directories: Rc<DirectoryLocks>,
    renames: Rc<RenameLock>,
}

impl OrphanedLocks {
    pub(crate) fn new(
        base: &Rc<NodeBase>,
        validity: Rc<LockValidity>,
        name_locks: Rc<NameLocks>,
        directories: Rc<DirectoryLocks>,
        renames: Rc<RenameLock>,
    ) -> Self {
        Self { base: base.clone(), validity, name_locks, directories, renames }
    }

    /// Of its remote locks below this number `node` holds only those in `keep`. Whether names were
    /// changed under the others is not known.
    pub(crate) async fn release_orphaned(
        &self,
        node: NodeId,
        below: u64,
        keep: &[u64],
    ) -> Result<(), Error> {
        let keep: BTreeSet<u64> = keep.iter().copied().collect();
        let is_orphaned = |lock: &RemoteLockId| {
            lock.node == node && lock.number < below && !keep.contains(&lock.number)
        };
        let now = Time::from_unix(self.base.context.unix_time());
        self.validity.refuse_below(node, below);
        for directory in self.directories.changed_by(is_orphaned) {
            // One that is gone or damaged has no times.
            if let Err(error @ Error::Undelivered { .. }) =
                self.directories.note(directory, now).await
            {
                return Err(error);
            }
        }
        self.name_locks.release_orphaned(is_orphaned);
        self.directories.release_orphaned(is_orphaned);
        self.renames.release_orphaned(is_orphaned);
        Ok(())
    }
}
