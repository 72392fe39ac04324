//! The figures of the thesis' chapter 4, from the layers of today on the emulated J-Machine.
//!
//! # Promise
//!
//! - The layers run unmodified: block I/O, cache and files as everywhere, on a
//!   [`World`](machine_emu::World) whose processors, messages and disks take the time of a profile.
//! - Each figure shows three series: what the thesis says, the ideal profile, and the one that was
//!   calibrated; and names the numbers that were fitted. What is fitted predicts nothing.
//! - The same profiles give the same figures, on any day and computer.
//!
//! # Asks below
//!
//! All layers and the machine. Only the program sends requests here.
//!
//! # Rooms
//!
//! | file | holds |
//! | --- | --- |
//! | `bench.rs` | a machine with as many nodes and layers as an experiment needs |
//! | `block.rs` | Figs. 4.1 and 4.2: block I/O |
//! | `lines.rs` | Figs. 4.3 and 4.4: the distributed cache |
//! | `files.rs` | Fig. 4.5: the whole file system |
//! | `exclusive.rs` | the allocator of 1996: one at a time |
//! | `report.rs` | a figure as numbers: tables, comma-separated values |
//! | `draw.rs` | a figure as a picture |

#![allow(
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "times and counts here are far below 2^52 and never negative"
)]

mod bench;
mod block;
mod draw;
mod exclusive;
mod files;
mod lines;
mod report;

use machine_emu::jmachine::Profile;

pub use bench::RunError;
pub use block::{BlockExperiment, BlockResult, ChunkPattern, measure_blocks};
pub use files::{Allocation, FilesExperiment, FilesResult, measure_files};
pub use lines::{CacheExperiment, LineChoice, LinesExperiment, measure_cache, measure_lines};
pub use report::{Curve, FigureReport, Panel, Series};

/// A figure of chapter 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Figure {
    /// Block I/O under load, consecutive stripes.
    F41a,
    /// Block I/O under load, random stripes.
    F41b,
    /// Time at the best load over disk nodes.
    F42a,
    /// Rate at the best load over disk nodes.
    F42b,
    /// The cache without disks.
    F43,
    /// The cache with disks.
    F44,
    /// The file system.
    F45,
}

impl Figure {
    /// All of them, in order.
    pub const ALL: [Self; 7] =
        [Self::F41a, Self::F41b, Self::F42a, Self::F42b, Self::F43, Self::F44, Self::F45];

    /// Its number in the thesis.
    pub fn number(self) -> &'static str {
        match self {
            Self::F41a => "4.1a",
            Self::F41b => "4.1b",
            Self::F42a => "4.2a",
            Self::F42b => "4.2b",
            Self::F43 => "4.3",
            Self::F44 => "4.4",
            Self::F45 => "4.5",
        }
    }

    /// The figure with this number.
    pub fn from_number(number: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|figure| figure.number() == number)
    }

    /// Runs its experiments with both profiles.
    pub fn run(self, profiles: &Profiles) -> Result<FigureReport, RunError> {
        let mut report = match self {
            Self::F41a | Self::F41b => block::load(profiles, self),
            Self::F42a | Self::F42b => block::best(profiles, self),
            Self::F43 => lines::lines(profiles),
            Self::F44 => lines::cache(profiles),
            Self::F45 => files::files(profiles),
        }?;
        if profiles.calibrated.traffic {
            report.notes.push(TRAFFIC.to_owned());
        }
        Ok(report)
    }
}

/// What a figure says besides if messages meet.
const TRAFFIC: &str = "Messages meet in the mesh, worm by worm, and full queues hold them there. The fits are those of \
                       the network without traffic.";

/// A machine to measure on.
#[derive(Clone, Debug)]
pub struct Rig {
    /// What everything costs.
    pub profile: Profile,
    /// Messages meet in the mesh, and its queues fill; otherwise each takes the time of the formula.
    pub traffic: bool,
}

impl From<Profile> for Rig {
    /// Without traffic.
    fn from(profile: Profile) -> Self {
        Self { profile, traffic: false }
    }
}

/// The profiles of a figure.
#[derive(Clone, Debug)]
pub struct Profiles {
    /// Software as good as the hardware lets it be.
    pub ideal: Rig,
    /// Fitted to what was measured.
    pub calibrated: Rig,
}

impl Default for Profiles {
    /// Those that come with the program.
    fn default() -> Self {
        Self { ideal: Profile::ideal().into(), calibrated: Profile::as_measured().into() }
    }
}
