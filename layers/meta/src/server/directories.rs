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
    Begin, End, Error, Freeze, GetOccupancy, Inode, LearnOccupancy, Occupancy, Prior, Thaw,
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
    /// Whose turn it is to change the tree, and its number.
    turn: Cell<Option<(NodeId, u64)>>,
    /// Changes that ended, counted.
    ended: Cell<u64>,
    /// How often each node has come back alone.
    returns: RefCell<BTreeMap<NodeId, u64>>,
}

/// A node, in the life in which it asked for something. What it asked for may take a while; if that life is over then,
/// nobody would ever give up what it was given.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker {
    pub(super) node: NodeId,
    /// How often the node had come back when it asked.
    returns: u64,
}

/// Keeps a name from being changed by others.
#[derive(Debug)]
struct Claim {
    /// The node that claimed it. When that node restarts alone its claims are void once its intents
    /// have been sent again.
    by: u32,
    /// It is decided that the name is gone, but its file does not have the new name yet.
    hidden: bool,
}

#[derive(Default)]
struct State {
    /// The record that made it, if that was since the mount.
    made: Position,
    /// Changes between `Begin` and `End`, by the nodes that made them.
    changing: Vec<(NodeId, usize)>,
    /// No change may begin: this node wants to remove it.
    frozen_by: Option<NodeId>,
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
            returns: RefCell::default(),
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
        self.changing.iter().any(|(_, count)| *count > 0)
    }

    fn begun_by(&mut self, node: NodeId) -> &mut usize {
        let at = self.changing.iter().position(|(by, _)| *by == node);
        let at = at.unwrap_or_else(|| {
            self.changing.push((node, 0));
            self.changing.len() - 1
        });
        &mut self.changing[at].1
    }
}

impl Directories {
    /// The node, in the life that it has now.
    pub(super) fn asker(&self, node: NodeId) -> Asker {
        Asker { node, returns: self.returns_of(node) }
    }

    fn returns_of(&self, node: NodeId) -> u64 {
        self.returns.borrow().get(&node).copied().unwrap_or(0)
    }

    /// Busy if the life is over in which `by` asked: nobody hears it.
    fn check_life(&self, by: Asker) -> Result<(), Error> {
        if self.returns_of(by.node) == by.returns { Ok(()) } else { Err(Undelivered::Busy.into()) }
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

    /// Claims a name for `asker`, which calls itself `by`; the caller holds its lock.
    pub(super) fn claim(&self, key: Vec<u8>, by: u32, asker: Asker) -> Result<(), Error> {
        self.check_life(asker)?;
        self.claims.borrow_mut().insert(key, Claim { by, hidden: false });
        Ok(())
    }

    /// A claimed name cannot be looked up until it is given up.
    pub(super) fn hide(&self, key: &[u8]) {
        if let Some(claim) = self.claims.borrow_mut().get_mut(key) {
            claim.hidden = true;
        }
    }

    /// Gives a claim of the node `by` up.
    pub(super) fn unclaim(&self, key: &[u8], by: u32) {
        let mut claims = self.claims.borrow_mut();
        if claims.get(key).is_some_and(|claim| claim.by == by) {
            claims.remove(key);
            drop(claims);
            self.unclaimed.tell();
        }
    }

    /// A node has lost all memory: what it had claimed, frozen or begun is void, and what it had asked for and
    /// still waits here comes to nothing.
    pub(super) fn give_up(&self, node: NodeId) {
        *self.returns.borrow_mut().entry(node).or_default() += 1;
        self.claims.borrow_mut().retain(|_, claim| NodeId::fs(claim.by) != node);
        self.unclaimed.tell();
        for state in self.states.borrow_mut().values_mut() {
            state.changing.retain(|(by, _)| *by != node);
            state.frozen_by = state.frozen_by.filter(|by| *by != node);
        }
        self.changed.tell();
        self.end_turn(|by, _| by == node);
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

    /// Waits for the turn of `by`, which will have this number.
    pub(super) async fn lock_tree(&self, by: Asker, turn: u64) -> Result<u64, Error> {
        let permit = self.tree.acquire().await.ok_or(Undelivered::Busy)?;
        self.check_life(by)?;
        // Given back by `unlock_tree`, which is another request.
        std::mem::forget(permit);
        self.turn.set(Some((by.node, turn)));
        Ok(turn)
    }

    /// Does nothing if it is not this turn: this node may have forgotten it, and have let another begin.
    pub(super) fn unlock_tree(&self, turn: u64) {
        self.end_turn(|_, now| now == turn);
    }

    fn end_turn(&self, is_meant: impl FnOnce(NodeId, u64) -> bool) {
        if self.turn.get().is_some_and(|(by, turn)| is_meant(by, turn)) {
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
    pub(super) fn let_go(&self, store: &Store, share: &Share) {
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
    pub(super) fn settled(&self, ino: u64, settled: &Unsettled) {
        self.with(ino, |state| {
            let changes = &settled.changes;
            state.unsettled.retain(|node, last| changes.get(node) != Some(last));
            // What was forgotten meanwhile is not known again.
            state.is_tracked |= state.since == settled.since;
        });
    }

    fn occupied(&self, ino: u64) -> Option<Vec<u32>> {
        self.with(ino, |state| state.complete.then(|| state.nodes.iter().copied().collect()))
    }
}

impl MetaServer {
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
    pub(super) async fn begin(&self, request: Begin, by: Asker) -> Result<(Inode, Prior), Error> {
        // Its names must not be durable at other nodes before its own record is.
        let made = self.directories.states.borrow().get(&request.directory).map(|state| state.made);
        let made = self.prior_for(by.node, made.unwrap_or_default()).await?;
        let inode = self.load_directory(request.directory, request.generation).await?;
        self.directories.check_life(by)?;
        let begun = self.directories.with(request.directory, |state| {
            if state.frozen_by.is_none() {
                *state.begun_by(by.node) += 1;
                state.nodes.insert(request.node);
            }
            state.frozen_by.is_none()
        });
        if begun { Ok((inode, made)) } else { Err(Undelivered::Busy.into()) }
    }

    pub(super) async fn end(&self, request: End, by: Asker) -> Result<(), Error> {
        let End { directory, time, node } = request;
        let noted = match time {
            Some(time) => self.note(directory, time).await,
            None => Ok(()),
        };
        let number = self.directories.ended.get() + 1;
        self.directories.ended.set(number);
        // What an earlier life had begun is not counted any more.
        let is_counted = self.directories.check_life(by).is_ok();
        self.directories.with(directory, |state| {
            let begun = state.begun_by(by.node);
            *begun = begun.saturating_sub(usize::from(is_counted));
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

    pub(super) async fn freeze(&self, request: Freeze, by: Asker) -> Result<Occupancy, Error> {
        let Freeze { directory, generation } = request;
        let inode = self.load_directory(directory, generation).await?;
        self.directories.check_life(by)?;
        let first = self.directories.with(directory, |state| {
            let first = state.frozen_by.is_none();
            state.frozen_by.get_or_insert(by.node);
            first
        });
        if !first {
            return Err(Undelivered::Busy.into());
        }
        loop {
            let changed = self.directories.changed.next();
            if !self.directories.with(directory, |state| state.is_changing()) {
                let nodes = self.directories.occupied(directory);
                return Ok(Occupancy { inode, nodes });
            }
            changed.await;
        }
    }

    pub(super) fn thaw(&self, request: &Thaw) {
        self.directories.with(request.directory, |state| state.frozen_by = None);
        self.directories.changed.tell();
    }

    pub(super) async fn get_occupancy(&self, request: GetOccupancy) -> Result<Occupancy, Error> {
        let inode = self.load_directory(request.directory, request.generation).await?;
        Ok(Occupancy { inode, nodes: self.directories.occupied(request.directory) })
    }

    pub(super) async fn learn_occupancy(&self, request: LearnOccupancy) -> Result<(), Error> {
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

    #[test]
    fn a_turn_of_an_earlier_life_does_not_end_the_turn_of_another() {
        // The node came back, so it knows nothing of turn 1.
        let directories = Directories::default();
        let asker = |node| directories.asker(NodeId::fs(node));
        let take = |node, turn| directories.lock_tree(asker(node), turn).now_or_never();
        assert_eq!(take(2, 2), Some(Ok(2)));
        directories.unlock_tree(1);
        assert_eq!(take(3, 3), None, "it is the turn of node 2");
        directories.unlock_tree(2);
        assert_eq!(take(3, 4), Some(Ok(4)));
        directories.give_up(NodeId::fs(2));
        assert_eq!(take(2, 5), None, "only the node that came back has lost its turn");
        directories.give_up(NodeId::fs(3));
        assert_eq!(take(2, 6), Some(Ok(6)));
    }
}
