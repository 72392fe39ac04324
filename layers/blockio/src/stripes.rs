//! What the layers above see: one logical disk made of stripes. Block I/O offers it directly, the
//! cache offers the same in front of it, so a volume also runs without the cache.

use std::ops::Range;
use std::rc::Rc;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::{LocalBoxFuture, try_join_all};

use runtime::{Epoch, NodeId};

use crate::disk_set::DiskName;
use crate::geometry::{BLOCK_SIZE, Geometry};
use crate::protocol::{Error, Extent, Placed, Unsynced};
use crate::volume_map::VolumeMap;

/// The future answer of a [`Stripes`] call.
pub type Answer<T> = LocalBoxFuture<'static, Result<T, Error>>;

/// A random number that a server draws when it starts. Writes that were answered under one boot ID
/// and not made durable may be lost when it changes.
pub type BootId = u64;

/// Under this boot ID is what was written to a disk that is away: nowhere. Further copies have it.
pub const DROPPED: BootId = 0;

/// One logical disk. Every call stays within one stripe; calls run concurrently.
pub trait Stripes {
    /// The constants of the volume.
    fn geometry(&self) -> Geometry {
        self.map().geometry()
    }

    /// The disks of the volume.
    fn map(&self) -> VolumeMap;

    /// Reads bytes of a stripe.
    ///
    /// `expect` is empty, or holds the CRC-32C of each logical block of the range (which then
    /// consists of whole ones, [`unit_bytes`](crate::checksum::unit_bytes)): bytes that come from a
    /// disk are checked against it, and a mismatch that a second read does not heal is
    /// [`Error::Corrupt`].
    fn read(&self, stripe: u64, offset: u32, length: u32, expect: Vec<u32>) -> Answer<Bytes>;

    /// As [`read`](Self::read), if the bytes are in the memory of this thread. `None` says nothing
    /// about them: then `read` has to be asked.
    fn try_read_now(
        &self,
        _stripe: u64,
        _offset: u32,
        _length: u32,
        _expect: &[u32],
    ) -> Option<Bytes> {
        None
    }

    /// The same logical disk past a cache, if there is one: what the disks have.
    fn below(&self) -> Option<Rc<dyn Stripes>> {
        None
    }

    /// The node that has the bytes of a stripe in memory, if nodes keep them.
    fn node_of(&self, _stripe: u64) -> Option<NodeId> {
        None
    }

    /// Replaces bytes of a stripe; returns the boot ID of the server that has them. Durable after a
    /// [`sync`](Self::sync) of the stripe with this boot ID.
    fn write(&self, stripe: u64, offset: u32, data: Vec<Bytes>) -> Answer<BootId>;

    /// As [`write`](Self::write), asked once, and only in this epoch: for one who writes to blocks
    /// that another node has reserved, and may give to others when it has moved.
    fn write_once(
        &self,
        stripe: u64,
        offset: u32,
        data: Vec<Bytes>,
        _epoch: Epoch,
    ) -> Answer<BootId> {
        self.write(stripe, offset, data)
    }

    /// Reads several parts of a stripe, which are in order and do not overlap: one piece for each,
    /// or all of them, one after the other, in one piece.
    ///
    /// `expect` is empty, or holds the CRC-32C of each logical block, of `unit` blocks, of
    /// [`blocks_of`] the parts.
    fn read_list(
        &self,
        stripe: u64,
        extents: Vec<Extent>,
        (expect, unit): (Vec<u32>, u32),
    ) -> Answer<Vec<Bytes>> {
        let ranges = blocks_of(&extents, unit);
        let mut expect = expect.as_slice();
        let reads = ranges.iter().map(|range| {
            let blocks = range.len() / (unit as usize * BLOCK_SIZE);
            let (these, rest) = expect.split_at(blocks.min(expect.len()));
            expect = rest;
            self.read(stripe, range.start, range.len() as u32, these.to_vec())
        });
        let reads: Vec<Answer<Bytes>> = reads.collect();
        async move {
            let read = try_join_all(reads).await?;
            let mut blocks = ranges.iter().zip(&read).peekable();
            let part = |extent: &Extent| {
                while blocks.next_if(|(range, _)| range.end <= extent.offset).is_some() {}
                let (range, bytes) = blocks.peek()?;
                let start = (extent.offset - range.start) as usize;
                bytes.get(start..start + extent.length as usize)?;
                Some(bytes.slice(start..start + extent.length as usize))
            };
            let parts: Option<Vec<Bytes>> = extents.iter().map(part).collect();
            parts.ok_or(runtime::Undelivered::ProtocolMismatch.into())
        }
        .boxed_local()
    }

    /// Replaces several parts of a stripe; returns the boot ID of the server that has them all, or
    /// the first of those that have some.
    fn write_list(&self, stripe: u64, parts: Vec<Placed>) -> Answer<BootId> {
        let writes = parts.into_iter().map(|part| self.write(stripe, part.offset, vec![part.data]));
        let writes: Vec<Answer<BootId>> = writes.collect();
        async move {
            let mut first = None;
            for write in writes {
                let boot_id = write.await?;
                first.get_or_insert(boot_id);
            }
            Ok(first.unwrap_or_default())
        }
        .boxed_local()
    }

    /// Replaces bytes of a stripe by zeros, without sending them.
    fn write_zeros(&self, stripe: u64, offset: u32, length: u32) -> Answer<BootId>;

    /// Makes everything durable that was written to these stripes under these boot IDs before the
    /// call. A stripe that was written under several boot IDs is named with each.
    /// [`Error::LostWrites`] if one has changed: what was written under it and not synced must be
    /// written again.
    fn sync(&self, written: Vec<Unsynced>) -> Answer<()>;

    /// Discards bytes whose space was freed: they are not read again. What is dirty may be
    /// dropped without being written.
    fn forget(&self, stripe: u64, offset: u32, length: u32) -> Answer<()>;

    /// Reads root slot `slot` of a disk.
    fn read_slot(&self, disk: DiskName, slot: u32) -> Answer<Bytes>;

    /// Replaces a root slot; durable when answered.
    fn write_slot(&self, disk: DiskName, slot: u32, data: Bytes) -> Answer<()>;
}

/// The whole logical blocks of `unit` blocks that hold `extents`, which are in order, as ranges of
/// bytes that do not touch.
pub fn blocks_of(extents: &[Extent], unit: u32) -> Vec<Range<u32>> {
    let block = unit * BLOCK_SIZE as u32;
    let mut ranges: Vec<Range<u32>> = Vec::new();
    for extent in extents {
        let start = extent.offset / block * block;
        let end = (extent.offset + extent.length).next_multiple_of(block);
        match ranges.last_mut() {
            Some(last) if start <= last.end => last.end = last.end.max(end),
            _ => ranges.push(start..end),
        }
    }
    ranges
}
