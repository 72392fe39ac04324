//! Blocks of files that say which file, block and version they are.

use runtime::seed::Rng;

use super::content::BLOCK;

/// The bytes of one version of a block.
pub(super) fn stamp(file: u64, block: u64, version: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK as usize];
    if version > 0 {
        Rng::new(file << 40 ^ block << 20 ^ version).fill(&mut bytes);
        for (place, number) in bytes.chunks_mut(8).zip([file, block, version]) {
            place.copy_from_slice(&number.to_le_bytes());
        }
    }
    bytes
}

/// The version of a block; or what is wrong with it.
pub(super) fn version_of(bytes: &[u8], file: u64, block: u64) -> Result<u64, String> {
    if bytes.iter().all(|&byte| byte == 0) {
        return Ok(0);
    }
    let found = numbers(bytes);
    if found[..2] == [file, block] && bytes == stamp(file, block, found[2]) {
        return Ok(found[2]);
    }
    Err(format!("file {file}, block {block}: there are bytes that begin as {found:?}"))
}

/// Is it a whole block of a file, of any version?
pub(super) fn is_stamped(bytes: &[u8]) -> bool {
    let [file, block, version] = numbers(bytes);
    version > 0 && bytes == stamp(file, block, version)
}

/// What a block says of itself: its file, its place there and its version.
fn numbers(bytes: &[u8]) -> [u64; 3] {
    [0, 1, 2].map(|index| {
        let mut number = [0; 8];
        number.copy_from_slice(&bytes[8 * index..8 * index + 8]);
        u64::from_le_bytes(number)
    })
}
