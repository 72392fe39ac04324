//! The links of one thread to the other processes of the volume.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures::FutureExt as _;
use runtime::ids::NodeId;
use runtime::mail::Envelope;
use runtime::protocol::Undelivered;
use runtime::remote_nodes::{Outbound, RemoteNodes};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::client::{LinkTimeout, dial, talk};
use crate::fast_path::FastPath;
use crate::frame::{ClientMap, PeerHello};
use crate::guard::{Guard, Refusal};
use crate::routes::{ProcessAddress, Routes};

/// Requests of one thread that wait to be sent to one process, at most; past it the answer is
/// `Busy`.
const QUEUE_MAX: usize = 4096;
/// Time limit for making a connection.
const DIAL_TIME_MAX: Duration = Duration::from_secs(1);
/// After a connection failed, none is tried this long; the answer is `Unreachable` then.
const REST: Duration = Duration::from_millis(20);
/// A process that sends nothing for this long while calls or pings are open is given up.
const SILENCE_MAX: Duration = Duration::from_secs(2);

/// The routes of a process that are in force, shared by its threads.
#[derive(Debug, Default)]
pub struct Router {
    routes: RwLock<Arc<Routes>>,
    /// Links of this process so far: each has a number of its own.
    links: AtomicU64,
}

impl Router {
    /// Puts `routes` in force. The links follow with
    /// [`Embedded::begin_epoch`](runtime::embedded::Embedded::begin_epoch).
    pub fn set(&self, routes: Routes) {
        *self.routes.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(routes);
    }

    /// The routes, for clients.
    pub fn client_map(&self, fs_nodes: u32, disk_nodes: u32) -> ClientMap {
        self.routes().client_map(fs_nodes, disk_nodes)
    }

    /// A number that no other link of this process has.
    fn next_link(&self) -> u64 {
        self.links.fetch_add(1, Relaxed)
    }

    pub(crate) fn routes(&self) -> Arc<Routes> {
        self.routes.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl RemoteNodes for Router {
    fn process_of(&self, node: NodeId) -> Option<u32> {
        self.routes().number_of(node)
    }

    fn incarnation_of(&self, node: NodeId) -> Option<u64> {
        self.routes().incarnation_of(node)
    }

    fn reaches(&self, node: NodeId) -> bool {
        self.routes().host(node).is_some()
    }

    fn links(self: Arc<Self>) -> Rc<dyn Outbound> {
        Rc::new(Links::new(self))
    }
}

/// The links of one thread.
#[derive(Debug)]
pub(crate) struct Links {
    router: Arc<Router>,
    routes: RefCell<Arc<Routes>>,
    /// By the number of the process.
    open: RefCell<BTreeMap<u32, Rc<Link>>>,
}

impl Links {
    pub(crate) fn new(router: Arc<Router>) -> Self {
        let current = RefCell::new(router.routes());
        Self { router, routes: current, open: RefCell::default() }
    }

    /// The link to the process of `node`, if there is one.
    fn to(&self, node: NodeId) -> Option<Rc<Link>> {
        let routes = self.routes.borrow();
        let process = routes.host(node)?;
        let mut open = self.open.borrow_mut();
        if let Some(link) = open.get(&process.number) {
            return Some(link.clone());
        }
        let me = routes.me()?;
        let hello = PeerHello {
            volume: routes.volume(),
            process: me.number,
            incarnation: me.incarnation,
            wanted: process.number,
            wanted_incarnation: process.incarnation,
            link: self.router.next_link(),
        };
        let link = Rc::new(Link::open(process.clone(), hello, routes.guard().clone()));
        open.insert(process.number, link.clone());
        Some(link)
    }
}

impl Outbound for Links {
    fn send(&self, envelope: Envelope) {
        match self.to(envelope.to) {
            Some(link) => link.send(envelope),
            None => envelope.message.refuse(Undelivered::Unreachable),
        }
    }

    fn update(&self) {
        let routes = self.router.routes();
        self.routes.replace(routes.clone());
        let (open, closed): (_, BTreeMap<u32, Rc<Link>>) =
            self.open.take().into_iter().partition(|(_, link)| routes.has(&link.process));
        self.open.replace(open);
        // Outside the borrow: callers that wait learn that the answer is lost, and may ask again.
        drop(closed);
    }
}

/// Requests to one life of one process, by a connection that is made anew when it breaks.
#[derive(Debug)]
pub(crate) struct Link {
    process: Arc<ProcessAddress>,
    requests: mpsc::Sender<Envelope>,
    /// Over the connection, or beside it.
    fast_path: Rc<FastPath>,
    work: AbortHandle,
}

impl Link {
    #[allow(clippy::disallowed_methods, reason = "the machine itself runs the tasks")]
    fn open(process: Arc<ProcessAddress>, hello: PeerHello, guard: Arc<Guard>) -> Self {
        let (requests, to_send) = mpsc::channel(QUEUE_MAX);
        let fast_path = Rc::new(FastPath::new(&guard, process.number, process.incarnation));
        let keeping = keep(process.clone(), hello, guard, to_send, fast_path.clone());
        let work = tokio::task::spawn_local(keeping).abort_handle();
        Self { process, requests, fast_path, work }
    }

    /// Sends a request on its way, or refuses it.
    pub(crate) fn send(&self, envelope: Envelope) {
        use mpsc::error::TrySendError;
        let Some(envelope) = self.fast_path.send(envelope) else { return };
        match self.requests.try_send(envelope) {
            Ok(()) => {}
            Err(TrySendError::Full(envelope)) => envelope.message.refuse(Undelivered::Busy),
            Err(TrySendError::Closed(envelope)) => {
                envelope.message.refuse(Undelivered::Unreachable);
            }
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.work.abort();
        self.fast_path.end();
    }
}

/// Keeps one link: connects when there is something to send.
#[allow(clippy::disallowed_methods, reason = "the machine itself gives the time")]
async fn keep(
    process: Arc<ProcessAddress>,
    hello: PeerHello,
    guard: Arc<Guard>,
    mut requests: mpsc::Receiver<Envelope>,
    fast_path: Rc<FastPath>,
) {
    while let Some(first) = requests.recv().await {
        let dialling = dial(&process.address, &hello, &guard);
        match tokio::time::timeout(DIAL_TIME_MAX, dialling).await {
            Ok(Ok((frames, writer))) => {
                let watch = LinkTimeout { silence_max: SILENCE_MAX };
                let ended =
                    talk(Some(first), &mut requests, frames, writer, watch, &fast_path).await;
                fast_path.end();
                tracing::debug!(process = process.number, "a link has ended: {ended:?}");
                if let Err(error) = ended
                    && let Some(why) = Refusal::of(&error)
                {
                    guard.refuse(&process.address, why, &error);
                }
            }
            Ok(Err(error)) => {
                tracing::debug!(process = process.number, %error, "no link");
                first.message.refuse(Undelivered::Unreachable);
                rest(&mut requests).await;
            }
            Err(_) => {
                first.message.refuse(Undelivered::Unreachable);
                rest(&mut requests).await;
            }
        }
    }
}

/// Refuses everything for a while.
#[allow(clippy::disallowed_methods, reason = "the machine itself gives the time")]
async fn rest(requests: &mut mpsc::Receiver<Envelope>) {
    let mut rested = std::pin::pin!(tokio::time::sleep(REST).fuse());
    loop {
        futures::select_biased! {
            () = rested => return,
            next = requests.recv().fuse() => match next {
                Some(envelope) => envelope.message.refuse(Undelivered::Unreachable),
                None => return,
            },
        }
    }
}
