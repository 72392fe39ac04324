//! What this client has open, and the leases under which the nodes keep it (ADR 10).
//!
//! One request finds a file and opens it at its node. Closes are sent in the background, and so are
//! the renewals of leases, by a task of the machine that ends when no file is open any more. After
//! a node has lost the lease, the client reports its open files again.
//!
//! [`FileSystem`](crate::FileSystem) does all of this itself. It is public for those who work by
//! handle:
//!
//! 1. [`Leases::opening`] before the request that holds the file ([`fileio::protocol::OpenHandle`],
//!    `Open` or `OpenNew`, with a number of [`Leases::call`]),
//! 2. [`Leases::opened`] with the answer,
//! 3. drop the [`OpenFileGuard`], or [`keep`](OpenFileGuard::keep) the file held and
//!    [`Leases::close`] it.

mod locks;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fileio::client::ask;
use fileio::hash::ino_node;
use fileio::locks::LockTable;
use fileio::protocol::{
    CallId, CloseHandle, Credentials, Error as FileIoError, Handle, OpenHandle, RENEW_INTERVAL,
    Renew,
};
use futures::future::{Either, select};
use futures::{FutureExt as _, StreamExt as _, stream};
use runtime::client_handle::CallNumbers;
use runtime::{NodeId, Spawn};

/// Pause before a renewal that failed is repeated.
const RENEW_RETRY: Duration = Duration::from_secs(1);

/// How often a client looks whether a server has restarted.
const RESTART_CHECK: Duration = Duration::from_millis(500);

/// Concurrent requests to nodes, at most.
const REQUESTS_CONCURRENCY_MAX: usize = 64;

/// How often, and how many times, a waiter checks for pending closes.
const CLOSE_WAIT_PAUSE: Duration = Duration::from_millis(1);
const CLOSE_WAIT_CHECKS_MAX: u32 = 5_000;

/// The open files of one client, by all threads that use it, and its locks on them.
#[derive(Debug)]
pub struct Leases {
    calls: Arc<CallNumbers>,
    open: Mutex<LeaseState>,
}

#[derive(Debug, Default)]
struct LeaseState {
    /// How often each file is open.
    files: BTreeMap<Handle, u64>,
    /// What was granted for each file, and to whom, by user.
    rights: BTreeMap<Handle, BTreeMap<u32, (Credentials, u32)>>,
    /// The lease at each node that has some of them.
    leases: BTreeMap<NodeId, u64>,
    /// Opens that are under way, by the number of their first call.
    opening: BTreeSet<u64>,
    /// Files that were closed meanwhile, by the call of their last close.
    close_handle: BTreeMap<Handle, u64>,
    /// Closes that are under way.
    pending_closes: usize,
    /// A task renews the leases.
    renewing: bool,
    /// Nodes with another lease than before, which have not heard everything again.
    behind: BTreeSet<NodeId>,
    /// The locks on these files.
    locks: LockTable,
    /// Files of which locks were lost.
    lost: BTreeSet<Handle>,
    /// Unlocks that are under way.
    unlocking: BTreeMap<Handle, usize>,
    /// Who notices the end of the lease at each node that has locks.
    watched: BTreeMap<NodeId, u64>,
}

/// An open that is under way.
#[derive(Debug)]
pub struct PendingOpen<'a> {
    leases: &'a Leases,
    number: u64,
}

/// The reply of a node to an open: the call, and the lease (0 if the file is not open there).
#[derive(Clone, Copy, Debug)]
pub struct LeaseReply {
    /// The call.
    pub call: CallId,
    /// The lease.
    pub lease: u64,
}

/// An open file. The last guard of a file closes it when it is dropped.
#[derive(Debug)]
pub struct OpenFileGuard<S: Spawn> {
    machine: S,
    leases: Arc<Leases>,
    file: Handle,
    /// The caller closes it.
    kept: bool,
}

/// A close that is under way, until it is dropped: a machine that stops drops its tasks.
struct PendingClose(Arc<Leases>);

impl Drop for PendingClose {
    fn drop(&mut self) {
        self.0.open().pending_closes -= 1;
    }
}

impl Drop for PendingOpen<'_> {
    fn drop(&mut self) {
        let mut open = self.leases.open();
        let was_oldest = open.opening.first() == Some(&self.number);
        open.opening.remove(&self.number);
        if !was_oldest {
            // Closes since the oldest of these opens are remembered.
            return;
        }
        match open.opening.first().copied() {
            Some(oldest) => open.close_handle.retain(|_, number| *number > oldest),
            None => open.close_handle.clear(),
        }
    }
}

impl<S: Spawn> Drop for OpenFileGuard<S> {
    fn drop(&mut self) {
        if !self.kept {
            self.leases.close(&self.machine, self.file);
        }
    }
}

impl<S: Spawn> OpenFileGuard<S> {
    /// The file.
    pub fn file(&self) -> Handle {
        self.file
    }

    /// Leaves the file open until [`Leases::close`].
    pub fn keep(mut self) {
        self.kept = true;
    }
}

impl Leases {
    /// Nothing is open.
    pub fn new(calls: Arc<CallNumbers>) -> Self {
        Self { calls, open: Mutex::default() }
    }

    /// The number of the client.
    pub(crate) fn client(&self) -> u64 {
        self.calls.client()
    }

    /// A new call's id.
    pub fn call(&self) -> CallId {
        self.calls.next()
    }

    fn open(&self) -> MutexGuard<'_, LeaseState> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be called before a request that opens a file, and kept until the [reply](Self::opened).
    pub fn opening(&self) -> PendingOpen<'_> {
        let number = self.call().number;
        self.open().opening.insert(number);
        PendingOpen { leases: self, number }
    }

    /// A node has opened a file: records that.
    pub async fn opened<S: Spawn>(
        self: &Arc<Self>,
        machine: &S,
        file: Handle,
        answered: LeaseReply,
    ) -> Result<OpenFileGuard<S>, FileIoError> {
        self.opened_for(machine, file, answered, (&Credentials::root(), 0)).await
    }

    /// The same, if the node has also granted a user [`access`](fileio::protocol::access).
    pub async fn opened_for<S: Spawn>(
        self: &Arc<Self>,
        machine: &S,
        file: Handle,
        answered: LeaseReply,
        (who, access): (&Credentials, u32),
    ) -> Result<OpenFileGuard<S>, FileIoError> {
        let overtaken = self.note(machine, file, answered);
        self.note_granted(file, who, access);
        let holding =
            OpenFileGuard { machine: machine.clone(), leases: self.clone(), file, kept: false };
        if overtaken {
            // Another opening of the same file was closed meanwhile, and its request came later.
            self.open_again(machine, file).await?;
        }
        Ok(holding)
    }

    fn note_granted(&self, file: Handle, who: &Credentials, access: u32) {
        if access != 0 {
            let mut open = self.open();
            let openers = open.rights.entry(file).or_default();
            openers.entry(who.uid).or_insert_with(|| (who.clone(), 0)).1 |= access;
        }
    }

    /// Records an open file; true if it was closed since the request that opened it was sent.
    fn note<S: Spawn>(self: &Arc<Self>, machine: &S, file: Handle, answered: LeaseReply) -> bool {
        let node = ino_node(file.ino, machine.fs_nodes());
        let mut open = self.open();
        *open.files.entry(file).or_default() += 1;
        // Another lease than before is found out, and all is held again, when it is renewed.
        open.leases.entry(node).or_insert(answered.lease);
        if !std::mem::replace(&mut open.renewing, true) {
            let leases = self.clone();
            machine.task(move |machine| renew(machine, leases));
        }
        open.close_handle.get(&file).is_some_and(|number| *number > answered.call.number)
    }

    /// Counts one close of a file. The last one is sent in the background.
    pub fn close<S: Spawn>(self: &Arc<Self>, machine: &S, file: Handle) {
        let Some(call) = self.note_closed(file, machine) else { return };
        let pending = PendingClose(self.clone());
        machine.task(move |machine| async move {
            // If this fails the node keeps the file until the lease ends.
            let _ = ask(&machine, CloseHandle { call, file }).await;
            drop(pending);
        });
    }

    /// The call that shall close the file, if it is not open any more.
    fn note_closed<S: Spawn>(&self, file: Handle, machine: &S) -> Option<CallId> {
        let mut open = self.open();
        let count = open.files.get_mut(&file)?;
        *count -= 1;
        if *count > 0 {
            return None;
        }
        open.files.remove(&file);
        open.rights.remove(&file);
        open.lost.remove(&file);
        open.locks.release(file.ino, self.client());
        let fs_nodes = machine.fs_nodes();
        let node = ino_node(file.ino, fs_nodes);
        if !open.files.keys().any(|other| ino_node(other.ino, fs_nodes) == node) {
            open.leases.remove(&node);
            open.behind.remove(&node);
        }
        let call = self.call();
        if !open.opening.is_empty() {
            open.close_handle.insert(file, call.number);
        }
        open.pending_closes += 1;
        Some(call)
    }

    /// The files that are open at `node`.
    fn files_at(&self, node: NodeId, fs_nodes: u32) -> Vec<Handle> {
        let open = self.open();
        let files = open.files.keys().copied();
        files.filter(|file| ino_node(file.ino, fs_nodes) == node).collect()
    }

    /// Waits until the nodes have heard which files were closed, or do not answer.
    pub async fn wait_for_closes<S: Spawn>(&self, machine: &S) {
        for _ in 0..CLOSE_WAIT_CHECKS_MAX {
            if self.open().pending_closes == 0 {
                return;
            }
            machine.sleep(CLOSE_WAIT_PAUSE).await;
        }
    }

    /// Renews the lease at one node. Returns whether the node knows all now.
    async fn renew_at<S: Spawn>(self: &Arc<Self>, machine: &S, node: NodeId, lease: u64) -> bool {
        if !self.open().behind.contains(&node) {
            match self.send_renew(machine, node, lease).await {
                Ok(true) => return true,
                Ok(false) => self.open().behind.insert(node),
                Err(_) => return false,
            };
        }
        let Some(lease) = self.reopen_all(machine, node).await else { return false };
        if let Some(known) = self.open().leases.get_mut(&node) {
            *known = lease;
        }
        if !self.lock_again(machine, node, lease).await {
            return false;
        }
        self.open().behind.remove(&node);
        // Only with this the node knows that it has heard everything.
        self.send_renew(machine, node, lease).await == Ok(true)
    }

    async fn send_renew<S: Spawn>(
        self: &Arc<Self>,
        machine: &S,
        node: NodeId,
        lease: u64,
    ) -> Result<bool, FileIoError> {
        let (client, watch) = (self.client(), self.watch_again(machine, node));
        let is_known = machine.spawn(node, Renew { client, lease }).await?;
        if is_known {
            self.renewed(node, watch);
        }
        Ok(is_known)
    }

    /// Opens a file again, for each user who has it open; returns the lease.
    async fn open_again<S: Spawn>(&self, machine: &S, file: Handle) -> Result<u64, FileIoError> {
        let openers = self.open().rights.get(&file).cloned().unwrap_or_default();
        let mut lease = None;
        for (who, access) in openers.into_values() {
            match ask(machine, OpenHandle { who, call: self.call(), file, access }).await {
                Ok(opened) => lease = Some(opened.lease),
                // Its mode has changed meanwhile: the file stays open, the right is lost.
                Err(FileIoError::AccessDenied {}) => {}
                Err(error) => return Err(error),
            }
        }
        match lease {
            Some(lease) => Ok(lease),
            None => Ok(ask(machine, OpenHandle::unjudged(self.call(), file)).await?.lease),
        }
    }

    /// Opens all files at `node` again; returns the one lease under which the node did so.
    async fn reopen_all<S: Spawn>(&self, machine: &S, node: NodeId) -> Option<u64> {
        let files = self.files_at(node, machine.fs_nodes());
        let opens = files.into_iter().map(|file| self.open_again(machine, file));
        let mut replies = stream::iter(opens).buffer_unordered(REQUESTS_CONCURRENCY_MAX);
        let mut leases = BTreeSet::new();
        let mut complete = true;
        while let Some(reply) = replies.next().await {
            match reply {
                Ok(lease) => {
                    leases.insert(lease);
                }
                // Removed: requests on the open file fail.
                Err(FileIoError::Stale {}) => {}
                Err(_) => complete = false,
            }
        }
        if complete && leases.is_empty() {
            // Nothing of this client is left there.
            let mut open = self.open();
            open.leases.remove(&node);
            open.behind.remove(&node);
        }
        let lease = leases.pop_first()?;
        (complete && leases.is_empty()).then_some(lease)
    }
}

/// Sleeps, but not longer than until a server has come back that has forgotten what is open.
async fn sleep_until_restart<S: Spawn>(machine: &S, pause: Duration) {
    let Some(restarts) = machine.restarts() else { return machine.sleep(pause).await };
    let mut left = pause;
    while left > Duration::ZERO && machine.restarts() == Some(restarts) {
        let step = left.min(RESTART_CHECK);
        machine.sleep(step).await;
        left -= step;
    }
}

/// Renews all leases now and then, until nothing is open any more.
async fn renew<S: Spawn>(machine: S, leases: Arc<Leases>) {
    let mut pause = RENEW_INTERVAL;
    loop {
        sleep_until_restart(&machine, pause).await;
        let nodes: Vec<(NodeId, u64)> = {
            let mut open = leases.open();
            if open.files.is_empty() {
                open.renewing = false;
                return;
            }
            open.leases.iter().map(|(&node, &lease)| (node, lease)).collect()
        };
        let renewed = nodes.into_iter().map(|(node, lease)| {
            // A node that does not answer must not hold up the leases at others.
            let renewing = leases.renew_at(&machine, node, lease).boxed_local();
            let limit = machine.sleep(RENEW_INTERVAL).boxed_local();
            select(renewing, limit).map(|first| matches!(first, Either::Left((true, _))))
        });
        let renewed: Vec<bool> =
            stream::iter(renewed).buffer_unordered(REQUESTS_CONCURRENCY_MAX).collect().await;
        pause = if renewed.into_iter().all(|known| known) { RENEW_INTERVAL } else { RENEW_RETRY };
    }
}
