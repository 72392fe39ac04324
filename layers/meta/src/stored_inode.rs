//! An inode as the store has it. Part of the on-disk format: see docs/format.md.

use runtime::wire::{Malformed, from_bytes, to_bytes};

use crate::attributes::RedundancyClass;
use crate::protocol::{CommitMark, Inode};

impl Inode {
    /// As it is stored: what it has of a class of its own comes last. Without one it is as it was
    /// before there were any.
    pub fn to_stored(&self) -> Vec<u8> {
        let mut stored = to_bytes(self);
        let class = Self::CLASS_AT..Self::CLASS_AT + to_bytes(&self.attributes.redundancy).len();
        let class: Vec<u8> = stored.drain(class).collect();
        if self.attributes.redundancy.is_some() {
            stored.extend(class);
        }
        stored
    }

    /// Reads one from the store; one of format version 1 lacks what comes last, and early ones of
    /// version 2 have one gap or none.
    pub fn from_stored(value: &[u8]) -> Result<Self, Malformed> {
        let lacking = |_| Self::plain(&[value, &to_bytes(&CommitMark::default())[..]].concat());
        let with_gaps = |_| Self::plain(&with_gap_list(value)?);
        Self::plain(value).or_else(lacking).or_else(with_gaps).or_else(|_| Self::of_class(value))
    }

    /// Where the class is in the form of [`runtime::wire`].
    const CLASS_AT: usize = 105;
    /// Bytes of one: a flag, which of the three it is, and up to two numbers.
    const CLASS_BYTES: std::ops::RangeInclusive<usize> = 2..=4;

    /// Reads a stored one without a class.
    fn plain(value: &[u8]) -> Result<Self, Malformed> {
        Self::with_class(value, &to_bytes(&None::<RedundancyClass>))
    }

    /// Reads a stored one with a class.
    fn of_class(value: &[u8]) -> Result<Self, Malformed> {
        let read = |length: usize| {
            let (rest, class) = value.split_at_checked(value.len().checked_sub(length)?)?;
            from_bytes::<Option<RedundancyClass>>(class).ok().flatten()?;
            Self::with_class(rest, class).ok()
        };
        Self::CLASS_BYTES.into_iter().find_map(read).ok_or(Malformed("inode"))
    }

    fn with_class(rest: &[u8], class: &[u8]) -> Result<Self, Malformed> {
        let (before, after) = rest.split_at_checked(Self::CLASS_AT).ok_or(Malformed("inode"))?;
        from_bytes(&[before, class, after].concat())
    }
}

/// A stored inode, in place of whose one gap, or none, is a list of them.
fn with_gap_list(value: &[u8]) -> Result<Vec<u8>, Malformed> {
    // A flag, and with it the two ends of the gap.
    const GAP_BYTES: usize = 16;
    let lacks_gap = |split: &usize| value.get(*split) == Some(&0);
    let has_gap = |split: &usize| value.get(*split) == Some(&1);
    let none = value.len().checked_sub(1).filter(lacks_gap);
    let one = value.len().checked_sub(1 + GAP_BYTES).filter(has_gap);
    let candidates =
        [(none, 0u32), (one, 1)].into_iter().filter_map(|(at, count)| Some((at?, count)));
    for (at, count) in candidates {
        // What came since is not known.
        let top_order = if count > 0 { &u64::MAX.to_le_bytes()[..] } else { &[] };
        let stored = [&value[..at], &count.to_le_bytes(), &value[at + 1..], top_order].concat();
        if Inode::plain(&stored).is_ok() {
            return Ok(stored);
        }
    }
    Err(Malformed("inode"))
}
