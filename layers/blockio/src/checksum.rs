//! CRC-32C per logical block: what the parent of a block keeps to recognise its content.
//!
//! A logical block is one block or several, a power of two, and begins at a multiple of its size. A
//! list of checksums does not say how long they are: that follows from what it covers
//! ([`unit_bytes`]).

use std::ops::Range;

use runtime::hash::crc32c;

use crate::geometry::BLOCK_SIZE;

/// The checksum of each block of `data`, which starts at a block; the last one may be short.
pub fn of_blocks(data: &[u8]) -> Vec<u32> {
    data.chunks(BLOCK_SIZE).map(crc32c).collect()
}

/// Bytes of the logical blocks of `range` of a stripe, of which there are `count` checksums. `None`
/// if it cannot consist of that number of them.
pub fn unit_bytes(range: &Range<u32>, count: usize) -> Option<usize> {
    let unit = range.len().checked_div(count)?;
    let is_unit = unit >= BLOCK_SIZE && unit.is_power_of_two();
    let are_whole = is_unit && range.len() == unit * count;
    (are_whole && (range.start as usize).is_multiple_of(unit)).then_some(unit)
}

/// Where the first logical block of `data` begins whose checksum is not the one in `expect`, which
/// has one for each of them.
pub fn first_mismatch(data: &[u8], expect: &[u32]) -> Option<usize> {
    let unit = data.len().checked_div(expect.len()).filter(|unit| *unit > 0)?;
    let blocks = data.chunks(unit).zip(expect);
    let place = blocks.into_iter().position(|(block, &expected)| crc32c(block) != expected)?;
    Some(place * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_logical_blocks_follows_from_how_many_checksums_there_are() {
        const B: u32 = BLOCK_SIZE as u32;
        for (range, count, blocks) in [
            (0..4 * B, 4, Some(1)),
            (B..4 * B, 3, Some(1)),
            (0..4 * B, 2, Some(2)),
            (4 * B..8 * B, 1, Some(4)),
            (4 * B..8 * B, 0, None),
            (0..0, 1, None),
            // Not a multiple of its size; no whole blocks; no power of two; none as long.
            (B..3 * B, 1, None),
            (1..B + 1, 1, None),
            (0..B, 2, None),
            (0..3 * B, 1, None),
            (0..4 * B, 3, None),
        ] {
            let found = unit_bytes(&range, count);
            assert_eq!(found, blocks.map(|blocks| blocks * BLOCK_SIZE), "{range:?} {count}");
        }
    }

    #[test]
    fn the_first_damaged_logical_block_is_found() {
        let data: Vec<u8> = (0..8 * BLOCK_SIZE).map(|at| (at / 7) as u8).collect();
        for unit in [1, 2, 4, 8] {
            let sums: Vec<u32> = data.chunks(unit * BLOCK_SIZE).map(crc32c).collect();
            assert_eq!(first_mismatch(&data, &sums), None);
            for hurt in 0..8 {
                let mut damaged = data.clone();
                damaged[hurt * BLOCK_SIZE + 5] ^= 1;
                let found = first_mismatch(&damaged, &sums);
                assert_eq!(found, Some(hurt / unit * unit * BLOCK_SIZE), "{unit} {hurt}");
            }
        }
        assert_eq!(first_mismatch(&data, &[]), None);
    }
}
