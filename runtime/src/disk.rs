//! A disk, real or emulated.

use std::io;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;

/// The kind of the error of what a machine has not done when it goes down.
pub const GOING_DOWN: io::ErrorKind = io::ErrorKind::ConnectionAborted;

/// A disk with a volatile cache in front of it. Several calls may be in flight at once; calls that
/// overlap in place and time have no order.
pub trait Disk {
    /// Bytes of the disk.
    fn length(&self) -> u64;
    /// Reads `length` bytes at `offset`.
    fn read(&self, offset: u64, length: usize) -> LocalBoxFuture<'static, io::Result<Bytes>>;
    /// Reads pieces of these `lengths`, the first at `offset` and each of the others behind the one
    /// before, as one transfer; where the disk can, each comes in a buffer of its own, which may be
    /// [adopted](crate::buffer::SharedBuffer::adopt).
    fn read_pieces(
        &self,
        offset: u64,
        lengths: Vec<usize>,
    ) -> LocalBoxFuture<'static, io::Result<Vec<Bytes>>> {
        let all = self.read(offset, lengths.iter().sum());
        all.map(|all| Ok(cut(all?, lengths))).boxed_local()
    }
    /// Replaces bytes at `offset`, perhaps only in the volatile cache.
    fn write(&self, offset: u64, data: Vec<Bytes>) -> LocalBoxFuture<'static, io::Result<()>>;
    /// Makes every write that was answered before this call durable. After an error what was
    /// written since the last good sync may be lost, and asking again proves nothing.
    fn sync(&self) -> LocalBoxFuture<'static, io::Result<()>>;
    /// What people call it: its path.
    fn name(&self) -> String {
        String::new()
    }
    /// Transfers go between our buffers and the disk, not through a page cache of the host.
    fn is_direct(&self) -> bool {
        true
    }
}

/// `all` in pieces of these `lengths`.
pub(crate) fn cut(mut all: Bytes, lengths: Vec<usize>) -> Vec<Bytes> {
    lengths.into_iter().map(|length| all.split_to(length.min(all.len()))).collect()
}
