//! The keys of records that are not durable yet. Syncing a directory needs the last change of its
//! names. There may be a hundred thousand changes that are not in the tree, but few that a crash
//! would lose.

use std::collections::VecDeque;

use bytes::Bytes;

/// Keys, each with the record that changed it, in the order of the records.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    keys: VecDeque<(u64, Bytes)>,
}

impl Recent {
    /// The record `position`, the newest, changes `key`.
    pub(crate) fn note(&mut self, position: u64, key: Bytes) {
        self.keys.push_back((position, key));
    }

    /// Records up to this one are durable.
    pub(crate) fn flush(&mut self, durable: u64) {
        while self.keys.pop_front_if(|(position, _)| *position <= durable).is_some() {}
    }

    /// The last record that changed a key from `from` on and before `to`; 0 if all that did are
    /// durable.
    pub(crate) fn last_change(&self, from: &[u8], to: &[u8]) -> u64 {
        let mut newest_first = self.keys.iter().rev();
        let last = newest_first.find(|(_, key)| from <= &key[..] && &key[..] < to);
        last.map_or(0, |(position, _)| *position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_change_of_a_range_is_known_until_it_is_durable() {
        let mut recent = Recent::default();
        for (position, key) in [(1, "a"), (1, "b"), (2, "c"), (4, "a")] {
            recent.note(position, key.into());
        }
        assert_eq!([recent.last_change(b"a", b"c"), recent.last_change(b"b", b"d")], [4, 2]);
        assert_eq!([recent.last_change(b"d", b"z"), recent.last_change(b"c", b"a")], [0, 0]);
        recent.flush(3);
        assert_eq!([recent.last_change(b"a", b"c"), recent.last_change(b"b", b"d")], [4, 0]);
        recent.flush(4);
        assert_eq!(recent.last_change(b"a", b"z"), 0);
    }
}
