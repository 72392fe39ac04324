//! Writes that are under way while the program goes on.

use std::collections::BTreeMap;
use std::ops::Range;

use super::ahead::TRANSFER_MAX;
use super::{LinkEstimate, TRANSFER_MIN};

/// Writes under way, at most.
const WRITES_MAX: usize = 256;

/// Plans the writes of one file: how many bytes may be under way, and which writes must wait for
/// others.
#[derive(Clone, Debug)]
pub struct WriteBehind {
    bytes_max: u64,
    /// By their numbers.
    under_way: BTreeMap<u64, Range<u64>>,
    next: u64,
}

impl WriteBehind {
    /// With at most `bytes_max` bytes under way, or one write.
    pub fn new(bytes_max: u64) -> Self {
        Self { bytes_max: bytes_max.max(TRANSFER_MIN), under_way: BTreeMap::new(), next: 0 }
    }

    /// A write of `range`. Returns its number, or `None` if it has to wait: the link has enough, or
    /// a write of the same bytes is under way, which it could overtake.
    pub fn start(&mut self, range: &Range<u64>, link: &LinkEstimate) -> Option<u64> {
        let bytes: u64 = self.under_way.values().map(|it| it.end - it.start).sum();
        let window = self.bytes_max.min(link.window() + TRANSFER_MAX);
        let has_room = self.under_way.is_empty()
            || (bytes + (range.end - range.start) <= window && self.under_way.len() < WRITES_MAX);
        let overlaps = |it: &Range<u64>| it.start < range.end && range.start < it.end;
        if !has_room || self.under_way.values().any(overlaps) {
            return None;
        }
        self.next += 1;
        self.under_way.insert(self.next, range.clone());
        Some(self.next)
    }

    /// The write with this number is over.
    pub fn finish(&mut self, number: u64) {
        self.under_way.remove(&number);
    }

    /// Is nothing under way?
    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_link_holds_its_window_and_no_more() {
        let link = LinkEstimate::new(Duration::from_millis(50), 100 * MIB);
        let mut behind = WriteBehind::new(64 * MIB);
        let count = (0..100).filter(|i| behind.start(&(i * MIB..(i + 1) * MIB), &link).is_some());
        assert_eq!(count.count() as u64, link.window() / MIB + 4);
        let mut small = WriteBehind::new(2 * MIB);
        let count = (0..100).filter(|i| small.start(&(i * MIB..(i + 1) * MIB), &link).is_some());
        assert_eq!(count.count(), 2);
    }

    #[test]
    fn writes_of_the_same_bytes_wait_for_each_other() {
        let mut behind = WriteBehind::new(64 * MIB);
        let link = LinkEstimate::default();
        let first = behind.start(&(0..10), &link).unwrap();
        assert_eq!(behind.start(&(9..12), &link), None);
        assert!(behind.start(&(10..12), &link).is_some());
        behind.finish(first);
        assert!(behind.start(&(5..10), &link).is_some());
    }
}
