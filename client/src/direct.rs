//! Large reads, of which several processes send what they have.

use std::sync::Arc;

use bytes::Bytes;
use fileio::protocol::{DirectData, Error, Handle, Read, ReadData, ReadDirect};
use runtime::delivery::{DeliveredRange, DirectTransfer};
use runtime::{Spawn, Undelivered};

use crate::unsynced::{UnsyncedWrites, Verified};

/// A read of fewer bytes is answered by one process.
pub const DIRECT_BYTES_MIN: u32 = 256 << 10;

impl Verified for DirectData {
    fn write_verifier(&self) -> u64 {
        self.read.write_verifier
    }
}

impl UnsyncedWrites {
    /// As [`read`](Self::read) of a [`Read`]: if it is large, each process sends what it has of the
    /// bytes.
    pub async fn read_large<S: Spawn>(
        self: &Arc<Self>,
        machine: &S,
        file: Handle,
        read: Read,
    ) -> Result<ReadData, Error> {
        let length = read.length;
        let transfers = machine.transfers().filter(|_| length >= DIRECT_BYTES_MIN);
        if let Some(transfer) = transfers.and_then(|it| it.begin(u64::from(length))) {
            let Read { who, file, offset, length } = read.clone();
            let deliver = transfer.target();
            let call = ReadDirect { who, file, offset, length, deliver };
            let answer = self.read(machine, file, call).await?;
            if let Some(whole) = join(&transfer, answer).await? {
                return Ok(whole);
            }
            // What was on its way is gone.
        }
        self.read(machine, file, read).await
    }
}

/// Puts what was delivered in its place; none if it will not come.
async fn join(transfer: &DirectTransfer, answer: DirectData) -> Result<Option<ReadData>, Error> {
    let DirectData { mut read, execution, delivered } = answer;
    if delivered.is_empty() {
        return Ok(Some(read));
    }
    let Some(parts) = transfer.take(execution, &delivered).await else { return Ok(None) };
    let rest = std::mem::take(&mut read.data);
    read.data = in_order(rest, &delivered, parts).ok_or(Undelivered::ProtocolMismatch)?;
    Ok(Some(read))
}

/// The bytes in order: those of `rest` are where no range is.
fn in_order(
    rest: Vec<Bytes>,
    ranges: &[DeliveredRange],
    parts: Vec<Vec<Bytes>>,
) -> Option<Vec<Bytes>> {
    let (mut rest, mut all, mut at) = (rest.into_iter(), Vec::new(), 0);
    for (range, parts) in ranges.iter().zip(parts) {
        while at < range.at {
            let piece = rest.next()?;
            at += piece.len() as u64;
            all.push(piece);
        }
        if at != range.at {
            return None;
        }
        at += range.length;
        all.extend(parts);
    }
    all.extend(rest);
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    #[test]
    fn what_came_by_other_ways_is_put_in_its_place() {
        let ranges = [(2, 3), (8, 2)].map(|(at, length)| DeliveredRange { at, length });
        let parts = || vec![vec![bytes("c"), bytes("de")], vec![bytes("ij")]];
        let joined = in_order(vec![bytes("ab"), bytes("f"), bytes("gh")], &ranges, parts());
        assert_eq!(joined.map(|all| all.concat()), Some(b"abcdefghij".to_vec()));
        assert_eq!(in_order(vec![bytes("abc")], &ranges, parts()), None, "it overlaps");
        assert_eq!(in_order(vec![bytes("ab")], &ranges, parts()), None, "something is missing");
    }
}
