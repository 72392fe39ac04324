//! The volume under test: made once, run through each workload while its disks are recorded, and
//! mounted again from what a crash left.

use std::time::Duration;

use blockio::plan::Spread;
use fileio::protocol::{Change, Commit, Create, Credentials, Existing, Flush, Read, Write};
use machine_emu::{DiskEvent, DiskFaults, DiskSnapshot, Survival};
use meta::NodeAudit;
use meta::audit::PendingWork;
use meta::client::ask;
use meta::protocol::{Allocate, Error, GetSpace, Near, Release};
use meta::store::{smallest_share, stripes_min};
use runtime::{Context, NodeId};

use super::perform::{CompletedOperation, FileService as _, data, handle, name, perform};
use super::tree::{PathTree, walk};
use super::vocabulary::{SETUP, VolumeOperation};
use crate::cluster::{ClusterLayout, Phases, SimulatedCluster};
use crate::content_form::ContentForm;
use crate::planted::Planted;
use crate::quiet;

/// The seed of every world: only what is on the disks decides.
const SEED: u64 = 0x0B3;
/// The epoch in which workloads run. Each restart adds one.
const EPOCH_OF_WORK: u64 = 10;
/// The epoch in which the volume is mounted after a crash.
const EPOCH_OF_CHECK: u64 = 100;
/// Everything ends in this virtual time.
const DONE_WITHIN: Duration = Duration::from_mins(2);
/// What was answered is durable after this, asked for or not.
const DURABLE_WITHIN: Duration = Duration::from_secs(5);

/// Numbers of operations that make the volume start here.
const SETUP_NUMBER: u64 = 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct VolumeShape {
    pub(super) name: &'static str,
    fs_nodes: u32,
    disk_nodes: u32,
    disks_per_node: u32,
    /// How many times as large as a volume has to be.
    size_factor: u64,
}

/// One node with two disks; two nodes with a disk each, and so much space that they have some to
/// give.
pub(super) const SHAPES: [VolumeShape; 2] = [
    VolumeShape { name: "1n", fs_nodes: 1, disk_nodes: 1, disks_per_node: 2, size_factor: 1 },
    VolumeShape { name: "2n", fs_nodes: 2, disk_nodes: 2, disks_per_node: 1, size_factor: 3 },
];

impl VolumeShape {
    /// Bytes of each disk.
    pub(super) fn disk_length(self) -> u64 {
        let map = self.layout().map();
        map.geometry().disk_length(map.set_of(0).set.stripes_per_disk)
    }

    fn layout(self) -> ClusterLayout {
        let Self { fs_nodes, disk_nodes, disks_per_node, .. } = self;
        let stripe_size = 16 << 10;
        let layout = |stripes_per_node| ClusterLayout {
            fs_nodes,
            disk_nodes,
            disks_per_node,
            stripe_size,
            spread: Spread::default(),
            stripes_per_node,
            cache_bytes: 64 * stripe_size as usize,
            content: ContentForm::USUAL,
            slow_engine: false,
        };
        let least = self.size_factor
            * stripes_min(&layout(1).geometry(), ContentForm::USUAL.redundancy.metadata_copies());
        let mut sizes = (least..2 * least).map(layout);
        sizes.find(|layout| smallest_share(&layout.map()) >= least).unwrap_or(layout(2 * least))
    }
}

/// A volume at rest.
pub(super) type DiskImages = Vec<DiskSnapshot>;

/// When something happened, as a count of recorded events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkloadMark {
    Mounted,
    Begun,
    Answered,
    /// Nothing was asked for some time.
    Rested,
}

/// A workload that was run.
#[derive(Debug)]
pub(super) struct RecordedRun {
    pub(super) events: Vec<DiskEvent>,
    pub(super) marks: Vec<(usize, WorkloadMark)>,
    pub(super) done: Vec<CompletedOperation>,
}

/// Makes the volume on which all workloads begin.
pub(super) fn make(shape: VolumeShape) -> DiskImages {
    let cluster = SimulatedCluster::new(SEED, shape.layout());
    cluster.world().set_processes(1);
    let world = cluster.world().clone();
    world.run(async {
        cluster.format(Phases::All).await.expect("a fresh volume can be made");
        for (number, &op) in (SETUP_NUMBER..).zip(SETUP) {
            let done = act(&cluster, op, number).await;
            assert!(done.outcome.is_ok(), "{op:?} failed: {done:?}");
        }
        cluster.application(0).sleep(DURABLE_WITHIN).await;
    });
    let disks = cluster.disk_paths().into_iter().map(|path| world.disk(&path));
    disks
        .map(|disk| {
            disk.cut_power(|_, _| Survival::Whole);
            disk.snapshot()
        })
        .collect()
}

/// The operations that make the volume, with their numbers: the reference model does them too.
pub(super) fn setup() -> impl Iterator<Item = (u64, VolumeOperation)> {
    (SETUP_NUMBER..).zip(SETUP.iter().copied())
}

/// A cluster on these disks; nothing is served yet.
pub(super) fn open(shape: VolumeShape, disks: &DiskImages, epoch: u64) -> SimulatedCluster {
    let cluster = SimulatedCluster::before_epoch(SEED, shape.layout(), epoch);
    cluster.world().set_processes(1);
    for (path, disk) in cluster.disk_paths().iter().zip(disks) {
        cluster.world().disk(path).restore(disk);
    }
    cluster.restart();
    cluster
}

/// Runs a workload on a volume.
pub(super) fn record(
    shape: VolumeShape,
    disks: &DiskImages,
    ops: &[VolumeOperation],
    planted: Option<Planted>,
) -> RecordedRun {
    let cluster = open(shape, disks, EPOCH_OF_WORK);
    let world = cluster.world().clone();
    if planted == Some(Planted::LyingDisks) {
        let faults = DiskFaults { ignored_sync_ppm: 1_000_000, ..DiskFaults::default() };
        world.disks().iter().for_each(|path| world.disk(path).set_faults(faults));
    }
    world.record_disks();
    let (mut marks, mut done) = (Vec::new(), Vec::new());
    world.run(async {
        let mut mark = |what| marks.push((world.disk_events_count(), what));
        cluster.mount(Phases::All).await.expect("a sound volume can be mounted");
        mark(WorkloadMark::Mounted);
        for (number, &op) in (0..).zip(ops) {
            mark(WorkloadMark::Begun);
            done.push(act(&cluster, op, number).await);
            mark(WorkloadMark::Answered);
        }
        cluster.application(0).sleep(DURABLE_WITHIN).await;
        mark(WorkloadMark::Rested);
    });
    RecordedRun { events: world.disk_events(), marks, done }
}

async fn act(cluster: &SimulatedCluster, op: VolumeOperation, number: u64) -> CompletedOperation {
    let context = cluster.application(0);
    match op {
        VolumeOperation::Flush => {
            let nodes = (0..cluster.geometry().fs_nodes).map(NodeId::fs);
            let mut outcome = Ok(());
            for node in nodes {
                outcome = outcome.and(context.spawn(node, Flush {}).await);
            }
            CompletedOperation { outcome, file: None }
        }
        VolumeOperation::Refill => {
            let outcome = refill(&context).await.map_err(|error| match error {
                Error::NoSpace {} => fileio::protocol::Error::NoSpace {},
                error => panic!("a node that is asked for space: {error}"),
            });
            CompletedOperation { outcome, file: None }
        }
        VolumeOperation::Restart => {
            cluster.restart();
            cluster.mount(Phases::All).await.expect("a volume can be mounted again");
            CompletedOperation { outcome: Ok(()), file: None }
        }
        VolumeOperation::Pause => {
            context.sleep(DURABLE_WITHIN).await;
            CompletedOperation { outcome: Ok(()), file: None }
        }
        op => perform(&context, op, number).await,
    }
}

/// Asks the first node for more than it has, and gives back what comes.
async fn refill(context: &Context) -> Result<(), Error> {
    let node = NodeId::fs(0);
    let blocks = ask(context, node, GetSpace { unit: 1 }).await?.free_blocks as u32 + 1;
    let near = Near::Anywhere {};
    let call = Allocate { blocks, unit: 1, from_reserve: false, near };
    let runs = ask(context, node, call).await?;
    ask(context, node, Release { runs }).await
}

/// What is found on a volume after a crash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FoundVolume {
    pub(super) tree: PathTree,
    /// What metadata says that no walk sees: space, and inodes without a name.
    pub(super) flaws: Vec<String>,
}

/// Mounts a volume and looks at everything; in words what cannot be mounted, read or written.
pub(super) fn inspect(shape: VolumeShape, disks: &DiskImages) -> Result<FoundVolume, String> {
    let looked = quiet::catch(|| {
        let cluster = open(shape, disks, EPOCH_OF_CHECK);
        let world = cluster.world().clone();
        let looked = world.run_within(DONE_WITHIN, look(&cluster));
        looked.unwrap_or_else(|| Err(format!("not done within {DONE_WITHIN:?}")))
    });
    looked.unwrap_or_else(|panic| Err(format!("a panic: {panic}")))
}

async fn look(cluster: &SimulatedCluster) -> Result<FoundVolume, String> {
    cluster.mount(Phases::All).await.map_err(|error| format!("it cannot be mounted: {error}"))?;
    let context = cluster.application(0);
    let audit = cluster.audit().await.map_err(|error| format!("the audit failed: {error}"))?;
    let tree = walk(&context).await?;
    try_out(&context).await.map_err(|error| format!("the volume is of no use: {error}"))?;
    Ok(FoundVolume { tree, flaws: flaws(audit) })
}

/// A new file can be made, written, committed and read.
async fn try_out(context: &Context) -> Result<(), fileio::protocol::Error> {
    const LENGTH: usize = 5_000;
    let who = Credentials::root();
    let create = Create {
        who: who.clone(),
        call: fileio::protocol::CallId { client: 8, number: 1 },
        directory: fileio::protocol::ROOT,
        name: name("tried"),
        existing: Existing::Refuse {},
        change: Change::default(),
        durable: true,
    };
    let file = handle(&context.ask(create).await?.attributes);
    let written = data(u64::MAX, LENGTH);
    let write =
        Write { who: who.clone(), file, offset: 0, data: vec![written.clone()], durable: false };
    context.ask(write).await?;
    context.ask(Commit { file }).await?;
    let read = context.ask(Read { who, file, offset: 0, length: LENGTH as u32 + 1 }).await?;
    assert!(read.data.concat() == written, "a new file reads back otherwise than written");
    Ok(())
}

/// What the metadata of all nodes together says that cannot be, or not so soon after a mount.
pub(crate) fn flaws(audit: NodeAudit) -> Vec<String> {
    let found = audit.final_checkpoint();
    let mut flaws: Vec<String> = found.flaws.listed().iter().map(ToString::to_string).collect();
    // Groups on their way may stay so until more are asked for.
    let PendingWork { intents: promises, trims, unlinked, applied, .. } = found.pending;
    if trims + promises > 0 {
        flaws.push("something is still to be done".to_owned());
    }
    if applied > 0 {
        flaws.push("after a mount something is remembered as applied".to_owned());
    }
    if unlinked > 0 {
        flaws.push("a file has no name".to_owned());
    }
    flaws.sort_unstable();
    flaws
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_asked_for_more_than_it_has_gets_it_from_the_other_if_there_is_one() {
        for (shape, expected) in SHAPES.into_iter().zip([false, true]) {
            let recorded = record(shape, &make(shape), &[VolumeOperation::Refill], None);
            assert_eq!(recorded.done[0].outcome.is_ok(), expected, "{}", shape.name);
        }
    }
}
