//! The side of a link that grants, and answers.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use ::fabric::random_bytes;
use ::fabric::transport::{ConnectionId, KEY_SIZE, SealKey, TICKET_SIZE};
use futures::stream::{self, Stream, StreamExt as _};
use tokio::sync::oneshot;

use super::pair::{FabricPair, PairCommand};
use super::{CALLS_MAX, Incarnation, Peer, Provider};
use crate::frame::{FabricAnswer, FabricOffer, FrameHeader, LinkFrame, kind, pack_apart};
use crate::guard::{Guard, Security};
use runtime::client_handle::{EncodedRequest, ReplySender};
use runtime::context::Context;
use runtime::ids::NodeId;
use runtime::machine::Ingress;
use runtime::mail::Envelope;
use runtime::protocol::Undelivered;
use runtime::wire::Encoder;

/// Something was granted over a link; dropped with it.
pub(in super::super) struct Granted {
    pair: Arc<FabricPair>,
    ticket: [u8; TICKET_SIZE],
}

impl Drop for Granted {
    fn drop(&mut self) {
        self.pair.tell(PairCommand::Leave { ticket: self.ticket });
    }
}

impl Granted {
    /// Takes up an offer, if there is a provider that both have; with what is told about it, first when the
    /// endpoint is there, and last when it is over.
    pub(in super::super) fn of(
        guard: &Guard,
        context: &Context,
        incarnation: Incarnation,
        offer: &FabricOffer,
    ) -> Option<(Self, impl Stream<Item = FabricAnswer> + use<>)> {
        let fabrics = guard.fabrics()?;
        let ingress = context.ingress()?;
        let theirs = offer.providers.iter().filter_map(|name| Provider::of_name(name));
        let provider = theirs
            .filter(|provider| fabrics.providers().contains(provider))
            .find(|provider| *provider != Provider::Shm || offer.host == fabrics.host)?;
        let ticket = random_bytes::<TICKET_SIZE>().ok()?;
        let key: SealKey = match guard.security() {
            Security::None => None,
            #[cfg(feature = "tls")]
            Security::Tls(_) => Some(random_bytes::<KEY_SIZE>().ok()?),
        };
        let pair = fabrics.pair(Peer { incarnation, instance: offer.instance, provider })?;
        let served = Arc::new(ServedLink {
            pair: pair.clone(),
            ingress,
            connection: OnceLock::new(),
            running: AtomicUsize::new(0),
        });
        let (tell, told) = oneshot::channel();
        let (lasts, over) = oneshot::channel::<()>();
        pair.tell(PairCommand::Admit { ticket, key, served, tell, lasts });
        let first = stream::once(async { told.await.unwrap_or_default() });
        let last = stream::once(async move {
            // Nothing is ever sent: it is dropped.
            let _ = over.await;
            FabricAnswer { ticket: ticket.to_vec(), ..FabricAnswer::default() }
        });
        Some((Self { pair, ticket }, first.chain(last)))
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
    /// The process has come by its ticket.
    pub(super) fn opened(&self, connection: ConnectionId) {
        // It is opened once.
        let _ = self.connection.set(connection);
    }

    /// A request has come; false if that breaks the rules.
    #[must_use]
    pub(super) fn take(self: &Arc<Self>, frame: LinkFrame) -> bool {
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

    fn reply(&self, asked: FrameHeader, bytes: Encoder) {
        self.running.fetch_sub(1, Relaxed);
        let Some(connection) = self.connection.get().copied() else { return };
        let (head, bulk) = pack_apart(asked.of_reply(), bytes);
        self.pair.tell(PairCommand::Send { connection, head, bulk });
    }
}
