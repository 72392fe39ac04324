//! The serving side: other processes ask the nodes of this one.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::{AbortHandle, AbortRegistration, Abortable};

use super::fast_path::Serving;
use super::frame::{
    ClientHello, FrameReader, LinkFrame, PeerHello, ServerHello, frame_beside_calls, frame_of,
    kind, pack,
};
use super::guard::{Guard, PeerIdentity, Refusal};
use super::ingress::{ClientIngress, ClientPort};
use super::pending::PendingConnections;
use super::replies::ReplyQueue;
use super::time_limit::{ACCEPT_PAUSE, HELLO_TIME_MAX, within};
use runtime::context::Context;
use runtime::embedded::connections_within_limit;
use runtime::host::undelivered_bytes;
use runtime::ids::{NodeId, VolumeId};
use runtime::net::{ByteStream, Listener, StreamWriter};
use runtime::protocol::{Protocol, Undelivered};
use runtime::sync::Limit;
use runtime::wire::from_bytes;

/// Requests of one connection that run at a time; past it the server stops reading from it.
const OUTSTANDING_MAX: usize = 1024;

/// A connection of another process is closed after this silence: each sends PING
/// frames much more often.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Connections of other processes, at most, as far as the limit of open files allows: each thread
/// of a process makes one.
const LINKS_MAX: usize = 4096;

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

/// Serves the other processes of the volume, and clients with requests of `P` as `port` says, for
/// as long as the machine lives. A process that does not prove what [`LocalProcess::guard`] asks
/// for, or names another incarnation than that of `me`, is refused.
pub async fn serve_processes<P: Protocol>(
    context: Context,
    mut listener: Box<dyn Listener>,
    me: Arc<LocalProcess>,
    port: Option<ClientPort<P>>,
) {
    let gate = Rc::new(AcceptGate {
        ingress: port.map(|port| ClientIngress::new(&context, port)),
        pending: PendingConnections::default(),
        links: Cell::default(),
        open: RefCell::default(),
    });
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

/// A process, its incarnation, and which of its links.
type LinkKey = (u32, u64, u64);

/// Those who have come and not introduced themselves, and the number of those who have.
struct AcceptGate<P> {
    pending: PendingConnections,
    links: Cell<usize>,
    /// Ends the latest connection of each link.
    open: RefCell<BTreeMap<LinkKey, AbortHandle>>,
    /// Lets clients in, if they may come.
    ingress: Option<Rc<ClientIngress<P>>>,
}

impl<P: Protocol> AcceptGate<P> {
    /// Deals with one connection, in a task of its own.
    fn come(self: Rc<Self>, context: &Context, stream: ByteStream, me: &Arc<LocalProcess>) {
        let (served, me, gate) = (context.clone(), me.clone(), self);
        context.task(async move {
            let peer = stream.peer.clone();
            let coming = gate.pending.wait_for(introduce(&served, stream, &me)).await;
            let links_max = connections_within_limit(LINKS_MAX);
            let crowded = (Refusal::TooManyConnections, io::ErrorKind::QuotaExceeded.into());
            let (frames, writer, hello) = match coming.unwrap_or(Err(crowded)) {
                Ok(IntroducedPeer::Client(frames, writer, hello, proven)) => {
                    if let Some(ingress) = &gate.ingress {
                        let link = (frames, writer);
                        ingress.converse(&served, link, hello, (proven, peer)).await;
                    }
                    return;
                }
                Ok(_) if gate.links.get() >= links_max => {
                    let error = io::ErrorKind::QuotaExceeded.into();
                    return me.guard.refuse(&peer, Refusal::TooManyConnections, &error);
                }
                Ok(IntroducedPeer::Process(frames, writer, hello)) => (frames, writer, hello),
                Err((why, error)) => return me.guard.refuse(&peer, why, &error),
            };
            me.guard.note_let_in();
            gate.links.set(gate.links.get() + 1);
            let link = (hello.process, hello.incarnation, hello.link);
            let latest = gate.replace(link);
            let fast_path = Serving::new(me.guard.clone(), hello);
            let connection = connection(served, frames, writer, fast_path);
            let ended = Abortable::new(connection, latest).await;
            gate.links.set(gate.links.get() - 1);
            // One that a later one has replaced leaves that alone.
            let Ok(ended) = ended else { return };
            gate.open.borrow_mut().remove(&link);
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection ended with an error");
                if let Some(why) = Refusal::of(&error) {
                    me.guard.refuse(&peer, why, &error);
                }
            }
        });
    }
}

impl<P> AcceptGate<P> {
    /// A connection of `link` has come. What an older one of it has brought and was not begun is
    /// dropped: its asker was told that it is lost, may ask again by this one, and must not have
    /// done last what it asked first.
    fn replace(&self, link: LinkKey) -> AbortRegistration {
        let (abort, latest) = AbortHandle::new_pair();
        if let Some(older) = self.open.borrow_mut().insert(link, abort) {
            older.abort();
        }
        latest
    }
}

/// Who has come.
enum IntroducedPeer {
    Process(FrameReader, Box<dyn StreamWriter>, PeerHello),
    Client(FrameReader, Box<dyn StreamWriter>, ClientHello, PeerIdentity),
}

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
    let first = first.ok_or_else(|| refused(Refusal::Broken))?;
    if first.header.kind == kind::CLIENT_HELLO {
        let hello = from_bytes(&first.head).map_err(|_| refused(Refusal::Broken))?;
        return Ok(IntroducedPeer::Client(frames, stream.writer, hello, proven));
    }
    let hello = from_bytes::<PeerHello>(&first.head).ok();
    let hello = hello.filter(|_| first.header.kind == kind::HELLO);
    let hello = hello.ok_or_else(|| refused(Refusal::Broken))?;
    if !proven.may_be(hello.process) {
        return Err(refused(Refusal::Name));
    }
    let is_for_me = hello.volume == me.volume
        && hello.wanted == me.number
        && hello.wanted_incarnation != 0
        && hello.wanted_incarnation == me.incarnation.load(Relaxed);
    if !is_for_me {
        return Err(refused(Refusal::Incarnation));
    }
    Ok(IntroducedPeer::Process(frames, stream.writer, hello))
}

async fn connection(
    context: Context,
    mut frames: FrameReader,
    writer: Box<dyn StreamWriter>,
    mut fast_path: Serving,
) -> io::Result<()> {
    let replies = Rc::new(ReplyQueue::default());
    let _closing = CloseReplies(replies.clone());
    let greeting = ServerHello {
        fs_nodes: context.fs_nodes(),
        disk_nodes: context.disk_nodes(),
        epoch: context.epoch().0,
    };
    replies.push(frame_of(kind::GREETING, &greeting));
    context.task(replies.clone().send(context.clone(), writer));

    let running = Rc::new(Limit::new(OUTSTANDING_MAX, 1));
    loop {
        let next = within(&context, SILENCE_MAX, frames.next()).await.flatten();
        let frame = match next {
            Ok(Some(frame)) => frame,
            Ok(None) => return Ok(()),
            Err(error) => return Err(error),
        };
        if frame.header.kind == kind::PING {
            replies.push(frame_of(kind::PONG, &()));
            continue;
        }
        if frame.header.kind == kind::OFFER {
            let replies = replies.clone();
            fast_path.take_offer(&context, &frame, move |grant| {
                replies.push(frame_beside_calls(kind::GRANT, &grant));
            });
            continue;
        }
        if running.acquire().await.map(std::mem::forget).is_none() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let (asked, running, replies) = (context.clone(), running.clone(), replies.clone());
        context.task(async move {
            replies.push(answer(&asked, frame).await);
            running.put_back();
        });
    }
}

/// However a connection ends, its replies are closed.
struct CloseReplies(Rc<ReplyQueue>);

impl Drop for CloseReplies {
    fn drop(&mut self) {
        self.0.close();
    }
}

async fn answer(context: &Context, LinkFrame { header, head, bulk }: LinkFrame) -> Vec<Bytes> {
    let (caller, class, to) = (header.caller(), header.class(), NodeId(header.to));
    let table = (header.protocol, header.protocol_version);
    // A process that looks for a node in the wrong place has old routes; it is not sent on.
    let reply = if context.is_here(to) {
        runtime::client_handle::answer_bytes(context, caller, to, class, table, head, bulk).await
    } else {
        undelivered_bytes(Undelivered::Unreachable)
    };
    pack(header.of_reply(), reply)
}
