//! Who holds a lock, and which locks are void.

use std::cell::RefCell;
use std::collections::BTreeMap;

use runtime::NodeId;
use runtime::protocol::Undelivered;

use crate::protocol::Error;

/// The holder of a lock, and its number for it (ADR 57). Later locks of a node have higher numbers,
/// also after it has restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteLockId {
    pub(crate) node: NodeId,
    pub(crate) number: u64,
}

/// Which locks are valid.
#[derive(Debug, Default)]
pub(crate) struct LockValidity {
    /// Locks of nodes below these numbers are void, but for those that were kept.
    valid_from: RefCell<BTreeMap<NodeId, u64>>,
}

impl LockValidity {
    /// Busy if it is void: it would never be released.
    pub(crate) fn check(&self, lock: RemoteLockId) -> Result<(), Error> {
        let below = self.valid_from.borrow().get(&lock.node).copied().unwrap_or(0);
        if lock.number >= below { Ok(()) } else { Err(Undelivered::Busy.into()) }
    }

    /// From now on locks of `node` below this number are refused.
    pub(crate) fn refuse_below(&self, node: NodeId, below: u64) {
        let mut valid_from = self.valid_from.borrow_mut();
        let known = valid_from.entry(node).or_default();
        *known = below.max(*known);
    }
}
