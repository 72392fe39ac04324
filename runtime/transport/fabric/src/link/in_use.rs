//! What this process has of libfabric now, over all endpoints.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static ENDPOINTS: AtomicUsize = AtomicUsize::new(0);
static REGIONS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// Endpoints that are open, with their addresses of peers, and memory that is registered with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FabricUse {
    /// Endpoints.
    pub endpoints: usize,
    /// Regions of memory.
    pub regions: usize,
    /// Their bytes.
    pub bytes: usize,
}

impl FabricUse {
    /// That of this process now.
    pub fn now() -> Self {
        let [endpoints, regions, bytes] = [&ENDPOINTS, &REGIONS, &BYTES].map(|it| it.load(Relaxed));
        Self { endpoints, regions, bytes }
    }
}

pub(super) fn endpoint_opened() {
    ENDPOINTS.fetch_add(1, Relaxed);
}

pub(super) fn endpoint_closed() {
    ENDPOINTS.fetch_sub(1, Relaxed);
}

pub(super) fn region_opened(bytes: usize) {
    REGIONS.fetch_add(1, Relaxed);
    BYTES.fetch_add(bytes, Relaxed);
}

pub(super) fn region_closed(bytes: usize) {
    REGIONS.fetch_sub(1, Relaxed);
    BYTES.fetch_sub(bytes, Relaxed);
}
