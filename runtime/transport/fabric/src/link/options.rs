//! Which provider, and what it can do.

/// A provider of libfabric: a network, or what stands in for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Provider {
    /// TCP, datagrams made by the `ofi_rxm` layer. Tested here.
    Tcp,
    /// TCP with datagrams of its own: `net` in 1.x, which 2.x calls `tcp`. Tested here, but not for
    /// peers that are killed: 1.17 does not complete what is open to them.
    Net,
    /// Shared memory of one host; one process copies from the other's pages. Tested here.
    Shm,
    /// InfiniBand and `RoCE`. Same code, never run: no such hardware here.
    Verbs,
    /// Slingshot. Same code, never run: no such hardware here.
    Cxi,
    /// Amazon's EFA. Same code, never run: no such hardware here.
    Efa,
}

impl Provider {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Tcp, Self::Net, Self::Shm, Self::Verbs, Self::Cxi, Self::Efa];
    /// Those that this machine's tests run.
    pub const TESTED: [Self; 3] = [Self::Tcp, Self::Net, Self::Shm];

    /// Its name in libfabric.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp;ofi_rxm",
            Self::Net => "net",
            Self::Shm => "shm",
            Self::Verbs => "verbs;ofi_rxm",
            Self::Cxi => "cxi",
            Self::Efa => "efa",
        }
    }

    /// Is an endpoint of it bound to an address of its host?
    pub fn uses_addresses(self) -> bool {
        matches!(self, Self::Tcp | Self::Net)
    }

    /// The provider of that name in libfabric.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|provider| provider.name() == name)
    }
}

/// How to open an endpoint.
#[derive(Clone, Debug)]
pub struct EndpointOptions {
    /// The provider.
    pub provider: Provider,
    /// The address of this host to bind to, where the provider has such: an IP address.
    pub source: Option<String>,
    /// Operations that may be open at once, receives included.
    pub operations: usize,
}

impl EndpointOptions {
    /// What fits one process with some hundred peers.
    pub fn new(provider: Provider) -> Self {
        let source = provider.uses_addresses().then(|| "127.0.0.1".into());
        Self { provider, source, operations: 8192 }
    }
}

/// What the provider said that it can do; nothing of it is assumed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is an answer of the provider")]
pub struct Limits {
    /// Bytes that are sent without waiting for the buffer, at most.
    pub inject: usize,
    /// Local pieces of one operation, at most.
    pub pieces: usize,
    /// Remote pieces of one operation, at most.
    pub remote_pieces: usize,
    /// Bytes of one operation, at most.
    pub message: usize,
    /// Bytes of the number that a write can bring along; 0: no such writes.
    pub immediate: usize,
    /// Operations of each direction that the provider queues.
    pub queue: usize,
    /// Local buffers must be registered.
    pub registers_local: bool,
    /// Remote memory is named by its address there, not by an offset in its region.
    pub names_addresses: bool,
    /// It chooses the keys.
    pub chooses_keys: bool,
    /// A region must be bound to the endpoint.
    pub binds_regions: bool,
    /// One can sleep until something completes.
    pub can_wait: bool,
}
