//! Calls that are executed once, however often they arrive (ADR 9). The metadata server
//! stores the reply with the record of the change. Replies of calls that changed nothing are kept
//! here for a while, because a late copy must not change anything either. They need not survive a
//! restart: a restarted node receives nothing that was sent to its predecessor.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use meta::protocol::{CallOutcome, FindReply};
use runtime::protocol::Undelivered;
use runtime::sync::KeyedLock;

use super::base::{MetadataAccess, is_in_doubt};
use super::call_requests::CallIdRequest;
use super::remote_locks::RemoteLocks;
use crate::protocol::{CallId, Error, Reply};

/// Replies of calls that changed nothing, at most.
const UNCHANGED_MAX: usize = 1024;

/// Executes calls once.
pub(super) struct CallTable {
    base: MetadataAccess,
    remote_locks: Rc<RemoteLocks>,
    /// Running calls: a second copy of one waits for the first.
    running: KeyedLock<CallId>,
    unchanged: RefCell<UnstoredReplies>,
}

/// Replies of calls that changed nothing, oldest first.
#[derive(Debug, Default)]
struct UnstoredReplies {
    replies: BTreeMap<CallId, Reply>,
    order: VecDeque<CallId>,
}

impl UnstoredReplies {
    fn keep(&mut self, call: CallId, reply: Reply) {
        if self.replies.insert(call, reply).is_none() {
            self.order.push_back(call);
        }
        if self.order.len() > UNCHANGED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.replies.remove(&oldest);
        }
    }
}

impl CallTable {
    pub(super) fn new(base: MetadataAccess, remote_locks: Rc<RemoteLocks>) -> Self {
        let (running, unchanged) = (KeyedLock::default(), RefCell::default());
        Self { base, remote_locks, running, unchanged }
    }

    /// Executes the request, or returns what came of it when it was executed before.
    pub(super) async fn execute<C: CallIdRequest>(
        &self,
        request: &C,
        by: &C::Executor,
    ) -> Result<C::Reply, Error> {
        let call = request.call_id().ok_or(Undelivered::ProtocolMismatch)?;
        let _alone = self.running.exclusive(call).await;
        let known = self.unchanged.borrow().replies.get(&call).cloned();
        if let Some(reply) = known {
            return C::answer(reply);
        }
        // A retried call may have been executed although its directory's node never received the
        // effect, and then cannot make it durable on request.
        match self.find_reply(call, true).await? {
            None => {}
            Some(outcome) => return decided(request.repeat(by, outcome).await),
        }
        let answer = request.perform(by).await;
        if answer.as_ref().is_ok_and(C::is_stored) {
            return answer;
        }
        let failure = answer.as_ref().err().copied();
        // A call with a stored reply was executed, whatever failed later; one without was not.
        let durable = request.is_durable() || failure.is_some();
        match (self.find_reply(call, durable).await, failure) {
            (Ok(Some(_)), None) => answer,
            (Ok(Some(outcome)), Some(_)) => decided(request.repeat(by, outcome).await),
            (Ok(None), Some(error)) if is_in_doubt(error) => Err(Undelivered::Busy.into()),
            (Ok(None), error) => {
                let reply = C::reply(answer);
                if error.is_none_or(is_final) {
                    self.unchanged.borrow_mut().keep(call, reply.clone());
                }
                C::answer(reply)
            }
            // Decided, but other nodes do not know it yet.
            (Err(error), _) => decided(Err(error)),
        }
    }

    /// Answers [`WasDone`](crate::protocol::WasDone).
    pub(super) async fn was_done(&self, call: CallId) -> Result<bool, Error> {
        let _alone = self.running.exclusive(call).await;
        Ok(self.find_reply(call, true).await?.is_some())
    }

    /// The reply of a call that was executed, once all nodes concerned know it.
    async fn find_reply(&self, call: CallId, durable: bool) -> Result<Option<CallOutcome>, Error> {
        let found = self.base.meta_here(FindReply { call, durable }).await?;
        if found.is_some() {
            self.remote_locks.wait_for_releases().await?;
        }
        Ok(found)
    }
}

/// A retry would fail in the same way, unless others change something.
fn is_final(error: Error) -> bool {
    !matches!(
        error,
        Error::Undelivered { .. }
            | Error::Damaged {}
            | Error::LostWrites {}
            | Error::Unwritable { .. }
    )
}

/// The answer to a call that was decided: a transient failure must not mean that nothing was done.
fn decided<T>(answer: Result<T, Error>) -> Result<T, Error> {
    match answer {
        Err(Error::Undelivered { why }) if why.is_transient() => Err(Undelivered::Lost.into()),
        answer => answer,
    }
}
