//! Effects of other nodes' intents at this node, each applied once, and the marks that say so
//! ([`ApplyIntent`], [`FlushApplied`]).

use std::ops::Bound;
use std::rc::Rc;

use runtime::sync::KeyedLock;

use crate::keys;
use crate::protocol::{
    AppliedIntent, ApplyIntent, CommitDependency, Error, FlushApplied, IntentId,
};
use crate::server::base::NodeBase;
use crate::server::effects::{ConflictPolicy, Effects};
use crate::server::locks::names::NameLocks;
use crate::server::record_log::DELETED_MAX;
use crate::store::Batch;

/// Applies the intents of other nodes at one node.
pub(crate) struct IntentApplier {
    base: Rc<NodeBase>,
    effects: Rc<Effects>,
    name_locks: Rc<NameLocks>,
    /// Drawn at the mount: what was applied before it and not made durable is lost (ADR 8).
    boot_id: u64,
    /// One application of an intent at a time.
    applying: KeyedLock<IntentId>,
}

impl IntentApplier {
    pub(crate) fn new(
        base: &Rc<NodeBase>,
        effects: Rc<Effects>,
        name_locks: Rc<NameLocks>,
        boot_id: u64,
    ) -> Self {
        Self { base: base.clone(), effects, name_locks, boot_id, applying: KeyedLock::default() }
    }

    pub(crate) async fn apply_intent(&self, request: ApplyIntent) -> Result<AppliedIntent, Error> {
        let ApplyIntent { intent, effects, durable, position } = request;
        let mark = keys::applied(intent);
        let _alone = self.applying.exclusive(intent).await;
        if self.base.store.get(&mark).await?.is_some() {
            if durable {
                let (from, to) = keys::only(&mark);
                self.base.store.flushed(&from, &to).await?;
            }
            return Ok(AppliedIntent { boot_id: self.boot_id, gone: Vec::new() });
        }
        let held = self.effects.lock_targets(&effects, true).await?;
        let make = || {
            let mut batch = Batch::new();
            let staged = self.effects.stage(&effects, &held, ConflictPolicy::Skip, &mut batch)?;
            batch.put(mark.clone(), Vec::new());
            batch.after([CommitDependency { node: intent.node, position }]);
            // It is decided already, also on a full volume.
            batch.take_from_reserve();
            Ok((batch, staged))
        };
        let (position, staged) = self.base.records.record(make).await?;
        let gone = staged.gone();
        self.effects.install_staged(staged);
        self.name_locks.release_names(&effects, intent.node);
        drop(held);
        self.base.records.ensure_durable(position, durable).await?;
        Ok(AppliedIntent { boot_id: self.boot_id, gone })
    }

    /// All effects that came from `node` are durable; those of retired intents are forgotten.
    pub(crate) async fn flush_applied(&self, request: FlushApplied) -> Result<u64, Error> {
        let FlushApplied { node, below } = request;
        let mark = |number| keys::applied(IntentId { node, number });
        self.base.store.flushed(&mark(0), &mark(u64::MAX)).await?;
        self.forget_marks(mark(0), mark(below)).await?;
        Ok(self.boot_id)
    }

    pub(crate) async fn forget_marks(&self, from: Vec<u8>, to: Vec<u8>) -> Result<(), Error> {
        loop {
            let found = self.base.store.scan(Bound::Included(&from), &to, DELETED_MAX).await?;
            let keys: Vec<Vec<u8>> = found.into_iter().map(|(key, _)| key.to_vec()).collect();
            if keys.is_empty() {
                return Ok(());
            }
            self.base.records.delete_all(&keys).await?;
        }
    }
}
