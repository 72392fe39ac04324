//! A new cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::rc::Rc;

use blockio::VolumeRecord;
use blockio::plan::{Spread, plan_redundancy, plan_volume};
use blockio::{DiskName, Geometry, RedundancyClass, VolumeMap};
use cluster::coordination::{Coordination, Etcd, Expect, WriteOutcome};
use cluster::membership::{self, Founder, GoneRecord, NodeMap, ProcessId};
use futures::executor::block_on;
use runtime::embedded::{Config, DiskAccess, Embedded};
use runtime::{Context, Epoch};

use super::records::{SECURITY_PREFIX, SERVED_PREFIX, joining, removed, volume_map};
use super::{ClusterError, Engine, VOLUME_KEY};
use crate::VolumeError;
use crate::directory::new_volume_id;
use crate::volume::check_size;

/// The shape of a cluster to be made.
#[derive(Clone, Debug)]
pub struct ClusterShape {
    /// File-system nodes.
    pub fs_nodes: u32,
    /// Bytes per stripe.
    pub stripe_size: u32,
    /// How data survives the loss of disks.
    pub redundancy: RedundancyClass,
    /// The disks of all processes, with their lengths in bytes.
    pub disks: Vec<(DiskName, u64)>,
    /// The processes, and the disk node of each that has disks.
    pub founders: Vec<Founder>,
}

/// Makes a cluster: what its volume is like, and who is of it. Its processes make their disks when
/// they start for the first time.
pub fn bootstrap(engine: &Engine, shape: &ClusterShape) -> Result<VolumeMap, VolumeError> {
    let ClusterShape { fs_nodes, stripe_size, ref disks, .. } = *shape;
    let geometry = Geometry { volume: new_volume_id(), stripe_size, fs_nodes };
    let map = plan_volume(geometry, disks, Spread::default())?;
    let map = plan_redundancy(&map, shape.redundancy)?;
    check_size(&map)?;
    let record = VolumeRecord::of(&map).to_stored();
    let first = NodeMap::first(fs_nodes, &shape.founders);
    let first = first.map_err(|error| ClusterError::Map(error.into()))?;
    ask(engine, move |_, engine| async move {
        match engine.write(VOLUME_KEY, &record, Expect::Absent {}, None).await? {
            WriteOutcome::Done { .. } => {}
            WriteOutcome::Differs { .. } => return Err(ClusterError::Exists),
        }
        membership::found(&*engine, &first).await?;
        Ok(())
    })?;
    Ok(map)
}

/// What the engine knows of a cluster.
#[derive(Clone, Debug)]
pub struct ClusterStatus {
    /// The disks of the volume.
    pub volume: VolumeMap,
    /// Who is there and serves what.
    pub map: NodeMap,
    /// Processes that were removed.
    pub removed: BTreeSet<ProcessId>,
    /// Disk nodes that were served once.
    pub served: BTreeSet<u32>,
    /// Disk nodes whose disks are not part of the volume yet, and whose they are.
    pub joining: BTreeMap<u32, ProcessId>,
    /// How the connections of each process are protected, as it said when it started.
    pub security: BTreeMap<ProcessId, String>,
    /// The processes that keep a lease, and the incarnation of each.
    pub members: BTreeMap<ProcessId, u64>,
    /// The last end of each process that has ended.
    pub gone: BTreeMap<ProcessId, GoneRecord>,
}

/// The cluster as it is now.
pub fn status(engine: &Engine) -> Result<ClusterStatus, VolumeError> {
    ask(engine, |_, engine| async move {
        let volume = volume_map(&*engine).await?;
        let map = membership::node_map(&*engine).await?;
        let said = engine.list(SECURITY_PREFIX).await?.records.into_iter();
        let security = said.filter_map(|(key, record)| {
            let number = key.strip_prefix(SECURITY_PREFIX)?.parse().ok()?;
            Some((ProcessId(number), String::from_utf8(record.value).ok()?))
        });
        let removed = removed(&*engine).await?;
        let joining = joining(&*engine).await?;
        let made = engine.list(SERVED_PREFIX).await?.records.into_iter();
        let served = made.filter_map(|(key, _)| key.strip_prefix(SERVED_PREFIX)?.parse().ok());
        let served = served.collect();
        let security = security.collect();
        let (members, gone) = membership::presence(&*engine).await?;
        Ok(ClusterStatus { volume, map, removed, served, joining, security, members, gone })
    })
}

/// Asks the engine from a machine of its own, which ends with the answer.
pub(super) fn ask<T: Send + 'static, F: Future<Output = Result<T, ClusterError>> + 'static>(
    engine: &Engine,
    work: impl FnOnce(Context, Rc<dyn Coordination>) -> F + Send + 'static,
) -> Result<T, VolumeError> {
    let machine = Embedded::start_part(
        Config {
            threads: 1,
            fs_nodes: 0,
            disk_nodes: 0,
            epoch: Epoch(0),
            pool_bytes: 0,
            disk_access: DiskAccess::Best,
        },
        0,
        None,
    )?;
    let engine = engine.clone();
    let asked = machine.on_node(machine.application(), move |context: Context| async move {
        let engine: Rc<dyn Coordination> = Rc::new(Etcd::new(&engine)?);
        work(context, engine).await
    });
    Ok(block_on(asked)??)
}
