//! What a record of one node leans on at another (ADR 17). Nodes that end together let a change be seen
//! before it is durable, also at other nodes, as long as no record that leans on another is durable
//! earlier. A node that may live on without this one hears nothing that a crash could take back.

use std::rc::Rc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::try_join_all;
use runtime::{Context, NodeId};

use super::MetaServer;
use crate::client::ask;
use crate::keys;
use crate::protocol::{CommitDependency, Effect, Error, FlushNames, FlushTo, SyncNames};
use crate::store::{Position, SettlePrior, StoreError};

/// The pause before a node that does not answer is asked again to make its records durable.
const SETTLE_PAUSE: Duration = Duration::from_millis(10);

/// Asks other nodes to make durable what records here lean on, for as long as this node lives.
pub(super) fn settle_prior(context: &Context) -> SettlePrior {
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
                    Err(_) => return Err(StoreError::LeansOnStopped { node }),
                }
                context.sleep(SETTLE_PAUSE).await;
            }
        }
        .boxed_local()
    })
}

impl MetaServer {
    /// What a record of `asker` must not precede, if it leans on that of this node at `position`. An
    /// asker that may live on without this node hears of it only when it is durable.
    pub(super) async fn prior_for(
        &self,
        asker: NodeId,
        position: Position,
    ) -> Result<CommitDependency, Error> {
        let is_mine = asker == self.context.node();
        if is_mine || self.store.is_durable(position) {
            return Ok(CommitDependency::default());
        }
        if self.context.shares_failure_domain(asker) {
            return Ok(CommitDependency { node: self.node, position: position.number() });
        }
        self.store.durable(position).await?;
        Ok(CommitDependency::default())
    }

    /// May effects be sent before the record that promises them is durable?
    pub(super) fn all_die_with_me<'a>(
        &self,
        effects: impl IntoIterator<Item = &'a Effect>,
    ) -> bool {
        let nodes = self.context.fs_nodes();
        effects
            .into_iter()
            .all(|effect| self.context.shares_failure_domain(NodeId::fs(effect.node(nodes))))
    }

    pub(super) async fn flush_to(&self, position: u64) -> Result<u64, Error> {
        self.store.durable(Position::from_number(position)).await?;
        Ok(self.store.durable_to().number())
    }

    pub(super) async fn flush_names(&self, directory: u64) -> Result<(), Error> {
        let (from, end) = (keys::names_start(directory), keys::names_end(directory));
        Ok(self.store.flushed(&from, &end).await?)
    }

    /// Only nodes where names have changed since they were made durable last are asked.
    pub(super) async fn sync_names(&self, request: SyncNames) -> Result<(), Error> {
        let SyncNames { directory, generation } = request;
        self.load(directory, generation).await?;
        let unsettled = self.directories.unsettled(directory);
        let nodes: Vec<u32> = if unsettled.is_all {
            unsettled.changes.keys().copied().collect()
        } else {
            (0..self.context.fs_nodes()).collect()
        };
        let flushed = nodes
            .into_iter()
            .map(|node| ask(&self.context, NodeId::fs(node), FlushNames { directory }));
        try_join_all(flushed).await?;
        self.directories.flushed(directory, &unsettled);
        Ok(())
    }
}
