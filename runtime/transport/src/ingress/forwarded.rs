//! Calls that this process sends on to another one, which may die before it answers.

use std::time::Duration;

use runtime::context::Context;
use runtime::host::{undelivered, undelivered_bytes};
use runtime::ids::NodeId;
use runtime::protocol::{Retry, Undelivered};
use runtime::wire::Encoder;

/// By then another process has the nodes of one that has died. A caller whose reply was lost waits
/// no longer: it fails instead.
const TAKE_OVER_TIME_MAX: Duration = Duration::from_secs(20);
/// How often the node map is looked at meanwhile.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// A call that must not be done twice, on its way to another process.
pub(super) struct ForwardedCall {
    to: NodeId,
    /// The life of the process that hosts the node.
    incarnation: Option<u64>,
}

impl ForwardedCall {
    /// None if the node is here, or if the caller repeats the call itself when its reply is lost.
    pub(super) fn new(context: &Context, to: NodeId, retry: Retry) -> Option<Self> {
        let is_forwarded = retry == Retry::Never && !context.is_here(to);
        is_forwarded.then(|| Self { to, incarnation: context.incarnation_of(to) })
    }

    /// A reply that was lost becomes [`Undelivered::Gone`] if the process dies: the client, which
    /// has no link to it, cannot find out. A client may repeat a call that is gone.
    pub(super) async fn explain(&self, context: &Context, reply: &mut Encoder) {
        if undelivered(reply.head()) == Some(Undelivered::Lost) && self.is_gone(context).await {
            *reply = undelivered_bytes(Undelivered::Gone);
        }
    }

    /// Waits until the node is with another process, or with a later life of the same one.
    async fn is_gone(&self, context: &Context) -> bool {
        let until = context.now() + TAKE_OVER_TIME_MAX;
        loop {
            let incarnation = context.incarnation_of(self.to);
            if incarnation.is_some() && incarnation != self.incarnation {
                return true;
            }
            if context.now() >= until {
                return false;
            }
            context.sleep(LOOK_INTERVAL).await;
        }
    }
}
