//! Blocks of real bytes, as words, and their parity.

use std::rc::Rc;

use runtime::seed::Rng;

/// Bytes of a word.
const WORD: usize = 8;

/// Which block: of which writer, in which stripe, at which place. The place after the data is that
/// of the parity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ShardKey {
    pub(super) writer: usize,
    pub(super) stripe: u64,
    pub(super) index: usize,
}

/// The content of a block of data: another one for each seed, block and version.
pub(super) fn content(seed: u64, key: ShardKey, version: u64, bytes: usize) -> Rc<[u64]> {
    let mut mix = Rng::new(seed ^ (version << 48));
    for part in [key.writer as u64, key.stripe, key.index as u64] {
        mix = Rng::new(mix.bits() ^ part);
    }
    // Words in arithmetic progression: quick to make, and blocks differ in nearly every word.
    let (start, step) = (mix.bits(), mix.bits() | 1);
    (0..(bytes / WORD) as u64).map(|at| start.wrapping_add(at.wrapping_mul(step))).collect()
}

/// `target ^= other`.
pub(super) fn xor_into(target: &mut [u64], other: &[u64]) {
    assert_eq!(target.len(), other.len(), "blocks of one stripe are of one size");
    for (target, other) in target.iter_mut().zip(other) {
        *target ^= other;
    }
}

/// The parity of blocks, computed without any network: the reference.
pub(super) fn parity_of<'a>(blocks: impl IntoIterator<Item = &'a [u64]>) -> Vec<u64> {
    let mut blocks = blocks.into_iter();
    let mut parity = blocks.next().map(<[u64]>::to_vec).unwrap_or_default();
    for block in blocks {
        xor_into(&mut parity, block);
    }
    parity
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_differ_and_parity_restores_each() {
        let key = |index| ShardKey { writer: 0, stripe: 7, index };
        let blocks: Vec<_> = (0..4).map(|index| content(1, key(index), 0, 64)).collect();
        assert_ne!(blocks[0], blocks[1]);
        assert_ne!(blocks[0], content(1, key(0), 1, 64));
        let parity = parity_of(blocks.iter().map(AsRef::as_ref));
        let rest = blocks[1..].iter().map(AsRef::as_ref).chain([parity.as_slice()]);
        assert_eq!(parity_of(rest), &*blocks[0]);
    }
}
