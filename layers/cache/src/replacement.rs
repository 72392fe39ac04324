//! Which line goes next: S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction",
//! SOSP 2023), which keeps what is used again when a whole file is read through the cache. Traces
//! that compare it with the least recently used order are in `benches/replacement.rs` (ADR 24).
//!
//! New entries wait in a small queue. Who is used again there moves to the main queue when the turn
//! comes; all others go, and are remembered for a while: should one of them come back it goes to
//! the main queue at once. In the main queue each use saves from one turn.

use std::collections::VecDeque;

use runtime::Table;

/// One entry in this many is in the small queue.
const SMALL_SHARE: usize = 10;

/// Uses that count: each saves an entry from one turn.
const USES_MAX: u8 = 3;

/// The order in which entries go. Their owner looks entries up; this knows them by
/// the place that [`insert`](Self::insert) returned. All operations take constant time on average.
#[derive(Debug, Default)]
pub struct Replacement {
    places: Vec<ReplacementEntry>,
    free: Vec<usize>,
    small: ReplacementQueue,
    main: ReplacementQueue,
    /// What was here and was used once: look-ups only.
    gone: Table<u64, u64>,
    /// The same in the order in which it went. Entries that came back stay until their turn.
    gone_order: VecDeque<(u64, u64)>,
    departures: u64,
    /// Used last.
    last: Option<usize>,
}

#[derive(Debug)]
struct ReplacementEntry {
    key: u64,
    uses: u8,
    queue: QueueKind,
    older: Option<usize>,
    newer: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueKind {
    Small,
    Main,
    Nowhere,
}

/// The ends of a list that runs through the places.
#[derive(Debug, Default)]
struct ReplacementQueue {
    oldest: Option<usize>,
    newest: Option<usize>,
    length: usize,
}

impl Replacement {
    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.small.length + self.main.length
    }

    /// There is nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds an entry; returns its place.
    pub fn insert(&mut self, key: u64) -> usize {
        let home =
            if self.gone.remove(&key).is_some() { QueueKind::Main } else { QueueKind::Small };
        let filled =
            ReplacementEntry { key, uses: 0, queue: QueueKind::Nowhere, older: None, newer: None };
        let place = if let Some(place) = self.free.pop() {
            self.places[place] = filled;
            place
        } else {
            self.places.push(filled);
            self.places.len() - 1
        };
        self.link(place, home);
        self.last = Some(place);
        place
    }

    /// The entry at `place` was used. The next use after its last does not count: who reads through
    /// a file in small pieces asks for each line many times in a row, and never again.
    pub fn hit(&mut self, place: usize) {
        if self.last.replace(place) == Some(place) {
            return;
        }
        let uses = &mut self.places[place].uses;
        *uses = (*uses + 1).min(USES_MAX);
    }

    /// Lets the entry at `place` be the last to go.
    pub fn postpone(&mut self, place: usize) {
        self.unlink(place);
        self.link(place, QueueKind::Main);
    }

    /// Removes an entry without remembering it.
    pub fn remove(&mut self, place: usize) {
        self.unlink(place);
        self.free.push(place);
    }

    /// Takes out the entry that [`next`](Self::next) named.
    pub fn evict(&mut self, place: usize) {
        if self.places[place].queue == QueueKind::Small {
            self.departures += 1;
            let key = self.places[place].key;
            self.gone.insert(key, self.departures);
            self.gone_order.push_back((key, self.departures));
        }
        self.remove(place);
        // As many are remembered as there are.
        while self.gone_order.len() > self.len() + 1 {
            let Some((key, departure)) = self.gone_order.pop_front() else { break };
            if self.gone.get(&key) == Some(&departure) {
                self.gone.remove(&key);
            }
        }
    }

    /// The key of the entry that goes next, and its place: the first in turn that `may_go`. Entries
    /// that were used move to the end of the main queue on the way.
    pub fn next(&mut self, mut may_go: impl FnMut(u64) -> bool) -> Option<(u64, usize)> {
        let from_small = self.small.length * SMALL_SHARE > self.len();
        let first = if from_small { QueueKind::Small } else { QueueKind::Main };
        // Main once more: all that may go may have moved there from the small queue.
        [first, QueueKind::Main, QueueKind::Small, QueueKind::Main]
            .into_iter()
            .find_map(|home| self.next_of(home, &mut may_go))
    }

    fn next_of(
        &mut self,
        home: QueueKind,
        may_go: &mut impl FnMut(u64) -> bool,
    ) -> Option<(u64, usize)> {
        let mut candidate = self.queue(home).oldest;
        // Each turn takes a use away or passes by, so that there is an end.
        let mut turns = self.queue(home).length * (usize::from(USES_MAX) + 1);
        while let (Some(place), true) = (candidate, turns > 0) {
            turns -= 1;
            candidate = self.places[place].newer;
            let ReplacementEntry { key, uses, .. } = self.places[place];
            if !may_go(key) {
                continue;
            }
            if uses == 0 {
                return Some((key, place));
            }
            self.unlink(place);
            self.places[place].uses = if home == QueueKind::Small { 0 } else { uses - 1 };
            self.link(place, QueueKind::Main);
            candidate = candidate.or(self.queue(home).oldest);
        }
        None
    }

    /// All keys, those that go first in front.
    pub fn keys(&self) -> impl Iterator<Item = u64> + '_ {
        let walk = |queue: &ReplacementQueue| {
            std::iter::successors(queue.oldest, |&at| self.places[at].newer)
        };
        walk(&self.small).chain(walk(&self.main)).map(|place| self.places[place].key)
    }

    fn queue(&mut self, home: QueueKind) -> &mut ReplacementQueue {
        if home == QueueKind::Small { &mut self.small } else { &mut self.main }
    }

    fn link(&mut self, place: usize, home: QueueKind) {
        let queue = self.queue(home);
        let before = queue.newest.replace(place);
        queue.length += 1;
        if before.is_none() {
            queue.oldest = Some(place);
        }
        if let Some(before) = before {
            self.places[before].newer = Some(place);
        }
        let ReplacementEntry { queue, older, newer, .. } = &mut self.places[place];
        (*queue, *older, *newer) = (home, before, None);
    }

    fn unlink(&mut self, place: usize) {
        let ReplacementEntry { queue: home, older, newer, .. } = self.places[place];
        match older {
            Some(older) => self.places[older].newer = newer,
            None => self.queue(home).oldest = newer,
        }
        match newer {
            Some(newer) => self.places[newer].older = older,
            None => self.queue(home).newest = older,
        }
        self.queue(home).length -= 1;
        self.places[place].queue = QueueKind::Nowhere;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use runtime::seed::with_seed;

    use super::*;

    #[test]
    fn every_entry_is_in_one_queue_and_the_one_that_goes_may_go() {
        with_seed(|rng| {
            let (mut order, mut places) = (Replacement::default(), BTreeMap::new());
            for _ in 0..5_000 {
                let key = rng.below(24);
                match (rng.below(4), places.get(&key).copied()) {
                    (0, Some(place)) => {
                        order.remove(place);
                        places.remove(&key);
                    }
                    (1, _) => {
                        let held = rng.below(24);
                        let next = order.next(|key| key != held);
                        let others = places.keys().any(|&key| key != held);
                        assert_eq!(next.is_some(), others, "an entry that may go is found");
                        if let Some((key, place)) = next {
                            assert_ne!(key, held);
                            assert_eq!(places.remove(&key), Some(place));
                            order.evict(place);
                        }
                    }
                    (2, Some(place)) => order.postpone(place),
                    (_, Some(place)) => order.hit(place),
                    (_, None) => {
                        places.insert(key, order.insert(key));
                    }
                }
                let mut keys: Vec<u64> = order.keys().collect();
                keys.sort_unstable();
                assert!(keys.iter().eq(places.keys()), "{keys:?} {places:?}");
                assert_eq!(order.len(), places.len());
                assert!(order.gone.len() <= order.gone_order.len());
                assert!(order.gone_order.len() <= 26, "what is gone is forgotten in the end");
            }
        });
    }

    #[test]
    fn a_scan_leaves_what_is_used_again_in_place() {
        let (mut order, mut places) = (Replacement::default(), BTreeMap::new());
        let mut hits = 0;
        for step in 0..4_000 {
            // Every second use is of one of fifty, the others are of entries that are used once.
            let key = if step % 2 == 0 { step / 2 % 50 } else { 1_000_000 + step };
            if let Some(&place) = places.get(&key) {
                order.hit(place);
                hits += 1;
                continue;
            }
            if places.len() == 60 {
                let (gone, place) = order.next(|_| true).expect("all may go");
                order.evict(place);
                places.remove(&gone);
            }
            places.insert(key, order.insert(key));
        }
        assert!(hits > 1_700, "{hits} hits of 2000; the least recently used order has none");
    }
}
