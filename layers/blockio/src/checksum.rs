//! CRC-32C per block: what the parent of a block keeps to recognise its content.

use runtime::hash::crc32c;

use crate::geometry::BLOCK_SIZE;

/// The checksum of each block of `data`, which starts at a block; the last one may be short.
pub fn of_blocks(data: &[u8]) -> Vec<u32> {
    data.chunks(BLOCK_SIZE).map(crc32c).collect()
}

/// The index of the first block of `data` whose checksum is not the one in `expect`.
pub fn first_mismatch(data: &[u8], expect: &[u32]) -> Option<usize> {
    data.chunks(BLOCK_SIZE).zip(expect).position(|(block, &expected)| crc32c(block) != expected)
}
