//! What came of an earlier call ([`FindReply`]).

use std::rc::Rc;

use super::base::NodeBase;
use super::intents::sending::IntentSender;
use super::replies::ReplyEntry;
use crate::protocol::{CallOutcome, Error, FindReply};
use crate::store::WritePauses;

/// Finds replies of one node that are final: durable if that is asked for, and applied everywhere.
pub(super) struct ReplyLookup {
    base: Rc<NodeBase>,
    sender: Rc<IntentSender>,
}

impl ReplyLookup {
    pub(super) fn new(base: &Rc<NodeBase>, sender: Rc<IntentSender>) -> Self {
        Self { base: base.clone(), sender }
    }

    pub(super) async fn find_reply(
        &self,
        request: &FindReply,
    ) -> Result<Option<CallOutcome>, Error> {
        let found = self.base.replies.find(request.call, self.base.context.now());
        let Some(ReplyEntry { outcome, position, intent, .. }) = found else { return Ok(None) };
        if request.durable {
            self.base.store.durable_unless(position, WritePauses::why).await?;
        }
        if let Some(intent) = intent {
            self.sender.wait_applied(intent).await?;
        }
        Ok(Some(outcome))
    }
}
