//! What a record of one node leans on at another (ADR 17). Nodes that end together let a change be seen
//! before it is durable, also at other nodes, as long as no record that leans on another is durable
//! earlier. A node that may live on without this one hears nothing that a crash could take back.

use std::rc::Rc;
use std::time::Duration;

use futures::FutureExt as _;
use runtime::{Context, NodeId};

use super::MetaServer;
use crate::client::ask;
use crate::keys;
use crate::protocol::{ChangedAt, Effect, Error, Prior, SettleTo};
use crate::store::{Position, SettlePrior};

/// The pause before a node that does not answer is asked again to make its records durable.
const SETTLE_PAUSE: Duration = Duration::from_millis(10);

/// Asks other nodes to make durable what records here lean on, for as long as this node lives.
pub(super) fn settle_prior(context: &Context) -> SettlePrior {
    let context = context.clone();
    Rc::new(move |Prior { node, position }| {
        let context = context.clone();
        async move {
            loop {
                match ask(&context, NodeId::fs(node), SettleTo { position }).await {
                    Ok(durable) => return durable,
                    // Busy, frozen, or gone for good: then this node ends too.
                    Err(error) => tracing::debug!(%error, node, "its records are waited for"),
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
    ) -> Result<Prior, Error> {
        let is_mine = asker == self.context.node();
        if is_mine || self.store.is_durable(position) {
            return Ok(Prior::default());
        }
        if self.context.dies_with(asker) {
            return Ok(Prior { node: self.node, position: position.number() });
        }
        self.store.durable(position).await?;
        Ok(Prior::default())
    }

    /// May effects be sent before the record that promises them is durable?
    pub(super) fn all_die_with_me<'a>(
        &self,
        effects: impl IntoIterator<Item = &'a Effect>,
    ) -> bool {
        let nodes = self.context.fs_nodes();
        effects.into_iter().all(|effect| self.context.dies_with(NodeId::fs(effect.node(nodes))))
    }

    pub(super) async fn settle_to(&self, position: u64) -> Result<u64, Error> {
        self.store.durable(Position::from_number(position)).await?;
        Ok(self.store.durable_to().number())
    }

    pub(super) async fn settle_names(&self, directory: u64) -> Result<(), Error> {
        let (from, end) = (keys::names_start(directory), keys::names_end(directory));
        Ok(self.store.settled(&from, &end).await?)
    }

    pub(super) async fn changed_at(&self, request: ChangedAt) -> Result<Option<Vec<u32>>, Error> {
        self.load(request.directory, request.generation).await?;
        Ok(self.directories.changed_at(request.directory))
    }
}
