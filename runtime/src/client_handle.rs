//! The way in for ordinary threads and for other processes.

use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::{BoxFuture, LocalBoxFuture};
use tokio::sync::oneshot;

use crate::context::{Context, Spawn};
use crate::delivery::Transfers;
use crate::host::{Host, undelivered_bytes};
use crate::ids::NodeId;
use crate::machine::Ingress;
use crate::mail::{Envelope, Message, TypedRequest};
use crate::protocol::{
    Call, CallId, Caller, Class, ErrorOf, Protocol, RequestInfo as _, Undelivered,
};
use crate::wire::{Decoder, Encoder};

/// The number by which the nodes know a client, and the numbers of its calls.
#[derive(Debug)]
pub struct CallNumbers {
    client: u64,
    next: AtomicU64,
}

impl CallNumbers {
    /// Of the client `client`; no two clients of a volume may have the same number.
    pub fn new(client: u64) -> Self {
        Self { client, next: AtomicU64::new(0) }
    }

    /// The number of the client.
    pub fn client(&self) -> u64 {
        self.client
    }

    /// A new call's id.
    pub fn next(&self) -> CallId {
        CallId { client: self.client, number: self.next.fetch_add(1, Relaxed) }
    }
}

/// Access to the machine for an ordinary thread: an application node that only sends requests.
#[derive(Clone)]
pub struct ClientHandle {
    node: NodeId,
    ingress: Arc<dyn Ingress>,
}

impl std::fmt::Debug for ClientHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientHandle").field("node", &self.node).finish_non_exhaustive()
    }
}

impl ClientHandle {
    /// A handle for the application node `node`.
    pub fn new(node: NodeId, ingress: Arc<dyn Ingress>) -> Self {
        Self { node, ingress }
    }

    /// Sends `call` to `to`; the future, which any executor may poll, brings the answer.
    pub fn spawn<C: Call>(
        &self,
        to: NodeId,
        call: C,
    ) -> impl Future<Output = Result<C::Reply, ErrorOf<C>>> + Send + 'static {
        let caller = Caller { node: self.node, epoch: self.ingress.epoch() };
        let (envelope, answer) = envelope(caller, to, call);
        self.ingress.send(envelope);
        answer
    }

    /// The numbers of the client and of its calls, if all who use this handle are one client.
    pub fn call_numbers(&self) -> Option<Arc<CallNumbers>> {
        self.ingress.call_numbers()
    }

    /// Resolves after `duration`.
    pub fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.ingress.sleep(duration)
    }

    /// File-system nodes of the volume.
    pub fn fs_nodes(&self) -> u32 {
        self.ingress.fs_nodes()
    }
}

/// `call` on its way to `to`, and the future that brings the answer.
pub fn envelope<C: Call>(
    caller: Caller,
    to: NodeId,
    call: C,
) -> (Envelope, impl Future<Output = Result<C::Reply, ErrorOf<C>>> + Send + 'static) {
    let request: <C::Protocol as Protocol>::Request = call.into();
    let class = request.class();
    let (reply, answer) = oneshot::channel();
    let ask = TypedRequest::<C::Protocol> { caller, request, reply };
    let answer = answer.map(|reply| C::answer(reply.unwrap_or_else(|_| Undelivered::Lost.into())));
    (Envelope::new(to, caller, class, Box::new(ask)), answer)
}

impl Spawn for ClientHandle {
    fn spawn<C: Call>(
        &self,
        to: NodeId,
        call: C,
    ) -> impl Future<Output = Result<C::Reply, ErrorOf<C>>> + 'static {
        self.spawn(to, call)
    }

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + 'static {
        self.sleep(duration)
    }

    fn fs_nodes(&self) -> u32 {
        self.fs_nodes()
    }

    fn try_shared<P: Protocol>(&self, request: &P::Request) -> Option<P::Reply> {
        self.ingress.shared_servers()?.try_now::<P>(request)
    }

    fn waits_for_ever(&self) -> bool {
        self.ingress.waits_for_ever()
    }

    fn restarts(&self) -> Option<u64> {
        self.ingress.restarts()
    }

    fn transfers(&self) -> Option<Arc<Transfers>> {
        self.ingress.transfers()
    }

    fn root(&self) -> Option<(u64, u64)> {
        self.ingress.root()
    }

    fn now(&self) -> Option<Duration> {
        self.ingress.now()
    }

    fn task<F: Future<Output = ()> + 'static>(
        &self,
        work: impl FnOnce(Self) -> F + Send + 'static,
    ) {
        let client_handle = self.clone();
        self.ingress.run(Box::new(move || work(client_handle).boxed_local()));
    }
}

/// Lets a node of this machine answer a request that came as bytes, in the form of the table with
/// this number and version.
pub async fn answer_bytes(
    context: &Context,
    caller: Caller,
    to: NodeId,
    class: Class,
    table: (u8, u16),
    head: Bytes,
    bulk: Bytes,
) -> Encoder {
    let (reply, answer) = oneshot::channel();
    let reply = ReplySender::by(|bytes| {
        // The caller may be gone.
        let _ = reply.send(bytes);
    });
    let ask = Box::new(EncodedRequest { caller, table, head, bulk, reply });
    match context.machine().host(to) {
        Some(host) => ask.deliver(host).await,
        None => context.machine().send(Envelope::new(to, caller, class, ask)),
    }
    answer.await.unwrap_or_else(|_| undelivered_bytes(Undelivered::Lost))
}

/// A request of any table, still in bytes, on its way to its node.
pub struct EncodedRequest {
    /// Who sent it.
    pub caller: Caller,
    /// Number and version of its table.
    pub table: (u8, u16),
    /// Its fields.
    pub head: Bytes,
    /// Its payload.
    pub bulk: Bytes,
    /// Takes the reply.
    pub reply: ReplySender,
}

/// Takes the reply to a request in bytes; `Lost` if there is none.
pub struct ReplySender(Option<Box<dyn FnOnce(Encoder) + Send>>);

impl ReplySender {
    /// Calls `take` with the bytes of the reply.
    pub fn by(take: impl FnOnce(Encoder) + Send + 'static) -> Self {
        Self(Some(Box::new(take)))
    }

    fn send(mut self, bytes: Encoder) {
        if let Some(take) = self.0.take() {
            take(bytes);
        }
    }
}

impl Drop for ReplySender {
    fn drop(&mut self) {
        if let Some(take) = self.0.take() {
            take(undelivered_bytes(Undelivered::Lost));
        }
    }
}

impl Message for EncodedRequest {
    fn answer_now(self: Box<Self>, _: &Rc<Host>) -> Option<Box<dyn Message>> {
        Some(self)
    }

    fn deliver(self: Box<Self>, host: Rc<Host>) -> LocalBoxFuture<'static, ()> {
        let (protocol, version) = self.table;
        if host.version(protocol).is_some_and(|spoken| spoken != version) {
            self.refuse(Undelivered::ProtocolMismatch);
            return futures::future::ready(()).boxed_local();
        }
        async move {
            let reply = host.run_bytes(self.caller, protocol, &self.head, self.bulk).await;
            self.reply.send(reply);
        }
        .boxed_local()
    }

    fn refuse(self: Box<Self>, why: Undelivered) {
        self.reply.send(undelivered_bytes(why));
    }

    fn protocol(&self) -> u8 {
        self.table.0
    }

    fn version(&self) -> u16 {
        self.table.1
    }

    fn encode(&self, out: &mut Encoder) {
        out.bytes(&self.head);
        out.payload(self.bulk.clone());
    }

    fn answer_bytes(self: Box<Self>, reply: Decoder<'_>) {
        // The node has moved to another process meanwhile: handed on as it is.
        let (head, bulk) = reply.rest();
        let mut out = Encoder::new();
        out.bytes(head);
        out.payload(bulk);
        self.reply.send(out);
    }
}
