//! What a front end may keep of files: read delegations of their nodes, and their recalls (ADR
//! 101).
//!
//! A front end (an NFS gateway, say, for all its clients) is one holder. It asks for a file with
//! [`DelegationHolder::delegate`], and may then pass on what it has read of it without asking
//! again, until [`DelegationHolder::next_recalls`] names the file. It stops, and
//! [returns](DelegationHolder::give_back) the file; changes of it wait for that. A task per node
//! asks for the recalls of that node, as long as files of it are held.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use fileio::client::ask;
use fileio::hash::ino_node;
use fileio::protocol::{
    DELEGATION_TRUST, Delegate, DelegationRecall, GetRecalls, Handle, RECALLS_INTERVAL,
    ReturnDelegation,
};
use futures::FutureExt as _;
use futures::channel::oneshot;
use futures::future::{Either, LocalBoxFuture, select};
use runtime::sync::lock;
use runtime::{NodeId, Spawn};

/// A delegation that ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedDelegation {
    /// The file.
    pub file: Handle,
    /// It is over already: the file may have been changed since. Otherwise it is to be
    /// [returned](DelegationHolder::give_back).
    pub is_over: bool,
}

/// The delegations of one front end.
#[derive(Debug)]
pub struct DelegationHolder {
    /// Its number at the nodes.
    number: u64,
    state: Mutex<HeldFiles>,
}

#[derive(Debug, Default)]
struct HeldFiles {
    /// The number of the last request.
    last: u64,
    /// What is held, with the number of the request by which it was granted.
    files: BTreeMap<Handle, u64>,
    /// Requests under way: the file, and whether it was recalled meanwhile.
    pending: BTreeMap<u64, (Handle, bool)>,
    nodes: BTreeMap<NodeId, NodeTrust>,
    /// What was recalled, or is over, and was not taken yet.
    ended: BTreeMap<Handle, bool>,
    /// Who waits for that.
    waiting: Option<oneshot::Sender<()>>,
}

/// A node from which files are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodeTrust {
    /// It was asked for the first time.
    New,
    /// It knows this holder by this lease.
    Leased(u64),
}

impl DelegationHolder {
    /// Holds nothing. No other holder of the volume may have its `number`.
    pub fn new(number: u64) -> Arc<Self> {
        Arc::new(Self { number: number.max(1), state: Mutex::default() })
    }

    /// Its number at the nodes.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Asks for a regular file. True if it is held now. False if its node does not give it now:
    /// others change it.
    pub async fn delegate<S: Spawn>(self: &Arc<Self>, machine: &S, file: Handle) -> bool {
        let node = ino_node(file.ino, machine.fs_nodes());
        let Some((lease, number)) = self.begin(node, file) else { return self.holds(file) };
        let call = Delegate { holder: self.number, lease, number, file };
        let granted = machine.spawn(node, call).await;
        let granted = granted.ok().flatten();
        if lease == 0 && !self.is_known(machine, node, granted).await {
            lock(&self.state).pending.remove(&number);
            return false;
        }
        let is_held = {
            let mut state = lock(&self.state);
            let was_recalled = state.pending.remove(&number).is_none_or(|(_, recalled)| recalled);
            let is_held = granted.is_some() && !was_recalled;
            if is_held {
                state.files.insert(file, number);
            }
            is_held
        };
        if granted.is_some() && !is_held {
            self.send_back(machine, file, number);
        }
        is_held
    }

    /// Does not keep the file any more.
    pub fn give_back<S: Spawn>(&self, machine: &S, file: Handle) {
        let held = {
            let mut state = lock(&self.state);
            state.ended.remove(&file);
            state.files.remove(&file)
        };
        if let Some(number) = held {
            self.send_back(machine, file, number);
        }
    }

    /// Is the file held, and not recalled?
    pub fn holds(&self, file: Handle) -> bool {
        let state = lock(&self.state);
        state.files.contains_key(&file) && !state.ended.contains_key(&file)
    }

    /// Waits until delegations end, and returns them. For one task.
    pub async fn next_recalls(&self) -> Vec<EndedDelegation> {
        loop {
            let told = {
                let mut state = lock(&self.state);
                let ended = std::mem::take(&mut state.ended);
                if !ended.is_empty() {
                    let ended = ended.into_iter();
                    return ended
                        .map(|(file, is_over)| EndedDelegation { file, is_over })
                        .collect();
                }
                let (turn, told) = oneshot::channel();
                state.waiting = Some(turn);
                told
            };
            let _ = told.await;
        }
    }

    /// The lease and the number for a request; `None` if there is none to be made now.
    fn begin(&self, node: NodeId, file: Handle) -> Option<(u64, u64)> {
        let mut state = lock(&self.state);
        if state.files.contains_key(&file) {
            return None;
        }
        let lease = match state.nodes.get(&node) {
            Some(NodeTrust::New) => return None,
            Some(NodeTrust::Leased(lease)) => *lease,
            None => 0,
        };
        if lease == 0 {
            state.nodes.insert(node, NodeTrust::New);
        }
        state.last += 1;
        let number = state.last;
        state.pending.insert(number, (file, false));
        Some((lease, number))
    }

    /// The answer to the first request to a node: from now on it is asked for recalls. False if it
    /// does not answer that.
    async fn is_known<S: Spawn>(
        self: &Arc<Self>,
        machine: &S,
        node: NodeId,
        lease: Option<u64>,
    ) -> bool {
        let Some(lease) = lease else {
            lock(&self.state).nodes.remove(&node);
            return false;
        };
        let (answered, first) = oneshot::channel();
        let me = self.clone();
        machine.task(move |machine| async move { me.watch(machine, node, lease, answered).await });
        first.await.is_ok()
    }

    /// Asks a node for recalls, until nothing of it is held.
    async fn watch<S: Spawn>(
        self: Arc<Self>,
        machine: S,
        node: NodeId,
        lease: u64,
        answered: oneshot::Sender<()>,
    ) {
        let mut answered = Some(answered);
        let mut trust = machine.sleep(DELEGATION_TRUST).boxed_local();
        loop {
            // Trust begins when the request is sent.
            let next_trust = machine.sleep(DELEGATION_TRUST).boxed_local();
            let Some(recalls) = self.ask_for_recalls(&machine, node, lease, &mut trust).await
            else {
                break;
            };
            trust = next_trust;
            for recall in recalls {
                self.note_recall(&machine, recall);
            }
            if let Some(answered) = answered.take() {
                lock(&self.state).nodes.insert(node, NodeTrust::Leased(lease));
                let _ = answered.send(());
            } else if self.is_unused(node, machine.fs_nodes()) {
                return;
            }
            machine.sleep(RECALLS_INTERVAL).await;
        }
        self.lose(node, machine.fs_nodes());
    }

    /// `None` if the node does not know the lease, or does not answer while it is trusted.
    async fn ask_for_recalls<S: Spawn>(
        &self,
        machine: &S,
        node: NodeId,
        lease: u64,
        trust: &mut LocalBoxFuture<'static, ()>,
    ) -> Option<Vec<DelegationRecall>> {
        let call = GetRecalls { holder: self.number, lease };
        loop {
            let asked = machine.spawn(node, call.clone()).boxed_local();
            match select(asked, &mut *trust).await {
                Either::Left((Ok(recalls), _)) => return recalls,
                Either::Left((Err(_), _)) => {}
                Either::Right(_) => return None,
            }
            let pause = machine.sleep(RECALLS_INTERVAL).boxed_local();
            if let Either::Right(_) = select(pause, &mut *trust).await {
                return None;
            }
        }
    }

    fn note_recall<S: Spawn>(&self, machine: &S, recall: DelegationRecall) {
        let DelegationRecall { file, number } = recall;
        let is_known = {
            let mut state = lock(&self.state);
            if let Some((_, was_recalled)) = state.pending.get_mut(&number) {
                // Before the answer that grants it.
                *was_recalled = true;
                true
            } else if state.files.get(&file) == Some(&number) {
                state.end(file, false);
                true
            } else {
                false
            }
        };
        if !is_known {
            // Its return was lost, or the answer that granted it.
            self.send_back(machine, file, number);
        }
    }

    /// Is nothing of this node held or asked for? Then it is forgotten.
    fn is_unused(&self, node: NodeId, fs_nodes: u32) -> bool {
        let mut state = lock(&self.state);
        let mut files = state.files.keys().chain(state.pending.values().map(|(file, _)| file));
        let is_unused = !files.any(|file| ino_node(file.ino, fs_nodes) == node);
        if is_unused {
            state.nodes.remove(&node);
        }
        is_unused
    }

    /// All that is held of a node is over.
    fn lose(&self, node: NodeId, fs_nodes: u32) {
        let mut state = lock(&self.state);
        let state = &mut *state;
        state.nodes.remove(&node);
        let at_node = |file: &Handle| ino_node(file.ino, fs_nodes) == node;
        for (file, was_recalled) in state.pending.values_mut() {
            *was_recalled |= at_node(file);
        }
        let lost: Vec<Handle> = state.files.keys().copied().filter(at_node).collect();
        for file in lost {
            state.files.remove(&file);
            state.end(file, true);
        }
    }

    fn send_back<S: Spawn>(&self, machine: &S, file: Handle, number: u64) {
        let call = ReturnDelegation { holder: self.number, number, file };
        // If this is lost, it is recalled again when it is in the way.
        machine.task(move |machine| async move {
            let _ = ask(&machine, call).await;
        });
    }
}

impl HeldFiles {
    fn end(&mut self, file: Handle, is_over: bool) {
        *self.ended.entry(file).or_default() |= is_over;
        if let Some(waiting) = self.waiting.take() {
            let _ = waiting.send(());
        }
    }
}
