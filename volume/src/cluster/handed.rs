//! What a node hands over stands in the coordination engine until it is taken, once.
//!
//! The record of a node names the process that serves it, or has what was handed over. A process
//! that starts a node writes itself there and takes what it finds; one that hands over replaces
//! only itself. So a process that was frozen while others served its node cannot hand over outdated
//! state.
//!
//! State that is too long for one record stands in parts beside it (`handed/NODE/NAME/PART`), each
//! written before the record that names their number and checksum, and removed once they are taken.
//! If a part is missing or another one, the state is lost as in a crash.

use cluster::coordination::{
    Coordination, CoordinationError, Expect, VALUE_LENGTH_MAX, WriteOutcome,
};
use runtime::NodeId;
use runtime::hash::xxh3;
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
        /// The same in parts.
        3 FreeInParts { /// The name of who has handed over.
            by: u64, /// Parts.
            parts: u32, /// XXH3 of all parts together.
            checksum: u64 },
    }
}

/// Bytes of one part: such a record still fits into a request to etcd.
const PART_LENGTH: usize = VALUE_LENGTH_MAX;
/// Parts of what one node hands over, at most; who has files open is left out of more.
const PARTS_MAX: usize = 32;
/// The prefix of the keys of parts.
pub(super) const PARTS_PREFIX: &str = "handed/";

fn parts_prefix(node: NodeId) -> String {
    format!("{PARTS_PREFIX}{}/", node.0)
}

fn part_key(node: NodeId, by: u64, part: usize) -> String {
    format!("{}{by:016x}/{part}", parts_prefix(node))
}

/// Writes `state` in parts; the record that names them.
async fn put_parts(
    engine: &dyn Coordination,
    node: NodeId,
    by: u64,
    state: &[u8],
) -> Result<NodeRecord, CoordinationError> {
    let mut parts = 0;
    for part in state.chunks(PART_LENGTH) {
        engine.put(&part_key(node, by, parts), part).await?;
        parts += 1;
    }
    Ok(NodeRecord::FreeInParts { by, parts: parts as u32, checksum: xxh3(state) })
}

/// Reads the parts of a state. `None` if they are not what the record says.
async fn get_parts(
    engine: &dyn Coordination,
    node: NodeId,
    by: u64,
    (parts, checksum): (u32, u64),
) -> Result<Option<NodeHandover>, CoordinationError> {
    let mut state = Vec::new();
    for part in 0..(parts as usize).min(PARTS_MAX) {
        if let Some(record) = engine.get(&part_key(node, by, part)).await? {
            state.extend_from_slice(&record.value);
        }
    }
    let handed = if xxh3(&state) == checksum { from_bytes(&state).ok() } else { None };
    if handed.is_none() {
        tracing::warn!(%node, "what was handed over is incomplete: it counts as lost in a crash");
    }
    Ok(handed)
}

/// No part is needed any more.
async fn remove_parts(engine: &dyn Coordination, node: NodeId) -> Result<(), CoordinationError> {
    for (key, _) in engine.list(&parts_prefix(node)).await?.records {
        engine.remove(&key, Expect::Any {}).await?;
    }
    Ok(())
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
    let (key, mut has_parts) = (key(node), false);
    let seen = engine.get(&key).await?;
    match seen.as_ref().and_then(|seen| from_bytes(&seen.value).ok()) {
        // An earlier try whose answer was lost.
        Some(NodeRecord::Served { by: other }) if other == by => return Ok(()),
        Some(NodeRecord::Free { handed }) => *found = Some(handed),
        Some(NodeRecord::FreeInParts { by, parts, checksum }) => {
            *found = get_parts(engine, node, by, (parts, checksum)).await?;
            has_parts = true;
        }
        Some(NodeRecord::Served { .. }) | None => *found = None,
    }
    let served = to_bytes(&NodeRecord::Served { by });
    match engine.write(&key, &served, Expect::still(seen.as_ref()), None).await? {
        WriteOutcome::Done { .. } if has_parts => {
            // Parts that stay are in the way of nothing, and removed with those of the next time.
            let _ = remove_parts(engine, node).await;
            Ok(())
        }
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
        let state = to_bytes(handed);
        free = to_bytes(&if state.len() <= PARTS_MAX * PART_LENGTH {
            put_parts(engine, node, by, &state).await?
        } else {
            NodeRecord::Free { handed: handed.without_holders() }
        });
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

    /// As of a node with many open files.
    fn long() -> NodeHandover {
        let mut handed = handed();
        handed.meta.held = (0..300_000).collect();
        assert!(to_bytes(&handed).len() > 2 * VALUE_LENGTH_MAX);
        handed
    }

    #[test]
    fn state_longer_than_a_record_is_handed_over_whole() {
        let directory = tempfile::tempdir().expect("a directory");
        let engine = Sled::open(directory.path()).expect("an engine");
        block_on(async {
            taken(&engine, 1).await;
            give(&engine, NODE, 1, &long()).await.expect("the engine answers");
            assert!(taken(&engine, 2).await == Some(long()), "all of it is taken");
            let parts = engine.list(PARTS_PREFIX).await.expect("the engine answers");
            assert!(parts.records.is_empty(), "nothing of it stays");
            assert_eq!(taken(&engine, 3).await, None);
        });
    }

    #[test]
    fn a_part_that_is_missing_is_a_crash() {
        let directory = tempfile::tempdir().expect("a directory");
        let engine = Sled::open(directory.path()).expect("an engine");
        block_on(async {
            taken(&engine, 1).await;
            give(&engine, NODE, 1, &long()).await.expect("the engine answers");
            let part = part_key(NODE, 1, 1);
            engine.remove(&part, Expect::Any {}).await.expect("the engine answers");
            assert_eq!(taken(&engine, 2).await, None);
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
