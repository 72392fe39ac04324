//! Front ends may keep what they have read of files of this node (ADR 101). The layer above knows
//! who has which file; here is only a durable mark that there may be some, so that changes wait
//! after a crash until no front end trusts what it kept.

use std::cell::Cell;
use std::ops::Bound;
use std::rc::Rc;

use runtime::sync::KeyedLock;

use super::base::NodeBase;
use crate::keys;
use crate::partition::order_of;
use crate::protocol::Error;
use crate::store::{Batch, StoreError};

/// The mark, and whether the last start has found it.
pub(super) struct DelegationMark {
    base: Rc<NodeBase>,
    is_set: Cell<bool>,
    /// Inodes that were there at the start have numbers below this one in their
    /// [order](order_of). Zero if the mark was not set.
    below: Cell<u64>,
    /// One change of it at a time.
    marking: KeyedLock<()>,
}

impl DelegationMark {
    pub(super) fn new(base: &Rc<NodeBase>) -> Self {
        let (is_set, below) = Default::default();
        Self { base: base.clone(), is_set, below, marking: KeyedLock::default() }
    }

    /// Reads the mark. At a mount, before anything is served.
    pub(super) async fn load(&self) -> Result<(), StoreError> {
        let (from, to) = keys::only(&keys::delegated_files());
        let is_set = !self.base.store.scan(Bound::Included(&from), &to, 1).await?.is_empty();
        self.is_set.set(is_set);
        if is_set {
            self.below.set(order_of(self.base.inodes.next_ino(0)));
        }
        Ok(())
    }

    /// The number below which files may have been delegated before the start.
    pub(super) fn below(&self) -> u64 {
        self.below.get()
    }

    /// Sets the mark, durably, or deletes it.
    pub(super) async fn note(&self, may_be_delegated: bool) -> Result<(), Error> {
        let _alone = self.marking.exclusive(()).await;
        if self.is_set.get() == may_be_delegated {
            return Ok(());
        }
        if !may_be_delegated {
            self.is_set.set(false);
            self.base.records.delete_all(&[keys::delegated_files()]).await?;
            return Ok(());
        }
        let mark = |batch: &mut Batch| {
            // On a full volume, too.
            batch.take_from_reserve();
            batch.put(keys::delegated_files(), Vec::new());
        };
        let position = self.base.records.record_batch(mark).await?;
        self.base.records.ensure_durable(position, true).await?;
        self.is_set.set(true);
        Ok(())
    }
}
