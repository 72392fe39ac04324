//! Checking a volume that is not being served. The disks are opened to be read only.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use blockio::{BlockClient, Stripes, VolumeMap};
use cluster::coordination::last_epoch;
use futures::executor::block_on;
use futures::future::join_all;
use meta::audit::{Data, Flaw, NodeAudit, Summary, read_node};
use runtime::embedded::{Config, DiskAccess, Embedded};
use runtime::{Context, Epoch, NodeId};

use super::boot::disk_paths;
use super::directory::VolumeDirectory;
use super::superblocks::newest_epoch;
use super::volume::{TRANSFER_BYTES, cores, identify_disks, recorded, served};
use super::{VolumeError, node};

/// How far a check has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckStep {
    /// The metadata of one more node was read.
    Node {
        /// How many nodes there are.
        of: u32,
    },
    /// More data was read.
    Data {
        /// How many.
        bytes: u64,
    },
}

/// What a check reads.
#[derive(Clone)]
pub struct CheckOptions {
    /// The data of all files, too.
    pub data: bool,
    /// Bytes of data per second, at most; 0 for as many as the disks give.
    pub rate_bytes: u64,
    /// Told on the way, on any thread.
    pub on_step: Arc<dyn Fn(CheckStep) + Send + Sync>,
}

impl std::fmt::Debug for CheckOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { data, rate_bytes, .. } = self;
        f.debug_struct("CheckOptions").field("data", data).field("rate", rate_bytes).finish()
    }
}

/// What was found on a volume that could be looked at.
#[derive(Debug)]
pub struct CheckResult {
    /// The disks of the volume.
    pub map: VolumeMap,
    /// What it holds, and what is wrong with it.
    pub summary: Summary,
    /// Nodes of which nothing could be read. Of what they held, or named, nothing is known.
    pub lost_nodes: u32,
}

/// Reads everything of the volume in `directory` and compares. Errors mean that it could not be
/// looked at: it is in use, or its disks are not those of the volume.
pub fn check(directory: &Path, options: &CheckOptions) -> Result<CheckResult, VolumeError> {
    let newest = newest_epoch(directory);
    let directory = VolumeDirectory::open(directory)?;
    let engine = directory.coordination_if_sound();
    let mut known = (None, Epoch(0), Epoch(0));
    if let Some(engine) = &engine {
        let epoch = block_on(last_epoch(engine))?.max(newest);
        known = (recorded(engine)?, epoch, Epoch(served(engine)?));
    }
    let (map, epoch, served) = if let (Some(map), epoch, served) = known {
        (map, epoch, served)
    } else {
        let (map, epoch) = identify_disks(&directory, DiskAccess::ReadOnly)?;
        (map, epoch, Epoch(0))
    };
    let geometry = map.geometry();
    let machine = Embedded::start(Config {
        threads: cores().min(geometry.fs_nodes as usize),
        fs_nodes: geometry.fs_nodes,
        disk_nodes: map.disk_nodes(),
        epoch,
        pool_bytes: TRANSFER_BYTES,
        disk_access: DiskAccess::ReadOnly,
    })?;
    let paths = disk_paths(&directory, &map);
    let opened = (0..).zip(paths).map(|(index, paths)| {
        let map = map.clone();
        machine.on_node(NodeId::disk(index), move |context| {
            node::serve_disks_to_read(context, map, served, paths)
        })
    });
    let opened: Vec<_> = block_on(join_all(opened));
    let mut all = NodeAudit::default();
    for hurt in opened {
        for path in hurt?? {
            let what = "one of its two superblocks is missing, damaged or old";
            let step = "the next start of the volume writes it anew; watch that disk";
            all.note(Flaw::new(format!("disk {}", path.display()), what, step));
        }
    }
    Ok(read_all(&machine, map, options, all))
}

fn read_all(
    machine: &Embedded,
    map: VolumeMap,
    options: &CheckOptions,
    mut all: NodeAudit,
) -> CheckResult {
    let geometry = map.geometry();
    let reading = (0..geometry.fs_nodes).map(|index| {
        let (options, map) = (options.clone(), map.clone());
        machine.on_node(NodeId::fs(index), move |context| async move {
            let read = read_one(&context, map, index, &options).await;
            (options.on_step)(CheckStep::Node { of: geometry.fs_nodes });
            read
        })
    });
    let mut lost_nodes = 0;
    for (index, read) in (0..geometry.fs_nodes).zip(block_on(join_all(reading))) {
        let why = match read {
            Ok(Ok(audit)) => {
                all.join(audit);
                continue;
            }
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        lost_nodes += 1;
        all.lose(index, why);
    }
    CheckResult { map, summary: all.final_checkpoint(), lost_nodes }
}

async fn read_one(
    context: &Context,
    map: VolumeMap,
    index: u32,
    options: &CheckOptions,
) -> Result<NodeAudit, meta::store::StoreError> {
    let fs_nodes = map.geometry().fs_nodes;
    let stripes: Rc<dyn Stripes> = Rc::new(BlockClient::new(context.clone(), map));
    let data = options.data.then(|| {
        let on_step = options.on_step.clone();
        Data {
            // All nodes read at the same time, each its share.
            rate_bytes: share(options.rate_bytes, fs_nodes),
            on_read: Box::new(move |bytes| on_step(CheckStep::Data { bytes })),
        }
    });
    read_node(context, stripes, index, data).await
}

/// A limit of none stays none.
fn share(rate_bytes: u64, nodes: u32) -> u64 {
    if rate_bytes == 0 { 0 } else { (rate_bytes / u64::from(nodes)).max(1) }
}
