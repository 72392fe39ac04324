//! Bringing the nodes up on the embedded machine, one phase after the other.

use std::future::Future;
use std::path::PathBuf;

use blockio::degraded::DiskTrouble;
use blockio::{Geometry, VolumeMap};
use futures::StreamExt as _;
use futures::channel::{mpsc, oneshot};
use futures::executor::block_on;
use futures::future::join_all;
use meta::RootOwner;
use meta::store::Examination;
use runtime::embedded::Embedded;
use runtime::{Context, Epoch, NodeId, Undelivered};

use super::directory::VolumeDirectory;
use super::disk_manager::OpenEngine;
use super::error::VolumeError;
use super::impaired::{ImpairedNode, impaired_node};
use super::node::{self, ProcessMemory};
use super::options::RunOptions;

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
    directory: &VolumeDirectory,
) -> Result<(), VolumeError> {
    let running = (0..).zip(disk_paths(directory, map)).map(|(index, paths)| {
        let (map, path_of) = (map.clone(), directory.path_of_disks());
        let running = machine.on_node(NodeId::disk(index), move |context| async move {
            let disks = node::serve_disks(context, map, served, paths).await?;
            disks.find_new_disks(path_of);
            Ok(())
        });
        async move { running.await? }
    });
    all_of(running)
}

/// Lets the disk nodes serve what is there of the disks, to be read. Returns what is wrong with
/// which disk of which disk node.
pub(super) fn boot_disks_to_read(
    machine: &Embedded,
    map: &VolumeMap,
    served: Epoch,
    paths: &[Vec<PathBuf>],
) -> Result<Vec<(usize, DiskTrouble)>, VolumeError> {
    let running = (0..).zip(paths.to_vec()).map(|(index, paths)| {
        let map = map.clone();
        machine.on_node(NodeId::disk(index), move |context| {
            node::serve_disks_degraded(context, map, served, paths)
        })
    });
    let mut troubles = Vec::new();
    for (index, found) in block_on(join_all(running)).into_iter().enumerate() {
        troubles.extend(found??.into_iter().map(|trouble| (index, trouble)));
    }
    Ok(troubles)
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
pub(super) fn examine_nodes(
    machine: &Embedded,
    map: &VolumeMap,
    examination: Examination,
) -> Result<(), VolumeError> {
    let (nodes, map) = (fs_nodes(map.geometry()), map.clone());
    on_each(machine, nodes, move |context| {
        node::examine_metadata(context, map.clone(), examination)
    })
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

/// Brings up cache, metadata and files of each node.
pub(super) fn boot_nodes(
    machine: &Embedded,
    map: &VolumeMap,
    run: &RunOptions,
    directory: &VolumeDirectory,
) -> Result<(), VolumeError> {
    let memory = ProcessMemory::of_machine(machine, &map.geometry(), run);
    let cache_bytes = run.cache_bytes;
    let (map, engine) = (map.clone(), directory.engine());
    run_phases(machine, map.geometry(), move |context, phases| {
        let (memory, engine) = ((cache_bytes, memory.clone()), Box::new(engine.clone()));
        boot_node(context, map.clone(), memory, engine, phases)
    })
}

/// As [`boot_nodes`], to be read, of a volume of which a part may be missing. Returns the nodes
/// whose metadata is damaged.
pub(super) fn boot_nodes_to_read(
    machine: &Embedded,
    map: &VolumeMap,
    run: &RunOptions,
) -> Result<Vec<ImpairedNode>, VolumeError> {
    let memory = ProcessMemory::of_machine(machine, &map.geometry(), run);
    let (map, cache_bytes) = (map.clone(), run.cache_bytes);
    let (found, mut impaired) = mpsc::unbounded();
    run_phases(machine, map.geometry(), move |context, phases| {
        boot_node_to_read(context, map.clone(), cache_bytes, memory.clone(), phases, found.clone())
    })?;
    let mut impaired: Vec<ImpairedNode> = std::iter::from_fn(|| impaired.try_recv().ok()).collect();
    impaired.sort_by_key(|impaired| impaired.node);
    Ok(impaired)
}

/// Lets each node run the phases by `boot`, all nodes one phase before the next.
fn run_phases<F: Future<Output = ()> + 'static>(
    machine: &Embedded,
    geometry: Geometry,
    boot: impl Fn(Context, mpsc::UnboundedReceiver<PhaseRequest>) -> F + Clone + Send + 'static,
) -> Result<(), VolumeError> {
    use BootPhase::{Cache, Files, Intents, Metadata, Recovery};
    let nodes = fs_nodes(geometry).map(|node| {
        let (requests, phases) = mpsc::unbounded();
        let boot = boot.clone();
        drop(machine.on_node(node, move |context| boot(context, phases)));
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
    (cache_bytes, memory): (usize, ProcessMemory),
    engine: OpenEngine,
    mut phases: mpsc::UnboundedReceiver<PhaseRequest>,
) {
    let (mut meta, mut engine) = (None, Some(engine));
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
                let files = node::serve_files(&context, &map, meta, memory.clone());
                if let Some(engine) = engine.take() {
                    node::administrate_disks(&context, &map, &files, engine);
                }
                Ok(())
            }
        };
        let _ = reply.send(done);
    }
}

/// Runs the phases of one node that is only read, and sends what of its metadata is damaged.
async fn boot_node_to_read(
    context: Context,
    map: VolumeMap,
    cache_bytes: usize,
    memory: ProcessMemory,
    mut phases: mpsc::UnboundedReceiver<PhaseRequest>,
    found: mpsc::UnboundedSender<ImpairedNode>,
) {
    let mut meta = None;
    while let Some((phase, reply)) = phases.next().await {
        match phase {
            BootPhase::Cache => drop(node::serve_cache(&context, &map, cache_bytes)),
            BootPhase::Metadata => {
                let mounted = node::serve_metadata_to_read(&context, &map, memory.clone()).await;
                if let Some(impaired) = impaired_node(context.node(), &mounted) {
                    // Without a receiver the start has failed elsewhere.
                    let _ = found.unbounded_send(impaired);
                }
                meta = mounted.ok().map(|(server, _)| server);
            }
            BootPhase::Intents => {
                if let Some(meta) = &meta {
                    meta.recover_to_read().await;
                }
            }
            BootPhase::Recovery => meta.iter().for_each(|meta| meta.refuse_changes()),
            BootPhase::Files => {
                if let Some(meta) = &meta {
                    node::serve_files_to_read(&context, &map, meta, memory.clone());
                }
            }
        }
        let _ = reply.send(Ok(()));
    }
}
