//! Accepts connections within the limits, and stops.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures::future::{Either, select};
use runtime::Context;
use runtime::metrics::MetricKind;
use runtime::net::{Address, ByteStream, Listener};
use runtime::sync::Event;

use crate::config::Config;
use crate::connection::{ClientConnection, GatewayShared};
use crate::dispatch::RpcPrograms;
use crate::exports::Exports;
use crate::metrics::{GatewayMetric, Metrics, SlowCallLog};
use crate::peer::RpcPeer;
use crate::signal::{Signal, WakerSlot};

/// The pause after a failed accept, so that a lack of file descriptors does not become a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why a gateway does not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Cannot listen at the address: it is in use, not local, or not permitted. Choose another one.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// The address.
        address: Address,
        /// The cause.
        source: std::io::Error,
    },
}

/// A running gateway. Dropping it does not stop it; [`stop`](Self::stop) does.
pub struct Gateway {
    server: Rc<Server>,
    address: Address,
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Gateway {
    /// Serves NFS at `address` from the node of `ctx`, an application node.
    pub async fn start(ctx: Context, address: &Address, config: Config) -> Result<Self, Error> {
        match ctx.listen(address).await {
            Ok(listener) => Ok(Self::serve(&ctx, listener, config)),
            Err(source) => Err(Error::Listen { address: address.clone(), source }),
        }
    }

    /// As [`start`](Self::start), for the connections of `listener`.
    pub fn serve(ctx: &Context, listener: Box<dyn Listener>, config: Config) -> Self {
        let address = listener.address();
        let metrics = Rc::new(Metrics::default());
        let programs = RpcPrograms::new(ctx.clone(), &config, metrics.clone());
        let slow = SlowCallLog::new(config.slow);
        let next_trace = Cell::new(ctx.random());
        let (ctx_of_all, recv_buffers) = (ctx.clone(), Rc::default());
        let shared = GatewayShared {
            ctx: ctx_of_all,
            config,
            programs,
            metrics,
            slow,
            recv_buffers,
            next_trace,
        };
        let server = Rc::new(Server {
            shared: Rc::new(shared),
            stopping: Rc::default(),
            accepting: Cell::new(true),
            connections: RefCell::default(),
            next_id: Cell::new(0),
            ended: Event::default(),
        });
        ctx.task(server.clone().accept(listener));
        Self { server, address }
    }

    /// The address that it listens at, with the port that the system has chosen.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The number of connections.
    pub fn connections(&self) -> usize {
        self.server.connections.borrow().len()
    }

    /// Replaces the exports from the next call on, also for existing mounts.
    pub fn export(&self, exports: Exports) {
        self.server.shared.programs.export(exports);
    }

    /// The metrics in the text format of Prometheus.
    pub fn metrics(&self) -> String {
        self.server.metrics_text()
    }

    /// Stops: accepts and reads no more, waits for the running calls (for [`Config::drain`] at
    /// most), closes all connections.
    pub async fn stop(&self) {
        self.server.stop().await;
    }
}

struct Server {
    shared: Rc<GatewayShared>,
    stopping: Rc<Signal>,
    /// The accepting task is running.
    accepting: Cell<bool>,
    connections: RefCell<BTreeMap<u64, Rc<ClientConnection>>>,
    next_id: Cell<u64>,
    /// A connection, or the accepting task, has ended.
    ended: Event,
}

impl Server {
    fn metrics_text(&self) -> String {
        let connections = self.connections.borrow();
        let sum = |count: fn(&ClientConnection) -> usize| {
            connections.values().map(|connection| count(connection) as u64).sum()
        };
        let (delegated, totals) = self.shared.programs.delegation_totals();
        let gauge =
            |name, help, value| GatewayMetric { kind: MetricKind::Gauge, name, help, value };
        let counter =
            |name, help, value| GatewayMetric { kind: MetricKind::Counter, name, help, value };
        let gateway = [
            gauge("connections", "Open connections of clients.", connections.len() as u64),
            gauge(
                "outstanding_calls",
                "Calls whose reply is not sent yet.",
                sum(ClientConnection::outstanding_calls),
            ),
            gauge(
                "outstanding_bytes",
                "Bytes of such calls and of their replies, at most.",
                sum(ClientConnection::outstanding_bytes),
            ),
            gauge("delegations", "Delegations that clients have.", delegated as u64),
            counter("delegations_granted_total", "Delegations granted.", totals.granted),
            counter("delegations_recalled_total", "Delegations recalled.", totals.recalled),
            counter("delegations_returned_total", "Delegations returned.", totals.returned),
            counter(
                "delegations_revoked_total",
                "Delegations of clients that were silent for too long.",
                totals.revoked,
            ),
        ];
        self.shared.metrics.text(&gateway)
    }

    async fn accept(self: Rc<Self>, mut listener: Box<dyn Listener>) {
        let mut stopping = pin!(self.stopping.wait());
        loop {
            match select(listener.accept(), &mut stopping).await {
                Either::Left((Ok(stream), _)) => self.connect(stream),
                Either::Left((Err(error), _)) => {
                    tracing::warn!(target: "mdfs::nfs", "cannot accept a connection: {error}");
                    self.shared.ctx.sleep(ACCEPT_PAUSE).await;
                }
                Either::Right(_) => break,
            }
        }
        self.accepting.set(false);
        self.ended.tell();
    }

    fn connect(self: &Rc<Self>, stream: ByteStream) {
        let writer = Rc::<WakerSlot>::default();
        let peer = RpcPeer::new(&stream.peer, self.shared.ctx.random(), writer.clone());
        if let Err(limit) = self.check_limits(&peer.host) {
            // Dropping the stream closes it.
            tracing::warn!(target: "mdfs::nfs", peer = stream.peer, "refused: {limit}");
            return;
        }
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        let connection = ClientConnection::new(self.shared.clone(), peer, writer);
        self.connections.borrow_mut().insert(id, connection.clone());
        let server = self.clone();
        self.shared.ctx.task(async move {
            connection.run(stream).await;
            server.connections.borrow_mut().remove(&id);
            server.ended.tell();
        });
    }

    /// Checks that `host` may have one more connection. At a limit the oldest connection without
    /// any call is closed: unused connections must not keep others out.
    fn check_limits(&self, host: &str) -> Result<(), &'static str> {
        let config = &self.shared.config;
        let of_peer = |connection: &ClientConnection| connection.host() == host;
        self.evict_unused(config.connections_per_peer_max, of_peer)
            .then_some(())
            .ok_or("too many connections of one peer")?;
        let of_any = |_: &ClientConnection| true;
        self.evict_unused(config.connections_max, of_any)
            .then_some(())
            .ok_or("too many connections")
    }

    /// True if there are fewer than `most` connections `among` all, if need be by closing an unused
    /// one.
    fn evict_unused(&self, most: usize, among: impl Fn(&ClientConnection) -> bool) -> bool {
        let mut connections = self.connections.borrow_mut();
        if connections.values().filter(|connection| among(connection)).count() < most {
            return true;
        }
        let is_unused = |connection: &ClientConnection| among(connection) && connection.is_unused();
        let oldest = connections.iter().find(|(_, connection)| is_unused(connection));
        let Some(oldest) = oldest.map(|(id, _)| *id) else { return false };
        if let Some(connection) = connections.remove(&oldest) {
            tracing::debug!(target: "mdfs::nfs", host = connection.host(), "closed: unused, and at the limit of connections");
            connection.close();
        }
        true
    }

    async fn stop(&self) {
        self.stopping.raise();
        let connections: Vec<_> = self.connections.borrow().values().cloned().collect();
        for connection in connections {
            connection.stop();
        }
        while self.accepting.get() || !self.connections.borrow().is_empty() {
            self.ended.next().await;
        }
    }
}
