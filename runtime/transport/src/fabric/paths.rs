//! The requests of one link between processes over libfabric, at either side.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};

use ::fabric::transport::{ConnectionId, TICKET_SIZE};
use runtime::client_handle::{EncodedRequest, ReplySender};
use runtime::ids::NodeId;
use runtime::machine::Ingress;
use runtime::mail::{Envelope, Message};
use runtime::protocol::Undelivered;
use runtime::wire::{Decoder, Encoder};

use super::pair::{FabricPair, PairCommand};
use super::shared::CALLS_MAX;
use crate::frame::{FrameHeader, LinkFrame, kind, pack_apart, request};
use runtime::sync::lock;

/// Calls without an answer. Dropping one tells its asker that the answer is lost.
pub(in super::super) type Over = BTreeMap<u64, Box<dyn Message>>;

/// What uses a connection.
pub(super) trait FabricPath: Send + Sync {
    /// Messages can be sent.
    fn opened(&self, connection: ConnectionId);
    /// A message has come; false if that breaks the rules.
    #[must_use]
    fn take(self: Arc<Self>, frame: LinkFrame) -> bool;
    /// Nothing more comes.
    fn lost(&self);
    /// How many of all bytes that it was given to send have left.
    fn note_sent(&self, _bytes: u64) {}
}

/// Requests of one link over libfabric.
pub(in super::super) struct RequestPath {
    pub(super) pair: Arc<FabricPair>,
    pub(super) ticket: [u8; TICKET_SIZE],
    /// Once it is open.
    connection: OnceLock<ConnectionId>,
    next_id: AtomicU64,
    /// `None` when it is over.
    calls: Mutex<Option<Over>>,
}

impl std::fmt::Debug for RequestPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestPath").field("connection", &self.connection).finish_non_exhaustive()
    }
}

impl RequestPath {
    pub(super) fn new(pair: Arc<FabricPair>, ticket: [u8; TICKET_SIZE]) -> Self {
        let (connection, next_id) = (OnceLock::new(), AtomicU64::new(0));
        Self { pair, ticket, connection, next_id, calls: Mutex::new(Some(BTreeMap::new())) }
    }

    pub(super) fn is_open(&self) -> bool {
        self.connection.get().is_some() && !self.is_over()
    }

    pub(super) fn is_over(&self) -> bool {
        lock(&self.calls).is_none()
    }

    /// Sends a request on its way; gives it back if there is none any more.
    pub(in super::super) fn send(&self, envelope: Envelope) -> Option<Envelope> {
        let Some(connection) = self.connection.get().copied() else { return Some(envelope) };
        let call_id = self.next_id.fetch_add(1, Relaxed);
        let (header, body) = request(&envelope, call_id);
        let mut calls = lock(&self.calls);
        let Some(open) = &mut *calls else {
            drop(calls);
            return Some(envelope);
        };
        if open.len() >= CALLS_MAX {
            drop(calls);
            envelope.message.refuse(Undelivered::Busy);
            return None;
        }
        open.insert(call_id, envelope.message);
        drop(calls);
        let (head, bulk) = pack_apart(header, body);
        self.pair.tell(PairCommand::Send { connection, head, bulk });
        None
    }

    /// Nothing more comes: gives the calls without an answer.
    fn lose(&self) -> Over {
        lock(&self.calls).take().unwrap_or_default()
    }

    /// The link is over.
    pub(super) fn end(&self) -> Over {
        self.pair.tell(PairCommand::Leave { ticket: self.ticket });
        self.lose()
    }
}

impl FabricPath for RequestPath {
    fn opened(&self, connection: ConnectionId) {
        // It is opened once.
        let _ = self.connection.set(connection);
    }

    /// A reply has come.
    fn take(self: Arc<Self>, frame: LinkFrame) -> bool {
        if frame.header.kind != kind::REPLY {
            return false;
        }
        let id = frame.header.call_id;
        let call = lock(&self.calls).as_mut().and_then(|open| open.remove(&id));
        if let Some(call) = call {
            call.answer_bytes(Decoder::new(&frame.head, frame.bulk));
        }
        true
    }

    fn lost(&self) {
        drop(self.lose());
    }
}

/// Requests of one link of another process.
pub(super) struct ServedLink {
    pair: Arc<FabricPair>,
    ingress: Arc<dyn Ingress>,
    /// Once it is open.
    connection: OnceLock<ConnectionId>,
    /// Requests without a reply.
    running: AtomicUsize,
}

impl ServedLink {
    pub(super) fn new(pair: Arc<FabricPair>, ingress: Arc<dyn Ingress>) -> Self {
        Self { pair, ingress, connection: OnceLock::new(), running: AtomicUsize::new(0) }
    }

    fn reply(&self, asked: FrameHeader, bytes: Encoder) {
        self.running.fetch_sub(1, Relaxed);
        let Some(connection) = self.connection.get().copied() else { return };
        let (head, bulk) = pack_apart(asked.of_reply(), bytes);
        self.pair.tell(PairCommand::Send { connection, head, bulk });
    }
}

impl FabricPath for ServedLink {
    /// The process has come by its ticket.
    fn opened(&self, connection: ConnectionId) {
        // It is opened once.
        let _ = self.connection.set(connection);
    }

    /// A request has come.
    fn take(self: Arc<Self>, frame: LinkFrame) -> bool {
        let LinkFrame { header, head, bulk } = frame;
        if header.kind != kind::REQUEST || self.running.fetch_add(1, Relaxed) >= CALLS_MAX {
            return false;
        }
        let served = self.clone();
        let reply = ReplySender::by(move |bytes| served.reply(header, bytes));
        let to = NodeId(header.to);
        let ask = Box::new(EncodedRequest {
            caller: header.caller(),
            table: (header.protocol, header.protocol_version),
            head,
            bulk,
            reply,
        });
        let envelope = Envelope::new(to, ask.caller, header.class(), ask);
        if self.ingress.is_here(to) {
            self.ingress.send(envelope);
        } else {
            // Who looks for a node in the wrong place has old routes; it is not sent on.
            envelope.message.refuse(Undelivered::Unreachable);
        }
        true
    }

    /// Its requests go on; their replies are not sent.
    fn lost(&self) {}
}
