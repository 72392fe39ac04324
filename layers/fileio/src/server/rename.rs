//! Renaming. Both names are locked against other changes; one record of the old name's node
//! decides. A lookup of the old name waits meanwhile, so a file never has two names or none.

use meta::partition::partition_of;
use meta::protocol::{
    CallOutcome, CommitDependency, Dentry, Effect, Execute, GetInode, InodeChange, LockRename,
    LockedName, UnlockRename,
};
use runtime::NodeId;

use super::base::is_in_doubt;
use super::call_requests::{CallIdRequest, done};
use super::delegations::ChangeGuard;
use super::names::{
    Names, check_same_partition, count_directories, drop_link, handle_of, retry_races, take_name,
};
use super::remote_locks::RemoteLockGuard;
use crate::hash::name_node;
use crate::protocol::{
    Attributes, Error, Handle, Kind, Name, PartitionRefusal, ROOT, Rename, Time,
};
use crate::rules;

/// Directories above one another, at most: a loop in a damaged tree must not be followed for ever.
const DEPTH_MAX: usize = 1 << 16;

/// What a rename does, once everything was looked up.
struct RenamePlan {
    /// What moves.
    moved: Dentry,
    /// What has the new name now.
    replaced: Option<Dentry>,
    /// A directory changes its place in the tree.
    moves_up: bool,
    time: Time,
}

/// A rename that is permitted.
struct CheckedRename {
    plan: RenamePlan,
    /// The removals that emptied a directory that is replaced.
    removals: Vec<CommitDependency>,
    /// The lock of that directory.
    replaced_lock: Option<RemoteLockGuard>,
    /// What is changed is not delegated before the end.
    changes: Vec<ChangeGuard>,
}

/// A name.
struct RenameName<'a> {
    node: NodeId,
    directory: Handle,
    name: &'a Name,
}

/// The directories of a rename, before it.
struct RenameDirs<'a> {
    from: &'a Attributes,
    to: &'a Attributes,
    /// The record that made the second.
    to_made: CommitDependency,
    /// The epoch in which the rename began.
    since: u64,
    /// No other directory moves into another one meanwhile.
    is_alone: bool,
}

impl CallIdRequest for Rename {
    type Executor = Names;

    async fn perform(&self, names: &Names) -> Result<(), Error> {
        RenameOperation { names, request: self }.run().await
    }

    async fn repeat(&self, _: &Names, outcome: CallOutcome) -> Result<(), Error> {
        done(outcome)
    }

    fn is_stored((): &()) -> bool {
        false
    }
}

/// A rename under way.
struct RenameOperation<'a> {
    names: &'a Names,
    request: &'a Rename,
}

impl RenameOperation<'_> {
    async fn run(&self) -> Result<(), Error> {
        retry_races(async || {
            let found =
                self.names.find(self.request.from_directory, &self.request.from_name).await?;
            let moves_directory = found.is_some_and(|found| found.kind == (Kind::Directory {}));
            if !moves_directory || self.request.from_directory == self.request.to_directory {
                return self.run_once(None).await;
            }
            // Two directories moved into each other at the same time would be lost to the tree.
            let keeper = self.names.base.node_of(ROOT.ino);
            // If the keeper restarts from here on, others may get the lock too.
            let since = self.names.base.context.epoch().0;
            let ((), turn) =
                self.names.remote_locks.lock(keeper, |lock| LockRename { lock }).await?;
            let outcome = self.run_once(Some(since)).await;
            // If this is lost, the lock is orphaned and released later.
            let _ = self.names.remote_locks.release(turn, |lock| UnlockRename { lock }).await;
            outcome
        })
        .await
    }

    /// Depends on locks of the epoch `since` too.
    async fn run_once(&self, since: Option<u64>) -> Result<(), Error> {
        let Rename { from_directory, to_directory, to_name, .. } = self.request;
        let to_node = name_node(to_directory.ino, to_name, self.names.base.context.fs_nodes());
        self.names
            .with_dir_locked(*from_directory, async |from| {
                let from_time = self
                    .names
                    .with_dir_locked_at(*to_directory, to_node, async |to| {
                        let (is_alone, to_made) = (since.is_some(), to.made);
                        let since = since.unwrap_or(from.since);
                        let (from, to) = (&from.attributes, &to.attributes);
                        rules::check_search(&self.request.who, to)?;
                        rules::check_search(&self.request.who, from)?;
                        let above = RenameDirs { from, to, to_made, since, is_alone };
                        self.run_locked(&above, to_node).await
                    })
                    .await?;
                Ok(((), from_time))
            })
            .await
    }

    /// Locks both names for as long as the rename takes. Returns the time of the change for each
    /// directory that has not noted it.
    async fn run_locked(
        &self,
        above: &RenameDirs<'_>,
        to_node: NodeId,
    ) -> Result<(Option<Time>, Option<Time>), Error> {
        let Rename { from_directory, from_name, to_directory, to_name, .. } = self.request;
        if (from_directory.ino, from_name) == (to_directory.ino, to_name) {
            self.names.find(*from_directory, from_name).await?.ok_or(Error::NotFound {})?;
            return if self.request.replace { Ok((None, None)) } else { Err(Error::Exists {}) };
        }
        let old = RenameName {
            node: self.names.base.context.node(),
            directory: *from_directory,
            name: from_name,
        };
        let new = RenameName { node: to_node, directory: *to_directory, name: to_name };
        let ([moved, replaced], locks) = self.lock_both(&old, &new).await?;
        let mut after = vec![above.to_made, moved.changed, replaced.changed];
        let prepared = self.prepare(moved.dentry, replaced.dentry, above).await;
        let CheckedRename { plan, removals, replaced_lock, changes: _changes } = match prepared {
            Ok(Some(prepared)) => prepared,
            nothing => {
                self.unlock_both(locks, &old, &new).await;
                return nothing.map(|_| (None, None));
            }
        };
        after.extend(removals);
        let &Rename { call, durable, .. } = self.request;
        let (effects, since) = (effects(self.request, &plan), above.since);
        let done = self
            .names
            .execute(Execute { effects, claimed: true, since, durable, call, after })
            .await;
        match done {
            Ok(()) => locks.into_iter().chain(replaced_lock).for_each(RemoteLockGuard::finish),
            Err(error) if is_in_doubt(error) => drop((locks, replaced_lock)),
            Err(_) => {
                if let Some((lock, replaced)) = replaced_lock.zip(plan.replaced) {
                    self.names.unlock_dir(lock, &replaced).await;
                }
                self.unlock_both(locks, &old, &new).await;
            }
        }
        done?;
        let [from_links, to_links] = links(self.request, &plan);
        let unless_counted = |links| (links == 0).then_some(plan.time);
        Ok((unless_counted(from_links), unless_counted(to_links)))
    }

    /// Locks two names, in one order for all requests, so that renames do not deadlock. Returns
    /// what they name.
    async fn lock_both(
        &self,
        old: &RenameName<'_>,
        new: &RenameName<'_>,
    ) -> Result<([LockedName; 2], [RemoteLockGuard; 2]), Error> {
        let old_first = (old.directory.ino, old.name) < (new.directory.ino, new.name);
        let (first, second) = if old_first { (old, new) } else { (new, old) };
        let (found, lock) = self.names.lock_name(first.node, first.directory, first.name).await?;
        let (other, other_lock) =
            match self.names.lock_name(second.node, second.directory, second.name).await {
                Ok(locked) => locked,
                Err(error) => {
                    self.names.unlock_name(lock, first.directory, first.name).await;
                    return Err(error);
                }
            };
        Ok(if old_first {
            ([found, other], [lock, other_lock])
        } else {
            ([other, found], [other_lock, lock])
        })
    }

    async fn unlock_both(
        &self,
        locks: [RemoteLockGuard; 2],
        old: &RenameName<'_>,
        new: &RenameName<'_>,
    ) {
        let [of_old, of_new] = locks;
        self.names.unlock_name(of_new, new.directory, new.name).await;
        self.names.unlock_name(of_old, old.directory, old.name).await;
    }

    /// Looks everything up, checks the rules, and locks a directory that is replaced; `None` if
    /// there is nothing to do.
    async fn prepare(
        &self,
        moved: Option<Dentry>,
        replaced: Option<Dentry>,
        above: &RenameDirs<'_>,
    ) -> Result<Option<CheckedRename>, Error> {
        let moved = moved.ok_or(Error::NotFound {})?;
        let Rename { from_directory, to_directory, .. } = self.request;
        check_same_partition(from_directory.ino, to_directory.ino)?;
        let is_root = |dentry: Dentry| partition_of(dentry.ino) != partition_of(to_directory.ino);
        if is_root(moved) || replaced.is_some_and(is_root) {
            return Err(PartitionRefusal::IsRoot {}.into());
        }
        self.names.base.partitions.check_make(to_directory.ino).await?;
        if replaced.is_some() && !self.request.replace {
            return Err(Error::Exists {});
        }
        if replaced.is_some_and(|replaced| replaced.ino == moved.ino) {
            return Ok(None);
        }
        let plan = self.plan(moved, replaced, above).await?;
        let mut changes = Vec::new();
        for dentry in [Some(plan.moved), plan.replaced].into_iter().flatten() {
            changes.extend(self.names.begin_change(&dentry).await?);
        }
        let (removals, replaced_lock) = match plan.replaced_directory() {
            Some(replaced) => {
                let (removals, lock) = self.names.lock_empty_dir(&replaced).await?;
                (removals, Some(lock))
            }
            None => (Vec::new(), None),
        };
        Ok(Some(CheckedRename { plan, removals, replaced_lock, changes }))
    }

    async fn plan(
        &self,
        moved: Dentry,
        replaced: Option<Dentry>,
        above: &RenameDirs<'_>,
    ) -> Result<RenamePlan, Error> {
        let Rename { who, from_directory, to_directory, .. } = self.request;
        let moves_directory = moved.kind == (Kind::Directory {});
        let moves_up = moves_directory && from_directory != to_directory;
        if moves_up && !above.is_alone {
            // It was something else when it was looked up first.
            return Err(Error::Changed {});
        }
        if moves_directory && self.is_below(*to_directory, moved.ino).await? {
            return Err(Error::Invalid {});
        }
        let file = self.names.named(&moved).await?;
        rules::check_take(who, above.from, file.uid)?;
        match &replaced {
            None => rules::check_add(who, above.to)?,
            Some(replaced) => {
                let replaced = self.names.named(replaced).await?;
                rules::check_take(who, above.to, replaced.uid)?;
                match (moves_directory, replaced.kind) {
                    (true, Kind::Directory {}) => {} // must be empty: checked when it is locked
                    (true, _) => return Err(Error::NotDirectory {}),
                    (false, Kind::Directory {}) => return Err(Error::IsDirectory {}),
                    (false, _) => {}
                }
            }
        }
        if moves_up {
            // Its entry `..` changes.
            rules::permit(file.permits(who, meta::attributes::access::WRITE))?;
        }
        if let Some(replaced) = replaced
            && moves_directory
            && self.is_below(self.request.from_directory, replaced.ino).await?
        {
            // Not empty, and it must not be locked to find that out: changes in it, ours among
            // them, would wait for each other.
            return Err(Error::NotEmpty {});
        }
        Ok(RenamePlan { moved, replaced, moves_up, time: self.names.base.now() })
    }

    /// Is `directory` the directory `above`, or in it at any depth?
    async fn is_below(&self, directory: Handle, above: u64) -> Result<bool, Error> {
        let mut ino = directory.ino;
        for _ in 0..DEPTH_MAX {
            if ino == above {
                return Ok(true);
            }
            if ino == ROOT.ino {
                return Ok(false);
            }
            ino = self
                .names
                .base
                .meta(self.names.base.node_of(ino), GetInode { ino, generation: 0 })
                .await?
                .parent;
        }
        Err(Error::Damaged {})
    }
}

impl RenamePlan {
    fn replaced_directory(&self) -> Option<Dentry> {
        self.replaced.filter(|replaced| replaced.kind == (Kind::Directory {}))
    }
}

/// Directories more (or fewer) in the directory of the old and in that of the new name.
fn links(request: &Rename, plan: &RenamePlan) -> [i64; 2] {
    let (moves, replaces) =
        (i64::from(plan.moves_up), i64::from(plan.replaced_directory().is_some()));
    if request.from_directory == request.to_directory {
        return [0, -replaces];
    }
    [-moves, moves - replaces]
}

/// Everything that changes.
fn effects(request: &Rename, plan: &RenamePlan) -> Vec<Effect> {
    let Rename { from_directory, from_name, to_directory, to_name, .. } = request;
    let Handle { ino, generation } = handle_of(&plan.moved);
    let parent = plan.moves_up.then_some(to_directory.ino);
    let change = InodeChange { ctime: Some(plan.time), parent, ..InodeChange::default() };
    let mut effects = vec![
        take_name(*from_directory, from_name, &plan.moved),
        Effect::SetName {
            directory: to_directory.ino,
            name: to_name.clone(),
            expect: plan.replaced,
            set: Some(plan.moved),
        },
        Effect::ChangeParts { ino, generation, change },
    ];
    effects.extend(plan.replaced.map(|replaced| drop_link(&replaced, plan.time)));
    for (directory, links) in [from_directory, to_directory].into_iter().zip(links(request, plan)) {
        if links != 0 {
            effects.push(count_directories(*directory, links, plan.time));
        }
    }
    effects
}
