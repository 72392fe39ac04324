//! Block I/O: one logical disk made of stripes, on the disks of many disk nodes (thesis section
//! 2.3).
//!
//! # Promise
//!
//! - A byte reads back as last written; a byte never written is undefined.
//! - A write is durable once a [`Sync`](protocol::Sync) that was sent after its answer is answered
//!   under the same boot ID of the disk node. Under another boot ID it may be lost, and the sync
//!   returns [`Error::LostWrites`](protocol::Error::LostWrites). Before the sync a crash may keep
//!   the write, drop it or tear it, but never changes other bytes.
//! - Reads of one disk start in the order in which they came, and so do writes; the two take turns,
//!   and neighbours on the disk that wait at the same time go together. Requests in flight at the
//!   same time have no order: a caller that needs one awaits the first answer.
//! - Requests are stateless and idempotent.
//! - A disk that belongs elsewhere, was cut off, or was opened by a newer epoch is refused before
//!   anything is written to it ([`DiskError`]).
//! - A disk that failed to write or to flush is never trusted again.
//!
//! # Uses
//!
//! Only [`runtime::disk::Disk`], real or emulated. Nothing here knows what a file, a name or a
//! cache is.
//!
//! # Features
//!
//! `server` (default): the disk node and its client. Without it there are the table of requests and
//! the geometry.
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `protocol.rs` | every request and reply: the contract with the layer above |
//! | `geometry.rs` | the constants of a volume, and how a disk is divided |
//! | `disk_set.rs`, `volume_map.rs` | which disks there are, and where a stripe is |
//! | `disk_state.rs` | disks that are being drained, or retired; the record of a volume |
//! | `failure_domains.rs` | which disks fail together |
//! | `plan.rs` | the sets that new disks make |
//! | `superblock.rs` | the identity of a disk, in its first and last block |
//! | `probe.rs` | what a disk holds that is to be formatted |
//! | `format.rs`, `open.rs` | writing that, and checking it against what is expected |
//! | `server.rs`, `new_disks.rs` | the disk node, and disks that come while it is served |
//! | `manager/` | the I/O manager: a queue per disk, fair passes, merged requests, flushes |
//! | `stripes.rs` | what the layers above see, here and in the cache |
//! | `client.rs` | the client: routing, retries, checksums |
//! | `degraded.rs` | disks that are missing or damaged, in a volume that is only read |
//! | `failover.rs` | writes to a disk that has failed, until it is given up |
//! | `range.rs` | bytes of the whole logical disk, over many stripes at once |
//! | `checksum.rs` | CRC-32C per block |

#[cfg(feature = "server")]
pub mod checksum;
#[cfg(feature = "server")]
pub mod client;
#[cfg(feature = "server")]
pub mod degraded;
#[cfg(feature = "server")]
pub mod disk_set;
#[cfg(feature = "server")]
pub mod disk_state;
#[cfg(feature = "server")]
pub mod failover;
#[cfg(feature = "server")]
mod failure_domains;
#[cfg(feature = "server")]
pub mod format;
pub mod geometry;
#[cfg(feature = "server")]
mod manager;
#[cfg(feature = "server")]
mod new_disks;
#[cfg(feature = "server")]
pub mod open;
#[cfg(feature = "server")]
pub mod plan;
#[cfg(feature = "server")]
pub mod probe;
pub mod protocol;
#[cfg(feature = "server")]
pub mod range;
pub mod redundancy;
#[cfg(feature = "server")]
pub mod server;
#[cfg(feature = "server")]
pub mod stripes;
#[cfg(feature = "server")]
pub mod superblock;
#[cfg(feature = "server")]
pub mod volume_map;

pub use geometry::{BLOCK_SIZE, Geometry, GeometryError};
pub use redundancy::{RedundancyClass, WideStripeShape};
#[cfg(feature = "server")]
pub use {
    client::BlockClient,
    disk_set::{DiskName, DiskSet, DiskStripe, SetMember, SetMembers},
    disk_state::{
        DiskStage, MovePolicy, VolumeRecord, has_disk_behind, has_lost_disk, incomplete_disks,
        is_behind, lost_disks,
    },
    failure_domains::FailureDomains,
    format::format_disk,
    open::{DiskError, ExpectedDisk, identify, open_disk, upgrade_disk},
    probe::{DiskContent, probe},
    range::{read_range, write_range},
    server::{Config, DiskNodeError, Server},
    stripes::{Answer, BootId, DROPPED, Stripes, blocks_of},
    superblock::Superblock,
    volume_map::VolumeMap,
};
