//! Things by number, in the order of their last use. All operations take constant time.

use runtime::Table;

/// A table whose entries are also linked from the least to the most recently used one.
#[derive(Debug)]
pub(crate) struct Lru<T> {
    /// Look-ups only: the order of the entries is in the links.
    index: Table<u64, usize>,
    slots: Vec<Slot<T>>,
    free: Vec<usize>,
    oldest: Option<usize>,
    newest: Option<usize>,
}

#[derive(Debug)]
struct Slot<T> {
    key: u64,
    /// `None` while the slot is free.
    value: Option<T>,
    older: Option<usize>,
    newer: Option<usize>,
}

impl<T> Default for Lru<T> {
    fn default() -> Self {
        Self {
            index: Table::default(),
            slots: Vec::new(),
            free: Vec::new(),
            oldest: None,
            newest: None,
        }
    }
}

impl<T> Lru<T> {
    /// How many entries there are.
    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    /// The entry of `key`; its place in the order stays.
    pub(crate) fn get(&self, key: u64) -> Option<&T> {
        self.slots[*self.index.get(&key)?].value.as_ref()
    }

    /// The entry of `key`; its place in the order stays.
    pub(crate) fn get_mut(&mut self, key: u64) -> Option<&mut T> {
        self.slots[*self.index.get(&key)?].value.as_mut()
    }

    /// The entry of `key`, which becomes the most recently used one.
    pub(crate) fn touch(&mut self, key: u64) -> Option<&mut T> {
        let slot = *self.index.get(&key)?;
        if self.newest != Some(slot) {
            self.unlink(slot);
            self.link_newest(slot);
        }
        self.slots[slot].value.as_mut()
    }

    /// Adds an entry as the most recently used one. The key must be new.
    pub(crate) fn insert(&mut self, key: u64, value: T) {
        let filled = Slot { key, value: Some(value), older: None, newer: None };
        let slot = if let Some(slot) = self.free.pop() {
            self.slots[slot] = filled;
            slot
        } else {
            self.slots.push(filled);
            self.slots.len() - 1
        };
        let known = self.index.insert(key, slot);
        assert!(known.is_none(), "an entry is inserted once");
        self.link_newest(slot);
    }

    /// Takes an entry out.
    pub(crate) fn remove(&mut self, key: u64) -> Option<T> {
        let slot = self.index.remove(&key)?;
        self.unlink(slot);
        self.free.push(slot);
        self.slots[slot].value.take()
    }

    /// The entries, least recently used first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        let slots = std::iter::successors(self.oldest, |&slot| self.slots[slot].newer);
        slots.filter_map(|slot| Some((self.slots[slot].key, self.slots[slot].value.as_ref()?)))
    }

    fn unlink(&mut self, slot: usize) {
        let (older, newer) = (self.slots[slot].older.take(), self.slots[slot].newer.take());
        match older {
            Some(older) => self.slots[older].newer = newer,
            None => self.oldest = newer,
        }
        match newer {
            Some(newer) => self.slots[newer].older = older,
            None => self.newest = older,
        }
    }

    fn link_newest(&mut self, slot: usize) {
        self.slots[slot].older = self.newest;
        match self.newest {
            Some(newest) => self.slots[newest].newer = Some(slot),
            None => self.oldest = Some(slot),
        }
        self.newest = Some(slot);
    }
}

#[cfg(test)]
mod tests {
    use runtime::seed::with_seed;

    use super::*;

    #[test]
    fn the_order_is_that_of_the_last_use() {
        with_seed(|rng| {
            let mut lru = Lru::default();
            let mut model: Vec<(u64, u64)> = Vec::new();
            for step in 0..5_000 {
                let key = rng.below(12);
                let known = model.iter().position(|&(known, _)| known == key);
                match (rng.below(3), known) {
                    (0, None) => {
                        lru.insert(key, step);
                        model.push((key, step));
                    }
                    (1, _) => {
                        let removed = known.map(|index| model.remove(index).1);
                        assert_eq!(lru.remove(key), removed);
                    }
                    _ => {
                        let touched = known.map(|index| model.remove(index));
                        model.extend(touched);
                        assert_eq!(lru.touch(key).copied(), touched.map(|(_, value)| value));
                    }
                }
                let order: Vec<_> = lru.iter().map(|(key, value)| (key, *value)).collect();
                assert_eq!(order, model);
                assert_eq!(lru.len(), model.len());
                let value = model.iter().find(|&&(known, _)| known == key).map(|&(_, value)| value);
                assert_eq!(lru.get(key).copied(), value);
                assert_eq!(lru.get_mut(key).copied(), value);
            }
        });
    }
}
