//! Names that an operation on several nodes is about to change.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures::future::{Either, select};
use runtime::protocol::Undelivered;
use runtime::sync::{Event, KeyGuard, KeyedLock};
use runtime::{Context, NodeId};

use super::owner::{LockValidity, RemoteLockId};
use crate::effect::name_keys;
use crate::protocol::{Effect, Error};

/// A lookup of a name that is being moved waits this long, at most.
const HIDDEN_WAIT_MAX: Duration = Duration::from_millis(50);

/// Keeps a name from being changed by others.
#[derive(Debug)]
struct NameLock {
    by: RemoteLockId,
    /// It is decided that the name is gone, but its file does not have the new name yet.
    hidden: bool,
}

/// The names of one node that are locked.
pub(crate) struct NameLocks {
    validity: Rc<LockValidity>,
    /// One change of a name at a time.
    names: KeyedLock<Vec<u8>>,
    /// Names that an operation on several nodes is about to change.
    locked: RefCell<BTreeMap<Vec<u8>, NameLock>>,
    released: Event,
}

impl NameLocks {
    pub(crate) fn new(validity: Rc<LockValidity>) -> Self {
        let (names, locked) = (KeyedLock::default(), RefCell::default());
        Self { validity, names, locked, released: Event::default() }
    }

    /// One change of a name at a time. A name that is locked is busy for all but the holder: to
    /// wait could deadlock renames.
    pub(crate) async fn lock(&self, key: &[u8], claimed: bool) -> Result<KeyGuard<Vec<u8>>, Error> {
        let guard = self.names.exclusive(key.to_vec()).await;
        if !claimed && self.locked.borrow().contains_key(key) {
            return Err(Undelivered::Busy.into());
        }
        Ok(guard)
    }

    /// Locks a name for another node; the caller has its guard.
    pub(crate) fn claim(&self, key: Vec<u8>, by: RemoteLockId) -> Result<(), Error> {
        self.validity.check(by)?;
        self.locked.borrow_mut().insert(key, NameLock { by, hidden: false });
        Ok(())
    }

    /// A hidden name cannot be looked up until it is unlocked.
    pub(crate) fn hide(&self, key: &[u8]) {
        if let Some(claim) = self.locked.borrow_mut().get_mut(key) {
            claim.hidden = true;
        }
    }

    /// Unlocks a name, if its holder is meant.
    pub(crate) fn release(&self, key: &[u8], is_meant: impl FnOnce(RemoteLockId) -> bool) {
        let mut locked = self.locked.borrow_mut();
        if locked.get(key).is_some_and(|claim| is_meant(claim.by)) {
            locked.remove(key);
            drop(locked);
            self.released.tell();
        }
    }

    /// It is decided that the name of `key` is gone, but its file does not have the new name yet.
    pub(crate) fn is_hidden(&self, key: &[u8]) -> bool {
        self.locked.borrow().get(key).is_some_and(|claim| claim.hidden)
    }

    /// Waits while `key` is hidden; busy if that takes long.
    pub(crate) async fn wait_visible(&self, key: &[u8], context: &Context) -> Result<(), Error> {
        while self.is_hidden(key) {
            let released = pin!(self.released.next());
            if let Either::Right(_) = select(released, context.sleep(HIDDEN_WAIT_MAX)).await {
                return Err(Undelivered::Busy.into());
            }
        }
        Ok(())
    }

    /// Gives up the locks that node `by` holds on the names of `effects`, if it holds any.
    pub(crate) fn release_names(&self, effects: &[Effect], by: u32) {
        let is_meant = |lock: RemoteLockId| lock.node == NodeId::fs(by);
        name_keys(effects).for_each(|key| self.release(&key, is_meant));
    }

    /// Gives up what is void.
    pub(crate) fn release_orphaned(&self, is_orphaned: impl Fn(&RemoteLockId) -> bool) {
        self.locked.borrow_mut().retain(|_, claim| !is_orphaned(&claim.by));
        self.released.tell();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(node: u32, number: u64) -> RemoteLockId {
        RemoteLockId { node: NodeId::fs(node), number }
    }

    #[test]
    fn a_lock_request_that_comes_after_its_release_is_refused() {
        let validity = Rc::<LockValidity>::default();
        let names = NameLocks::new(validity.clone());
        let is_orphaned =
            |lock: &RemoteLockId| lock.node == NodeId::fs(2) && lock.number < 7 && lock.number != 5;
        names.claim(vec![5], lock(2, 5)).unwrap();
        names.claim(vec![6], lock(2, 6)).unwrap();
        validity.refuse_below(NodeId::fs(2), 7);
        names.release_orphaned(is_orphaned);
        let claimed: Vec<Vec<u8>> = names.locked.borrow().keys().cloned().collect();
        assert_eq!(claimed, [[5]], "the node keeps what it names");
        assert!(names.claim(vec![4], lock(2, 4)).is_err());
        names.claim(vec![7], lock(2, 7)).unwrap();
        names.claim(vec![8], lock(3, 4)).unwrap();
        // An older request changes nothing.
        validity.refuse_below(NodeId::fs(2), 3);
        assert!(names.claim(vec![9], lock(2, 6)).is_err());
    }
}
