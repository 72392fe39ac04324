//! Effects that are sent to other nodes ([`WaitForIntents`](crate::protocol::WaitForIntents)).

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures::future::{Either, join_all, select};
use runtime::NodeId;
use runtime::protocol::Undelivered;

use super::table::{IntentStage, IntentTable};
use crate::client::ask;
use crate::effect::has_name;
use crate::protocol::{AppliedIntent, ApplyIntent, Effect, Error, IntentId};
use crate::server::base::NodeBase;
use crate::server::locks::names::NameLocks;
use crate::server::locks::owner::RemoteLockId;

/// Attempts to reach a node before the client hears that the outcome is unknown.
const SEND_TRIES_MAX: u32 = 20;
/// The pause before it.
const SEND_PAUSE: Duration = Duration::from_millis(10);
/// A retry of what is decided waits this long for its effects elsewhere, at most.
const APPLIED_WAIT_MAX: Duration = Duration::from_secs(1);

/// Sends the intents of one node.
pub(crate) struct IntentSender {
    base: Rc<NodeBase>,
    intents: Rc<IntentTable>,
    name_locks: Rc<NameLocks>,
}

impl IntentSender {
    pub(crate) fn new(
        base: &Rc<NodeBase>,
        intents: Rc<IntentTable>,
        name_locks: Rc<NameLocks>,
    ) -> Self {
        Self { base: base.clone(), intents, name_locks }
    }

    /// Lets all nodes apply their effects of an intent. Names first: a name must not outlive its
    /// inode. Returns inodes that are gone.
    pub(crate) async fn send(&self, number: u64, durable: bool) -> Result<Vec<u64>, Error> {
        let effects = self.intents.open.borrow().get(&number).map(|open| open.effects.clone());
        let (names, others): (Vec<_>, Vec<_>) = effects
            .into_iter()
            .flatten()
            .partition(|(_, effects): &(u32, Vec<Effect>)| has_name(effects));
        let mut outcome = Ok(Vec::new());
        for part in [names, others] {
            let sent = part.into_iter().map(|(node, effects)| {
                // Nothing else orders these: the next change of the same must not overtake it.
                let durable = durable || effects.iter().any(Effect::moves_directory);
                self.send_to(node, number, effects, durable)
            });
            for gone in join_all(sent).await {
                outcome = outcome.and_then(|mut all| {
                    all.extend(gone?);
                    Ok(all)
                });
            }
            if outcome.is_err() {
                break;
            }
        }
        if let Some(open) = self.intents.open.borrow_mut().get_mut(&number) {
            open.stage = if outcome.is_ok() { IntentStage::Applied } else { IntentStage::Left };
            open.obstacle = outcome.as_ref().err().copied().filter(Error::is_unwritable);
            if outcome.is_ok() {
                let is_mine = |lock: RemoteLockId| lock.node == self.base.context.node();
                open.hidden.drain(..).for_each(|key| self.name_locks.release(&key, is_mine));
                self.intents.applied.tell();
            }
        }
        outcome
    }

    /// Waits until the effects of an intent of this node are applied everywhere. Only who is at
    /// work on it sends them: a second copy could arrive when the marks are forgotten.
    pub(crate) async fn wait_applied(&self, number: u64) -> Result<(), Error> {
        let mut timeout = pin!(self.base.context.sleep(APPLIED_WAIT_MAX));
        loop {
            let applied = pin!(self.intents.applied.next());
            let (stage, obstacle) = {
                let open = self.intents.open.borrow();
                open.get(&number).map(|open| (open.stage, open.obstacle)).unzip()
            };
            match stage {
                Some(IntentStage::Deciding | IntentStage::Sending | IntentStage::Left) => {
                    self.intents.wake.tell();
                }
                Some(IntentStage::Applied | IntentStage::Retired) | None => return Ok(()),
            }
            if let Either::Right(_) = select(applied, &mut timeout).await {
                return Err(obstacle.flatten().unwrap_or(Undelivered::Lost.into()));
            }
        }
    }

    /// Waits until `node` has applied all intents for it that are open now.
    pub(crate) async fn wait_for_intents(&self, node: u32) -> Result<(), Error> {
        for number in self.intents.not_applied_by(node) {
            self.wait_applied(number).await?;
        }
        Ok(())
    }

    pub(crate) async fn send_to(
        &self,
        node: u32,
        number: u64,
        effects: Vec<Effect>,
        durable: bool,
    ) -> Result<Vec<u64>, Error> {
        let position = self.intents.open.borrow().get(&number).map(|open| open.position);
        let position = position.filter(|position| !self.base.store.is_durable(*position));
        let position = position.unwrap_or_default().number();
        let intent = IntentId { node: self.base.node, number };
        let call = ApplyIntent { intent, effects, durable, position };
        let mut tries = 1;
        let AppliedIntent { boot_id, gone } = loop {
            match ask(&self.base.context, NodeId::fs(node), call.clone()).await {
                Err(Error::Undelivered { .. }) if tries < SEND_TRIES_MAX => {
                    tries += 1;
                    self.base.context.sleep(SEND_PAUSE).await;
                }
                answer => break answer?,
            }
        };
        self.intents.applied_by(number, node, boot_id);
        Ok(gone)
    }
}
