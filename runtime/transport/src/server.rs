//! The serving side: other processes ask the nodes of this one.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::{AbortHandle, Abortable, Either, select};

use super::fast_path::Serving;
use super::frame::{FrameHeader, FrameReader, LinkFrame, PeerHello, ServerHello, kind, pack};
use super::guard::{Guard, Refusal};
use runtime::context::Context;
use runtime::embedded::connections_within_limit;
use runtime::host::undelivered_bytes;
use runtime::ids::{NodeId, VolumeId};
use runtime::net::{ByteStream, Listener, StreamWriter};
use runtime::protocol::{Caller, Undelivered};
use runtime::sync::{Event, Limit};
use runtime::wire::{Encoder, Wire as _, from_bytes};

/// Requests of one connection that run at a time; past it the server stops reading from it.
const OUTSTANDING_MAX: usize = 1024;

/// A connection of another process is closed after this silence: each sends PING
/// frames much more often.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Time limit for a connection to introduce itself.
const HELLO_TIME_MAX: Duration = Duration::from_secs(2);

/// Connections that have not introduced themselves yet, at most: the oldest goes when another
/// comes.
const STRANGERS_MAX: usize = 256;
/// Connections of other processes, at most, as far as the limit of open files allows: each thread
/// of a process makes one.
const LINKS_MAX: usize = 4096;
/// The same of clients of this host.
const CLIENTS_MAX: usize = 4096;
/// The pause after a connection could not be accepted, as where the process has too many open
/// files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Lets clients of this host ask, for as long as the machine lives.
pub async fn serve(context: Context, mut listener: Box<dyn Listener>) {
    let (clients_max, clients) = (connections_within_limit(CLIENTS_MAX), Rc::new(Cell::new(0)));
    loop {
        let stream = match listener.accept().await {
            Ok(stream) if clients.get() < clients_max => stream,
            Ok(_) => {
                tracing::warn!("a client is refused: there are {clients_max} connections already");
                continue;
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection of a client; trying again");
                context.sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        clients.set(clients.get() + 1);
        let (served, clients) = (context.clone(), clients.clone());
        context.task(async move {
            let frames = FrameReader::new(stream.reader);
            if let Err(error) = connection(served, frames, stream.writer, None).await {
                tracing::debug!(%error, "a connection ended with an error");
            }
            clients.set(clients.get() - 1);
        });
    }
}

/// What other processes have to know of this one to be answered.
#[derive(Debug)]
pub struct LocalProcess {
    /// The volume.
    pub volume: VolumeId,
    /// The number of this process.
    pub number: u32,
    /// Its present life; 0 if it has none.
    pub incarnation: AtomicU64,
    /// How connections are protected.
    pub guard: Arc<Guard>,
}

/// Serves the other processes of the volume, for as long as the machine lives. A peer that does not
/// prove what [`LocalProcess::guard`] asks for, or names another incarnation than that of `me`, is
/// refused.
pub async fn serve_processes(
    context: Context,
    mut listener: Box<dyn Listener>,
    me: Arc<LocalProcess>,
) {
    let gate = Rc::new(AcceptGate::default());
    loop {
        match listener.accept().await {
            Ok(stream) => gate.clone().come(&context, stream, &me),
            Err(error) => {
                me.guard.refuse("this host", Refusal::TooManyConnections, &error);
                context.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Those who have come and not introduced themselves, and the number of those who have.
#[derive(Default)]
struct AcceptGate {
    next: Cell<u64>,
    strangers: RefCell<VecDeque<(u64, AbortHandle)>>,
    links: Cell<usize>,
}

impl AcceptGate {
    /// Deals with one connection, in a task of its own.
    fn come(self: Rc<Self>, context: &Context, stream: ByteStream, me: &Arc<LocalProcess>) {
        let number = self.next.replace(self.next.get() + 1);
        let (abort, aborted) = AbortHandle::new_pair();
        let mut strangers = self.strangers.borrow_mut();
        if strangers.len() >= STRANGERS_MAX
            && let Some((_, oldest)) = strangers.pop_front()
        {
            oldest.abort();
        }
        strangers.push_back((number, abort));
        drop(strangers);
        let (served, me, gate) = (context.clone(), me.clone(), self);
        context.task(async move {
            let peer = stream.peer.clone();
            let coming = Abortable::new(introduce(&served, stream, &me), aborted).await;
            let links_max = connections_within_limit(LINKS_MAX);
            gate.strangers.borrow_mut().retain(|(other, _)| *other != number);
            let crowded = (Refusal::TooManyConnections, io::ErrorKind::QuotaExceeded.into());
            let (frames, writer, hello) = match coming.unwrap_or(Err(crowded)) {
                Ok(_) if gate.links.get() >= links_max => {
                    let error = io::ErrorKind::QuotaExceeded.into();
                    return me.guard.refuse(&peer, Refusal::TooManyConnections, &error);
                }
                Ok(introduced) => introduced,
                Err((why, error)) => return me.guard.refuse(&peer, why, &error),
            };
            me.guard.note_let_in();
            gate.links.set(gate.links.get() + 1);
            let fast_path = Serving::new(me.guard.clone(), hello);
            let ended = connection(served, frames, writer, Some(fast_path)).await;
            gate.links.set(gate.links.get() - 1);
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection ended with an error");
                if let Some(why) = Refusal::of(&error) {
                    me.guard.refuse(&peer, why, &error);
                }
            }
        });
    }
}

type IntroducedPeer = (FrameReader, Box<dyn StreamWriter>, PeerHello);

/// Limits the time for a process to prove who it is and to name its peer.
async fn introduce(
    context: &Context,
    stream: ByteStream,
    me: &LocalProcess,
) -> Result<IntroducedPeer, (Refusal, io::Error)> {
    let coming = within(context, HELLO_TIME_MAX, hello(stream, me).boxed_local());
    coming.await.unwrap_or_else(|error| Err((Refusal::Silent, error)))
}

/// Waits for a process to introduce itself.
async fn hello(
    stream: ByteStream,
    me: &LocalProcess,
) -> Result<IntroducedPeer, (Refusal, io::Error)> {
    let refused = |why| (why, io::Error::from(io::ErrorKind::ConnectionRefused));
    let (stream, proven) =
        me.guard.receive(stream).await.map_err(|error| (Refusal::Unauthenticated, error))?;
    let mut frames = FrameReader::new(stream.reader);
    let first = frames.first().await.map_err(|error| (Refusal::Broken, error))?;
    let first = first.filter(|first| first.header.kind == kind::HELLO);
    let hello = first.and_then(|first| from_bytes::<PeerHello>(&first.head).ok());
    let hello = hello.ok_or_else(|| refused(Refusal::Broken))?;
    if !proven.may_be(hello.process) {
        return Err(refused(Refusal::Name));
    }
    let is_for_me = hello.volume == me.volume
        && hello.wanted == me.number
        && hello.wanted_incarnation != 0
        && hello.wanted_incarnation == me.incarnation.load(Relaxed);
    if is_for_me { Ok((frames, stream.writer, hello)) } else { Err(refused(Refusal::Incarnation)) }
}

async fn within<T>(
    context: &Context,
    duration: Duration,
    work: impl Future<Output = T>,
) -> io::Result<T> {
    match select(pin!(work), context.sleep(duration)).await {
        Either::Left((done, _)) => Ok(done),
        Either::Right(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

async fn connection(
    context: Context,
    mut frames: FrameReader,
    writer: Box<dyn StreamWriter>,
    mut process: Option<Serving>,
) -> io::Result<()> {
    let is_process = process.is_some();
    let replies = Rc::new(ReplyQueue::default());
    let mut greeting = Encoder::new();
    ServerHello {
        fs_nodes: context.fs_nodes(),
        disk_nodes: context.disk_nodes(),
        epoch: context.epoch().0,
    }
    .put(&mut greeting);
    replies.push(pack(FrameHeader { kind: kind::GREETING, ..FrameHeader::default() }, greeting));
    context.task(replies.clone().send(writer));

    let running = Rc::new(Limit::new(OUTSTANDING_MAX, 1));
    let outcome = loop {
        let next = if is_process {
            within(&context, SILENCE_MAX, frames.next()).await.flatten()
        } else {
            frames.next().await
        };
        let frame = match next {
            Ok(Some(frame)) => frame,
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        };
        if frame.header.kind == kind::PING {
            replies.push(pack(
                FrameHeader { kind: kind::PONG, ..FrameHeader::default() },
                Encoder::new(),
            ));
            continue;
        }
        if frame.header.kind == kind::OFFER
            && let Some(fast_path) = &mut process
        {
            let replies = replies.clone();
            fast_path.take_offer(&context, &frame, move |grant| {
                let mut head = Encoder::new();
                grant.put(&mut head);
                let header = FrameHeader {
                    kind: kind::GRANT,
                    call_id: kind::NO_CALL,
                    ..FrameHeader::default()
                };
                replies.push(pack(header, head));
            });
            continue;
        }
        if running.acquire().await.map(std::mem::forget).is_none() {
            break Err(io::ErrorKind::OutOfMemory.into());
        }
        let (asked, running, replies) = (context.clone(), running.clone(), replies.clone());
        context.task(async move {
            replies.push(answer(&asked, frame, is_process).await);
            running.put_back();
        });
    };
    replies.close();
    outcome
}

async fn answer(
    context: &Context,
    LinkFrame { header, head, bulk }: LinkFrame,
    is_process: bool,
) -> Vec<Bytes> {
    let caller = if is_process {
        header.caller()
    } else {
        // A client's node number is its own affair; that it has none here keeps it from being taken
        // for one of ours. It knows nothing of epochs: what it asks is asked when it comes.
        Caller { node: context.node(), epoch: context.epoch() }
    };
    let class = header.class();
    let to = NodeId(header.to);
    let table = (header.protocol, header.protocol_version);
    // A process that looks for a node in the wrong place has old routes; it is not sent on.
    let reply = if is_process && !context.is_here(to) {
        undelivered_bytes(Undelivered::Unreachable)
    } else {
        runtime::client_handle::answer_bytes(context, caller, to, class, table, head, bulk).await
    };
    pack(header.of_reply(), reply)
}

/// Replies on their way out. Bounded by the outstanding requests of the connection.
#[derive(Default)]
struct ReplyQueue {
    waiting: RefCell<VecDeque<Vec<Bytes>>>,
    closed: Cell<bool>,
    changed: Event,
}

impl ReplyQueue {
    fn push(&self, parts: Vec<Bytes>) {
        self.waiting.borrow_mut().push_back(parts);
        self.changed.tell();
    }

    fn close(&self) {
        self.closed.set(true);
        self.changed.tell();
    }

    async fn send(self: Rc<Self>, mut writer: Box<dyn StreamWriter>) {
        loop {
            let changed = self.changed.next();
            // Everything that waits goes out in one call.
            let parts: Vec<Bytes> = self.waiting.take().into_iter().flatten().collect();
            if parts.is_empty() {
                if self.closed.get() {
                    return;
                }
                changed.await;
            } else if writer.write(parts).await.is_err() {
                // The reading side notices the broken stream too and ends the connection.
                return;
            }
        }
    }
}
