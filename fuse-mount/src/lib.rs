//! A volume as a FUSE file system of this host: requests of the kernel over `/dev/fuse` become
//! requests of the applications interface.
//!
//! # Guarantees
//!
//! - Requests of the kernel are processed concurrently and answered in any order; the threads that
//!   read them from the kernel never block.
//! - The kernel checks permissions on every component of a path (`default_permissions`: it alone
//!   can, as it does not send requests for what it has cached), and the file system checks them
//!   again with the user and groups of the calling process. What was permitted at open stays
//!   permitted.
//! - After a write has returned every other client sees it; with [`MountOptions::write_behind`]
//!   after the file is closed or synced, or a lock is released.
//! - An open file outlives its last name, whichever client removes that.
//! - Locks (`fcntl`, `flock`) are locks of the volume: programs on several hosts exclude one
//!   another, and the new holder of a lock reads what the previous one has written. If this host is
//!   cut off until others may have been granted a lock, reads and writes through the open file that
//!   had it fail (`EIO`).
//! - A program that waits for a server can be killed: its request is given up, at the earliest
//!   after a second.
//! - The kernel caches names and attributes for [`MountOptions::cache`]. It keeps content, also
//!   across opens, until an open finds that another client has changed it (close-to-open).
//!
//! # Uses
//!
//! The applications interface through `client`, from workers at nodes of a machine or through a
//! client handle.
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `mount.rs` | mounting, unmounting, and clearing the mount of a killed process |
//! | `kernel.rs` | the FUSE operations, each dispatched to a worker |
//! | `kernel/` | dispatch to workers, decoding of requests, encoding of replies |
//! | `worker.rs` | workers: concurrent operations on one thread |
//! | `operations.rs`, `operations/` | the requests to the volume of each operation, by family |
//! | `volume_client.rs` | the requests and leases of a mount at the volume |
//! | `inode_table.rs` | inodes and open files that the kernel refers to by number |
//! | `page_version.rs` | which version of a file the kernel's pages belong to |
//! | `write_behind.rs` | sequential writes, which are sent to the volume together |
//! | `caller.rs` | the calling process; `caller_watch.rs` gives up what killed programs wait for |
//! | `translate.rs` | attributes, times and errors of the kernel |
//!
//! Extended attributes are those in the namespaces `user.` and `trusted.`. `RENAME_EXCHANGE` is not
//! supported.

mod caller;
mod caller_watch;
mod inode_table;
mod kernel;
mod mount;
mod operations;
mod page_version;
mod translate;
mod volume_client;
mod worker;
mod write_behind;

pub use mount::{FuseMount, MountEnded, MountError, MountOptions, clear_stale};
pub use worker::{Worker, WorkerTasks, serve, workers};
