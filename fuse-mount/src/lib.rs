//! A volume as a file system of this host: what the kernel asks over `/dev/fuse` becomes requests of
//! the applications interface.
//!
//! # Promise
//!
//! - All requests of the kernel are under way at once and are answered in any order; the threads that
//!   read them from the kernel wait for nothing.
//! - The kernel checks permissions on every step of a path (`default_permissions`: what it has cached
//!   is never asked for again, so nobody else can), and the file system checks them again with the
//!   user and groups of the process that asks. What was permitted when a file was opened stays so.
//! - Nothing written is held back here: a write that has returned is seen by every other client.
//! - An open file outlives its last name, whichever client removes that.
//! - Locks (`fcntl`, `flock`) are those of the volume: programs on several hosts exclude one another, and
//!   whoever gets a lock reads what the one before has written. If this host is cut off for so long
//!   that others may have had a lock, reads and writes through the opening that had it fail (`EIO`).
//! - What the kernel keeps of names and attributes it keeps for [`MountOptions::cache`], and what it
//!   keeps of content until the file is opened again.
//!
//! # Asks below
//!
//! The applications interface through `client`, from seats at nodes of a machine or through a door.
//!
//! # Rooms
//!
//! | file | holds |
//! | --- | --- |
//! | `mount.rs` | mounting, unmounting, and clearing what a killed process has left |
//! | `kernel.rs`, `kernel/` | every operation that the kernel may ask for, handed on to a seat |
//! | `worker.rs` | where operations run: many at once, on one thread |
//! | `operations.rs`, `operations/` | what each operation asks of the volume |
//! | `known.rs` | inodes and open files that the kernel has numbers for |
//! | `caller.rs` | who asks |
//! | `translate.rs` | attributes, times and errors in the kernel's words |
//!
//! Extended attributes are those in the namespaces `user.` and `trusted.`. Two names do not change
//! places at once (`RENAME_EXCHANGE`).

mod caller;
mod kernel;
mod known;
mod mount;
mod operations;
mod translate;
mod worker;

pub use mount::{Ended, Mount, MountError, MountOptions, clear_stale};
pub use worker::{Tasks, Worker, serve, workers};
