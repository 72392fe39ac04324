//! Requests on their way between threads and processes.

use std::rc::Rc;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use tokio::sync::oneshot;

use crate::host::Host;
use crate::ids::NodeId;
use crate::protocol::{Caller, Class, Protocol, Undelivered};
use crate::wire::{Decoder, Encoder, Wire as _};

/// The addressing around one request.
pub struct Envelope {
    /// The node that shall answer.
    pub to: NodeId,
    /// Who asks.
    pub caller: Caller,
    /// The priority of the request.
    pub class: Class,
    /// The asker's tracing span: the parent of the handler's.
    pub span: tracing::Span,
    /// The request itself.
    pub message: Box<dyn Message>,
}

impl Envelope {
    /// An envelope from the current tracing span.
    pub fn new(to: NodeId, caller: Caller, class: Class, message: Box<dyn Message>) -> Self {
        Self { to, caller, class, span: tracing::Span::current(), message }
    }
}

impl std::fmt::Debug for Envelope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Envelope").field("to", &self.to).finish_non_exhaustive()
    }
}

/// A request whose type the machine does not know.
pub trait Message: Send {
    /// Lets the node's server answer it, if it can do so at once; else gives it back.
    fn answer_now(self: Box<Self>, host: &Rc<Host>) -> Option<Box<dyn Message>>;
    /// Lets the node's server answer it.
    fn deliver(self: Box<Self>, host: Rc<Host>) -> LocalBoxFuture<'static, ()>;
    /// Answers in the server's place.
    fn refuse(self: Box<Self>, why: Undelivered);
    /// The number of its table.
    fn protocol(&self) -> u8;
    /// The version of its table.
    fn version(&self) -> u16;
    /// Its bytes.
    fn encode(&self, out: &mut Encoder);
    /// Answers with the bytes of a reply; `ProtocolMismatch` if they are none.
    fn answer_bytes(self: Box<Self>, reply: Decoder<'_>);
}

/// A request of `P` and the way back.
pub(crate) struct TypedRequest<P: Protocol> {
    pub(crate) caller: Caller,
    pub(crate) request: P::Request,
    pub(crate) reply: oneshot::Sender<P::Reply>,
}

impl<P: Protocol> Message for TypedRequest<P> {
    fn answer_now(self: Box<Self>, host: &Rc<Host>) -> Option<Box<dyn Message>> {
        let Some(reply) = Host::try_now::<P>(host, self.caller, &self.request) else {
            return Some(self);
        };
        // A notification has no receiver.
        let _ = self.reply.send(reply);
        None
    }

    fn deliver(self: Box<Self>, host: Rc<Host>) -> LocalBoxFuture<'static, ()> {
        async move {
            let reply = Host::run::<P>(host, self.caller, self.request).await;
            // A notification has no receiver.
            let _ = self.reply.send(reply);
        }
        .boxed_local()
    }

    fn refuse(self: Box<Self>, why: Undelivered) {
        let _ = self.reply.send(why.into());
    }

    fn protocol(&self) -> u8 {
        P::ID
    }

    fn version(&self) -> u16 {
        P::VERSION
    }

    fn encode(&self, out: &mut Encoder) {
        self.request.put(out);
    }

    fn answer_bytes(self: Box<Self>, mut reply: Decoder<'_>) {
        let taken = P::Reply::take(&mut reply);
        let complete = reply.finish();
        let answer = match (taken, complete) {
            (Ok(answer), Ok(())) => answer,
            _ => Undelivered::ProtocolMismatch.into(),
        };
        let _ = self.reply.send(answer);
    }
}
