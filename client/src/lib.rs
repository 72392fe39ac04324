//! The file system as programs use it: paths, open files, streams.
//!
//! # Promise
//!
//! - A path is bytes with `/` between names, always from the root of the volume; `.`, `..` and
//!   symbolic links mean what POSIX says.
//! - An [`Error`] names the operation, the path, the cause and what to do next, and turns into the
//!   [`std::io::Error`] of the right kind.
//! - Long transfers are cut into pieces that run at once, within a bound.
//! - An open file lives on without a name for as long as it is open and this client lives.
//! - Nothing is kept but handles, and which of them are open: every request stands alone (thesis
//!   section 2.5.4). Over links with delay data are read ahead, by the rule in [`wide`].
//!
//! # Asks below
//!
//! `fileio`'s table of requests, through anything that can spawn them: a node's
//! [`runtime::Context`], or a [`runtime::ClientHandle`] for ordinary threads. With the feature
//! `embedded` also `volume`, for volumes that no server serves.
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `session.rs` | requests of one user to the nodes |
//! | `file_system.rs` | operations on paths; `walk.rs` resolves them, `tree.rs` does whole trees |
//! | `xattrs.rs` | extended attributes |
//! | `scrub.rs` | comparing what the disks have with its checksums |
//! | `disks.rs`, `partitions.rs` | what operators ask for |
//! | `directory.rs` | listing, page by page |
//! | `file.rs` | an open file: bytes at offsets; `options.rs` how it is opened |
//! | `append.rs` | appends, each done once |
//! | `list.rs` | many regions of a file in one call |
//! | `lock.rs` | locks of byte ranges |
//! | `leases.rs`, `leases/` | what is open, and the leases under which nodes keep it; by handle, too |
//! | `delegations.rs` | what a front end may keep of files until that is recalled |
//! | `unsynced.rs`, `unsynced/` | writes that are kept until they are durable, and sent again |
//! | `wide.rs`, `wide/` | reading over links with delay; `adaptive.rs`, `adaptive/` how much at once |
//! | `error.rs` | what went wrong, for people and for programs |
//! | `blocking.rs` | the same for ordinary threads |
//! | `stream/` | the stdio-like interface (thesis section 2.6) |
//! | `kind.rs` | the bits of a mode for the kind of a file |
//! | `volume.rs` | opening a volume; `address.rs` where it is; `process.rs` who this process is |

pub mod adaptive;
pub mod address;
mod append;
pub mod blocking;
pub mod delegations;
mod deposits;
pub mod direct;
pub mod directory;
pub mod disks;
pub mod error;
pub mod fabric;
pub mod file;
pub mod file_system;
pub mod kind;
pub mod leases;
mod list;
pub mod lock;
pub mod options;
pub mod partitions;
pub mod process;
pub mod root_keys;
pub mod scrub;
mod session;
pub mod stream;
mod tree;
pub mod unsynced;
pub mod volume;
mod walk;
pub mod wide;
pub mod xattrs;

pub use address::VolumeAddress;
pub use append::append;
pub use directory::ReadDir;
pub use error::{Cause, Error};
// For clients that work by handle, not by path: every request of the applications interface.
pub use file::File;
pub use file_system::{FileSystem, sync_all};
pub use fileio::client::{RETRY_ROUNDS_MAX, ask, send_with_retries};
pub use fileio::protocol::{
    Attributes, ByteRange, Change, Credentials, FileLock, Kind, LockKind, SetTime, Space, Time,
    XattrMode, XattrName,
};
pub use fileio::regions::{Region, Regions, RegionsError};
pub use fileio::{hash, protocol};
pub use lock::{Lock, LockAttempt};
pub use options::OpenOptions;
pub use session::root_of;
pub use stream::Stream;
pub use walk::SYMLINKS_MAX;
pub use xattrs::FileXattrs;
