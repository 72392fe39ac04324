//! Locks on names at other nodes.

use meta::protocol::{LockName, LockedName, UnlockName};
use runtime::NodeId;

use super::FileServer;
use super::remote_locks::RemoteLockGuard;
use crate::protocol::{Error, Handle, Name};

impl FileServer {
    /// Locks a name at `node` against other changes. Returns what it names.
    pub(super) async fn lock_name(
        &self,
        node: NodeId,
        directory: Handle,
        name: &Name,
    ) -> Result<(LockedName, RemoteLockGuard), Error> {
        let (directory, name) = (directory.ino, name.clone());
        self.lock_remote(node, |lock| LockName { directory, name, lock }).await
    }

    /// Releases the lock of a name that was not changed. If the reply is lost, the lock is orphaned.
    pub(super) async fn unlock_name(&self, claim: RemoteLockGuard, directory: Handle, name: &Name) {
        let (directory, name) = (directory.ino, name.clone());
        let _ = self.release_lock(claim, |lock| UnlockName { directory, name, lock }).await;
    }
}
