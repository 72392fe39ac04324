//! File handles: what a client keeps instead of a file's name, for as long as the file exists.
//!
//! | bytes | content (little-endian) |
//! | --- | --- |
//! | 1 | version, 1 |
//! | 16 | volume |
//! | 8 | inode |
//! | 8 | generation |
//! | 4 | CRC-32C of all before |
//!
//! Handles outlive the gateway: a client may come back with one after years. The checksum finds
//! damage and mistakes; it does not keep a client from making one up.

use bytes::Bytes;
use fileio::protocol::Handle;
use nfs3_types::nfs3::{nfs_fh3, nfsstat3};
use nfs3_types::xdr_codec::Opaque;
use nom::combinator::{all_consuming, verify};
use nom::number::complete::{le_u8, le_u32, le_u64, le_u128};
use nom::{IResult, Parser as _};
use runtime::VolumeId;

const VERSION: u8 = 1;
const CHECKED_BYTES: usize = 1 + 16 + 8 + 8;

/// The handle of a file of `volume`.
pub(crate) fn encode(volume: VolumeId, file: Handle) -> nfs_fh3 {
    let mut bytes = Vec::with_capacity(CHECKED_BYTES + 4);
    bytes.push(VERSION);
    bytes.extend_from_slice(&volume.0.to_le_bytes());
    bytes.extend_from_slice(&file.ino.to_le_bytes());
    bytes.extend_from_slice(&file.generation.to_le_bytes());
    bytes.extend_from_slice(&runtime::hash::crc32c(&bytes).to_le_bytes());
    nfs_fh3 { data: Opaque::owned(bytes) }
}

/// The file of a handle of `volume`.
//= rfc1813 2.6: BADHANDLE "failed internal consistency checks", STALE for what is gone
pub(crate) fn decode(volume: VolumeId, bytes: &Bytes) -> Result<Handle, nfsstat3> {
    let (_, (named, file)) = parse(bytes).map_err(|_| nfsstat3::NFS3ERR_BADHANDLE)?;
    if named == volume { Ok(file) } else { Err(nfsstat3::NFS3ERR_STALE) }
}

fn parse(bytes: &[u8]) -> IResult<&[u8], (VolumeId, Handle)> {
    let sum = runtime::hash::crc32c(bytes.get(..CHECKED_BYTES).unwrap_or_default());
    let version = verify(le_u8, |version| *version == VERSION);
    let checked = verify(le_u32, |told| *told == sum);
    let (rest, (_, volume, ino, generation, _)) =
        all_consuming((version, le_u128, le_u64, le_u64, checked)).parse(bytes)?;
    Ok((rest, (VolumeId(volume), Handle { ino, generation })))
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUME: VolumeId = VolumeId(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10);
    const FILE: Handle = Handle { ino: 0x1122, generation: 3 };

    fn bytes() -> Vec<u8> {
        encode(VOLUME, FILE).data.into_owned()
    }

    #[test]
    fn handles_have_the_agreed_bytes() {
        let volume = (1..=16).rev().collect();
        let (ino, generation) = (vec![0x22, 0x11, 0, 0, 0, 0, 0, 0], vec![3, 0, 0, 0, 0, 0, 0, 0]);
        let sum = vec![0xcd, 0x06, 0xb3, 0x2e];
        assert_eq!(bytes(), [vec![1], volume, ino, generation, sum].concat());
        assert_eq!(decode(VOLUME, &bytes().into()), Ok(FILE));
    }

    #[test]
    fn a_handle_of_any_other_length_is_bad() {
        for length in 0..64 {
            let mut other = bytes();
            other.resize(length, 0);
            if length != bytes().len() {
                let refused = Err(nfsstat3::NFS3ERR_BADHANDLE);
                assert_eq!(decode(VOLUME, &other.into()), refused, "length {length}");
            }
        }
    }

    #[test]
    fn a_handle_with_any_flipped_bit_is_bad() {
        for bit in 0..8 * bytes().len() {
            let mut flipped = bytes();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let refused = Err(nfsstat3::NFS3ERR_BADHANDLE);
            assert_eq!(decode(VOLUME, &flipped.into()), refused, "bit {bit}");
        }
    }

    #[test]
    fn a_handle_of_another_volume_is_stale() {
        let other = decode(VolumeId(5), &bytes().into());
        assert_eq!(other, Err(nfsstat3::NFS3ERR_STALE));
    }
}
