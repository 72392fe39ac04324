//! What may be asked of the cache at one node, and what is heard back.

use bytes::Bytes;

pub use blockio::protocol::{Error, Extent, Placed, Unsynced};

/// Parts of a stripe in one request, at most.
pub const PARTS_MAX: usize = 1 << 16;

runtime::protocol! {
    /// The distributed stripe cache (thesis section 2.4): the node of a stripe is
    /// `stripe mod nodes`.
    Cache id 2 version 3;

    /// Read within one stripe.
    1 Bulk Read {
        /// The logical stripe.
        stripe: u64,
        /// The first byte within the stripe.
        offset: u32,
        /// How many bytes.
        length: u32,
        /// Empty, or the CRC-32C of each logical block of the range: bytes that come from a disk
        /// are checked against it.
        expect: Vec<u32>,
    } -> Bytes, by stripe(stripe), retry idempotent, from servers, during recovery;

    /// Replace bytes within one stripe, in the cache only. Never reads the disk. Returns the life
    /// of the cache for the stripe's disk node: it changes when the cache has lost something of it.
    2 Bulk Write {
        /// The logical stripe.
        stripe: u64,
        /// The first byte within the stripe.
        offset: u32,
        /// The new content, in one or more pieces.
        data: Vec<Bytes>,
    } -> u64, by stripe(stripe), retry never, from servers, during recovery;

    /// Replace bytes by zeros, in the cache only.
    3 Bulk WriteZeros {
        /// The logical stripe.
        stripe: u64,
        /// The first byte within the stripe.
        offset: u32,
        /// How many bytes.
        length: u32,
    } -> u64, by stripe(stripe), retry never, from servers, during recovery;

    /// Write the dirty bytes of these stripes back to their disks. The disks' own caches are
    /// flushed by the asker, once for all nodes: returns a stripe of each disk node concerned, with
    /// the life in which the disk node has to answer that.
    4 Bulk WriteBack {
        /// Stripes of this node, with the lives in which they were written.
        written: Vec<Unsynced>,
        /// What the asker was told by a disk node that has restarted: a stripe of it, and its new
        /// life.
        restarted: Option<Unsynced>,
    } -> Vec<Unsynced>, by caller, retry idempotent, from servers, during recovery;

    /// These bytes were freed: drop them, written or not.
    5 Control Forget {
        /// The logical stripe.
        stripe: u64,
        /// The first byte within the stripe.
        offset: u32,
        /// How many bytes.
        length: u32,
    } -> (), by stripe(stripe), retry never, from servers, during recovery;

    /// What this node's cache holds and has done.
    6 Control Status {} -> CacheStatus, by caller, retry idempotent, from any, during recovery;

    /// Read several parts of one stripe: one piece for each, or, if they are small, all in one
    /// piece.
    7 Bulk ReadList {
        /// The logical stripe.
        stripe: u64,
        /// The parts, in order and without overlap; at most [`PARTS_MAX`].
        extents: Vec<Extent>,
        /// Empty, or the CRC-32C of each logical block that has bytes of the parts, in order.
        expect: Vec<u32>,
        /// Blocks of a logical block.
        unit: u32,
    } -> Vec<Bytes>, by stripe(stripe), retry idempotent, from servers, during recovery;

    /// Replace several parts of one stripe at the same moment, as [`Write`] does one.
    8 Bulk WriteList {
        /// The logical stripe.
        stripe: u64,
        /// The new content, later pieces over earlier ones; at most [`PARTS_MAX`].
        parts: Vec<Placed>,
    } -> u64, by stripe(stripe), retry never, from servers, during recovery;
}

runtime::record! {
    /// The cache of one node, or the sum over nodes. Counters since the nodes started.
    #[derive(Copy, Default)]
    pub struct CacheStatus {
        /// Stripes held.
        lines: u64,
        /// Of these, with bytes that no disk has yet.
        dirty_lines: u64,
        /// Reads answered from memory, also those that waited for another's read of the disk.
        hits: u64,
        /// Read requests sent to disks.
        misses: u64,
        /// Stripes dropped to make room.
        evictions: u64,
        /// Write-back requests sent to disks.
        write_backs: u64,
    }
}

impl std::ops::Add for CacheStatus {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            lines: self.lines + other.lines,
            dirty_lines: self.dirty_lines + other.dirty_lines,
            hits: self.hits + other.hits,
            misses: self.misses + other.misses,
            evictions: self.evictions + other.evictions,
            write_backs: self.write_backs + other.write_backs,
        }
    }
}
