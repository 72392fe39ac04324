//! Processes that are taken out of a cluster for good, and taken in again.
//!
//! A record of the coordination engine says that a process is removed, so that it does not come
//! back when the host's service manager starts it once more. Its file-system nodes move to the
//! others as planned, without a request that fails. Disk nodes cannot move: their disks live in the
//! host.

use std::collections::BTreeSet;
use std::time::Duration;

use cluster::coordination::{Coordination, CoordinationError, Expect, WriteOutcome};
use cluster::membership::{CommandError, NodeMap, PlanError, ProcessId, leave, node_map};
use runtime::{Context, NodeKind};

use super::bootstrap::ask;
use super::{ClusterError, Engine};
use crate::VolumeError;

/// Before the number of each process that is removed.
const REMOVED_PREFIX: &str = "removed/";
/// The time that the nodes of a process may take to move.
const REMOVE_MAX: Duration = Duration::from_mins(1);
/// How often it is looked whether they have.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

fn key(process: ProcessId) -> String {
    format!("{REMOVED_PREFIX}{}", process.0)
}

/// All that are removed.
pub(super) async fn removed(
    engine: &dyn Coordination,
) -> Result<BTreeSet<ProcessId>, CoordinationError> {
    let records = engine.list(REMOVED_PREFIX).await?.records;
    let number = |key: &str| key.strip_prefix(REMOVED_PREFIX)?.parse().ok();
    Ok(records.iter().filter_map(|(key, _)| number(key)).map(ProcessId).collect())
}

/// Moves all file-system nodes of `process` to the others, and lets it not come back. Resolves once
/// it has none; it can be ended then.
///
/// Refused if it has disk nodes, or if no other process could serve its nodes. If
/// [`ClusterError::StillLeaving`] is the answer the nodes go on moving, and to call it again waits
/// on.
pub fn remove(engine: &Engine, process: ProcessId) -> Result<(), VolumeError> {
    ask(engine, move |context, engine| async move {
        let map = node_map(&*engine).await?;
        check_removable(&map, process)?;
        engine.put(&key(process), &[]).await?;
        match leave(&*engine, process, true).await {
            // It is not of the cluster, and will not be.
            Err(CommandError::Plan(PlanError::Unknown(_))) => return Ok(()),
            left => left?,
        }
        wait_until_left(&context, &*engine, process).await
    })
}

/// Takes a process in again that was removed. It gets nodes once it runs.
pub fn add(engine: &Engine, process: ProcessId) -> Result<(), VolumeError> {
    ask(engine, move |_, engine| async move {
        loop {
            let Some(found) = engine.get(&key(process)).await? else { break };
            let expect = Expect::still(Some(&found));
            if let WriteOutcome::Done { .. } = engine.remove(&key(process), expect).await? {
                break;
            }
        }
        match leave(&*engine, process, false).await {
            // It does not run, and is known again when it does.
            Err(CommandError::Plan(PlanError::Unknown(_))) => Ok(()),
            stays => Ok(stays?),
        }
    })
}

fn check_removable(map: &NodeMap, process: ProcessId) -> Result<(), ClusterError> {
    let disks = map.assignments().filter(|(_, assignment)| assignment.owner() == process);
    let mut disks = disks.filter(|(node, _)| matches!(node.kind(), NodeKind::Disk(_)));
    if let Some((disk, _)) = disks.next() {
        return Err(ClusterError::HasDisks(process, disk));
    }
    let mut others = map.processes.iter().filter(|other| other.id != process);
    if others.any(|other| other.is_living() && !other.leaving) {
        Ok(())
    } else {
        Err(ClusterError::Last(process))
    }
}

async fn wait_until_left(
    context: &Context,
    engine: &dyn Coordination,
    process: ProcessId,
) -> Result<(), ClusterError> {
    let end = context.now() + REMOVE_MAX;
    loop {
        let map = node_map(engine).await?;
        let left =
            map.assignments().filter(|(_, assignment)| assignment.owner() == process).count();
        if left == 0 {
            return Ok(());
        }
        if context.now() >= end {
            return Err(ClusterError::StillLeaving(process, left));
        }
        context.sleep(LOOK_PAUSE).await;
    }
}
