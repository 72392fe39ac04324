//! Renaming. Both names are locked against other changes; one record of the old name's node decides. A
//! lookup of the old name waits meanwhile, so a file never has two names or none.

use std::rc::Rc;

use meta::protocol::{
    CallOutcome, CommitDependency, Dentry, Effect, Execute, GetInode, InodeChange, LockRename,
    LockedName, UnlockRename,
};
use runtime::NodeId;

use super::calls::{CallIdRequest, other_call};
use super::lookup::handle_of;
use super::remote_locks::RemoteLockGuard;
use super::remove::{drop_link, take_name};
use super::{FileServer, count_directories, is_in_doubt};
use crate::hash::name_node;
use crate::protocol::{Attributes, Error, Handle, Kind, Name, ROOT, Rename, Time};
use crate::rules;

/// Directories above one another, at most: a loop in a damaged tree must not be followed for ever.
const DEPTH_MAX: usize = 1 << 16;

/// What a rename is about, once everything was looked up.
struct RenamePlan {
    /// What moves.
    moved: Dentry,
    /// What has the new name now.
    replaced: Option<Dentry>,
    /// A directory changes its place in the tree.
    moves_up: bool,
    time: Time,
}

/// What a rename is about, and that it may be done.
struct CheckedRename {
    plan: RenamePlan,
    /// On which it leans that a directory which is replaced is empty.
    removals: Vec<CommitDependency>,
    /// That directory.
    frozen: Option<RemoteLockGuard>,
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
    /// The epoch before the first was told of it.
    since: u64,
}

impl CallIdRequest for Rename {
    async fn perform(&self, server: &Rc<FileServer>) -> Result<Self::Reply, Error> {
        server.rename(self).await
    }

    async fn repeat(&self, _: &FileServer, outcome: CallOutcome) -> Result<Self::Reply, Error> {
        match outcome {
            CallOutcome::Done {} => Ok(()),
            CallOutcome::Made { .. } => other_call(),
        }
    }

    fn is_stored((): &Self::Reply) -> bool {
        false
    }
}

impl FileServer {
    pub(super) async fn rename(self: &Rc<Self>, request: &Rename) -> Result<(), Error> {
        self.retry_races(async || {
            let found = self.find(request.from_directory, &request.from_name).await?;
            let moves_directory = found.is_some_and(|found| found.kind == (Kind::Directory {}));
            if !moves_directory || request.from_directory == request.to_directory {
                return self.rename_once(request, None).await;
            }
            // Two directories moved into each other at the same time would be lost to the tree.
            let keeper = self.node_of(ROOT.ino);
            // If the keeper comes back from here on, others have a turn too.
            let since = self.context.epoch().0;
            let ((), turn) = self.lock_remote(keeper, |lock| LockRename { lock }).await?;
            let outcome = self.rename_once(request, Some(since)).await;
            // If the keeper does not hear of it now, it will.
            let _ = self.release_lock(turn, |lock| UnlockRename { lock }).await;
            outcome
        })
        .await
    }

    /// Leans on what was prepared in the epoch `since` too.
    async fn rename_once(
        self: &Rc<Self>,
        request: &Rename,
        since: Option<u64>,
    ) -> Result<(), Error> {
        let Rename { from_directory, to_directory, to_name, .. } = request;
        let to_node = name_node(to_directory.ino, to_name, self.context.fs_nodes());
        self.with_dir_locked(*from_directory, async |from| {
            let from_time = self
                .with_dir_locked_at(*to_directory, to_node, async |to| {
                    let (since, to_made) = (since.unwrap_or(from.since), to.made);
                    let (from, to) = (&from.attributes, &to.attributes);
                    rules::check_search(&request.who, to)?;
                    rules::check_search(&request.who, from)?;
                    let above = RenameDirs { from, to, to_made, since };
                    self.rename_claimed(request, &above, to_node).await
                })
                .await?;
            Ok(((), from_time))
        })
        .await
    }

    /// Claims both names for as long as the rename takes. Returns when the directories changed, for
    /// each that does not know.
    async fn rename_claimed(
        self: &Rc<Self>,
        request: &Rename,
        above: &RenameDirs<'_>,
        to_node: NodeId,
    ) -> Result<(Option<Time>, Option<Time>), Error> {
        let Rename { from_directory, from_name, to_directory, to_name, .. } = request;
        if (from_directory.ino, from_name) == (to_directory.ino, to_name) {
            self.find(*from_directory, from_name).await?.ok_or(Error::NotFound {})?;
            return if request.replace { Ok((None, None)) } else { Err(Error::Exists {}) };
        }
        let old =
            RenameName { node: self.context.node(), directory: *from_directory, name: from_name };
        let new = RenameName { node: to_node, directory: *to_directory, name: to_name };
        let ([moved, replaced], claims) = self.claim_both(&old, &new).await?;
        let mut after = vec![above.to_made, moved.changed, replaced.changed];
        let prepared = self.prepare(request, moved.dentry, replaced.dentry, above).await;
        let CheckedRename { plan, removals, frozen } = match prepared {
            Ok(Some(prepared)) => prepared,
            nothing => {
                self.unclaim_both(claims, &old, &new).await;
                return nothing.map(|_| (None, None));
            }
        };
        after.extend(removals);
        let &Rename { call, durable, .. } = request;
        let (effects, since) = (effects(request, &plan), above.since);
        let done =
            self.execute(Execute { effects, claimed: true, since, durable, call, after }).await;
        match done {
            Ok(()) => claims.into_iter().chain(frozen).for_each(RemoteLockGuard::finish),
            Err(error) if is_in_doubt(error) => drop((claims, frozen)),
            Err(_) => {
                if let Some((frozen, replaced)) = frozen.zip(plan.replaced) {
                    self.thaw(frozen, &replaced).await;
                }
                self.unclaim_both(claims, &old, &new).await;
            }
        }
        done?;
        let [from_links, to_links] = links(request, &plan);
        let unless_counted = |links| (links == 0).then_some(plan.time);
        Ok((unless_counted(from_links), unless_counted(to_links)))
    }

    /// Claims two names in an order that all follow, so that renames do not hinder one another for
    /// ever; what they name.
    async fn claim_both(
        &self,
        old: &RenameName<'_>,
        new: &RenameName<'_>,
    ) -> Result<([LockedName; 2], [RemoteLockGuard; 2]), Error> {
        let old_first = (old.directory.ino, old.name) < (new.directory.ino, new.name);
        let (first, second) = if old_first { (old, new) } else { (new, old) };
        let (found, claim) = self.lock_name(first.node, first.directory, first.name).await?;
        let (other, other_claim) =
            match self.lock_name(second.node, second.directory, second.name).await {
                Ok(claimed) => claimed,
                Err(error) => {
                    self.unlock_name(claim, first.directory, first.name).await;
                    return Err(error);
                }
            };
        Ok(if old_first {
            ([found, other], [claim, other_claim])
        } else {
            ([other, found], [other_claim, claim])
        })
    }

    async fn unclaim_both(
        &self,
        claims: [RemoteLockGuard; 2],
        old: &RenameName<'_>,
        new: &RenameName<'_>,
    ) {
        let [of_old, of_new] = claims;
        self.unlock_name(of_new, new.directory, new.name).await;
        self.unlock_name(of_old, old.directory, old.name).await;
    }

    /// Looks everything up, checks the rules, and freezes a directory that is replaced; `None` if
    /// there is nothing to do.
    async fn prepare(
        &self,
        request: &Rename,
        moved: Option<Dentry>,
        replaced: Option<Dentry>,
        above: &RenameDirs<'_>,
    ) -> Result<Option<CheckedRename>, Error> {
        let moved = moved.ok_or(Error::NotFound {})?;
        if replaced.is_some() && !request.replace {
            return Err(Error::Exists {});
        }
        if replaced.is_some_and(|replaced| replaced.ino == moved.ino) {
            return Ok(None);
        }
        let plan = self.plan_rename(request, moved, replaced, above).await?;
        let (removals, frozen) = match plan.replaced_directory() {
            Some(replaced) => {
                let (removals, frozen) = self.freeze_empty(&replaced).await?;
                (removals, Some(frozen))
            }
            None => (Vec::new(), None),
        };
        Ok(Some(CheckedRename { plan, removals, frozen }))
    }

    async fn plan_rename(
        &self,
        request: &Rename,
        moved: Dentry,
        replaced: Option<Dentry>,
        above: &RenameDirs<'_>,
    ) -> Result<RenamePlan, Error> {
        let Rename { who, from_directory, to_directory, .. } = request;
        let moves_directory = moved.kind == (Kind::Directory {});
        if moves_directory && self.is_below(*to_directory, moved.ino).await? {
            return Err(Error::Invalid {});
        }
        let file = self.named(&moved).await?;
        rules::check_take(who, above.from, file.uid)?;
        match &replaced {
            None => rules::check_add(who, above.to)?,
            Some(replaced) => {
                let replaced = self.named(replaced).await?;
                rules::check_take(who, above.to, replaced.uid)?;
                match (moves_directory, replaced.kind) {
                    (true, Kind::Directory {}) => {} // must be empty: seen when it is frozen
                    (true, _) => return Err(Error::NotDirectory {}),
                    (false, Kind::Directory {}) => return Err(Error::IsDirectory {}),
                    (false, _) => {}
                }
            }
        }
        let moves_up = moves_directory && from_directory != to_directory;
        if moves_up {
            // Its entry `..` changes.
            rules::permit(file.permits(who, meta::attributes::access::WRITE))?;
        }
        if let Some(replaced) = replaced
            && moves_directory
            && self.is_below(request.from_directory, replaced.ino).await?
        {
            // Not empty, and it must not be frozen to find that out: changes in it, ours among them,
            // would wait for each other.
            return Err(Error::NotEmpty {});
        }
        Ok(RenamePlan { moved, replaced, moves_up, time: self.now() })
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
            ino = self.meta(self.node_of(ino), GetInode { ino, generation: 0 }).await?.parent;
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
