//! The checkpoint demo on the emulated machine: from an empty machine to files that are read back
//! after a restart.

use std::fmt;

use bytes::Bytes;
use client::{FileSystem, OpenOptions};
use futures::future::try_join_all;
use machine_emu::mesh::MeshCounters;
use runtime::{Spawn, hash};

use super::{EmulatedError, Emulation, EmulationTally, STRIPE_BYTES};

/// What programs write.
#[derive(Clone, Copy, Debug)]
pub struct CheckpointRun {
    /// Of the bytes.
    pub seed: u64,
    /// Programs, up to 7, on application nodes of their own.
    pub writers: u32,
    /// Bytes that each writes.
    pub bytes: usize,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointResult {
    /// Of the world.
    pub trace_hash: u64,
    /// Of the mesh's messages; 0 if it does not record.
    pub mesh_hash: u64,
    /// What making the volume, the writes with their syncs, the restart and the reads took.
    pub phases: [EmulationTally; 4],
    /// Bytes that all writers wrote.
    pub bytes: u64,
}

impl CheckpointResult {
    /// All phases together.
    pub fn mesh(&self) -> MeshCounters {
        self.phases.iter().fold(MeshCounters::default(), |sum, phase| sum + phase.mesh)
    }
}

impl fmt::Display for CheckpointResult {
    #[allow(clippy::cast_precision_loss, reason = "three digits are printed")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ["format", "write", "restart", "read"];
        for (name, phase) in names.into_iter().zip(&self.phases) {
            let seconds = phase.time.as_secs_f64();
            let moved = matches!(name, "write" | "read").then_some(self.bytes as f64 / seconds);
            let rate = moved.map_or_else(String::new, |rate| format!(" {:.0} kB/s", rate / 1024.0));
            writeln!(f, "{name:8} {seconds:9.4} s{rate}")?;
        }
        let frames: u64 = self.phases.iter().map(|phase| phase.frames).sum();
        let MeshCounters { delivered, forwarded, stalled_cycles, queue_full, .. } = self.mesh();
        write!(
            f,
            "{frames} requests and replies, {delivered} messages ({forwarded} forwarded), \
             {stalled_cycles} cycles stalled, {queue_full} times at a full queue",
        )
    }
}

/// The bytes of writer `number`: other bytes in each stripe.
pub fn content(seed: u64, number: u32, bytes: usize) -> Vec<u8> {
    let mut rng = runtime::seed::Rng::new(seed ^ u64::from(number) << 32);
    let mut content = vec![0; bytes];
    rng.fill(&mut content);
    content
}

/// The file of writer `number`.
pub fn name(number: u32) -> String {
    format!("/checkpoint-{number}")
}

/// Writes, restarts all nodes, reads and compares.
pub fn checkpoint(
    machine: &Emulation,
    what: CheckpointRun,
) -> Result<CheckpointResult, EmulatedError> {
    let mut last = EmulationTally::default();
    let mut lap = || {
        let now = machine.tally();
        now - std::mem::replace(&mut last, now)
    };
    let format = lap();
    let programs = || (0..what.writers).map(|number| (number, machine.program(number)));
    machine.run(try_join_all(programs().map(|(number, system)| write(system, number, what))))?;
    let write = lap();
    machine.run(machine.restart())?;
    let restart = lap();
    machine.run(try_join_all(programs().map(|(number, system)| read(system, number, what))))?;
    let phases = [format, write, restart, lap()];
    let trace = machine.trace().map(|trace| hash::xxh3(&trace.to_bytes()));
    Ok(CheckpointResult {
        trace_hash: machine.world().trace_hash(),
        mesh_hash: trace.unwrap_or_default(),
        phases,
        bytes: u64::from(what.writers) * what.bytes as u64,
    })
}

async fn write<S: Spawn + Clone>(
    system: FileSystem<S>,
    number: u32,
    what: CheckpointRun,
) -> Result<(), EmulatedError> {
    let file = system.create(name(number)).await?;
    let bytes = Bytes::from(content(what.seed, number, what.bytes));
    for start in (0..bytes.len()).step_by(STRIPE_BYTES) {
        let end = bytes.len().min(start + STRIPE_BYTES);
        file.write_at(start as u64, bytes.slice(start..end)).await?;
    }
    file.sync().await?;
    Ok(())
}

async fn read<S: Spawn + Clone>(
    system: FileSystem<S>,
    number: u32,
    what: CheckpointRun,
) -> Result<(), EmulatedError> {
    let file = system.open(name(number), OpenOptions::new().read(true)).await?;
    let found = file.read_bytes_at(0, what.bytes + 1).await?.concat();
    let same = found == content(what.seed, number, what.bytes);
    if same { Ok(()) } else { Err(EmulatedError::Differs(number)) }
}
