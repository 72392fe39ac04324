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
use runtime::sync::Event;
use runtime::wire::{Decoder, Encoder, Wire as _, from_bytes};

use super::authentication::Admission;
use super::budget::{Account, BudgetShare, ClientBudget};
use super::session::{Arrival, LinkEnd, SessionState};
use super::{Admitted, ClientIngress};
use crate::fast_path::FrameOrigin;
use crate::frame::{FrameHeader, FrameReader, LinkFrame, frame_of, frame_with, kind};
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
struct LinkRequests<'a> {
    ingress: &'a ClientIngress,
    context: &'a Context,
    identity: ClientIdentity,
    admission: Admission,
    session: Rc<SessionState>,
    link: u64,
    outstanding: Rc<Outstanding>,
    replies: Rc<ReplyQueue>,
    /// Requests for nodes that are elsewhere are refused.
    has_routes: bool,
}

/// Answers the requests of one link until it ends.
pub(super) async fn answer<P: Protocol>(
    ingress: &ClientIngress,
    context: &Context,
    client: Admitted,
) -> Result<(), LinkEnd> {
    let Admitted { admission, number, session, link, frames, writer, welcome } = client;
    let replies = Rc::new(ReplyQueue::default());
    replies.push(frame_of(kind::WELCOME, &welcome));
    session.attach(link, replies.clone());
    context.task(replies.clone().send(context.clone(), writer));
    let requests = LinkRequests {
        ingress,
        context,
        identity: ClientIdentity { principal: admission.principal.clone(), number },
        admission,
        session,
        link,
        outstanding: Rc::default(),
        replies,
        has_routes: !welcome.map.processes.is_empty(),
    };
    let (by_link, by_fast) = (requests.take_all::<P>(frames), requests.take_fast::<P>());
    let outcome = match select(pin!(by_link), pin!(by_fast)).await {
        Either::Left((outcome, _)) | Either::Right((outcome, _)) => outcome,
    };
    requests.replies.close();
    outcome
}

impl LinkRequests<'_> {
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
    async fn take_all<P: Protocol>(&self, mut frames: FrameReader) -> Result<(), LinkEnd> {
        let room = self.room();
        loop {
            let (next, share) = room.next_frame(&mut frames).await;
            self.check()?;
            let Some(frame) = next? else { return Ok(()) };
            match frame.header.kind {
                kind::REQUEST => self.take::<P>(frame, share, None).await?,
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
    async fn take_fast<P: Protocol>(&self) -> Result<(), LinkEnd> {
        loop {
            let (frame, origin) = self.replies.fast.next().await;
            self.check()?;
            if frame.header.kind == kind::REQUEST {
                self.take::<P>(frame, None, Some(origin)).await?;
            }
        }
    }

    fn take_offer(&self, head: &[u8]) {
        let offer = (self.admission.account(), head);
        let replies = self.replies.clone();
        self.replies.fast.take_offer(self.context, &self.ingress.port.guard, offer, move |grant| {
            let kind = kind::GRANT;
            let header = FrameHeader { kind, call_id: kind::NO_CALL, ..FrameHeader::default() };
            replies.push(frame_with(header, &grant));
        });
    }

    /// Takes a request; `share` is what it counts already, and `origin` the faster way by which it
    /// has come.
    async fn take<P: Protocol>(
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
        let request = decode::<P>(&frame).and_then(|mut request| {
            request.admit(&self.identity)?;
            // A client with an old map is not sent on: it could not tell what was lost behind.
            let is_elsewhere = self.has_routes && !context.is_here(to);
            if is_elsewhere { Err(Undelivered::Unreachable) } else { Ok(request) }
        });
        let bytes = request.as_ref().map_or(0, |request| bytes_of(request, &frame));
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
        let request = match request {
            Ok(request) => request,
            Err(why) => {
                session.answer(number, (header, undelivered_bytes(why)), false, share);
                return Ok(());
            }
        };
        self.outstanding.add(bytes);
        let keep = request.retry() != Retry::Idempotent;
        let (running, session, outstanding) =
            (context.request::<P>(to, request), session.clone(), self.outstanding.clone());
        context.task(async move {
            let mut out = Encoder::new();
            running.await.put(&mut out);
            session.answer(number, (header, out), keep, share);
            outstanding.end(bytes);
        });
        Ok(())
    }
}

pub(super) fn decode<P: Protocol>(frame: &LinkFrame) -> Result<P::Request, Undelivered> {
    let header = &frame.header;
    if header.protocol != P::ID {
        return Err(Undelivered::Refused);
    }
    if header.protocol_version != P::VERSION {
        return Err(Undelivered::ProtocolMismatch);
    }
    let mut input = Decoder::new(&frame.head, frame.bulk.clone());
    let request = P::Request::take(&mut input);
    let has_wildcard = input.has_wildcard();
    match (request, input.finish()) {
        // It would save the client from having to know the file.
        (Ok(_), Ok(())) if has_wildcard => Err(Undelivered::Refused),
        (Ok(request), Ok(())) => Ok(request),
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
fn pong(ingress: &ClientIngress, context: &Context, head: &[u8]) -> Vec<Bytes> {
    let known = from_bytes::<u64>(head).unwrap_or(u64::MAX);
    if known >= context.epoch().0 {
        return frame_of(kind::PONG, &());
    }
    frame_of(kind::PONG, &(ingress.port.map)(context))
}
