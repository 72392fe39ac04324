//! Removing names.

use std::rc::Rc;

use futures::future::try_join_all;
use meta::protocol::{
    CallOutcome, CommitDependency, Dentry, Effect, Execute, HasNames, LockDirExclusive, Occupancy,
    UnlockDirExclusive,
};
use runtime::NodeId;

use super::calls::{CallIdRequest, other_call};
use super::lookup::handle_of;
use super::remote_locks::RemoteLockGuard;
use super::{FileServer, ParentDir, count_directories, is_in_doubt};
use crate::protocol::{Attributes, Error, Handle, Kind, Name, Remove, RemoveDirectory, Time};
use crate::rules;

impl CallIdRequest for Remove {
    async fn perform(&self, server: &Rc<FileServer>) -> Result<Self::Reply, Error> {
        server.remove(self).await
    }

    async fn repeat(&self, _: &FileServer, outcome: CallOutcome) -> Result<Self::Reply, Error> {
        match outcome {
            CallOutcome::Done {} => Ok(()),
            CallOutcome::Made { .. } => other_call(),
        }
    }

    fn is_stored((): &Self::Reply) -> bool {
        true
    }
}

impl CallIdRequest for RemoveDirectory {
    async fn perform(&self, server: &Rc<FileServer>) -> Result<Self::Reply, Error> {
        server.remove_directory(self).await
    }

    async fn repeat(&self, _: &FileServer, outcome: CallOutcome) -> Result<Self::Reply, Error> {
        match outcome {
            CallOutcome::Done {} => Ok(()),
            CallOutcome::Made { .. } => other_call(),
        }
    }

    fn is_stored((): &Self::Reply) -> bool {
        true
    }
}

impl FileServer {
    pub(super) async fn remove(self: &Rc<Self>, request: &Remove) -> Result<(), Error> {
        self.retry_races(async || {
            self.with_dir_locked(request.directory, async |above| {
                self.remove_in(request, above).await
            })
            .await
        })
        .await
    }

    async fn remove_in(
        self: &Rc<Self>,
        request: &Remove,
        &ParentDir { attributes: ref above, since, .. }: &ParentDir,
    ) -> Result<((), Option<Time>), Error> {
        let &Remove { call, ref who, ref directory, ref name, durable } = request;
        let execute = |effects, durable| {
            let after = Vec::new();
            self.execute(Execute { effects, claimed: false, since, durable, call, after })
        };
        rules::check_search(who, above)?;
        let found = self.find(*directory, name).await?.ok_or(Error::NotFound {})?;
        let now = self.now();
        let file = match self.named(&found).await {
            Err(Error::Changed {}) if self.find(*directory, name).await? == Some(found) => {
                // A name goes before its inode, so this is damage, which can be removed.
                rules::check_add(who, above)?;
                let effects = vec![take_name(*directory, name, &found)];
                execute(effects, true).await?;
                return Ok(((), Some(now)));
            }
            file => file?,
        };
        rules::check_take(who, above, file.uid)?;
        if file.kind == (Kind::Directory {}) {
            return Err(Error::IsDirectory {});
        }
        let effects = vec![take_name(*directory, name, &found), drop_link(&found, now)];
        execute(effects, durable).await?;
        Ok(((), Some(now)))
    }

    /// The attributes of what a name names; `Changed` if it was removed just now.
    pub(super) async fn named(&self, dentry: &Dentry) -> Result<Attributes, Error> {
        match self.inode(handle_of(dentry)).await {
            Err(Error::Stale {}) => Err(Error::Changed {}),
            inode => Ok(inode?.attributes),
        }
    }

    pub(super) async fn remove_directory(
        self: &Rc<Self>,
        request: &RemoveDirectory,
    ) -> Result<(), Error> {
        self.retry_races(async || {
            self.with_dir_locked(request.directory, async |above| {
                self.remove_directory_in(request, above).await
            })
            .await
        })
        .await
    }

    async fn remove_directory_in(
        self: &Rc<Self>,
        request: &RemoveDirectory,
        &ParentDir { attributes: ref above, since, .. }: &ParentDir,
    ) -> Result<((), Option<Time>), Error> {
        let &RemoveDirectory { call, ref who, ref directory, ref name, durable } = request;
        rules::check_search(who, above)?;
        let found = self.find(*directory, name).await?.ok_or(Error::NotFound {})?;
        let removed = self.named(&found).await?;
        rules::check_take(who, above, removed.uid)?;
        if removed.kind != (Kind::Directory {}) {
            return Err(Error::NotDirectory {});
        }
        let now = self.now();
        let (after, frozen) = self.freeze_empty(&found).await?;
        let effects = vec![
            take_name(*directory, name, &found),
            drop_link(&found, now),
            count_directories(*directory, -1, now),
        ];
        let removed =
            self.execute(Execute { effects, claimed: false, since, durable, call, after }).await;
        match removed {
            Ok(()) => frozen.finish(),
            Err(error) if is_in_doubt(error) => drop(frozen),
            Err(_) => self.thaw(frozen, &found).await,
        }
        removed.map(|()| ((), None))
    }

    /// Stops changes in a directory that is empty; `NotEmpty` if it is not, and then lets changes
    /// go on. Returns the removals on which it leans that the directory is empty.
    pub(super) async fn freeze_empty(
        &self,
        found: &Dentry,
    ) -> Result<(Vec<CommitDependency>, RemoteLockGuard), Error> {
        let Handle { ino, generation } = handle_of(found);
        let node = self.node_of(ino);
        let freeze = |lock| LockDirExclusive { directory: ino, generation, lock };
        let (occupancy, frozen) = match self.lock_remote(node, freeze).await {
            Err(Error::Stale {}) => return Err(Error::Changed {}),
            occupancy => occupancy?,
        };
        let error = match self.is_empty(ino, &occupancy).await {
            Ok(Some(removals)) => return Ok((removals, frozen)),
            Ok(None) => Error::NotEmpty {},
            Err(error) => error,
        };
        self.thaw(frozen, found).await;
        Err(error)
    }

    /// The directory was not removed. If its node does not hear of it now, it will.
    pub(super) async fn thaw(&self, frozen: RemoteLockGuard, found: &Dentry) {
        let _ = self
            .release_lock(frozen, |lock| UnlockDirExclusive { directory: found.ino, lock })
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
            None => (0..self.context.fs_nodes()).collect(),
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
            let (any, changed) = self.meta(NodeId::fs(node), HasNames { directory }).await?;
            Ok::<_, Error>((node, any, changed))
        });
        try_join_all(asked).await
    }
}

/// A name does not name what it names any more.
pub(super) fn take_name(directory: Handle, name: &Name, found: &Dentry) -> Effect {
    let (directory, name) = (directory.ino, name.clone());
    Effect::SetName { directory, name, expect: Some(*found), set: None }
}

/// What was found has a name less.
pub(super) fn drop_link(found: &Dentry, time: Time) -> Effect {
    Effect::DropLink { ino: found.ino, generation: found.generation, time }
}
