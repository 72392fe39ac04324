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
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `bench.rs` | a machine with as many nodes and layers as an experiment needs |
//! | `block.rs` | Figs. 4.1 and 4.2: block I/O |
//! | `lines.rs` | Figs. 4.3 and 4.4: the distributed cache |
//! | `files.rs` | Fig. 4.5: the whole file system |
//! | `exclusive.rs` | the allocator of 1996: one at a time |
//! | `figure.rs` | which figures there are, and the machines to measure on |
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
mod figure;
mod files;
mod lines;
mod report;

pub use bench::RunError;
pub use block::{BlockExperiment, BlockResult, ChunkPattern, measure_blocks};
pub use figure::{Figure, Profiles, Rig};
pub use files::{Allocation, FilesExperiment, FilesResult, measure_files};
pub use lines::{CacheExperiment, LineChoice, LinesExperiment, measure_cache, measure_lines};
pub use report::{Curve, FigureReport, Panel, Series};

impl Figure {
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
