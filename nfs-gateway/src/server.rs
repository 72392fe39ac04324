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
use crate::peer_log::PeerLog;
use crate::peer_usage::{PeerUsage, PeerUsages};
use crate::signal::{Signal, WakerSlot};

/// The pause after a failed accept, so that a lack of file descriptors does not become a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How often slow connections are looked for while others wait for their bytes.
const RELIEF_PAUSE: Duration = Duration::from_millis(250);

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
        let log = PeerLog::new(ctx.clone());
        let programs = RpcPrograms::new(ctx.clone(), &config, metrics.clone(), log.clone());
        let slow = SlowCallLog::new(config.slow);
        let next_trace = Cell::new(ctx.random());
        let (ctx_of_all, recv_buffers) = (ctx.clone(), Rc::default());
        let usages = PeerUsages::new(&config);
        let shared = GatewayShared {
            ctx: ctx_of_all,
            config,
            programs,
            metrics,
            slow,
            recv_buffers,
            usages,
            log,
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
        ctx.task(server.clone().relieve());
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
        let usage = self.shared.usages.of(&peer.host, self.connections.borrow().len());
        if let Err(limit) = self.check_limits(&usage, &peer.host) {
            // Dropping the stream closes it.
            if self.shared.log.admits(&peer.host) {
                tracing::warn!(target: "mdfs::nfs", peer = stream.peer, "refused: {limit}");
            }
            return;
        }
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        usage.connections.set(usage.connections.get() + 1);
        let connection = ClientConnection::new(self.shared.clone(), peer, usage, writer);
        self.connections.borrow_mut().insert(id, connection.clone());
        let server = self.clone();
        self.shared.ctx.task(async move {
            connection.run(stream).await;
            server.remove(id);
            server.ended.tell();
        });
    }

    /// Checks that `host` may have one more connection. At a limit the oldest connection without
    /// any call is closed: unused connections must not keep others out.
    fn check_limits(&self, usage: &PeerUsage, host: &str) -> Result<(), &'static str> {
        let config = &self.shared.config;
        let is_full = usage.connections.get() >= config.connections_per_peer_max;
        if is_full && !self.evict_unused(|connection| connection.host() == host) {
            return Err("too many connections of one peer");
        }
        let is_full = self.connections.borrow().len() >= config.connections_max;
        if is_full && !self.evict_unused(|_| true) {
            return Err("too many connections");
        }
        Ok(())
    }

    /// Closes the oldest unused connection `among` all; false if there is none.
    fn evict_unused(&self, among: impl Fn(&ClientConnection) -> bool) -> bool {
        let connections = self.connections.borrow();
        let is_unused = |connection: &ClientConnection| among(connection) && connection.is_unused();
        let oldest = connections.iter().find(|(_, connection)| is_unused(connection));
        let oldest = oldest.map(|(id, _)| *id);
        drop(connections);
        let Some(oldest) = oldest else { return false };
        if let Some(connection) = self.remove(oldest) {
            tracing::debug!(target: "mdfs::nfs", host = connection.host(), "closed: unused, and at the limit of connections");
            connection.close();
        }
        true
    }

    fn remove(&self, id: u64) -> Option<Rc<ClientConnection>> {
        let connection = self.connections.borrow_mut().remove(&id)?;
        let count = &connection.usage().connections;
        count.set(count.get() - 1);
        Some(connection)
    }

    /// Closes connections that are too slow while others wait for the bytes that they use.
    async fn relieve(self: Rc<Self>) {
        let usages = &self.shared.usages;
        let mut stopping = pin!(self.stopping.wait());
        loop {
            let waiting = pin!(async {
                while !usages.has_waiters() {
                    usages.pressure.next().await;
                }
                self.shared.ctx.sleep(RELIEF_PAUSE).await;
            });
            if let Either::Right(_) = select(waiting, &mut stopping).await {
                return;
            }
            self.close_overdue();
        }
    }

    fn close_overdue(&self) {
        let now = self.shared.ctx.now();
        let connections = self.connections.borrow();
        let overdue = connections.values().filter(|connection| connection.is_overdue(now));
        // Before any is closed: what it gives back changes who waits.
        let in_the_way: Vec<_> =
            overdue.filter(|connection| connection.usage().is_in_the_way()).cloned().collect();
        drop(connections);
        for connection in in_the_way {
            connection.warn(&"closed: too slow, while others wait for memory");
            connection.close();
        }
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
