//! Intents after a crash: of all nodes together, or of one while others stayed up (ADR 13)
//! ([`FinishIntents`](crate::protocol::FinishIntents),
//! [`EndRecovery`](crate::protocol::EndRecovery), [`Rejoin`](crate::protocol::Rejoin),
//! [`NodeRestarted`]).

use std::cell::Cell;
use std::ops::Bound;
use std::rc::Rc;

use futures::future::join_all;
use futures::stream::{self, StreamExt as _};
use runtime::NodeId;

use super::application::IntentApplier;
use super::retirement::{FINISHED_AT_ONCE, IntentRetirer};
use super::sending::IntentSender;
use super::table::{Intent, IntentStage, IntentTable};
use crate::client::{ask, first_remote_lock};
use crate::effect::split;
use crate::keys;
use crate::protocol::{Effect, Error, NodeRestarted};
use crate::server::base::NodeBase;
use crate::server::locks::orphans::OrphanedLocks;
use crate::server::record_log::decode;
use crate::server::space::reclaim::Reclaim;
use crate::store::StoreError;

/// Rounds in which a mount tries to finish what a crash has left; each of them tries several times.
const FINISH_ROUNDS_MAX: u32 = 10;

/// Recovers one node after a crash.
pub(crate) struct Recovery {
    base: Rc<NodeBase>,
    intents: Rc<IntentTable>,
    sender: Rc<IntentSender>,
    retirer: Rc<IntentRetirer>,
    applier: Rc<IntentApplier>,
    orphans: Rc<OrphanedLocks>,
    reclaim: Rc<Reclaim>,
    /// Intents of this node, or of others for it, are not applied yet: names and inodes may be
    /// those of before.
    recovering: Cell<bool>,
}

impl Recovery {
    pub(crate) fn new(
        base: &Rc<NodeBase>,
        intents: Rc<IntentTable>,
        sender: Rc<IntentSender>,
        retirer: Rc<IntentRetirer>,
        applier: Rc<IntentApplier>,
        orphans: Rc<OrphanedLocks>,
        reclaim: Rc<Reclaim>,
    ) -> Self {
        Self {
            base: base.clone(),
            intents,
            sender,
            retirer,
            applier,
            orphans,
            reclaim,
            recovering: Cell::new(true),
        }
    }

    /// Is the recovery still under way?
    pub(crate) fn is_recovering(&self) -> bool {
        self.recovering.get()
    }

    /// Reads the intents that a crash has left open. At a mount, before anything is served.
    pub(crate) async fn load_intents(&self) -> Result<(), StoreError> {
        let bad = || StoreError::Damaged { what: "an intent", block: 0 };
        let (from, end) = keys::intents(keys::OPERATIONS);
        for (key, value) in self.base.store.scan(Bound::Included(&from), &end, usize::MAX).await? {
            let number = keys::intent_number(&key).ok_or_else(bad)?;
            let effects = decode(&value).map_err(|_| bad())?;
            let (_, effects) = split(effects, self.base.node, self.base.context.fs_nodes());
            self.intents.open.borrow_mut().insert(number, Intent::new(effects, IntentStage::Left));
        }
        Ok(())
    }

    /// Applies, durably, the intents of before a crash.
    pub(crate) async fn finish_intents(&self) -> Result<(), Error> {
        for round in 1..=FINISH_ROUNDS_MAX {
            match self.retirer.finish(self.intents.at_stage(IntentStage::Left), true).await {
                Err(Error::Undelivered { .. }) if round < FINISH_ROUNDS_MAX => {}
                outcome => {
                    outcome?;
                    break;
                }
            }
        }
        let finished = self.intents.at_stage(IntentStage::Applied);
        self.retirer.delete_intents(&finished).await?;
        self.intents.retired(&finished);
        Ok(())
    }

    /// As [`finish_intents`](Self::finish_intents), in memory, as far as the nodes can be read.
    pub(crate) async fn finish_to_read(&self) {
        let left = self.intents.at_stage(IntentStage::Left);
        if let Err(error) = self.retirer.finish(left, false).await {
            let node = self.base.node;
            tracing::warn!(%error, node, "an operation that a crash has cut off is shown by halves");
        }
    }

    /// This node has restarted while others stayed up.
    pub(crate) async fn rejoin(&self) -> Result<(), Error> {
        // First: the others may release the old locks of this node only when they have its intents.
        self.finish_intents().await?;
        let others = (0..self.base.context.fs_nodes()).filter(|node| *node != self.base.node);
        let call = NodeRestarted {
            node: self.base.node,
            below: first_remote_lock(self.base.context.epoch()),
        };
        let acknowledged =
            others.map(|node| ask(&self.base.context, NodeId::fs(node), call.clone()));
        join_all(acknowledged).await.into_iter().collect::<Result<Vec<()>, Error>>()?;
        self.recovered();
        // The others keep marks of the intents of this node.
        self.retirer.start_retiring();
        Ok(())
    }

    /// Sends a node that has restarted alone what it may have lost. What is decided from now on was
    /// begun in this epoch, and so depends on its new boot only.
    pub(crate) async fn node_restarted(&self, request: NodeRestarted) -> Result<(), Error> {
        let NodeRestarted { node, below } = request;
        self.orphans.release_orphaned(NodeId::fs(node), below, &[]).await?;
        loop {
            let decided = self.intents.decided.next();
            if !self.intents.are_deciding(node) {
                break;
            }
            decided.await;
        }
        let forgotten = self.intents.forgotten_by(node);
        let sent = forgotten.into_iter().map(|(number, effects)| {
            let durable = effects.iter().any(Effect::moves_directory);
            self.sender.send_to(node, number, effects, durable)
        });
        let mut sent = stream::iter(sent).buffer_unordered(FINISHED_AT_ONCE);
        while let Some(applied) = sent.next().await {
            applied?;
        }
        Ok(())
    }

    /// From now on names and inodes are what they seem.
    pub(crate) fn recovered(&self) {
        self.recovering.set(false);
        self.base.publisher.begin();
    }

    /// No intent is open anywhere: forgets what was applied, and frees what is gone.
    pub(crate) async fn end_recovery(&self) -> Result<(), Error> {
        let (from, to) = keys::all(keys::KeyTable::Applied);
        self.applier.forget_marks(from, to).await?;
        self.intents.unacknowledged.borrow_mut().clear();
        self.recovered();
        for ino in self.reclaim.list_untrimmed().await {
            self.reclaim.trim(ino).await?;
        }
        Ok(())
    }
}
