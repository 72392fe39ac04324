//! Persistent file handles: they name a file for as long as it exists.
//!
//! | bytes | content (little-endian) |
//! | --- | --- |
//! | 1 | version, 2 |
//! | 4 | number of the key |
//! | 16 | volume |
//! | 4 | export: the low half of XXH3-64 of its path; 0 above the exports |
//! | 8 | inode |
//! | 8 | generation |
//! | 16 | the first half of BLAKE3, keyed, of all before |
//!
//! Handles outlive the gateway: a client may use one after years. They can be made only with the
//! key, so a client can use only handles that a gateway has returned to a client of that export; a
//! handle of one export is not valid in another.

use fileio::protocol::Handle;
use nfs3_types::nfs3::{nfs_fh3, nfsstat3};
use nfs3_types::xdr_codec::Opaque;
use nom::combinator::{all_consuming, rest_len, verify};
use nom::number::complete::{le_u8, le_u32, le_u64, le_u128};
use nom::{IResult, Parser as _};
use runtime::VolumeId;

use crate::handle_keys::{HandleKeys, MAC_BYTES, MacCheck};

const VERSION: u8 = 2;
const CONTENT_BYTES: usize = 1 + 4 + 16 + 4 + 8 + 8;
pub(crate) const HANDLE_BYTES: usize = CONTENT_BYTES + MAC_BYTES;

/// The export number of directories above the exports.
pub(crate) const PSEUDO: u32 = 0;

/// The file that a handle names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExportFile {
    /// The export in which it was returned.
    pub(crate) export: u32,
    pub(crate) file: Handle,
}

/// Encodes the handle of a file of `volume`.
pub(crate) fn encode(keys: &HandleKeys, volume: VolumeId, target: ExportFile) -> nfs_fh3 {
    nfs_fh3 { data: Opaque::owned(bytes(keys, volume, target).to_vec()) }
}

/// The bytes of the handle of a file of `volume`.
pub(crate) fn bytes(keys: &HandleKeys, volume: VolumeId, target: ExportFile) -> [u8; HANDLE_BYTES] {
    let mut bytes = [0; HANDLE_BYTES];
    let mut at = 0;
    let mut put = |part: &[u8]| {
        bytes[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    };
    put(&[VERSION]);
    put(&keys.newest_id().to_le_bytes());
    put(&volume.0.to_le_bytes());
    put(&target.export.to_le_bytes());
    put(&target.file.ino.to_le_bytes());
    put(&target.file.generation.to_le_bytes());
    let mac = keys.mac(&bytes[..CONTENT_BYTES]);
    bytes[CONTENT_BYTES..].copy_from_slice(&mac);
    bytes
}

/// Decodes a handle of `volume`.
//= rfc1813 2.6: BADHANDLE "failed internal consistency checks", STALE for what is gone
pub(crate) fn decode(
    keys: &HandleKeys,
    volume: VolumeId,
    bytes: &[u8],
) -> Result<ExportFile, nfsstat3> {
    let bad = nfsstat3::NFS3ERR_BADHANDLE;
    let (content, mac) = bytes.split_last_chunk().ok_or(bad)?;
    let (_, (key, of_volume, target)) = parse(content).map_err(|_| bad)?;
    if of_volume != volume {
        return Err(nfsstat3::NFS3ERR_STALE);
    }
    match keys.check(key, content, mac) {
        MacCheck::Good => Ok(target),
        MacCheck::Forged => Err(bad),
        MacCheck::Retired => Err(nfsstat3::NFS3ERR_STALE),
    }
}

/// The number of the key of a handle, if it is well-formed.
pub(crate) fn key_id(bytes: &[u8]) -> Option<u32> {
    let (content, _) = bytes.split_last_chunk::<MAC_BYTES>()?;
    parse(content).ok().map(|(_, (key, _, _))| key)
}

fn parse(content: &[u8]) -> IResult<&[u8], (u32, VolumeId, ExportFile)> {
    let version = verify(le_u8, |version| *version == VERSION);
    let whole = verify(rest_len, |length| *length == CONTENT_BYTES);
    let (rest, (_, _, key, volume, export, ino, generation)) =
        all_consuming((whole, version, le_u32, le_u128, le_u32, le_u64, le_u64)).parse(content)?;
    let target = ExportFile { export, file: Handle { ino, generation } };
    Ok((rest, (key, VolumeId(volume), target)))
}

/// The first handle in the arguments of a call: all procedures but NULL begin with one.
pub(crate) fn first_of(arguments: &[u8]) -> Option<&[u8]> {
    let (_, bytes) = crate::xdr::opaque(arguments, nfs3_types::nfs3::NFS3_FHSIZE).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUME: VolumeId = VolumeId(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10);
    const NAMED: ExportFile =
        ExportFile { export: 0x33, file: Handle { ino: 0x1122, generation: 3 } };

    fn handle(keys: &HandleKeys) -> Vec<u8> {
        encode(keys, VOLUME, NAMED).data.into_owned()
    }

    fn is_refused(decoded: Result<ExportFile, nfsstat3>) -> bool {
        matches!(decoded, Err(nfsstat3::NFS3ERR_BADHANDLE | nfsstat3::NFS3ERR_STALE))
    }

    #[test]
    fn handles_have_the_agreed_bytes() {
        let keys = HandleKeys::of_test(2);
        let volume = (1..=16).rev().collect();
        let (ino, generation) = (vec![0x22, 0x11, 0, 0, 0, 0, 0, 0], vec![3, 0, 0, 0, 0, 0, 0, 0]);
        let head = [vec![2], vec![2, 0, 0, 0], volume, vec![0x33, 0, 0, 0], ino, generation];
        let mac = GOLDEN_SEAL.to_vec();
        assert_eq!(handle(&keys), [head.concat(), mac].concat());
        assert_eq!(decode(&keys, VOLUME, &handle(&keys)), Ok(NAMED));
    }

    /// For the key `[2; 32]`; compared with a second implementation, written from BLAKE3's paper.
    const GOLDEN_SEAL: [u8; 16] =
        [199, 244, 25, 68, 165, 167, 255, 55, 239, 59, 233, 46, 216, 242, 80, 88];

    #[test]
    fn a_handle_of_any_other_length_is_bad() {
        let keys = HandleKeys::of_test(1);
        for length in (0..80).filter(|length| *length != HANDLE_BYTES) {
            let mut other = handle(&keys);
            other.resize(length, 0);
            let refused = Err(nfsstat3::NFS3ERR_BADHANDLE);
            assert_eq!(decode(&keys, VOLUME, &other), refused, "length {length}");
        }
    }

    #[test]
    fn a_handle_with_any_flipped_bit_is_refused() {
        let keys = HandleKeys::of_test(2);
        for bit in 0..8 * HANDLE_BYTES {
            let mut flipped = handle(&keys);
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(is_refused(decode(&keys, VOLUME, &flipped)), "bit {bit}");
        }
    }

    #[test]
    fn a_million_forged_handles_are_refused() {
        let keys = HandleKeys::of_test(2);
        let real = handle(&keys);
        // A cached handle must not make it easier.
        assert_eq!(decode(&keys, VOLUME, &real), Ok(NAMED));
        runtime::seed::with_seed(|rng| {
            let mut forged = real.clone();
            for _ in 0..1_000_000 {
                // The file is right; the MAC is guessed, or nearly right.
                if rng.chance(1, 2) {
                    rng.fill(&mut forged[CONTENT_BYTES..]);
                } else {
                    forged.copy_from_slice(&real);
                    forged[25..33].copy_from_slice(&(0x1123 + rng.below(1 << 40)).to_le_bytes());
                }
                assert!(is_refused(decode(&keys, VOLUME, &forged)), "{forged:?}");
            }
        });
    }

    #[test]
    fn handles_are_the_same_whether_their_seals_are_known_or_not() {
        let keys = HandleKeys::of_test(2);
        // More than fit into the cache.
        let made = |ino| ExportFile { export: 0x33, file: Handle { ino, generation: 3 } };
        for round in 0..2 {
            for ino in 0..5_000 {
                let told = super::bytes(&keys, VOLUME, made(ino));
                assert_eq!(told, super::bytes(&keys, VOLUME, made(ino)), "known");
                assert_eq!(decode(&keys, VOLUME, &told), Ok(made(ino)));
                if ino % 100 == round {
                    let fresh = super::bytes(&HandleKeys::of_test(2), VOLUME, made(ino));
                    assert_eq!(told, fresh, "made anew");
                }
            }
        }
    }

    #[test]
    fn a_handle_of_another_volume_is_stale() {
        let keys = HandleKeys::of_test(1);
        let other = decode(&keys, VolumeId(5), &handle(&keys));
        assert_eq!(other, Err(nfsstat3::NFS3ERR_STALE));
    }

    #[test]
    fn a_handle_outlives_one_rotation_and_not_two() {
        let old = handle(&HandleKeys::of_test(1));
        assert_eq!(decode(&HandleKeys::of_test(2), VOLUME, &old), Ok(NAMED));
        assert_eq!(decode(&HandleKeys::of_test(3), VOLUME, &old), Err(nfsstat3::NFS3ERR_STALE));
        let future = handle(&HandleKeys::of_test(4));
        assert_eq!(
            decode(&HandleKeys::of_test(3), VOLUME, &future),
            Err(nfsstat3::NFS3ERR_BADHANDLE)
        );
    }
}
