//! Who may connect to a process of the cluster, and what is counted of those who may not.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

#[cfg(feature = "tls")]
use super::tls::{HostCertificate, PeerCertificate};
use runtime::identity::Credentials;
use runtime::metrics::{MetricKind, MetricsPage};
use runtime::net::ByteStream;

/// Reasons and places of which one line was logged, at most; what comes after is only counted.
const TOLD_MAX: usize = 256;

/// How the connections between the processes of a volume are protected.
#[derive(Debug, Default)]
pub enum Security {
    /// Not at all: any peer that reaches the port and knows the incarnation of the process is
    /// answered.
    #[default]
    None,
    /// Both sides prove who they are, and no third party can read or change anything.
    #[cfg(feature = "tls")]
    Tls(Box<super::tls::Keys>),
}

impl Security {
    /// Its name, for people and counts.
    pub fn name(&self) -> &'static str {
        match self {
            Self::None => "none",
            #[cfg(feature = "tls")]
            Self::Tls(_) => "tls",
        }
    }
}

/// Why a connection was refused, or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// The other side did not prove that it belongs to the cluster, or would not.
    Unauthenticated,
    /// It proved to be another process than it says, or than was looked for.
    Name,
    /// It looked for another volume, process or life.
    Incarnation,
    /// It said nothing for too long.
    Silent,
    /// It sent what is no frame, or what was changed on its way.
    Broken,
    /// There were too many at a time.
    TooManyConnections,
}

impl Refusal {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Unauthenticated,
        Self::Name,
        Self::Incarnation,
        Self::Silent,
        Self::Broken,
        Self::TooManyConnections,
    ];

    /// Its name in counts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unauthenticated => "unauthenticated",
            Self::Name => "name",
            Self::Incarnation => "stale_incarnation",
            Self::Silent => "silent",
            Self::Broken => "broken",
            Self::TooManyConnections => "too_many_connections",
        }
    }

    /// What a broken connection failed by.
    pub(crate) fn of(error: &io::Error) -> Option<Self> {
        match error.kind() {
            io::ErrorKind::InvalidData => Some(Self::Broken),
            io::ErrorKind::TimedOut => Some(Self::Silent),
            _ => None,
        }
    }
}

/// The guard of a process: how its connections are protected, and what came of those that were
/// refused.
#[derive(Debug, Default)]
pub struct Guard {
    security: Security,
    let_in: AtomicU64,
    /// Bytes that clients were sent for other processes.
    delivered: AtomicU64,
    /// Bytes that clients have left here.
    deposited: AtomicU64,
    refused: [AtomicU64; Refusal::ALL.len()],
    told: Mutex<BTreeSet<(String, Refusal)>>,
    /// The faster way that connections may open.
    #[cfg(feature = "fabric")]
    fabrics: Option<std::sync::Arc<super::fabric::Fabrics>>,
}

impl Guard {
    /// A guard that goes by `security`.
    pub fn new(security: Security) -> Self {
        Self { security, ..Self::default() }
    }

    /// The same, and links may go over libfabric.
    #[cfg(feature = "fabric")]
    #[must_use]
    pub fn with_fabrics(self, fabrics: std::sync::Arc<super::fabric::Fabrics>) -> Self {
        Self { fabrics: Some(fabrics), ..self }
    }

    /// What this process has of libfabric.
    #[cfg(feature = "fabric")]
    pub fn fabrics(&self) -> Option<&std::sync::Arc<super::fabric::Fabrics>> {
        self.fabrics.as_ref()
    }

    /// Whether what goes over libfabric is sealed.
    #[cfg(feature = "fabric")]
    pub(crate) fn seals(&self) -> bool {
        !matches!(self.security, Security::None)
    }

    /// How connections are protected.
    pub fn security(&self) -> &Security {
        &self.security
    }

    /// What connections are like, for people: how they are protected, and by what they may go.
    pub fn describe(&self) -> String {
        let security = self.security.name();
        #[cfg(feature = "fabric")]
        if let Some(fabrics) = &self.fabrics
            && !fabrics.providers().is_empty()
        {
            let names: Vec<&str> = fabrics.providers().iter().map(|one| one.name()).collect();
            return format!("{security}+{}", names.join("+"));
        }
        security.to_owned()
    }

    /// These lives of processes are over: when this returns none of them can write into memory
    /// here.
    pub fn retire(&self, is_over: impl Fn(u32, u64) -> bool) {
        let _ = &is_over;
        #[cfg(feature = "fabric")]
        if let Some(fabrics) = &self.fabrics {
            fabrics.retire(is_over);
        }
    }

    /// Connections that other processes made to this one, and that were let in.
    pub fn let_in(&self) -> u64 {
        self.let_in.load(Relaxed)
    }

    /// Connections, in either direction, that were refused or ended for this reason.
    pub fn refused(&self, why: Refusal) -> u64 {
        self.refused[why as usize].load(Relaxed)
    }

    /// All counts as lines that Prometheus reads (its text format 0.0.4).
    pub fn counts(&self) -> String {
        let security = self.security.name();
        let mut page = MetricsPage::new("mdfs_links_");
        let help = "Connections of other processes that were let in.";
        let mut let_in = page.metric("accepted_total", MetricKind::Counter, help);
        let_in.of(format_args!("security=\"{security}\""), self.let_in());
        let help = "Bytes sent to clients for other processes, which answer their requests.";
        let delivered = page.metric("delivered_bytes_total", MetricKind::Counter, help);
        delivered.is(self.delivered.load(Relaxed));
        let help = "Bytes that clients left here before another process had them stored.";
        let deposited = page.metric("deposited_bytes_total", MetricKind::Counter, help);
        deposited.is(self.deposited.load(Relaxed));
        let help = "Connections from or to other processes that were refused or broke.";
        let mut refused = page.metric("refused_total", MetricKind::Counter, help);
        for why in Refusal::ALL {
            refused.of(format_args!("reason=\"{}\"", why.name()), self.refused(why));
        }
        let text = page.finish();
        #[cfg(feature = "fabric")]
        let text =
            text + &self.fabrics.as_ref().map_or_else(String::new, |fabrics| fabrics.counts());
        text
    }

    pub(super) fn note_let_in(&self) {
        self.let_in.fetch_add(1, Relaxed);
    }

    pub(super) fn note_delivered(&self, bytes: u64) {
        self.delivered.fetch_add(bytes, Relaxed);
    }

    pub(super) fn note_deposited(&self, bytes: u64) {
        self.deposited.fetch_add(bytes, Relaxed);
    }

    /// Counts a refusal; the first of its kind from a host is logged.
    pub(crate) fn refuse(&self, peer: &str, why: Refusal, error: &io::Error) {
        self.refused[why as usize].fetch_add(1, Relaxed);
        let host = peer.rsplit_once(':').map_or(peer, |(host, _)| host);
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() >= TOLD_MAX || !told.insert((host.to_owned(), why)) {
            return;
        }
        let why = why.name();
        tracing::warn!(peer, why, %error, "a connection is refused; more of this kind are only counted");
        if told.len() == TOLD_MAX {
            tracing::warn!("too many kinds of refused connections: further ones are not logged");
        }
    }

    /// Protects a connection that this process made to process `wanted`.
    #[cfg_attr(not(feature = "tls"), expect(clippy::unused_async, reason = "with tls it waits"))]
    pub(super) async fn greet(&self, stream: ByteStream, wanted: u32) -> io::Result<ByteStream> {
        match &self.security {
            Security::None => {
                let _ = wanted;
                Ok(stream)
            }
            #[cfg(feature = "tls")]
            Security::Tls(keys) => keys.greet(stream, wanted).await,
        }
    }

    /// Protects an accepted connection, and says who the peer is.
    #[cfg_attr(not(feature = "tls"), expect(clippy::unused_async, reason = "with tls it waits"))]
    pub(super) async fn receive(
        &self,
        stream: ByteStream,
    ) -> io::Result<(ByteStream, PeerIdentity)> {
        match &self.security {
            Security::None => Ok((stream, PeerIdentity::Unprotected)),
            #[cfg(feature = "tls")]
            Security::Tls(keys) => {
                let (stream, certificate) = keys.receive(stream).await?;
                let peer = match certificate {
                    PeerCertificate::None => PeerIdentity::Anonymous,
                    PeerCertificate::Process(number) => PeerIdentity::Process(number),
                    PeerCertificate::Client(host) => PeerIdentity::Host(host),
                };
                Ok((stream, peer))
            }
        }
    }
}

/// What the other side of a connection has proved about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerIdentity {
    /// Nothing: no connection is protected.
    Unprotected,
    /// It is on this host, over a local socket: the user, as the kernel knows it.
    Local(Option<Credentials>),
    /// Nothing but that it wants to speak TLS: it may show a token.
    #[cfg(feature = "tls")]
    Anonymous,
    /// It has the key of this process.
    #[cfg(feature = "tls")]
    Process(u32),
    /// It has the key of this host of clients.
    #[cfg(feature = "tls")]
    Host(HostCertificate),
}

impl PeerIdentity {
    /// May it say that it is process `number`?
    pub(super) fn may_be(&self, number: u32) -> bool {
        match self {
            Self::Unprotected => {
                let _ = number;
                true
            }
            #[cfg(feature = "tls")]
            Self::Process(proven) => *proven == number,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_is_counted_and_the_first_of_its_kind_from_a_host_is_told() {
        let guard = Guard::default();
        let error = || io::Error::from(io::ErrorKind::InvalidData);
        for port in 0..1_000 {
            guard.refuse(&format!("10.0.0.1:{port}"), Refusal::Unauthenticated, &error());
            guard.refuse(&format!("[fe80::1]:{port}"), Refusal::Broken, &error());
        }
        guard.note_let_in();
        assert_eq!(guard.told.lock().unwrap().len(), 2);
        let counts = guard.counts();
        for line in [
            "mdfs_links_accepted_total{security=\"none\"} 1",
            "mdfs_links_refused_total{reason=\"unauthenticated\"} 1000",
            "mdfs_links_refused_total{reason=\"broken\"} 1000",
            "mdfs_links_refused_total{reason=\"too_many_connections\"} 0",
        ] {
            assert!(counts.lines().any(|told| told == line), "{line} is not in\n{counts}");
        }
        for host in 0..1_000 {
            guard.refuse(&format!("host-{host}:1"), Refusal::Silent, &error());
        }
        assert_eq!(guard.told.lock().unwrap().len(), TOLD_MAX, "a flood takes no more memory");
    }
}
