//! How the data of a volume survives the loss of disks (ADR 95).

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::geometry::BLOCK_SIZE;

/// Copies of data, at most.
pub const COPIES_MAX: u32 = 3;
/// Stripes of parity of a wide stripe, at most.
pub const PARITY_SHARDS_MAX: u32 = 4;
/// Copies of metadata, and of data that is in no wide stripe, at most.
pub const METADATA_COPIES_MAX: u32 = 1 + PARITY_SHARDS_MAX;
/// Copies of metadata, at least, where there are several disks.
const METADATA_COPIES_MIN: u32 = 2;
/// Data shards of a wide stripe, at most and at least.
pub const DATA_SHARDS_MAX: u32 = 16;
const DATA_SHARDS_MIN: u32 = 2;
/// Classes of directories and files of a volume besides its own, at most: each superblock names
/// them.
pub const CLASSES_MAX: usize = 8;
/// Bytes of the description of a wide stripe, at most, and in it of a shard, besides a checksum of
/// each block.
const DESCRIPTION_BYTES: u32 = 8000;
const SHARD_BYTES: u32 = 16;

runtime::choice! {
    /// How data survives the loss of disks: that of a volume as `mdfs format` was told, that of a
    /// directory as `mdfs redundancy set` was.
    #[derive(Copy, PartialOrd, Ord)]
    pub enum RedundancyClass {
        /// It does not.
        0 None {},
        /// Each block is on several disks, of different disk nodes if there are enough.
        1 Copies {
            /// How many disks.
            count: u8,
        },
        /// Whole stripes of a file, as many as `data`, are a wide stripe together with `parity`
        /// stripes of parity: each is on another disk. The rest has copies (ADR 97).
        2 Parity {
            /// Stripes of data.
            data: u8,
            /// Stripes of parity: as many disks may be lost.
            parity: u8,
        },
    }
}

/// How many stripes a wide stripe has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WideStripeShape {
    /// Of data.
    pub data: u32,
    /// Of parity.
    pub parity: u32,
}

impl WideStripeShape {
    /// In all.
    pub fn shards(self) -> u32 {
        self.data + self.parity
    }

    /// The longest stripes with which the description of a wide stripe is not too long, in bytes.
    pub fn stripe_size_max(self) -> u32 {
        let checksums = (DESCRIPTION_BYTES / self.shards() - SHARD_BYTES) / 4;
        (checksums * BLOCK_SIZE as u32 + 1).next_power_of_two() / 2
    }
}

impl Default for RedundancyClass {
    fn default() -> Self {
        Self::None {}
    }
}

impl RedundancyClass {
    /// On how many disks each block is that is in no wide stripe.
    pub fn copies(self) -> u32 {
        match self {
            Self::None {} => 1,
            Self::Copies { count } => u32::from(count).max(1),
            Self::Parity { parity, .. } => 1 + u32::from(parity),
        }
    }

    /// On how many disks metadata is.
    pub fn metadata_copies(self) -> u32 {
        self.copies().max(METADATA_COPIES_MIN)
    }

    /// The wide stripes of the volume, if it has any.
    pub fn wide_stripes(self) -> Option<WideStripeShape> {
        match self {
            Self::None {} | Self::Copies { .. } => None,
            Self::Parity { data, parity } => {
                Some(WideStripeShape { data: data.into(), parity: parity.into() })
            }
        }
    }

    /// On how many disks, of different disk nodes if there are several, data is put.
    pub fn disks_needed(self) -> u32 {
        self.wide_stripes().map_or(self.copies(), WideStripeShape::shards)
    }

    /// Can this program store it?
    pub fn is_known(self) -> bool {
        match self {
            Self::None {} => true,
            Self::Copies { count } => (2..=COPIES_MAX).contains(&count.into()),
            Self::Parity { data, parity } => {
                (DATA_SHARDS_MIN..=DATA_SHARDS_MAX).contains(&data.into())
                    && (1..=PARITY_SHARDS_MAX).contains(&parity.into())
            }
        }
    }
}

/// The classes of the files of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeClasses {
    /// Of those that have none of their own.
    pub default: RedundancyClass,
    /// What directories and files may have in place of it.
    pub others: Vec<RedundancyClass>,
}

impl VolumeClasses {
    fn iter(&self) -> impl Iterator<Item = &RedundancyClass> {
        self.others.iter().chain([&self.default])
    }

    /// May a directory or a file have this one?
    pub fn has(&self, class: RedundancyClass) -> bool {
        self.iter().any(|known| *known == class)
    }

    /// May files differ?
    pub fn differ(&self) -> bool {
        !self.others.is_empty()
    }

    /// May any file have wide stripes?
    pub fn have_wide_stripes(&self) -> bool {
        self.iter().any(|class| class.wide_stripes().is_some())
    }

    /// Copies of data that is in no wide stripe, at most.
    pub fn copies_max(&self) -> u32 {
        self.iter().map(|class| class.copies()).max().unwrap_or(1)
    }
}

impl fmt::Display for RedundancyClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None {} => f.write_str("none"),
            Self::Copies { count } => write!(f, "{count}x"),
            Self::Parity { data, parity } => write!(f, "{data}+{parity}"),
        }
    }
}

/// A class that there is not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no redundancy is called `{0}`: choose none, 2x, 3x, or K+M with K from {DATA_SHARDS_MIN} to \
     {DATA_SHARDS_MAX} and M from 1 to {PARITY_SHARDS_MAX}, as in 4+1"
)]
pub struct UnknownClass(String);

impl FromStr for RedundancyClass {
    type Err = UnknownClass;

    fn from_str(text: &str) -> Result<Self, UnknownClass> {
        let class = match text {
            "none" => Some(Self::None {}),
            "2x" => Some(Self::Copies { count: 2 }),
            "3x" => Some(Self::Copies { count: 3 }),
            _ => text.split_once('+').and_then(|(data, parity)| {
                Some(Self::Parity { data: data.parse().ok()?, parity: parity.parse().ok()? })
            }),
        };
        class.filter(|class| class.is_known()).ok_or_else(|| UnknownClass(text.to_owned()))
    }
}

/// Stripes of which `copies` copies fit on disks, of which the disk node and the stripes are given:
/// on different disk nodes, or on different disks where there are too few of these.
///
/// However large some disks are, each of them has one copy of a block at most; the others have the
/// rest.
pub fn stripes_in_copies(disks: &[(u32, u64)], copies: u32) -> u64 {
    let mut nodes = BTreeMap::<u32, u64>::new();
    for (disk_node, stripes) in disks {
        *nodes.entry(*disk_node).or_default() += stripes;
    }
    let mut domains: Vec<u64> = if nodes.len() >= copies as usize {
        nodes.into_values().collect()
    } else {
        disks.iter().map(|(_, stripes)| *stripes).collect()
    };
    domains.sort_unstable_by(|one, other| other.cmp(one));
    let without = |largest: u32| {
        let rest: u64 = domains.iter().skip(largest as usize).sum();
        rest / u64::from(copies - largest)
    };
    (0..copies).map(without).min().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_fit_as_the_other_disks_allow() {
        let even = [(0, 10), (1, 10), (2, 10)];
        assert_eq!((stripes_in_copies(&even, 1), stripes_in_copies(&even, 2)), (30, 15));
        let uneven = [(0, 10), (1, 10), (2, 80)];
        assert_eq!(stripes_in_copies(&uneven, 2), 20);
        // Two disks of a node have no copy of the same block if there are other nodes.
        let nodes = [(0, 10), (0, 10), (1, 5)];
        assert_eq!(stripes_in_copies(&nodes, 2), 5);
        assert_eq!(stripes_in_copies(&nodes[..2], 2), 10);
        assert_eq!(stripes_in_copies(&nodes[..1], 2), 0);
    }

    #[test]
    fn descriptions_of_wide_stripes_are_not_too_long() {
        for (data, kib) in [(2, 2048), (4, 1024), (7, 512), (8, 512), (14, 512), (16, 256)] {
            let shape = WideStripeShape { data, parity: 1 };
            assert!(shape.stripe_size_max() <= kib << 10, "{data}");
            let blocks = shape.stripe_size_max() / BLOCK_SIZE as u32;
            assert!(shape.shards() * (SHARD_BYTES + 4 * blocks) <= DESCRIPTION_BYTES);
            assert!(shape.shards() * (SHARD_BYTES + 8 * blocks) > DESCRIPTION_BYTES);
        }
    }

    #[test]
    fn a_class_is_read_as_it_is_shown() {
        for class in [
            RedundancyClass::None {},
            RedundancyClass::Copies { count: 2 },
            RedundancyClass::Copies { count: 3 },
            RedundancyClass::Parity { data: 2, parity: 1 },
            RedundancyClass::Parity { data: 16, parity: 1 },
            RedundancyClass::Parity { data: 8, parity: 4 },
        ] {
            assert_eq!(class.to_string().parse(), Ok(class));
            assert!(class.is_known());
        }
        for unknown in ["4x", "9x", "1+1", "17+1", "2+5", "2+0", "2+", "300+1"] {
            assert!(unknown.parse::<RedundancyClass>().is_err());
        }
        assert!(!RedundancyClass::Copies { count: 0 }.is_known());
        assert!(!RedundancyClass::Copies { count: 9 }.is_known());
    }
}
