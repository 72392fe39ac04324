//! Stores what clients of this process have left for writes to files of other processes.

use blockio::BootId;
use blockio::checksum::unit_bytes;
use bytes::Bytes;
use futures::future::join_all;
use runtime::delivery::{BlocksToStore, PlacedBytes, SEND_PARTS_MAX, StoreDeposit, TakeDeposit};
use runtime::protocol::Undelivered;
use runtime::{Epoch, NodeId, NodeKind};

use super::direct::BlockSender;
use crate::pieces::ByteRope;
use crate::protocol::Error;

impl BlockSender {
    /// Answers [`StoreDeposit`]. Nothing is stored before all of it is known to be here and to be
    /// what the map will say: a client cannot make a damaged file of another's blocks.
    ///
    /// It is done in the epoch of the asker or not at all: a later one may have given the blocks to
    /// others. [`Undelivered::Lost`] if something may still be written.
    pub(super) async fn store(
        &self,
        request: StoreDeposit,
        epoch: Epoch,
    ) -> Result<Vec<BootId>, Error> {
        let StoreDeposit { port, client, transfer, parts } = request;
        let port = NodeId(port);
        if parts.len() > SEND_PARTS_MAX || !matches!(port.kind(), NodeKind::Application(_)) {
            return Err(Error::Invalid {});
        }
        let left = self.0.context().spawn(port, TakeDeposit { client, transfer }).await?;
        let found = parts.iter().map(|part| find(&left, part)).collect::<Option<Vec<_>>>();
        let found = found.ok_or(Error::Invalid {})?;
        let writes = parts.iter().zip(found).map(|(part, bytes)| {
            let data = bytes.into_vec();
            self.0.stripes.write_once(part.stripe, part.offset, data, epoch)
        });
        // All of them are awaited: after a failure no write may still be on its way.
        let stored = join_all(writes).await;
        if stored.iter().any(|stored| stored.as_ref().is_err_and(may_still_be_done)) {
            return Err(Undelivered::Lost.into());
        }
        Ok(stored.into_iter().collect::<Result<_, _>>()?)
    }
}

/// Can a write that has failed so still be done?
fn may_still_be_done(error: &blockio::protocol::Error) -> bool {
    matches!(error, blockio::protocol::Error::Undelivered { why } if !why.not_applied())
}

/// The bytes of `part` among those that were `left`, if they are what the asker expects.
fn find(left: &[PlacedBytes], part: &BlocksToStore) -> Option<ByteRope> {
    let BlocksToStore { offset, ref expect, .. } = *part;
    let unit = unit_bytes(&(offset..offset.checked_add(part.length)?), expect.len())?;
    let length = part.length as usize;
    let end = part.at.checked_add(length as u64)?;
    let first = left.partition_point(|piece| piece.at + piece.data.len() as u64 <= part.at);
    let mut pieces: Vec<Bytes> = Vec::with_capacity(1);
    let mut at = part.at;
    for PlacedBytes { at: start, data } in &left[first..] {
        if at >= end || *start > at {
            break;
        }
        let piece_end = end.min(start + data.len() as u64);
        pieces.push(data.slice((at - start) as usize..(piece_end - start) as usize));
        at = piece_end;
    }
    let bytes = ByteRope::new(pieces);
    (bytes.length() == length && bytes.checksums(unit) == *expect).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use runtime::hash::crc32c;

    use super::*;

    const BLOCK: usize = blockio::BLOCK_SIZE;

    fn left(pieces: &[(u64, usize, u8)]) -> Vec<PlacedBytes> {
        let piece = |&(at, length, byte)| PlacedBytes { at, data: vec![byte; length].into() };
        pieces.iter().map(piece).collect()
    }

    fn part(at: u64, blocks: &[Vec<u8>]) -> BlocksToStore {
        let expect = blocks.iter().map(|block| crc32c(block)).collect();
        let length = (blocks.len() * BLOCK) as u32;
        BlocksToStore { stripe: 1, offset: 0, at, length, expect }
    }

    #[test]
    fn logical_blocks_are_compared_whole() {
        let left = left(&[(0, 3 * BLOCK, 1), (3 * BLOCK as u64, BLOCK, 2)]);
        let sum =
            |blocks: &[u8]| crc32c(&blocks.iter().flat_map(|&it| [it; BLOCK]).collect::<Vec<_>>());
        let part = |expect| BlocksToStore {
            stripe: 1,
            offset: 0,
            at: 0,
            length: 4 * BLOCK as u32,
            expect,
        };
        let found = |expect| find(&left, &part(expect)).map(|rope| rope.length());
        assert_eq!(found(vec![sum(&[1, 1]), sum(&[1, 2])]), Some(4 * BLOCK));
        assert_eq!(found(vec![sum(&[1, 1, 1, 2])]), Some(4 * BLOCK));
        assert_eq!(found(vec![sum(&[1, 1]), sum(&[1, 1])]), None, "other bytes");
        assert_eq!(found(vec![sum(&[1, 1, 1]), sum(&[2])]), None, "blocks of other lengths");
        assert_eq!(found(vec![0; 3]), None);
    }

    #[test]
    fn blocks_are_found_in_any_pieces_and_only_as_they_are_expected() {
        let left = left(&[(0, BLOCK, 1), (BLOCK as u64, 100, 2), (BLOCK as u64 + 100, 8092, 3)]);
        let mut second = vec![2; 100];
        second.resize(BLOCK, 3);
        let both = part(0, &[vec![1; BLOCK], second.clone()]);
        assert_eq!(find(&left, &both).map(|rope| rope.length()), Some(2 * BLOCK));
        let one = part(BLOCK as u64, std::slice::from_ref(&second));
        assert_eq!(find(&left, &one).map(|rope| rope.into_vec().concat()), Some(second));
        let other = part(0, &[vec![9; BLOCK]]);
        assert!(find(&left, &other).is_none(), "these are other bytes");
        let late = part(2 * BLOCK as u64, &[vec![3; BLOCK], vec![3; BLOCK]]);
        assert!(find(&left, &late).is_none(), "some are missing");
        assert!(find(&left, &part(u64::MAX, &[vec![3; BLOCK]])).is_none());
        assert!(find(&left, &part(0, &[])).is_none() && find(&[], &both).is_none());
    }

    #[test]
    fn a_gap_between_pieces_is_no_part_of_them() {
        let left = left(&[(0, 4000, 1), (4100, 4000, 1)]);
        assert!(find(&left, &part(0, &[vec![1; BLOCK]])).is_none());
    }
}
