//! How the data of a volume survives the loss of disks (ADR 95).

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Copies of the data of a volume, at most. New volumes have two, as their metadata have.
pub const COPIES_MAX: u32 = 3;

runtime::choice! {
    /// How the data of a volume survives the loss of disks, as `mdfs format` was told.
    #[derive(Copy)]
    pub enum RedundancyClass {
        /// It does not.
        0 None {},
        /// Each block is on several disks, of different disk nodes if there are enough.
        1 Copies {
            /// How many disks.
            count: u8,
        },
    }
}

impl Default for RedundancyClass {
    fn default() -> Self {
        Self::None {}
    }
}

impl RedundancyClass {
    /// On how many disks each block is.
    pub fn copies(self) -> u32 {
        match self {
            Self::None {} => 1,
            Self::Copies { count } => u32::from(count).max(1),
        }
    }

    /// Can this program store it?
    pub fn is_known(self) -> bool {
        match self {
            Self::None {} => true,
            Self::Copies { count } => (2..=COPIES_MAX).contains(&count.into()),
        }
    }
}

impl fmt::Display for RedundancyClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None {} => f.write_str("none"),
            Self::Copies { count } => write!(f, "{count}x"),
        }
    }
}

/// A class that there is not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no redundancy is called `{0}`: choose none or 2x")]
pub struct UnknownClass(String);

impl FromStr for RedundancyClass {
    type Err = UnknownClass;

    fn from_str(text: &str) -> Result<Self, UnknownClass> {
        match text {
            "none" => Ok(Self::None {}),
            "2x" => Ok(Self::Copies { count: 2 }),
            _ => Err(UnknownClass(text.to_owned())),
        }
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
    fn a_class_is_read_as_it_is_shown() {
        for class in [RedundancyClass::None {}, RedundancyClass::Copies { count: 2 }] {
            assert_eq!(class.to_string().parse(), Ok(class));
            assert!(class.is_known());
        }
        assert!("9x".parse::<RedundancyClass>().is_err());
        assert!(!RedundancyClass::Copies { count: 0 }.is_known());
        assert!(!RedundancyClass::Copies { count: 9 }.is_known());
    }
}
