//! Intents whose effects are durable everywhere are deleted, in the background.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures::future::{join_all, select};
use futures::stream::{self, StreamExt as _};
use runtime::NodeId;

use super::sending::IntentSender;
use super::table::{IntentStage, IntentTable};
use crate::client::ask;
use crate::keys;
use crate::protocol::{Error, FlushApplied};
use crate::server::base::NodeBase;

/// The interval of retirement: longer than effects take to become durable by themselves.
const RETIRE_INTERVAL: Duration = Duration::from_secs(2);
/// Intents that are finished at a time, at a mount or after a node was away.
pub(super) const FINISHED_AT_ONCE: usize = 64;

/// Retires the intents of one node.
pub(crate) struct IntentRetirer {
    base: Rc<NodeBase>,
    intents: Rc<IntentTable>,
    sender: Rc<IntentSender>,
    /// The background task runs.
    retiring: Cell<bool>,
}

impl IntentRetirer {
    pub(crate) fn new(
        base: &Rc<NodeBase>,
        intents: Rc<IntentTable>,
        sender: Rc<IntentSender>,
    ) -> Self {
        Self { base: base.clone(), intents, sender, retiring: Cell::default() }
    }

    /// Retires intents in the background, as long as there are any.
    pub(crate) fn start_retiring(self: &Rc<Self>) {
        if self.retiring.replace(true) {
            return;
        }
        let me = self.clone();
        self.base.context.task(async move {
            while me.intents.has_work() {
                select(me.base.context.sleep(RETIRE_INTERVAL), pin!(me.intents.wake.next())).await;
                if let Err(error) = me.retire().await {
                    tracing::debug!(%error, "intents stay open for now");
                }
            }
            me.retiring.set(false);
        });
    }

    /// One round: finishes what was left, makes effects durable, deletes their intents and
    /// the marks of earlier ones.
    pub(crate) async fn retire(&self) -> Result<(), Error> {
        match self.finish(self.intents.at_stage(IntentStage::Left), false).await {
            Ok(()) => {}
            Err(error @ Error::Unwritable { .. }) => {
                tracing::debug!(%error, "an intent waits for a disk");
            }
            Err(error) => tracing::warn!(%error, "an intent cannot be finished yet"),
        }
        // Before anybody is asked: what is applied once more meanwhile may not be durable.
        let boot_ids = self.intents.boot_ids_of(&self.intents.at_stage(IntentStage::Applied));
        let mut applied: Vec<u64> = boot_ids.keys().copied().collect();
        let mut nodes: BTreeSet<u32> =
            self.intents.unacknowledged.borrow().keys().copied().collect();
        nodes.extend(applied.iter().flat_map(|&number| self.intents.nodes_of(number)));
        let below = self.intents.retired_below.get();
        let acknowledged = nodes.into_iter().map(|node| async move {
            let call = FlushApplied { node: self.base.node, below };
            Some((node, ask(&self.base.context, NodeId::fs(node), call).await.ok()?))
        });
        let acknowledged: BTreeMap<u32, u64> =
            join_all(acknowledged).await.into_iter().flatten().collect();
        let is_told = |node: &u32, last: &u64| acknowledged.contains_key(node) && *last < below;
        self.intents.unacknowledged.borrow_mut().retain(|node, last| !is_told(node, last));
        applied.retain(|number| self.intents.is_durable(*number, &boot_ids[number], &acknowledged));
        if !applied.is_empty() {
            self.delete_intents(&applied).await?;
            self.intents.retired(&applied);
        }
        Ok(())
    }

    /// Sends intents that no request is sending; those that fail stay as they are.
    pub(crate) async fn finish(&self, numbers: Vec<u64>, durable: bool) -> Result<(), Error> {
        let finished = numbers.into_iter().map(|number| self.sender.send(number, durable));
        let mut finished = stream::iter(finished).buffer_unordered(FINISHED_AT_ONCE);
        let mut outcome = Ok(());
        while let Some(sent) = finished.next().await {
            outcome = outcome.and(sent.map(|_| ()));
        }
        outcome
    }

    /// Deletes intents, durably.
    pub(crate) async fn delete_intents(&self, numbers: &[u64]) -> Result<(), Error> {
        let keys: Vec<Vec<u8>> =
            numbers.iter().map(|number| keys::operation_intent(*number)).collect();
        let position = self.base.records.delete_all(&keys).await?;
        Ok(self.base.store.durable(position).await?)
    }
}
