//! What a client has of libfabric. It is loaded beside everything else, when the client has moved
//! some data: that alone takes a third of a second where many networks are known.

#[cfg(feature = "fabric")]
use std::net::{SocketAddr, ToSocketAddrs as _, UdpSocket};
#[cfg(feature = "fabric")]
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
#[cfg(feature = "fabric")]
use std::sync::{Arc, OnceLock};

#[cfg(feature = "fabric")]
use super::ServerAddress;
#[cfg(feature = "fabric")]
use crate::fabric::{FabricOptions, Fabrics, Provider, thread};

/// Bytes that a client has moved over its links before it loads libfabric.
#[cfg(feature = "fabric")]
const LOAD_FROM: u64 = 1 << 20;

/// What a client has of libfabric: nothing by default.
#[derive(Clone, Debug, Default)]
pub struct ClientFabric {
    #[cfg(feature = "fabric")]
    lazy: Option<Arc<LazyFabrics>>,
}

#[cfg(feature = "fabric")]
#[derive(Debug)]
struct LazyFabrics {
    server: String,
    providers: Vec<Provider>,
    is_told: bool,
    moved: AtomicU64,
    is_loading: AtomicBool,
    fabrics: OnceLock<Arc<Fabrics>>,
}

#[cfg(feature = "fabric")]
impl LazyFabrics {
    fn load(&self) {
        let source = own_address(&self.server).map(|address| address.ip());
        let (providers, is_told) = (self.providers.clone(), self.is_told);
        let fabrics = Fabrics::new(FabricOptions { providers, source, costs: None, is_told });
        // It is loaded once.
        let _ = self.fabrics.set(fabrics);
    }
}

/// The address of this host by which a server is reached. Nothing is sent.
#[cfg(feature = "fabric")]
#[allow(clippy::disallowed_methods, reason = "the machine itself makes sockets")]
fn own_address(server: &str) -> Option<SocketAddr> {
    let server = server.to_socket_addrs().ok()?.next()?;
    let any: SocketAddr = if server.is_ipv4() { ([0; 4], 0).into() } else { ([0; 16], 0).into() };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(server).ok()?;
    socket.local_addr().ok()
}

#[cfg(feature = "fabric")]
impl ClientFabric {
    /// Those of `providers` that this host has, for connections to `server`. One that it has not is
    /// warned of, if that `is_told`. Nothing for a server of this host by its socket.
    pub fn of(server: &ServerAddress, providers: Vec<Provider>, is_told: bool) -> Self {
        let ServerAddress::Tcp(servers) = server else { return Self::default() };
        let Some(server) = servers.first().filter(|_| !providers.is_empty()).cloned() else {
            return Self::default();
        };
        let lazy = LazyFabrics {
            server,
            providers,
            is_told,
            moved: AtomicU64::new(0),
            is_loading: AtomicBool::new(false),
            fabrics: OnceLock::new(),
        };
        Self { lazy: Some(Arc::new(lazy)) }
    }

    /// What is there now.
    pub(crate) fn fabrics(&self) -> Option<&Arc<Fabrics>> {
        self.lazy.as_ref()?.fabrics.get()
    }
}

#[cfg_attr(not(feature = "fabric"), expect(clippy::unused_self, reason = "there is none"))]
impl ClientFabric {
    /// Bytes have moved.
    pub(crate) fn note_moved(&self, bytes: usize) {
        let _ = bytes;
        #[cfg(feature = "fabric")]
        if let Some(lazy) = &self.lazy
            && lazy.moved.fetch_add(bytes as u64, Relaxed) + bytes as u64 >= LOAD_FROM
            && !lazy.is_loading.swap(true, Relaxed)
        {
            let loading = lazy.clone();
            if let Err(error) = thread("mdfs-fabric", move || loading.load()) {
                tracing::warn!(%error, "no thread for libfabric");
            }
        }
    }

    /// Ends what there is.
    pub(super) fn close(&self) {
        #[cfg(feature = "fabric")]
        if let Some(fabrics) = self.fabrics() {
            fabrics.close();
        }
    }
}
