//! Sends callbacks: over any connection that is bound to a session of the client, in a slot of that
//! session.

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;

use super::wire::{self, CallbackAnswer, CallbackError, CallbackOperation};
use crate::callback_link::{CallbackLink, CallbackLinkError};
use crate::rpc::CallbackCall;
use crate::v4::limits::{CALLBACKS_WAITING_MAX, SESSIONS_PER_CLIENT_MAX};
use crate::v4::state::{Nfs4State, SlotOutcome, TakenSlot};
use crate::v4::types::SessionId;

const CB_NULL: u32 = 0;
const CB_COMPOUND: u32 = 1;

/// A slot of a back channel; it is free again when this is dropped.
struct CallbackSlotGuard<'a> {
    state: &'a Nfs4State,
    session: SessionId,
    taken: TakenSlot,
    /// What was sent and is not answered yet.
    sent: Cell<Option<Bytes>>,
}

impl Drop for CallbackSlotGuard<'_> {
    fn drop(&mut self) {
        let mut tables = self.state.tables_mut();
        let sent = self.sent.take().or_else(|| self.taken.unanswered.take());
        if let Some(request) = sent {
            let outcome = SlotOutcome::Unanswered(request);
            tables.sessions.end_callback(&self.session, self.taken.slot, outcome);
        }
        if let Ok(back) = tables.sessions.back(&self.session) {
            back.release_slot(self.taken.slot);
        }
        drop(tables);
        self.state.callback_slot_freed.tell();
    }
}

/// A callback that waits for a slot.
struct WaitingCallback<'a>(&'a Nfs4State);

impl<'a> WaitingCallback<'a> {
    fn new(state: &'a Nfs4State) -> Result<Self, CallbackError> {
        let waiting = state.callbacks_waiting.get();
        if waiting >= CALLBACKS_WAITING_MAX {
            return Err(CallbackError::Busy);
        }
        state.callbacks_waiting.set(waiting + 1);
        Ok(Self(state))
    }
}

impl Drop for WaitingCallback<'_> {
    fn drop(&mut self) {
        self.0.callbacks_waiting.set(self.0.callbacks_waiting.get() - 1);
    }
}

//= rfc8881 2.10.3.1: "the server can use any of the connections associated with the backchannel"
/// Sends an operation to `client` over any of its sessions, and returns its result.
pub(crate) async fn send(
    state: &Nfs4State,
    client: u64,
    operation: CallbackOperation<'_>,
) -> Result<Bytes, CallbackError> {
    // A session that fails has no path any more, so the next attempt is over another one.
    for _ in 0..=SESSIONS_PER_CLIENT_MAX {
        let slot = take_slot(state, client).await?;
        match send_in(slot, operation).await {
            Err(CallbackError::PathDown) => {}
            done => return done,
        }
    }
    Err(CallbackError::PathDown)
}

/// Takes a slot of any session of `client`, when one is free.
async fn take_slot(state: &Nfs4State, client: u64) -> Result<CallbackSlotGuard<'_>, CallbackError> {
    let mut waiting = None;
    loop {
        let freed = {
            let mut tables = state.tables_mut();
            if let Some((session, taken)) = tables.sessions.take_callback_slot(client) {
                return Ok(CallbackSlotGuard { state, session, taken, sent: Cell::default() });
            }
            if !tables.sessions.has_path(client) {
                return Err(CallbackError::PathDown);
            }
            state.callback_slot_freed.next()
        };
        if waiting.is_none() {
            waiting = Some(WaitingCallback::new(state)?);
        }
        freed.await;
    }
}

/// Sends an operation in a slot, after a callback of the slot that was not answered.
async fn send_in(
    mut slot: CallbackSlotGuard<'_>,
    operation: CallbackOperation<'_>,
) -> Result<Bytes, CallbackError> {
    if let Some(request) = slot.taken.unanswered.take() {
        // Whatever its result is, it comes too late.
        match slot.exchange(request).await? {
            CallbackAnswer::Done(_) => {}
            CallbackAnswer::NotBegun => return Err(CallbackError::Delayed),
            CallbackAnswer::OutOfSequence => return Err(CallbackError::PathDown),
        }
    }
    let minor = slot.minor().ok_or(CallbackError::PathDown)?;
    let request = wire::encode(minor, &slot.session, &slot.taken, operation);
    match slot.exchange(request).await? {
        CallbackAnswer::Done(result) => result,
        CallbackAnswer::NotBegun => Err(CallbackError::Delayed),
        CallbackAnswer::OutOfSequence => Err(CallbackError::PathDown),
    }
}

impl CallbackSlotGuard<'_> {
    fn minor(&self) -> Option<u32> {
        let mut tables = self.state.tables_mut();
        tables.sessions.back(&self.session).ok().map(|back| back.attrs.minor)
    }

    //= rfc8881 2.10.6.2: a request is sent again as it is, with its slot and sequence id
    /// Sends `request` over one connection of the session after another, until it is answered.
    async fn exchange(&mut self, request: Bytes) -> Result<CallbackAnswer, CallbackError> {
        self.sent.set(Some(request.clone()));
        while let Some(link) = self.link() {
            match call(self.state, &self.session, &link, CB_COMPOUND, &request).await {
                Ok(result) => {
                    self.sent.set(None);
                    let answer = wire::decode(result, &self.taken);
                    self.end(&answer);
                    return Ok(answer);
                }
                Err(CallbackLinkError::Busy) => return Err(CallbackError::Busy),
                Err(error) => self.unbind(&link, error),
            }
        }
        Err(CallbackError::PathDown)
    }

    /// The connection to try next.
    fn link(&self) -> Option<Rc<CallbackLink>> {
        let mut tables = self.state.tables_mut();
        let back = tables.sessions.back(&self.session).ok()?;
        if back.has_path() { back.link() } else { None }
    }

    fn unbind(&self, link: &Rc<CallbackLink>, error: CallbackLinkError) {
        tracing::debug!(target: "mdfs::nfs", %error, "a callback over a connection has failed");
        if let Ok(back) = self.state.tables_mut().sessions.back(&self.session) {
            back.unbind(link);
        }
    }

    /// Records the answer in the slot.
    fn end(&mut self, answer: &CallbackAnswer) {
        let mut tables = self.state.tables_mut();
        let outcome = match answer {
            CallbackAnswer::Done(_) => {
                self.taken.sequence = self.taken.sequence.wrapping_add(1);
                SlotOutcome::Replied
            }
            CallbackAnswer::NotBegun => SlotOutcome::NotBegun,
            CallbackAnswer::OutOfSequence => {
                tracing::warn!(target: "mdfs::nfs", "an NFS client refuses callbacks of a session: it must create a new one");
                if let Ok(back) = tables.sessions.back(&self.session) {
                    back.fail();
                }
                SlotOutcome::NotBegun
            }
        };
        tables.sessions.end_callback(&self.session, self.taken.slot, outcome);
    }
}

/// Calls a procedure of the callback program over `link`, as the session wants it.
async fn call(
    state: &Nfs4State,
    session: &SessionId,
    link: &CallbackLink,
    procedure: u32,
    arguments: &[u8],
) -> Result<Bytes, CallbackLinkError> {
    let attrs = {
        let mut tables = state.tables_mut();
        let back = tables.sessions.back(session).map_err(|_| CallbackLinkError::Closed)?;
        back.attrs.clone()
    };
    let (flavour, body) = attrs.credential.as_ref().ok_or(CallbackLinkError::Closed)?;
    let credential = (*flavour, &body[..]);
    let call = CallbackCall { program: attrs.program, credential, procedure, arguments };
    link.call(&state.ctx, call).await
}

/// Calls the NULL procedure over a connection that was bound to `session`. Delegations are granted
/// only to clients that have answered a call, and a connection over which none is answered is
/// unbound.
pub(crate) fn probe(state: &Rc<Nfs4State>, session: SessionId, link: Rc<CallbackLink>) {
    let state = state.clone();
    state.ctx.clone().task(async move {
        if let Err(error) = call(&state, &session, &link, CB_NULL, &[]).await {
            tracing::debug!(target: "mdfs::nfs", %error, "a client answers no callbacks");
            if let Ok(back) = state.tables_mut().sessions.back(&session) {
                back.unbind(&link);
            }
        }
    });
}
