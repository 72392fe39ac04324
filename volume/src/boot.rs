//! Bringing the nodes up on the embedded machine, one phase after the other.

use std::future::Future;
use std::path::PathBuf;

use blockio::{Geometry, VolumeMap};
use futures::StreamExt as _;
use futures::channel::{mpsc, oneshot};
use futures::executor::block_on;
use futures::future::join_all;
use meta::RootOwner;
use runtime::embedded::Embedded;
use runtime::{Context, Epoch, NodeId, Undelivered};

use super::directory::VolumeDirectory;
use super::error::VolumeError;
use super::node::{self, ProcessMemory};

/// Where the disks are, disk node by disk node.
pub(super) fn disk_paths(directory: &VolumeDirectory, map: &VolumeMap) -> Vec<Vec<PathBuf>> {
    let disks_of = |node| map.disks_of(node).into_iter().map(|disk| directory.disk(disk));
    (0..map.disk_nodes()).map(|node| disks_of(node).collect()).collect()
}

/// Does `work` on each of `nodes` at once, each on its own thread.
fn on_each<F: Future<Output = Result<(), VolumeError>> + 'static>(
    machine: &Embedded,
    nodes: impl Iterator<Item = NodeId>,
    work: impl Fn(Context) -> F + Clone + Send + 'static,
) -> Result<(), VolumeError> {
    let running = nodes.map(|node| {
        let running = machine.on_node(node, work.clone());
        async move { running.await? }
    });
    all_of(running)
}

/// Waits until all are done, also if one fails: the machine must not end under the others. Returns
/// the first failure.
fn all_of(
    running: impl Iterator<Item = impl Future<Output = Result<(), VolumeError>>>,
) -> Result<(), VolumeError> {
    block_on(join_all(running)).into_iter().collect()
}

/// Opens the disks and lets the disk nodes serve them.
pub(super) fn boot_disks(
    machine: &Embedded,
    map: &VolumeMap,
    served: Epoch,
    paths: &[Vec<PathBuf>],
) -> Result<(), VolumeError> {
    let running = (0..).zip(paths.to_vec()).map(|(index, paths)| {
        let map = map.clone();
        let running = machine.on_node(NodeId::disk(index), move |context| async move {
            node::serve_disks(context, map, served, paths).await.map(drop)
        });
        async move { running.await? }
    });
    all_of(running)
}

fn fs_nodes(geometry: Geometry) -> impl Iterator<Item = NodeId> {
    (0..geometry.fs_nodes).map(NodeId::fs)
}

/// Writes the first metadata of each node.
pub(super) fn format_nodes(
    machine: &Embedded,
    map: &VolumeMap,
    owner: RootOwner,
) -> Result<(), VolumeError> {
    let (nodes, map) = (fs_nodes(map.geometry()), map.clone());
    on_each(machine, nodes, move |context| node::format_node(context, map.clone(), owner))
}

/// Reads the metadata of each node, before any is written.
pub(super) fn examine_nodes(machine: &Embedded, map: &VolumeMap) -> Result<(), VolumeError> {
    let (nodes, map) = (fs_nodes(map.geometry()), map.clone());
    on_each(machine, nodes, move |context| node::examine_metadata(context, map.clone()))
}

/// Ends the metadata of each node cleanly.
pub(super) fn final_checkpoint(machine: &Embedded, geometry: &Geometry) -> Result<(), VolumeError> {
    on_each(machine, fs_nodes(*geometry), node::final_checkpoint)
}

/// A phase in which all file-system nodes come up together.
#[derive(Clone, Copy)]
enum BootPhase {
    Cache,
    Metadata,
    Intents,
    Recovery,
    Files,
}

type PhaseRequest = (BootPhase, oneshot::Sender<Result<(), VolumeError>>);

/// Brings up cache, metadata and files of each node. `cache_bytes` is for the stripes of all nodes
/// together; metadata take half as much again.
pub(super) fn boot_nodes(
    machine: &Embedded,
    map: &VolumeMap,
    cache_bytes: usize,
) -> Result<(), VolumeError> {
    use BootPhase::{Cache, Files, Intents, Metadata, Recovery};
    let memory = ProcessMemory::of_machine(machine, &map.geometry(), cache_bytes);
    let nodes = fs_nodes(map.geometry()).map(|node| {
        let (requests, phases) = mpsc::unbounded();
        let (map, memory) = (map.clone(), memory.clone());
        drop(
            machine
                .on_node(node, move |context| boot_node(context, map, cache_bytes, memory, phases)),
        );
        requests
    });
    let nodes: Vec<mpsc::UnboundedSender<PhaseRequest>> = nodes.collect();
    for phase in [Cache, Metadata, Intents, Recovery, Files] {
        all_of(nodes.iter().map(|requests| {
            let (reply, done) = oneshot::channel();
            // A node that has ended drops the sender of the reply.
            let _ = requests.unbounded_send((phase, reply));
            async move { done.await.unwrap_or(Err(VolumeError::Node(Undelivered::Lost))) }
        }))?;
    }
    Ok(())
}

/// Runs the phases of one node as they are requested.
async fn boot_node(
    context: Context,
    map: VolumeMap,
    cache_bytes: usize,
    memory: ProcessMemory,
    mut phases: mpsc::UnboundedReceiver<PhaseRequest>,
) {
    let mut meta = None;
    while let Some((phase, reply)) = phases.next().await {
        let done = match phase {
            BootPhase::Cache => {
                node::serve_cache(&context, &map, cache_bytes);
                Ok(())
            }
            BootPhase::Metadata => {
                let mounted = node::serve_metadata(context.clone(), map.clone(), memory.clone());
                mounted.await.map(|server| meta = Some(server))
            }
            BootPhase::Intents => node::finish_intents(context.clone()).await,
            BootPhase::Recovery => node::end_recovery(context.clone()).await,
            BootPhase::Files => {
                let meta = meta.as_deref().expect("files follow metadata");
                node::serve_files(&context, &map, meta, memory.clone());
                Ok(())
            }
        };
        let _ = reply.send(done);
    }
}
