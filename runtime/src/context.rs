//! The node context: all that a layer may know and do.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use tokio::sync::oneshot;

use crate::buffer::Pool;
use crate::deadline::ValidityToken;
use crate::delivery::Transfers;
use crate::disk::Disk;
use crate::host::{CallStart, Host};
use crate::ids::{Epoch, NodeId};
use crate::machine::{Ingress, Machine};
use crate::mail::{Envelope, TypedRequest};
use crate::net::{Address, Listener};
use crate::protocol::{Call, Caller, ErrorOf, Protocol, RequestInfo as _, Undelivered};

/// How often a node that lets nothing more in looks whether all is done.
const DRAIN_PAUSE: Duration = Duration::from_millis(1);

/// Anything from which a request can be sent to a node: a node's [`Context`], or a
/// [`ClientHandle`](crate::client_handle::ClientHandle) by which ordinary threads enter the
/// machine.
pub trait Spawn: Clone + 'static {
    /// Sends `call` to `to`; the future brings the answer.
    fn spawn<C: Call>(
        &self,
        to: NodeId,
        call: C,
    ) -> impl Future<Output = Result<C::Reply, ErrorOf<C>>> + 'static;
    /// Resolves after `duration`.
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + 'static;
    /// File-system nodes of the volume.
    fn fs_nodes(&self) -> u32;
    /// Adds to the machine's count of copied bytes (see
    /// [`Pool::count_copy`](crate::buffer::Pool::count_copy)), if there is a machine to count.
    fn count_copy(&self, _bytes: usize) {}
    /// The reply of the [shared server](crate::SharedServer) of this process, if there is one and
    /// it can answer.
    fn try_shared<P: Protocol>(&self, _request: &P::Request) -> Option<P::Reply> {
        None
    }
    /// Do requests wait for servers that are away without a limit?
    fn waits_for_ever(&self) -> bool {
        false
    }
    /// How many times a server has come back that knows nothing of this client any more; `None` if
    /// that is not noticed here.
    fn restarts(&self) -> Option<u64> {
        None
    }
    /// The transfers of this client, if processes can deliver bytes to it that do not answer it.
    fn transfers(&self) -> Option<Arc<Transfers>> {
        None
    }
    /// The directory at which this client begins, if it is limited to a subtree: the inode number
    /// and the generation by which it may name it.
    fn root(&self) -> Option<(u64, u64)> {
        None
    }
    /// The time since an arbitrary start, if it is known here; never goes back.
    fn now(&self) -> Option<Duration> {
        None
    }
    /// Runs `work` beside everything else, for as long as the machine lives.
    fn task<F: Future<Output = ()> + 'static>(&self, work: impl FnOnce(Self) -> F + Send + 'static);
}

/// The world as one node sees it. Cheap to clone.
///
/// Handlers of a node interleave at awaits only: state is never borrowed across one.
#[derive(Clone)]
pub struct Context {
    node: NodeId,
    machine: Rc<dyn Machine>,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("node", &self.node).finish_non_exhaustive()
    }
}

impl Context {
    /// The context of `node` on `machine`. Machines call this, layers do not.
    pub fn new(node: NodeId, machine: Rc<dyn Machine>) -> Self {
        Self { node, machine }
    }

    /// The context of another node of the same thread, for code that starts nodes.
    #[must_use]
    pub fn beside(&self, node: NodeId) -> Self {
        Self { node, machine: self.machine.clone() }
    }

    /// This node.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// File-system nodes of the volume.
    pub fn fs_nodes(&self) -> u32 {
        self.machine.fs_nodes()
    }

    /// Disk nodes of the volume.
    pub fn disk_nodes(&self) -> u32 {
        self.machine.disk_nodes()
    }

    /// The epoch by which this node lives.
    pub fn epoch(&self) -> Epoch {
        self.machine.epoch()
    }

    /// Sends `call` to the node `to`; the caller runs on until it awaits the answer (the thesis'
    /// spawn).
    ///
    /// A node on the same thread is called directly: what it can answer at once is answered when
    /// this returns, anything else starts when the future is first polled. In any case a request
    /// runs to its end, even if the future is dropped half-way.
    pub fn spawn<C: Call>(&self, to: NodeId, call: C) -> Pending<C> {
        Pending(self.request::<C::Protocol>(to, call.into()))
    }

    /// As [`spawn`](Self::spawn), for any request of a table.
    pub fn request<P: Protocol>(&self, to: NodeId, request: P::Request) -> PendingReply<P> {
        let caller = Caller { node: self.node, epoch: self.epoch() };
        if let Some(host) = self.machine.host(to) {
            let source = match Host::begin::<P>(host, caller, request) {
                CallStart::Answered(reply) => ReplySource::Answered(Some(reply)),
                CallStart::Running(running) => ReplySource::Direct(Some(running)),
            };
            return PendingReply { source, context: self.clone() };
        }
        let (reply, answer) = oneshot::channel();
        let class = request.class();
        let ask = TypedRequest::<P> { caller, request, reply };
        self.machine.send(Envelope::new(to, caller, class, Box::new(ask)));
        PendingReply { source: ReplySource::Mail(answer), context: self.clone() }
    }

    /// The answer to `call`, if `to` is on this thread and can give it at once; else nothing was
    /// done.
    pub fn try_now<C: Call>(&self, to: NodeId, call: C) -> Option<Result<C::Reply, ErrorOf<C>>> {
        let host = self.machine.host(to)?;
        let caller = Caller { node: self.node, epoch: self.epoch() };
        Host::try_now::<C::Protocol>(&host, caller, &call.into()).map(C::answer)
    }

    /// Sends `call` and does not wait for its answer.
    pub fn notify<C: Call>(&self, to: NodeId, call: C) {
        let pending = self.spawn(to, call);
        self.task(async move {
            let _ = pending.await;
        });
    }

    /// Makes `server` answer the requests of `P` at this node.
    pub fn serve<P: Protocol>(&self, server: Rc<dyn crate::host::Server<P>>) {
        let host = self.machine.host(self.node).or_else(|| self.machine.open_port(self.node));
        host.expect("a node serves on its own thread").serve(server);
    }

    /// Is as if not there for requests of `P` that other nodes send to this one from now on, but
    /// for those that `passes` lets in: a node that is about to move. Those that were let in before
    /// run on: see [`drained`](Self::drained).
    pub fn close<P: Protocol>(&self, passes: fn(&P::Request) -> bool) {
        self.machine.host(self.node).expect("a node closes on its own thread").close::<P>(passes);
    }

    /// Resolves when no request of `P` runs or waits at this node.
    pub async fn drained<P: Protocol>(&self) {
        while !self.is_drained::<P>() {
            self.sleep(DRAIN_PAUSE).await;
        }
    }

    /// Does no request of `P` run or wait at this node?
    pub fn is_drained<P: Protocol>(&self) -> bool {
        self.machine.host(self.node).is_none_or(|host| host.running_of::<P>() == 0)
    }

    /// Says whether the entries that this instance of the node publishes may still be used.
    pub fn validity(&self) -> Option<ValidityToken> {
        Some(self.machine.host(self.node)?.validity())
    }

    /// Runs `task` on this node, beside everything else, to its end.
    pub fn task(&self, task: impl Future<Output = ()> + 'static) {
        self.machine.task(self.node, task.boxed_local());
    }

    /// Time since an arbitrary start; never goes back.
    pub fn now(&self) -> Duration {
        self.machine.now(self.node)
    }

    /// Makes all nodes of this process stop answering at `until`, by [`now`](Self::now). A later
    /// call replaces the time. Zero is for good: then only nodes that begin later answer again.
    pub fn answer_until(&self, until: Duration) {
        self.machine.answer_until(self.node, until);
    }

    /// Time since 1970; may jump. For time stamps only.
    pub fn unix_time(&self) -> Duration {
        self.machine.unix_time(self.node)
    }

    /// Resolves after `duration`.
    pub fn sleep(&self, duration: Duration) -> LocalBoxFuture<'static, ()> {
        self.machine.sleep(self.node, duration)
    }

    /// 64 random bits.
    pub fn random(&self) -> u64 {
        self.machine.random(self.node)
    }

    /// Resolves once this node has nothing else to do (the MDP's background context).
    pub fn idle(&self) -> LocalBoxFuture<'static, ()> {
        self.machine.idle(self.node)
    }

    /// The buffers of this machine.
    pub fn pool(&self) -> &Pool {
        self.machine.pool()
    }

    /// Does `other` end whenever this node ends, and never earlier? Then it needs no proof against
    /// this node's end alone: the order of what both make durable is enough.
    pub fn shares_failure_domain(&self, other: NodeId) -> bool {
        other == self.node || self.machine.shares_failure_domain(self.node, other)
    }

    /// The number of the process that hosts `node`, by the node map; `None` if none does, or if the
    /// volume has one process only.
    pub fn process_of(&self, node: NodeId) -> Option<u32> {
        self.machine.process_of(node)
    }

    /// Which life of that process it is: a process that comes back is another.
    pub fn incarnation_of(&self, node: NodeId) -> Option<u64> {
        self.machine.incarnation_of(node)
    }

    /// Opens a disk of this node by its path, exclusively.
    pub fn open_disk(&self, path: &str) -> LocalBoxFuture<'static, io::Result<Rc<dyn Disk>>> {
        self.machine.open_disk(self.node, path)
    }

    /// Accepts byte streams at `address`.
    pub fn listen(
        &self,
        address: &Address,
    ) -> LocalBoxFuture<'static, io::Result<Box<dyn Listener>>> {
        self.machine.listen(self.node, address)
    }

    /// Is `node` in this process?
    pub fn is_here(&self, node: NodeId) -> bool {
        self.machine.is_here(node)
    }

    /// How other threads send requests to the nodes of this machine, if it has such a way.
    pub fn ingress(&self) -> Option<Arc<dyn Ingress>> {
        self.machine.ingress()
    }

    pub(crate) fn machine(&self) -> &Rc<dyn Machine> {
        &self.machine
    }
}

impl Spawn for Context {
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

    fn count_copy(&self, bytes: usize) {
        self.pool().count_copy(bytes);
    }

    fn now(&self) -> Option<Duration> {
        Some(self.now())
    }

    fn try_shared<P: Protocol>(&self, request: &P::Request) -> Option<P::Reply> {
        self.machine.shared_servers()?.try_now::<P>(request)
    }

    fn task<F: Future<Output = ()> + 'static>(
        &self,
        work: impl FnOnce(Self) -> F + Send + 'static,
    ) {
        self.task(work(self.clone()));
    }
}

/// The answer to come. A request that has begun runs to its end even if this is dropped.
pub struct Pending<C: Call>(PendingReply<C::Protocol>);

/// The reply to come, whole. As [`Pending`].
pub struct PendingReply<P: Protocol> {
    source: ReplySource<P>,
    context: Context,
}

enum ReplySource<P: Protocol> {
    Answered(Option<P::Reply>),
    Direct(Option<LocalBoxFuture<'static, P::Reply>>),
    Mail(oneshot::Receiver<P::Reply>),
}

impl<C: Call> Future for Pending<C> {
    type Output = Result<C::Reply, ErrorOf<C>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<Self::Output> {
        self.0.poll_unpin(cx).map(C::answer)
    }
}

impl<P: Protocol> Future for PendingReply<P> {
    type Output = P::Reply;

    fn poll(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<Self::Output> {
        let reply = match &mut self.source {
            ReplySource::Answered(reply) => reply.take().expect("an answer is awaited once"),
            ReplySource::Direct(handler) => {
                let running = handler.as_mut().expect("an answer is awaited once");
                let reply = ready!(running.poll_unpin(cx));
                *handler = None;
                reply
            }
            ReplySource::Mail(answer) => match ready!(answer.poll_unpin(cx)) {
                Ok(reply) => reply,
                Err(_) => Undelivered::Lost.into(),
            },
        };
        Poll::Ready(reply)
    }
}

impl<P: Protocol> Drop for PendingReply<P> {
    fn drop(&mut self) {
        if let ReplySource::Direct(handler) = &mut self.source
            && let Some(running) = handler.take()
        {
            self.context.task(async move {
                let _ = running.await;
            });
        }
    }
}

impl<C: Call> Unpin for Pending<C> {}

impl<P: Protocol> Unpin for PendingReply<P> {}

impl<P: Protocol> std::fmt::Debug for PendingReply<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PendingReply").finish_non_exhaustive()
    }
}

impl<C: Call> std::fmt::Debug for Pending<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pending").finish_non_exhaustive()
    }
}
