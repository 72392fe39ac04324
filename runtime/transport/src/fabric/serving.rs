//! The side of a link that grants, and answers.

use std::sync::Arc;

use ::fabric::random_bytes;
use ::fabric::transport::{KEY_SIZE, SealKey, TICKET_SIZE};
use futures::stream::{self, Stream, StreamExt as _};
use tokio::sync::oneshot;

use super::pair::{FabricPair, PairCommand};
use super::paths::ServedLink;
use super::shared::{Incarnation, Peer};
use super::{Fabrics, Provider};
use crate::frame::{FabricAnswer, FabricOffer};
use runtime::context::Context;

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
    /// Takes up an offer, if there is a provider that both have; with what is told about it, first
    /// when the endpoint is there, and last when it is over.
    pub(in super::super) fn of(
        fabrics: &Arc<Fabrics>,
        seals: bool,
        context: &Context,
        incarnation: Incarnation,
        offer: &FabricOffer,
    ) -> Option<(Self, impl Stream<Item = FabricAnswer> + use<>)> {
        let ingress = context.ingress()?;
        let theirs = offer.providers.iter().filter_map(|name| Provider::of_name(name));
        let provider = theirs
            .filter(|provider| fabrics.providers().contains(provider))
            .find(|provider| *provider != Provider::Shm || offer.host == fabrics.host)?;
        let ticket = random_bytes::<TICKET_SIZE>().ok()?;
        let key: SealKey = if seals { Some(random_bytes::<KEY_SIZE>().ok()?) } else { None };
        let pair = fabrics.pair(Peer { incarnation, instance: offer.instance, provider })?;
        let served = Arc::new(ServedLink::new(pair.clone(), ingress));
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
