//! Which process gets which parts of a large write.

use std::ops::Range;

use fileio::protocol::BLOCK_SIZE;
use runtime::delivery::DepositProcess;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// The process whose turn it is in a file, by its place among `processes`.
pub(super) fn at_turn(processes: &[DepositProcess], ino: u64, turn: u64) -> usize {
    (ino.wrapping_add(turn) % processes.len().max(1) as u64) as usize
}

/// Which parts of a write, by their places in it, each process gets: part after part of `length`
/// bytes of the file at its `turn`. The same part goes to the same process each time, as long as
/// that can be reached. Whole blocks; a chunk that the write begins or ends within a block of goes
/// with the request.
pub(super) fn shares(
    write: Range<u64>,
    (length, chunk): (u64, u64),
    (processes, ino): (&[DepositProcess], u64),
    turn: impl Fn(u64) -> u64,
) -> Vec<(DepositProcess, Vec<Range<u64>>)> {
    let mut shares: Vec<(DepositProcess, Vec<Range<u64>>)> =
        processes.iter().map(|process| (*process, Vec::new())).collect();
    for number in write.start / length..write.end.div_ceil(length) {
        let part = write.start.max(number * length)..write.end.min((number + 1) * length);
        let part = whole_blocks(part, chunk);
        let (_, ranges) = &mut shares[at_turn(processes, ino, turn(number))];
        if !part.is_empty() {
            ranges.push(part.start - write.start..part.end - write.start);
        }
    }
    shares
}

/// The part of these bytes without chunks of which they have a part of a block.
fn whole_blocks(bytes: Range<u64>, chunk: u64) -> Range<u64> {
    let Range { mut start, mut end } = bytes;
    if !start.is_multiple_of(BLOCK) {
        start = start.next_multiple_of(chunk);
    }
    if !end.is_multiple_of(BLOCK) {
        end = end / chunk * chunk;
    }
    start..end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_chunks_with_a_part_of_a_block_are_not_left() {
        let chunk = 16 * BLOCK;
        assert_eq!(whole_blocks(BLOCK..5 * chunk + BLOCK, chunk), BLOCK..5 * chunk + BLOCK);
        assert_eq!(whole_blocks(1..5 * chunk + 1, chunk), chunk..5 * chunk);
        assert!(whole_blocks(1..chunk + 1, chunk).is_empty());
        assert!(whole_blocks(1..chunk - 1, chunk).is_empty());
    }
}
