//! One lightweight node: the servers of its layers, and the limits of each.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use tracing::Instrument as _;

use crate::deadline::{Deadline, ValidityToken};
use crate::ids::{Epoch, NodeId, NodeKind};
use crate::protocol::{CLASSES, Caller, Class, PROTOCOLS, Protocol, RequestInfo as _, Undelivered};
use crate::sync::Limit;
use crate::wire::{Decoder, Encoder, Wire as _, from_bytes};

/// Requests of one layer and class that run at once on one node, at most.
pub const RUNNING_MAX: usize = 256;
/// Requests of one layer and class that wait on one node, at most; past it the answer is `Busy`.
pub const WAITING_MAX: usize = 4096;

/// A layer at one node: answers each request of its table.
///
/// Handlers of one node interleave at awaits only, so a server's state sits in cells and is never
/// borrowed across an await. A handler may send requests to the layer below; to its own layer it
/// sends [`Class::Control`] requests only, and a handler of those sends none, so that two full
/// nodes can never wait for each other.
pub trait Server<P: Protocol>: 'static {
    /// The reply, if nothing has to be waited for and the work is short; else `None`, and nothing
    /// was done. Asked first: what is in memory costs no future then. The reply is the same as the
    /// one that [`handle`](Self::handle) would if it were polled now.
    fn try_now(self: Rc<Self>, _caller: Caller, _request: &P::Request) -> Option<P::Reply> {
        None
    }

    /// One request in, one reply out; others may be handled while this one waits.
    fn handle(
        self: Rc<Self>,
        caller: Caller,
        request: P::Request,
    ) -> LocalBoxFuture<'static, P::Reply>;
}

/// One node with the servers of its layers.
pub struct Host {
    node: NodeId,
    epoch: Cell<Epoch>,
    ports: RefCell<[Option<Rc<dyn AnyPort>>; PROTOCOLS]>,
    running: Cell<usize>,
    requests: Cell<u64>,
    life: NodeLifetime,
    validity: ValidityToken,
    deadline: Arc<Deadline>,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("node", &self.node).finish_non_exhaustive()
    }
}

impl Host {
    /// A node that serves nothing yet.
    pub fn new(node: NodeId, epoch: Epoch) -> Rc<Self> {
        Self::until(node, epoch, Arc::default())
    }

    /// A node that answers nothing once `deadline` is over.
    pub(crate) fn until(node: NodeId, epoch: Epoch, deadline: Arc<Deadline>) -> Rc<Self> {
        Rc::new(Self {
            validity: ValidityToken::until(deadline.clone()),
            deadline,
            node,
            epoch: Cell::new(epoch),
            ports: RefCell::default(),
            running: Cell::new(0),
            requests: Cell::new(0),
            life: NodeLifetime::default(),
        })
    }

    /// This node.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Makes `server` answer the requests of `P`.
    pub fn serve<P: Protocol>(&self, server: Rc<dyn Server<P>>) {
        let limits = CLASSES.map(|_| Limit::new(RUNNING_MAX, WAITING_MAX));
        let port = Port { server, limits, passes: Cell::new(None), running: Cell::new(0) };
        self.ports.borrow_mut()[usize::from(P::ID)] = Some(Rc::new(port));
    }

    /// Is as if not there for requests of `P` that other nodes send from now on, but for those that
    /// `passes` lets in. Those that were let in before run on.
    pub(crate) fn close<P: Protocol>(&self, passes: Passes<P>) {
        self.invalidate_published();
        let port = self.ports.borrow()[usize::from(P::ID)].clone();
        if let Some(port) = downcast::<P>(port.as_ref()) {
            port.passes.set(Some(passes));
        }
    }

    /// Requests of `P` that run or wait at this node.
    pub(crate) fn running_of<P: Protocol>(&self) -> usize {
        let ports = self.ports.borrow();
        let port = downcast::<P>(ports[usize::from(P::ID)].as_ref());
        port.map_or(0, |port| port.running.get())
    }

    /// Requests of earlier epochs are refused from now on.
    pub fn set_epoch(&self, epoch: Epoch) {
        self.epoch.set(epoch);
    }

    /// Ends this life of the node: whatever runs here is dropped where it waits, and nothing is
    /// answered any more.
    pub(crate) fn end(&self) {
        self.invalidate_published();
        // Servers hold contexts, which hold the machine.
        self.ports.take();
        self.life.end();
    }

    /// Whether this life of the node stands by what it has put where others look.
    pub(crate) fn validity(&self) -> ValidityToken {
        self.validity.clone()
    }

    /// From now on it does not. Machines call this when a life ends, before anything else.
    pub fn invalidate_published(&self) {
        self.validity.end();
    }

    /// Runs `work` as long as this life of the node lasts; `None` if it ends before.
    pub(crate) fn within_life<F: Future + Unpin>(self: Rc<Self>, work: F) -> WithinLifetime<F> {
        WithinLifetime { host: self, work: Some(work), slot: None }
    }

    /// Requests that run or wait at this node.
    pub fn running(&self) -> usize {
        self.running.get()
    }

    /// Requests that ever came to this node.
    pub fn requests(&self) -> u64 {
        self.requests.get()
    }

    /// Lets the server of `P` answer `request`, within the node's limits.
    pub async fn run<P: Protocol>(host: Rc<Self>, caller: Caller, request: P::Request) -> P::Reply {
        match Self::begin::<P>(host, caller, request) {
            CallStart::Answered(reply) => reply,
            CallStart::Running(running) => running.await,
        }
    }

    /// The first step of [`run`](Self::run): all of it, if the server can answer at once.
    pub(crate) fn begin<P: Protocol>(
        host: Rc<Self>,
        caller: Caller,
        request: P::Request,
    ) -> CallStart<P> {
        match Self::try_at_once::<P>(&host, caller, &request) {
            // After the work: the process may have stood still at any time before.
            Some(reply) if host.deadline.is_over() => {
                CallStart::Running(Self::hold::<P>(host, caller, reply).boxed_local())
            }
            Some(reply) => CallStart::Answered(reply),
            None => CallStart::Running(Self::wait::<P>(host, caller, request).boxed_local()),
        }
    }

    /// The reply once it may leave, if it ever may.
    async fn hold<P: Protocol>(host: Rc<Self>, caller: Caller, reply: P::Reply) -> P::Reply {
        let deadline = host.deadline.clone();
        let renewed = pin!(deadline.renewed());
        let is_good = host.clone().within_life(renewed).await == Some(true);
        if is_good { reply } else { Self::unanswered(caller).into() }
    }

    /// Why a request that was let in has no answer: the node is over here, and nothing of the
    /// request goes on. Clients may repeat any request; other nodes have their own ways to find
    /// out.
    fn unanswered(caller: Caller) -> Undelivered {
        match caller.node.kind() {
            NodeKind::Application(_) => Undelivered::Gone,
            NodeKind::Fs(_) | NodeKind::Disk(_) => Undelivered::Lost,
        }
    }

    /// The reply, if the server can answer now and no earlier request waits.
    pub(crate) fn try_now<P: Protocol>(
        host: &Rc<Self>,
        caller: Caller,
        request: &P::Request,
    ) -> Option<P::Reply> {
        if host.deadline.is_over() {
            // Its answer would have to wait, which `begin` does.
            return None;
        }
        let reply = Self::try_at_once::<P>(host, caller, request)?;
        // After the work: the process may have stood still at any time before.
        Some(if host.deadline.is_over() { Undelivered::Lost.into() } else { reply })
    }

    fn try_at_once<P: Protocol>(
        host: &Rc<Self>,
        caller: Caller,
        request: &P::Request,
    ) -> Option<P::Reply> {
        if caller.epoch < host.epoch.get() {
            return Some(Undelivered::Fenced.into());
        }
        let port = host.ports.borrow()[usize::from(P::ID)].clone();
        let Some(port) = downcast::<P>(port.as_ref()) else {
            return Some(Undelivered::Unreachable.into());
        };
        if !port.lets_in(host.node, caller, request) {
            return Some(Undelivered::Unreachable.into());
        }
        if !port.limit(request).has_room() {
            return None;
        }
        let reply = port.server.clone().try_now(caller, request)?;
        host.requests.set(host.requests.get() + 1);
        // For those who count requests; there is no time in it to be seen.
        let _noted = host.span::<P>(request);
        Some(reply)
    }

    async fn wait<P: Protocol>(host: Rc<Self>, caller: Caller, request: P::Request) -> P::Reply {
        let port = host.ports.borrow()[usize::from(P::ID)].clone();
        let Some(port) = downcast::<P>(port.as_ref()) else {
            return Undelivered::Unreachable.into();
        };
        if !port.lets_in(host.node, caller, &request) {
            return Undelivered::Unreachable.into();
        }
        let _counted = CountGuard::new(&host, &port.running);
        let Some(_permit) = port.limit(&request).acquire().await else {
            return Undelivered::Busy.into();
        };
        let span = host.span::<P>(&request);
        let handler = port.server.clone().handle(caller, request);
        let handler = host.clone().within_life(handler);
        let reply = if span.is_disabled() { handler.await } else { handler.instrument(span).await };
        match reply {
            Some(reply) if host.deadline.is_over() => {
                Self::hold::<P>(host.clone(), caller, reply).await
            }
            Some(reply) => reply,
            None => Self::unanswered(caller).into(),
        }
    }

    fn span<P: Protocol>(&self, request: &P::Request) -> tracing::Span {
        tracing::debug_span!(
            target: "mdfs::request",
            "request",
            layer = P::NAME,
            name = request.name(),
            node = self.node.0,
        )
    }

    /// The version of the table `protocol` that this node serves, if it does.
    pub fn version(&self, protocol: u8) -> Option<u16> {
        let ports = self.ports.borrow();
        ports.get(usize::from(protocol))?.as_ref().map(|port| port.version())
    }

    /// As [`run`](Self::run), for a request that came as bytes: the reply is appended to `out`.
    pub fn run_bytes(
        self: &Rc<Self>,
        caller: Caller,
        protocol: u8,
        head: &[u8],
        bulk: Bytes,
    ) -> LocalBoxFuture<'static, Encoder> {
        let port = self.ports.borrow().get(usize::from(protocol)).cloned().flatten();
        match port {
            Some(port) => port.run_bytes(self.clone(), caller, head, bulk),
            None => {
                futures::future::ready(undelivered_bytes(Undelivered::Unreachable)).boxed_local()
            }
        }
    }
}

/// A request that was let in.
pub(crate) enum CallStart<P: Protocol> {
    /// And answered.
    Answered(P::Reply),
    /// It has to wait for something.
    Running(LocalBoxFuture<'static, P::Reply>),
}

fn downcast<P: Protocol>(port: Option<&Rc<dyn AnyPort>>) -> Option<&Port<P>> {
    port?.as_any().downcast_ref()
}

/// The bytes of an undelivered reply are the same in each table.
pub fn undelivered_bytes(why: Undelivered) -> Encoder {
    let mut out = Encoder::new();
    out.bytes(&[0]);
    why.put(&mut out);
    out
}

/// Why a call was not delivered, if that is what the head of its reply says.
pub fn undelivered(head: &[u8]) -> Option<Undelivered> {
    let (&0, rest) = head.split_first()? else { return None };
    from_bytes(rest).ok()
}

/// Is a life over, and who waits within it?
#[derive(Default)]
struct NodeLifetime {
    over: Cell<bool>,
    /// By slot.
    waiting: RefCell<Vec<Option<Waker>>>,
    free_slots: RefCell<Vec<usize>>,
}

impl NodeLifetime {
    fn end(&self) {
        self.over.set(true);
        self.waiting.take().into_iter().flatten().for_each(Waker::wake);
    }

    /// Notes that `waker` waits; the same slot as before, if there was one.
    fn note(&self, slot: Option<usize>, waker: &Waker) -> usize {
        let mut waiting = self.waiting.borrow_mut();
        let slot = slot.or_else(|| self.free_slots.borrow_mut().pop()).unwrap_or(waiting.len());
        if slot == waiting.len() {
            waiting.push(None);
        }
        match &mut waiting[slot] {
            Some(noted) if noted.will_wake(waker) => {}
            noted => *noted = Some(waker.clone()),
        }
        slot
    }

    fn leave(&self, slot: usize) {
        if let Some(noted) = self.waiting.borrow_mut().get_mut(slot) {
            *noted = None;
            self.free_slots.borrow_mut().push(slot);
        }
    }
}

/// See [`Host::within_life`].
pub(crate) struct WithinLifetime<F> {
    host: Rc<Host>,
    work: Option<F>,
    slot: Option<usize>,
}

impl<F: Future + Unpin> Future for WithinLifetime<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let me = &mut *self;
        let Some(work) = me.work.as_mut().filter(|_| !me.host.life.over.get()) else {
            me.work = None;
            return Poll::Ready(None);
        };
        let polled = Pin::new(work).poll(cx);
        if polled.is_pending() {
            if me.host.life.over.get() {
                // It ended its own life.
                me.work = None;
                return Poll::Ready(None);
            }
            me.slot = Some(me.host.life.note(me.slot, cx.waker()));
        }
        polled.map(Some)
    }
}

impl<F> Drop for WithinLifetime<F> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.host.life.leave(slot);
        }
    }
}

/// A request that runs or waits: counted for its node, and for the port by which it came.
struct CountGuard<'a>([&'a Cell<usize>; 2]);

impl<'a> CountGuard<'a> {
    fn new(host: &'a Host, of_port: &'a Cell<usize>) -> Self {
        host.requests.set(host.requests.get() + 1);
        let counts = [&host.running, of_port];
        for count in counts {
            count.set(count.get() + 1);
        }
        Self(counts)
    }
}

impl Drop for CountGuard<'_> {
    fn drop(&mut self) {
        for count in self.0 {
            count.set(count.get() - 1);
        }
    }
}

/// Is a request let in by a port that is closed?
type Passes<P> = fn(&<P as Protocol>::Request) -> bool;

struct Port<P: Protocol> {
    server: Rc<dyn Server<P>>,
    limits: [Limit; 2],
    /// What other nodes may still ask, once this is [closed](Host::close).
    passes: Cell<Option<Passes<P>>>,
    running: Cell<usize>,
}

impl<P: Protocol> Port<P> {
    fn lets_in(&self, node: NodeId, caller: Caller, request: &P::Request) -> bool {
        self.passes.get().is_none_or(|passes| caller.node == node || passes(request))
    }

    fn limit(&self, request: &P::Request) -> &Limit {
        match request.class() {
            Class::Control => &self.limits[0],
            Class::Bulk => &self.limits[1],
        }
    }
}

trait AnyPort {
    fn as_any(&self) -> &dyn Any;
    fn version(&self) -> u16;
    fn run_bytes(
        &self,
        host: Rc<Host>,
        caller: Caller,
        head: &[u8],
        bulk: Bytes,
    ) -> LocalBoxFuture<'static, Encoder>;
}

impl<P: Protocol> AnyPort for Port<P> {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn version(&self) -> u16 {
        P::VERSION
    }

    fn run_bytes(
        &self,
        host: Rc<Host>,
        caller: Caller,
        head: &[u8],
        bulk: Bytes,
    ) -> LocalBoxFuture<'static, Encoder> {
        let mut input = Decoder::new(head, bulk);
        let request = P::Request::take(&mut input).and_then(|request| {
            input.finish()?;
            Ok(request)
        });
        async move {
            let reply: P::Reply = match request {
                Ok(request) => Host::run::<P>(host, caller, request).await,
                Err(_) => Undelivered::ProtocolMismatch.into(),
            };
            let mut out = Encoder::new();
            reply.put(&mut out);
            out
        }
        .boxed_local()
    }
}
