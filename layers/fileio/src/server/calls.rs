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

use super::create::kind_of;
use super::{FileServer, is_in_doubt};
use crate::protocol::{
    Attributes, CallId, Created, Credentials, Error, Handle, Kind, Reply, Request, Time,
};

/// Replies that changed nothing and are remembered, at most.
const UNCHANGED_MAX: usize = 1024;

/// Calls of this node.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// Those under way: a second copy of one waits for the first.
    running: KeyedLock<CallId>,
    unchanged: RefCell<Unchanged>,
}

/// Replies that changed nothing, oldest first.
#[derive(Debug, Default)]
struct Unchanged {
    replies: BTreeMap<CallId, Reply>,
    order: VecDeque<CallId>,
}

impl Unchanged {
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

impl FileServer {
    /// Does the request `call`, or tells what came of it when it was done.
    pub(super) async fn once(self: &Rc<Self>, call: CallId, request: &Request) -> Reply {
        let _alone = self.calls.running.exclusive(call).await;
        let known = self.calls.unchanged.borrow().replies.get(&call).cloned();
        if let Some(reply) = known {
            return reply;
        }
        // A call that comes again may have been done without its directory's node hearing of it, which
        // then cannot make it durable when asked to.
        match self.find_reply(call, true).await {
            Ok(None) => {}
            Ok(Some(outcome)) => return told_again(request, self.again(request, outcome).await),
            Err(error) => return refused(request, error),
        }
        let reply = self.perform(request).await;
        if is_stored(&reply) {
            return reply;
        }
        // A call without a stored reply was not done, however it ended; one with it was, whatever
        // failed after it was decided.
        let durable = is_durable(request) || failure(&reply).is_some();
        match (self.find_reply(call, durable).await, failure(&reply)) {
            (Ok(Some(_)), None) => reply,
            (Ok(Some(outcome)), Some(_)) => told_again(request, self.again(request, outcome).await),
            (Ok(None), Some(error)) if is_in_doubt(error) => {
                refused(request, Undelivered::Busy.into())
            }
            (Ok(None), error) => {
                if error.is_none_or(is_final) {
                    self.calls.unchanged.borrow_mut().keep(call, reply.clone());
                }
                reply
            }
            // Decided, but not yet to be told.
            (Err(error), _) => told_again(request, refused(request, error)),
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

    /// Does a request that has a call id.
    pub(super) async fn perform(self: &Rc<Self>, request: &Request) -> Reply {
        match request {
            Request::Create(r) => Reply::Create(self.create(r).await),
            Request::MakeNode(r) => Reply::MakeNode(self.make_node(r).await),
            Request::Remove(r) => Reply::Remove(self.remove(r).await),
            Request::RemoveDirectory(r) => Reply::RemoveDirectory(self.remove_directory(r).await),
            Request::Rename(r) => Reply::Rename(self.rename(r).await),
            Request::Link(r) => Reply::Link(self.link(r).await),
            Request::OpenNew(r) => Reply::OpenNew(self.open_new(r).await),
            Request::SetXattr(r) => Reply::SetXattr(self.set_xattr(r).await),
            Request::RemoveXattr(r) => Reply::RemoveXattr(self.remove_xattr(r).await),
            _ => Reply::Undelivered(Undelivered::ProtocolMismatch),
        }
    }

    /// The reply to a request that was done before.
    async fn again(&self, request: &Request, outcome: CallOutcome) -> Reply {
        match (request, outcome) {
            (Request::Create(r), CallOutcome::Made { ino, generation }) => {
                let file = Handle { ino, generation };
                let attributes = self.made_before(file, Kind::File {}, &r.who).await;
                Reply::Create(attributes.map(|attributes| Created { attributes, new: true }))
            }
            (Request::OpenNew(r), CallOutcome::Made { ino, generation }) => {
                let file = Handle { ino, generation };
                Reply::OpenNew(self.hold_again(r.call, file, &r.who).await)
            }
            (Request::MakeNode(r), CallOutcome::Made { ino, generation }) => {
                let file = Handle { ino, generation };
                Reply::MakeNode(self.made_before(file, kind_of(&r.node), &r.who).await)
            }
            (Request::Remove(_), CallOutcome::Done {}) => Reply::Remove(Ok(())),
            (Request::RemoveDirectory(_), CallOutcome::Done {}) => Reply::RemoveDirectory(Ok(())),
            (Request::Rename(_), CallOutcome::Done {}) => Reply::Rename(Ok(())),
            (Request::Link(r), CallOutcome::Done {}) => {
                Reply::Link(self.made_before(r.file, Kind::File {}, &r.who).await)
            }
            (Request::SetXattr(r), CallOutcome::Done {}) => {
                Reply::SetXattr(self.made_before(r.file, Kind::File {}, &r.who).await)
            }
            (Request::RemoveXattr(r), CallOutcome::Done {}) => {
                Reply::RemoveXattr(self.made_before(r.file, Kind::File {}, &r.who).await)
            }
            // The id is another call's.
            _ => refused(request, Error::Invalid {}),
        }
    }

    /// What `who` has made, linked or changed earlier, as it is now.
    pub(super) async fn made_before(
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

/// Is it durable when answered?
fn is_durable(request: &Request) -> bool {
    match request {
        Request::Create(r) => r.durable,
        Request::MakeNode(r) => r.durable,
        Request::Remove(r) => r.durable,
        Request::RemoveDirectory(r) => r.durable,
        Request::Rename(r) => r.durable,
        Request::Link(r) => r.durable,
        Request::OpenNew(r) => r.durable,
        Request::SetXattr(r) => r.durable,
        Request::RemoveXattr(r) => r.durable,
        _ => true,
    }
}

/// It was done just now, so its reply is stored, and durable if that was asked for. Of others that were
/// good nothing may have changed.
fn is_stored(reply: &Reply) -> bool {
    match reply {
        Reply::Create(r) => r.as_ref().is_ok_and(|created| created.new),
        Reply::OpenNew(r) => r.as_ref().is_ok_and(|held| held.created.new),
        Reply::MakeNode(r) | Reply::Link(r) => r.is_ok(),
        Reply::Remove(r) | Reply::RemoveDirectory(r) => r.is_ok(),
        _ => false,
    }
}

/// The same request, sent again, would fail in the same way, unless others change something.
fn is_final(error: Error) -> bool {
    !matches!(error, Error::Undelivered { .. } | Error::Damaged {} | Error::LostWrites {})
}

/// Why a request with a call id failed.
fn failure(reply: &Reply) -> Option<Error> {
    match reply {
        Reply::Create(r) => r.as_ref().err().copied(),
        Reply::OpenNew(r) => r.as_ref().err().copied(),
        Reply::MakeNode(r) | Reply::Link(r) | Reply::SetXattr(r) | Reply::RemoveXattr(r) => {
            r.as_ref().err().copied()
        }
        Reply::Remove(r) | Reply::RemoveDirectory(r) | Reply::Rename(r) => r.err(),
        _ => None,
    }
}

/// The reply to a call that was done, or is decided: a passing failure to tell it is no word that nothing was done.
fn told_again(request: &Request, reply: Reply) -> Reply {
    match failure(&reply) {
        Some(Error::Undelivered { why }) if why.is_transient() => {
            refused(request, Undelivered::Lost.into())
        }
        _ => reply,
    }
}

/// The reply that tells of a failure.
fn refused(request: &Request, error: Error) -> Reply {
    match request {
        Request::Create(_) => Reply::Create(Err(error)),
        Request::OpenNew(_) => Reply::OpenNew(Err(error)),
        Request::MakeNode(_) => Reply::MakeNode(Err(error)),
        Request::Remove(_) => Reply::Remove(Err(error)),
        Request::RemoveDirectory(_) => Reply::RemoveDirectory(Err(error)),
        Request::Rename(_) => Reply::Rename(Err(error)),
        Request::Link(_) => Reply::Link(Err(error)),
        Request::SetXattr(_) => Reply::SetXattr(Err(error)),
        Request::RemoveXattr(_) => Reply::RemoveXattr(Err(error)),
        _ => Reply::Undelivered(Undelivered::ProtocolMismatch),
    }
}

/// All that can be said of a file without a name.
fn removed(file: Handle, kind: Kind, who: &Credentials, now: Time) -> Attributes {
    let blank = Attributes::blank(file.ino, file.generation, kind, now);
    Attributes { uid: who.uid, gid: who.gid, ..blank }
}
