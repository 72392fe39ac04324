//! A calendar of whole cycles: one bucket per cycle of the near future, a heap for what lies
//! beyond.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Cycles of the near future; a power of two.
const SPAN: u64 = 1024;
const WORDS: usize = (SPAN / 64) as usize;

/// Entries by cycle. Within a cycle they come in the order of their value, whatever the order in
/// which they were noted: that is what makes runs equal.
#[derive(Debug)]
pub(super) struct Calendar {
    buckets: Vec<Vec<u64>>,
    /// One bit per bucket: it has entries.
    occupied: [u64; WORDS],
    /// The first cycle that is not over.
    now: u64,
    far: BinaryHeap<Reverse<(u64, u64)>>,
}

impl Calendar {
    pub(super) fn new() -> Self {
        Self {
            buckets: vec![Vec::new(); SPAN as usize],
            occupied: [0; WORDS],
            now: 0,
            far: BinaryHeap::new(),
        }
    }

    /// The first cycle that is not over.
    pub(super) fn now(&self) -> u64 {
        self.now
    }

    /// Notes an entry for a cycle that is not over.
    pub(super) fn push(&mut self, cycle: u64, entry: u64) {
        debug_assert!(cycle >= self.now, "cycle {cycle} is over: it is {}", self.now);
        if cycle - self.now < SPAN {
            let bucket = (cycle % SPAN) as usize;
            self.occupied[bucket / 64] |= 1 << (bucket % 64);
            self.buckets[bucket].push(entry);
        } else {
            self.far.push(Reverse((cycle, entry)));
        }
    }

    /// The next cycle with entries.
    pub(super) fn next(&self) -> Option<u64> {
        let start = (self.now % SPAN) as usize;
        let (word, bit) = (start / 64, start % 64);
        let first = self.occupied[word] & (!0 << bit);
        if first != 0 {
            return Some(self.now + u64::from(first.trailing_zeros()) - bit as u64);
        }
        for step in 1..=WORDS {
            let at = self.occupied[(word + step) % WORDS];
            // Round the whole calendar: what is left of the first word lies before `start`.
            let at = if step == WORDS { at & !(!0 << bit) } else { at };
            if at != 0 {
                let ahead = step * 64 + at.trailing_zeros() as usize - bit;
                return Some(self.now + ahead as u64);
            }
        }
        self.far.peek().map(|Reverse((cycle, _))| *cycle)
    }

    /// Ends all cycles up to `cycle`, which is the next one or lies before it, and gives what was
    /// noted for it, in order.
    pub(super) fn take(&mut self, cycle: u64, out: &mut Vec<u64>) {
        out.clear();
        let bucket = (cycle % SPAN) as usize;
        if cycle - self.now < SPAN {
            std::mem::swap(out, &mut self.buckets[bucket]);
            self.occupied[bucket / 64] &= !(1 << (bucket % 64));
        }
        self.now = cycle + 1;
        while let Some(&Reverse((due, entry))) = self.far.peek() {
            if due >= self.now + SPAN {
                break;
            }
            self.far.pop();
            if due == cycle {
                out.push(entry);
            } else {
                self.push(due, entry);
            }
        }
        out.sort_unstable();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::seed::with_seed;
    use std::collections::BTreeSet;

    #[test]
    fn a_calendar_gives_what_a_sorted_set_gives() {
        with_seed(|rng| {
            let mut calendar = Calendar::new();
            let mut model = BTreeSet::new();
            let mut due = Vec::new();
            let mut number = 0;
            for _ in 0..20_000 {
                if rng.chance(1, 2) {
                    let span = [3, 70, 1024, 1025, 5_000][rng.index(5)];
                    let cycle = calendar.now() + rng.below(span);
                    number += 1;
                    let entry = rng.below(1 << 20) << 32 | number;
                    calendar.push(cycle, entry);
                    model.insert((cycle, entry));
                    continue;
                }
                let next = model.first().map(|first| first.0);
                assert_eq!(calendar.next(), next);
                let Some(next) = next else { continue };
                // Now and then only up to a cycle before it.
                let idle = calendar.now() + rng.below(next - calendar.now() + 1);
                let cycle = if rng.chance(1, 4) { idle } else { next };
                calendar.take(cycle, &mut due);
                let expected: Vec<u64> = model
                    .iter()
                    .take_while(|entry| entry.0 <= cycle)
                    .map(|entry| entry.1)
                    .collect();
                assert_eq!(due, expected);
                model.retain(|entry| entry.0 > cycle);
            }
        });
    }
}
