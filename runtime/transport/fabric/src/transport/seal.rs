//! Sealed connections: AES-128-GCM (NIST SP 800-38D) over every frame and every bulk, also over
//! what is moved by one-sided operations. No third party can read, change, repeat or mix anything.
//!
//! The key belongs to one connection and comes over the control connection, as the ticket does. A
//! nonce names the direction, the use and a number that is never used twice under one key.

use ring::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

/// Bytes of the key of a connection.
pub const KEY_SIZE: usize = 16;
/// Bytes that sealing adds.
pub(super) const TAG_SIZE: usize = 16;
/// Bytes sealed under one key in one direction, at most: 2^40 blocks, so that the odds to
/// distinguish the cipher from noise stay below 2^-48. The connection is over then, and its
/// successor has a new key.
const SEALED_MAX: u64 = 1 << 44;

/// What is sealed: numbers of different uses never meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum SealUse {
    /// The greeting of who begins the connection.
    Hello = 1,
    /// A frame, by its sequence.
    Frame = 2,
    /// A message in a slot, by its sequence.
    Slot = 3,
    /// A bulk outside of frames, by its count.
    Bulk = 4,
}

/// The key of one connection.
pub(super) struct Seal {
    key: LessSafeKey,
    /// Who has begun the connection seals by other nonces than who has let it in.
    began: bool,
    sealed: u64,
    bulks: u32,
}

impl Seal {
    pub(super) fn new(key: &[u8; KEY_SIZE], began: bool) -> Self {
        let key = UnboundKey::new(&AES_128_GCM, key).expect("a key of AES-128 has 16 bytes");
        Self { key: LessSafeKey::new(key), began, sealed: 0, bulks: 0 }
    }

    /// Seals `bytes`, of which the last [`TAG_SIZE`] are room for the tag; `clear` is authenticated
    /// with them.
    pub(super) fn seal(&mut self, what: SealUse, number: u32, clear: &[u8], bytes: &mut [u8]) {
        let (content, room) = bytes.split_at_mut(bytes.len() - TAG_SIZE);
        self.sealed += content.len() as u64;
        let nonce = nonce(what, self.began, number);
        let tag = self.key.seal_in_place_separate_tag(nonce, Aad::from(clear), content);
        room.copy_from_slice(tag.expect("a message is shorter than 64 GiB").as_ref());
    }

    /// Opens in place what the other side has sealed; false if it was not that, and nothing in
    /// `bytes` can be used then.
    #[must_use]
    pub(super) fn open(&self, what: SealUse, number: u32, clear: &[u8], bytes: &mut [u8]) -> bool {
        self.key.open_in_place(nonce(what, !self.began, number), Aad::from(clear), bytes).is_ok()
    }

    /// The number of the next bulk.
    pub(super) fn next_bulk(&mut self) -> u32 {
        let number = self.bulks;
        self.bulks += 1;
        number
    }

    /// Whether the key has done its work, or numbers would come again soon; `sequence` is that of
    /// frames.
    pub(super) fn is_worn(&self, sequence: u32) -> bool {
        let numbers_max = u32::MAX - (1 << 16);
        self.sealed > SEALED_MAX || self.bulks > numbers_max || sequence > numbers_max
    }
}

fn nonce(what: SealUse, by_beginner: bool, number: u32) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[0] = (what as u8) << 1 | u8::from(by_beginner);
    bytes[NONCE_LEN - 4..].copy_from_slice(&number.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; KEY_SIZE] = [7; KEY_SIZE];

    #[test]
    fn only_the_other_side_opens_and_only_what_was_sealed_as_it() {
        let (mut ours, theirs) = (Seal::new(&KEY, true), Seal::new(&KEY, false));
        let mut whole = [b"content".as_slice(), &[0; TAG_SIZE]].concat();
        ours.seal(SealUse::Frame, 5, b"clear", &mut whole);
        assert_ne!(whole[..7], *b"content");
        let opens = |seal: &Seal, what, number, clear: &[u8], sealed: &[u8]| {
            let mut bytes = sealed.to_vec();
            seal.open(what, number, clear, &mut bytes) && bytes[..7] == *b"content"
        };
        assert!(opens(&theirs, SealUse::Frame, 5, b"clear", &whole));
        assert!(!opens(&ours, SealUse::Frame, 5, b"clear", &whole), "sent back to who sealed it");
        assert!(!opens(&theirs, SealUse::Slot, 5, b"clear", &whole));
        assert!(!opens(&theirs, SealUse::Frame, 6, b"clear", &whole));
        assert!(!opens(&theirs, SealUse::Frame, 5, b"other", &whole));
        assert!(!opens(&Seal::new(&[8; KEY_SIZE], false), SealUse::Frame, 5, b"clear", &whole));
        for bit in 0..whole.len() * 8 {
            let mut changed = whole.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!opens(&theirs, SealUse::Frame, 5, b"clear", &changed), "bit {bit}");
        }
        assert!(!opens(&theirs, SealUse::Frame, 5, b"clear", &whole[..3]));
    }

    #[test]
    fn a_key_wears_out_before_its_numbers_do() {
        let mut seal = Seal::new(&KEY, true);
        assert!(!seal.is_worn(1 << 31));
        assert!(seal.is_worn(u32::MAX - 1));
        seal.sealed = SEALED_MAX + 1;
        assert!(seal.is_worn(0));
    }
}
