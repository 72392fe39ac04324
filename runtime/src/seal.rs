//! Handles that can be used only by who was given them (ADR 88).

use std::fmt;

/// Bytes of the secret of a volume.
pub const SECRET_BYTES: usize = 32;
/// Rounds of the network. Four make a permutation that cannot be told from a random one by few
/// questions (Luby and Rackoff); with more the bound comes near to 2^32 questions for each tweak.
const ROUNDS: u8 = 10;

/// Enciphers the generations of handles for the clients of one subtree.
///
/// For each inode number another permutation of all generations: who knows sealed generations of
/// some inodes, or earlier ones of the same inode, knows nothing about others.
#[derive(Clone)]
pub struct HandleSeal {
    key: [u8; 32],
}

impl fmt::Debug for HandleSeal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key is secret.
        f.debug_struct("HandleSeal").finish_non_exhaustive()
    }
}

impl HandleSeal {
    /// For the subtree below the directory with this handle, by the secret of the volume.
    pub fn new(secret: &[u8; SECRET_BYTES], (ino, generation): (u64, u64)) -> Self {
        let mut hash = blake3::Hasher::new_derive_key("mdfs handle seal of a subtree");
        hash.update(secret).update(&ino.to_le_bytes()).update(&generation.to_le_bytes());
        Self { key: hash.finalize().into() }
    }

    /// What the client gets as the generation of a handle.
    pub fn seal(&self, ino: u64, generation: u64) -> u64 {
        let (mut left, mut right) = halves(generation);
        for round in 0..ROUNDS {
            (left, right) = (right, left ^ self.round(round, ino, right));
        }
        joined(left, right)
    }

    /// The generation of a handle that a client names; any number if it was never given this one.
    pub fn open(&self, ino: u64, sealed: u64) -> u64 {
        let (mut left, mut right) = halves(sealed);
        for round in (0..ROUNDS).rev() {
            (left, right) = (right ^ self.round(round, ino, left), left);
        }
        joined(left, right)
    }

    fn round(&self, round: u8, ino: u64, half: u32) -> u32 {
        let mut input = [0; 13];
        input[0] = round;
        input[1..9].copy_from_slice(&ino.to_le_bytes());
        input[9..].copy_from_slice(&half.to_le_bytes());
        let digest: [u8; 32] = blake3::keyed_hash(&self.key, &input).into();
        u32::from_le_bytes(*digest.first_chunk().expect("a digest is longer"))
    }
}

fn halves(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

fn joined(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

#[cfg(test)]
mod tests {
    use crate::seed::with_seed;

    use super::*;

    const SECRET: [u8; 32] = [7; 32];

    #[test]
    fn what_was_sealed_is_opened_and_nothing_else_is_the_same() {
        with_seed(|rng| {
            let seal = HandleSeal::new(&SECRET, (9, 1));
            for _ in 0..500 {
                let (ino, generation) = (rng.bits(), rng.below(1000));
                let sealed = seal.seal(ino, generation);
                assert_eq!(seal.open(ino, sealed), generation);
                // An unsealed handle, one of another inode, root or volume, the next generation.
                assert_ne!(seal.open(ino, generation), generation);
                assert_ne!(seal.open(ino + 1, sealed), generation);
                let others = [(SECRET, (9, 2)), (SECRET, (8, 1)), ([8; 32], (9, 1))];
                for (secret, root) in others {
                    assert_ne!(HandleSeal::new(&secret, root).open(ino, sealed), generation);
                }
                let next = seal.seal(ino, generation + 1);
                assert_ne!(next ^ sealed, (generation + 1) ^ generation, "it can be shifted");
            }
        });
    }

    #[test]
    fn a_seal_is_the_same_in_each_version() {
        let seal = HandleSeal::new(&SECRET, (9, 1));
        let frozen = [(1, 1), (2, 1), (u64::MAX, 0)].map(|(ino, it)| seal.seal(ino, it));
        assert_eq!(frozen, FROZEN, "handles that mounts keep would be lost");
    }

    const FROZEN: [u64; 3] =
        [16_363_998_463_499_501_273, 12_926_547_267_596_686_328, 15_405_759_533_763_129_713];
}
