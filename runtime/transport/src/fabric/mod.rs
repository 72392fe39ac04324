//! The faster way of the links between two processes: libfabric (ADR 34, 35, 45).
//!
//! A link stays as it is: it says who is there, gives signs of life, and its end is the end of all.
//! Over it the asking side offers its providers, and the other grants one, with a ticket and a
//! fresh key. From then on requests and replies of this link go over libfabric; what breaks there
//! is lost as with a link that breaks, and the link itself carries what comes after.
//!
//! Two processes have one endpoint for each other, on a thread of its own at either side: whatever
//! becomes of a peer, or of libfabric amid a call to it, delays no other peer, and what libfabric
//! cannot give back is gone with the endpoint.
//!
//! The link of a client has an endpoint and a thread of its own at either side, which end with it:
//! so all that libfabric has for a client is freed, however the client ends.
//!
//! | file | holds |
//! | --- | --- |
//! | `mod.rs`, `shared.rs` | what a process has: its pairs; providers, costs, totals |
//! | `pair.rs`, `driver.rs` | one endpoint to one incarnation of a process: handle and thread |
//! | `paths.rs` | the requests of one link over libfabric, at either side |
//! | `asking.rs` | the side that offers, and sends requests |
//! | `serving.rs` | the side that grants, and answers |
//! | `frame_path.rs`, `frame_asking.rs` | the same for the frames of a client's link |
//! | `counts.rs` | metrics |

mod asking;
mod counts;
mod driver;
mod frame_asking;
mod frame_path;
mod pair;
mod paths;
mod serving;
mod shared;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ::fabric::ExitGate;
use ::fabric::link::Fabric;
use ::fabric::policy::{Calibration, Policy, calibrate_alone};

pub use ::fabric::link::Provider;

pub(super) use self::asking::Asking;
use self::driver::PairDriver;
pub(super) use self::frame_asking::{AskedGrant, FrameAsking};
pub(super) use self::frame_path::{FRAMES_BYTES_MAX, FramePath};
use self::pair::FabricPair;
pub(super) use self::pair::thread;
pub(super) use self::serving::{Granted, GrantedFrames};
pub use self::shared::FabricOptions;
use self::shared::{FabricShared, PairUse, Peer, link_options};
use crate::frame::NO_PROCESS;
use runtime::sync::lock;

/// Pairs of a process, at most: each has a thread. Other processes are asked over links alone.
const PAIRS_MAX: usize = 64;
/// Endpoints for clients of a process, at most: each has a thread. Other clients are answered over
/// links alone.
const CLIENTS_MAX: usize = 32;
/// The part of them that one user or host may have.
const CLIENTS_SHARE: usize = 2;
/// Time limit for closing the regions of a peer whose life is over.
const RETIRE_MAX: Duration = Duration::from_secs(1);

/// What is wrong with a name that no provider has.
pub fn unknown_provider(name: &str) -> String {
    let all = Provider::ALL.map(Provider::name).join(", ");
    format!("names the provider \"{name}\" of libfabric, which is none of {all}")
}

/// What a process has of libfabric.
#[derive(Debug)]
pub struct Fabrics {
    shared: Arc<FabricShared>,
    /// Names this host, as far as memory is shared on it.
    host: String,
    pairs: Mutex<BTreeMap<Peer, Arc<FabricPair>>>,
    /// Those for links of clients, at either side, with the user or host of the client.
    clients: Mutex<Vec<(Option<u64>, Arc<FabricPair>)>>,
    /// Processes for which a fall-back was logged.
    logged: Mutex<BTreeSet<u32>>,
}

impl Fabrics {
    /// Those of `options.providers` that this host has. One that it has not is warned of: links do
    /// without.
    pub fn new(options: FabricOptions) -> Arc<Self> {
        let gate = ExitGate::default();
        let inside = gate.enter();
        let mut options = options;
        let source = options.source;
        let is_told = options.is_told;
        options.providers.retain(|provider| match Fabric::open(&link_options(*provider, source)) {
            Ok(_) => true,
            Err(error) if is_told => {
                tracing::warn!(provider = provider.name(), %error, "links do without");
                false
            }
            Err(_) => false,
        });
        drop(inside);
        let fabrics = Arc::new(Self {
            shared: Arc::new(FabricShared {
                options,
                instance: ::fabric::random_bytes().map_or(0, u64::from_ne_bytes),
                policies: Mutex::default(),
                totals: Mutex::default(),
                client_bytes: Arc::default(),
            }),
            host: host_name(),
            pairs: Mutex::default(),
            clients: Mutex::default(),
            logged: Mutex::default(),
        });
        measure(fabrics.shared.clone());
        fabrics
    }

    /// The providers of this process.
    pub fn providers(&self) -> &[Provider] {
        &self.shared.options.providers
    }

    /// The pair with a process, made if there is none; `None` if there are too many.
    fn pair(self: &Arc<Self>, peer: Peer) -> Option<Arc<FabricPair>> {
        let mut pairs = lock(&self.pairs);
        pairs.retain(|_, pair| !pair.is_over());
        if let Some(pair) = pairs.get(&peer) {
            return Some(pair.clone());
        }
        if pairs.len() >= PAIRS_MAX {
            return None;
        }
        let pair = self.start(peer, PairUse::Processes)?;
        pairs.insert(peer, pair.clone());
        Some(pair)
    }

    /// A pair for one link of a client of `account`; `None` if there are too many. One whose thread
    /// libfabric holds for ever counts for ever.
    fn client_pair(
        self: &Arc<Self>,
        provider: Provider,
        account: Option<u64>,
        used: PairUse,
    ) -> Option<Arc<FabricPair>> {
        let mut clients = lock(&self.clients);
        clients.retain(|(_, pair)| !pair.has_ended());
        let own = clients.iter().filter(|(its, _)| its.is_some() && *its == account).count();
        if clients.len() >= CLIENTS_MAX || own >= CLIENTS_MAX / CLIENTS_SHARE {
            lock(&self.shared.totals).of(provider).crowded += 1;
            return None;
        }
        let peer = Peer { incarnation: (NO_PROCESS, 0), instance: 0, provider };
        let pair = self.start(peer, used)?;
        clients.push((account, pair.clone()));
        Some(pair)
    }

    fn start(&self, peer: Peer, used: PairUse) -> Option<Arc<FabricPair>> {
        PairDriver::start(self.shared.clone(), peer, used)
            .inspect_err(|error| tracing::warn!(%error, "no thread for libfabric"))
            .ok()
    }

    /// Ends all that goes over libfabric, and waits for it, though not for ever.
    pub fn close(&self) {
        self.retire(|_, _| true);
        for (_, pair) in std::mem::take(&mut *lock(&self.clients)) {
            pair.wait_for_end(RETIRE_MAX);
        }
    }

    /// These lives are over; (`u32::MAX`, 0) is that of all clients. Their regions are closed when
    /// this returns, so that a process that only stood still writes into no memory of this process.
    pub fn retire(&self, is_over: impl Fn(u32, u64) -> bool) {
        let retired: Vec<Arc<FabricPair>> = {
            let mut pairs = lock(&self.pairs);
            let all = std::mem::take(&mut *pairs);
            let (over, rest) = all
                .into_iter()
                .partition(|(peer, _)| is_over(peer.incarnation.0, peer.incarnation.1));
            *pairs = rest;
            let mut retired: Vec<_> = BTreeMap::into_values(over).collect();
            if is_over(NO_PROCESS, 0) {
                retired.extend(lock(&self.clients).iter().map(|(_, pair)| pair.clone()));
            }
            retired
        };
        let waiting: Vec<_> = retired.iter().map(|pair| (pair, pair.retire())).collect();
        for (pair, ended) in waiting {
            if ended.recv_timeout(RETIRE_MAX) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                // libfabric 1.17 may wait for a killed process for ever (ADR 34). What is written
                // into its memory now is discarded.
                let process = pair.process();
                tracing::error!(
                    process,
                    "libfabric does not come back: a thread of it is given up"
                );
            }
        }
    }

    /// Requests to a process go over its link from now on: said once for each.
    fn fall_back(&self, process: u32, provider: Provider, why: &str) {
        lock(&self.shared.totals).of(provider).fallbacks += 1;
        if lock(&self.logged).insert(process) {
            let provider = provider.name();
            tracing::warn!(process, provider, why, "links to it do without libfabric for a while");
        }
    }
}

/// Measures what mechanisms cost, or reads what was measured before. Until then all go by a guess.
fn measure(shared: Arc<FabricShared>) {
    let Some(folder) = shared.options.costs.clone() else { return };
    let work = move || {
        for provider in &shared.options.providers {
            let name: String =
                provider.name().chars().filter(char::is_ascii_alphanumeric).collect();
            let path = folder.join(format!("fabric-{name}.costs"));
            let how = Calibration { rounds: 7, largest: 1 << 20 };
            let link = link_options(*provider, shared.options.source);
            match calibrate_alone(&link, Some(&path), how) {
                Ok(costs) => drop(lock(&shared.policies).insert(*provider, Policy::new(costs))),
                Err(error) => tracing::warn!(provider = provider.name(), %error, "no costs"),
            }
        }
    };
    if let Err(error) = thread("mdfs-measure", work) {
        tracing::warn!(%error, "no costs are measured");
    }
}

/// Equal for processes that share memory: one kernel, one `/dev/shm`, one view of processes.
fn host_name() -> String {
    use std::os::unix::fs::MetadataExt as _;
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let device = std::fs::metadata("/dev/shm").map_or(0, |found| found.dev());
    let view = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("{} {device} {}", boot.trim(), view.display())
}
