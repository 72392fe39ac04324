//! What all pairs of a process go by: providers, costs, totals.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use runtime::sync::lock;
use std::time::Duration;

use ::fabric::link::{EndpointOptions, Provider};
use ::fabric::policy::Policy;
use ::fabric::transport::{FabricCounters, TransportOptions};

/// Calls of one link that are open over libfabric, at most; past it the answer is `Busy`. Both
/// sides count.
pub(super) const CALLS_MAX: usize = 1000;
/// A peer is lost for libfabric after this silence. Its link reports much sooner that it is dead.
const SILENCE_MAX: Duration = Duration::from_secs(4);

/// Bytes of head and bulk of a frame of a client over libfabric, at most.
pub(super) const CLIENT_FRAME_MAX: usize = 8 << 20;
/// Operations of the endpoint for a client that may be open at once, receives included.
const CLIENT_OPERATIONS: usize = 1024;

/// A process in one of its lives: its number, and what was drawn when it joined.
pub(in super::super) type Incarnation = (u32, u64);

/// The other side of a pair. A process that is killed and started anew goes by the map in which it
/// still lives its last life, until it has joined: so the program counts, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Peer {
    pub(super) incarnation: Incarnation,
    pub(super) instance: u64,
    pub(super) provider: Provider,
}

/// Whom a pair is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PairUse {
    /// All links between two processes.
    Processes,
    /// One link of a client, at its side; the pair ends with the link.
    ByClient,
    /// The same at the side of the server.
    OfClient,
}

impl PairUse {
    pub(super) fn is_client(self) -> bool {
        self != Self::Processes
    }
}

/// How a process reaches others by libfabric.
#[derive(Clone, Debug)]
pub struct FabricOptions {
    /// The providers, the preferred one first.
    pub providers: Vec<Provider>,
    /// The address of this host that providers over TCP bind to.
    pub source: Option<IpAddr>,
    /// A folder in which measured costs are kept, if they are to be measured.
    pub costs: Option<PathBuf>,
    /// Whether it is told that this host, or another one, has none of them.
    pub is_told: bool,
}

/// What the threads of the pairs share.
#[derive(Debug)]
pub(super) struct FabricShared {
    pub(super) options: FabricOptions,
    /// Names this program, from its start to its end.
    pub(super) instance: u64,
    pub(super) policies: Mutex<BTreeMap<Provider, Policy>>,
    pub(super) totals: Mutex<ProviderTotals>,
    /// Bytes of the frames of all clients that wait here.
    pub(super) client_bytes: Arc<AtomicUsize>,
}

/// What pairs that have ended have left.
#[derive(Debug, Default)]
pub(super) struct ProviderTotals(pub(super) BTreeMap<Provider, ProviderTotal>);

/// Of one provider.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ProviderTotal {
    pub(super) counters: FabricCounters,
    pub(super) fallbacks: u64,
    /// Clients for which there was no room.
    pub(super) crowded: u64,
}

impl ProviderTotals {
    pub(super) fn of(&mut self, provider: Provider) -> &mut ProviderTotal {
        self.0.entry(provider).or_default()
    }
}

impl FabricShared {
    pub(super) fn policy(&self, provider: Provider) -> Policy {
        lock(&self.policies).get(&provider).cloned().unwrap_or_default()
    }

    /// How an endpoint is opened.
    pub(super) fn setup(&self, provider: Provider, used: PairUse) -> TransportOptions {
        let mut link = link_options(provider, self.options.source);
        if used.is_client() {
            link.operations = CLIENT_OPERATIONS;
        }
        let all = TransportOptions::new(link, self.policy(provider));
        let all = TransportOptions { silence: SILENCE_MAX, ..all };
        if !used.is_client() {
            return all;
        }
        // Half of what comes in may stay in use where it is, and the longest still finds room.
        let (inbound, longest) = (4 * CLIENT_FRAME_MAX, CLIENT_FRAME_MAX);
        let is_server = used == PairUse::OfClient;
        TransportOptions { inbound, longest, is_server, ..all }
    }

    /// A pair has ended: what it has counted stays.
    pub(super) fn settle(&self, provider: Provider, counters: FabricCounters) {
        lock(&self.totals).of(provider).counters += counters;
    }
}

pub(super) fn link_options(provider: Provider, source: Option<IpAddr>) -> EndpointOptions {
    let options = EndpointOptions::new(provider);
    let source = source.map(|source| source.to_string()).or_else(|| options.source.clone());
    EndpointOptions { source: options.source.and(source), ..options }
}
