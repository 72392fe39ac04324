//! Locks that this node holds at other nodes while it changes names: on a name, on a directory
//! (shared or exclusive), and on renames of directories (ADR 57).
//!
//! Each lock has a number, by which it is released. When a reply is lost, the lock may or may not
//! be held: it is *orphaned*, and `ReleaseOrphanedLocks` names the locks that this node has at the
//! other one. All others with lower numbers are void, also those that arrive later. A lock whose
//! change is in doubt is orphaned too; it is released once the decision has been applied.

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

use super::base::MetadataAccess;
use crate::protocol::Error;

/// The pause before orphaned locks are released again at a node that did not answer.
const PAUSE: Duration = Duration::from_millis(10);
/// A retried call waits this long for the release of orphaned locks, at most.
const RELEASE_WAIT_MAX: Duration = Duration::from_secs(1);

/// The remote locks of one node.
#[derive(Debug, Default)]
struct RemoteLockTable {
    last: Cell<u64>,
    at: RefCell<BTreeMap<NodeId, NodeLocks>>,
    orphaned: Event,
    released: Event,
}

/// Locks at one other node.
#[derive(Debug, Default)]
struct NodeLocks {
    /// Locks that a running request has.
    held: Vec<u64>,
    /// Locks that no request has any more, and that the other node may still hold.
    orphaned: Vec<u64>,
    /// A lock with a lower number whose reply arrives later is void.
    valid_from: u64,
}

/// A remote lock that is held or requested. It is orphaned when it is dropped.
#[derive(Debug)]
pub(super) struct RemoteLockGuard {
    table: Rc<RemoteLockTable>,
    node: NodeId,
    number: u64,
    /// The other node needs no release.
    is_over: bool,
}

impl RemoteLockGuard {
    /// The decision has released it, or it was not granted.
    pub(super) fn finish(mut self) {
        self.is_over = true;
        self.table.forget(self.node, self.number);
    }

    /// The node has granted it. False if its release is already under way.
    fn hold(&self) -> bool {
        let mut at = self.table.at.borrow_mut();
        let at = at.entry(self.node).or_default();
        let is_mine = self.is_over || self.number >= at.valid_from;
        if is_mine && !self.is_over {
            at.held.push(self.number);
        }
        is_mine
    }
}

impl Drop for RemoteLockGuard {
    fn drop(&mut self) {
        if !self.is_over {
            self.table.forget(self.node, self.number);
            let orphan = |at: &mut NodeLocks| at.orphaned.push(self.number);
            orphan(self.table.at.borrow_mut().entry(self.node).or_default());
            self.table.orphaned.tell();
        }
    }
}

impl RemoteLockTable {
    fn next(self: &Rc<Self>, epoch: Epoch, node: NodeId, is_here: bool) -> RemoteLockGuard {
        self.last.set((self.last.get() + 1).max(first_remote_lock(epoch)));
        // No reply of this node itself is lost.
        RemoteLockGuard { table: self.clone(), node, number: self.last.get(), is_over: is_here }
    }

    fn forget(&self, node: NodeId, number: u64) {
        if let Some(at) = self.at.borrow_mut().get_mut(&node)
            && let Some(place) = at.held.iter().position(|held| *held == number)
        {
            at.held.swap_remove(place);
        }
    }

    /// The nodes at which locks are orphaned, with the numbers of these locks.
    fn with_orphans(&self) -> Vec<(NodeId, Vec<u64>)> {
        let at = self.at.borrow();
        let orphaned = at.iter().filter(|(_, at)| !at.orphaned.is_empty());
        orphaned.map(|(&node, at)| (node, at.orphaned.clone())).collect()
    }

    /// The request that makes `node` release the `orphaned` locks.
    fn release_call(&self, node: NodeId, orphaned: &[u64]) -> ReleaseOrphanedLocks {
        let mut at = self.at.borrow_mut();
        let at = at.entry(node).or_default();
        at.valid_from = self.last.get() + 1;
        let mut keep = at.held.clone();
        // A lock orphaned since may be part of a decision made since.
        keep.extend(at.orphaned.iter().filter(|number| !orphaned.contains(number)));
        ReleaseOrphanedLocks { below: at.valid_from, keep }
    }

    fn note_released(&self, node: NodeId, orphaned: &[u64]) {
        if let Some(at) = self.at.borrow_mut().get_mut(&node) {
            at.orphaned.retain(|number| !orphaned.contains(number));
        }
        self.released.tell();
    }
}

/// Locks things at other nodes, for this node.
pub(super) struct RemoteLocks {
    base: MetadataAccess,
    table: Rc<RemoteLockTable>,
}

impl RemoteLocks {
    pub(super) fn new(base: MetadataAccess) -> Self {
        Self { base, table: Rc::default() }
    }

    /// Locks something at `node`.
    pub(super) async fn lock<C>(
        &self,
        node: NodeId,
        call: impl FnOnce(u64) -> C,
    ) -> Result<(C::Reply, RemoteLockGuard), Error>
    where
        C: Call<Protocol = Meta> + Clone,
    {
        let lock = self.next(node);
        match self.base.meta(node, call(lock.number)).await {
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

    /// Releases a lock, by the `call` with its number.
    pub(super) async fn release<C>(
        &self,
        lock: RemoteLockGuard,
        call: impl FnOnce(u64) -> C,
    ) -> Result<(), Error>
    where
        C: Call<Protocol = Meta, Reply = ()> + Clone,
    {
        let released = self.base.meta(lock.node, call(lock.number)).await;
        if !matches!(released, Err(Error::Undelivered { .. })) {
            lock.finish();
        }
        released
    }

    fn next(&self, node: NodeId) -> RemoteLockGuard {
        let here = self.base.context.node();
        self.table.next(self.base.context.epoch(), node, node == here)
    }

    /// Another process had this node: which locks it held is not known.
    pub(super) fn orphan_all(&self) {
        let others = (0..self.base.context.fs_nodes()).map(NodeId::fs);
        others.for_each(|node| drop(self.next(node)));
    }

    /// Waits until no lock is orphaned; `Lost` if that takes long. Until then other nodes may not
    /// see the change.
    pub(super) async fn wait_for_releases(&self) -> Result<(), Error> {
        let mut timeout = pin!(self.base.context.sleep(RELEASE_WAIT_MAX));
        loop {
            let released = pin!(self.table.released.next());
            if self.table.with_orphans().is_empty() {
                return Ok(());
            }
            if let Either::Right(_) = select(released, &mut timeout).await {
                return Err(Undelivered::Lost.into());
            }
        }
    }

    /// Releases orphaned locks, as long as the node runs.
    pub(super) async fn release_orphaned_locks(&self) {
        loop {
            let orphaned = self.table.orphaned.next();
            let with_orphans = self.table.with_orphans();
            if with_orphans.is_empty() {
                orphaned.await;
                continue;
            }
            let releases = with_orphans
                .into_iter()
                .map(|(node, orphaned)| self.release_orphaned_locks_at(node, orphaned));
            if join_all(releases).await.iter().any(Result::is_err) {
                self.base.context.sleep(PAUSE).await;
            }
        }
    }

    async fn release_orphaned_locks_at(
        &self,
        node: NodeId,
        orphaned: Vec<u64>,
    ) -> Result<(), Error> {
        // A decision arrives before the locks that it depends on are released.
        self.base.meta_here(WaitForIntents { node: node.0 }).await?;
        let release = self.table.release_call(node, &orphaned);
        self.base.meta(node, release).await.inspect_err(|error| {
            tracing::debug!(%error, ?node, "its orphaned locks cannot be released yet");
        })?;
        self.table.note_released(node, &orphaned);
        Ok(())
    }
}

/// May the call have been executed although it failed?
fn is_unsure(error: Error) -> bool {
    matches!(error, Error::Undelivered { why } if !why.not_applied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_locks_in_use_are_kept() {
        let table = Rc::new(RemoteLockTable::default());
        let node = NodeId::fs(1);
        let next = || table.next(Epoch(3), node, false);
        let (held, over, orphaned, asked) = (next(), next(), next(), next());
        assert!(held.hold() && over.hold() && orphaned.hold());
        over.finish();
        drop(orphaned);
        let [(to, orphans)] = &table.with_orphans()[..] else {
            panic!("locks are orphaned at one node")
        };
        let late = next();
        assert!(late.hold());
        drop(late);
        let release = table.release_call(*to, orphans);
        assert_eq!(release.below, first_remote_lock(Epoch(3)) + 5);
        assert_eq!(release.keep, [held.number, first_remote_lock(Epoch(3)) + 4]);
        assert!(!asked.hold(), "its release has been requested");
        asked.finish();
        table.note_released(node, orphans);
        assert_eq!(table.with_orphans(), [(node, vec![first_remote_lock(Epoch(3)) + 4])]);
        held.finish();
        assert!(next().hold());
    }
}
