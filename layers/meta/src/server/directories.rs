//! Directories at the node of their inode: who changes names of them, and where names may be.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::time::Duration;

use futures::future::{Either, select};
use runtime::protocol::Undelivered;
use runtime::sync::{Event, KeyGuard, KeyedLock, Limit};
use runtime::{Context, NodeId};

use super::MetaServer;
use crate::attributes::{Kind, Time};
use crate::memory::{Kind as Memory, Share};
use crate::protocol::{
    CommitDependency, Error, GetOccupancy, Inode, LockDirExclusive, LockDirShared, Occupancy,
    SetOccupancy, UnlockDirExclusive, UnlockDirShared,
};
use crate::store::{Position, Store};

/// Directories whose occupancy is kept, at most; for others all nodes are asked.
const KNOWN_MAX: usize = 65_536;
/// Whoever looks up a name that is on its way waits so long, at most.
const HIDDEN_WAIT_MAX: Duration = Duration::from_millis(50);
/// Changes of the tree that wait for their turn, at most.
const TREE_WAITING_MAX: usize = 1024;

/// What is known of the directories of this node. Only in memory: after a restart nobody changes
/// anything, and where names are is found out again.
pub(super) struct Directories {
    states: RefCell<BTreeMap<u64, State>>,
    changed: Event,
    names: KeyedLock<Vec<u8>>,
    /// Names that an operation on several nodes is about to change.
    claims: RefCell<BTreeMap<Vec<u8>, Claim>>,
    unclaimed: Event,
    tree: Limit,
    /// Whose turn it is to change the tree.
    turn: Cell<Option<RemoteLock>>,
    /// Changes that ended, counted.
    ended: Cell<u64>,
    /// Ties of nodes below these numbers are void, but for those that are kept.
    valid_from: RefCell<BTreeMap<NodeId, u64>>,
}

/// What one node keeps for another (ADR 57): a name that it has claimed, a directory that it has frozen or changes
/// names of, the turn. Later ties of a node have higher numbers, also in its later lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RemoteLock {
    pub(super) node: NodeId,
    pub(super) number: u64,
}

/// Keeps a name from being changed by others.
#[derive(Debug)]
struct Claim {
    by: RemoteLock,
    /// It is decided that the name is gone, but its file does not have the new name yet.
    hidden: bool,
}

#[derive(Default)]
struct State {
    /// The record that made it, if that was since the mount.
    made: Position,
    /// Changes between `LockDirShared` and `UnlockDirShared`.
    changing: Vec<RemoteLock>,
    /// No change may begin: somebody wants to remove it.
    frozen_by: Option<RemoteLock>,
    /// Nodes that may hold names.
    nodes: BTreeSet<u32>,
    /// No other node holds names.
    complete: bool,
    /// Nodes that have changed names, and when last, since those were made durable.
    unsettled: BTreeMap<u32, u64>,
    /// No other node has changed names since then. Not known when the node has just started: the
    /// others may have lived on.
    is_tracked: bool,
    /// How many changes had ended when this was noted first.
    since: u64,
    /// Somebody asked for it since it was last looked at whether it may be forgotten.
    used: bool,
}

/// Bytes of what is known of one directory, with its slot in the table; and for each node in its lists.
const STATE_BYTES: usize = size_of::<State>() * 3 / 2;
const STATE_BYTES_PER_NODE: usize = 24;

/// Changes of a directory's names that may not be durable.
pub(super) struct Unsettled {
    since: u64,
    /// The nodes, and when each has changed names last.
    pub(super) changes: BTreeMap<u32, u64>,
    /// No other node has any.
    pub(super) is_all: bool,
}

impl Default for Directories {
    fn default() -> Self {
        Self {
            states: RefCell::default(),
            changed: Event::default(),
            names: KeyedLock::default(),
            claims: RefCell::default(),
            unclaimed: Event::default(),
            tree: Limit::new(1, TREE_WAITING_MAX),
            turn: Cell::new(None),
            ended: Cell::default(),
            valid_from: RefCell::default(),
        }
    }
}

impl State {
    fn memory_bytes(&self) -> usize {
        STATE_BYTES + STATE_BYTES_PER_NODE * (self.nodes.len() + self.unsettled.len())
    }

    /// What nobody else knows: who is at work here, or what its names lean on.
    fn is_needed(&self) -> bool {
        self.is_changing() || self.frozen_by.is_some() || self.made != Position::default()
    }

    fn is_changing(&self) -> bool {
        !self.changing.is_empty()
    }
}

impl Directories {
    /// Busy if it is void: nobody would ever give it up.
    fn check(&self, lock: RemoteLock) -> Result<(), Error> {
        let below = self.valid_from.borrow().get(&lock.node).copied().unwrap_or(0);
        if lock.number >= below { Ok(()) } else { Err(Undelivered::Busy.into()) }
    }

    /// One change of a name at a time. A name that is claimed is busy for all but the claimant: to
    /// wait could close a circle of renames.
    pub(super) async fn name_lock(
        &self,
        key: &[u8],
        claimed: bool,
    ) -> Result<KeyGuard<Vec<u8>>, Error> {
        let guard = self.names.exclusive(key.to_vec()).await;
        if !claimed && self.claims.borrow().contains_key(key) {
            return Err(Undelivered::Busy.into());
        }
        Ok(guard)
    }

    /// Claims a name; the caller holds its lock.
    pub(super) fn claim(&self, key: Vec<u8>, by: RemoteLock) -> Result<(), Error> {
        self.check(by)?;
        self.claims.borrow_mut().insert(key, Claim { by, hidden: false });
        Ok(())
    }

    /// A claimed name cannot be looked up until it is given up.
    pub(super) fn hide(&self, key: &[u8]) {
        if let Some(claim) = self.claims.borrow_mut().get_mut(key) {
            claim.hidden = true;
        }
    }

    /// Gives a claim up, if it is one of those that are meant.
    pub(super) fn unclaim(&self, key: &[u8], is_meant: impl FnOnce(RemoteLock) -> bool) {
        let mut claims = self.claims.borrow_mut();
        if claims.get(key).is_some_and(|claim| is_meant(claim.by)) {
            claims.remove(key);
            drop(claims);
            self.unclaimed.tell();
        }
    }

    /// From now on ties of `node` below this number are refused. Returns the directories that void ones were
    /// changing.
    fn refuse_below(
        &self,
        node: NodeId,
        below: u64,
        is_void: impl Fn(&RemoteLock) -> bool,
    ) -> Vec<u64> {
        let mut valid_from = self.valid_from.borrow_mut();
        let known = valid_from.entry(node).or_default();
        *known = below.max(*known);
        let states = self.states.borrow();
        let changed = states.iter().filter(|(_, state)| state.changing.iter().any(&is_void));
        changed.map(|(&ino, _)| ino).collect()
    }

    /// What is void is given up.
    fn release_orphaned_locks(&self, is_void: impl Fn(&RemoteLock) -> bool) {
        self.claims.borrow_mut().retain(|_, claim| !is_void(&claim.by));
        self.unclaimed.tell();
        let number = self.ended.get() + 1;
        self.ended.set(number);
        for state in self.states.borrow_mut().values_mut() {
            if state.changing.iter().any(&is_void) {
                state.changing.retain(|lock| !is_void(lock));
                // Nobody knows what became of these changes.
                (state.is_tracked, state.since) = (false, number);
            }
            state.frozen_by = state.frozen_by.filter(|by| !is_void(by));
        }
        self.changed.tell();
        self.end_turn(is_void);
    }

    /// It is decided that the name of `key` is gone, but its file does not have the new name yet.
    pub(super) fn is_hidden(&self, key: &[u8]) -> bool {
        self.claims.borrow().get(key).is_some_and(|claim| claim.hidden)
    }

    /// Waits while `key` is hidden; busy if that takes long.
    pub(super) async fn shown(&self, key: &[u8], context: &Context) -> Result<(), Error> {
        while self.is_hidden(key) {
            let unclaimed = pin!(self.unclaimed.next());
            if let Either::Right(_) = select(unclaimed, context.sleep(HIDDEN_WAIT_MAX)).await {
                return Err(Undelivered::Busy.into());
            }
        }
        Ok(())
    }

    /// A directory was made just now, by the record `made`: it has no names anywhere.
    pub(super) fn made(&self, ino: u64, made: Position) {
        let state = State { complete: true, is_tracked: true, made, ..State::default() };
        self.states.borrow_mut().insert(ino, state);
    }

    /// A directory, or anything else, is gone.
    pub(super) fn removed(&self, ino: u64) {
        self.states.borrow_mut().remove(&ino);
        self.changed.tell();
    }

    /// Waits for the turn of `by`.
    pub(super) async fn lock_tree(&self, by: RemoteLock) -> Result<(), Error> {
        let permit = self.tree.acquire().await.ok_or(Undelivered::Busy)?;
        self.check(by)?;
        // Given back by `unlock_tree`, which is another request.
        std::mem::forget(permit);
        self.turn.set(Some(by));
        Ok(())
    }

    /// Does nothing if it is not this turn: this node may have forgotten it, and have let another begin.
    pub(super) fn unlock_tree(&self, by: RemoteLock) {
        self.end_turn(|now| *now == by);
    }

    fn end_turn(&self, is_meant: impl FnOnce(&RemoteLock) -> bool) {
        if self.turn.get().as_ref().is_some_and(is_meant) {
            self.turn.set(None);
            self.tree.put_back();
        }
    }

    fn with<T>(&self, ino: u64, look: impl FnOnce(&mut State) -> T) -> T {
        let mut states = self.states.borrow_mut();
        if states.len() >= KNOWN_MAX && !states.contains_key(&ino) {
            states.retain(|_, state| state.is_needed());
        }
        let since = self.ended.get();
        let state = states.entry(ino).or_insert_with(|| State { since, ..State::default() });
        state.used = true;
        look(state)
    }

    /// Forgets, if memory is short, directories that nobody asked for of late: for these all nodes are
    /// asked. Called now and then.
    pub(super) fn close_handle(&self, store: &Store, share: &Share) {
        let mut states = self.states.borrow_mut();
        let is_short = share.is_short();
        states.retain(|_, state| {
            if store.is_durable(state.made) {
                state.made = Position::default();
            }
            let was_used = std::mem::replace(&mut state.used, false);
            !is_short || was_used || state.is_needed()
        });
        share.set(Memory::Directories, states.values().map(State::memory_bytes).sum());
    }

    /// Where names of a directory have changed that may not be durable.
    pub(super) fn unsettled(&self, ino: u64) -> Unsettled {
        self.with(ino, |state| Unsettled {
            since: state.since,
            changes: state.unsettled.clone(),
            is_all: state.is_tracked,
        })
    }

    /// These changes are durable now; if they were not all, those of all other nodes too. What ended
    /// meanwhile may not be.
    pub(super) fn flushed(&self, ino: u64, flushed: &Unsettled) {
        self.with(ino, |state| {
            let changes = &flushed.changes;
            state.unsettled.retain(|node, last| changes.get(node) != Some(last));
            // What was forgotten meanwhile is not known again.
            state.is_tracked |= state.since == flushed.since;
        });
    }

    fn occupied(&self, ino: u64) -> Option<Vec<u32>> {
        self.with(ino, |state| state.complete.then(|| state.nodes.iter().copied().collect()))
    }
}

impl MetaServer {
    /// Of its ties below this number `node` has only those that it keeps. It does not know whether the others have
    /// changed names.
    pub(super) async fn release_orphaned_locks(
        &self,
        node: NodeId,
        below: u64,
        keep: &[u64],
    ) -> Result<(), Error> {
        let keep: BTreeSet<u64> = keep.iter().copied().collect();
        let is_void = |lock: &RemoteLock| {
            lock.node == node && lock.number < below && !keep.contains(&lock.number)
        };
        let now = Time::from_unix(self.context.unix_time());
        for directory in self.directories.refuse_below(node, below, is_void) {
            // One that is gone or damaged has no times.
            if let Err(error @ Error::Undelivered { .. }) = self.note(directory, now).await {
                return Err(error);
            }
        }
        self.directories.release_orphaned_locks(is_void);
        Ok(())
    }

    async fn load_directory(&self, ino: u64, generation: u64) -> Result<Inode, Error> {
        self.load(ino, generation).await?;
        let inode = self.with(ino, |active| Ok(active.inode.clone()))?;
        if inode.attributes.kind == (Kind::Directory {}) {
            Ok(inode)
        } else {
            Err(Error::NotDirectory {})
        }
    }

    /// A frozen directory is busy: to wait here could close a circle with those who froze it.
    pub(super) async fn begin(
        &self,
        request: &LockDirShared,
        by: NodeId,
    ) -> Result<(Inode, CommitDependency), Error> {
        let lock = RemoteLock { node: by, number: request.lock };
        // Its names must not be durable at other nodes before its own record is.
        let made = self.directories.states.borrow().get(&request.directory).map(|state| state.made);
        let made = self.prior_for(by, made.unwrap_or_default()).await?;
        let inode = self.load_directory(request.directory, request.generation).await?;
        self.directories.check(lock)?;
        let begun = self.directories.with(request.directory, |state| {
            if state.frozen_by.is_none() {
                state.changing.push(lock);
                state.nodes.insert(request.node);
            }
            state.frozen_by.is_none()
        });
        if begun { Ok((inode, made)) } else { Err(Undelivered::Busy.into()) }
    }

    pub(super) async fn end(&self, request: &UnlockDirShared, by: NodeId) -> Result<(), Error> {
        let &UnlockDirShared { directory, time, node, lock: number } = request;
        let ended = RemoteLock { node: by, number };
        let noted = match time {
            Some(time) => self.note(directory, time).await,
            None => Ok(()),
        };
        let number = self.directories.ended.get() + 1;
        self.directories.ended.set(number);
        self.directories.with(directory, |state| {
            if let Some(at) = state.changing.iter().position(|begun| *begun == ended) {
                state.changing.swap_remove(at);
            }
            state.unsettled.insert(node, number);
        });
        self.directories.changed.tell();
        noted
    }

    /// Times go to the store with the next commit. They are others after every change, also if the clock
    /// of the node that made it is behind: who has listed the directory goes by them.
    async fn note(&self, directory: u64, time: Time) -> Result<(), Error> {
        self.load(directory, 0).await?;
        self.with_dirty(directory, |active| {
            let attributes = &mut active.inode.attributes;
            attributes.mtime = time.max(attributes.mtime.next());
            attributes.ctime = time.max(attributes.ctime.next());
        })
    }

    pub(super) async fn freeze(
        &self,
        request: LockDirExclusive,
        by: NodeId,
    ) -> Result<Occupancy, Error> {
        let LockDirExclusive { directory, generation, lock } = request;
        let lock = RemoteLock { node: by, number: lock };
        let inode = self.load_directory(directory, generation).await?;
        self.directories.check(lock)?;
        let first = self.directories.with(directory, |state| {
            let first = state.frozen_by.is_none();
            state.frozen_by.get_or_insert(lock);
            first
        });
        if !first {
            return Err(Undelivered::Busy.into());
        }
        loop {
            let changed = self.directories.changed.next();
            let state = |state: &mut State| (state.frozen_by == Some(lock), state.is_changing());
            let (is_frozen, is_changing) = self.directories.with(directory, state);
            if !is_frozen {
                // It was given up meanwhile.
                return Err(Undelivered::Busy.into());
            }
            if !is_changing {
                let nodes = self.directories.occupied(directory);
                return Ok(Occupancy { inode, nodes });
            }
            changed.await;
        }
    }

    pub(super) fn thaw(&self, request: &UnlockDirExclusive, by: NodeId) {
        let lock = RemoteLock { node: by, number: request.lock };
        self.directories.with(request.directory, |state| {
            state.frozen_by = state.frozen_by.filter(|frozen_by| *frozen_by != lock);
        });
        self.directories.changed.tell();
    }

    pub(super) async fn get_occupancy(&self, request: GetOccupancy) -> Result<Occupancy, Error> {
        let inode = self.load_directory(request.directory, request.generation).await?;
        Ok(Occupancy { inode, nodes: self.directories.occupied(request.directory) })
    }

    pub(super) async fn learn_occupancy(&self, request: SetOccupancy) -> Result<(), Error> {
        self.load(request.directory, 0).await?;
        self.directories.with(request.directory, |state| {
            state.nodes.extend(request.nodes);
            state.complete = true;
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn lock(node: u32, number: u64) -> RemoteLock {
        RemoteLock { node: NodeId::fs(node), number }
    }

    #[test]
    fn a_turn_of_an_earlier_life_does_not_end_the_turn_of_another() {
        // The node came back, so it knows nothing of turn 1.
        let directories = Directories::default();
        let take = |by| directories.lock_tree(by).now_or_never();
        assert_eq!(take(lock(2, 2)), Some(Ok(())));
        directories.unlock_tree(lock(2, 1));
        assert_eq!(take(lock(3, 3)), None, "it is the turn of node 2");
        directories.unlock_tree(lock(2, 2));
        assert_eq!(take(lock(3, 4)), Some(Ok(())));
        directories.release_orphaned_locks(|lock| lock.node == NodeId::fs(2));
        assert_eq!(take(lock(2, 5)), None, "only the node that came back has lost its turn");
        directories.release_orphaned_locks(|lock| lock.node == NodeId::fs(3));
        assert_eq!(take(lock(2, 6)), Some(Ok(())));
    }

    #[test]
    fn a_tie_that_comes_after_it_was_given_up_is_refused() {
        let directories = Directories::default();
        let is_void =
            |lock: &RemoteLock| lock.node == NodeId::fs(2) && lock.number < 7 && lock.number != 5;
        directories.claim(vec![5], lock(2, 5)).unwrap();
        directories.claim(vec![6], lock(2, 6)).unwrap();
        directories.refuse_below(NodeId::fs(2), 7, is_void);
        directories.release_orphaned_locks(is_void);
        let claimed: Vec<Vec<u8>> = directories.claims.borrow().keys().cloned().collect();
        assert_eq!(claimed, [[5]], "what the node has it keeps");
        assert!(directories.claim(vec![4], lock(2, 4)).is_err());
        directories.claim(vec![7], lock(2, 7)).unwrap();
        directories.claim(vec![8], lock(3, 4)).unwrap();
        // An older word changes nothing.
        directories.refuse_below(NodeId::fs(2), 3, |_| false);
        assert!(directories.claim(vec![9], lock(2, 6)).is_err());
    }
}
