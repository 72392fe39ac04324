//! What the nodes of a volume hold and have done, for those who watch it.

use std::pin::pin;
use std::time::Duration;

use blockio::VolumeMap;
use blockio::protocol::{Describe, DiskStatus};
use cache::protocol::{CacheStatus, Status};
use fileio::protocol::{Credentials, DiskList, GetDisks, GetSpace, ROOT, Space};
use futures::future::{Either, select};
use futures::{StreamExt as _, stream};
use runtime::{Call, Context, NodeId, NodeKind};

/// Nodes that are asked at a time.
const ASKED_CONCURRENCY_MAX: usize = 64;
/// A node that has not answered by then is shown as away.
const PATIENCE: Duration = Duration::from_millis(500);
/// The same for the node that lists the disks: it waits for others itself, for 2 s.
const LIST_PATIENCE: Duration = Duration::from_secs(3);

/// All nodes of a volume, as they answered one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct VolumeStatus {
    /// The cache of each file-system node; `None` for one that does not answer.
    pub caches: Vec<Option<CacheStatus>>,
    /// The disks of each disk node; `None` for one that has some and does not answer.
    pub disks: Vec<Option<Vec<DiskStatus>>>,
    /// The process that has each file-system node; `None` if none has it, or if there is one
    /// process only.
    pub cache_processes: Vec<Option<u32>>,
    /// The same for each disk node.
    pub disk_processes: Vec<Option<u32>>,
    /// Its space, as `df` tells it; `None` if a node does not answer.
    pub space: Option<Space>,
}

/// Asks all nodes of the volume, which has the disks of `map`, from the node of `context`.
pub async fn volume_status(context: &Context, map: &VolumeMap) -> VolumeStatus {
    let fs_nodes = || (0..context.fs_nodes()).map(NodeId::fs);
    let disk_nodes = || (0..context.disk_nodes()).map(NodeId::disk);
    let caches = fs_nodes().map(|node| ask(context, node, Status {}));
    let disks = disk_nodes().map(|node| async move {
        match (ask(context, node, Describe {}).await, node.kind()) {
            // No process serves it: its disks are retired.
            (None, NodeKind::Disk(index)) if map.disks_of(index).is_empty() => Some(Vec::new()),
            (answer, _) => answer,
        }
    });
    let caches: Vec<_> = stream::iter(caches).buffered(ASKED_CONCURRENCY_MAX).collect().await;
    let space = match fs_nodes().zip(&caches).find(|(_, cache)| cache.is_some()) {
        Some((node, _)) => ask(context, node, GetSpace { partition: 0 }).await,
        None => None,
    };
    VolumeStatus {
        caches,
        disks: stream::iter(disks).buffered(ASKED_CONCURRENCY_MAX).collect().await,
        cache_processes: fs_nodes().map(|node| context.process_of(node)).collect(),
        disk_processes: disk_nodes().map(|node| context.process_of(node)).collect(),
        space,
    }
}

/// The disks of the volume, as `mdfs disk list` shows them to its operator; `None` if the node that
/// knows them does not answer.
pub async fn disk_list(context: &Context) -> Option<DiskList> {
    let asked = fileio::client::ask(context, GetDisks { who: Credentials::root(), root: ROOT });
    match select(pin!(asked), pin!(context.sleep(LIST_PATIENCE))).await {
        Either::Left((answer, _)) => answer.ok(),
        Either::Right(_) => None,
    }
}

async fn ask<C: Call>(context: &Context, node: NodeId, call: C) -> Option<C::Reply> {
    let asked = pin!(context.spawn(node, call));
    match select(asked, pin!(context.sleep(PATIENCE))).await {
        Either::Left((answer, _)) => answer.ok(),
        Either::Right(_) => None,
    }
}
