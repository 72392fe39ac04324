//! Effects of other nodes' intents at this node, each applied once, and the marks that say so.

use std::ops::Bound;

use super::super::MetaServer;
use super::super::effects::ConflictPolicy;
use super::DELETED_MAX;
use crate::keys;
use crate::protocol::{
    AppliedIntent, ApplyIntent, CommitDependency, Error, FlushApplied, IntentId,
};
use crate::store::Batch;

impl MetaServer {
    pub(in crate::server) async fn apply_intent(
        &self,
        request: ApplyIntent,
    ) -> Result<AppliedIntent, Error> {
        let ApplyIntent { intent, effects, durable, position } = request;
        let mark = keys::applied(intent);
        let _alone = self.intents.applying.exclusive(intent).await;
        if self.store.get(&mark).await?.is_some() {
            if durable {
                let (from, to) = keys::only(&mark);
                self.store.flushed(&from, &to).await?;
            }
            return Ok(AppliedIntent { boot_id: self.boot_id, gone: Vec::new() });
        }
        let held = self.hold(&effects, true).await?;
        let (position, staged) = self
            .record(|| {
                let mut batch = Batch::new();
                let staged = self.stage(&effects, &held, ConflictPolicy::Skip, &mut batch)?;
                batch.put(mark.clone(), Vec::new());
                batch.after([CommitDependency { node: intent.node, position }]);
                // It is decided already, also on a full volume.
                batch.take_from_reserve();
                Ok((batch, staged))
            })
            .await?;
        let gone = staged.gone();
        self.install_staged(staged);
        self.give_up_claims(&effects, intent.node);
        drop(held);
        self.settle_record(position, durable).await?;
        Ok(AppliedIntent { boot_id: self.boot_id, gone })
    }

    /// All effects that came from `node` are durable; those of retired intents are forgotten.
    pub(in crate::server) async fn flush_applied(
        &self,
        request: FlushApplied,
    ) -> Result<u64, Error> {
        let FlushApplied { node, below } = request;
        let mark = |number| keys::applied(IntentId { node, number });
        self.store.flushed(&mark(0), &mark(u64::MAX)).await?;
        self.forget_marks(mark(0), mark(below)).await?;
        Ok(self.boot_id)
    }

    pub(super) async fn forget_marks(&self, from: Vec<u8>, to: Vec<u8>) -> Result<(), Error> {
        loop {
            let found = self.store.scan(Bound::Included(&from), &to, DELETED_MAX).await?;
            let keys: Vec<Vec<u8>> = found.into_iter().map(|(key, _)| key.to_vec()).collect();
            if keys.is_empty() {
                return Ok(());
            }
            self.delete_all(&keys).await?;
        }
    }
}
