//! Frozen functions: their values are part of the on-disk format and must never change.

/// XXH3-64 with seed 0, the hash of names.
pub fn xxh3(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}

/// CRC-32C (Castagnoli), the checksum of everything on disk and on the wire.
pub fn crc32c(bytes: &[u8]) -> u32 {
    // The crate computes in 64 bits for all widths; a CRC-32 uses the lower half.
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// The CRC-32C of two pieces, one after the other, that have these checksums; the second one has
/// `length` bytes.
pub fn join_crc32c(first: u32, second: u32, length: u64) -> u32 {
    let algorithm = crc_fast::CrcAlgorithm::Crc32Iscsi;
    crc_fast::checksum_combine(algorithm, first.into(), second.into(), length) as u32
}

/// CRC-32C of bytes that come in pieces.
#[derive(Debug)]
pub struct Crc32c(crc_fast::Digest);

impl Crc32c {
    /// The checksum of nothing yet.
    #[allow(clippy::new_without_default, reason = "an empty checksum is no sensible default")]
    pub fn new() -> Self {
        Self(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi))
    }

    /// Adds `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all that was added.
    pub fn finish(self) -> u32 {
        self.0.finalize() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_functions_have_their_published_values() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        let mut pieces = Crc32c::new();
        b"123456789".chunks(4).for_each(|piece| pieces.update(piece));
        assert_eq!(pieces.finish(), 0xE306_9283);
        assert_eq!(xxh3(b""), 0x2D06_8005_38D3_94C2);
    }

    #[test]
    fn checksums_of_pieces_make_the_checksum_of_all() {
        crate::seed::with_seed(|rng| {
            for _ in 0..100 {
                let mut bytes = vec![0; rng.index(9000)];
                rng.fill(&mut bytes);
                let (first, second) = bytes.split_at(rng.index(bytes.len() + 1));
                let joined = join_crc32c(crc32c(first), crc32c(second), second.len() as u64);
                assert_eq!(joined, crc32c(&bytes), "{} and {}", first.len(), second.len());
            }
        });
    }

    #[test]
    fn the_hash_of_names_is_frozen() {
        let values = [b"a".as_slice(), b"checkpoint", b"rank-0001.ckpt"].map(xxh3);
        assert_eq!(
            values,
            [0xE6C6_32B6_1E96_4E1F, 0x2870_9F51_E30C_4C8C, 0x184B_D0AA_EFEF_6134],
            "{values:#x?}"
        );
    }
}
