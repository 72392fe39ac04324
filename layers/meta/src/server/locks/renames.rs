//! The one rename of a directory into another one that may be under way in a volume
//! ([`LockRename`], [`UnlockRename`], at the root's node).
//!
//! [`LockRename`]: crate::protocol::LockRename
//! [`UnlockRename`]: crate::protocol::UnlockRename

use std::cell::Cell;
use std::rc::Rc;

use runtime::protocol::Undelivered;
use runtime::sync::Limit;

use super::owner::{LockValidity, RemoteLockId};
use crate::protocol::Error;

/// Renames that wait for the lock, at most.
const RENAMES_WAITING_MAX: usize = 1024;

/// The lock on renames of directories.
pub(crate) struct RenameLock {
    validity: Rc<LockValidity>,
    queue: Limit,
    holder: Cell<Option<RemoteLockId>>,
}

impl RenameLock {
    pub(crate) fn new(validity: Rc<LockValidity>) -> Self {
        Self { validity, queue: Limit::new(1, RENAMES_WAITING_MAX), holder: Cell::new(None) }
    }

    /// Waits for the lock, for `by`.
    pub(crate) async fn lock(&self, by: RemoteLockId) -> Result<(), Error> {
        let permit = self.queue.acquire().await.ok_or(Undelivered::Busy)?;
        self.validity.check(by)?;
        // Given back by [`unlock`](Self::unlock), which is another request.
        std::mem::forget(permit);
        self.holder.set(Some(by));
        Ok(())
    }

    /// Does nothing if `by` does not hold it: this node may have restarted and given it to another.
    pub(crate) fn unlock(&self, by: RemoteLockId) {
        self.release_if(|now| *now == by);
    }

    fn release_if(&self, is_meant: impl FnOnce(&RemoteLockId) -> bool) {
        if self.holder.get().as_ref().is_some_and(is_meant) {
            self.holder.set(None);
            self.queue.put_back();
        }
    }

    /// Gives the lock up if it is void.
    pub(crate) fn release_orphaned(&self, is_orphaned: impl Fn(&RemoteLockId) -> bool) {
        self.release_if(is_orphaned);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use runtime::NodeId;

    use super::*;

    fn lock(node: u32, number: u64) -> RemoteLockId {
        RemoteLockId { node: NodeId::fs(node), number }
    }

    #[test]
    fn an_unlock_of_an_earlier_boot_does_not_release_the_lock_of_another() {
        // The node has restarted, so it does not know lock 1.
        let renames = RenameLock::new(Rc::default());
        let take = |by| renames.lock(by).now_or_never();
        assert_eq!(take(lock(2, 2)), Some(Ok(())));
        renames.unlock(lock(2, 1));
        assert_eq!(take(lock(3, 3)), None, "node 2 holds it");
        renames.unlock(lock(2, 2));
        assert_eq!(take(lock(3, 4)), Some(Ok(())));
        renames.release_orphaned(|lock| lock.node == NodeId::fs(2));
        assert_eq!(take(lock(2, 5)), None, "only the node that restarted has lost its lock");
        renames.release_orphaned(|lock| lock.node == NodeId::fs(3));
        assert_eq!(take(lock(2, 6)), Some(Ok(())));
    }
}
