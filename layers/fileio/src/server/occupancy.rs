//! Which nodes have names of a directory, and whether it is empty.

use futures::future::try_join_all;
use meta::protocol::{
    CommitDependency, Dentry, HasNames, LockDirExclusive, Occupancy, UnlockDirExclusive,
};
use runtime::NodeId;

use super::names::{Names, handle_of};
use super::remote_locks::RemoteLockGuard;
use crate::protocol::{Error, Handle};

impl Names {
    /// Locks a directory against changes if it is empty; `NotEmpty` if it is not. Returns the
    /// removals that made it empty.
    pub(super) async fn lock_empty_dir(
        &self,
        found: &Dentry,
    ) -> Result<(Vec<CommitDependency>, RemoteLockGuard), Error> {
        let Handle { ino, generation } = handle_of(found);
        let node = self.base.node_of(ino);
        let call = |lock| LockDirExclusive { directory: ino, generation, lock };
        let (occupancy, lock) = match self.remote_locks.lock(node, call).await {
            Err(Error::Stale {}) => return Err(Error::Changed {}),
            occupancy => occupancy?,
        };
        let error = match self.is_empty(ino, &occupancy).await {
            Ok(Some(removals)) => return Ok((removals, lock)),
            Ok(None) => Error::NotEmpty {},
            Err(error) => error,
        };
        self.unlock_dir(lock, found).await;
        Err(error)
    }

    /// Unlocks a directory that was not removed. If the message is lost, the lock is orphaned.
    pub(super) async fn unlock_dir(&self, lock: RemoteLockGuard, found: &Dentry) {
        let _ = self
            .remote_locks
            .release(lock, |lock| UnlockDirExclusive { directory: found.ino, lock })
            .await;
    }

    /// The last removals from the directory if it is empty, else `None`.
    async fn is_empty(
        &self,
        directory: u64,
        occupancy: &Occupancy,
    ) -> Result<Option<Vec<CommitDependency>>, Error> {
        let nodes = match &occupancy.nodes {
            Some(nodes) => nodes.clone(),
            None => (0..self.base.context.fs_nodes()).collect(),
        };
        let found = self.look_for_names(directory, nodes).await?;
        let is_empty = !found.iter().any(|(_, any, _)| *any);
        Ok(is_empty.then(|| found.into_iter().map(|(.., changed)| changed).collect()))
    }

    /// Those of `nodes` that hold names of `directory`.
    pub(super) async fn occupied_nodes(
        &self,
        directory: u64,
        nodes: Vec<u32>,
    ) -> Result<Vec<u32>, Error> {
        let found = self.look_for_names(directory, nodes).await?;
        Ok(found.into_iter().filter(|(_, any, _)| *any).map(|(node, ..)| node).collect())
    }

    /// Whether each of `nodes` holds names of `directory`, and the last removal of one if not.
    async fn look_for_names(
        &self,
        directory: u64,
        nodes: Vec<u32>,
    ) -> Result<Vec<(u32, bool, CommitDependency)>, Error> {
        let asked = nodes.into_iter().map(|node| async move {
            let found = self.base.meta(NodeId::fs(node), HasNames { directory }).await;
            if found.is_err() && self.base.is_read_only {
                // It may have some that can be read.
                return Ok((node, true, CommitDependency::default()));
            }
            let (any, changed) = found?;
            Ok::<_, Error>((node, any, changed))
        });
        try_join_all(asked).await
    }
}
