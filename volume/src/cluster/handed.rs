//! What a node hands over stands in the coordination engine until it is taken, once.
//!
//! The record of a node names the process that serves it, or has what was handed over. A process
//! that starts a node writes itself there and takes what it finds; one that hands over replaces
//! only itself. So a process that was frozen while others served its node cannot hand over outdated
//! state.

use cluster::coordination::{
    Coordination, CoordinationError, Expect, VALUE_LENGTH_MAX, WriteOutcome,
};
use runtime::NodeId;
use runtime::wire::{from_bytes, to_bytes};

use crate::NodeHandover;

runtime::choice! {
    /// Who has a node.
    pub enum NodeRecord {
        /// A process serves it.
        1 Served { /// Drawn at the start of the node.
            by: u64 },
        /// No process serves it.
        2 Free { /// What the last one knew.
            handed: NodeHandover },
    }
}

/// The prefix of the records of nodes.
pub(super) const PREFIX: &str = "node/";

fn key(node: NodeId) -> String {
    format!("{PREFIX}{}", node.0)
}

/// `by` begins to serve `node`: what the one before handed over, if he did. Asked again after a
/// failure, it gives the same.
pub(super) async fn take(
    engine: &dyn Coordination,
    node: NodeId,
    by: u64,
    found: &mut Option<NodeHandover>,
) -> Result<(), CoordinationError> {
    let key = key(node);
    let seen = engine.get(&key).await?;
    match seen.as_ref().and_then(|seen| from_bytes(&seen.value).ok()) {
        // An earlier try whose answer was lost.
        Some(NodeRecord::Served { by: other }) if other == by => return Ok(()),
        Some(NodeRecord::Free { handed }) => *found = Some(handed),
        Some(NodeRecord::Served { .. }) | None => *found = None,
    }
    let served = to_bytes(&NodeRecord::Served { by });
    match engine.write(&key, &served, Expect::still(seen.as_ref()), None).await? {
        WriteOutcome::Done { .. } => Ok(()),
        WriteOutcome::Differs { .. } => Err(CoordinationError::Busy),
    }
}

/// `by` has handed over. Does nothing if another process has begun to serve the node.
pub(super) async fn give(
    engine: &dyn Coordination,
    node: NodeId,
    by: u64,
    handed: &NodeHandover,
) -> Result<(), CoordinationError> {
    let key = key(node);
    let seen = engine.get(&key).await?;
    let place = seen.as_ref().and_then(|seen| from_bytes(&seen.value).ok());
    if place != Some(NodeRecord::Served { by }) {
        return Ok(());
    }
    let mut free = to_bytes(&NodeRecord::Free { handed: handed.clone() });
    if free.len() > VALUE_LENGTH_MAX {
        free = to_bytes(&NodeRecord::Free { handed: handed.without_holders() });
    }
    match engine.write(&key, &free, Expect::still(seen.as_ref()), None).await? {
        WriteOutcome::Done { .. } => Ok(()),
        WriteOutcome::Differs { .. } => Err(CoordinationError::Busy),
    }
}

#[cfg(test)]
mod tests {
    use cluster::coordination::Sled;
    use futures::executor::block_on;

    use super::*;

    const NODE: NodeId = NodeId::fs(3);

    fn handed() -> NodeHandover {
        let mut handed = NodeHandover::default();
        handed.meta.verifier = 7;
        handed
    }

    async fn taken(engine: &Sled, by: u64) -> Option<NodeHandover> {
        let mut found = None;
        take(engine, NODE, by, &mut found).await.expect("the engine answers");
        found
    }

    #[test]
    fn what_a_node_hands_over_is_taken_once() {
        let directory = tempfile::tempdir().expect("a directory");
        let engine = Sled::open(directory.path()).expect("an engine");
        block_on(async {
            assert_eq!(taken(&engine, 1).await, None);
            give(&engine, NODE, 1, &handed()).await.expect("the engine answers");
            assert_eq!(taken(&engine, 2).await, Some(handed()));
            assert_eq!(taken(&engine, 3).await, None, "the second may have changed what it took");
        });
    }

    #[test]
    fn who_was_replaced_hands_nothing_over() {
        let directory = tempfile::tempdir().expect("a directory");
        let engine = Sled::open(directory.path()).expect("an engine");
        block_on(async {
            taken(&engine, 1).await;
            taken(&engine, 2).await;
            give(&engine, NODE, 1, &handed()).await.expect("the engine answers");
            assert_eq!(taken(&engine, 3).await, None);
        });
    }

    #[test]
    fn a_lost_answer_loses_nothing_that_was_taken() {
        let directory = tempfile::tempdir().expect("a directory");
        let engine = Sled::open(directory.path()).expect("an engine");
        block_on(async {
            taken(&engine, 1).await;
            give(&engine, NODE, 1, &handed()).await.expect("the engine answers");
            let mut found = None;
            for _ in 0..2 {
                take(&engine, NODE, 2, &mut found).await.expect("the engine answers");
            }
            assert_eq!(found, Some(handed()));
        });
    }
}
