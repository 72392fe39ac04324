//! The side of a client that offers, for one of its links.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use runtime::wire::from_bytes;

use super::Fabrics;
use super::asking::{OPEN_TIME_MAX, REST, now, offer_frame, read_grant};
use super::frame_path::FramePath;
use super::pair::PairCommand;
use super::shared::PairUse;
use crate::frame::FabricAnswer;

/// How far a link has come.
#[derive(Debug)]
enum FrameState {
    /// It makes an offer then, or never.
    Rests(Option<Instant>),
    Offered(Instant),
    Has(Arc<FramePath>, Instant),
    /// Frames may be lost: the other side is to be told first that the path is over.
    Lost,
    /// It was told.
    Ending,
}

/// What an answer of the other side means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum AskedGrant {
    /// Nothing new.
    Nothing,
    /// There is a path, or soon will be.
    Granted,
    /// The other side knows that the last path is over, and sends nothing by it any more.
    Confirmed,
}

/// Gets a path for the frames of one link, and a new one when it is lost.
#[derive(Debug)]
pub(in super::super) struct FrameAsking {
    fabrics: Arc<Fabrics>,
    process: u32,
    seals: bool,
    state: FrameState,
}

impl FrameAsking {
    /// For a link to this process; `None` if this host has no libfabric.
    pub(in super::super) fn new(fabrics: &Arc<Fabrics>, seals: bool, process: u32) -> Option<Self> {
        let state = FrameState::Rests(Some(now()));
        let fabrics = fabrics.clone();
        (!fabrics.providers().is_empty()).then_some(Self { fabrics, process, seals, state })
    }

    /// Looks after the path; true if it is over, and frames on it may be lost. Then the
    /// [offer](Self::offer) goes before all other frames.
    pub(in super::super) fn is_lost(&mut self) -> bool {
        let why = match &self.state {
            FrameState::Has(path, _) if path.is_over() => "a connection broke",
            FrameState::Has(path, since) if !path.is_open() && since.elapsed() > OPEN_TIME_MAX => {
                "it does not accept connections"
            }
            FrameState::Offered(since) if since.elapsed() > OPEN_TIME_MAX => {
                "it does not answer an offer"
            }
            _ => return false,
        };
        let before = std::mem::replace(&mut self.state, FrameState::Lost);
        if let FrameState::Has(path, _) = before {
            self.fabrics.fall_back(self.process, path.pair.provider(), why);
            path.end();
        }
        true
    }

    /// The frames to be sent to the other side now.
    pub(in super::super) fn offer(&mut self) -> Vec<Bytes> {
        match &self.state {
            FrameState::Rests(Some(until)) if *until <= now() => {
                self.state = FrameState::Offered(now());
                offer_frame(&self.fabrics, self.fabrics.providers())
            }
            FrameState::Lost => {
                self.state = FrameState::Ending;
                offer_frame(&self.fabrics, &[])
            }
            _ => Vec::new(),
        }
    }

    /// The other side has answered, or what it has granted is over.
    pub(in super::super) fn take_grant(&mut self, head: &[u8]) -> AskedGrant {
        let Ok(grant) = from_bytes::<FabricAnswer>(head) else { return AskedGrant::Nothing };
        let is_none = grant.provider.is_empty();
        match &self.state {
            FrameState::Has(path, _) if is_none && grant.ticket == path.ticket => {
                path.end();
                AskedGrant::Nothing
            }
            // It has nothing that we have, or no room.
            FrameState::Offered(_) if is_none && grant.ticket.is_empty() => {
                if self.fabrics.shared.options.is_told {
                    let process = self.process;
                    tracing::warn!(process, "the server has none of the providers, or no room");
                }
                self.state = FrameState::Rests(None);
                AskedGrant::Nothing
            }
            FrameState::Offered(_) if !is_none => {
                self.state = match self.open(grant) {
                    Some(path) => FrameState::Has(path, now()),
                    None => FrameState::Lost,
                };
                AskedGrant::Granted
            }
            FrameState::Ending if is_none && grant.ticket.is_empty() => {
                self.state = FrameState::Rests(Some(now() + REST));
                AskedGrant::Confirmed
            }
            _ => AskedGrant::Nothing,
        }
    }

    fn open(&self, grant: FabricAnswer) -> Option<Arc<FramePath>> {
        let (provider, ticket, key) = read_grant(&self.fabrics, &grant, self.seals)?;
        let pair = self.fabrics.client_pair(provider, None, PairUse::ByClient)?;
        let all = self.fabrics.shared.client_bytes.clone();
        let path = Arc::new(FramePath::new(pair.clone(), ticket, all));
        let (address, own) = (grant.address, path.clone());
        pair.tell(PairCommand::Connect { address, ticket, key, path: own });
        Some(path)
    }

    /// The path, if there is one.
    pub(in super::super) fn path(&self) -> Option<&Arc<FramePath>> {
        if let FrameState::Has(path, _) = &self.state { Some(path) } else { None }
    }
}

impl Drop for FrameAsking {
    fn drop(&mut self) {
        if let FrameState::Has(path, _) = &self.state {
            path.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use ::fabric::transport::{KEY_SIZE, TICKET_SIZE};

    use super::super::{FabricOptions, Provider};
    use super::*;

    #[test]
    fn a_grant_over_tls_without_a_whole_key_is_no_grant() {
        let providers = vec![Provider::Tcp];
        let options = FabricOptions { providers, source: None, costs: None, is_told: true };
        let fabrics = Fabrics::new(options);
        let grant = |provider: &str, ticket, key: usize| FabricAnswer {
            provider: provider.to_owned(),
            ticket: vec![1; ticket],
            key: vec![2; key],
            ..FabricAnswer::default()
        };
        let name = Provider::Tcp.name();
        let is_taken = |grant: &FabricAnswer, seals| read_grant(&fabrics, grant, seals).is_some();
        assert!(is_taken(&grant(name, TICKET_SIZE, KEY_SIZE), true));
        assert!(is_taken(&grant(name, TICKET_SIZE, 0), false), "nothing is sealed there");
        for (provider, ticket, key) in [
            (name, TICKET_SIZE, 0),
            (name, TICKET_SIZE, KEY_SIZE - 1),
            (name, TICKET_SIZE - 1, KEY_SIZE),
            ("shm", TICKET_SIZE, KEY_SIZE),
            ("other", TICKET_SIZE, KEY_SIZE),
        ] {
            assert!(!is_taken(&grant(provider, ticket, key), true), "{provider} {ticket} {key}");
        }
    }
}
