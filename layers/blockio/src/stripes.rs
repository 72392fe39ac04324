//! What the layers above see: one logical disk made of stripes. Block I/O offers it directly, the
//! cache offers the same in front of it, so a volume also runs without the cache.

use bytes::Bytes;
use futures::future::LocalBoxFuture;

use crate::geometry::Geometry;
use crate::protocol::{Error, Unsynced};

/// The future answer of a [`Stripes`] call.
pub type Answer<T> = LocalBoxFuture<'static, Result<T, Error>>;

/// One life of a server: a random number drawn when it starts. What it was told in one life and has
/// not made durable may be gone in the next.
pub type Life = u64;

/// One logical disk. Every call stays within one stripe; calls run concurrently.
pub trait Stripes {
    /// The shape of the volume.
    fn geometry(&self) -> Geometry;

    /// Reads bytes of a stripe.
    ///
    /// `expect` is empty, or holds the CRC-32C of each block of the range (which then consists of
    /// whole blocks): bytes that come from a disk are checked against it, and a mismatch that
    /// a second read does not heal is [`Error::Corrupt`].
    fn read(&self, stripe: u64, offset: u32, length: u32, expect: Vec<u32>) -> Answer<Bytes>;

    /// As [`read`](Self::read), if the bytes are in the memory of this thread. `None` says nothing about
    /// them: then `read` has to be asked.
    fn read_at_once(
        &self,
        _stripe: u64,
        _offset: u32,
        _length: u32,
        _expect: &[u32],
    ) -> Option<Bytes> {
        None
    }

    /// Replaces bytes of a stripe; returns the life of the server that has them. Durable after
    /// a [`sync`](Self::sync) of the stripe with this life.
    fn write(&self, stripe: u64, offset: u32, data: Vec<Bytes>) -> Answer<Life>;

    /// Replaces bytes of a stripe by zeros, without sending them.
    fn write_zeros(&self, stripe: u64, offset: u32, length: u32) -> Answer<Life>;

    /// Makes everything that was written to these stripes in these lives before the call durable.
    /// A stripe that was written in several lives is named with each. [`Error::LostWrites`] if one
    /// of them is over: what was written in it and not synced yet must be written again.
    fn sync(&self, written: Vec<Unsynced>) -> Answer<()>;

    /// Says that nobody will read these bytes again: their space was freed. What is dirty may be
    /// dropped without being written.
    fn forget(&self, stripe: u64, offset: u32, length: u32) -> Answer<()>;

    /// Reads root slot `slot` of a disk, counted over the whole volume
    /// (`disk_node + disk * disk_nodes`).
    fn read_slot(&self, disk: u32, slot: u32) -> Answer<Bytes>;

    /// Replaces a root slot; durable when answered.
    fn write_slot(&self, disk: u32, slot: u32, data: Bytes) -> Answer<()>;
}
