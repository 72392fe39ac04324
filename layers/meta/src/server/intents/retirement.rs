//! Intents whose effects are durable everywhere go, in the background.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures::future::{join_all, select};
use futures::stream::{self, StreamExt as _};
use runtime::NodeId;

use super::super::MetaServer;
use super::table::Stage;
use super::{DELETED_MAX, FINISHED_AT_ONCE};
use crate::client::ask;
use crate::keys;
use crate::protocol::{Error, FlushApplied};
use crate::store::{Batch, Position};

/// Intents are retired so often: later than their effects have become durable by themselves.
const RETIRE_INTERVAL: Duration = Duration::from_secs(2);

impl MetaServer {
    /// Retires intents in the background, as long as there are any.
    pub(super) fn retire_later(self: &Rc<Self>) {
        if self.intents.retiring.replace(true) {
            return;
        }
        let me = self.clone();
        self.context.task(async move {
            while me.intents.has_work() {
                select(me.context.sleep(RETIRE_INTERVAL), pin!(me.intents.crowded.next())).await;
                if let Err(error) = me.retire().await {
                    tracing::debug!(%error, "intents stay open for now");
                }
            }
            me.intents.retiring.set(false);
        });
    }

    /// One round: finishes what was left, sees to it that effects are durable, deletes their intents
    /// and lets the marks of earlier ones be forgotten.
    pub(super) async fn retire(&self) -> Result<(), Error> {
        if let Err(error) = self.finish(self.intents.at_stage(Stage::Left), false).await {
            tracing::warn!(%error, "an intent cannot be finished yet");
        }
        // Before anybody is asked: what is applied once more meanwhile may not be durable.
        let boot_ids = self.intents.lives_of(&self.intents.at_stage(Stage::Applied));
        let mut applied: Vec<u64> = boot_ids.keys().copied().collect();
        let mut nodes: BTreeSet<u32> = self.intents.untold.borrow().keys().copied().collect();
        nodes.extend(applied.iter().flat_map(|&number| self.intents.nodes_of(number)));
        let below = self.intents.retired_below.get();
        let told = nodes.into_iter().map(|node| async move {
            let call = FlushApplied { node: self.node, below };
            Some((node, ask(&self.context, NodeId::fs(node), call).await.ok()?))
        });
        let told: BTreeMap<u32, u64> = join_all(told).await.into_iter().flatten().collect();
        let is_told = |node: &u32, last: &u64| told.contains_key(node) && *last < below;
        self.intents.untold.borrow_mut().retain(|node, last| !is_told(node, last));
        applied.retain(|number| self.intents.is_durable(*number, &boot_ids[number], &told));
        if !applied.is_empty() {
            self.delete_promises(&applied).await?;
            self.intents.retired(&applied);
        }
        Ok(())
    }

    /// Sends intents that no request sees to; those that fail stay as they are.
    pub(super) async fn finish(&self, numbers: Vec<u64>, durable: bool) -> Result<(), Error> {
        let finished = numbers.into_iter().map(|number| self.send(number, durable));
        let mut finished = stream::iter(finished).buffer_unordered(FINISHED_AT_ONCE);
        let mut outcome = Ok(());
        while let Some(sent) = finished.next().await {
            outcome = outcome.and(sent.map(|_| ()));
        }
        outcome
    }

    /// Deletes intents, durably.
    pub(super) async fn delete_promises(&self, numbers: &[u64]) -> Result<(), Error> {
        let keys: Vec<Vec<u8>> = numbers.iter().map(|number| keys::promise(*number)).collect();
        let position = self.delete_all(&keys).await?;
        Ok(self.store.durable(position).await?)
    }

    /// Deletes keys, also on a full volume; returns the last record.
    pub(in crate::server) async fn delete_all(&self, keys: &[Vec<u8>]) -> Result<Position, Error> {
        let mut last = Position::default(); // durable as it is
        for part in keys.chunks(DELETED_MAX) {
            let (position, ()) = self
                .record(|| {
                    let mut batch = Batch::new();
                    batch.take_from_reserve();
                    for key in part {
                        batch.delete(key.clone());
                    }
                    Ok((batch, ()))
                })
                .await?;
            last = position;
        }
        Ok(last)
    }
}
