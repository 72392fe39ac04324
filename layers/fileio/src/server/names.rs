//! What all changes of names need: locks on directories and names, and their execution.

use std::rc::Rc;

use meta::partition::partition_of;
use meta::protocol::{
    CommitDependency, Dentry, Effect, Execute, FindName, FlushTo, InodeChange, LockDirShared,
    LockName, LockedName, UnlockDirShared, UnlockName,
};
use runtime::NodeId;
use runtime::protocol::Undelivered;

use super::base::MetadataAccess;
use super::commit::FileCommits;
use super::delegations::ChangeGuard;
use super::remote_locks::{RemoteLockGuard, RemoteLocks};
use crate::protocol::{
    Attributes, BreakDelegations, Error, Handle, Kind, Name, PartitionRefusal, Time, Trim,
};

/// Attempts of an operation on a name that others change at the same time, at most.
pub(super) const RACES_MAX: usize = 64;

/// The names of one node.
pub(super) struct Names {
    pub(super) base: MetadataAccess,
    pub(super) remote_locks: Rc<RemoteLocks>,
    commits: Rc<FileCommits>,
}

/// A directory whose names are about to change.
#[derive(Clone, Copy)]
pub(super) struct ParentDir {
    pub(super) attributes: Attributes,
    /// The record that made it.
    pub(super) made: CommitDependency,
    /// The epoch in which the change began: a node that has restarted since may have forgotten it.
    pub(super) since: u64,
}

impl Names {
    pub(super) fn new(
        base: MetadataAccess,
        remote_locks: Rc<RemoteLocks>,
        commits: Rc<FileCommits>,
    ) -> Self {
        Self { base, remote_locks, commits }
    }

    /// What a name of this node names.
    pub(super) async fn find(
        &self,
        directory: Handle,
        name: &Name,
    ) -> Result<Option<Dentry>, Error> {
        self.base.meta_here(FindName { directory: directory.ino, name: name.clone() }).await
    }

    /// The attributes of what a name names; `Changed` if it was removed just now.
    pub(super) async fn named(&self, dentry: &Dentry) -> Result<Attributes, Error> {
        match self.base.inode(handle_of(dentry)).await {
            Err(Error::Stale {}) => Err(Error::Changed {}),
            inode => Ok(inode?.attributes),
        }
    }

    /// Begins to change what a name names: it is recalled from all who may keep what they have
    /// read. At this node it is delegated to none before the guard is dropped.
    pub(super) async fn begin_change(&self, dentry: &Dentry) -> Result<Option<ChangeGuard>, Error> {
        if dentry.kind != (Kind::File {}) {
            return Ok(None);
        }
        let (file, context) = (handle_of(dentry), &self.base.context);
        let node = self.base.node_of(file.ino);
        if node == context.node() {
            let begun = self.base.begin_change(file.ino);
            return begun.map(Some).ok_or(Error::from(Undelivered::Busy));
        }
        context.spawn(node, BreakDelegations { file, except: 0 }).await?;
        Ok(None)
    }

    /// As [`with_dir_locked`](Self::with_dir_locked), again after a lost race.
    pub(super) async fn change_dir<T>(
        &self,
        directory: Handle,
        work: impl AsyncFn(&ParentDir) -> Result<(T, Option<Time>), Error>,
    ) -> Result<T, Error> {
        retry_races(async || self.with_dir_locked(directory, &work).await).await
    }

    /// Does `work`, which changes names of `directory` at this node, while the directory is kept
    /// from being removed; then notes the time of the change at the directory.
    pub(super) async fn with_dir_locked<T>(
        &self,
        directory: Handle,
        work: impl AsyncFnOnce(&ParentDir) -> Result<(T, Option<Time>), Error>,
    ) -> Result<T, Error> {
        self.with_dir_locked_at(directory, self.base.context.node(), work).await
    }

    /// As [`with_dir_locked`](Self::with_dir_locked), for names at another node.
    pub(super) async fn with_dir_locked_at<T>(
        &self,
        directory: Handle,
        names_at: NodeId,
        work: impl AsyncFnOnce(&ParentDir) -> Result<(T, Option<Time>), Error>,
    ) -> Result<T, Error> {
        let since = self.base.context.epoch().0;
        let node = self.base.node_of(directory.ino);
        let Handle { ino, generation } = directory;
        let begin = |lock| LockDirShared { directory: ino, generation, node: names_at.0, lock };
        let ((inode, made), change) = self.remote_locks.lock(node, begin).await?;
        let outcome = work(&ParentDir { attributes: inode.attributes, made, since }).await;
        let time = outcome.as_ref().ok().and_then(|(_, time)| *time);
        self.remote_locks
            .release(change, |lock| UnlockDirShared {
                directory: ino,
                time,
                node: names_at.0,
                lock,
            })
            .await?;
        outcome.map(|(value, _)| value)
    }

    /// Executes `work` whole or not at all; then frees the files that it removed.
    pub(super) async fn execute(&self, work: Execute) -> Result<(), Error> {
        for ino in self.base.meta_here(work).await? {
            let node = self.base.node_of(ino);
            if node == self.base.context.node() {
                self.commits.trim_later(ino);
            } else {
                // If this is lost, the node finds the file by itself.
                self.base.context.notify(node, Trim { ino });
            }
        }
        Ok(())
    }

    /// Locks a name at `node` against other changes. Returns what it names.
    pub(super) async fn lock_name(
        &self,
        node: NodeId,
        directory: Handle,
        name: &Name,
    ) -> Result<(LockedName, RemoteLockGuard), Error> {
        let (directory, name) = (directory.ino, name.clone());
        self.remote_locks.lock(node, |lock| LockName { directory, name, lock }).await
    }

    /// Releases the lock of a name that was not changed. If the reply is lost, the lock is
    /// orphaned.
    pub(super) async fn unlock_name(&self, lock: RemoteLockGuard, directory: Handle, name: &Name) {
        let (directory, name) = (directory.ino, name.clone());
        let _ = self.remote_locks.release(lock, |lock| UnlockName { directory, name, lock }).await;
    }

    /// A name that another request made may not be durable yet; locking it waits until it is.
    pub(super) async fn make_name_durable(
        &self,
        directory: Handle,
        name: &Name,
        found: Dentry,
    ) -> Result<(), Error> {
        let node = self.base.context.node();
        let (locked, lock) = self.lock_name(node, directory, name).await?;
        self.unlock_name(lock, directory, name).await;
        if locked.dentry != Some(found) {
            return Err(Error::Changed {});
        }
        // The name is at this node: there is no record of another one to wait for.
        self.base.meta_here(FlushTo { position: u64::MAX }).await?;
        Ok(())
    }
}

/// Retries an operation that lost a race against another change of the same name.
pub(super) async fn retry_races<T>(
    attempt: impl AsyncFn() -> Result<T, Error>,
) -> Result<T, Error> {
    for _ in 0..RACES_MAX {
        match attempt().await {
            Err(Error::Changed {}) => {}
            outcome => return outcome,
        }
    }
    Err(Undelivered::Busy.into())
}

/// The handle of what a name names.
pub(super) fn handle_of(dentry: &Dentry) -> Handle {
    Handle { ino: dentry.ino, generation: dentry.generation }
}

/// A directory has `links` more subdirectories (or fewer).
pub(super) fn count_directories(directory: Handle, links: i64, time: Time) -> Effect {
    let Handle { ino, generation } = directory;
    let change =
        InodeChange { mtime: Some(time), ctime: Some(time), links, ..InodeChange::default() };
    Effect::ChangeParts { ino, generation, change }
}

/// A name is removed.
pub(super) fn take_name(directory: Handle, name: &Name, found: &Dentry) -> Effect {
    let (directory, name) = (directory.ino, name.clone());
    Effect::SetName { directory, name, expect: Some(*found), set: None }
}

/// What was found has one name less.
pub(super) fn drop_link(found: &Dentry, time: Time) -> Effect {
    Effect::DropLink { ino: found.ino, generation: found.generation, time }
}

/// A file has names in one partition only.
pub(super) fn check_same_partition(one: u64, other: u64) -> Result<(), Error> {
    let is_same = partition_of(one) == partition_of(other);
    if is_same { Ok(()) } else { Err(PartitionRefusal::Crossing {}.into()) }
}
