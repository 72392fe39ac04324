//! What other nodes keep for this one while it changes names: a name that it has claimed, a directory that it has
//! frozen or changes names of, the turn to change the tree (ADR 57).
//!
//! Each such tie has a number, and is given up by it. When an answer is lost, nobody knows whether there is a tie, or
//! whether it was given up; so it *falls*, and the node is told which ties this one has there (`GiveUp`): all others
//! that were numbered before are void, also those that arrive later. So does a tie whose change is in doubt, after
//! what was decided has arrived.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures::future::{Either, join_all, select};
use meta::client::first_tie;
use meta::protocol::{AllApplied, GiveUp, Meta};
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
pub(super) struct Ties {
    last: Cell<u64>,
    at: RefCell<BTreeMap<NodeId, TiesAt>>,
    fallen: Event,
    told: Event,
}

/// Ties at one other node.
#[derive(Debug, Default)]
struct TiesAt {
    /// Those that somebody has.
    held: Vec<u64>,
    /// Those that nobody has any more, and the node may.
    fallen: Vec<u64>,
    /// What is asked for with a lower number, and not answered yet, is not kept.
    void_below: u64,
}

/// A tie, or one that is asked for. It falls when it is dropped.
#[derive(Debug)]
pub(super) struct Tie {
    ties: Rc<Ties>,
    node: NodeId,
    number: u64,
    /// Nobody has to be told.
    is_over: bool,
}

impl Tie {
    /// What was decided has ended it, or it did not come about.
    pub(super) fn finish(mut self) {
        self.is_over = true;
        self.ties.let_go(self.node, self.number);
    }

    /// The node has said yes. False if it is being told since that it need not.
    fn hold(&self) -> bool {
        let mut at = self.ties.at.borrow_mut();
        let at = at.entry(self.node).or_default();
        let is_mine = self.is_over || self.number >= at.void_below;
        if is_mine && !self.is_over {
            at.held.push(self.number);
        }
        is_mine
    }
}

impl Drop for Tie {
    fn drop(&mut self) {
        if !self.is_over {
            self.ties.let_go(self.node, self.number);
            self.ties.at.borrow_mut().entry(self.node).or_default().fallen.push(self.number);
            self.ties.fallen.tell();
        }
    }
}

impl Ties {
    fn next(self: &Rc<Self>, epoch: Epoch, node: NodeId, is_here: bool) -> Tie {
        self.last.set((self.last.get() + 1).max(first_tie(epoch)));
        // No answer of this node itself is lost.
        Tie { ties: self.clone(), node, number: self.last.get(), is_over: is_here }
    }

    fn let_go(&self, node: NodeId, number: u64) {
        if let Some(at) = self.at.borrow_mut().get_mut(&node)
            && let Some(place) = at.held.iter().position(|held| *held == number)
        {
            at.held.swap_remove(place);
        }
    }

    /// The nodes that have to be told, and of which ties.
    fn to_tell(&self) -> Vec<(NodeId, Vec<u64>)> {
        let at = self.at.borrow();
        let fallen = at.iter().filter(|(_, at)| !at.fallen.is_empty());
        fallen.map(|(&node, at)| (node, at.fallen.clone())).collect()
    }

    /// What `node` is told so that it gives up those that have `fallen`.
    fn word_to(&self, node: NodeId, fallen: &[u64]) -> GiveUp {
        let mut at = self.at.borrow_mut();
        let at = at.entry(node).or_default();
        at.void_below = self.last.get() + 1;
        let mut keep = at.held.clone();
        // What fell since may be part of something that was decided since.
        keep.extend(at.fallen.iter().filter(|number| !fallen.contains(number)));
        GiveUp { below: at.void_below, keep }
    }

    fn was_told(&self, node: NodeId, fallen: &[u64]) {
        if let Some(at) = self.at.borrow_mut().get_mut(&node) {
            at.fallen.retain(|number| !fallen.contains(number));
        }
        self.told.tell();
    }
}

impl FileServer {
    /// Asks `node` for a tie.
    pub(super) async fn tie<C>(
        &self,
        node: NodeId,
        call: impl FnOnce(u64) -> C,
    ) -> Result<(C::Reply, Tie), Error>
    where
        C: Call<Protocol = Meta> + Clone,
    {
        let tie = self.next_tie(node);
        match self.meta(node, call(tie.number)).await {
            Ok(reply) => {
                if tie.hold() {
                    return Ok((reply, tie));
                }
                tie.finish();
                Err(Undelivered::Busy.into())
            }
            Err(error) => {
                if !is_unsure(error) {
                    tie.finish();
                }
                Err(error)
            }
        }
    }

    /// Gives a tie up, by the `call` with its number.
    pub(super) async fn untie<C>(&self, tie: Tie, call: impl FnOnce(u64) -> C) -> Result<(), Error>
    where
        C: Call<Protocol = Meta, Reply = ()> + Clone,
    {
        let told = self.meta(tie.node, call(tie.number)).await;
        if !matches!(told, Err(Error::Undelivered { .. })) {
            tie.finish();
        }
        told
    }

    fn next_tie(&self, node: NodeId) -> Tie {
        let here = self.context.node();
        self.ties.next(self.context.epoch(), node, node == here)
    }

    /// Another process has had this node: what its ties were is not known.
    pub(super) fn doubt_all_ties(&self) {
        let others = (0..self.context.fs_nodes()).map(NodeId::fs);
        others.for_each(|node| drop(self.next_tie(node)));
    }

    /// Waits until all nodes know which ties this one has; `Lost` if that takes long. Before, what it did may
    /// not be seen by all.
    pub(super) async fn ties_are_told(&self) -> Result<(), Error> {
        let mut patience = pin!(self.context.sleep(TOLD_WAIT_MAX));
        loop {
            let told = pin!(self.ties.told.next());
            if self.ties.to_tell().is_empty() {
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
            let fallen = self.ties.fallen.next();
            let to_tell = self.ties.to_tell();
            if to_tell.is_empty() {
                fallen.await;
                continue;
            }
            let telling =
                to_tell.into_iter().map(|(node, fallen)| self.tell_of_ties_at(node, fallen));
            if join_all(telling).await.iter().any(Result::is_err) {
                self.context.sleep(PAUSE).await;
            }
        }
    }

    async fn tell_of_ties_at(&self, node: NodeId, fallen: Vec<u64>) -> Result<(), Error> {
        // What was decided arrives before what it leans on is given up.
        self.meta_here(AllApplied { node: node.0 }).await?;
        let word = self.ties.word_to(node, &fallen);
        self.meta(node, word).await.inspect_err(|error| {
            tracing::debug!(%error, ?node, "it cannot be told yet what it may give up");
        })?;
        self.ties.was_told(node, &fallen);
        Ok(())
    }
}

/// May it have been done though it failed?
fn is_unsure(error: Error) -> bool {
    matches!(error, Error::Undelivered { why } if !why.is_undone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_somebody_has_is_kept() {
        let ties = Rc::new(Ties::default());
        let node = NodeId::fs(1);
        let next = || ties.next(Epoch(3), node, false);
        let (held, over, fallen, asked) = (next(), next(), next(), next());
        assert!(held.hold() && over.hold() && fallen.hold());
        over.finish();
        drop(fallen);
        let [(to, told)] = &ties.to_tell()[..] else { panic!("one node has to be told") };
        let late = next();
        assert!(late.hold());
        drop(late);
        let word = ties.word_to(*to, told);
        assert_eq!(word.below, first_tie(Epoch(3)) + 5);
        assert_eq!(word.keep, [held.number, first_tie(Epoch(3)) + 4]);
        assert!(!asked.hold(), "the node was told that it need not keep it");
        asked.finish();
        ties.was_told(node, told);
        assert_eq!(ties.to_tell(), [(node, vec![first_tie(Epoch(3)) + 4])]);
        held.finish();
        assert!(next().hold());
    }
}
