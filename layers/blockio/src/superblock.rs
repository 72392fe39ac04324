//! Who a disk is: its first block, with a copy in its last whole block. Bytes: docs/format.md.

use bytes::Bytes;
use runtime::hash::crc32c;
use runtime::wire::{Decoder, Encoder, Wire as _};
use runtime::{Epoch, VolumeId};

use crate::geometry::{BLOCK_SIZE, Geometry};

/// The first eight bytes of each superblock.
pub const MAGIC: [u8; 8] = *b"MDFSDISK";

/// The lay-out of disks that this program writes, and the newest that it reads.
pub const VERSION: u32 = 1;

/// Feature bits that this program understands. A disk with any other is refused.
pub const FEATURES: u32 = 0;

/// Magic, checksum and their places are the same in every version.
const VERSION_AT: usize = 8;
const CHECKSUM_AT: usize = BLOCK_SIZE - 4;

runtime::record! {
    /// What a disk says of itself.
    #[derive(Copy)]
    pub struct Superblock {
        /// The lay-out of the disk, [`VERSION`].
        version: u32,
        /// The disk node that the disk belongs to.
        disk_node: u32,
        /// Which disk of that node it is.
        disk: u32,
        /// One bit for each feature without which the disk cannot be understood.
        features: u32,
        /// The volume that the disk is part of.
        geometry: Geometry,
        /// Bytes of the disk, in whole blocks; the copy is the last of these.
        length: u64,
        /// When it was formatted, in milliseconds since 1970.
        formatted_ms: u64,
        /// The highest epoch that opened the disk.
        epoch: Epoch,
    }
}

/// What is wrong with the bytes of a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuperblockFlaw {
    /// They do not even start like one.
    NoMagic,
    /// The checksum does not match, or the content makes no sense.
    Damaged,
    /// A newer program wrote it, in this version.
    Version(u32),
    /// A newer program wrote it, with these features that are unknown here.
    Features(u32),
}

impl Superblock {
    /// The volume.
    pub fn volume(&self) -> VolumeId {
        self.geometry.volume
    }

    /// The byte of the disk where the copy starts.
    pub fn copy_offset(&self) -> u64 {
        self.length - BLOCK_SIZE as u64
    }

    /// One block: magic, fields, zeros, checksum.
    pub fn encode(&self) -> Bytes {
        let mut out = Encoder::new();
        out.bytes(&MAGIC);
        self.put(&mut out);
        let mut block = out.finish_joined();
        block.resize(CHECKSUM_AT, 0);
        let checksum = crc32c(&block);
        block.extend_from_slice(&checksum.to_le_bytes());
        block.into()
    }

    /// Reads one block. Whatever passes is consistent in itself.
    pub fn decode(block: &[u8]) -> Result<Self, SuperblockFlaw> {
        if !block.starts_with(&MAGIC) {
            return Err(SuperblockFlaw::NoMagic);
        }
        let (content, checksum) =
            block.split_at_checked(CHECKSUM_AT).ok_or(SuperblockFlaw::Damaged)?;
        if checksum != crc32c(content).to_le_bytes() {
            return Err(SuperblockFlaw::Damaged);
        }
        let mut input = Decoder::new(&content[VERSION_AT..], Bytes::new());
        match u32::take(&mut input.clone()) {
            Ok(VERSION) => {}
            Ok(newer) if newer > VERSION => return Err(SuperblockFlaw::Version(newer)),
            _ => return Err(SuperblockFlaw::Damaged),
        }
        let superblock = Self::take(&mut input).map_err(|_| SuperblockFlaw::Damaged)?;
        let unknown = superblock.features & !FEATURES;
        if unknown != 0 {
            return Err(SuperblockFlaw::Features(unknown));
        }
        if superblock.makes_sense() { Ok(superblock) } else { Err(SuperblockFlaw::Damaged) }
    }

    fn makes_sense(&self) -> bool {
        let geometry = &self.geometry;
        geometry.check().is_ok()
            && self.disk_node < geometry.disk_nodes
            && self.disk < geometry.disks_per_node
            && self.length >= geometry.disk_length()
            && self.length.is_multiple_of(BLOCK_SIZE as u64)
    }
}

#[cfg(test)]
mod tests {
    use runtime::seed::with_seed;

    use super::*;

    fn superblock() -> Superblock {
        let geometry = Geometry::for_disks(VolumeId(7), 65536, 4, 3, 2, 1 << 20).expect("fits");
        Superblock {
            version: VERSION,
            disk_node: 2,
            disk: 1,
            features: 0,
            geometry,
            length: 1 << 20,
            formatted_ms: 5,
            epoch: Epoch(9),
        }
    }

    #[test]
    fn one_flipped_bit_anywhere_is_noticed() {
        with_seed(|rng| {
            let good = superblock().encode();
            assert_eq!(Superblock::decode(&good), Ok(superblock()));
            for _ in 0..2_000 {
                let mut block = good.to_vec();
                block[rng.index(BLOCK_SIZE)] ^= 1 << rng.below(8);
                let flaw = Superblock::decode(&block);
                assert!(
                    matches!(flaw, Err(SuperblockFlaw::NoMagic | SuperblockFlaw::Damaged)),
                    "{flaw:?}"
                );
            }
        });
    }

    #[test]
    fn newer_versions_and_features_are_told_from_damage() {
        let newer = Superblock { version: 2, ..superblock() };
        assert_eq!(Superblock::decode(&newer.encode()), Err(SuperblockFlaw::Version(2)));
        let newer = Superblock { features: 4, ..superblock() };
        assert_eq!(Superblock::decode(&newer.encode()), Err(SuperblockFlaw::Features(4)));
    }

    #[test]
    fn nonsense_with_a_good_checksum_is_damage() {
        let good = superblock();
        let geometry = |change: fn(&mut Geometry)| {
            let mut superblock = good;
            change(&mut superblock.geometry);
            superblock
        };
        let bad = [
            Superblock { version: 0, ..good },
            Superblock { disk_node: 3, ..good },
            Superblock { disk: 2, ..good },
            Superblock { length: (1 << 20) - 1, ..good },
            Superblock { length: 4096, ..good },
            geometry(|geometry| geometry.disk_nodes = 0),
            geometry(|geometry| geometry.stripe_size = 0),
            geometry(|geometry| geometry.stripes_per_disk = u64::MAX),
        ];
        for superblock in bad {
            let flaw = Superblock::decode(&superblock.encode());
            assert_eq!(flaw, Err(SuperblockFlaw::Damaged), "{superblock:?}");
        }
    }

    #[test]
    fn short_input_is_damage() {
        assert_eq!(Superblock::decode(b""), Err(SuperblockFlaw::NoMagic));
        assert_eq!(Superblock::decode(&MAGIC), Err(SuperblockFlaw::Damaged));
    }
}
