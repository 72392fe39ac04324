//! Recently written partial blocks. A write that continues in the middle of a block needs the bytes
//! before it, and would read them from the stripe cache while other writes wait for the chunk.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;

use bytes::Bytes;
use meta::chunks::BlockSlot;
use meta::protocol::Chunk;

use crate::pieces::ByteRope;

const BLOCK: usize = blockio::BLOCK_SIZE;

/// Blocks that one node keeps, at most.
const PARTIAL_BLOCKS_MAX: usize = 32;

/// Bytes of these, at most; the last one stays, however long it is.
const PARTIAL_BYTES_MAX: usize = 1 << 20;

/// A logical block and its content, if the map still names them.
struct PartialBlock {
    /// File and chunk.
    chunk: (u64, u64),
    slot: BlockSlot,
    content: Bytes,
}

impl PartialBlock {
    /// Both are compared: the number may belong to a later block, the checksum to another one.
    fn is_of(&self, chunk: (u64, u64), slot: BlockSlot) -> bool {
        (self.chunk, self.slot.block, self.slot.checksum) == (chunk, slot.block, slot.checksum)
    }
}

/// Blocks in whose middle one of the last writes began or ended.
#[derive(Default)]
pub(super) struct PartialBlockCache {
    /// The oldest first.
    kept: RefCell<VecDeque<PartialBlock>>,
}

impl PartialBlockCache {
    /// Bytes `range` of the chunk `map`, which are within one logical block, if they are known.
    pub(super) fn find(
        &self,
        chunk: (u64, u64),
        map: &Chunk,
        range: &Range<usize>,
    ) -> Option<Bytes> {
        let (slot, blocks) = map.slot(range.start / BLOCK)?;
        let kept = self.kept.borrow();
        let edge = kept.iter().rev().find(|edge| edge.is_of(chunk, slot))?;
        let start = blocks.start * BLOCK;
        Some(edge.content.slice(range.start - start..range.end - start))
    }

    /// Keeps logical blocks of `written`, which are in the cache and which `map` names: those of
    /// bytes `from..to` that are only a part of their block. `written` begins with the block of
    /// `from`.
    pub(super) fn keep(
        &self,
        chunk: (u64, u64),
        map: &Chunk,
        (from, to): (usize, usize),
        written: &ByteRope,
    ) {
        let unit = map.unit_or(1) as usize;
        let block = unit * BLOCK;
        let (first, last) = (from / block, to / block);
        let head = (!from.is_multiple_of(block)).then_some(first);
        let tail = (!to.is_multiple_of(block) && head != Some(last)).then_some(last);
        for at in head.into_iter().chain(tail) {
            let Some((slot, _)) = map.slot(at * unit) else { continue };
            let content = written.slice((at - first) * block, (at - first + 1) * block).copied();
            let mut kept = self.kept.borrow_mut();
            kept.retain(|edge| (edge.chunk, edge.slot.block) != (chunk, slot.block));
            // All are as long, but for those of other files.
            while kept.len() >= PARTIAL_BLOCKS_MAX
                || kept.iter().map(|edge| edge.content.len()).sum::<usize>() + block
                    > PARTIAL_BYTES_MAX
                    && !kept.is_empty()
            {
                kept.pop_front();
            }
            kept.push_back(PartialBlock { chunk, slot, content });
        }
    }
}

#[cfg(test)]
mod tests {
    use meta::protocol::{BlockRun, Mirrors, RunForm};
    use runtime::hash::crc32c;

    use super::*;

    const FILE: u64 = 7;

    /// A chunk of one block.
    fn map(block: u64, content: &[u8]) -> Chunk {
        let form = RunForm::new((content.len() / BLOCK) as u32, false);
        Chunk {
            runs: vec![BlockRun {
                at: 0,
                start: block,
                checksums: vec![crc32c(content)],
                form,
                mirrors: Mirrors::default(),
            }],
        }
    }

    fn pieces(content: &[u8]) -> ByteRope {
        ByteRope::new(vec![Bytes::copy_from_slice(content)])
    }

    #[test]
    fn an_edge_is_found_while_the_map_names_it() {
        let (edges, old, new) = (PartialBlockCache::default(), [1; BLOCK], [2; BLOCK]);
        edges.keep((FILE, 0), &map(9, &old), (0, 100), &pieces(&old));
        assert_eq!(edges.find((FILE, 0), &map(9, &old), &(0..100)).unwrap(), old[..100]);
        for (chunk, now) in
            [((FILE, 0), map(9, &new)), ((FILE, 0), map(8, &old)), ((FILE, 1), map(9, &old))]
        {
            assert_eq!(edges.find(chunk, &now, &(0..100)), None);
        }
        edges.keep((FILE, 0), &map(9, &new), (100, 200), &pieces(&new));
        assert_eq!(edges.find((FILE, 0), &map(9, &new), &(200..BLOCK)).unwrap(), new[200..]);
        assert_eq!(edges.find((FILE, 0), &map(9, &old), &(0..100)), None);
    }

    #[test]
    fn an_edge_is_a_whole_logical_block_and_few_long_ones_are_kept() {
        let edges = PartialBlockCache::default();
        let content: Vec<u8> = (0..4 * BLOCK).map(|at| (at / BLOCK) as u8).collect();
        edges.keep((FILE, 0), &map(8, &content), (0, 2 * BLOCK), &pieces(&content));
        let found = edges.find((FILE, 0), &map(8, &content), &(3 * BLOCK - 1..3 * BLOCK + 1));
        assert_eq!(found.unwrap()[..], [2, 3]);
        let long = vec![5; 64 * BLOCK];
        for block in 1..=10 {
            edges.keep((FILE, 0), &map(64 * block, &long), (1, 64 * BLOCK), &pieces(&long));
        }
        assert_eq!(edges.kept.borrow().len(), PARTIAL_BYTES_MAX / long.len());
        let longest = vec![6; 256 * BLOCK];
        edges.keep((FILE, 0), &map(0, &longest), (1, BLOCK), &pieces(&longest));
        assert_eq!(edges.kept.borrow().len(), 1);
    }

    #[test]
    fn whole_blocks_are_not_kept_and_the_oldest_edge_goes() {
        let (edges, content) = (PartialBlockCache::default(), [3; BLOCK]);
        edges.keep((FILE, 0), &map(1, &content), (0, BLOCK), &pieces(&content));
        assert!(edges.kept.borrow().is_empty());
        for block in 0..=PARTIAL_BLOCKS_MAX as u64 {
            edges.keep((FILE, 0), &map(block, &content), (1, BLOCK), &pieces(&content));
        }
        assert_eq!(edges.kept.borrow().len(), PARTIAL_BLOCKS_MAX);
        assert_eq!(edges.find((FILE, 0), &map(0, &content), &(0..1)), None);
        assert!(edges.find((FILE, 0), &map(1, &content), &(0..1)).is_some());
    }
}
