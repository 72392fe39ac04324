//! The checkpoint demo on the emulated J-Machine: the real layers on its mesh, 512 nodes and up to
//! eight disk nodes, from an empty machine to files that are read back after a restart.

use std::cell::Cell;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use client::{Credentials, Error, FileSystem, OpenOptions};
use futures::future::try_join_all;
use machine_emu::mesh::{GeometryError, Mesh, MeshCounters, Policy, Recorder};
use machine_emu::{LinkError, MeshSetup};
use runtime::{Context, hash};
use thiserror::Error;

use crate::cluster::{Cluster, Layout, Phases};

/// Bytes that a writer hands over at a time: a stripe.
const PIECE_BYTES: usize = 64 << 10;
/// Disks on the bus of a disk node (MDFS thesis 2.1.2).
const DISKS_PER_NODE: u32 = 4;
/// Buckets of load begin with so many cycles: 100 us.
const BUCKET_CYCLES: u64 = 1_000;

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Checkpoint {
    /// Of everything that is drawn.
    pub seed: u64,
    /// 1 to 8, with four disks each.
    pub disk_nodes: u32,
    /// File-system nodes.
    pub fs_nodes: u32,
    /// Programs, 1 to 7, on application nodes of their own.
    pub writers: u32,
    /// Bytes that each writes.
    pub bytes: usize,
    /// Who passes on what cannot be sent directly.
    pub policy: Policy,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self {
            seed: 1,
            disk_nodes: 8,
            fs_nodes: 64,
            writers: 7,
            bytes: 1 << 20,
            policy: Policy::Canonical,
        }
    }
}

/// It did not work.
#[derive(Debug, Error)]
pub enum EmulatedError {
    /// There is no such machine.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The nodes do not fit on it.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The volume could not be made or mounted.
    #[error("the volume cannot be brought up: {0}")]
    Stack(#[from] fileio::stack::StackError),
    /// A program failed.
    #[error(transparent)]
    Client(#[from] Error),
    /// A file came back other than it was written.
    #[error("checkpoint {0} differs after the restart")]
    Differs(u32),
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emulated {
    /// Of the world.
    pub trace_hash: u64,
    /// Of the mesh's messages.
    pub mesh_hash: u64,
    /// Requests and replies between nodes.
    pub frames: u64,
    /// What the mesh did.
    pub mesh: MeshCounters,
    /// Virtual time of the format, of the writes with their syncs, of the restart, of the reads.
    pub phases: [Duration; 4],
    /// Bytes that all writers wrote.
    pub bytes: u64,
}

impl fmt::Display for Emulated {
    #[allow(clippy::cast_precision_loss, reason = "three digits are printed")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [format, write, restart, read] = self.phases;
        let rate = |time: Duration| self.bytes as f64 / time.as_secs_f64() / 1024.0;
        writeln!(f, "format {format:?}, write {write:?} ({:.0} kB/s)", rate(write))?;
        writeln!(f, "restart {restart:?}, read {read:?} ({:.0} kB/s)", rate(read))?;
        let MeshCounters { delivered, forwarded, stalled_cycles, queue_full, .. } = self.mesh;
        write!(
            f,
            "{} frames, {delivered} messages ({forwarded} forwarded), {stalled_cycles} cycles \
             stalled, {queue_full} times at a full queue",
            self.frames
        )
    }
}

/// The bytes of writer `number`: other bytes in each stripe.
fn content(seed: u64, number: u32, bytes: usize) -> Vec<u8> {
    let mut rng = runtime::seed::Rng::new(seed ^ u64::from(number) << 32);
    let mut content = vec![0; bytes];
    rng.fill(&mut content);
    content
}

fn name(number: u32) -> String {
    format!("/checkpoint-{number}")
}

/// The whole run; `look` sees the mesh at its end.
pub fn checkpoint(what: Checkpoint, look: impl FnOnce(&Mesh)) -> Result<Emulated, EmulatedError> {
    let layout = Layout {
        fs_nodes: what.fs_nodes,
        disk_nodes: what.disk_nodes,
        disks_per_node: DISKS_PER_NODE,
        stripe_size: PIECE_BYTES as u32,
        stripes_per_node: 64,
        // Ten stripes per node: a megabyte each.
        cache_bytes: what.fs_nodes as usize * 10 * PIECE_BYTES,
    };
    let cluster = Cluster::new(what.seed, layout);
    let recorder = Recorder::new(what.seed, &format!("{what:?}"), BUCKET_CYCLES);
    let thesis = MeshSetup::thesis(what.disk_nodes)?;
    let setup = MeshSetup { policy: what.policy, recorder: Some(recorder), ..thesis };
    cluster.world().use_mesh(setup)?;
    let phases = cluster.world().run(work(&cluster, what))?;
    let world = cluster.world();
    let counters = world.counters();
    let mesh = world.mesh(Mesh::counters).unwrap_or_default();
    let trace = world.mesh(|mesh| mesh.recorder().map(|recorder| hash::xxh3(&recorder.to_bytes())));
    world.mesh(look);
    Ok(Emulated {
        trace_hash: world.trace_hash(),
        mesh_hash: trace.flatten().unwrap_or_default(),
        frames: counters.messages + counters.replies,
        mesh,
        phases,
        bytes: u64::from(what.writers) * what.bytes as u64,
    })
}

async fn work(cluster: &Cluster, what: Checkpoint) -> Result<[Duration; 4], EmulatedError> {
    let last = Cell::new(Duration::ZERO);
    let lap = || {
        let now = cluster.world().now();
        now.saturating_sub(last.replace(now))
    };
    cluster.format(Phases::All).await?;
    let format = lap();
    let programs = || (0..what.writers).map(|number| (number, cluster.application(number)));
    try_join_all(programs().map(|(number, context)| write(context, number, what))).await?;
    let write = lap();
    cluster.restart();
    cluster.mount(Phases::All).await?;
    let restart = lap();
    try_join_all(programs().map(|(number, context)| read(context, number, what))).await?;
    Ok([format, write, restart, lap()])
}

fn file_system(context: Context, number: u32) -> FileSystem<Context> {
    FileSystem::new(context, Credentials::root(), u64::from(number) + 1)
}

async fn write(context: Context, number: u32, what: Checkpoint) -> Result<(), EmulatedError> {
    let system = file_system(context, number);
    let file = system.create(name(number)).await?;
    let bytes = Bytes::from(content(what.seed, number, what.bytes));
    for start in (0..bytes.len()).step_by(PIECE_BYTES) {
        let end = bytes.len().min(start + PIECE_BYTES);
        file.write_at(start as u64, bytes.slice(start..end)).await?;
    }
    file.sync().await?;
    Ok(())
}

async fn read(context: Context, number: u32, what: Checkpoint) -> Result<(), EmulatedError> {
    let system = file_system(context, number + what.writers);
    let file = system.open(name(number), OpenOptions::new().read(true)).await?;
    let found = file.read_bytes_at(0, what.bytes + 1).await?.concat();
    let same = found == content(what.seed, number, what.bytes);
    if same { Ok(()) } else { Err(EmulatedError::Differs(number)) }
}
