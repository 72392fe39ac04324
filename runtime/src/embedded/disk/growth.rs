//! Where a disk file grows: the host finds room ahead of those who write on and on.
//!
//! A direct write into a hole of a file keeps all other writes of the file waiting while the host
//! finds room for it (ext4; by `docs/measurements/cache.md` it halves the rate of 64 KiB writes).
//! So once two regions in a row were written, the host is asked for the next few before they are.
//! Files of which little is written stay as sparse as they are.

use std::cell::RefCell;
use std::ops::Range;

/// Bytes of a region.
const REGION: u64 = 1 << 20;

/// Regions that the host finds room for at a time.
const AHEAD: u64 = 4;

/// The regions of one file that were written or asked for since it was opened.
pub(super) struct Growth {
    length: u64,
    /// A bit for each region.
    known: RefCell<Vec<u64>>,
}

impl Growth {
    /// Of a file of `length` bytes.
    pub(super) fn new(length: u64) -> Self {
        let words = length.div_ceil(REGION * u64::from(u64::BITS));
        Self { length, known: RefCell::new(vec![0; words as usize]) }
    }

    /// Notes a write of `bytes`; returns what to ask the host for.
    pub(super) fn note(&self, bytes: &Range<u64>) -> Option<Range<u64>> {
        let mut known = self.known.borrow_mut();
        let is_known = |known: &[u64], region: u64| known[place(region).0] & place(region).1 != 0;
        let (first, end) = (bytes.start / REGION, bytes.end.div_ceil(REGION));
        for region in first..end {
            let (word, bit) = place(region);
            known[word] |= bit;
        }
        let regions = self.length.div_ceil(REGION);
        let goes_on = end - first > 1 || first > 0 && is_known(&known, first - 1);
        if !goes_on || end >= regions || is_known(&known, end) {
            return None;
        }
        let asked = end..regions.min(end + AHEAD);
        for region in asked.clone() {
            let (word, bit) = place(region);
            known[word] |= bit;
        }
        Some(asked.start * REGION..self.length.min(asked.end * REGION))
    }
}

/// The word of a region, and its bit there.
fn place(region: u64) -> (usize, u64) {
    let bits = u64::from(u64::BITS);
    ((region / bits) as usize, 1 << (region % bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_asked_for_once_ahead_of_a_writer_who_goes_on() {
        let growth = Growth::new(100 * REGION + 4096);
        let write = |from: u64, to: u64| growth.note(&(from..to));
        assert_eq!(write(REGION * 50, REGION * 50 + 4096), None, "a write here and there");
        assert_eq!(write(0, 65536), None);
        assert_eq!(write(65536, REGION), None);
        assert_eq!(write(REGION, REGION + 65536), Some(2 * REGION..6 * REGION));
        assert_eq!(write(REGION + 65536, 2 * REGION), None, "asked for already");
        assert_eq!(write(2 * REGION, 5 * REGION), None);
        assert_eq!(write(5 * REGION, 6 * REGION), Some(6 * REGION..10 * REGION));
        assert_eq!(write(98 * REGION, 100 * REGION), Some(100 * REGION..100 * REGION + 4096));
        assert_eq!(write(100 * REGION, 100 * REGION + 4096), None, "the end of the file");
    }
}
