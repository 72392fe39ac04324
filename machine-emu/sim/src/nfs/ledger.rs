//! What names may name by the answers to clients, compared with what is found.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use crate::versions::Versions;

/// Directory and name.
pub(super) type LedgerKey = (usize, String);

/// A rename that was not answered before the power went.
struct UnansweredRename<N> {
    from: LedgerKey,
    to: LedgerKey,
    moved: N,
    /// The old name was there before, whatever else: only then the file must have a name.
    certain: bool,
}

/// Names, and what each may name: an `N`, or nothing.
pub(super) struct NameLedger<N> {
    named: RefCell<BTreeMap<LedgerKey, Versions<Option<N>>>>,
    unanswered_renames: RefCell<Vec<UnansweredRename<N>>>,
    /// Made by a call that was not answered: what it made is not known.
    unknown: RefCell<BTreeSet<LedgerKey>>,
}

impl<N> Default for NameLedger<N> {
    fn default() -> Self {
        Self {
            named: RefCell::default(),
            unanswered_renames: RefCell::default(),
            unknown: RefCell::default(),
        }
    }
}

impl<N: Clone + PartialEq + Debug> NameLedger<N> {
    /// What `key` names, if nothing is under way.
    pub(super) fn settled_at(&self, key: &LedgerKey) -> Option<N> {
        self.named.borrow().get(key).and_then(|versions| versions.flushed().clone())
    }

    /// A call that gives `key` another meaning is about to be sent; its number.
    pub(super) fn issue(&self, key: &LedgerKey, named: Option<N>) -> usize {
        let mut all = self.named.borrow_mut();
        all.entry(key.clone()).or_insert_with(|| Versions::new(None)).issue(named)
    }

    /// The call of that number was answered.
    pub(super) fn answered(&self, key: &LedgerKey, number: usize, durable: bool) {
        if let Some(versions) = self.named.borrow_mut().get_mut(key) {
            versions.acknowledge(number);
            if durable {
                versions.durable(number);
            }
        }
    }

    /// The handle of what was made with this name was not answered.
    pub(super) fn note_unknown(&self, key: &LedgerKey) {
        self.unknown.borrow_mut().insert(key.clone());
    }

    /// A rename, the last call that was issued for these names, was not answered.
    pub(super) fn leave_unanswered(&self, moved: &N, from: &LedgerKey, to: &LedgerKey) {
        let certain = self.is_certain(from, moved);
        let (from, to, moved) = (from.clone(), to.clone(), moved.clone());
        self.unanswered_renames.borrow_mut().push(UnansweredRename { from, to, moved, certain });
    }

    /// A power cut before the present call would have left `key` as it is.
    fn is_certain(&self, key: &LedgerKey, named: &N) -> bool {
        let all = self.named.borrow();
        // The call itself is the last one.
        let possible = all.get(key).and_then(|versions| versions.after_crash().split_last());
        possible.is_some_and(|(_, before)| before.iter().all(|one| one.as_ref() == Some(named)))
    }

    /// All names that may be there.
    pub(super) fn keys(&self) -> BTreeSet<LedgerKey> {
        let unknown = self.unknown.borrow();
        self.named.borrow().keys().chain(unknown.iter()).cloned().collect()
    }

    /// May all that is `present` of [these names](Self::keys) be there, and all else not? After a
    /// crash it is known from then on.
    ///
    /// # Panics
    ///
    /// If it may not.
    pub(super) fn judge(&self, present: &BTreeMap<LedgerKey, N>, after_crash: bool) {
        for key in self.keys() {
            let found = present.get(&key).cloned();
            let is_unknown = self.unknown.borrow().contains(&key);
            let mut all = self.named.borrow_mut();
            let versions = all.entry(key.clone()).or_insert_with(|| Versions::new(None));
            let right = if after_crash {
                versions.after_crash().contains(&found) || found.is_some() && is_unknown
            } else {
                *versions.flushed() == found
            };
            assert!(right, "{key:?} names {found:?}; after a crash: {after_crash}; {versions:?}");
            if after_crash {
                versions.flush(found);
            }
        }
        self.unknown.take();
        for UnansweredRename { from, to, moved, certain } in self.unanswered_renames.take() {
            let lost = present.get(&from) != Some(&moved) && present.get(&to) != Some(&moved);
            assert!(
                !(lost && certain),
                "{moved:?} was renamed from {from:?} to {to:?} and is lost"
            );
        }
    }
}
