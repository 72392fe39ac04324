//! A client of a volume that other processes serve: it may be on any host.
//!
//! A client has one session, and one link to each process that it needs. It learns from the first
//! process that lets it in which process answers for which node, and follows the map. A link that
//! breaks is made anew, and the calls that were open on it are sent again with their numbers: the
//! process does none of them twice (`ingress/session.rs`). So a call ends in one of four ways: it
//! is answered; its process is gone, and with it what the call may have done ([`Gone`]); the client
//! is not let in ([`Refused`]); or its time is over ([`TimedOut`]).
//!
//! [`Gone`]: Undelivered::Gone
//! [`Refused`]: Undelivered::Refused
//! [`TimedOut`]: Undelivered::TimedOut
//!
//! | file | holds |
//! | --- | --- |
//! | `mod.rs` | the thread of a client, and the way in for other threads |
//! | `volume_links.rs` | the node map, and the choice of the link |
//! | `process_link.rs` | the calls to one process |
//! | `contact.rs` | how a connection is made and greeted |
//! | `link_handle.rs` | the same for code on that thread |
//! | `outage.rs` | what a client waits for, for people |
//! | `client_fabric.rs` | libfabric, loaded when it is worth it |
//! | `environment.rs` | what all this needs of its host |

mod client_fabric;
mod contact;
mod environment;
mod link_handle;
mod outage;
mod process_link;
mod volume_links;

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, mpsc as std_mpsc};
use std::time::Duration;

use futures::future::BoxFuture;
use runtime::client_handle::{CallNumbers, ClientHandle};
use runtime::delivery::Transfers;
use runtime::embedded::sleep_on;
use runtime::ids::{Epoch, NodeId};
use runtime::machine::{Ingress, LocalTask};
use runtime::mail::Envelope;
use runtime::net::Address;
use runtime::protocol::Undelivered;
use tokio::runtime::{Builder, Handle};
use tokio::sync::mpsc;
use tokio::task::LocalSet;
use tokio::time::Instant;

pub use self::client_fabric::ClientFabric;
pub use self::environment::ClientEnvironment;
use self::environment::TokioEnvironment;
pub use self::link_handle::LinkHandle;
pub use self::outage::{OUTAGE_MIN, Outage, Outages};
pub use self::volume_links::{VolumeLinks, WAITING_MAX};

/// Requests of other threads on their way to the thread of the client, at most; past it the answer
/// is `Busy`.
const QUEUE_MAX: usize = 16 << 10;
/// Tasks of the handle's users that wait to be started, at most; more are dropped.
const WORK_MAX: usize = 1024;
/// How long the last calls of a client whose handles are gone are waited for.
const LAST_CALLS_MAX: Duration = Duration::from_secs(2);
/// How long a program waits for a request if nothing else is said.
pub const TIMEOUT: Duration = Duration::from_mins(2);

/// Where the servers of a volume are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAddress {
    /// The Unix socket of a server of this host.
    Local(PathBuf),
    /// `host:port` of any of its processes.
    Tcp(Vec<String>),
}

impl ServerAddress {
    /// The addresses to begin with.
    fn seeds(&self) -> Vec<Address> {
        match self {
            Self::Local(path) => vec![Address::Unix(path.clone())],
            Self::Tcp(all) => all.iter().cloned().map(Address::Tcp).collect(),
        }
    }
}

/// How the connections of a client are protected, and by what it proves who it is.
#[derive(Clone, Debug, Default)]
pub enum ClientSecurity {
    /// Not at all: for sockets of this host, and for servers that demand no proof.
    #[default]
    None,
    /// By TLS, with a token or the certificate of the host.
    #[cfg(feature = "tls")]
    Tls(Arc<crate::tls::ClientKeys>),
}

/// How a client behaves.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The name of the volume; empty for the one that is served there.
    pub volume: String,
    /// The program, for people.
    pub program: String,
    /// How connections are protected.
    pub security: ClientSecurity,
    /// How long a request waits while no server answers; none for ever.
    pub timeout: Option<Duration>,
    /// Where the client shows what it waits for: its own, of no other client.
    pub outages: Outages,
    /// What it has of libfabric, for servers that have it too.
    pub fabric: ClientFabric,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            volume: String::new(),
            program: String::new(),
            security: ClientSecurity::default(),
            timeout: Some(TIMEOUT),
            outages: Outages::default(),
            fabric: ClientFabric::default(),
        }
    }
}

/// What other threads see of the links of a client.
#[derive(Debug, Default)]
pub struct ClientState {
    /// The number by which the nodes know the client.
    pub(crate) client: AtomicU64,
    pub(crate) fs_nodes: AtomicU32,
    pub(crate) epoch: AtomicU64,
    /// How many times a process has answered that knew nothing of the client's earlier calls there.
    pub(crate) restarts: AtomicU64,
    pub(crate) transfers: Arc<Transfers>,
    /// Where it begins, if it is limited to a subtree.
    pub(crate) root: OnceLock<(u64, u64)>,
}

/// Connects to a volume. `session` names this client and no other: draw it at random, and anew
/// after a fork.
///
/// The connections live as long as the handle or one of its clones; their thread ends with it.
/// Fails if no server of `address` lets the client in now.
pub fn connect(
    address: &ServerAddress,
    options: ClientOptions,
    session: u128,
) -> io::Result<ClientHandle> {
    let (told, connected) = std_mpsc::channel();
    let (sender, requests) = mpsc::channel(QUEUE_MAX);
    let (worker, work_to_do) = mpsc::channel(WORK_MAX);
    let seeds = address.seeds();
    let waits_for_ever = options.timeout.is_none();
    let state = Arc::new(ClientState::default());
    let shared = state.clone();
    #[allow(clippy::disallowed_methods, reason = "the machine itself makes threads and tasks")]
    std::thread::Builder::new().name("mdfs-client".into()).spawn(move || {
        let runtime = match Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                let _ = told.send(Err(error));
                return;
            }
        };
        let work = async move {
            let environment = std::rc::Rc::new(TokioEnvironment::new());
            match VolumeLinks::open(environment, seeds, options, session, shared).await {
                Ok(links) => {
                    // `connect` waits for exactly this message.
                    let _ = told.send(Ok(Handle::current()));
                    tokio::task::spawn_local(do_all(work_to_do));
                    serve_handles(links, requests).await;
                }
                Err(error) => {
                    let _ = told.send(Err(error));
                }
            }
        };
        runtime.block_on(LocalSet::new().run_until(work));
    })?;
    #[allow(clippy::disallowed_methods, reason = "the machine itself gives the time")]
    let start = Instant::now();
    let lost = || io::Error::from(io::ErrorKind::ConnectionReset);
    let timers = connected.recv().map_err(|_| lost())??;
    let calls = Arc::new(CallNumbers::new(state.client.load(Relaxed)));
    let ingress = RemoteIngress {
        requests: sender,
        work: worker,
        state,
        timers,
        calls,
        waits_for_ever,
        start,
    };
    Ok(ClientHandle::new(NodeId::application(0), Arc::new(ingress)))
}

/// Sends what comes from the handles, until all of them are gone.
async fn serve_handles(links: std::rc::Rc<VolumeLinks>, mut requests: mpsc::Receiver<Envelope>) {
    while let Some(envelope) = requests.recv().await {
        links.send(envelope);
    }
    links.finish(LAST_CALLS_MAX).await;
}

#[allow(clippy::disallowed_methods, reason = "the machine itself runs the tasks")]
async fn do_all(mut work_to_do: mpsc::Receiver<LocalTask>) {
    while let Some(work) = work_to_do.recv().await {
        tokio::task::spawn_local(work());
    }
}

/// The volume, as a handle sees it.
struct RemoteIngress {
    requests: mpsc::Sender<Envelope>,
    work: mpsc::Sender<LocalTask>,
    state: Arc<ClientState>,
    timers: Handle,
    calls: Arc<CallNumbers>,
    waits_for_ever: bool,
    start: Instant,
}

impl Ingress for RemoteIngress {
    fn send(&self, envelope: Envelope) {
        use mpsc::error::TrySendError;
        match self.requests.try_send(envelope) {
            Ok(()) => {}
            Err(TrySendError::Full(envelope)) => envelope.message.refuse(Undelivered::Busy),
            Err(TrySendError::Closed(envelope)) => {
                envelope.message.refuse(Undelivered::Unreachable);
            }
        }
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        sleep_on(&self.timers, duration)
    }

    fn fs_nodes(&self) -> u32 {
        self.state.fs_nodes.load(Relaxed)
    }

    fn epoch(&self) -> Epoch {
        Epoch(self.state.epoch.load(Relaxed))
    }

    fn call_numbers(&self) -> Option<Arc<CallNumbers>> {
        Some(self.calls.clone())
    }

    fn waits_for_ever(&self) -> bool {
        self.waits_for_ever
    }

    fn restarts(&self) -> Option<u64> {
        Some(self.state.restarts.load(Relaxed))
    }

    fn transfers(&self) -> Option<Arc<Transfers>> {
        Some(self.state.transfers.clone())
    }

    fn root(&self) -> Option<(u64, u64)> {
        self.state.root.get().copied()
    }

    #[allow(clippy::disallowed_methods, reason = "the machine itself gives the time")]
    fn now(&self) -> Option<Duration> {
        Some(self.start.elapsed())
    }

    fn run(&self, work: LocalTask) {
        if self.work.try_send(work).is_err() {
            tracing::debug!("work was dropped: the client is over, or has too much of it");
        }
    }
}
