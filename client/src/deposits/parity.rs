//! Parity that a client makes of its large writes, where it is told to
//! ([`ParityMaker`](crate::volume::ParityMaker)): as a parallel file system without help of its
//! servers does it. Each chunk and each parity shard is left at a process of its own, if there are
//! enough.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use fileio::erasure::ErasureCode;
use fileio::pieces::ByteRope;
use fileio::protocol::BLOCK_SIZE;
use runtime::delivery::{DepositProcess, DepositUnit, DepositedRange, PlacedBytes};

use super::shares::{at_turn, shares};

const BLOCK: u64 = BLOCK_SIZE as u64;

/// The parity of all wide stripes that a write has whole.
#[derive(Debug, Default)]
pub(super) struct MadeParity {
    unit: DepositUnit,
    /// The number of the first wide stripe in its file.
    first: u64,
    /// Where the first shard is in the transfer: behind the bytes of the write.
    at: u64,
    /// The shards of one wide stripe after those of the other.
    shards: Vec<Bytes>,
}

/// The parity of those wide stripes of a file of which the bytes `write`, `data`, have all.
pub(super) fn make_parity(unit: DepositUnit, write: Range<u64>, data: &ByteRope) -> MadeParity {
    let (first, length) = (write.start.div_ceil(unit.bytes()), unit.bytes());
    let at = (data.length() as u64).next_multiple_of(BLOCK);
    let mut made = MadeParity { unit, first, at, shards: Vec::new() };
    let Some(code) = ErasureCode::new(unit.chunks as usize, unit.parity as usize) else {
        return made;
    };
    let chunk = unit.chunk as usize;
    for number in first..write.end / length {
        let from = (number * length - write.start) as usize;
        let chunks = (0..unit.chunks as usize).map(|at| from + at * chunk);
        let chunks: Vec<ByteRope> = chunks.map(|from| data.slice(from, from + chunk)).collect();
        made.shards.extend(code.encode_pieces(chunk, chunks.iter().map(ByteRope::pieces)));
    }
    made
}

impl MadeParity {
    /// Where each shard goes, and its place in the transfer.
    fn places<'a>(
        &self,
        ino: u64,
        processes: &'a [DepositProcess],
    ) -> impl Iterator<Item = (&'a DepositProcess, u64, &Bytes)> {
        let DepositUnit { chunk, chunks, parity } = self.unit;
        let (first, start) = (self.first, self.at);
        self.shards.iter().enumerate().map(move |(number, shard)| {
            let number = number as u64;
            let stripe = first + number / u64::from(parity);
            // Behind the chunks of the wide stripe.
            let turn = stripe + u64::from(chunks) + number % u64::from(parity);
            let at = start + number * u64::from(chunk);
            (&processes[at_turn(processes, ino, turn)], at, shard)
        })
    }

    /// What each process is left, by its number.
    pub(super) fn by_process(
        &self,
        ino: u64,
        processes: &[DepositProcess],
    ) -> BTreeMap<u32, Vec<PlacedBytes>> {
        let mut parts: BTreeMap<u32, Vec<PlacedBytes>> = BTreeMap::new();
        for (process, at, shard) in self.places(ino, processes) {
            let part = PlacedBytes { at, data: shard.clone() };
            parts.entry(process.process).or_default().push(part);
        }
        parts
    }

    /// What the request says of it; nothing if one of the processes is not among those that `took`
    /// something.
    pub(super) fn where_left(
        &self,
        ino: u64,
        processes: &[DepositProcess],
        took: &[DepositProcess],
    ) -> Vec<DepositedRange> {
        let left = self.places(ino, processes).map(|(process, at, shard)| {
            let checksums = ByteRope::new(vec![shard.clone()]).block_checksums();
            let is_left = took.contains(process);
            is_left.then_some(DepositedRange { process: process.process, at, checksums })
        });
        left.collect::<Option<Vec<_>>>().unwrap_or_default()
    }
}

/// The parts of each process: the chunks of a wide stripe by turns, and each wide stripe begins one
/// process further, so that all have their share of parity. Some may get parity only.
pub(super) fn shares_by_chunk(
    write: Range<u64>,
    (ino, unit): (u64, DepositUnit),
    processes: &[DepositProcess],
) -> Vec<(DepositProcess, Vec<Range<u64>>)> {
    let (chunk, chunks) = (u64::from(unit.chunk), u64::from(unit.chunks));
    let turn = |index| index / chunks + index % chunks;
    shares(write, (chunk, chunk), (processes, ino), turn)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::sync::Arc;

    use runtime::NodeId;
    use runtime::delivery::{DepositTransfer, Transfers};

    use super::*;

    const CHUNK: u64 = 16 << 10;

    fn transfer() -> DepositTransfer {
        let transfers = Arc::new(Transfers::default());
        let unit = DepositUnit { chunk: CHUNK as u32, chunks: 2, parity: 1 };
        transfers.set_map(3, &[1, 2, 3], unit);
        transfers.set_makes_parity(true);
        for process in 1..=3 {
            transfers.link_up(process, NodeId::application(9));
        }
        transfers.begin_deposits(NodeId::fs(0)).unwrap()
    }

    #[test]
    fn chunks_and_parity_of_a_wide_stripe_are_at_three_processes() {
        let transfer = transfer();
        assert!(transfer.makes_parity());
        let (unit, processes) = (transfer.unit(), transfer.processes());
        // From the second half of wide stripe 0 into wide stripe 3.
        let write = CHUNK..6 * CHUNK + BLOCK;
        let bytes: Vec<u8> = (CHUNK..6 * CHUNK + BLOCK).map(|at| (at / 911) as u8).collect();
        let data = ByteRope::new(vec![bytes.clone().into()]);
        let made = make_parity(unit, write.clone(), &data);
        let taken = |chunk: u64| &bytes[(chunk * CHUNK) as usize..][..CHUNK as usize];
        let expected = |first| -> Vec<u8> {
            taken(first).iter().zip(taken(first + 1)).map(|(one, other)| one ^ other).collect()
        };
        assert_eq!(made.shards, [expected(1), expected(3)]);
        let mut places: Vec<(u64, u32)> = Vec::new();
        for (process, ranges) in shares_by_chunk(write, (0, unit), processes) {
            places.extend(ranges.iter().map(|range| (range.start / CHUNK, process.process)));
        }
        places.sort_unstable();
        assert_eq!(places, [(0, 2), (1, 2), (2, 3), (3, 3), (4, 1), (5, 1)]);
        let at = data.length() as u64;
        let of_parity = made.by_process(0, processes);
        let found: Vec<(u32, u64)> =
            of_parity.iter().map(|(process, parts)| (*process, parts[0].at)).collect();
        assert_eq!(found, [(1, at), (2, at + CHUNK)]);
        assert_eq!(made.where_left(0, processes, processes).len(), 2);
        assert!(made.where_left(0, processes, &processes[1..]).is_empty(), "one was not taken");
        // One wide stripe: a process has its parity and nothing else.
        let shares = shares_by_chunk(0..2 * CHUNK, (0, unit), processes);
        assert_eq!(shares.iter().map(|(_, ranges)| ranges.len()).collect::<Vec<_>>(), [1, 1, 0]);
    }
}
