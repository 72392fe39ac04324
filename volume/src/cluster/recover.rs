//! Rebuilding what the coordination engine holds of a cluster, from the disks.
//!
//! | record | after a complete loss | after an older copy of it was brought back |
//! | --- | --- | --- |
//! | the shape of the volume | from the superblocks | stays |
//! | the node map | from the machine file, which process has which disks | stays in a later epoch, with the disk nodes of the machine file |
//! | which disks and nodes were made | all: a blank disk is refused, not formatted | all |
//! | what nodes handed over; who knows which map | none, as after a crash | none |
//!
//! The epoch becomes later than that of any disk, also of those on other hosts.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use blockio::{DiskName, Superblock, VolumeMap, VolumeRecord};
use cluster::coordination::{Coordination, CoordinationError, Expect, WriteOutcome};
use cluster::membership::{self, CommandError, Founder, NodeMap, ProcessId};
use runtime::wire::to_bytes;
use runtime::{Epoch, VolumeId};

use super::bootstrap::{ClusterShape, ask};
use super::records::{formatted_key, joining, joining_key, served_key};
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

/// Before the name of each disk that was seen on a host, when that did not tell all.
const SEEN_PREFIX: &str = "recovering/";

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
    check_places(shape, &disks)?;
    let (shape, here) = (shape.clone(), disks.into_iter().map(|(_, disk)| disk.superblock));
    let here: Vec<Superblock> = here.collect();
    let disks = here.len();
    ask(engine, move |_, engine| async move {
        check_idle(&*engine, here[0].volume()).await?;
        let (volume, newest) = gather(&*engine, here).await?;
        let first = first_map(&shape, &volume)?;
        let (epoch, had_map) = rebuild(&*engine, &volume, first, newest).await?;
        Ok(RecoveredCluster { volume, epoch, disks, had_map })
    })
}

/// All disks are of one volume, and with the processes that the machine file names. A disk that is
/// retired may lie anywhere.
fn check_places(
    shape: &ClusterShape,
    disks: &[(ProcessId, FoundDisk)],
) -> Result<(), ClusterError> {
    let superblocks = || disks.iter().map(|(_, disk)| &disk.superblock);
    let geometry = superblocks().next().ok_or(ClusterError::NoDisks)?.geometry;
    let decided = superblocks().filter(|superblock| superblock.decided.is_decided);
    let newest = decided.max_by_key(|superblock| superblock.decided.version);
    let gone: Vec<DiskName> = newest.map_or_else(Vec::new, |newest| {
        let states = newest.decided.states.iter();
        states.filter(|entry| entry.state.is_gone()).map(|entry| entry.disk).collect()
    });
    for (id, FoundDisk { path, superblock }) in disks {
        if superblock.geometry != geometry {
            return Err(ClusterError::OtherVolume(path.clone(), superblock.volume()));
        }
        let founder = shape.founders.iter().find(|founder| founder.id == *id);
        let is_its =
            founder.is_some_and(|founder| founder.disks.contains(&superblock.disk.disk_node));
        if !is_its && superblock.decided.is_decided && !gone.contains(&superblock.disk) {
            return Err(ClusterError::OtherProcess(path.clone(), *id, superblock.disk.disk_node));
        }
    }
    if shape.fs_nodes == geometry.fs_nodes {
        Ok(())
    } else {
        Err(ClusterError::OtherShape(geometry.fs_nodes))
    }
}

/// The first map of a cluster that is made anew. Disk nodes that have no disks are free: one
/// whose disks are retired, and one whose process was about to join.
fn first_map(shape: &ClusterShape, volume: &VolumeMap) -> Result<NodeMap, ClusterError> {
    let used: BTreeSet<u32> = volume.disks().iter().map(|disk| disk.disk_node).collect();
    let founders: Vec<Founder> = shape
        .founders
        .iter()
        .map(|Founder { id, disks }| {
            let disks = disks.iter().copied().filter(|disk_node| used.contains(disk_node));
            Founder { id: *id, disks: disks.collect() }
        })
        .collect();
    let has_process = |disk_node: &u32| founders.iter().any(|it| it.disks.contains(disk_node));
    if let Some(disk_node) = used.iter().find(|disk_node| !has_process(disk_node)) {
        return Err(ClusterError::NoProcess(*disk_node));
    }
    let first = NodeMap::first(volume.geometry().fs_nodes, &founders);
    Ok(first.map_err(CommandError::from)?)
}

/// No process runs, and the records are not those of another volume.
async fn check_idle(engine: &dyn Coordination, volume: VolumeId) -> Result<(), ClusterError> {
    let (members, _) = membership::presence(engine).await?;
    if let Some(id) = members.keys().next() {
        return Err(ClusterError::Runs(*id));
    }
    if let Some(record) = engine.get(VOLUME_KEY).await? {
        let known = VolumeRecord::decode(&record.value).ok_or(ClusterError::Unreadable)?;
        if known.volume() != volume {
            return Err(ClusterError::Shadowed(known.volume(), volume));
        }
    }
    Ok(())
}

/// What the volume is, and its newest epoch, as the disks here tell together with those that were
/// seen on other hosts. If it cannot be told yet, what was seen here is kept.
async fn gather(
    engine: &dyn Coordination,
    here: Vec<Superblock>,
) -> Result<(VolumeMap, Epoch), ClusterError> {
    let mut all = here.clone();
    for (_, record) in engine.list(SEEN_PREFIX).await?.records {
        // What is here is of today.
        let is_new = |seen: &Superblock| here.iter().all(|disk| disk.disk != seen.disk);
        let seen = Superblock::decode(&record.value).ok().filter(is_new);
        all.extend(seen.filter(|seen| seen.geometry == here[0].geometry));
    }
    match VolumeMap::from_superblocks(&all) {
        Ok(volume) => {
            let newest = all.iter().map(|disk| disk.epoch).max().unwrap_or_default();
            Ok((volume, newest))
        }
        Err(error) => {
            for disk in &here {
                engine.put(&format!("{SEEN_PREFIX}{}", disk.disk), &disk.encode()).await?;
            }
            Err(ClusterError::Disks(error))
        }
    }
}

async fn rebuild(
    engine: &dyn Coordination,
    volume: &VolumeMap,
    first: NodeMap,
    newest: Epoch,
) -> Result<(Epoch, bool), ClusterError> {
    let known = match membership::node_map(engine).await {
        Ok(map) => Some(map),
        Err(CommandError::NoMap) => None,
        Err(error) => return Err(error.into()),
    };
    forget_handovers(engine).await?;
    for prefix in [KNOWN_PREFIX, ENDING_PREFIX] {
        remove_all(engine, prefix).await?;
    }
    // Disks that have joined since an older copy was made do so no more.
    for disk_node in joining(engine).await?.into_keys() {
        if volume.next_disk(disk_node) > 0 {
            engine.remove(&joining_key(disk_node), Expect::Any {}).await?;
        }
    }
    engine.put(VOLUME_KEY, &VolumeRecord::of(volume).to_stored()).await?;
    say_all_made(engine, volume).await?;
    let after = known.as_ref().map_or(newest, |known| known.epoch.max(newest));
    // An older copy may not know who has joined since.
    let forward = |known: &NodeMap| known.with_disk_nodes_of(&first);
    let next = known.as_ref().map_or_else(|| first.clone(), forward);
    let next = next.raised(Epoch(after.0 + EPOCH_STEP));
    membership::replace(engine, known.as_ref(), &next).await?;
    remove_all(engine, SEEN_PREFIX).await?;
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
    use blockio::Geometry;
    use blockio::plan::{Spread, plan_volume};
    use blockio::superblock::VERSION;
    use cluster::coordination::Sled;
    use cluster::membership::MemberRecord;
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

    /// The disks of one host do not tell all sets.
    #[test]
    fn hosts_tell_together_and_a_disk_node_without_disks_is_free() {
        let directory = tempfile::tempdir().unwrap();
        let engine = Sled::open(directory.path()).unwrap();
        let geometry = Geometry { volume: VolumeId(7), stripe_size: 1 << 16, fs_nodes: 4 };
        let name = |disk_node| DiskName { disk_node, disk: 0 };
        let disks = [(name(0), 1 << 30), (name(2), 2 << 30)];
        let volume = plan_volume(geometry, &disks, Spread::default()).unwrap();
        let superblock = |disk_node, epoch| Superblock {
            version: VERSION,
            disk: name(disk_node),
            features: 0,
            geometry,
            id: 7,
            length: 2 << 30,
            formatted_ms: 0,
            epoch: Epoch(epoch),
            sets: volume.rows_of(name(disk_node)),
            decided: volume.decided(),
        };
        let gather = |here| block_on(gather(&engine, vec![here]));
        assert!(matches!(gather(superblock(0, 30)), Err(ClusterError::Disks(_))));
        let (found, newest) = gather(superblock(2, 20)).unwrap();
        assert_eq!((found.disks(), newest), (volume.disks(), Epoch(30)));

        let founder = |id, disk| Founder { id: ProcessId(id), disks: vec![disk] };
        let mut shape = ClusterShape {
            fs_nodes: 4,
            stripe_size: 1 << 16,
            redundancy: blockio::RedundancyClass::default(),
            disks: Vec::new(),
            founders: vec![founder(1, 0), founder(2, 1), founder(3, 2)],
        };
        let map = first_map(&shape, &volume).unwrap();
        let owners: Vec<ProcessId> = map.disks.iter().map(|it| it.owner()).collect();
        assert_eq!(owners, [ProcessId(1), ProcessId::NONE, ProcessId(3)]);
        block_on(rebuild(&engine, &volume, map, newest)).unwrap();
        assert!(block_on(engine.list(SEEN_PREFIX)).unwrap().records.is_empty());
        shape.founders.pop();
        assert!(matches!(first_map(&shape, &volume), Err(ClusterError::NoProcess(2))));
    }
}
