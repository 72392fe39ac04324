//! The emulated J-Machine with a volume: the real layers on 512 nodes and their disk nodes, with
//! the costs of a profile, all messages through its mesh.
//!
//! | file | holds |
//! | --- | --- |
//! | `checkpoint.rs` | the checkpoint demo: programs that write, a restart, programs that read |
//! | `host.rs` | the host: the NFS gateway behind its interface, and bytes from outside |

mod checkpoint;
mod host;

use std::cell::Cell;
use std::fmt;
use std::ops::Sub;
use std::time::Duration;

use blockio::plan::Spread;
use client::{Credentials, Error, FileSystem};
use machine_emu::jmachine::{JMachine, Profile, Topology};
use machine_emu::mesh::{ForwardPolicy, Mesh, MeshCounters, MeshTrace, Recorder};
use machine_emu::{LinkError, MeshSetup, World, WorldCounters};
use runtime::{Context, NodeId, VolumeId};
use thiserror::Error;

use crate::cluster::{APPLICATIONS, ClusterLayout, OBSERVER, Phases, SimulatedCluster};
use crate::content_form::ContentForm;

pub use checkpoint::{CheckpointResult, CheckpointRun, checkpoint, content, name};
pub use host::{HostConnection, HostGateway};

/// Bytes of a stripe, the thesis'.
const STRIPE_BYTES: usize = 64 << 10;
/// Disks on the bus of a disk node (MDFS thesis 2.1.2).
const DISKS_PER_NODE: u32 = 4;
/// Stripes that one node of the cache holds, where no profile says it.
const LINES: usize = 10;
/// Cycles of the first buckets of load: 100 us.
const BUCKET_CYCLES: u64 = 1_000;

/// Which machine, and what runs on it.
#[derive(Clone, Debug)]
pub struct EmulationSetup {
    /// Of everything that is drawn.
    pub seed: u64,
    /// Its nodes.
    pub topology: Topology,
    /// File-system nodes, in the slice next to the disks.
    pub fs_nodes: u32,
    /// Who passes on what cannot be sent directly.
    pub policy: ForwardPolicy,
    /// What processors, messages and disks cost; without it only the mesh takes time.
    pub profile: Option<Profile>,
    /// Takes down the load of the mesh and its messages, once the volume is mounted.
    pub record: bool,
}

impl EmulationSetup {
    /// The machine of the thesis, without costs of its processors and disks.
    pub fn thesis(seed: u64) -> Self {
        Self {
            seed,
            topology: Topology::thesis(),
            fs_nodes: 64,
            policy: ForwardPolicy::Canonical,
            profile: None,
            record: true,
        }
    }
}

/// It did not work.
#[derive(Debug, Error)]
pub enum EmulatedError {
    /// The nodes do not fit on it.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// No room for those who ask.
    #[error(
        "{fs_nodes} file-system nodes leave fewer than {APPLICATIONS} of {processors} processors to \
         programs: take fewer, or a larger machine"
    )]
    Full {
        /// Asked for.
        fs_nodes: u32,
        /// Of the machine.
        processors: u32,
    },
    /// The volume could not be made or mounted.
    #[error("the volume cannot be brought up: {0}")]
    Stack(#[from] volume::VolumeError),
    /// The gateway does not start.
    #[error(transparent)]
    Gateway(#[from] nfs_gateway::Error),
    /// A program failed.
    #[error(transparent)]
    Client(#[from] Error),
    /// A file came back other than it was written.
    #[error("checkpoint {0} differs after the restart")]
    Differs(u32),
}

/// An emulated machine, and the volume on its disks.
pub struct Emulation {
    cluster: SimulatedCluster,
    /// Programs so far: each has a number of its own, by which its calls are known.
    programs: Cell<u64>,
}

impl fmt::Debug for Emulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Emulation").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

impl Emulation {
    /// The machine, with a new volume that is mounted.
    pub fn new(setup: &EmulationSetup) -> Result<Self, EmulatedError> {
        let EmulationSetup { seed, topology, fs_nodes, policy, profile, record } = setup;
        let (seed, fs_nodes, processors) = (*seed, *fs_nodes, topology.processors());
        if fs_nodes + APPLICATIONS > processors {
            return Err(EmulatedError::Full { fs_nodes, processors });
        }
        let lines = profile.as_ref().map_or(LINES, Profile::lines);
        let cluster = SimulatedCluster::new(
            seed,
            ClusterLayout {
                fs_nodes,
                disk_nodes: topology.disk_nodes,
                disks_per_node: DISKS_PER_NODE,
                stripe_size: STRIPE_BYTES as u32,
                spread: Spread::Modulo,
                stripes_per_node: 64,
                cache_bytes: fs_nodes as usize * lines * STRIPE_BYTES,
                content: ContentForm::USUAL,
                slow_engine: false,
            },
        );
        let machine = JMachine {
            profile: profile.clone().unwrap_or_else(Profile::ideal),
            topology: topology.clone(),
            host: Some(NodeId::application(OBSERVER)),
        };
        let world = cluster.world();
        if profile.is_some() {
            world.emulate(&machine, APPLICATIONS);
        } else {
            (0..APPLICATIONS).for_each(|index| drop(world.context(NodeId::application(index))));
        }
        world.network().use_mesh(MeshSetup::machine(&machine, *policy)?)?;
        let emulation = Self { cluster, programs: Cell::new(0) };
        emulation.run(emulation.cluster.format(Phases::All))?;
        if *record {
            let recorder = Recorder::new(seed, &format!("{setup:?}"), BUCKET_CYCLES);
            emulation.world().network().record_mesh(recorder);
        }
        Ok(emulation)
    }

    /// Lets the machine run until `work` is done.
    pub fn run<F: Future>(&self, work: F) -> F::Output {
        self.world().run(work)
    }

    /// The machine.
    pub fn world(&self) -> &World {
        self.cluster.world()
    }

    /// All nodes die and come up again from what is on the disks.
    pub async fn restart(&self) -> Result<(), EmulatedError> {
        self.cluster.restart();
        Ok(self.cluster.mount(Phases::All).await?)
    }

    /// The volume, as a new program on the application node `index` (0 to 6) sees it.
    pub fn program(&self, index: u32) -> FileSystem<Context> {
        let number = self.programs.get() + 1;
        self.programs.set(number);
        FileSystem::new(self.cluster.application(index), Credentials::root(), number)
    }

    /// The number of the volume.
    pub fn volume(&self) -> VolumeId {
        self.cluster.geometry().volume
    }

    /// What happened so far.
    pub fn tally(&self) -> EmulationTally {
        let world = self.world();
        let WorldCounters { messages, replies, bytes, disk_operations, .. } = world.counters();
        let mesh = world.network().mesh(Mesh::counters).unwrap_or_default();
        EmulationTally {
            time: world.now(),
            frames: messages + replies,
            bytes,
            disk_operations,
            mesh,
        }
    }

    /// The messages of the mesh; `None` if it does not record.
    pub fn trace(&self) -> Option<MeshTrace> {
        self.world().network().mesh(MeshTrace::of).flatten()
    }
}

/// What has happened, counted. The difference of two is what something cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EmulationTally {
    /// Virtual time.
    pub time: Duration,
    /// Requests and replies between nodes.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Operations that disks began.
    pub disk_operations: u64,
    /// What the mesh did.
    pub mesh: MeshCounters,
}

impl Sub for EmulationTally {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            time: self.time.saturating_sub(before.time),
            frames: self.frames - before.frames,
            bytes: self.bytes - before.bytes,
            disk_operations: self.disk_operations - before.disk_operations,
            mesh: self.mesh - before.mesh,
        }
    }
}

impl fmt::Display for EmulationTally {
    #[allow(clippy::cast_precision_loss, reason = "three digits are printed")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { time, frames, bytes, disk_operations, mesh } = self;
        let MeshCounters { delivered, forwarded, queue_full, .. } = mesh;
        write!(
            f,
            "{:.3} ms, {frames} requests and replies in {delivered} messages ({forwarded} \
             forwarded, {queue_full} at a full queue) of {:.1} KiB, {disk_operations} disk operations",
            time.as_secs_f64() * 1e3,
            *bytes as f64 / 1024.0,
        )
    }
}
