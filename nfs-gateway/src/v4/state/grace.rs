//! The grace period after the start of a gateway, in which clients reclaim what they had open (RFC
//! 8881 section 8.4.2).

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use fileio::protocol::HasOpens;
use futures::future::join_all;
use runtime::{Context, NodeId};

use crate::v4::limits::GRACE;

/// How often the nodes are asked whether there is anything to reclaim.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The grace period of one gateway. It ends early if no node knows of open files: share
/// reservations go with these.
#[derive(Debug)]
pub(super) struct GracePeriod {
    ctx: Context,
    until: Duration,
    is_over: Cell<bool>,
}

impl GracePeriod {
    pub(super) fn begin(ctx: Context) -> Rc<Self> {
        let until = ctx.now() + GRACE;
        let grace = Rc::new(Self { ctx, until, is_over: Cell::new(false) });
        let watched = grace.clone();
        grace.ctx.task(async move { watched.watch().await });
        grace
    }

    pub(super) fn is_running(&self) -> bool {
        !self.is_over.get() && self.ctx.now() < self.until
    }

    async fn watch(&self) {
        while self.is_running() {
            if !self.has_opens().await {
                self.is_over.set(true);
            }
            self.ctx.sleep(CHECK_INTERVAL).await;
        }
    }

    /// Might a client have had something open?
    async fn has_opens(&self) -> bool {
        let nodes = (0..self.ctx.fs_nodes()).map(NodeId::fs);
        let answers = nodes.map(|node| self.ctx.spawn(node, HasOpens {}));
        join_all(answers).await.into_iter().any(|answer| answer.unwrap_or(true))
    }
}
