//! The second machine: virtual time, in one thread, from one seed.
//!
//! # Promise
//!
//! - The unmodified layers run on it: a [`World`] gives each node a [`runtime::Context`].
//! - The same seed and the same program give the same [`World::trace_hash`], on any day, in debug
//!   and release. There is no real time, no thread, no order of hash tables in it.
//! - Time advances only when nothing can run, and then exactly to the next event.
//! - What crosses nodes is only bytes, so a message may be late, doubled, lost or damaged; a node
//!   may die, freeze or be cut off; a disk may forget, tear, misplace, rot or refuse. All of it on
//!   request or drawn from the seed, and counted.
//! - A dead node does nothing any more: its tasks are dropped, and requests of their destructors
//!   are ignored.
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `world.rs`, `control.rs` | what a test does with a world, its nodes and its network |
//! | `core.rs` | the parts of a world, and the loop |
//! | `machine.rs` | the machine as a node sees it |
//! | `kernel.rs` | virtual time, nodes and tasks |
//! | `node.rs` | nodes, their run queues and incarnations |
//! | `cpu.rs`, `clock.rs` | what a step costs; what time a node believes it to be |
//! | `network.rs`, `window.rs` | messages, links and their faults; what TCP adds |
//! | `link.rs` | frames of the world as messages of a mesh |
//! | `mesh/` | the network of the J-Machine, in words and cycles |
//! | `disk/` | disks, their volatile caches and their faults |
//! | `stream.rs` | byte streams from outside |
//! | `events.rs`, `tasks.rs`, `alarm.rs`, `slab.rs` | the executor |
//! | `trace.rs` | the running hash and the counters |
//! | `engine.rs` | a coordination engine at one of the nodes |
//! | `jmachine/` | what the J-Machine costs: processors, links, disks |
//!
//! ```
//! use std::time::Duration;
//! use machine_emu::{WorldShape, World};
//! use runtime::NodeId;
//!
//! let world = World::new(42, WorldShape { fs_nodes: 4, disk_nodes: 2 });
//! let context = world.context(NodeId::fs(0));
//! world.run(async move { context.sleep(Duration::from_secs(5)).await });
//! assert_eq!(world.now(), Duration::from_secs(5));
//! ```

mod alarm;
mod clock;
mod control;
mod core;
mod cpu;
mod disk;
mod engine;
mod events;
pub mod jmachine;
mod kernel;
mod link;
mod machine;
pub mod mesh;
mod network;
mod node;
mod slab;
mod stream;
mod tasks;
mod trace;
pub mod window;
mod world;

pub use control::{NetworkControl, NodeControl};
pub use disk::{
    DiskControl, DiskEvent, DiskFaults, DiskOperation, DiskSnapshot, SECTOR_SIZE, Survival,
};
pub use engine::{EngineStore, SimulatedEngine};
pub use link::{LinkError, MeshSetup};
pub use network::{FaultTolerance, LinkTiming, NetworkFaults, NetworkTiming};
pub use node::WorldShape;
pub use stream::StreamFaults;
pub use trace::{FaultKind, WorldCounters};
pub use world::World;
