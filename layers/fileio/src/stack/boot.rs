//! Bringing the nodes up, one layer after the other.

use std::future::Future;
use std::path::PathBuf;
use std::rc::Rc;

use blockio::{BlockClient, Geometry, Stripes};
use cache::CacheClient;
use futures::executor::block_on;
use futures::future::try_join_all;
use meta::MetaServer;
use runtime::embedded::{Embedded, VolumeDirectory};
use runtime::{Context, NodeId};

use super::StackError;
use super::volume::open_disk;
use crate::FileServer;

/// Where the disks are, disk node by disk node.
pub(super) fn disk_paths(directory: &VolumeDirectory, geometry: &Geometry) -> Vec<Vec<PathBuf>> {
    let disks_of = |node| (0..geometry.disks_per_node).map(move |disk| directory.disk(node, disk));
    (0..geometry.disk_nodes).map(|node| disks_of(node).collect()).collect()
}

/// Does `work` on each of `nodes` at once, each on its own thread.
fn on_each<F: Future<Output = Result<(), StackError>> + 'static>(
    machine: &Embedded,
    nodes: impl Iterator<Item = NodeId>,
    work: impl Fn(Context) -> F + Clone + Send + 'static,
) -> Result<(), StackError> {
    let running = nodes.map(|node| {
        let running = machine.on_node(node, work.clone());
        async move { running.await? }
    });
    block_on(try_join_all(running)).map(|_| ())
}

/// Opens the disks and lets the disk nodes serve them.
pub(super) fn boot_disks(
    machine: &Embedded,
    geometry: &Geometry,
    paths: &[Vec<PathBuf>],
) -> Result<(), StackError> {
    let geometry = *geometry;
    let running = (0..).zip(paths.to_vec()).map(|(index, paths)| {
        let running = machine.on_node(NodeId::disk(index), move |context| async move {
            let opened = paths.iter().map(|path| open_disk(&context, path));
            let disks = try_join_all(opened).await?;
            let config = blockio::Config::default();
            let server = blockio::Server::open(&context, geometry, disks, config).await?;
            context.serve::<blockio::protocol::BlockIo>(server);
            Ok(())
        });
        async move { running.await? }
    });
    block_on(try_join_all(running)).map(|_: Vec<()>| ())
}

fn fs_nodes(geometry: &Geometry) -> impl Iterator<Item = NodeId> {
    (0..geometry.fs_nodes).map(NodeId::fs)
}

/// Writes the first metadata of each node. Without the cache: little is written, once.
pub(super) fn format_nodes(machine: &Embedded, geometry: &Geometry) -> Result<(), StackError> {
    let shape = *geometry;
    on_each(machine, fs_nodes(geometry), move |context| async move {
        let stripes: Rc<dyn Stripes> = Rc::new(BlockClient::new(context.clone(), shape));
        let formatted = MetaServer::format(&context, &stripes).await;
        formatted.map_err(|error| StackError::Metadata { node: context.node(), error })
    })
}

/// Brings up cache, metadata and files of each node.
pub(super) fn boot_nodes(
    machine: &Embedded,
    geometry: &Geometry,
    cache_bytes: usize,
) -> Result<(), StackError> {
    let shape = *geometry;
    let config = cache::Config::share(cache_bytes, geometry.fs_nodes);
    on_each(machine, fs_nodes(geometry), move |context| async move {
        let below: Rc<dyn Stripes> = Rc::new(BlockClient::new(context.clone(), shape));
        let server = cache::Server::new(context.clone(), shape, config, below);
        context.serve::<cache::protocol::Cache>(server);
        Ok(())
    })?;
    on_each(machine, fs_nodes(geometry), move |context| async move {
        let below: Rc<dyn Stripes> = Rc::new(BlockClient::new(context.clone(), shape));
        let stripes: Rc<dyn Stripes> = Rc::new(CacheClient::new(context.clone(), shape, below));
        let mounted = MetaServer::mount(context.clone(), stripes.clone()).await;
        let meta = mounted.map_err(|error| StackError::Metadata { node: context.node(), error })?;
        context.serve::<meta::protocol::Meta>(meta);
        context.serve::<crate::protocol::FileIo>(FileServer::new(context.clone(), stripes));
        Ok(())
    })
}
