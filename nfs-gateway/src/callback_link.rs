//! Calls to a client over a connection that the client has opened (RFC 8881 section 2.10.3.1): the
//! connection routes replies by their XID to the callers here.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures::channel::oneshot;
use futures::future::{Either, select};
use runtime::Context;

use crate::record::RpcRecord;
use crate::rpc::{self, CallbackCall, ReplyOutcome};
use crate::signal::WakerSlot;

/// Calls that wait for their reply on one connection, at most.
const CALLS_MAX: usize = 64;
/// A client answers a call within this time, or the connection counts as broken for calls.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(3);

/// Why a call has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CallbackLinkError {
    #[error("the connection is closed")]
    Closed,
    #[error("too many calls wait on the connection")]
    Busy,
    #[error("the client does not answer")]
    TimedOut,
    #[error("the client refuses the call")]
    Refused,
}

/// The calls to the client of one connection.
#[derive(Debug, Default)]
pub(crate) struct CallbackLink {
    writer: Rc<WakerSlot>,
    /// Records to be sent.
    calls: RefCell<VecDeque<Bytes>>,
    waiting: RefCell<BTreeMap<u32, oneshot::Sender<ReplyOutcome>>>,
    next_xid: Cell<u32>,
    closed: Cell<bool>,
    /// The client has answered a call.
    proven: Cell<bool>,
}

/// Forgets a call when its caller stops waiting.
struct PendingCallback<'a>(&'a CallbackLink, u32);

impl Drop for PendingCallback<'_> {
    fn drop(&mut self) {
        self.0.waiting.borrow_mut().remove(&self.1);
    }
}

impl CallbackLink {
    /// The calls of a connection whose writer is woken by `writer`.
    pub(crate) fn new(writer: Rc<WakerSlot>) -> Self {
        Self { writer, ..Self::default() }
    }

    /// Has the client answered a call, and is the connection open?
    pub(crate) fn is_proven(&self) -> bool {
        self.proven.get() && !self.closed.get()
    }

    /// Is nothing more sent?
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Fails all calls, also later ones.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        self.calls.take();
        self.waiting.take();
    }

    /// Sends a call and returns its result.
    pub(crate) async fn call(
        &self,
        ctx: &Context,
        call: CallbackCall<'_>,
    ) -> Result<Bytes, CallbackLinkError> {
        if self.closed.get() {
            return Err(CallbackLinkError::Closed);
        }
        if self.waiting.borrow().len() >= CALLS_MAX {
            return Err(CallbackLinkError::Busy);
        }
        let xid = self.next_xid.get();
        self.next_xid.set(xid.wrapping_add(1));
        let (sender, reply) = oneshot::channel();
        self.waiting.borrow_mut().insert(xid, sender);
        let _pending = PendingCallback(self, xid);
        self.calls.borrow_mut().push_back(rpc::callback(xid, call));
        self.writer.wake();
        match select(reply, pin!(ctx.sleep(CALL_TIMEOUT))).await {
            Either::Left((Ok(Ok(result)), _)) => {
                self.proven.set(true);
                Ok(result)
            }
            Either::Left((Ok(Err(_)), _)) => Err(CallbackLinkError::Refused),
            Either::Left((Err(_), _)) => Err(CallbackLinkError::Closed),
            Either::Right(_) => Err(CallbackLinkError::TimedOut),
        }
    }

    /// Passes a reply on to its caller; returns a record that is none. A reply that is not awaited
    /// (any more) is ignored.
    pub(crate) fn take_reply(&self, record: RpcRecord) -> Option<RpcRecord> {
        if !rpc::is_reply(&record) {
            return Some(record);
        }
        if let Some((xid, outcome)) = rpc::callback_reply(record)
            && let Some(waiting) = self.waiting.borrow_mut().remove(&xid)
        {
            let _ = waiting.send(outcome);
        }
        None
    }

    /// Is there a call to be sent?
    pub(crate) fn has_calls(&self) -> bool {
        !self.calls.borrow().is_empty()
    }

    /// Takes the calls to be sent.
    pub(crate) fn take_calls(&self) -> VecDeque<Bytes> {
        self.calls.take()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use machine_emu::{World, WorldShape};
    use runtime::NodeId;

    use super::*;

    const CALL: CallbackCall<'static> =
        CallbackCall { program: 1, credential: (0, &[]), procedure: 0, arguments: &[] };

    #[test]
    fn calls_beyond_the_limit_are_refused_and_a_dropped_one_makes_room() {
        let world = World::new(1, WorldShape { fs_nodes: 1, disk_nodes: 0 });
        let ctx = world.context(NodeId::application(0));
        let link = CallbackLink::default();
        let mut calls: Vec<_> = (0..CALLS_MAX).map(|_| Box::pin(link.call(&ctx, CALL))).collect();
        for call in &mut calls {
            assert!(call.as_mut().now_or_never().is_none());
        }
        assert_eq!(link.call(&ctx, CALL).now_or_never(), Some(Err(CallbackLinkError::Busy)));
        calls.pop();
        let mut last = Box::pin(link.call(&ctx, CALL));
        assert!(last.as_mut().now_or_never().is_none());
        link.close();
        assert_eq!(last.now_or_never(), Some(Err(CallbackLinkError::Closed)));
        assert_eq!(link.call(&ctx, CALL).now_or_never(), Some(Err(CallbackLinkError::Closed)));
    }
}
