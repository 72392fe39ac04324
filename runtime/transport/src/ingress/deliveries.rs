//! Bytes that other processes have this one send to its clients, and those that these have left.

use std::rc::{Rc, Weak};

use futures::FutureExt as _;
use futures::future::{LocalBoxFuture, ready};
use runtime::context::Context;
use runtime::delivery::{Deliver, Delivery, Reply, Request};
use runtime::host::Server;
use runtime::protocol::{Caller, Protocol, Undelivered};
use runtime::wire::{Encoder, Wire as _};

use super::ClientIngress;
use crate::frame::{DeliveredBytes, FrameHeader, kind};

/// While more than this waits on the link of a client it is sent nothing besides replies.
const WAITING_BYTES_MAX: usize = 16 << 20;

/// Makes the ingress answer [`Deliver`] and `TakeDeposit` at the node of `context`.
pub(super) fn serve<P: Protocol>(context: &Context, ingress: &Rc<ClientIngress<P>>) {
    context.serve::<Delivery>(Rc::new(DeliveryServer(Rc::downgrade(ingress))));
}

/// It ends with the ingress.
struct DeliveryServer<P>(Weak<ClientIngress<P>>);

impl<P: Protocol> Server<Delivery> for DeliveryServer<P> {
    fn handle(self: Rc<Self>, caller: Caller, request: Request) -> LocalBoxFuture<'static, Reply> {
        let reply = match (self.0.upgrade(), request) {
            (Some(ingress), Request::Deliver(request)) if !caller.is_client() => {
                Reply::Deliver(Ok(ingress.deliver(request)))
            }
            (Some(ingress), Request::TakeDeposit(request)) if !caller.is_client() => {
                Reply::TakeDeposit(Ok(ingress.take_deposit(&request)))
            }
            _ => Undelivered::Refused.into(),
        };
        ready(reply).boxed_local()
    }
}

impl<P: Protocol> ClientIngress<P> {
    /// Sends bytes to a client; false if it has no link with room for them.
    fn deliver(&self, request: Deliver) -> bool {
        let Deliver { destination, parts } = request;
        let client = destination.client;
        let sessions = self.sessions.borrow();
        let mut of_client = sessions.0.range((client, 0)..=(client, u128::MAX));
        let Some((_, (_, session))) = of_client.next() else {
            return false;
        };
        let bytes: usize = parts.iter().map(|part| part.data.len()).sum();
        let frame = || {
            let bytes = DeliveredBytes { execution: destination.execution, parts };
            let kind = kind::DELIVERY;
            let call_id = destination.transfer;
            let mut body = Encoder::new();
            bytes.put(&mut body);
            (FrameHeader { kind, call_id, ..FrameHeader::default() }, body)
        };
        let is_sent = session.deliver(frame, WAITING_BYTES_MAX);
        if is_sent {
            self.port.guard.note_delivered(bytes as u64);
        }
        is_sent
    }
}
