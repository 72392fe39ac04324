//! The requests of one link of a client.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use runtime::context::Context;
use runtime::host::undelivered_bytes;
use runtime::identity::ClientIdentity;
use runtime::ids::NodeId;
use runtime::protocol::{Protocol, RequestInfo as _, Retry, Undelivered};
use runtime::sync::Event;
use runtime::wire::{Decoder, Encoder, Wire as _, from_bytes};

use super::session::{Arrival, LinkEnd};
use super::{Admitted, ClientIngress};
use crate::frame::{LinkFrame, frame_of, kind, pack};
use crate::replies::ReplyQueue;
use crate::time_limit::within;

/// Requests of one link that run at a time; past it the server stops reading from it.
const OUTSTANDING_MAX: usize = 512;
/// Bytes of requests that run and of replies that wait, on one link; past it the server stops
/// reading from it. One request is always let in.
const LINK_BYTES_MAX: usize = 64 << 20;
/// A link is closed after this silence: its client sends PING much more often.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// What a request takes besides its payload, about.
const REQUEST_BYTES: usize = 1024;

/// What runs on one link.
#[derive(Default)]
struct Outstanding {
    requests: std::cell::Cell<usize>,
    bytes: std::cell::Cell<usize>,
    ended: Event,
}

impl Outstanding {
    fn add(&self, bytes: usize) {
        self.requests.set(self.requests.get() + 1);
        self.bytes.set(self.bytes.get() + bytes);
    }

    fn end(&self, bytes: usize) {
        self.requests.set(self.requests.get() - 1);
        self.bytes.set(self.bytes.get() - bytes);
        self.ended.tell();
    }

    fn has_room(&self, bytes: usize, replies: &ReplyQueue) -> bool {
        let all = bytes + self.bytes.get() + replies.bytes();
        all == bytes || (all <= LINK_BYTES_MAX && self.requests.get() < OUTSTANDING_MAX)
    }
}

/// Answers the requests of one link until it ends.
pub(super) async fn answer<P: Protocol>(
    ingress: &ClientIngress,
    context: &Context,
    client: Admitted,
) -> Result<(), LinkEnd> {
    let Admitted { admission, number, session, link, mut frames, writer, welcome } = client;
    let identity = ClientIdentity { principal: admission.principal.clone(), number };
    let replies = Rc::new(ReplyQueue::default());
    replies.push(frame_of(kind::WELCOME, &welcome));
    session.attach(link, replies.clone());
    context.task(replies.clone().send(context.clone(), writer));
    let outstanding = Rc::new(Outstanding::default());
    let has_routes = !welcome.map.processes.is_empty();
    let outcome = loop {
        let next = within(context, SILENCE_MAX, frames.next()).await.flatten();
        if !session.is_latest(link) {
            // What comes by an old link may be a copy of what has been done and forgotten.
            break Err(LinkEnd::Replaced);
        }
        if !ingress.port.authentication.still_holds(context, &admission) {
            break Err(LinkEnd::NoLongerAdmitted);
        }
        let frame = match next {
            Ok(Some(frame)) => frame,
            Ok(None) => break Ok(()),
            Err(error) => break Err(error.into()),
        };
        match frame.header.kind {
            kind::REQUEST => {}
            kind::PING => {
                replies.push(pong(ingress, context, &frame.head));
                continue;
            }
            kind::GOODBYE => {
                ingress.forget(identity.number, &session);
                break Ok(());
            }
            _ => continue,
        }
        session.acknowledge(frame.header.epoch);
        let number = frame.header.call_id;
        let header = frame.header.of_reply();
        let to = NodeId(frame.header.to);
        let request = decode::<P>(&frame).and_then(|mut request| {
            request.admit(&identity)?;
            // A client with an old map is not sent on: it could not tell what was lost behind.
            let is_elsewhere = has_routes && !context.is_here(to);
            if is_elsewhere { Err(Undelivered::Unreachable) } else { Ok(request) }
        });
        let bytes = match &request {
            Ok(request) => REQUEST_BYTES + frame.bulk.len() + capped(request.reply_bytes_max()),
            Err(_) => 0,
        };
        // Before the call is known: a copy of it may come by the next link meanwhile.
        loop {
            let (ended, sent) = (outstanding.ended.next(), replies.sent());
            let is_over = replies.is_broken() || !session.is_latest(link);
            if is_over || outstanding.has_room(bytes, &replies) {
                break;
            }
            futures::future::select(std::pin::pin!(ended), std::pin::pin!(sent)).await;
        }
        if !session.is_latest(link) || replies.is_broken() {
            break Err(LinkEnd::Replaced);
        }
        match session.arrive(number) {
            Ok(Arrival::New) => {}
            Ok(Arrival::Duplicate) => continue,
            Ok(Arrival::Done(reply)) => {
                replies.push(reply);
                continue;
            }
            Err(error) => break Err(error),
        }
        let request = match request {
            Ok(request) => request,
            Err(why) => {
                session.answer(number, pack(header, undelivered_bytes(why)), false);
                continue;
            }
        };
        outstanding.add(bytes);
        let keep = request.retry() != Retry::Idempotent;
        let (running, session, outstanding) =
            (context.request::<P>(to, request), session.clone(), outstanding.clone());
        context.task(async move {
            let mut out = Encoder::new();
            running.await.put(&mut out);
            session.answer(number, pack(header, out), keep);
            outstanding.end(bytes);
        });
    };
    replies.close();
    outcome
}

fn decode<P: Protocol>(frame: &LinkFrame) -> Result<P::Request, Undelivered> {
    let header = &frame.header;
    if header.protocol != P::ID {
        return Err(Undelivered::Refused);
    }
    if header.protocol_version != P::VERSION {
        return Err(Undelivered::ProtocolMismatch);
    }
    let mut input = Decoder::new(&frame.head, frame.bulk.clone());
    let request = P::Request::take(&mut input).and_then(|request| {
        input.finish()?;
        Ok(request)
    });
    request.map_err(|_| Undelivered::ProtocolMismatch)
}

fn capped(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX).min(runtime::wire::BULK_LENGTH_MAX)
}

/// The answer to a PING: with the map, if that of the client is older.
fn pong(ingress: &ClientIngress, context: &Context, head: &[u8]) -> Vec<Bytes> {
    let known = from_bytes::<u64>(head).unwrap_or(u64::MAX);
    if known >= context.epoch().0 {
        return frame_of(kind::PONG, &());
    }
    frame_of(kind::PONG, &(ingress.port.map)(context))
}
