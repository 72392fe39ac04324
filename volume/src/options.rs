//! How a volume is made and run.

use std::path::PathBuf;
use std::time::Duration;

use blockio::plan::Spread;
use blockio::{Geometry, RedundancyClass};
use meta::{RootOwner, SCRUB_INTERVAL};
use runtime::embedded::Embedded;

/// The default number of nodes of a volume; small ones have fewer.
pub const FS_NODES: u32 = 64;
/// The default stripe size, in bytes (the thesis').
pub const STRIPE_SIZE: u32 = 64 << 10;
/// The default length of a disk that is a file, in bytes.
pub const DISK_BYTES: u64 = 4 << 30;
/// The default memory for cached stripes, in bytes.
pub const CACHE_BYTES: usize = 512 << 20;

/// The shape of a volume to be made.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// Disk nodes.
    pub disk_nodes: u32,
    /// Disks per disk node.
    pub disks_per_node: u32,
    /// Bytes of each disk file that does not exist yet.
    pub disk_bytes: u64,
    /// Where the disks are, disk node by disk node; empty for files in the volume's directory.
    pub disks: Vec<PathBuf>,
    /// File-system nodes; 0 for as many as suit the size.
    pub fs_nodes: u32,
    /// Bytes per stripe.
    pub stripe_size: u32,
    /// What disks hold that may be overwritten, by the ids that a refusal tells.
    pub force: Vec<String>,
    /// To whom the root directory belongs.
    pub owner: RootOwner,
    /// How stripes are spread over disks and caches.
    pub spread: Spread,
    /// How data survives the loss of disks.
    pub redundancy: RedundancyClass,
}

impl Default for FormatOptions {
    fn default() -> Self {
        Self {
            disk_nodes: 1,
            disks_per_node: 1,
            disk_bytes: DISK_BYTES,
            disks: Vec::new(),
            fs_nodes: FS_NODES,
            stripe_size: STRIPE_SIZE,
            force: Vec::new(),
            owner: RootOwner::default(),
            spread: Spread::default(),
            redundancy: RedundancyClass::default(),
        }
    }
}

/// How to run a volume.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Threads that host nodes; 0 for one per core.
    pub threads: usize,
    /// Bytes of cached stripes; metadata take half as much again, at most.
    pub cache_bytes: usize,
    /// The memory of the cache is found at the start, and not when it is first used: who reads or
    /// writes first need not wait for it.
    pub prefault: bool,
    /// The time between two comparisons of all data with its checksums; zero for never.
    pub scrub_interval: Duration,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            threads: 0,
            cache_bytes: CACHE_BYTES,
            prefault: false,
            scrub_interval: SCRUB_INTERVAL,
        }
    }
}

impl RunOptions {
    /// What [`prefault`](Self::prefault) says.
    pub(crate) fn find_memory(&self, machine: &Embedded, geometry: &Geometry) {
        if self.prefault {
            machine.pool().prefault(geometry.stripe_size as usize, self.cache_bytes);
        }
    }
}
