//! Bringing the nodes up on the embedded machine, one phase after the other.

use std::future::Future;
use std::path::PathBuf;

use blockio::Geometry;
use futures::executor::block_on;
use futures::future::join_all;
use meta::memory::MemoryBudget;
use runtime::embedded::Embedded;
use runtime::{Context, Epoch, NodeId};

use super::directory::VolumeDirectory;
use super::{VolumeError, node};

/// Where the disks are, disk node by disk node.
pub(super) fn disk_paths(directory: &VolumeDirectory, geometry: &Geometry) -> Vec<Vec<PathBuf>> {
    let disks_of = |node| (0..geometry.disks_per_node).map(move |disk| directory.disk(node, disk));
    (0..geometry.disk_nodes).map(|node| disks_of(node).collect()).collect()
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
    geometry: &Geometry,
    served: Epoch,
    paths: &[Vec<PathBuf>],
) -> Result<(), VolumeError> {
    let geometry = *geometry;
    let running = (0..).zip(paths.to_vec()).map(|(index, paths)| {
        let running = machine.on_node(NodeId::disk(index), move |context| {
            node::serve_disks(context, geometry, served, paths)
        });
        async move { running.await? }
    });
    all_of(running)
}

fn fs_nodes(geometry: &Geometry) -> impl Iterator<Item = NodeId> {
    (0..geometry.fs_nodes).map(NodeId::fs)
}

/// Writes the first metadata of each node.
pub(super) fn format_nodes(machine: &Embedded, geometry: &Geometry) -> Result<(), VolumeError> {
    let shape = *geometry;
    on_each(machine, fs_nodes(geometry), move |context| node::format_node(context, shape))
}

/// Reads the metadata of each node, before any is written.
pub(super) fn examine_nodes(machine: &Embedded, geometry: &Geometry) -> Result<(), VolumeError> {
    let shape = *geometry;
    on_each(machine, fs_nodes(geometry), move |context| node::examine_metadata(context, shape))
}

/// Ends the metadata of each node cleanly.
pub(super) fn final_checkpoint(machine: &Embedded, geometry: &Geometry) -> Result<(), VolumeError> {
    on_each(machine, fs_nodes(geometry), node::final_checkpoint)
}

/// Brings up cache, metadata and files of each node. `cache_bytes` is for the stripes of all nodes
/// together; metadata take half as much again.
pub(super) fn boot_nodes(
    machine: &Embedded,
    geometry: &Geometry,
    cache_bytes: usize,
) -> Result<(), VolumeError> {
    let shape = *geometry;
    on_each(machine, fs_nodes(geometry), move |context| async move {
        node::serve_cache(&context, shape, cache_bytes);
        Ok(())
    })?;
    let memory = MemoryBudget::beside_cache(cache_bytes);
    on_each(machine, fs_nodes(geometry), move |context| {
        let mounted = node::serve_metadata(context, shape, memory.clone());
        async move { mounted.await.map(drop) }
    })?;
    on_each(machine, fs_nodes(geometry), node::finish_intents)?;
    on_each(machine, fs_nodes(geometry), node::end_recovery)?;
    on_each(machine, fs_nodes(geometry), move |context| async move {
        node::serve_files(&context, shape);
        Ok(())
    })
}
