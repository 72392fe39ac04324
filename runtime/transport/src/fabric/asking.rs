//! The side of a link that offers, and asks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ::fabric::transport::{KEY_SIZE, SealKey};
use bytes::Bytes;

use super::pair::{PairCommand, Ticket};
use super::paths::{Over, RequestPath};
use super::shared::{Incarnation, Peer};
use super::{Fabrics, Provider};
use crate::frame::{FabricAnswer, FabricOffer, frame_beside_calls, kind};
use runtime::wire::from_bytes;

/// After a failure of libfabric, the link does without it this long.
pub(super) const REST: Duration = Duration::from_secs(5);
/// An offer without an answer, or an endpoint that does not connect, has failed after this time.
pub(super) const OPEN_TIME_MAX: Duration = Duration::from_secs(5);

/// How far a link has come.
#[derive(Debug)]
enum OfferState {
    /// It makes an offer then, or never.
    Rests(Option<Instant>),
    Offered(Instant),
    Has(Arc<RequestPath>, Instant),
}

/// Gets a way for one link, and a new one when it is lost.
#[derive(Debug)]
pub(in super::super) struct Asking {
    fabrics: Arc<Fabrics>,
    incarnation: Incarnation,
    /// Whether what is not sealed is refused.
    seals: bool,
    state: OfferState,
}

/// What makes an offer of `providers`; of none, it ends what was granted before.
pub(super) fn offer_frame(fabrics: &Fabrics, providers: &[Provider]) -> Vec<Bytes> {
    let offer = FabricOffer {
        host: fabrics.host.clone(),
        instance: fabrics.shared.instance,
        providers: providers.iter().map(|one| one.name().to_owned()).collect(),
    };
    frame_beside_calls(kind::OFFER, &offer)
}

/// Provider, ticket and key of a grant; `None` if it is none of ours, or brings no key though it
/// should.
pub(super) fn read_grant(
    fabrics: &Fabrics,
    grant: &FabricAnswer,
    seals: bool,
) -> Option<(Provider, Ticket, SealKey)> {
    let provider = Provider::of_name(&grant.provider)?;
    let ticket = Ticket::try_from(&grant.ticket[..]).ok()?;
    let key: SealKey = match grant.key.len() {
        0 if !seals => None,
        KEY_SIZE => Some(grant.key[..].try_into().ok()?),
        _ => return None,
    };
    fabrics.providers().contains(&provider).then_some((provider, ticket, key))
}

#[allow(clippy::disallowed_methods, reason = "the machine itself looks at the clock")]
pub(super) fn now() -> Instant {
    Instant::now()
}

impl Asking {
    /// `None` if this process has no libfabric.
    pub(in super::super) fn new(
        fabrics: &Arc<Fabrics>,
        seals: bool,
        incarnation: Incarnation,
    ) -> Option<Self> {
        let fabrics = fabrics.clone();
        (!fabrics.providers().is_empty()).then(|| Self {
            fabrics,
            incarnation,
            seals,
            state: OfferState::Rests(Some(now())),
        })
    }

    /// The frames to be sent to the other side now.
    pub(in super::super) fn offer(&mut self) -> Vec<Bytes> {
        let now = now();
        match &self.state {
            OfferState::Rests(Some(until)) if *until <= now => {}
            OfferState::Has(way, since) => {
                let is_late = !way.is_open() && now.duration_since(*since) > OPEN_TIME_MAX;
                let is_over = way.is_over();
                if is_over || is_late {
                    let why = if is_over {
                        "a connection broke"
                    } else {
                        "it does not accept connections"
                    };
                    self.fabrics.fall_back(self.incarnation.0, way.pair.provider(), why);
                    self.rest();
                }
                return Vec::new();
            }
            OfferState::Offered(since) if now.duration_since(*since) > OPEN_TIME_MAX => {
                self.rest();
                return Vec::new();
            }
            _ => return Vec::new(),
        }
        self.state = OfferState::Offered(now);
        offer_frame(&self.fabrics, self.fabrics.providers())
    }

    fn rest(&mut self) {
        self.state = OfferState::Rests(Some(now() + REST));
    }

    /// The other side has answered, or what it has granted is over: gives what has to be dropped.
    pub(in super::super) fn take_grant(&mut self, head: &[u8]) -> Option<Over> {
        let grant = from_bytes::<FabricAnswer>(head).ok()?;
        match &self.state {
            OfferState::Has(way, _) if grant.provider.is_empty() && grant.ticket == way.ticket => {
                self.fabrics.fall_back(
                    self.incarnation.0,
                    way.pair.provider(),
                    "the other side ends it",
                );
                let over = way.end();
                self.rest();
                return Some(over);
            }
            // It has nothing that we have, in this life.
            OfferState::Offered(_) if grant.provider.is_empty() => {
                self.state = OfferState::Rests(None);
            }
            OfferState::Offered(_) => match self.open(grant) {
                Some(way) => self.state = OfferState::Has(way, now()),
                None => self.rest(),
            },
            _ => {}
        }
        None
    }

    fn open(&self, grant: FabricAnswer) -> Option<Arc<RequestPath>> {
        let (provider, ticket, key) = read_grant(&self.fabrics, &grant, self.seals)?;
        let peer = Peer { incarnation: self.incarnation, instance: grant.instance, provider };
        let pair = self.fabrics.pair(peer)?;
        let way = Arc::new(RequestPath::new(pair.clone(), ticket));
        let path = way.clone();
        pair.tell(PairCommand::Connect { address: grant.address, ticket, key, path });
        Some(way)
    }

    /// The way, if requests can go there.
    pub(in super::super) fn way(&self) -> Option<Arc<RequestPath>> {
        match &self.state {
            OfferState::Has(way, _) if way.is_open() => Some(way.clone()),
            _ => None,
        }
    }

    /// The link is over: gives what has to be dropped.
    pub(in super::super) fn end(&mut self) -> Option<Over> {
        let before = std::mem::replace(&mut self.state, OfferState::Rests(Some(now())));
        if let OfferState::Has(way, _) = before { Some(way.end()) } else { None }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        drop(self.end());
    }
}
