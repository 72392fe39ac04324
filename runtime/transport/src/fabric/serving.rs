//! The side of a link that grants, and answers.

use std::sync::Arc;

use ::fabric::random_bytes;
use ::fabric::transport::{KEY_SIZE, SealKey};
use futures::stream::{self, Stream, StreamExt as _};
use tokio::sync::oneshot;

use super::frame_path::FramePath;
use super::pair::{FabricPair, PairCommand, Ticket};
use super::paths::{FabricPath, ServedLink};
use super::shared::{Incarnation, PairUse, Peer};
use super::{Fabrics, Provider};
use crate::frame::{FabricAnswer, FabricOffer};
use runtime::context::Context;

/// Something was granted over a link; dropped with it.
pub(in super::super) struct Granted {
    pair: Arc<FabricPair>,
    ticket: Ticket,
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
        let provider = common_provider(fabrics, offer)?;
        let pair = fabrics.pair(Peer { incarnation, instance: offer.instance, provider })?;
        let served = Arc::new(ServedLink::new(pair.clone(), ingress));
        let ticket = random_bytes().ok()?;
        let telling = admit(&pair, ticket, seals, served)?;
        Some((Self { pair, ticket }, telling))
    }
}

/// The same for the frames of a client's link; dropped with it.
pub(in super::super) struct GrantedFrames(Arc<FramePath>);

impl Drop for GrantedFrames {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl GrantedFrames {
    /// Takes up the offer of a client of `account`.
    pub(in super::super) fn of(
        fabrics: &Arc<Fabrics>,
        seals: bool,
        account: Option<u64>,
        offer: &FabricOffer,
    ) -> Option<(Self, impl Stream<Item = FabricAnswer> + use<>)> {
        let provider = common_provider(fabrics, offer)?;
        let pair = fabrics.client_pair(provider, account, PairUse::OfClient)?;
        let ticket = random_bytes().ok()?;
        let path =
            Arc::new(FramePath::new(pair.clone(), ticket, fabrics.shared.client_bytes.clone()));
        let telling = admit(&pair, ticket, seals, path.clone())?;
        Some((Self(path), telling))
    }

    pub(in super::super) fn path(&self) -> &Arc<FramePath> {
        &self.0
    }
}

fn common_provider(fabrics: &Fabrics, offer: &FabricOffer) -> Option<Provider> {
    let theirs = offer.providers.iter().filter_map(|name| Provider::of_name(name));
    theirs
        .filter(|provider| fabrics.providers().contains(provider))
        .find(|provider| *provider != Provider::Shm || offer.host == fabrics.host)
}

/// Lets a peer in that shows `ticket`; gives what is told about it.
fn admit(
    pair: &FabricPair,
    ticket: Ticket,
    seals: bool,
    path: Arc<dyn FabricPath>,
) -> Option<impl Stream<Item = FabricAnswer> + use<>> {
    let key: SealKey = if seals { Some(random_bytes::<KEY_SIZE>().ok()?) } else { None };
    let (tell, told) = oneshot::channel();
    let (lasts, over) = oneshot::channel::<()>();
    pair.tell(PairCommand::Admit { ticket, key, path, tell, lasts });
    let first = stream::once(async { told.await.unwrap_or_default() });
    let last = stream::once(async move {
        // Nothing is ever sent: it is dropped.
        let _ = over.await;
        FabricAnswer { ticket: ticket.to_vec(), ..FabricAnswer::default() }
    });
    Some(first.chain(last))
}
