//! One lightweight node: the servers of its layers, and the limits of each.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use tracing::Instrument as _;

use crate::context::CLASSES;
use crate::ids::{Epoch, NodeId};
use crate::protocol::{Caller, Class, Classified as _, PROTOCOLS, Protocol, Undelivered};
use crate::sync::Limit;
use crate::wire::{Decoder, Encoder, Wire as _};

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
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("node", &self.node).finish_non_exhaustive()
    }
}

impl Host {
    /// A node that serves nothing yet.
    pub fn new(node: NodeId, epoch: Epoch) -> Rc<Self> {
        Rc::new(Self {
            node,
            epoch: Cell::new(epoch),
            ports: RefCell::default(),
            running: Cell::new(0),
            requests: Cell::new(0),
        })
    }

    /// This node.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Makes `server` answer the requests of `P`.
    pub fn serve<P: Protocol>(&self, server: Rc<dyn Server<P>>) {
        let limits = CLASSES.map(|_| Limit::new(RUNNING_MAX, WAITING_MAX));
        let port = Rc::new(Port { server, limits });
        self.ports.borrow_mut()[usize::from(P::ID)] = Some(port);
    }

    /// Requests of earlier epochs are refused from now on.
    pub fn set_epoch(&self, epoch: Epoch) {
        self.epoch.set(epoch);
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
        if caller.epoch < host.epoch.get() {
            return Undelivered::Fenced.into();
        }
        let port = host.ports.borrow()[usize::from(P::ID)].clone();
        let Some(port) = port.as_ref().and_then(|port| port.as_any().downcast_ref::<Port<P>>())
        else {
            return Undelivered::Unreachable.into();
        };
        let limit = match request.class() {
            Class::Control => &port.limits[0],
            Class::Bulk => &port.limits[1],
        };
        let _counted = Counted::new(&host);
        let Some(_permit) = limit.acquire().await else {
            return Undelivered::Busy.into();
        };
        let span = tracing::debug_span!(
            target: "mdfs::request",
            "request",
            layer = P::NAME,
            name = request.name(),
            node = host.node.0,
        );
        let handler = port.server.clone().handle(caller, request);
        if span.is_disabled() { handler.await } else { handler.instrument(span).await }
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

/// The bytes of an undelivered reply are the same in each table.
pub(crate) fn undelivered_bytes(why: Undelivered) -> Encoder {
    let mut out = Encoder::new();
    out.bytes(&[0]);
    why.put(&mut out);
    out
}

struct Counted<'a>(&'a Host);

impl<'a> Counted<'a> {
    fn new(host: &'a Host) -> Self {
        host.running.set(host.running.get() + 1);
        host.requests.set(host.requests.get() + 1);
        Self(host)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.running.set(self.0.running.get() - 1);
    }
}

struct Port<P: Protocol> {
    server: Rc<dyn Server<P>>,
    limits: [Limit; 2],
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
                Err(_) => Undelivered::Garbled.into(),
            };
            let mut out = Encoder::new();
            reply.put(&mut out);
            out
        }
        .boxed_local()
    }
}
