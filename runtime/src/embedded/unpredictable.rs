//! Random numbers that cannot be predicted from earlier ones. Generations of files are such
//! numbers: a client that knows the generation of a file can name it, wherever it is.

use crate::seed::fresh_bytes;

const KEY_BYTES: usize = 32;
/// Numbers that are made at a time.
const NUMBERS: usize = 64;

/// Makes numbers by keyed BLAKE3, and replaces its key each time, so that what it has made cannot
/// be found from what it has in memory.
pub(super) struct UnpredictableNumbers {
    key: [u8; KEY_BYTES],
    made: [u64; NUMBERS],
    left: usize,
}

impl UnpredictableNumbers {
    pub(super) fn new() -> Self {
        Self { key: fresh_bytes(), made: [0; NUMBERS], left: 0 }
    }

    pub(super) fn next(&mut self) -> u64 {
        if self.left == 0 {
            self.refill();
        }
        self.left -= 1;
        self.made[self.left]
    }

    fn refill(&mut self) {
        let mut bytes = [0; KEY_BYTES + 8 * NUMBERS];
        blake3::Hasher::new_keyed(&self.key).finalize_xof().fill(&mut bytes);
        let (key, made) = bytes.split_at(KEY_BYTES);
        self.key.copy_from_slice(key);
        for (number, made) in self.made.iter_mut().zip(made.as_chunks().0) {
            *number = u64::from_le_bytes(*made);
        }
        self.left = NUMBERS;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn numbers_differ_and_what_is_in_memory_does_not_tell_earlier_ones() {
        let (mut one, mut other) = (UnpredictableNumbers::new(), UnpredictableNumbers::new());
        let mut seen = BTreeSet::new();
        for _ in 0..10 * NUMBERS {
            assert!(seen.insert(one.next()) && seen.insert(other.next()));
            let key: BTreeSet<u64> =
                one.key.as_chunks().0.iter().map(|part| u64::from_le_bytes(*part)).collect();
            assert!(key.is_disjoint(&seen), "the key is not given out");
        }
        let before = one.key;
        let later: Vec<u64> = (0..=NUMBERS).map(|_| one.next()).collect();
        assert_ne!(one.key, before, "the key is used once: {later:?}");
    }
}
