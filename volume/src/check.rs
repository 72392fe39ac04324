//! Checking a volume that is not being served. The disks are opened to be read only.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use blockio::{BlockClient, Stripes, VolumeMap};
use futures::executor::block_on;
use futures::future::join_all;
use meta::audit::{Data, Flaw, NodeAudit, Summary, read_node};
use runtime::embedded::Embedded;
use runtime::{Context, NodeId};

use super::boot::disk_paths;
use super::degraded::{KnownVolume, serve_disks};
use super::directory::VolumeDirectory;
use super::{VolumeError, node};

/// What to do about a disk that is missing.
const PUT_BACK: &str = "put it back in its place, or copy out what can be read \
                        (`mdfs serve --degraded`)";
/// What to do about a disk that can be read.
const WATCH: &str = "the next start of the volume writes it anew; watch that disk";

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
    /// Which files cannot be read in full, of whatever is there of the disks. Reads the data.
    pub files: bool,
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
    let path = directory;
    let directory = VolumeDirectory::open(path)?;
    let known = KnownVolume::of(&directory, path)?;
    let machine = known.start_to_read(0, 0)?;
    let mut all = NodeAudit::default();
    if options.files {
        for disk in serve_disks(&machine, &directory, &known)? {
            let step = if disk.is_left_out { PUT_BACK } else { WATCH };
            all.note(Flaw::new(format!("disk {}", disk.path.display()), disk.why, step));
        }
    } else {
        for path in serve_whole_disks(&machine, &directory, &known)? {
            let what = "one of its two superblocks is missing, damaged or old";
            all.note(Flaw::new(format!("disk {}", path.display()), what, WATCH));
        }
    }
    let mut result = read_all(&machine, known.map, options, all);
    result.summary.flaws.tell_paths(|disk| directory.disk(disk).display().to_string());
    Ok(result)
}

/// Serves the disks, all of which must be there. Returns those with a damaged superblock beside a
/// good one.
pub(super) fn serve_whole_disks(
    machine: &Embedded,
    directory: &VolumeDirectory,
    known: &KnownVolume,
) -> Result<Vec<PathBuf>, VolumeError> {
    let opened = (0..).zip(disk_paths(directory, &known.map)).map(|(index, paths)| {
        let (map, served) = (known.map.clone(), known.served);
        machine.on_node(NodeId::disk(index), move |context| {
            node::serve_disks_to_read(context, map, served, paths)
        })
    });
    let mut hurt = Vec::new();
    for found in block_on(join_all(opened)) {
        hurt.extend(found??);
    }
    Ok(hurt)
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
        all.lose_node(index, why);
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
    let data = (options.data || options.files).then(|| {
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
