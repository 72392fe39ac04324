//! What each peer uses of the gateway: connections, bytes of incomplete records, outstanding bytes.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use runtime::sync::Event;

use crate::byte_quota::{ByteQuota, QuotaShare};
use crate::config::Config;

/// Peers without a connection that are remembered, beyond twice those that have one.
const UNCONNECTED_MAX: usize = 64;

/// What one peer uses.
#[derive(Debug)]
pub(crate) struct PeerUsage {
    /// Its connections.
    pub(crate) connections: Cell<usize>,
    /// Bytes of records that are being received.
    pub(crate) incomplete: Rc<QuotaShare>,
    /// Bytes of calls whose reply is not sent yet, and of the replies.
    pub(crate) outstanding: Rc<QuotaShare>,
}

impl PeerUsage {
    fn is_used(&self) -> bool {
        self.connections.get() + self.incomplete.used() + self.outstanding.used() > 0
    }

    /// Does a reservation wait for bytes that this peer uses?
    pub(crate) fn is_in_the_way(&self) -> bool {
        [&self.incomplete, &self.outstanding]
            .iter()
            .any(|share| share.quota().has_waiters_for(share))
    }
}

/// The usage of all peers, by host.
#[derive(Debug)]
pub(crate) struct PeerUsages {
    incomplete: Rc<ByteQuota>,
    outstanding: Rc<ByteQuota>,
    peers: RefCell<BTreeMap<String, Rc<PeerUsage>>>,
    /// A reservation of a peer began to wait.
    pub(crate) pressure: Rc<Event>,
}

impl PeerUsages {
    /// Within the limits of `config`.
    pub(crate) fn new(config: &Config) -> Self {
        let pressure = Rc::<Event>::default();
        let quota = |most, of_peer| ByteQuota::new(most, of_peer, pressure.clone());
        Self {
            incomplete: quota(config.incomplete_bytes_max, config.incomplete_bytes_per_peer_max),
            outstanding: quota(
                config.outstanding_bytes_total_max,
                config.outstanding_bytes_per_peer_max,
            ),
            peers: RefCell::default(),
            pressure,
        }
    }

    /// The usage of `host`.
    pub(crate) fn of(&self, host: &str, connections: usize) -> Rc<PeerUsage> {
        let mut peers = self.peers.borrow_mut();
        if let Some(peer) = peers.get(host) {
            return peer.clone();
        }
        if peers.len() >= 2 * connections + UNCONNECTED_MAX {
            peers.retain(|_, peer| peer.is_used());
        }
        let peer = Rc::new(PeerUsage {
            connections: Cell::default(),
            incomplete: QuotaShare::new(self.incomplete.clone()),
            outstanding: QuotaShare::new(self.outstanding.clone()),
        });
        peers.insert(host.to_owned(), peer.clone());
        peer
    }

    /// Does a reservation wait?
    pub(crate) fn has_waiters(&self) -> bool {
        self.incomplete.has_waiters() || self.outstanding.has_waiters()
    }
}
