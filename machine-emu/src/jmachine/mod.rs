//! The J-Machine: what its processors, links and disks cost, as numbers that say where they come
//! from.
//!
//! The same numbers drive two things: models that stand alone, tested against formulas, and the
//! [`World`](crate::World), in which the unmodified layers then take the time of the machine
//! ([`JMachine`]).
//!
//! | file | holds |
//! | --- | --- |
//! | `profile/` | the tables of numbers, each with its source and how far it may be trusted |
//! | `topology.rs` | the one-line notation of a machine, and where its nodes are |
//! | `costs.rs` | what software costs a processor |
//! | `levels.rs` | the time of a processor at three levels |
//! | `transit.rs` | the latency of a message if it meets no other |
//! | `mechanics.rs`, `scsi.rs` | arm and platter of a disk; the bus of a disk node |
//! | `machine.rs`, `emulated.rs`, `meshed.rs` | the world as a J-Machine; its mesh |
//! | `text.rs` | text between hosts and the machine |

#![allow(
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "times and sizes here are far below 2^52, and profiles hold no negative number"
)]

mod costs;
mod emulated;
mod levels;
mod machine;
mod mechanics;
mod meshed;
mod profile;
mod scsi;
pub mod text;
mod topology;
mod transit;

pub use costs::NodeCosts;
pub(crate) use emulated::{Emulated, HostWire};
pub use levels::{Levels, PriorityLevel};
pub use machine::{JMachine, NodeLoad};
pub use mechanics::Mechanics;
pub use profile::{
    BusNumbers, Confidence, DiskNodeNumbers, DiskNumbers, FileNumbers, HostNumbers, NetworkNumbers,
    NodeNumbers, Number, Numbers, Profile, ProfileError, ProgramNumbers,
};
pub use scsi::{Bus, Due, ScsiCommand, TransferDirection};
pub use topology::{NodeCoordinates, Topology, TopologyError};
pub use transit::ZeroLoad;
