//! What other nodes keep for this one while it changes names: a name that it has claimed, a directory that it has
//! frozen or changes names of, the turn to change the tree (ADR 57).
//!
//! Each such tie has a number, and is given up by it. When an answer is lost, nobody knows whether there is a tie, or
//! whether it was given up; so it *falls*, and the node is told which ties this one has there (`ReleaseOrphanedLocks`): all others
//! that were numbered before are void, also those that arrive later. So does a tie whose change is in doubt, after
//! what was decided has arrived.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures::future::{Either, join_all, select};
use meta::client::first_remote_lock;
use meta::protocol::{Meta, ReleaseOrphanedLocks, WaitForIntents};
use runtime::protocol::Undelivered;
use runtime::sync::Event;
use runtime::{Call, Epoch, NodeId};

use super::FileServer;
use crate::protocol::Error;

/// The pause before a node that could not be told is told again.
const PAUSE: Duration = Duration::from_millis(10);
/// Whoever asks for what was done at a node that has to be told yet waits so long, at most.
const TOLD_WAIT_MAX: Duration = Duration::from_secs(1);

/// The ties of one node.
#[derive(Debug, Default)]
pub(super) struct RemoteLocks {
    last: Cell<u64>,
    at: RefCell<BTreeMap<NodeId, TiesAt>>,
    orphaned: Event,
    told: Event,
}

/// Ties at one other node.
#[derive(Debug, Default)]
struct TiesAt {
    /// Those that somebody has.
    held: Vec<u64>,
    /// Those that nobody has any more, and the node may.
    orphaned: Vec<u64>,
    /// What is asked for with a lower number, and not answered yet, is not kept.
    valid_from: u64,
}

/// A tie, or one that is asked for. It falls when it is dropped.
#[derive(Debug)]
pub(super) struct RemoteLock {
    remote_locks: Rc<RemoteLocks>,
    node: NodeId,
    number: u64,
    /// Nobody has to be told.
    is_over: bool,
}

impl RemoteLock {
    /// What was decided has ended it, or it did not come about.
    pub(super) fn finish(mut self) {
        self.is_over = true;
        self.remote_locks.close_handle(self.node, self.number);
    }

    /// The node has said yes. False if it is being told since that it need not.
    fn hold(&self) -> bool {
        let mut at = self.remote_locks.at.borrow_mut();
        let at = at.entry(self.node).or_default();
        let is_mine = self.is_over || self.number >= at.valid_from;
        if is_mine && !self.is_over {
            at.held.push(self.number);
        }
        is_mine
    }
}

impl Drop for RemoteLock {
    fn drop(&mut self) {
        if !self.is_over {
            self.remote_locks.close_handle(self.node, self.number);
            self.remote_locks
                .at
                .borrow_mut()
                .entry(self.node)
                .or_default()
                .orphaned
                .push(self.number);
            self.remote_locks.orphaned.tell();
        }
    }
}

impl RemoteLocks {
    fn next(self: &Rc<Self>, epoch: Epoch, node: NodeId, is_here: bool) -> RemoteLock {
        self.last.set((self.last.get() + 1).max(first_remote_lock(epoch)));
        // No answer of this node itself is lost.
        RemoteLock { remote_locks: self.clone(), node, number: self.last.get(), is_over: is_here }
    }

    fn close_handle(&self, node: NodeId, number: u64) {
        if let Some(at) = self.at.borrow_mut().get_mut(&node)
            && let Some(place) = at.held.iter().position(|held| *held == number)
        {
            at.held.swap_remove(place);
        }
    }

    /// The nodes that have to be told, and of which ties.
    fn to_tell(&self) -> Vec<(NodeId, Vec<u64>)> {
        let at = self.at.borrow();
        let orphaned = at.iter().filter(|(_, at)| !at.orphaned.is_empty());
        orphaned.map(|(&node, at)| (node, at.orphaned.clone())).collect()
    }

    /// What `node` is told so that it gives up those that have `orphaned`.
    fn word_to(&self, node: NodeId, orphaned: &[u64]) -> ReleaseOrphanedLocks {
        let mut at = self.at.borrow_mut();
        let at = at.entry(node).or_default();
        at.valid_from = self.last.get() + 1;
        let mut keep = at.held.clone();
        // What fell since may be part of something that was decided since.
        keep.extend(at.orphaned.iter().filter(|number| !orphaned.contains(number)));
        ReleaseOrphanedLocks { below: at.valid_from, keep }
    }

    fn was_told(&self, node: NodeId, orphaned: &[u64]) {
        if let Some(at) = self.at.borrow_mut().get_mut(&node) {
            at.orphaned.retain(|number| !orphaned.contains(number));
        }
        self.told.tell();
    }
}

impl FileServer {
    /// Asks `node` for a tie.
    pub(super) async fn lock_remote<C>(
        &self,
        node: NodeId,
        call: impl FnOnce(u64) -> C,
    ) -> Result<(C::Reply, RemoteLock), Error>
    where
        C: Call<Protocol = Meta> + Clone,
    {
        let lock = self.next_remote_lock(node);
        match self.meta(node, call(lock.number)).await {
            Ok(reply) => {
                if lock.hold() {
                    return Ok((reply, lock));
                }
                lock.finish();
                Err(Undelivered::Busy.into())
            }
            Err(error) => {
                if !is_unsure(error) {
                    lock.finish();
                }
                Err(error)
            }
        }
    }

    /// Gives a tie up, by the `call` with its number.
    pub(super) async fn release_lock<C>(
        &self,
        lock: RemoteLock,
        call: impl FnOnce(u64) -> C,
    ) -> Result<(), Error>
    where
        C: Call<Protocol = Meta, Reply = ()> + Clone,
    {
        let told = self.meta(lock.node, call(lock.number)).await;
        if !matches!(told, Err(Error::Undelivered { .. })) {
            lock.finish();
        }
        told
    }

    fn next_remote_lock(&self, node: NodeId) -> RemoteLock {
        let here = self.context.node();
        self.remote_locks.next(self.context.epoch(), node, node == here)
    }

    /// Another process has had this node: what its ties were is not known.
    pub(super) fn doubt_all_ties(&self) {
        let others = (0..self.context.fs_nodes()).map(NodeId::fs);
        others.for_each(|node| drop(self.next_remote_lock(node)));
    }

    /// Waits until all nodes know which ties this one has; `Lost` if that takes long. Before, what it did may
    /// not be seen by all.
    pub(super) async fn release_remote_locks_now(&self) -> Result<(), Error> {
        let mut patience = pin!(self.context.sleep(TOLD_WAIT_MAX));
        loop {
            let told = pin!(self.remote_locks.told.next());
            if self.remote_locks.to_tell().is_empty() {
                return Ok(());
            }
            if let Either::Right(_) = select(told, &mut patience).await {
                return Err(Undelivered::Lost.into());
            }
        }
    }

    /// Tells nodes which ties this one has, whenever one has fallen.
    pub(super) async fn tell_of_ties(&self) {
        loop {
            let orphaned = self.remote_locks.orphaned.next();
            let to_tell = self.remote_locks.to_tell();
            if to_tell.is_empty() {
                orphaned.await;
                continue;
            }
            let telling =
                to_tell.into_iter().map(|(node, orphaned)| self.tell_of_ties_at(node, orphaned));
            if join_all(telling).await.iter().any(Result::is_err) {
                self.context.sleep(PAUSE).await;
            }
        }
    }

    async fn tell_of_ties_at(&self, node: NodeId, orphaned: Vec<u64>) -> Result<(), Error> {
        // What was decided arrives before what it leans on is given up.
        self.meta_here(WaitForIntents { node: node.0 }).await?;
        let word = self.remote_locks.word_to(node, &orphaned);
        self.meta(node, word).await.inspect_err(|error| {
            tracing::debug!(%error, ?node, "it cannot be told yet what it may give up");
        })?;
        self.remote_locks.was_told(node, &orphaned);
        Ok(())
    }
}

/// May it have been done though it failed?
fn is_unsure(error: Error) -> bool {
    matches!(error, Error::Undelivered { why } if !why.not_applied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_somebody_has_is_kept() {
        let remote_locks = Rc::new(RemoteLocks::default());
        let node = NodeId::fs(1);
        let next = || remote_locks.next(Epoch(3), node, false);
        let (held, over, orphaned, asked) = (next(), next(), next(), next());
        assert!(held.hold() && over.hold() && orphaned.hold());
        over.finish();
        drop(orphaned);
        let [(to, told)] = &remote_locks.to_tell()[..] else { panic!("one node has to be told") };
        let late = next();
        assert!(late.hold());
        drop(late);
        let word = remote_locks.word_to(*to, told);
        assert_eq!(word.below, first_remote_lock(Epoch(3)) + 5);
        assert_eq!(word.keep, [held.number, first_remote_lock(Epoch(3)) + 4]);
        assert!(!asked.hold(), "the node was told that it need not keep it");
        asked.finish();
        remote_locks.was_told(node, told);
        assert_eq!(remote_locks.to_tell(), [(node, vec![first_remote_lock(Epoch(3)) + 4])]);
        held.finish();
        assert!(next().hold());
    }
}
