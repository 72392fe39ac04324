//! Stores what clients of this process have left for writes to files of other processes.

use blockio::checksum::unit_bytes;
use bytes::Bytes;
use futures::future::{join, join_all};
use meta::erasure::ErasureCode;
use meta::protocol::StripeShard;
use runtime::delivery::{
    BlocksToStore, ParityToStore, PlacedBytes, SEND_PARTS_MAX, StoreDeposit, StoredDeposit,
    StoredParity, TakeDeposit,
};
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
    ) -> Result<StoredDeposit, Error> {
        let StoreDeposit { port, client, transfer, parts, parity } = request;
        let port = NodeId(port);
        if parts.len() > SEND_PARTS_MAX || !matches!(port.kind(), NodeKind::Application(_)) {
            return Err(Error::Invalid {});
        }
        let left = self.0.context().spawn(port, TakeDeposit { client, transfer }).await?;
        let found = parts.iter().map(|part| find(&left, part)).collect::<Option<Vec<_>>>();
        let found = found.ok_or(Error::Invalid {})?;
        let length = self.0.geometry.stripe_size as usize;
        let made = parity.iter().map(|order| parity_of(order, &found, length));
        let made = made.collect::<Option<Vec<_>>>().ok_or(Error::Invalid {})?;
        let made: Vec<_> = made.into_iter().flatten().collect();
        let writes = parts.iter().zip(found).map(|(part, bytes)| {
            let data = bytes.into_vec();
            self.0.stripes.write_once(part.stripe, part.offset, data, epoch)
        });
        let of_parity = made.iter().map(|(stripe, content, _)| {
            self.0.stripes.write_once(*stripe, 0, vec![content.clone()], epoch)
        });
        // All of them are awaited: after a failure no write may still be on its way.
        let (stored, of_parity) = join(join_all(writes), join_all(of_parity)).await;
        let mut outcomes = stored.iter().chain(&of_parity);
        if outcomes.any(|stored| stored.as_ref().is_err_and(may_still_be_done)) {
            return Err(Undelivered::Lost.into());
        }
        let boot_ids = stored.into_iter().collect::<Result<_, _>>()?;
        let parity = of_parity.into_iter().zip(made).map(|(boot_id, (_, _, checksums))| {
            Some(StoredParity { boot_id: boot_id.ok()?, checksums })
        });
        // Without all of it the commit makes it.
        let parity = parity.collect::<Option<_>>().unwrap_or_default();
        Ok(StoredDeposit { boot_ids, parity })
    }
}

/// The parity shards that are to be made of `parts`, whole stripes of `length` bytes: stripe,
/// content, checksums. None if that cannot be.
fn parity_of(
    order: &ParityToStore,
    parts: &[ByteRope],
    length: usize,
) -> Option<Vec<(u64, Bytes, Vec<u32>)>> {
    let &ParityToStore { first, data, unit, ref stripes } = order;
    let shards = parts.get(first as usize..first.checked_add(data)? as usize)?;
    let is_whole = shards.iter().all(|shard| shard.length() == length);
    let code = ErasureCode::new(shards.len(), stripes.len()).filter(|_| is_whole && unit > 0)?;
    let made = code.encode_pieces(length, shards.iter().map(ByteRope::pieces));
    let shard = |(stripe, content): (&u64, Bytes)| {
        let checksums = StripeShard::of_content(0, &content, unit).checksums;
        (*stripe, content, checksums)
    };
    Some(stripes.iter().zip(made).map(shard).collect())
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

    #[test]
    fn parity_is_made_of_the_parts_that_are_named_if_they_are_whole() {
        let part = |byte: u8, length| ByteRope::new(vec![Bytes::from(vec![byte; length])]);
        let parts = [part(9, BLOCK), part(1, 2 * BLOCK), part(2, 2 * BLOCK), part(4, 2 * BLOCK)];
        let order = |first, data, unit, stripes: &[u64]| {
            let stripes = stripes.to_vec();
            parity_of(&ParityToStore { first, data, unit, stripes }, &parts, 2 * BLOCK)
        };
        let [(stripe, content, checksums)] = &order(1, 3, 2, &[77]).expect("they are there")[..]
        else {
            panic!("one shard was asked for");
        };
        assert_eq!((*stripe, &content[..]), (77, &[7; 2 * BLOCK][..]));
        assert_eq!(*checksums, [crc32c(content)]);
        assert_eq!(order(2, 2, 1, &[5, 6]).map(|made| made.len()), Some(2));
        assert!(order(0, 2, 1, &[5]).is_none(), "the first is no whole stripe");
        assert!(order(2, 3, 1, &[5]).is_none(), "there is no such part");
        assert!(order(u32::MAX, 1, 1, &[5]).is_none() && order(1, u32::MAX, 1, &[5]).is_none());
        assert!(order(1, 2, 0, &[5]).is_none() && order(1, 0, 1, &[5]).is_none());
        assert!(order(1, 2, 1, &[]).is_none() && order(1, 2, 1, &[5; 300]).is_none());
    }

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
