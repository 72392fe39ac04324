//! Bytes in several pieces that are cut and joined without a copy.

use bytes::Bytes;
use runtime::hash::{Crc32c, crc32c};

use crate::protocol::BLOCK_SIZE;

/// Bytes in several pieces.
#[derive(Clone, Debug, Default)]
pub struct ByteRope {
    parts: Vec<Bytes>,
    length: usize,
}

impl ByteRope {
    /// The pieces of `parts`, in order.
    pub fn new(parts: Vec<Bytes>) -> Self {
        let length = parts.iter().map(Bytes::len).sum();
        Self { parts, length }
    }

    /// One after the other.
    pub fn join(parts: impl IntoIterator<Item = Self>) -> Self {
        Self::new(parts.into_iter().flat_map(|pieces| pieces.parts).collect())
    }

    /// How many bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Bytes `from..to`.
    #[must_use]
    pub fn slice(&self, from: usize, to: usize) -> Self {
        let mut parts = Vec::new();
        let mut start = 0;
        for part in &self.parts {
            let end = start + part.len();
            let (lo, hi) = (from.max(start), to.min(end));
            if lo < hi {
                parts.push(part.slice(lo - start..hi - start));
            }
            start = end;
        }
        Self::new(parts)
    }

    /// The CRC-32C of bytes `from..to`.
    pub fn checksum(&self, from: usize, to: usize) -> u32 {
        let mut start = 0;
        let mut touched = self.parts.iter().filter_map(|part| {
            let bytes = from.max(start)..to.min(start + part.len());
            let before = start;
            start += part.len();
            (!bytes.is_empty()).then(|| &part[bytes.start - before..bytes.end - before])
        });
        let first = touched.next().unwrap_or_default();
        if first.len() == to - from {
            return crc32c(first);
        }
        let mut checksum = Crc32c::new();
        checksum.update(first);
        touched.for_each(|part| checksum.update(part));
        checksum.finish()
    }

    /// The CRC-32C of each whole block of it.
    pub fn block_checksums(&self) -> Vec<u32> {
        self.checksums(BLOCK_SIZE)
    }

    /// The CRC-32C of each whole logical block of it, of `block` bytes.
    pub fn checksums(&self, block: usize) -> Vec<u32> {
        let blocks = 0..self.length / block;
        blocks.map(|number| self.checksum(number * block, (number + 1) * block)).collect()
    }

    /// The pieces, in order.
    pub fn pieces(&self) -> &[Bytes] {
        &self.parts
    }

    /// All of it in one piece of its own.
    pub fn copied(&self) -> Bytes {
        self.parts.concat().into()
    }

    /// The pieces.
    pub fn into_vec(self) -> Vec<Bytes> {
        self.parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_spans_pieces_and_keeps_the_order() {
        let pieces = ByteRope::new([&b"check"[..], b"", b"point"].map(Bytes::from_static).to_vec());
        for from in 0..=10 {
            for to in from..=10 {
                let slice = pieces.slice(from, to);
                assert_eq!(slice.length(), to - from);
                assert_eq!(pieces.checksum(from, to), crc32c(&b"checkpoint"[from..to]));
                assert_eq!(slice.pieces().concat(), b"checkpoint"[from..to]);
                assert_eq!(slice.into_vec().concat(), b"checkpoint"[from..to]);
            }
        }
    }
}
