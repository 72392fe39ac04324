//! Changes that are not yet in the tree, and the ordered view over them and the tree.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;

use super::rewrite::TreeChange;

/// Bytes of memory that an entry takes besides key and value: its slot in a tree of which two
/// thirds are full, and two allocations.
const ENTRY_BYTES: usize = 160;

/// Changes by key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overlay {
    /// A value, or `None` for a deletion.
    entries: BTreeMap<Bytes, Option<Bytes>>,
    /// Bytes of all keys and values that were ever put: at least what is there now.
    pub(crate) bytes: u64,
    pub(crate) memory_bytes: usize,
}

impl Overlay {
    /// Notes the change of `key`.
    pub(crate) fn set(&mut self, key: Bytes, value: Option<Bytes>) {
        self.bytes += (key.len() + length(value.as_ref())) as u64;
        self.insert(key, value);
    }

    fn insert(&mut self, key: Bytes, value: Option<Bytes>) {
        let (key_bytes, value_bytes) = (key.len(), length(value.as_ref()));
        self.memory_bytes += value_bytes;
        match self.entries.insert(key, value) {
            Some(before) => self.memory_bytes -= length(before.as_ref()),
            None => self.memory_bytes += key_bytes + ENTRY_BYTES,
        }
    }

    /// The change of `key`, if there is one.
    pub(crate) fn get(&self, key: &[u8]) -> Option<&Option<Bytes>> {
        self.entries.get(key)
    }

    /// Changed keys.
    pub(crate) fn keys(&self) -> u64 {
        self.entries.len() as u64
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All changes, in order.
    pub(crate) fn changes(&self) -> Vec<TreeChange> {
        self.entries.iter().map(change).collect()
    }

    /// The changes after `from` and before `to`.
    pub(crate) fn range<'a>(
        &'a self,
        from: Bound<&'a [u8]>,
        to: &'a [u8],
    ) -> impl Iterator<Item = TreeChange> + 'a {
        let empty = match from {
            Bound::Included(from) | Bound::Excluded(from) => from >= to,
            Bound::Unbounded => to.is_empty(),
        };
        let entries = (!empty).then(|| self.entries.range::<[u8], _>((from, Bound::Excluded(to))));
        entries.into_iter().flatten().map(change)
    }

    /// Puts the changes of `newer` over these.
    pub(crate) fn cover(&mut self, newer: Self) {
        self.bytes += newer.bytes;
        newer.entries.into_iter().for_each(|(key, value)| self.insert(key, value));
    }
}

fn length(value: Option<&Bytes>) -> usize {
    value.map_or(0, Bytes::len)
}

fn change((key, value): (&Bytes, &Option<Bytes>)) -> TreeChange {
    (key.clone(), value.clone())
}

/// An ordered list of changes.
pub(crate) type Changes<'a> = Box<dyn Iterator<Item = TreeChange> + 'a>;

/// Merges ordered lists of changes; where two have a key, the one of the earlier list counts.
pub(crate) struct Merged<'a> {
    /// Each behind its next change.
    lists: Vec<(Option<TreeChange>, Changes<'a>)>,
}

impl<'a> Merged<'a> {
    /// The lists, the one that counts most first.
    pub(crate) fn new(lists: Vec<Changes<'a>>) -> Self {
        Self { lists: lists.into_iter().map(|mut list| (list.next(), list)).collect() }
    }

    fn next_change(&mut self) -> Option<TreeChange> {
        let heads = self.lists.iter().enumerate();
        let keys = heads.filter_map(|(at, (head, _))| Some((&head.as_ref()?.0, at)));
        let (_, least) = keys.min()?;
        let (head, list) = &mut self.lists[least];
        let change = std::mem::replace(head, list.next())?;
        // Earlier lists do not have the key, or theirs would be the least.
        for (head, list) in &mut self.lists[least + 1..] {
            if head.as_ref().is_some_and(|(key, _)| *key == change.0) {
                *head = list.next();
            }
        }
        Some(change)
    }
}

/// The keys that are there, with their values.
impl Iterator for Merged<'_> {
    type Item = (Bytes, Bytes);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let (key, Some(value)) = self.next_change()? {
                return Some((key, value));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlay(changes: &[(&'static str, Option<&'static str>)]) -> Overlay {
        let mut overlay = Overlay::default();
        for (key, value) in changes {
            overlay.set(Bytes::from(*key), value.map(Bytes::from));
        }
        overlay
    }

    #[test]
    fn the_newest_change_of_a_key_counts_and_deleted_keys_are_not_seen() {
        let active = overlay(&[("b", None), ("d", Some("new"))]);
        let frozen = overlay(&[("a", Some("1")), ("b", Some("2")), ("d", Some("old"))]);
        let (from, to) = (Bound::Included(b"a".as_slice()), b"z".as_slice());
        let lists: Vec<Changes<'_>> =
            vec![Box::new(active.range(from, to)), Box::new(frozen.range(from, to))];
        let merged: Vec<(Bytes, Bytes)> = Merged::new(lists).collect();
        assert_eq!(merged, [("a".into(), "1".into()), ("d".into(), "new".into())]);
        assert_eq!(frozen.range(Bound::Excluded(b"a"), b"d").count(), 1);
        assert_eq!(frozen.range(Bound::Included(b"x"), b"d").count(), 0);
        assert_eq!(frozen.range(Bound::Excluded(b"d"), b"d").count(), 0);
    }

    #[test]
    fn what_is_replaced_takes_no_memory_any_more() {
        let mut changes = overlay(&[("a", Some("1234")), ("b", None)]);
        let before = changes.memory_bytes;
        changes.set("a".into(), Some("56".into()));
        assert_eq!(changes.memory_bytes, before - 2);
        changes.cover(overlay(&[("a", None), ("c", Some("9"))]));
        assert_eq!(changes.memory_bytes, 3 * (ENTRY_BYTES + 1) + 1);
    }
}
