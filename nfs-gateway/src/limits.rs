//! The default limits of a gateway, and bounds that the protocols set.

use std::time::Duration;

/// Bytes that one READ or WRITE may carry.
pub const TRANSFER_BYTES: u32 = 1 << 20;
/// Bytes in one RPC record: the largest transfer and the message around it.
pub const RECORD_BYTES: usize = TRANSFER_BYTES as usize + (64 << 10);
/// Fragments in one RPC record.
pub const FRAGMENTS: usize = 64;
/// Connections of all peers together.
pub const CONNECTIONS: usize = 1024;
/// Connections of one peer.
pub const CONNECTIONS_PER_PEER: usize = 32;
/// Outstanding calls of one connection: their replies are not sent yet.
pub const OUTSTANDING_CALLS: usize = 64;
/// Bytes of such calls and of their replies.
pub const OUTSTANDING_BYTES: usize = 16 << 20;
/// The same of all connections of one peer.
pub const OUTSTANDING_BYTES_PER_PEER: usize = 128 << 20;
/// The same of all peers together.
pub const OUTSTANDING_BYTES_TOTAL: usize = 512 << 20;
/// Bytes of all records together of which a part was received; small ones are not counted.
pub const INCOMPLETE_BYTES: usize = 128 << 20;
/// The same of one peer.
pub const INCOMPLETE_BYTES_PER_PEER: usize = 32 << 20;
/// An idle connection is closed after this time.
pub const IDLE: Duration = Duration::from_mins(6);
/// Running calls have this time to end when the gateway stops.
pub const DRAIN: Duration = Duration::from_secs(5);
/// Bytes of a stripe of most volumes.
pub const STRIPE_BYTES: usize = 64 << 10;
/// A call that takes longer is logged.
pub const SLOW: Duration = Duration::from_secs(1);

/// Bytes of a name, at most.
pub(crate) const NAME_BYTES_MAX: u32 = 255;
/// Bytes that a file takes at least; the free space divided by this is the number of free inodes.
pub(crate) const FILE_BYTES_MIN: u64 = 4096;
