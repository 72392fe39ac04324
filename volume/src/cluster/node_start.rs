//! A node that begins at a process of a cluster, serves, and is handed over.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc as std_mpsc;
use std::time::Duration;

use blockio::{DiskName, VolumeMap, VolumeRecord};
use cluster::coordination::{Coordination, CoordinationError, Etcd};
use futures::channel::{mpsc, oneshot};
use meta::RootOwner;
use meta::store::StoreError;
use runtime::wire::{from_bytes, to_bytes};
use runtime::{Context, Epoch, NodeId, NodeKind};

use super::records::{formatted_key, served_key};
use super::supervisor::{SupervisorCommand, SupervisorEvent};
use super::{Engine, VOLUME_KEY};
use crate::new_disks::{self, NewDisk, OverwriteConsent};
use crate::node::{self, NodeServers, ProcessMemory};
use crate::{NodeHandover, VolumeError};

/// The pause before a node is asked again to hand over.
const HAND_OVER_PAUSE: Duration = Duration::from_millis(100);
/// The pause before a node that could not come back to the others tries it again.
const REJOIN_PAUSE: Duration = Duration::from_millis(100);

/// A node whose disks are away waits for them.
async fn hand_over_with_retries(servers: &NodeServers, context: &Context) -> NodeHandover {
    loop {
        match servers.hand_over(context).await {
            Ok(handed) => return handed,
            Err(error) => {
                tracing::info!(node = %context.node(), %error, "does not go elsewhere yet");
            }
        }
        context.sleep(HAND_OVER_PAUSE).await;
    }
}

/// A node on its way up, while others live.
pub(super) struct NodeStart {
    pub(super) map: VolumeMap,
    pub(super) cache_bytes: usize,
    pub(super) memory: ProcessMemory,
    /// Where a disk of the process is.
    pub(super) path_of: Arc<dyn Fn(DiskName) -> String + Send + Sync>,
    pub(super) engine: Engine,
    /// Of the process.
    pub(super) new_disks: Vec<NewDisk>,
    pub(super) consent: OverwriteConsent,
    pub(super) command: mpsc::UnboundedSender<SupervisorCommand>,
}

impl NodeStart {
    /// Serves the node until `hand_over` is sent, then hands it over.
    pub(super) async fn run(
        self,
        context: Context,
        events: std_mpsc::Sender<SupervisorEvent>,
        hand_over: oneshot::Receiver<()>,
    ) {
        // In the coordination engine it says which instance of the node serves.
        let (node, by) = (context.node(), context.random());
        // Disks may have come or gone while no node of this process was asked to follow.
        if let Some(record) = self.get(VOLUME_KEY).await
            && let Some(map) = VolumeRecord::decode(&record)
            && let Err(error) = self.map.advance(&VolumeRecord::of(&map))
        {
            tracing::error!(%node, %error, "the record of the volume is not that of its disks");
        }
        let begun = match node.kind() {
            NodeKind::Disk(index) => self.bring_disks(&context, by, index).await,
            NodeKind::Fs(index) => self.bring_files(&context, by, index).await,
            NodeKind::Application(_) => return,
        };
        let (servers, begun) = match begun {
            Ok(servers) => (servers, Ok(())),
            Err(error) => (NodeServers::default(), Err(error)),
        };
        let _ = events.send(SupervisorEvent::NodeStarted(node, begun));
        if hand_over.await.is_err() {
            return;
        }
        let handed = if matches!(node.kind(), NodeKind::Disk(_)) {
            servers.hand_over_disks(&context).await.unwrap_or_else(|error| {
                tracing::warn!(%node, %error, "what is not durable is lost");
                NodeHandover::default()
            })
        } else {
            hand_over_with_retries(&servers, &context).await
        };
        let _ = events.send(SupervisorEvent::NodeHandedOver(node, by, Box::new(handed)));
    }

    /// The first time, makes the disks. One that is not as old as it should be is refused.
    async fn bring_disks(
        &self,
        context: &Context,
        by: u64,
        index: u32,
    ) -> Result<NodeServers, VolumeError> {
        let (key, map) = (served_key(index), &self.map);
        let served: Option<Epoch> = self.get(&key).await.and_then(|it| from_bytes(&it).ok());
        if served.is_none() {
            let disks = self.new_disks.iter().filter(|new| new.disk.disk_node == index);
            new_disks::make_disks(context, map, disks.cloned().collect(), &self.consent).await?;
        }
        let handed = self.take(context.node(), by).await;
        let (last, now) = (served.unwrap_or_default(), context.epoch());
        let paths = map.disks_of(index).into_iter().map(|name| (self.path_of)(name).into());
        let paths: Vec<PathBuf> = paths.collect();
        let disks = node::resume_disks(context.clone(), map.clone(), last, paths, handed.as_ref());
        let disks = disks.await?;
        let path_of = self.path_of.clone();
        disks.find_new_disks(move |name| path_of(name));
        let disks = Some(disks);
        self.put(&key, to_bytes(&now)).await;
        Ok(NodeServers { disks, ..NodeServers::default() })
    }

    /// The first time, writes the first metadata of the node.
    async fn bring_files(
        &self,
        context: &Context,
        by: u64,
        index: u32,
    ) -> Result<NodeServers, VolumeError> {
        let (key, map) = (formatted_key(index), &self.map);
        let handed = self.take(context.node(), by).await;
        let cache = node::serve_cache(context, map, self.cache_bytes);
        if let Some(handed) = &handed {
            handed.resume_cache(&cache);
        }
        if self.get(&key).await.is_none() {
            match node::format_node(context.clone(), map.clone(), RootOwner::default()).await {
                // The record was lost, or is of an older copy of etcd: the disks know better.
                Err(VolumeError::Metadata { error: StoreError::Formatted, .. }) => {
                    tracing::warn!(node = %context.node(), "has its metadata, though etcd does not know");
                }
                formatted => formatted?,
            }
            self.put(&key, vec![1]).await;
        }
        let meta = node::serve_metadata(context.clone(), map.clone(), self.memory.clone()).await?;
        if let Some(handed) = &handed {
            handed.resume_metadata(&meta);
        }
        while let Err(error) = node::rejoin(context.clone()).await {
            tracing::info!(node = %context.node(), %error, "the others are waited for");
            context.sleep(REJOIN_PAUSE).await;
        }
        let files = node::serve_files(context, map, &meta, self.memory.clone());
        let engine = self.engine.clone();
        let open_engine = move || match Etcd::new(&engine) {
            Ok(engine) => Ok(Rc::new(engine) as Rc<dyn Coordination>),
            Err(error) => Err(CoordinationError::Refused(error.to_string())),
        };
        node::administrate_disks(context, map, &files, Box::new(open_engine));
        if let Some(handed) = &handed {
            handed.resume_files(&files);
        }
        Ok(NodeServers { cache: Some(cache), meta: Some(meta), files: Some(files), disks: None })
    }

    /// What the process has handed over that served the node before, if it did.
    async fn take(&self, node: NodeId, by: u64) -> Option<NodeHandover> {
        let (answer, found) = oneshot::channel();
        let _ = self.command.unbounded_send(SupervisorCommand::Take(node, by, answer));
        found.await.ok().flatten()
    }

    async fn get(&self, key: &str) -> Option<Vec<u8>> {
        let (answer, found) = oneshot::channel();
        let _ = self.command.unbounded_send(SupervisorCommand::Get(key.to_owned(), answer));
        found.await.ok().flatten()
    }

    async fn put(&self, key: &str, value: Vec<u8>) {
        let (done, put) = oneshot::channel();
        let _ = self.command.unbounded_send(SupervisorCommand::Put(key.to_owned(), value, done));
        let _ = put.await;
    }
}
