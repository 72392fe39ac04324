//! Records of the coordination engine that several parts of a cluster read.

use std::collections::{BTreeMap, BTreeSet};

use blockio::{VolumeMap, VolumeRecord};
use cluster::coordination::{Coordination, CoordinationError};
use cluster::membership::ProcessId;
use runtime::wire::from_bytes;

use super::{ClusterError, VOLUME_KEY};

/// Where each process says how its connections are protected.
pub(super) const SECURITY_PREFIX: &str = "security/";
/// Before the number of each disk node that was served.
pub(super) const SERVED_PREFIX: &str = "served/";
/// Before the number of each process that is removed.
const REMOVED_PREFIX: &str = "removed/";
/// Before the number of each disk node whose disks are to become part of the volume.
const JOINING_PREFIX: &str = "joining/";

/// The key of the last epoch in which the disks of a disk node were served.
pub(super) fn served_key(disk_node: u32) -> String {
    format!("{SERVED_PREFIX}{disk_node}")
}

/// The key that says that a file-system node has its first metadata.
pub(super) fn formatted_key(fs_node: u32) -> String {
    format!("formatted/{fs_node}")
}

/// The key that says that a process is removed.
pub(super) fn removed_key(process: ProcessId) -> String {
    format!("{REMOVED_PREFIX}{}", process.0)
}

/// The key that says that the disks of a disk node join.
pub(super) fn joining_key(disk_node: u32) -> String {
    format!("{JOINING_PREFIX}{disk_node}")
}

/// The disks of the volume.
pub(super) async fn volume_map(engine: &dyn Coordination) -> Result<VolumeMap, ClusterError> {
    let record = engine.get(VOLUME_KEY).await?.ok_or(ClusterError::NoCluster)?;
    VolumeRecord::decode(&record.value).ok_or(ClusterError::Unreadable)
}

/// All processes that are removed.
pub(super) async fn removed(
    engine: &dyn Coordination,
) -> Result<BTreeSet<ProcessId>, CoordinationError> {
    let records = engine.list(REMOVED_PREFIX).await?.records;
    let number = |key: &str| key.strip_prefix(REMOVED_PREFIX)?.parse().ok();
    Ok(records.iter().filter_map(|(key, _)| number(key)).map(ProcessId).collect())
}

/// The disk nodes whose disks join, and whose they are.
pub(super) async fn joining(
    engine: &dyn Coordination,
) -> Result<BTreeMap<u32, ProcessId>, CoordinationError> {
    let records = engine.list(JOINING_PREFIX).await?.records;
    let entry = |key: &str, value: &[u8]| {
        Some((key.strip_prefix(JOINING_PREFIX)?.parse().ok()?, from_bytes(value).ok()?))
    };
    Ok(records.iter().filter_map(|(key, record)| entry(key, &record.value)).collect())
}
