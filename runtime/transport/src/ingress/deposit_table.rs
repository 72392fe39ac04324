//! Bytes of one client that wait to be stored.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use runtime::delivery::{DEPOSIT_PARTS_MAX, Deposit, PlacedBytes};

use super::budget::BudgetShare;

/// Writes for which one client has left something, at most.
const DEPOSITS_MAX: usize = 256;

/// What one client has left, by the number of the write. Dropped with the link by which it came.
#[derive(Default)]
pub(super) struct DepositTable(BTreeMap<u64, Vec<PlacedBytes>>);

impl DepositTable {
    /// Keeps what `share` pays for; false if it cannot be, or is not in order.
    pub(super) fn keep(&mut self, deposit: Deposit, share: Option<BudgetShare>) -> bool {
        let Deposit { transfer, first, parts, .. } = deposit;
        self.0 = self.0.split_off(&first);
        let mut end = 0;
        let follows = |part: &PlacedBytes| {
            let starts_late = part.at >= end;
            let ends = part.at.checked_add(part.data.len() as u64);
            end = ends.unwrap_or(u64::MAX);
            starts_late && ends.is_some()
        };
        let is_valid = parts.len() <= DEPOSIT_PARTS_MAX && parts.iter().all(follows);
        let Some(share) = share.filter(|_| is_valid && self.0.len() < DEPOSITS_MAX) else {
            return false;
        };
        let share = Arc::new(share);
        let counted = parts.into_iter().map(|PlacedBytes { at, data }| {
            let data = Bytes::from_owner(CountedBytes { data, _share: share.clone() });
            PlacedBytes { at, data }
        });
        self.0.insert(transfer, counted.collect());
        true
    }

    /// What was left for a write. It is gone then.
    pub(super) fn take(&mut self, transfer: u64) -> Vec<PlacedBytes> {
        self.0.remove(&transfer).unwrap_or_default()
    }

    /// Drops all.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Bytes that count in a budget for as long as they are anywhere in memory.
struct CountedBytes {
    data: Bytes,
    _share: Arc<BudgetShare>,
}

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

#[cfg(test)]
mod tests {
    use super::super::budget::ClientBudget;
    use super::*;

    fn deposit(transfer: u64, first: u64, parts: &[(u64, usize)]) -> Deposit {
        let part = |&(at, length)| PlacedBytes { at, data: vec![1; length].into() };
        Deposit { client: 4, transfer, first, parts: parts.iter().map(part).collect() }
    }

    #[test]
    fn bytes_are_taken_once_and_dropped_when_their_write_is_over() {
        let budget = ClientBudget::of(4000);
        let mut table = DepositTable::default();
        let mut keep = |transfer, first| {
            let share = budget.take_for_deposit(Some(1), 100);
            table.keep(deposit(transfer, first, &[(0, 4), (8, 4)]), share)
        };
        assert!(keep(1, 1) && keep(2, 1) && keep(3, 2));
        assert!(table.take(1).is_empty(), "the client has said that it is over");
        let taken = table.take(2);
        assert_eq!(taken.iter().map(|part| part.at).collect::<Vec<_>>(), [0, 8]);
        assert!(table.take(2).is_empty(), "it was taken");
        table.clear();
        assert!(table.take(3).is_empty());
    }

    #[test]
    fn bytes_count_for_as_long_as_they_are_in_memory_and_leave_room_for_requests() {
        let budget = ClientBudget::of(4000);
        let mut table = DepositTable::default();
        let mut kept = 0;
        for transfer in 0..100 {
            let share = budget.take_for_deposit(Some(1), 100);
            kept += usize::from(table.keep(deposit(transfer, 0, &[(0, 4)]), share));
        }
        assert_eq!(kept, 5, "half of what is for deposits, which is a quarter of all");
        assert!(budget.take(Some(1), 1000).is_some(), "requests do not wait for deposits");
        assert!(budget.take_for_deposit(Some(2), 100).is_some(), "another one has its share");
        let taken = table.take(0);
        assert!(budget.take_for_deposit(Some(1), 100).is_none(), "they are being stored");
        drop(taken);
        assert!(budget.take_for_deposit(Some(1), 100).is_some());
    }

    #[test]
    fn what_is_not_in_order_or_too_much_is_not_kept() {
        let budget = ClientBudget::of(1 << 20);
        let mut table = DepositTable::default();
        let share = || budget.take_for_deposit(None, 1);
        for parts in [&[(4, 4), (7, 1)][..], &[(4, 1), (0, 4)], &[(u64::MAX, 1)]] {
            assert!(!table.keep(deposit(1, 0, parts), share()));
        }
        assert!(!table.keep(deposit(1, 0, &[(0, 4)]), None), "there is no room");
        for transfer in 0..DEPOSITS_MAX as u64 {
            assert!(table.keep(deposit(transfer, 0, &[(0, 4)]), share()));
        }
        assert!(!table.keep(deposit(DEPOSITS_MAX as u64, 0, &[(0, 4)]), share()));
    }
}
