//! Making records durable, here and at other nodes (ADR 17)
//! ([`Flush`](crate::protocol::Flush), [`FinalCheckpoint`](crate::protocol::FinalCheckpoint),
//! [`FlushTo`], [`FlushNames`], [`SyncNames`]).

use std::rc::Rc;
use std::time::Duration;

use blockio::protocol::Error as DiskError;
use futures::FutureExt as _;
use futures::future::try_join_all;
use runtime::{Context, NodeId};

use super::base::NodeBase;
use super::locks::directories::DirectoryLocks;
use super::open_files::OpenFileRequests;
use crate::client::ask;
use crate::keys;
use crate::protocol::{CommitDependency, Error, FlushNames, FlushTo, SyncNames};
use crate::store::{FlushDependency, Position, StoreError, WritePauses};

/// The pause before a node that does not answer is asked again to make its records durable.
const FLUSH_PAUSE: Duration = Duration::from_millis(10);

/// Makes the dependencies of records of this node durable at other nodes, until this node ends.
pub(super) fn flush_dependency(context: &Context) -> FlushDependency {
    let context = context.clone();
    Rc::new(move |CommitDependency { node, position }| {
        let context = context.clone();
        async move {
            loop {
                match ask(&context, NodeId::fs(node), FlushTo { position }).await {
                    Ok(durable) => return Ok(durable),
                    // Busy, frozen, or gone for good: then this node ends too.
                    Err(Error::Undelivered { why }) => {
                        tracing::debug!(%why, node, "its records are waited for");
                    }
                    Err(Error::Unwritable { disk_node, disk, why }) => {
                        return Err(DiskError::Unwritable { disk_node, disk, why }.into());
                    }
                    Err(_) => return Err(StoreError::DependencyStopped { node }),
                }
                context.sleep(FLUSH_PAUSE).await;
            }
        }
        .boxed_local()
    })
}

/// Makes the records of one node durable.
pub(super) struct Flusher {
    base: Rc<NodeBase>,
    directories: Rc<DirectoryLocks>,
    opens: Rc<OpenFileRequests>,
}

impl Flusher {
    pub(super) fn new(
        base: &Rc<NodeBase>,
        directories: Rc<DirectoryLocks>,
        opens: Rc<OpenFileRequests>,
    ) -> Self {
        Self { base: base.clone(), directories, opens }
    }

    pub(super) async fn flush(&self) -> Result<(), Error> {
        self.opens.mark_idle().await?;
        Ok(self.base.store.checkpoint().await?)
    }

    pub(super) async fn final_checkpoint(&self) -> Result<(), Error> {
        self.base.records.record_batch(|_| {}).await?;
        Ok(self.base.store.checkpoint().await?)
    }

    pub(super) async fn flush_to(&self, position: u64) -> Result<u64, Error> {
        let position = Position::from_number(position);
        let durable = self.base.store.durable_unless(position, WritePauses::why_here).await?;
        Ok(durable.number())
    }

    pub(super) async fn flush_names(&self, directory: u64) -> Result<(), Error> {
        let (from, end) = (keys::names_start(directory), keys::names_end(directory));
        let last = self.base.store.last_change(&from, &end);
        self.base.store.durable_unless(last, WritePauses::why).await?;
        Ok(())
    }

    /// Only nodes where names have changed since they were made durable last are asked.
    pub(super) async fn sync_names(&self, request: SyncNames) -> Result<(), Error> {
        let SyncNames { directory, generation } = request;
        self.base.inodes.load(directory, generation).await?;
        let unflushed = self.directories.unflushed(directory);
        let nodes: Vec<u32> = if unflushed.is_all {
            unflushed.changes.keys().copied().collect()
        } else {
            (0..self.base.context.fs_nodes()).collect()
        };
        let flushed = nodes
            .into_iter()
            .map(|node| ask(&self.base.context, NodeId::fs(node), FlushNames { directory }));
        try_join_all(flushed).await?;
        self.directories.flushed(directory, &unflushed);
        Ok(())
    }
}
