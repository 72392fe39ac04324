//! Records that depend on records of other nodes. They must not become durable earlier: a crash
//! that lost the others would leave half of an operation.
//!
//! Such a record is *blocked*: a group commit ends before it until all its dependencies are
//! durable. The other nodes are called only when the log is wanted durable that far. There is no
//! deadlock: a record depends on earlier records only, and what precedes the first blocked record
//! of a log is written without waiting.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use futures::future::LocalBoxFuture;

use super::error::StoreResult;
use crate::operations::CommitDependency;

/// Makes a record of another node durable. Returns the LSN up to which that node is durable, or an
/// error if the record never will be.
pub type FlushDependency =
    Rc<dyn Fn(CommitDependency) -> LocalBoxFuture<'static, StoreResult<u64>>>;

/// The blocked records of one log.
#[derive(Debug, Default)]
pub(crate) struct BlockedRecords {
    /// The LSN and the dependencies of each, in order.
    records: VecDeque<(u64, Vec<CommitDependency>)>,
    /// The LSN up to which each other node is known to be durable.
    durable: BTreeMap<u32, u64>,
}

impl BlockedRecords {
    /// The record at `position` depends on `dependencies`.
    pub(crate) fn hold(&mut self, position: u64, dependencies: &[CommitDependency]) {
        let open: Vec<CommitDependency> =
            dependencies.iter().copied().filter(|dependency| !self.is_done(dependency)).collect();
        if !open.is_empty() {
            self.records.push_back((position, open));
        }
    }

    fn is_done(&self, dependency: &CommitDependency) -> bool {
        dependency.position <= self.durable.get(&dependency.node).copied().unwrap_or(0)
    }

    /// The LSN of the first blocked record.
    pub(crate) fn first(&self) -> Option<u64> {
        self.records.front().map(|(position, _)| *position)
    }

    /// The dependencies of the first blocked record.
    pub(crate) fn dependencies_of_first(&self) -> Vec<CommitDependency> {
        self.records.front().map(|(_, dependencies)| dependencies.clone()).unwrap_or_default()
    }

    /// `node` is durable up to `position`: unblocks what waited for no more.
    pub(crate) fn learn(&mut self, node: u32, position: u64) {
        let known = self.durable.entry(node).or_default();
        *known = (*known).max(position);
        let mut records = std::mem::take(&mut self.records);
        for (_, dependencies) in &mut records {
            dependencies.retain(|dependency| !self.is_done(dependency));
        }
        records.retain(|(_, dependencies)| !dependencies.is_empty());
        self.records = records;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_blocked_until_all_its_dependencies_are_durable() {
        let (one, two) =
            (CommitDependency { node: 1, position: 5 }, CommitDependency { node: 2, position: 7 });
        let mut held = BlockedRecords::default();
        held.hold(3, &[CommitDependency::default()]);
        assert_eq!(held.first(), None, "position 0 is always durable");
        held.hold(4, &[one, two]);
        held.hold(6, &[CommitDependency { node: 1, position: 9 }]);
        held.learn(1, 8);
        assert_eq!((held.first(), held.dependencies_of_first()), (Some(4), vec![two]));
        held.learn(2, 7);
        assert_eq!(held.first(), Some(6));
        held.learn(1, 9);
        held.hold(8, &[one, two]);
        assert_eq!(held.first(), None, "what is known to be durable holds nothing");
    }
}
