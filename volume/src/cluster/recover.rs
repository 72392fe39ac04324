//! Rebuilding what the coordination engine holds of a cluster, from the disks.
//!
//! | record | after a complete loss | after an older copy of it was brought back |
//! | --- | --- | --- |
//! | the shape of the volume | from the superblocks | stays |
//! | the node map | from the machine file, which process has which disks | stays, in a later epoch |
//! | which disks and nodes were made | all: a blank disk is refused, not formatted | all |
//! | what nodes handed over; who knows which map | none, as after a crash | none |
//!
//! The epoch becomes later than that of any disk, also of those on other hosts.

use std::path::PathBuf;
use std::time::Duration;

use blockio::VolumeRecord;
use blockio::{Superblock, VolumeMap};
use cluster::coordination::{Coordination, CoordinationError, Expect, WriteOutcome};
use cluster::membership::{self, CommandError, NodeMap, ProcessId};
use runtime::wire::to_bytes;
use runtime::{Epoch, VolumeId};

use super::bootstrap::{ClusterShape, ask};
use super::member::{formatted_key, served_key};
use super::supervisor::{ENDING_PREFIX, KNOWN_PREFIX};
use super::{ClusterError, Engine, VOLUME_KEY, handed};
use crate::VolumeError;
use crate::superblocks::{FoundDisk, formatted_disks};

/// The disks of one volume never differ by as many epochs.
const EPOCH_STEP: u64 = 1 << 20;
/// A lease that is not renewed ends this much after its time, at most.
const LEASE_END_MAX: Duration = Duration::from_secs(5);
/// The pause before the node map is looked at again that could not be raised.
const RAISE_PAUSE: Duration = Duration::from_millis(200);

/// What was rebuilt.
#[derive(Clone, Debug)]
pub struct RecoveredCluster {
    /// The disks of the volume.
    pub volume: VolumeMap,
    /// The epoch of the node map now.
    pub epoch: Epoch,
    /// Disks on this host that told it.
    pub disks: usize,
    /// There was a node map, which was brought forward.
    pub had_map: bool,
}

/// A disk in one of `directories`, and the volume that it belongs to.
pub fn formatted_disk(directories: &[PathBuf]) -> Option<(PathBuf, VolumeId)> {
    let mut found = directories.iter().flat_map(|directory| formatted_disks(directory));
    found.next().map(|disk| (disk.path, disk.superblock.volume()))
}

/// Rebuilds the records of a cluster of this shape, of whose processes some have their directories
/// on this host. No process may run.
pub fn recover(
    engine: &Engine,
    shape: &ClusterShape,
    directories: &[(ProcessId, PathBuf)],
) -> Result<RecoveredCluster, VolumeError> {
    let disks: Vec<(ProcessId, FoundDisk)> = directories
        .iter()
        .flat_map(|(id, directory)| formatted_disks(directory).into_iter().map(|disk| (*id, disk)))
        .collect();
    let volume = check_disks(shape, &disks)?;
    let epochs = disks.iter().map(|(_, disk)| disk.superblock.epoch);
    let newest = epochs.max().unwrap_or_default();
    let first = NodeMap::first(volume.geometry().fs_nodes, &shape.founders);
    let first = first.map_err(|error| ClusterError::Map(error.into()))?;
    let known = volume.clone();
    let (epoch, had_map) =
        ask(
            engine,
            move |_, engine| async move { rebuild(&*engine, &known, first, newest).await },
        )?;
    Ok(RecoveredCluster { volume, epoch, disks: disks.len(), had_map })
}

/// All disks are of one volume, and with the processes that the machine file names.
fn check_disks(
    shape: &ClusterShape,
    disks: &[(ProcessId, FoundDisk)],
) -> Result<VolumeMap, ClusterError> {
    let superblocks: Vec<Superblock> =
        disks.iter().map(|(_, disk)| disk.superblock.clone()).collect();
    let first = superblocks.first().ok_or(ClusterError::NoDisks)?;
    let volume = VolumeMap::from_superblocks(&superblocks).map_err(ClusterError::Disks)?;
    let geometry = first.geometry;
    for (id, FoundDisk { path, superblock }) in disks {
        if superblock.geometry != geometry {
            return Err(ClusterError::OtherVolume(path.clone(), superblock.volume()));
        }
        let founder = shape.founders.iter().find(|founder| founder.id == *id);
        if !founder.is_some_and(|founder| founder.disks.contains(&superblock.disk.disk_node)) {
            return Err(ClusterError::OtherProcess(path.clone(), *id, superblock.disk.disk_node));
        }
    }
    let disk_nodes: usize = shape.founders.iter().map(|founder| founder.disks.len()).sum();
    if disk_nodes == volume.disk_nodes() as usize && shape.fs_nodes == geometry.fs_nodes {
        Ok(volume)
    } else {
        Err(ClusterError::OtherShape(geometry.fs_nodes, volume.disk_nodes()))
    }
}

async fn rebuild(
    engine: &dyn Coordination,
    volume: &VolumeMap,
    first: NodeMap,
    newest: Epoch,
) -> Result<(Epoch, bool), ClusterError> {
    let (members, _) = membership::presence(engine).await?;
    if let Some(id) = members.keys().next() {
        return Err(ClusterError::Runs(*id));
    }
    if let Some(record) = engine.get(VOLUME_KEY).await? {
        let known = VolumeRecord::decode(&record.value).ok_or(ClusterError::Unreadable)?;
        if known.volume() != volume.volume() {
            return Err(ClusterError::Shadowed(known.volume(), volume.volume()));
        }
    }
    let known = match membership::node_map(engine).await {
        Ok(map) => Some(map),
        Err(CommandError::NoMap) => None,
        Err(error) => return Err(error.into()),
    };
    forget_handovers(engine).await?;
    for prefix in [KNOWN_PREFIX, ENDING_PREFIX] {
        remove_all(engine, prefix).await?;
    }
    engine.put(VOLUME_KEY, &to_bytes(&VolumeRecord::of(volume))).await?;
    say_all_made(engine, volume).await?;
    let after = known.as_ref().map_or(newest, |known| known.epoch.max(newest));
    let next = known.as_ref().unwrap_or(&first).raised(Epoch(after.0 + EPOCH_STEP));
    membership::replace(engine, known.as_ref(), &next).await?;
    Ok((next.epoch, known.is_some()))
}

/// Says that all disks and nodes of the volume were made: none is formatted again.
async fn say_all_made(
    engine: &dyn Coordination,
    volume: &VolumeMap,
) -> Result<(), CoordinationError> {
    for disk_node in 0..volume.disk_nodes() {
        let key = served_key(disk_node);
        // That it was served once is what matters: a blank disk is none that was never made.
        engine.write(&key, &to_bytes(&Epoch(0)), Expect::Absent {}, None).await?;
    }
    for node in 0..volume.geometry().fs_nodes {
        engine.put(&formatted_key(node), &[1]).await?;
    }
    Ok(())
}

/// What nodes have handed over is of another time.
async fn forget_handovers(engine: &dyn Coordination) -> Result<(), CoordinationError> {
    remove_all(engine, handed::PREFIX).await?;
    remove_all(engine, handed::PARTS_PREFIX).await
}

async fn remove_all(engine: &dyn Coordination, prefix: &str) -> Result<(), CoordinationError> {
    for (key, _) in engine.list(prefix).await?.records {
        if let WriteOutcome::Differs { .. } = engine.remove(&key, Expect::Any {}).await? {
            return Err(CoordinationError::Busy);
        }
    }
    Ok(())
}

/// The disks of a process were opened in the epoch `newest`, which the map does not know yet: an
/// older copy of etcd was brought back. The map is raised above it, and so are all nodes.
///
/// Refused while a process runs, which knows later epochs than the map. Records of processes that
/// are in the copy go with their leases, of the length `lease`.
pub(super) fn raise(
    engine: &Engine,
    volume: VolumeMap,
    newest: Epoch,
    lease: Duration,
) -> Result<(), VolumeError> {
    ask(engine, move |context, engine| async move {
        let patience = context.now() + lease + LEASE_END_MAX;
        raise_map(&*engine, &volume, newest, || {
            let pause = (context.now() < patience).then(|| context.sleep(RAISE_PAUSE));
            async move {
                match pause {
                    Some(pause) => {
                        pause.await;
                        true
                    }
                    None => false,
                }
            }
        })
        .await
    })
}

/// `pause` waits a moment, and tells whether that may go on.
async fn raise_map<F: Future<Output = bool>>(
    engine: &dyn Coordination,
    volume: &VolumeMap,
    newest: Epoch,
    pause: impl Fn() -> F,
) -> Result<(), ClusterError> {
    loop {
        let map = membership::node_map(engine).await?;
        if map.epoch >= newest {
            return Ok(());
        }
        let (members, _) = membership::presence(engine).await?;
        if let Some(id) = members.keys().next() {
            if pause().await {
                continue;
            }
            return Err(ClusterError::Runs(*id));
        }
        tracing::warn!(
            map = map.epoch.0,
            disks = newest.0,
            "etcd is older than the disks: the node map is raised above their epoch"
        );
        forget_handovers(engine).await?;
        say_all_made(engine, volume).await?;
        // No other process needs to raise it again, though its disks may be newer.
        let next = map.raised(Epoch(newest.0 + EPOCH_STEP));
        match membership::replace(engine, Some(&map), &next).await {
            // Another process has raised it, or joined.
            Err(CommandError::Engine(error)) if error.is_transient() && pause().await => {}
            done => return Ok(done?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::coordination::Sled;
    use cluster::membership::{Founder, MemberRecord};
    use futures::executor::block_on;

    /// A snapshot of etcd from before any process ran knows of no disk and no node.
    #[test]
    fn an_older_copy_is_raised_with_all_that_was_made_and_while_no_process_runs() {
        let directory = tempfile::tempdir().unwrap();
        let engine = Sled::open(directory.path()).unwrap();
        let volume = VolumeMap::for_disks(VolumeId(7), 1 << 16, 3, 2, 1, 1 << 30).unwrap();
        let founders = [
            Founder { id: ProcessId(1), disks: vec![0] },
            Founder { id: ProcessId(2), disks: vec![1] },
        ];
        let first = NodeMap::first(3, &founders).unwrap();
        let raise =
            |newest| block_on(raise_map(&engine, &volume, newest, || std::future::ready(false)));
        block_on(membership::found(&engine, &first)).unwrap();
        let id = ProcessId(2);
        let lease = cluster::coordination::LeaseId(5);
        let member = MemberRecord { id, incarnation: 3, addresses: Vec::new(), lease };
        let key = "cluster/members/0000000002";
        block_on(engine.put(key, &member.to_record())).unwrap();
        assert!(matches!(raise(Epoch(9)), Err(ClusterError::Runs(ProcessId(2)))));
        assert_eq!(block_on(membership::node_map(&engine)).unwrap().epoch, first.epoch);
        block_on(engine.remove(key, Expect::Any {})).unwrap();
        raise(Epoch(9)).unwrap();
        let made = |key: &str| block_on(engine.get(key)).unwrap().is_some();
        assert!((0..3).all(|node| made(&formatted_key(node))));
        assert!((0..2).all(|node| made(&served_key(node))));
        let raised = block_on(membership::node_map(&engine)).unwrap().epoch;
        assert!(raised > Epoch(9));
        // Disks of other hosts are a little newer, and ask for nothing more.
        raise(Epoch(12)).unwrap();
        assert_eq!(block_on(membership::node_map(&engine)).unwrap().epoch, raised);
    }
}
