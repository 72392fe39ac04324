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
//! | `kernel.rs` | every operation that the kernel may ask for, handed on to a seat |
//! | `seat.rs` | where operations run: many at once, on one thread |
//! | `operations.rs`, `operations/` | what each operation asks of the volume |
//! | `known.rs` | inodes and open files that the kernel has numbers for |
//! | `caller.rs` | who asks |
//! | `translate.rs` | attributes, times and errors in the kernel's words |
//!
//! Not there yet: extended attributes, `fallocate`, finding holes by `lseek`; locks are those of this
//! host. A file that is removed while it is open is gone at once.

mod caller;
mod kernel;
mod known;
mod mount;
mod operations;
mod seat;
mod translate;

pub use mount::{Ended, Mount, MountError, MountOptions, clear_stale};
pub use seat::{Seat, Tasks, seats, serve};
