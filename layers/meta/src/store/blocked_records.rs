//! Records that lean on records of other nodes: they must not be durable earlier, for a crash that took
//! the others back would leave half of an operation.
//!
//! Such a record is *held*: a group commit ends before it until all that it leans on is durable. Only
//! when somebody wants the log that far are the other nodes asked. No circle can close: a record leans
//! on what was there before it, and what stands before the first held record of a log is written
//! without waiting.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use futures::future::LocalBoxFuture;

use super::error::StoreError;
use crate::protocol::CommitDependency;

/// Resolves once the record is durable, with the place up to which its node is; or never will be.
pub type SettlePrior =
    Rc<dyn Fn(CommitDependency) -> LocalBoxFuture<'static, Result<u64, StoreError>>>;

/// The held records of one log.
#[derive(Debug, Default)]
pub(crate) struct BlockedRecords {
    /// The place of each, and what it leans on, in order.
    records: VecDeque<(u64, Vec<CommitDependency>)>,
    /// How far other nodes are durable, as far as they have said so.
    durable: BTreeMap<u32, u64>,
}

impl BlockedRecords {
    /// The record at `position` leans on `dependencies`.
    pub(crate) fn hold(&mut self, position: u64, dependencies: &[CommitDependency]) {
        let open: Vec<CommitDependency> =
            dependencies.iter().copied().filter(|prior| !self.is_done(prior)).collect();
        if !open.is_empty() {
            self.records.push_back((position, open));
        }
    }

    fn is_done(&self, prior: &CommitDependency) -> bool {
        prior.position <= self.durable.get(&prior.node).copied().unwrap_or(0)
    }

    /// The place of the first held record.
    pub(crate) fn first(&self) -> Option<u64> {
        self.records.front().map(|(position, _)| *position)
    }

    /// What the first held record leans on.
    pub(crate) fn priors_of_first(&self) -> Vec<CommitDependency> {
        self.records.front().map(|(_, dependencies)| dependencies.clone()).unwrap_or_default()
    }

    /// `node` is durable up to `position`: whatever waited for no more is held no longer.
    pub(crate) fn learn(&mut self, node: u32, position: u64) {
        let known = self.durable.entry(node).or_default();
        *known = (*known).max(position);
        let mut records = std::mem::take(&mut self.records);
        for (_, dependencies) in &mut records {
            dependencies.retain(|prior| !self.is_done(prior));
        }
        records.retain(|(_, dependencies)| !dependencies.is_empty());
        self.records = records;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_held_until_all_that_it_leans_on_is_durable() {
        let (one, two) =
            (CommitDependency { node: 1, position: 5 }, CommitDependency { node: 2, position: 7 });
        let mut held = BlockedRecords::default();
        held.hold(3, &[CommitDependency::default()]);
        assert_eq!(held.first(), None, "position 0 is always durable");
        held.hold(4, &[one, two]);
        held.hold(6, &[CommitDependency { node: 1, position: 9 }]);
        held.learn(1, 8);
        assert_eq!((held.first(), held.priors_of_first()), (Some(4), vec![two]));
        held.learn(2, 7);
        assert_eq!(held.first(), Some(6));
        held.learn(1, 9);
        held.hold(8, &[one, two]);
        assert_eq!(held.first(), None, "what is known to be durable holds nothing");
    }
}
