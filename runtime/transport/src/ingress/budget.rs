//! Memory that all clients of a process take together: requests that run, replies on their way, and
//! outcomes that are kept.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of all clients of a process, at most; past it the server stops reading from those that
/// have most.
pub(super) const CLIENT_BYTES_MAX: usize = 1 << 30;

/// A user or host; none for those who may act as anyone.
pub(super) type Account = Option<u64>;

/// What the clients of one process may take.
///
/// Each account may have as much as is free then for the others: one alone gets half of all, two
/// get a third each. So what one takes never leaves another without.
#[derive(Debug)]
pub struct ClientBudget {
    bytes_max: usize,
    used: Mutex<UsedBytes>,
}

#[derive(Debug, Default)]
struct UsedBytes {
    all: usize,
    by_account: BTreeMap<Account, usize>,
}

impl Default for ClientBudget {
    fn default() -> Self {
        Self { bytes_max: CLIENT_BYTES_MAX, used: Mutex::default() }
    }
}

impl UsedBytes {
    fn add(&mut self, account: Account, bytes: usize) {
        self.all += bytes;
        *self.by_account.entry(account).or_default() += bytes;
    }

    fn remove(&mut self, account: Account, bytes: usize) {
        self.all -= bytes;
        if let Some(own) = self.by_account.get_mut(&account) {
            *own -= bytes;
            if *own == 0 {
                self.by_account.remove(&account);
            }
        }
    }
}

impl ClientBudget {
    /// A budget of this size.
    pub fn of(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { bytes_max, used: Mutex::default() })
    }

    fn used(&self) -> MutexGuard<'_, UsedBytes> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes bytes for an account, if it may have them.
    pub(super) fn take(self: &Arc<Self>, account: Account, bytes: usize) -> Option<BudgetShare> {
        let mut used = self.used();
        let own = used.by_account.get(&account).copied().unwrap_or(0);
        let free = self.bytes_max.saturating_sub(used.all);
        // What is larger than all is let in alone.
        let fits = used.all == 0 || (bytes <= free && (own == 0 || own + bytes <= free));
        if !fits {
            return None;
        }
        used.add(account, bytes);
        drop(used);
        Some(BudgetShare { budget: self.clone(), account, bytes })
    }
}

/// Bytes that an account has, until it is dropped.
#[derive(Debug)]
pub(crate) struct BudgetShare {
    budget: Arc<ClientBudget>,
    account: Account,
    bytes: usize,
}

impl BudgetShare {
    /// From now on it is this. More than before is not refused: what is known only now is there
    /// already.
    pub(super) fn set(&mut self, bytes: usize) {
        let before = std::mem::replace(&mut self.bytes, bytes);
        let mut used = self.budget.used();
        used.add(self.account, bytes);
        used.remove(self.account, before);
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        self.budget.used().remove(self.account, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_account_leaves_half_and_each_further_one_its_share() {
        let budget = ClientBudget::of(100);
        let take_all = |account| {
            let shares: Vec<_> =
                std::iter::from_fn(|| budget.take(Some(account), 1)).take(1000).collect();
            shares
        };
        let first = take_all(1);
        assert_eq!(first.len(), 50);
        let second = take_all(2);
        assert_eq!(second.len(), 25, "half of what the first has left");
        assert!(budget.take(None, 20).is_some(), "a third one is let in");
        assert!(budget.take(Some(1), 1).is_none());
        drop(second);
        drop(first);
        assert_eq!(take_all(2).len(), 50);
        assert!(budget.used().by_account.is_empty() && budget.used().all == 0);
    }

    #[test]
    fn what_is_too_large_comes_alone_and_a_share_may_grow() {
        let budget = ClientBudget::of(100);
        let large = budget.take(None, 1000).unwrap();
        assert!(budget.take(Some(1), 1).is_none());
        drop(large);
        let mut share = budget.take(Some(1), 10).unwrap();
        share.set(95);
        assert!(budget.take(Some(2), 6).is_none());
        share.set(5);
        assert!(budget.take(Some(2), 6).is_some());
    }
}
