//! The result of one run.

use std::time::Duration;

use machine_emu::WorldCounters;

use crate::schedule::Schedule;

/// Virtual time of a run, at most.
pub(super) const RUN_TIME_MAX: Duration = Duration::from_hours(2);

/// What a run did.
#[derive(Clone, Debug)]
pub struct RunReport {
    /// Equal for equal cases.
    pub trace_hash: u64,
    /// What happened in the world.
    pub counters: WorldCounters,
    /// Virtual time.
    pub virtual_time: Duration,
    /// Requests of clients that were answered.
    pub operations: u64,
    /// The faults.
    pub schedule: Schedule,
}
