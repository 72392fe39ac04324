//! Large writes, of which parts are left at the processes that store them before the node of the
//! file is asked (ADR 87).

use std::ops::Range;
use std::pin::pin;

use bytes::Bytes;
use fileio::client::send_with_retries;
use fileio::hash;
use fileio::pieces::ByteRope;
use fileio::protocol::{BLOCK_SIZE, Error, Write, WriteDirect, WriteResult};
use futures::future::{Either, join_all, select};
use runtime::delivery::{
    DEPOSIT_PARTS_MAX, Deposit, DepositProcess, DepositTransfer, DepositUnit, DepositedRange,
    PlacedBytes,
};
use runtime::{Call as _, Spawn};

use crate::direct::DIRECT_BYTES_MIN;

mod parity;
mod shares;

use parity::{MadeParity, make_parity, shares_by_chunk};
use shares::shares;

/// As [`send_with_retries`]: if the write is large, each process gets what it will store.
pub(crate) async fn send_write<S: Spawn>(machine: &S, write: Write) -> Result<WriteResult, Error> {
    // Boxed, to keep the future of the usual case small.
    if let Some(transfer) = begin(machine, &write)
        && let Some(written) = Box::pin(send_direct(machine, &transfer, &write)).await?
    {
        return Ok(written);
    }
    send_with_retries(machine, write).await
}

/// None if other processes have taken nothing, or have lost it: then nothing was written.
async fn send_direct<S: Spawn>(
    machine: &S,
    transfer: &DepositTransfer,
    write: &Write,
) -> Result<Option<WriteResult>, Error> {
    let Some(direct) = leave_parts(machine, transfer, write).await else { return Ok(None) };
    let written = send_with_retries(machine, direct).await?;
    if written.is_none() {
        tracing::debug!("what was left of a write is gone: all of it is sent");
    }
    Ok(written)
}

/// Begins the transfer of a large write, if other processes can take parts of it.
fn begin<S: Spawn>(machine: &S, write: &Write) -> Option<DepositTransfer> {
    let length: usize = write.data.iter().map(Bytes::len).sum();
    let transfers = machine.transfers().filter(|_| length >= DIRECT_BYTES_MIN as usize)?;
    transfers.begin_deposits(hash::owner(write.route(), machine.fs_nodes()))
}

/// Leaves parts of a write at other processes. Returns the request for the rest; none if they have
/// taken nothing.
async fn leave_parts<S: Spawn>(
    machine: &S,
    transfer: &DepositTransfer,
    write: &Write,
) -> Option<WriteDirect> {
    let Write { who, file, offset, data, durable: _ } = write;
    let data = ByteRope::new(data.clone());
    let processes = transfer.processes();
    let (range, unit) = (*offset..offset + data.length() as u64, transfer.unit());
    let (shares, made) = if transfer.makes_parity() {
        let made = make_parity(unit, range.clone(), &data);
        (shares_by_chunk(range, (file.ino, unit), processes), made)
    } else {
        (shares_by_unit(range, (file.ino, unit), processes), MadeParity::default())
    };
    let mut of_parity = made.by_process(file.ino, processes);
    let leaving = shares.into_iter().map(|(process, ranges)| {
        let of_parity = of_parity.remove(&process.process).unwrap_or_default();
        let data = &data;
        async move {
            let mut parts = parts_of(data, &ranges)?;
            parts.extend(of_parity);
            if parts.is_empty() {
                return None;
            }
            let is_left = leave(machine, transfer, process, parts).await;
            is_left.then_some((process, ranges))
        }
    });
    let left: Vec<_> = join_all(leaving).await.into_iter().flatten().collect();
    if left.is_empty() {
        return None;
    }
    let used: Vec<DepositProcess> = left.iter().map(|(process, _)| *process).collect();
    let parity = made.where_left(file.ino, processes, &used);
    let mut deposited: Vec<DepositedRange> = left
        .into_iter()
        .flat_map(|(process, ranges)| ranges.into_iter().map(move |range| (process.process, range)))
        .map(|(process, range)| DepositedRange {
            process,
            at: range.start,
            checksums: data.slice(range.start as usize, range.end as usize).block_checksums(),
        })
        .collect();
    deposited.sort_unstable_by_key(|range| range.at);
    let rest = rest_of(&data, &deposited);
    let (who, source) = (who.clone(), transfer.source(&used));
    Some(WriteDirect { who, file: *file, offset: *offset, data: rest, source, deposited, parity })
}

/// The parts of each process but the answering one: unit after unit by turns.
fn shares_by_unit(
    write: Range<u64>,
    (ino, unit): (u64, DepositUnit),
    processes: &[DepositProcess],
) -> Vec<(DepositProcess, Vec<Range<u64>>)> {
    let lengths = (unit.bytes(), unit.chunk.into());
    let mut shares = shares(write, lengths, (processes, ino), |number| number);
    shares.retain(|(process, _)| !process.is_answering);
    shares
}

/// The bytes of `ranges`; none if they are in too many pieces.
fn parts_of(data: &ByteRope, ranges: &[Range<u64>]) -> Option<Vec<PlacedBytes>> {
    let mut parts = Vec::with_capacity(ranges.len());
    for range in ranges {
        let mut at = range.start;
        for data in data.slice(range.start as usize, range.end as usize).into_vec() {
            let length = data.len() as u64;
            parts.push(PlacedBytes { at, data });
            at += length;
        }
    }
    (parts.len() <= DEPOSIT_PARTS_MAX).then_some(parts)
}

/// Has a process keep parts of the write. False if it does not, or is out of reach: then they go
/// with the request.
async fn leave<S: Spawn>(
    machine: &S,
    transfer: &DepositTransfer,
    process: DepositProcess,
    parts: Vec<PlacedBytes>,
) -> bool {
    let (client, first) = (transfer.client(), transfer.first());
    let deposit = Deposit { client, transfer: transfer.number(), first, parts };
    let sent = pin!(machine.spawn(process.node, deposit));
    let cut = pin!(transfer.link_ended(process));
    match select(sent, cut).await {
        Either::Left((answer, _)) => answer.unwrap_or(false),
        Either::Right(((), _)) => false,
    }
}

/// What was left nowhere.
fn rest_of(data: &ByteRope, deposited: &[DepositedRange]) -> Vec<Bytes> {
    let (mut rest, mut at) = (Vec::new(), 0);
    for range in deposited {
        rest.extend(data.slice(at, range.at as usize).into_vec());
        at = range.at as usize + range.checksums.len() * BLOCK_SIZE;
    }
    rest.extend(data.slice(at, data.length()).into_vec());
    rest
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::sync::Arc;

    use runtime::NodeId;
    use runtime::delivery::Transfers;
    use runtime::hash::crc32c;

    use super::*;

    const UNIT: u64 = 128 << 10;
    const BLOCK: u64 = BLOCK_SIZE as u64;

    fn transfer() -> DepositTransfer {
        let transfers = Arc::new(Transfers::default());
        transfers.set_map(3, &[1, 2, 3], DepositUnit::default());
        for process in 1..=3 {
            transfers.link_up(process, NodeId::application(9));
        }
        transfers.begin_deposits(NodeId::fs(0)).unwrap()
    }

    #[test]
    fn each_unit_has_its_process_wherever_the_write_begins() {
        let transfer = transfer();
        let of = |write: Range<u64>| {
            let mut places = Vec::new();
            for (process, ranges) in
                shares_by_unit(write.clone(), (5, transfer.unit()), transfer.processes())
            {
                for range in ranges {
                    places.push((
                        range.start + write.start,
                        range.end + write.start,
                        process.process,
                    ));
                }
            }
            places.sort_unstable();
            places
        };
        // (5 + unit) mod 3: unit 0 is of process 3, unit 1 of process 1, which answers.
        assert_eq!(of(0..3 * UNIT), [(0, UNIT, 3), (2 * UNIT, 3 * UNIT, 2)]);
        assert_eq!(of(BLOCK..UNIT), [(BLOCK, UNIT, 3)], "a part of a unit");
        assert_eq!(of(1..3 * UNIT), [(2 * UNIT, 3 * UNIT, 2)], "it begins within a block");
        assert_eq!(of(0..3 * UNIT - 1), [(0, UNIT, 3)], "it ends within a block");
    }

    #[test]
    fn the_parts_and_the_rest_are_the_whole() {
        let bytes: Vec<u8> = (0..5 * BLOCK_SIZE).map(|i| (i / 7) as u8).collect();
        let data = Bytes::from(bytes.clone());
        let rope = ByteRope::new(vec![data.slice(..5000), data.slice(5000..)]);
        let range = BLOCK..3 * BLOCK;
        let parts = parts_of(&rope, std::slice::from_ref(&range)).unwrap();
        assert_eq!(parts.iter().map(|part| part.at).collect::<Vec<_>>(), [BLOCK, 5000]);
        let left: Vec<u8> = parts.iter().flat_map(|part| part.data.to_vec()).collect();
        assert_eq!(left, bytes[BLOCK_SIZE..3 * BLOCK_SIZE]);
        let checksums = rope.slice(BLOCK_SIZE, 3 * BLOCK_SIZE).block_checksums();
        assert_eq!(checksums, left.chunks(BLOCK_SIZE).map(crc32c).collect::<Vec<_>>());
        let deposited = [DepositedRange { process: 1, at: BLOCK, checksums }];
        let rest = [&bytes[..BLOCK_SIZE], &bytes[3 * BLOCK_SIZE..]].concat();
        assert_eq!(rest_of(&rope, &deposited).concat(), rest);
    }
}
