//! Directories at the node of their inode: which nodes change names in them, and where their names
//! are ([`LockDirShared`], [`LockDirExclusive`], [`GetOccupancy`], [`SetOccupancy`]).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use runtime::NodeId;
use runtime::protocol::Undelivered;
use runtime::sync::Event;

use super::owner::{LockValidity, RemoteLockId};
use crate::attributes::{Kind, Time};
use crate::memory::{MemoryKind, MemoryShare};
use crate::protocol::{
    CommitDependency, Error, GetOccupancy, Inode, LockDirExclusive, LockDirShared, Occupancy,
    SetOccupancy, UnlockDirExclusive, UnlockDirShared,
};
use crate::server::base::NodeBase;
use crate::store::{Position, Store};

/// Directories whose occupancy is kept, at most; for others all nodes are asked.
const DIRECTORIES_MAX: usize = 65_536;

#[derive(Default)]
struct DirectoryState {
    /// The record that made it, if that was since the mount.
    made: Position,
    /// Changes between `LockDirShared` and `UnlockDirShared`.
    shared: Vec<RemoteLockId>,
    /// Locked to be removed: no change may begin.
    exclusive: Option<RemoteLockId>,
    /// Nodes that may hold names.
    nodes: BTreeSet<u32>,
    /// No other node holds names.
    complete: bool,
    /// Nodes that have changed names, and when last, since those were made durable.
    unflushed: BTreeMap<u32, u64>,
    /// No other node has changed names since then. Not known when the node has just started: the
    /// others may have lived on.
    is_tracked: bool,
    /// How many changes had ended when this was noted first.
    since: u64,
    /// It was used since the last eviction scan.
    used: bool,
}

/// Bytes of what is known of one directory, with its slot in the table; and for each node in its
/// lists.
const STATE_BYTES: usize = size_of::<DirectoryState>() * 3 / 2;
const STATE_BYTES_PER_NODE: usize = 24;

/// Changes of a directory's names that may not be durable.
pub(crate) struct UnflushedChanges {
    since: u64,
    /// The nodes, and when each has changed names last.
    pub(crate) changes: BTreeMap<u32, u64>,
    /// No other node has any.
    pub(crate) is_all: bool,
}

impl DirectoryState {
    fn memory_bytes(&self) -> usize {
        STATE_BYTES + STATE_BYTES_PER_NODE * (self.nodes.len() + self.unflushed.len())
    }

    /// Does it hold what only this node knows: locks, or a dependency of its names?
    fn is_needed(&self) -> bool {
        self.is_shared() || self.exclusive.is_some() || self.made != Position::default()
    }

    fn is_shared(&self) -> bool {
        !self.shared.is_empty()
    }
}

/// What is known of the directories of one node. Only in memory: after a restart no names are being
/// changed, and where names are is found out again.
pub(crate) struct DirectoryLocks {
    base: Rc<NodeBase>,
    validity: Rc<LockValidity>,
    states: RefCell<BTreeMap<u64, DirectoryState>>,
    changed: Event,
    /// Changes that ended, counted.
    ended: Cell<u64>,
}

impl DirectoryLocks {
    pub(crate) fn new(base: &Rc<NodeBase>, validity: Rc<LockValidity>) -> Self {
        Self {
            base: base.clone(),
            validity,
            states: RefCell::default(),
            changed: Event::default(),
            ended: Cell::default(),
        }
    }

    /// The directories in which void locks were changing names.
    pub(crate) fn changed_by(&self, is_orphaned: impl Fn(&RemoteLockId) -> bool) -> Vec<u64> {
        let states = self.states.borrow();
        let changed = states.iter().filter(|(_, state)| state.shared.iter().any(&is_orphaned));
        changed.map(|(&ino, _)| ino).collect()
    }

    /// Gives up what is void.
    pub(crate) fn release_orphaned(&self, is_orphaned: impl Fn(&RemoteLockId) -> bool) {
        let number = self.ended.get() + 1;
        self.ended.set(number);
        for state in self.states.borrow_mut().values_mut() {
            if state.shared.iter().any(&is_orphaned) {
                state.shared.retain(|lock| !is_orphaned(lock));
                // What became of these changes is not known.
                (state.is_tracked, state.since) = (false, number);
            }
            state.exclusive = state.exclusive.filter(|by| !is_orphaned(by));
        }
        self.changed.tell();
    }

    /// A directory was made just now, by the record `made`: it has no names anywhere.
    pub(crate) fn made(&self, ino: u64, made: Position) {
        let state =
            DirectoryState { complete: true, is_tracked: true, made, ..DirectoryState::default() };
        self.states.borrow_mut().insert(ino, state);
    }

    /// A directory, or anything else, is gone.
    pub(crate) fn removed(&self, ino: u64) {
        self.states.borrow_mut().remove(&ino);
        self.changed.tell();
    }

    fn with_state<T>(&self, ino: u64, look: impl FnOnce(&mut DirectoryState) -> T) -> T {
        let mut states = self.states.borrow_mut();
        if states.len() >= DIRECTORIES_MAX && !states.contains_key(&ino) {
            states.retain(|_, state| state.is_needed());
        }
        let since = self.ended.get();
        let state = states
            .entry(ino)
            .or_insert_with(|| DirectoryState { since, ..DirectoryState::default() });
        state.used = true;
        look(state)
    }

    /// Forgets, if memory is short, directories that were not used lately: for these all nodes are
    /// asked. Called now and then.
    pub(crate) fn evict(&self, store: &Store, share: &MemoryShare) {
        let mut states = self.states.borrow_mut();
        let is_short = share.is_short();
        states.retain(|_, state| {
            if store.is_durable(state.made) {
                state.made = Position::default();
            }
            let was_used = std::mem::replace(&mut state.used, false);
            !is_short || was_used || state.is_needed()
        });
        share.set(MemoryKind::Directories, states.values().map(DirectoryState::memory_bytes).sum());
    }

    /// Where names of a directory have changed that may not be durable.
    pub(crate) fn unflushed(&self, ino: u64) -> UnflushedChanges {
        self.with_state(ino, |state| UnflushedChanges {
            since: state.since,
            changes: state.unflushed.clone(),
            is_all: state.is_tracked,
        })
    }

    /// These changes are durable now; if they were not all, those of all other nodes too. What
    /// ended meanwhile may not be.
    pub(crate) fn flushed(&self, ino: u64, flushed: &UnflushedChanges) {
        self.with_state(ino, |state| {
            let changes = &flushed.changes;
            state.unflushed.retain(|node, last| changes.get(node) != Some(last));
            // What was forgotten meanwhile is not known again.
            state.is_tracked |= state.since == flushed.since;
        });
    }

    fn occupied(&self, ino: u64) -> Option<Vec<u32>> {
        self.with_state(ino, |state| state.complete.then(|| state.nodes.iter().copied().collect()))
    }

    async fn load_directory(&self, ino: u64, generation: u64) -> Result<Inode, Error> {
        self.base.inodes.load(ino, generation).await?;
        let inode = self.base.inodes.with(ino, |active| Ok(active.inode.clone()))?;
        if inode.attributes.kind == (Kind::Directory {}) {
            Ok(inode)
        } else {
            Err(Error::NotDirectory {})
        }
    }

    /// A directory with an exclusive lock is busy: to wait here could deadlock with its holder.
    pub(crate) async fn lock_shared(
        &self,
        request: &LockDirShared,
        by: NodeId,
    ) -> Result<(Inode, CommitDependency), Error> {
        let lock = RemoteLockId { node: by, number: request.lock };
        // Its names must not be durable at other nodes before its own record is.
        let made = self.states.borrow().get(&request.directory).map(|state| state.made);
        let made = self.base.records.dependency_for(by, made.unwrap_or_default()).await?;
        let inode = self.load_directory(request.directory, request.generation).await?;
        self.validity.check(lock)?;
        let begun = self.with_state(request.directory, |state| {
            if state.exclusive.is_none() {
                state.shared.push(lock);
                state.nodes.insert(request.node);
            }
            state.exclusive.is_none()
        });
        if begun { Ok((inode, made)) } else { Err(Undelivered::Busy.into()) }
    }

    pub(crate) async fn unlock_shared(
        &self,
        request: &UnlockDirShared,
        by: NodeId,
    ) -> Result<(), Error> {
        let &UnlockDirShared { directory, time, node, lock: number } = request;
        let ended = RemoteLockId { node: by, number };
        let is_marked = match time {
            Some(time) => self.note(directory, time).await,
            None => Ok(()),
        };
        let number = self.ended.get() + 1;
        self.ended.set(number);
        self.with_state(directory, |state| {
            if let Some(at) = state.shared.iter().position(|begun| *begun == ended) {
                state.shared.swap_remove(at);
            }
            state.unflushed.insert(node, number);
        });
        self.changed.tell();
        is_marked
    }

    /// Times go to the store with the next commit. They are others after every change, also if the
    /// clock of the node that made it is behind: who has listed the directory goes by them.
    pub(crate) async fn note(&self, directory: u64, time: Time) -> Result<(), Error> {
        self.base.inodes.load(directory, 0).await?;
        self.base.inodes.with_dirty(directory, |active| {
            let attributes = &mut active.inode.attributes;
            attributes.mtime = time.max(attributes.mtime.next());
            attributes.ctime = time.max(attributes.ctime.next());
        })
    }

    pub(crate) async fn lock_exclusive(
        &self,
        request: LockDirExclusive,
        by: NodeId,
    ) -> Result<Occupancy, Error> {
        let LockDirExclusive { directory, generation, lock } = request;
        let lock = RemoteLockId { node: by, number: lock };
        let inode = self.load_directory(directory, generation).await?;
        self.validity.check(lock)?;
        let first = self.with_state(directory, |state| {
            let first = state.exclusive.is_none();
            state.exclusive.get_or_insert(lock);
            first
        });
        if !first {
            return Err(Undelivered::Busy.into());
        }
        loop {
            let changed = self.changed.next();
            let state =
                |state: &mut DirectoryState| (state.exclusive == Some(lock), state.is_shared());
            let (is_frozen, is_shared) = self.with_state(directory, state);
            if !is_frozen {
                // It was given up meanwhile.
                return Err(Undelivered::Busy.into());
            }
            if !is_shared {
                let nodes = self.occupied(directory);
                return Ok(Occupancy { inode, nodes });
            }
            changed.await;
        }
    }

    pub(crate) fn unlock_exclusive(&self, request: &UnlockDirExclusive, by: NodeId) {
        let lock = RemoteLockId { node: by, number: request.lock };
        self.with_state(request.directory, |state| {
            state.exclusive = state.exclusive.filter(|exclusive| *exclusive != lock);
        });
        self.changed.tell();
    }

    pub(crate) async fn get_occupancy(&self, request: GetOccupancy) -> Result<Occupancy, Error> {
        let inode = self.load_directory(request.directory, request.generation).await?;
        Ok(Occupancy { inode, nodes: self.occupied(request.directory) })
    }

    pub(crate) async fn set_occupancy(&self, request: SetOccupancy) -> Result<(), Error> {
        self.base.inodes.load(request.directory, 0).await?;
        self.with_state(request.directory, |state| {
            state.nodes.extend(request.nodes);
            state.complete = true;
        });
        Ok(())
    }
}
