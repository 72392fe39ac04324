//! What came of an earlier call ([`FindReply`]).

use std::rc::Rc;

use runtime::Context;

use super::base::NodeBase;
use super::intents::sending::IntentSender;
use super::replies::{ReplyEntry, ReplyTable};
use crate::protocol::{CallOutcome, Error, FindReply};
use crate::store::Store;

/// Finds replies of one node that are final: durable if that is asked for, and applied everywhere.
pub(super) struct ReplyLookup {
    context: Context,
    store: Rc<Store>,
    replies: Rc<ReplyTable>,
    sender: Rc<IntentSender>,
}

impl ReplyLookup {
    pub(super) fn new(base: &NodeBase, sender: Rc<IntentSender>) -> Self {
        Self {
            context: base.context.clone(),
            store: base.store.clone(),
            replies: base.replies.clone(),
            sender,
        }
    }

    pub(super) async fn find_reply(
        &self,
        request: &FindReply,
    ) -> Result<Option<CallOutcome>, Error> {
        let found = self.replies.find(request.call, self.context.now());
        let Some(ReplyEntry { outcome, position, intent, .. }) = found else { return Ok(None) };
        if request.durable {
            self.store.durable(position).await?;
        }
        if let Some(intent) = intent {
            self.sender.wait_applied(intent).await?;
        }
        Ok(Some(outcome))
    }
}
