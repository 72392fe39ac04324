//! Changes of names and inodes of this node: several of them in one record, as a part of an
//! operation that may touch other nodes too.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use runtime::protocol::Undelivered;
use runtime::sync::KeyGuard;
use runtime::wire::to_bytes;

use super::base::NodeBase;
use super::content::commit::CommitLocks;
use super::inode_cache::Pinned;
use super::inodes::apply;
use super::locks::directories::DirectoryLocks;
use super::locks::names::NameLocks;
use super::partition_use::UseChange;
use super::record_log::decode;
use super::space::reclaim::Reclaim;
use crate::active::ActiveInode;
use crate::attributes::{Attributes, Kind, Time};
use crate::keys;
use crate::protocol::{Dentry, Effect, Error, Inode};
use crate::store::Batch;

/// What effects find that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConflictPolicy {
    /// Refuse all of them: nothing is decided yet.
    Refuse,
    /// Do what can be done: the rest has happened, or is about something that is gone.
    Skip,
}

/// What effects are about, kept from being changed by others.
pub(super) struct LockedTargets {
    _locks: Vec<KeyGuard<u64>>,
    _names: Vec<KeyGuard<Vec<u8>>>,
    /// What the names name now.
    found: BTreeMap<Vec<u8>, Option<Dentry>>,
    /// The inodes that are there.
    present: BTreeMap<u64, Pinned>,
}

/// One inode after the effects: as clients see it, and as it is stored.
#[derive(Clone)]
struct InodeAfter {
    seen: Inode,
    stored: Inode,
}

impl InodeAfter {
    /// A file without a name.
    fn is_unlinked(&self) -> bool {
        let Attributes { kind, links, .. } = self.stored.attributes;
        links == 0 && kind == (Kind::File {})
    }
}

/// Inodes after the effects; `None` if they are gone.
#[derive(Default)]
pub(super) struct StagedInodes {
    inodes: BTreeMap<u64, Option<InodeAfter>>,
}

impl StagedInodes {
    /// Nothing but the end of one inode.
    pub(super) fn removal(ino: u64) -> Self {
        Self { inodes: BTreeMap::from([(ino, None)]) }
    }

    /// Inodes that are gone.
    pub(super) fn gone(&self) -> Vec<u64> {
        let gone = self.inodes.iter().filter(|(_, after)| after.is_none());
        gone.map(|(&ino, _)| ino).collect()
    }
}

/// Stages effects on the names and inodes of one node.
pub(super) struct Effects {
    base: Rc<NodeBase>,
    name_locks: Rc<NameLocks>,
    directories: Rc<DirectoryLocks>,
    reclaim: Rc<Reclaim>,
    commits: CommitLocks,
}

impl Effects {
    pub(super) fn new(
        base: &Rc<NodeBase>,
        name_locks: Rc<NameLocks>,
        directories: Rc<DirectoryLocks>,
        reclaim: Rc<Reclaim>,
        commits: CommitLocks,
    ) -> Self {
        Self { base: base.clone(), name_locks, directories, reclaim, commits }
    }

    /// Locks the names and inodes of `effects`, all of this node. The names are `claimed` by the
    /// caller, or else must not be locked by other nodes.
    pub(super) async fn lock_targets(
        &self,
        effects: &[Effect],
        claimed: bool,
    ) -> Result<LockedTargets, Error> {
        let (mut dropped, mut wanted, mut keys) =
            (BTreeSet::new(), BTreeMap::new(), BTreeSet::new());
        for effect in effects {
            match effect {
                Effect::SetName { directory, name, .. } => {
                    keys.insert(keys::name(*directory, name));
                }
                Effect::DropLink { ino, generation, .. } => {
                    dropped.insert(*ino);
                    wanted.insert(*ino, *generation);
                }
                Effect::ChangeParts { ino, generation, .. } => {
                    wanted.insert(*ino, *generation);
                }
            }
        }
        // Everybody takes them in this order, so that no circle can close.
        let mut locks = Vec::new();
        for ino in dropped {
            // A commit under way would name blocks of a file that is gone.
            locks.push(self.commits.exclusive(ino).await);
        }
        let (mut names, mut found) = (Vec::new(), BTreeMap::new());
        for key in keys {
            names.push(self.name_locks.lock(&key, claimed).await?);
            let value = self.base.store.get(&key).await?;
            found.insert(key, value.map(|value| decode(&value)).transpose()?);
        }
        let mut present = BTreeMap::new();
        for (ino, generation) in wanted {
            let kept = self.base.inodes.keep(ino);
            match self.base.inodes.load(ino, generation).await {
                Err(Error::Stale {}) => {}
                loaded => {
                    loaded?;
                    present.insert(ino, kept);
                }
            }
        }
        Ok(LockedTargets { _locks: locks, _names: names, found, present })
    }

    /// Puts `effects` into `batch`. Says how the inodes are once it is committed.
    pub(super) fn stage(
        &self,
        effects: &[Effect],
        held: &LockedTargets,
        on_conflict: ConflictPolicy,
        batch: &mut Batch,
    ) -> Result<StagedInodes, Error> {
        let mut staged = StagedInodes::default();
        for effect in effects {
            let outcome = match effect {
                Effect::SetName { directory, name, expect, set } => {
                    let key = keys::name(*directory, name);
                    set_name(batch, key, held, (*expect, *set), on_conflict)
                }
                Effect::DropLink { ino, time, .. } => {
                    batch.take_from_reserve();
                    let kept = self.base.open_files.outlives_name(*ino);
                    match self.with_staged(&mut staged, *ino, held, |after| {
                        Ok(drop_link(after, *time) || (kept && after.is_unlinked()))
                    }) {
                        // Another request has removed the name.
                        Err(Error::Stale {}) => Err(Error::Changed {}),
                        outcome => outcome,
                    }
                }
                Effect::ChangeParts { ino, change, .. } => {
                    self.with_staged(&mut staged, *ino, held, |after| {
                        if change.links > 0 && after.is_unlinked() {
                            // It exists for those that have it open, and gets no name again.
                            return Err(Error::Changed {});
                        }
                        apply(change, &mut after.seen);
                        apply(change, &mut after.stored);
                        Ok(true)
                    })
                }
            };
            match outcome {
                Err(Error::Changed {} | Error::Stale {}) if on_conflict == ConflictPolicy::Skip => {
                    tracing::debug!(?effect, "nothing left to do");
                }
                outcome => outcome?,
            }
        }
        self.put_staged(&staged, batch);
        Ok(staged)
    }

    /// Changes an inode of `staged`; it is gone unless `change` says true.
    fn with_staged(
        &self,
        staged: &mut StagedInodes,
        ino: u64,
        held: &LockedTargets,
        change: impl FnOnce(&mut InodeAfter) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        if !held.present.contains_key(&ino) {
            return Err(Error::Stale {});
        }
        let mut after = if let Some(after) = staged.inodes.get(&ino) {
            after.clone().ok_or(Error::Stale {})?
        } else {
            let copy = |active: &ActiveInode| InodeAfter {
                seen: active.inode.clone(),
                stored: active.stored.clone(),
            };
            // It may have been removed while this waited: the caller has to look again.
            self.base.inodes.peek(ino, copy).ok_or(Undelivered::Busy)?
        };
        let stays = change(&mut after)?;
        staged.inodes.insert(ino, stays.then_some(after));
        Ok(())
    }

    pub(super) fn put_staged(&self, staged: &StagedInodes, batch: &mut Batch) {
        let mut count = self.base.inodes.count();
        self.base.inodes.uses().put(&self.use_changes(staged), batch);
        for (&ino, after) in &staged.inodes {
            let has_mark = self.base.open_files.is_unlinked(ino);
            if let Some(after) = after {
                batch.put(keys::inode(ino), after.stored.to_stored());
                if after.is_unlinked() && !has_mark {
                    batch.put(keys::unlinked(ino), Vec::new());
                }
            } else {
                if has_mark {
                    batch.delete(keys::unlinked(ino));
                }
                batch.delete(keys::inode(ino));
                batch.put(keys::trim_intent(ino), to_bytes(&0_u64));
                count = count.saturating_sub(1);
            }
        }
        if count != self.base.inodes.count() {
            batch.put(keys::inode_count(), to_bytes(&count));
        }
    }

    /// What partitions use less without those that are gone.
    fn use_changes(&self, staged: &StagedInodes) -> Vec<UseChange> {
        let gone = staged.inodes.iter().filter(|(_, after)| after.is_none());
        let used = |ino| {
            let stored = |active: &ActiveInode| active.stored.attributes.used_bytes;
            self.base.inodes.peek(ino, stored).unwrap_or_default()
        };
        gone.map(|(&ino, _)| UseChange { ino, bytes: (used(ino), 0), inodes: -1 }).collect()
    }

    /// The batch of `staged` was committed just now.
    pub(super) fn install_staged(&self, staged: StagedInodes) {
        self.base.inodes.uses().committed(&self.use_changes(&staged));
        for (ino, after) in staged.inodes {
            let Some(after) = after else {
                self.forget_removed(ino);
                continue;
            };
            if after.is_unlinked() {
                self.base.open_files.add_unlinked(ino);
            }
            // If it is in use.
            let _ = self.base.inodes.with(ino, |active| {
                active.inode = after.seen;
                active.stored = after.stored;
                Ok(())
            });
        }
    }

    fn forget_removed(&self, ino: u64) {
        self.base.inodes.count_removed();
        self.base.inodes.clear_dirty(ino);
        self.base.publisher.invalidate(ino);
        let gone = self.base.inodes.remove_active(ino);
        let seen = gone.as_ref().map_or(0, |gone| gone.inode.attributes.used_bytes);
        self.base.inodes.uses().note_seen(ino, seen, 0);
        let unnamed = gone.map(|mut active| active.forget_chunks(0)).unwrap_or_default();
        self.reclaim.forget_removed(ino, unnamed);
        self.directories.removed(ino);
        self.base.open_files.removed(ino);
    }
}

/// Takes one link away; false if the inode is gone then.
fn drop_link(after: &mut InodeAfter, time: Time) -> bool {
    let Attributes { kind, links, .. } = after.seen.attributes;
    let left = links.saturating_sub(1);
    for inode in [&mut after.seen, &mut after.stored] {
        inode.attributes.links = left;
        inode.attributes.ctime = time;
    }
    left > 0 && kind != (Kind::Directory {})
}

fn set_name(
    batch: &mut Batch,
    key: Vec<u8>,
    held: &LockedTargets,
    (expect, set): (Option<Dentry>, Option<Dentry>),
    on_conflict: ConflictPolicy,
) -> Result<(), Error> {
    let found = held.found.get(&key).copied().flatten();
    if found != expect {
        if on_conflict == ConflictPolicy::Skip && found != set {
            // The lock of the name should have kept it.
            tracing::error!(?found, ?expect, ?set, "a name of an intent is not what it should be");
        }
        return Err(Error::Changed {});
    }
    match set {
        Some(dentry) => batch.put(key, to_bytes(&dentry)),
        None => batch.delete(key),
    }
    Ok(())
}
