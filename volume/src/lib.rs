//! The layers put on one another in one process: thesis Fig. 1.1 on the embedded machine.
//!
//! This is the only place that knows all layers at once. [`node`] holds what a node does on any
//! machine.

mod boot;
mod check;
#[cfg(feature = "cluster")]
pub mod cluster;
mod directory;
mod hand_over;
pub mod node;
mod volume;
mod volume_status;

use std::future::Future;
use std::path::{Path, PathBuf};

use futures::executor::block_on;
use futures::future::join_all;
use runtime::embedded::Embedded;
use runtime::net::Address;
use runtime::protocol::Undelivered;
use runtime::{ClientHandle, Context, Epoch, NodeId};

use self::directory::VolumeDirectory;

pub use self::check::{CheckOptions, CheckResult, CheckStep, check};
pub use self::directory::DirectoryError;
pub use self::hand_over::{
    NodeHandover, hand_over, hand_over_cache, hand_over_disks, resume_cache, resume_files,
    resume_metadata,
};
pub use self::volume_status::{VolumeStatus, volume_status};
pub use blockio::Geometry;
pub use blockio::protocol::DiskStatus;
pub use cache::protocol::CacheStatus;
pub use meta::audit::{Flaw, PendingWork, Summary};
pub use meta::memory::MemoryBudget;

use fileio::protocol::{Error, Flush};

/// The default number of nodes of a volume.
pub const FS_NODES: u32 = 64;
/// The default stripe size, in bytes (the thesis').
pub const STRIPE_SIZE: u32 = 64 << 10;
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
    /// File-system nodes.
    pub fs_nodes: u32,
    /// Bytes per stripe.
    pub stripe_size: u32,
}

/// How to run a volume.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Threads that host nodes; 0 for one per core.
    pub threads: usize,
    /// Bytes of cached stripes; metadata take half as much again, at most.
    pub cache_bytes: usize,
    /// The memory of the cache is found at the start, and not when it is first used: who reads or writes
    /// first need not wait for it.
    pub prefault: bool,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self { threads: 0, cache_bytes: CACHE_BYTES, prefault: false }
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

/// A volume could not be made or opened. Nothing that was stored is changed by that.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// Its directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The coordination store failed.
    #[error(transparent)]
    Coordination(#[from] ::cluster::coordination::CoordinationError),
    /// No volume can have this shape.
    #[error("{0}")]
    Shape(#[from] blockio::geometry::GeometryError),
    /// The disks are too small for this number of nodes.
    #[error(
        "the volume would have {stripes} stripes for {fs_nodes} nodes, one of which gets {share} \
         and needs {needed}; choose fewer nodes (--nodes) or larger disks (--disk-size)"
    )]
    TooSmall {
        /// Stripes of all disks.
        stripes: u64,
        /// The nodes.
        fs_nodes: u32,
        /// Stripes of the node that would get the fewest.
        share: u64,
        /// Stripes that it needs.
        needed: u64,
    },
    /// The number of disks given does not fit.
    #[error(
        "{given} disks were named, but {disk_nodes} disk nodes of {disks_per_node} disks need {needed}"
    )]
    DiskCount {
        /// As given.
        given: usize,
        /// As needed.
        needed: u32,
        /// The disk nodes.
        disk_nodes: u32,
        /// Disks of each.
        disks_per_node: u32,
    },
    /// A disk cannot be opened.
    #[error("disk {}: {error}; put the disk back in its place", path.display())]
    OpenDisk {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// A disk is not what it should be.
    #[error("disk {}: {error}; {}", path.display(), disk_advice(error))]
    Disk {
        /// Which.
        path: PathBuf,
        /// Why.
        error: blockio::DiskError,
    },
    /// A disk to be formatted belongs to a volume.
    #[error("disk {} holds volume {volume}; it is not overwritten, clear it first", path.display())]
    DiskInUse {
        /// Which.
        path: PathBuf,
        /// Whose.
        volume: runtime::VolumeId,
    },
    /// The disks that are there cannot tell what the volume is.
    #[error("no disk in the volume's directory could be identified: {0}")]
    Unknown(String),
    /// A disk node cannot start.
    #[error("{0}")]
    DiskNode(#[from] blockio::OpenError),
    /// The metadata of a node cannot be read.
    #[error("the metadata of {node}: {error}")]
    Metadata {
        /// Which node.
        node: NodeId,
        /// Why.
        error: meta::store::StoreError,
    },
    /// A disk is older than what was durable on it.
    #[error(
        "disk {}: it is an older image of itself, or has lost writes: {what} of {node} are missing \
         that were durable on it; put the newest copy of the disk back",
        path.display()
    )]
    OldDisk {
        /// Which.
        path: PathBuf,
        /// A node that misses something.
        node: NodeId,
        /// What is missing.
        what: &'static str,
    },
    /// Metadata cannot be read, and this disk holds the place where it should be.
    #[error(
        "disk {}: {what} of {node} at block {block} of the volume is damaged, or the disk is an older \
         image of itself; put the newest copy of the disk back, or see `mdfs check`",
        path.display()
    )]
    DamagedDisk {
        /// The disk.
        path: PathBuf,
        /// Whose metadata.
        node: NodeId,
        /// Which part of it.
        what: &'static str,
        /// The block of the logical disk.
        block: u64,
    },
    /// What a crash has left half done cannot be brought to its end.
    #[error("recovery at {node}: {error}; nothing is lost, open the volume again")]
    Recovery {
        /// Which node.
        node: NodeId,
        /// Why.
        error: meta::protocol::Error,
    },
    /// The cluster has no place for this process, or cannot be asked.
    #[cfg(feature = "cluster")]
    #[error(transparent)]
    Cluster(#[from] cluster::ClusterError),
    /// The threads of the machine cannot run.
    #[error("cannot start the machine: {0}")]
    Machine(#[from] std::io::Error),
    /// A node ended while it was brought up.
    #[error("a node ended while it was brought up: {0}")]
    Node(#[from] Undelivered),
    /// The last data could not be made durable.
    #[error("not everything could be made durable: {0}")]
    Flush(Error),
}

/// What the operator can do about a disk that is not what it should be.
fn disk_advice(error: &blockio::DiskError) -> &'static str {
    use blockio::DiskError as E;
    match error {
        E::Unformatted | E::Foreign { .. } | E::WrongPosition { .. } => {
            "put the volume's own disk back in its place"
        }
        E::OtherShape { .. } => "use all disks of the volume, or all of its copy",
        E::Truncated { .. } | E::Damaged => "bring the whole disk back, from a copy if need be",
        E::FutureVersion { .. } | E::UnknownFeatures { .. } => "nothing on it was changed",
        E::Outdated { .. } => {
            "put the newest copy of the disk back; older copies of all disks need the volume's \
             directory of their time"
        }
        E::Fenced { .. } => "stop this process",
        E::TooSmall { .. } | E::Shape(_) => "use larger disks, or fewer",
        E::Io(_) => "look at the host's log, and check the disk",
    }
}

/// A volume that is open in this process. Dropping it is like a crash; [`stop`](Self::stop) it.
#[derive(Debug)]
pub struct RunningVolume {
    machine: Embedded,
    geometry: Geometry,
    // After the machine: the lock is given up last.
    directory: VolumeDirectory,
}

/// Makes a volume in `directory`.
pub fn format(directory: &Path, options: &FormatOptions) -> Result<Geometry, VolumeError> {
    volume::format(directory, options)
}

/// Opens the volume in `directory`, alone.
pub fn open(directory: &Path, options: &RunOptions) -> Result<RunningVolume, VolumeError> {
    volume::open(directory, options)
}

impl RunningVolume {
    /// A seat for an ordinary thread.
    pub fn client_handle(&self) -> ClientHandle {
        self.machine.client_handle()
    }

    /// The shape of the volume.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The epoch in which it lives: for a volume of one process, that in which it was opened.
    pub fn epoch(&self) -> Epoch {
        self.machine.epoch()
    }

    /// The buffers that network, cache and disks share.
    pub fn pool(&self) -> &runtime::buffer::Pool {
        self.machine.pool()
    }

    /// Runs `work` on a node of its own inside the machine: a gateway, say.
    pub fn on_application<F: Future<Output: Send> + 'static>(
        &self,
        work: impl FnOnce(Context) -> F + Send + 'static,
    ) -> impl Future<Output = Result<F::Output, Undelivered>> + Send + 'static {
        self.machine.on_node(self.machine.application(), work)
    }

    /// Lets other processes of this host ask, at the socket in the volume's directory.
    pub fn answer_socket(&self) -> Result<(), VolumeError> {
        let address = Address::Unix(self.directory.socket());
        let listening = self.on_application(|context| async move {
            let listener = context.listen(&address).await?;
            let serving = context.clone();
            context.task(async move {
                if let Err(error) = transport::serve(serving, listener).await {
                    tracing::error!(%error, "the volume's socket does not answer any more");
                }
            });
            Ok::<_, std::io::Error>(())
        });
        Ok(block_on(listening)??)
    }

    /// Makes everything durable, and the logs short.
    pub fn flush(&self) -> Result<(), VolumeError> {
        let client_handle = self.client_handle();
        let nodes = (0..self.geometry.fs_nodes).map(NodeId::fs);
        let flushed = nodes.map(|node| client_handle.spawn(node, Flush {}));
        let outcomes = block_on(join_all(flushed));
        outcomes.into_iter().collect::<Result<Vec<()>, Error>>().map_err(VolumeError::Flush)?;
        Ok(())
    }

    /// Makes everything durable and ends.
    pub fn stop(self) -> Result<(), VolumeError> {
        self.flush()?;
        boot::final_checkpoint(&self.machine, &self.geometry)
        // The machine ends when it is dropped.
    }
}
