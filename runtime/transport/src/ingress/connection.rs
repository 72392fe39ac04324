//! The requests of one link of a client.

use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, select};
use runtime::context::Context;
use runtime::delivery::Delivery;
use runtime::host::undelivered_bytes;
use runtime::identity::ClientIdentity;
use runtime::ids::NodeId;
use runtime::protocol::{Protocol, RequestInfo, Retry, Undelivered};
use runtime::seal::HandleSeal;
use runtime::sync::Event;
use runtime::wire::{Decoder, Encoder, Wire as _, from_bytes};

use super::authentication::Admission;
use super::budget::{Account, BudgetShare, ClientBudget};
use super::forwarded::ForwardedCall;
use super::session::{Arrival, LinkEnd, SessionState};
use super::{Admitted, ClientIngress, Subtree};
use crate::fast_path::FrameOrigin;
use crate::frame::{
    FrameReader, LinkFrame, SubtreeWelcome, Welcome, frame_beside_calls, frame_of, kind,
};
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

/// A longer frame is read only when there is room for it.
const SMALL_FRAME: usize = 64 << 10;
/// How often a link that waits looks whether there is room.
const ROOM_PAUSE: Duration = Duration::from_millis(20);
/// How often its client gets a sign of life meanwhile.
const SIGN_INTERVAL: Duration = Duration::from_secs(1);

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

/// Where a link waits for room.
struct LinkRoom<'a> {
    context: &'a Context,
    budget: &'a Arc<ClientBudget>,
    account: Account,
    session: &'a SessionState,
    link: u64,
    outstanding: &'a Outstanding,
    replies: &'a ReplyQueue,
}

impl LinkRoom<'_> {
    /// Does the link not count any more?
    fn is_over(&self) -> bool {
        self.replies.is_broken() || !self.session.is_latest(self.link)
    }

    /// The next frame, and what it counts if it is a long one.
    async fn next_frame(
        &self,
        frames: &mut FrameReader,
    ) -> (io::Result<Option<LinkFrame>>, Option<BudgetShare>) {
        let mut share = None;
        match within(self.context, SILENCE_MAX, frames.peek()).await.flatten() {
            Ok(Some(header)) => {
                let bytes = header.head_length as usize + header.bulk_length as usize;
                if bytes > SMALL_FRAME {
                    share = self.wait(REQUEST_BYTES + bytes).await;
                    if share.is_none() {
                        return (Err(io::ErrorKind::ConnectionAborted.into()), None);
                    }
                }
            }
            Ok(None) => return (Ok(None), None),
            Err(error) => return (Err(error), None),
        }
        (within(self.context, SILENCE_MAX, frames.next()).await.flatten(), share)
    }

    /// Waits until there is room for this, on the link and among all clients; none if the link is
    /// over. The client hears from the server meanwhile, and does not give it up.
    async fn wait(&self, bytes: usize) -> Option<BudgetShare> {
        let mut told = self.context.now();
        // Only in a queue once the link has room: it would keep the others of its account waiting.
        let mut ticket = None;
        while !self.is_over() {
            let (ended, sent) = (self.outstanding.ended.next(), self.replies.sent());
            if ticket.is_none() && self.outstanding.has_room(bytes, self.replies) {
                if let Some(share) = self.budget.take(self.account, bytes) {
                    return Some(share);
                }
                ticket = Some(self.budget.queue(self.account, bytes));
            }
            let pause = pin!(self.context.sleep(ROOM_PAUSE));
            if let Some(ticket) = &mut ticket {
                if let Either::Left((share, _)) = select(ticket, pause).await {
                    return Some(share);
                }
            } else {
                let (ended, sent) = (pin!(ended), pin!(sent));
                select(select(ended, sent), pause).await;
            }
            let now = self.context.now();
            if self.replies.bytes() == 0 && now.saturating_sub(told) >= SIGN_INTERVAL {
                told = now;
                self.replies.push(frame_of(kind::PONG, &()));
            }
        }
        None
    }
}

/// The requests of one link, by whichever way they come.
struct LinkRequests<'a, P> {
    ingress: &'a ClientIngress<P>,
    context: &'a Context,
    identity: ClientIdentity,
    admission: Admission,
    subtree: Option<Rc<dyn Subtree<P>>>,
    session: Rc<SessionState>,
    link: u64,
    outstanding: Rc<Outstanding>,
    replies: Rc<ReplyQueue>,
    /// Requests for nodes that are elsewhere are refused.
    has_routes: bool,
}

/// Answers the requests of one link until it ends.
pub(super) async fn answer<P: Protocol>(
    ingress: &ClientIngress<P>,
    context: &Context,
    client: Admitted<P>,
) -> Result<(), LinkEnd> {
    let Admitted { admission, subtree, number, session, link, frames, writer, welcome } = client;
    let replies = Rc::new(ReplyQueue::default());
    let has_routes = !welcome.map.processes.is_empty();
    replies.push(welcome_frame(welcome, subtree.as_deref()));
    session.attach(link, replies.clone());
    context.task(replies.clone().send(context.clone(), writer));
    let requests = LinkRequests {
        ingress,
        context,
        identity: ClientIdentity { principal: admission.principal.clone(), number },
        admission,
        subtree,
        session,
        link,
        outstanding: Rc::default(),
        replies,
        has_routes,
    };
    let (by_link, by_fast) = (requests.take_all(frames), requests.take_fast());
    let outcome = match select(pin!(by_link), pin!(by_fast)).await {
        Either::Left((outcome, _)) | Either::Right((outcome, _)) => outcome,
    };
    requests.replies.close();
    outcome
}

impl<P: Protocol> LinkRequests<'_, P> {
    fn room(&self) -> LinkRoom<'_> {
        LinkRoom {
            context: self.context,
            budget: &self.ingress.port.budget,
            account: self.admission.account(),
            session: &self.session,
            link: self.link,
            outstanding: &self.outstanding,
            replies: &self.replies,
        }
    }

    /// May the client still ask, by this link?
    fn check(&self) -> Result<(), LinkEnd> {
        if !self.session.is_latest(self.link) {
            // What comes by an old link may be a copy of what has been done and forgotten.
            return Err(LinkEnd::Replaced);
        }
        if !self.ingress.port.authentication.still_holds(self.context, &self.admission) {
            return Err(LinkEnd::NoLongerAdmitted);
        }
        Ok(())
    }

    /// Takes what comes by the link itself, until it ends.
    async fn take_all(&self, mut frames: FrameReader) -> Result<(), LinkEnd> {
        let room = self.room();
        loop {
            let (next, share) = room.next_frame(&mut frames).await;
            self.check()?;
            let Some(frame) = next? else { return Ok(()) };
            match frame.header.kind {
                kind::REQUEST => self.take(frame, share, None).await?,
                kind::PING => {
                    self.session.acknowledge(frame.header.epoch);
                    self.replies.push(pong(self.ingress, self.context, &frame.head));
                }
                kind::OFFER => self.take_offer(&frame.head),
                kind::GOODBYE => {
                    self.ingress.forget(self.identity.number, &self.session);
                    return Ok(());
                }
                _ => {}
            }
        }
    }

    /// Takes what comes by the faster way, for as long as the link lasts.
    async fn take_fast(&self) -> Result<(), LinkEnd> {
        loop {
            let (frame, origin) = self.replies.fast.next().await;
            self.check()?;
            if frame.header.kind == kind::REQUEST {
                self.take(frame, None, Some(origin)).await?;
            }
        }
    }

    fn take_offer(&self, head: &[u8]) {
        let offer = (self.admission.account(), head);
        let replies = self.replies.clone();
        self.replies.fast.take_offer(self.context, &self.ingress.port.guard, offer, move |grant| {
            replies.push(frame_beside_calls(kind::GRANT, &grant));
        });
    }

    /// Takes a request; `share` is what it counts already, and `origin` the faster way by which it
    /// has come.
    async fn take(
        &self,
        frame: LinkFrame,
        mut share: Option<BudgetShare>,
        origin: Option<FrameOrigin>,
    ) -> Result<(), LinkEnd> {
        let (session, context) = (&self.session, self.context);
        session.acknowledge(frame.header.epoch);
        if frame.header.protocol == Delivery::ID {
            drop(share);
            let who = (&self.identity, self.admission.account());
            return self.ingress.receive_deposit(session, who, &frame);
        }
        let number = frame.header.call_id;
        let header = frame.header.of_reply();
        let to = NodeId(frame.header.to);
        let seal = self.subtree.as_ref().map(|subtree| &**subtree.seal());
        let decoded = decode::<P>(&frame, seal).and_then(|mut decoded| {
            decoded.request.admit(&self.identity)?;
            // A client with an old map is not sent on: it could not tell what was lost behind.
            let is_elsewhere = self.has_routes && !context.is_here(to);
            if is_elsewhere { Err(Undelivered::Unreachable) } else { Ok(decoded) }
        });
        let bytes = decoded.as_ref().map_or(0, |decoded| bytes_of(&decoded.request, &frame));
        let room = self.room();
        // Before the call is known: a copy of it may come by the next link meanwhile.
        match &mut share {
            // To wait again with what it has would make others wait for it.
            Some(share) => share.set(bytes),
            None => share = room.wait(bytes).await,
        }
        if room.is_over() {
            return Err(LinkEnd::Replaced);
        }
        // So may one by this link, once the faster way is over: that one is done.
        if origin.is_some_and(|origin| origin.is_over()) {
            return Ok(());
        }
        match session.arrive(number)? {
            Arrival::New => {}
            Arrival::Duplicate => return Ok(()),
            Arrival::Done(reply, share) => {
                self.replies.push_with(reply, share);
                return Ok(());
            }
        }
        let DecodedRequest { request, handles } = match decoded {
            Ok(decoded) => decoded,
            Err(why) => {
                session.answer(number, (header, undelivered_bytes(why)), false, share);
                return Ok(());
            }
        };
        self.outstanding.add(bytes);
        let keep = request.retry() != Retry::Idempotent;
        let seal = self.subtree.as_ref().map(|subtree| subtree.seal().clone());
        let forwarded = ForwardedCall::new(context, to, request.retry());
        let running = match &self.subtree {
            None => Either::Left(context.request::<P>(to, request)),
            Some(subtree) => Either::Right(subtree.clone().answer(context, handles, to, request)),
        };
        let (session, outstanding) = (session.clone(), self.outstanding.clone());
        let own = context.clone();
        context.task(async move {
            let mut out = Encoder::to_client(seal);
            running.await.put(&mut out);
            if let Some(forwarded) = forwarded {
                forwarded.explain(&own, &mut out).await;
            }
            session.answer(number, (header, out), keep, share);
            outstanding.end(bytes);
        });
        Ok(())
    }
}

/// Lets the client in; one of a subtree hears where it begins.
fn welcome_frame<P: Protocol>(welcome: Welcome, subtree: Option<&dyn Subtree<P>>) -> Vec<Bytes> {
    let Some(subtree) = subtree else { return frame_of(kind::WELCOME, &welcome) };
    let (ino, generation) = subtree.root();
    let generation = subtree.seal().seal(ino, generation);
    frame_of(kind::WELCOME, &SubtreeWelcome { welcome, ino, generation })
}

/// A request of a client, and the handles in it that a seal has opened.
pub(super) struct DecodedRequest<R> {
    pub(super) request: R,
    handles: Vec<(u64, u64)>,
}

/// Reads a request; `seal` opens the handles in it, if there is one.
pub(super) fn decode<P: Protocol>(
    frame: &LinkFrame,
    seal: Option<&HandleSeal>,
) -> Result<DecodedRequest<P::Request>, Undelivered> {
    let header = &frame.header;
    if header.protocol != P::ID {
        return Err(Undelivered::Refused);
    }
    if header.protocol_version != P::VERSION {
        return Err(Undelivered::ProtocolMismatch);
    }
    let mut input = Decoder::of_client(&frame.head, frame.bulk.clone(), seal);
    let request = P::Request::take(&mut input);
    let (has_wildcard, handles) = (input.has_wildcard(), input.take_opened());
    match (request, input.finish()) {
        // It would save the client from having to know the file.
        (Ok(_), Ok(())) if has_wildcard => Err(Undelivered::Refused),
        (Ok(request), Ok(())) => Ok(DecodedRequest { request, handles }),
        _ => Err(Undelivered::ProtocolMismatch),
    }
}

/// What a request counts until it is answered.
fn bytes_of(request: &impl RequestInfo, frame: &LinkFrame) -> usize {
    REQUEST_BYTES + frame.head.len() + frame.bulk.len() + capped(request.reply_bytes_max())
}

fn capped(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX).min(runtime::wire::BULK_LENGTH_MAX)
}

/// The answer to a PING: with the map, if that of the client is older.
fn pong<P>(ingress: &ClientIngress<P>, context: &Context, head: &[u8]) -> Vec<Bytes> {
    let known = from_bytes::<u64>(head).unwrap_or(u64::MAX);
    if known >= context.epoch().0 {
        return frame_of(kind::PONG, &());
    }
    frame_of(kind::PONG, &(ingress.port.map)(context))
}
