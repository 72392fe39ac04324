//! Calls that are done once, however often they come (design D11, ADR 9). The metadata store the reply
//! with the record that does what was asked. What changed nothing is remembered here, for a while: a
//! late copy of it must not do anything either. It need not survive this node, whose next life hears
//! nothing that was sent to this one.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use meta::protocol::{CallOutcome, FindReply};
use runtime::protocol::Undelivered;
use runtime::sync::KeyedLock;
use runtime::{Call, Caller, Handler};

use super::{FileServer, is_in_doubt};
use crate::protocol::{
    Attributes, CallId, Credentials, Error, FileIo, Handle, Kind, Reply, Time, WasDone,
};

/// Replies that changed nothing and are remembered, at most.
const UNCHANGED_MAX: usize = 1024;

/// Calls of this node.
#[derive(Debug, Default)]
pub(super) struct CallTable {
    /// Those under way: a second copy of one waits for the first.
    running: KeyedLock<CallId>,
    unchanged: RefCell<UnstoredReplies>,
}

/// Replies that changed nothing, oldest first.
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

/// A request of [`Retry::ByCallId`](runtime::Retry::ByCallId).
pub(super) trait CallIdRequest: Call<Protocol = FileIo> {
    /// Executes it.
    fn perform(&self, server: &Rc<FileServer>) -> impl Future<Output = Result<Self::Reply, Error>>;

    /// The answer to a call that was executed before, with this outcome.
    fn repeat(
        &self,
        server: &FileServer,
        outcome: CallOutcome,
    ) -> impl Future<Output = Result<Self::Reply, Error>>;

    /// The answer says that the call was executed just now, so its reply is stored, and durable if that
    /// was asked for. If not, nothing may have changed.
    fn is_stored(answer: &Self::Reply) -> bool;
}

impl<C: CallIdRequest> Handler<C> for FileServer {
    async fn handle(self: Rc<Self>, _: Caller, request: C) -> Result<C::Reply, Error> {
        self.once(&request).await
    }
}

runtime::handlers! { FileServer;
    WasDone => |server, _, request| server.was_done(request.call).await;
}

impl FileServer {
    /// Executes the request, or returns what came of it when it was executed before.
    async fn once<C: CallIdRequest>(self: &Rc<Self>, request: &C) -> Result<C::Reply, Error> {
        let call = request.call_id().ok_or(Undelivered::ProtocolMismatch)?;
        let _alone = self.calls.running.exclusive(call).await;
        let known = self.calls.unchanged.borrow().replies.get(&call).cloned();
        if let Some(reply) = known {
            return C::answer(reply);
        }
        // A call that comes again may have been done without its directory's node hearing of it, which
        // then cannot make it durable when asked to.
        match self.find_reply(call, true).await? {
            None => {}
            Some(outcome) => return decided(request.repeat(self, outcome).await),
        }
        let answer = request.perform(self).await;
        if answer.as_ref().is_ok_and(C::is_stored) {
            return answer;
        }
        let failure = answer.as_ref().err().copied();
        // A call without a stored reply was not done, however it ended; one with it was, whatever
        // failed after it was decided.
        let durable = request.is_durable() || failure.is_some();
        match (self.find_reply(call, durable).await, failure) {
            (Ok(Some(_)), None) => answer,
            (Ok(Some(outcome)), Some(_)) => decided(request.repeat(self, outcome).await),
            (Ok(None), Some(error)) if is_in_doubt(error) => Err(Undelivered::Busy.into()),
            (Ok(None), error) => {
                let reply = C::reply(answer);
                if error.is_none_or(is_final) {
                    self.calls.unchanged.borrow_mut().keep(call, reply.clone());
                }
                C::answer(reply)
            }
            // Decided, but not yet to be told.
            (Err(error), _) => decided(Err(error)),
        }
    }

    /// Answers [`WasDone`](crate::protocol::WasDone).
    pub(super) async fn was_done(&self, call: CallId) -> Result<bool, Error> {
        let _alone = self.calls.running.exclusive(call).await;
        Ok(self.find_reply(call, true).await?.is_some())
    }

    /// The reply of a call that was done, when all nodes know of it that must.
    async fn find_reply(&self, call: CallId, durable: bool) -> Result<Option<CallOutcome>, Error> {
        let found = self.meta_here(FindReply { call, durable }).await?;
        if found.is_some() {
            self.release_remote_locks_now().await?;
        }
        Ok(found)
    }

    /// What `who` has made, linked or changed earlier, as it is now.
    pub(super) async fn attributes_after_repeat(
        &self,
        file: Handle,
        kind: Kind,
        who: &Credentials,
    ) -> Result<Attributes, Error> {
        match self.inode(file).await {
            // It was removed since. That it was made stays true.
            Err(Error::Stale {}) => Ok(removed(file, kind, who, self.now())),
            inode => Ok(inode?.attributes),
        }
    }
}

/// The same request, sent again, would fail in the same way, unless others change something.
fn is_final(error: Error) -> bool {
    !matches!(error, Error::Undelivered { .. } | Error::Damaged {} | Error::LostWrites {})
}

/// The answer to a call that was decided. A transient failure must not say that nothing was done.
fn decided<T>(answer: Result<T, Error>) -> Result<T, Error> {
    match answer {
        Err(Error::Undelivered { why }) if why.is_transient() => Err(Undelivered::Lost.into()),
        answer => answer,
    }
}

/// The id is that of another call.
pub(super) fn other_call<T>() -> Result<T, Error> {
    Err(Error::Invalid {})
}

/// All that can be said of a file without a name.
fn removed(file: Handle, kind: Kind, who: &Credentials, now: Time) -> Attributes {
    let blank = Attributes::blank(file.ino, file.generation, kind, now);
    Attributes { uid: who.uid, gid: who.gid, ..blank }
}
