//! Processes that are taken out of a cluster for good, and taken in again.
//!
//! A record of the coordination engine says that a process is removed, so that it does not come
//! back when the host's service manager starts it once more. Its file-system nodes move to the
//! others as planned, without a request that fails. Disk nodes cannot move: their disks live in the
//! host. So what is on its disks moves first, and they are retired.

use std::time::Duration;

use blockio::{DiskName, VolumeMap};
use cluster::coordination::{Coordination, Expect, WriteOutcome};
use cluster::membership::{
    Assignment, CommandError, NodeMap, PlanError, ProcessId, drop_disk_nodes, leave, node_map,
    take_disk_node,
};
use runtime::{Context, NodeId, NodeKind};

use super::bootstrap::{ClusterStatus, ask};
use super::joining::disk_node_of;
use super::records::{joining_key, removed_key, volume_map};
use super::{ClusterError, Engine};
use crate::VolumeError;

/// The time that the nodes of a process may take to move.
const REMOVE_MAX: Duration = Duration::from_mins(1);
/// How often it is looked whether they have.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// Moves all file-system nodes of `process` to the others, takes its disk node from it, and lets it
/// not come back. Resolves once it has none; it can be ended then.
///
/// Refused if it has disks that are not retired, or if no other process could serve its nodes. If
/// [`ClusterError::StillLeaving`] is the answer the nodes go on moving, and to call it again waits
/// on.
pub fn remove(engine: &Engine, process: ProcessId) -> Result<(), VolumeError> {
    ask(engine, move |context, engine| async move {
        let map = node_map(&*engine).await?;
        let disk_node = disk_node_of(&map, process);
        check_removable(&map, &volume_map(&*engine).await?, process)?;
        engine.put(&removed_key(process), &[]).await?;
        match leave(&*engine, process, true).await {
            // It is not of the cluster, and will not be.
            Err(CommandError::Plan(PlanError::Unknown(_))) => return Ok(()),
            left => left?,
        }
        wait_until_left(&context, &*engine, process).await?;
        let Some(disk_node) = disk_node else { return Ok(()) };
        drop_disk_nodes(&*engine, process).await?;
        engine.remove(&joining_key(disk_node), Expect::Any {}).await?;
        // A disk may have been added meanwhile, which no process would serve.
        let added = names(&volume_map(&*engine).await?.disks_of(disk_node));
        if added.is_empty() {
            return Ok(());
        }
        take_disk_node(&*engine, process, disk_node).await?;
        engine.remove(&removed_key(process), Expect::Any {}).await?;
        leave(&*engine, process, false).await?;
        Err(ClusterError::HasDisks(process, added))
    })
}

/// The disks of a process that are not retired.
pub fn disks_in_use(status: &ClusterStatus, process: ProcessId) -> Vec<DiskName> {
    disks_of(&status.map, &status.volume, process)
}

fn disks_of(map: &NodeMap, volume: &VolumeMap, process: ProcessId) -> Vec<DiskName> {
    let disk_node = disk_node_of(map, process);
    disk_node.map(|disk_node| volume.disks_of(disk_node)).unwrap_or_default()
}

fn names(disks: &[DiskName]) -> String {
    let names: Vec<String> = disks.iter().map(ToString::to_string).collect();
    names.join(", ")
}

/// Takes a process in again that was removed. It gets nodes once it runs.
pub fn add(engine: &Engine, process: ProcessId) -> Result<(), VolumeError> {
    ask(engine, move |_, engine| async move {
        loop {
            let Some(found) = engine.get(&removed_key(process)).await? else { break };
            let expect = Expect::still(Some(&found));
            if let WriteOutcome::Done { .. } = engine.remove(&removed_key(process), expect).await? {
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

fn check_removable(
    map: &NodeMap,
    volume: &VolumeMap,
    process: ProcessId,
) -> Result<(), ClusterError> {
    let disks = disks_of(map, volume, process);
    if !disks.is_empty() {
        return Err(ClusterError::HasDisks(process, names(&disks)));
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
        let is_here = |(node, assignment): &(NodeId, Assignment)| {
            matches!(node.kind(), NodeKind::Fs(_)) && assignment.owner() == process
        };
        let left = map.assignments().filter(is_here).count();
        if left == 0 {
            return Ok(());
        }
        if context.now() >= end {
            return Err(ClusterError::StillLeaving(process, left));
        }
        context.sleep(LOOK_PAUSE).await;
    }
}
