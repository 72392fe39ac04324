//! What this client has open, and the leases under which the nodes keep it (ADR 10).
//!
//! Opening a file holds it in the same request. Closing lets go in the background, and so are the
//! leases renewed, by a task of the machine that ends when nothing is open any more. A node that has
//! forgotten the client says so, and is told again what is held there.
//!
//! [`FileSystem`](crate::FileSystem) does all of this itself. It is public for those who work by handle:
//!
//! 1. [`Leases::opening`] before the request that holds the file ([`fileio::protocol::OpenHandle`],
//!    `Open` or `OpenNew`, with a number of [`Leases::call`]),
//! 2. [`Leases::held`] with the answer,
//! 3. drop the [`Holding`], or [`keep`](Holding::keep) the file held and [`Leases::close`] it.

mod locks;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fileio::client::ask;
use fileio::hash::ino_node;
use fileio::locks::LockTable;
use fileio::protocol::{
    CallId, CloseHandle, Error as FileIoError, Handle, OpenHandle, RENEW_INTERVAL, Renew,
};
use futures::future::{Either, select};
use futures::{FutureExt as _, StreamExt as _, stream};
use runtime::{NodeId, Spawn};

/// A node at which something failed is told again so soon.
const RENEW_RETRY: Duration = Duration::from_secs(1);

/// Words to nodes that are under way at once, at most.
const WORDS_MAX: usize = 64;

/// Whoever waits for the last words looks so often, so many times.
const LAST_WORDS_PAUSE: Duration = Duration::from_millis(1);
const LAST_WORDS_LOOKS_MAX: u32 = 5_000;

/// The open files of one client, by all threads that use it, and its locks on them.
#[derive(Debug)]
pub struct Leases {
    client: u64,
    /// The number of the next call.
    calls: AtomicU64,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    /// How often each file is open.
    files: BTreeMap<Handle, u64>,
    /// The lease at each node that has some of them.
    leases: BTreeMap<NodeId, u64>,
    /// Opens that are under way, by the number of their first call.
    opening: BTreeSet<u64>,
    /// Files that were let go of meanwhile, by the last call that did.
    close_handle: BTreeMap<Handle, u64>,
    /// Words of letting go that are under way.
    last_words: usize,
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
pub struct Opening<'a> {
    leases: &'a Leases,
    number: u64,
}

/// How a node has answered that it holds a file: the call, and the lease (0 if it holds nothing).
#[derive(Clone, Copy, Debug)]
pub struct Answered {
    /// The call.
    pub call: CallId,
    /// The lease.
    pub lease: u64,
}

/// An open file. The last one of a file lets go when it is dropped.
#[derive(Debug)]
pub struct Holding<S: Spawn> {
    machine: S,
    leases: Arc<Leases>,
    file: Handle,
    /// Somebody else closes it.
    kept: bool,
}

/// A word of letting go that is under way, until it is dropped: a machine that stops drops its tasks.
struct LastWord(Arc<Leases>);

impl Drop for LastWord {
    fn drop(&mut self) {
        self.0.open().last_words -= 1;
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        let mut open = self.leases.open();
        let was_oldest = open.opening.first() == Some(&self.number);
        open.opening.remove(&self.number);
        if !was_oldest {
            // All that was let go of since the oldest began stays remembered.
            return;
        }
        match open.opening.first().copied() {
            Some(oldest) => open.close_handle.retain(|_, number| *number > oldest),
            None => open.close_handle.clear(),
        }
    }
}

impl<S: Spawn> Drop for Holding<S> {
    fn drop(&mut self) {
        if !self.kept {
            self.leases.close(&self.machine, self.file);
        }
    }
}

impl<S: Spawn> Holding<S> {
    /// The file.
    pub fn file(&self) -> Handle {
        self.file
    }

    /// Leaves the file open, until [`Leases::close`] is told.
    pub fn keep(mut self) {
        self.kept = true;
    }
}

impl Leases {
    /// Nothing is open. No two clients of a volume may have the same `client`: draw it at random.
    pub fn new(client: u64) -> Self {
        Self { client, calls: AtomicU64::default(), open: Mutex::default() }
    }

    /// A new call's id.
    pub fn call(&self) -> CallId {
        CallId { client: self.client, number: self.calls.fetch_add(1, Relaxed) }
    }

    /// The lease of this client at a file's node, as far as it is known; 0 if it has none.
    pub(crate) fn lease_of(&self, file: Handle, fs_nodes: u32) -> u64 {
        self.open().leases.get(&ino_node(file.ino, fs_nodes)).copied().unwrap_or(0)
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be called before a request that holds a file, and kept until it was
    /// [answered](Self::held).
    pub fn opening(&self) -> Opening<'_> {
        let number = self.call().number;
        self.open().opening.insert(number);
        Opening { leases: self, number }
    }

    /// A node holds a file, which is open once more now.
    pub async fn held<S: Spawn>(
        self: &Arc<Self>,
        machine: &S,
        file: Handle,
        answered: Answered,
    ) -> Result<Holding<S>, FileIoError> {
        let overtaken = self.note(machine, file, answered);
        let holding = Holding { machine: machine.clone(), leases: self.clone(), file, kept: false };
        if overtaken {
            // Another opening of the same file was closed meanwhile, and its word came later.
            ask(machine, OpenHandle { call: self.call(), file }).await?;
        }
        Ok(holding)
    }

    /// Notes an open file; true if it was let go of since the request that holds it was sent.
    fn note<S: Spawn>(self: &Arc<Self>, machine: &S, file: Handle, answered: Answered) -> bool {
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

    /// A file is open once less. The last time lets go of it, in the background.
    pub fn close<S: Spawn>(self: &Arc<Self>, machine: &S, file: Handle) {
        let Some(call) = self.note_closed(file, machine) else { return };
        let word = LastWord(self.clone());
        machine.task(move |machine| async move {
            // If this is in vain the node keeps the file until the lease ends.
            let _ = ask(&machine, CloseHandle { call, file }).await;
            drop(word);
        });
    }

    /// The call that shall let go of the file, if it is not open any more.
    fn note_closed<S: Spawn>(&self, file: Handle, machine: &S) -> Option<CallId> {
        let mut open = self.open();
        let count = open.files.get_mut(&file)?;
        *count -= 1;
        if *count > 0 {
            return None;
        }
        open.files.remove(&file);
        open.lost.remove(&file);
        open.locks.release(file.ino, self.client);
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
        open.last_words += 1;
        Some(call)
    }

    /// The files that are open at `node`.
    fn files_at(&self, node: NodeId, fs_nodes: u32) -> Vec<Handle> {
        let open = self.open();
        let files = open.files.keys().copied();
        files.filter(|file| ino_node(file.ino, fs_nodes) == node).collect()
    }

    /// Waits until the nodes have heard which files were closed, or do not answer.
    pub async fn last_words<S: Spawn>(&self, machine: &S) {
        for _ in 0..LAST_WORDS_LOOKS_MAX {
            if self.open().last_words == 0 {
                return;
            }
            machine.sleep(LAST_WORDS_PAUSE).await;
        }
    }

    /// Renews the lease at one node. Returns whether the node knows all now.
    async fn renew_at<S: Spawn>(self: &Arc<Self>, machine: &S, node: NodeId, lease: u64) -> bool {
        if !self.open().behind.contains(&node) {
            match self.say_renew(machine, node, lease).await {
                Ok(true) => return true,
                Ok(false) => self.open().behind.insert(node),
                Err(_) => return false,
            };
        }
        let Some(lease) = self.hold_again(machine, node).await else { return false };
        if let Some(known) = self.open().leases.get_mut(&node) {
            *known = lease;
        }
        if !self.lock_again(machine, node, lease).await {
            return false;
        }
        self.open().behind.remove(&node);
        // Only with this the node knows that it has heard everything.
        self.say_renew(machine, node, lease).await == Ok(true)
    }

    async fn say_renew<S: Spawn>(
        self: &Arc<Self>,
        machine: &S,
        node: NodeId,
        lease: u64,
    ) -> Result<bool, FileIoError> {
        let (client, watch) = (self.client, self.watch_again(machine, node));
        let is_known = machine.spawn(node, Renew { client, lease }).await?;
        if is_known {
            self.renewed(node, watch);
        }
        Ok(is_known)
    }

    /// Holds all files at `node` again; the one lease under which this was done.
    async fn hold_again<S: Spawn>(&self, machine: &S, node: NodeId) -> Option<u64> {
        let files = self.files_at(node, machine.fs_nodes());
        let held =
            files.into_iter().map(|file| ask(machine, OpenHandle { call: self.call(), file }));
        let mut held = stream::iter(held).buffer_unordered(WORDS_MAX);
        let mut leases = BTreeSet::new();
        let mut complete = true;
        while let Some(answer) = held.next().await {
            match answer {
                Ok(held) => {
                    leases.insert(held.lease);
                }
                // Gone; whoever has it open will be told so.
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

/// Renews all leases now and then, until nothing is open any more.
async fn renew<S: Spawn>(machine: S, leases: Arc<Leases>) {
    let mut pause = RENEW_INTERVAL;
    loop {
        machine.sleep(pause).await;
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
        let renewed: Vec<bool> = stream::iter(renewed).buffer_unordered(WORDS_MAX).collect().await;
        pause = if renewed.into_iter().all(|known| known) { RENEW_INTERVAL } else { RENEW_RETRY };
    }
}
