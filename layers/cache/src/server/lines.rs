//! The lines of one node: look-up, order of use, room.

use std::ops::Range;

use bytes::Bytes;
use runtime::buffer::Pool;

use crate::line::Line;
use crate::lru::Lru;

/// The lines of one node. The only way to change a line is through here, so that the count of
/// dirty lines is always right.
#[derive(Debug)]
pub(super) struct Lines {
    by_stripe: Lru<Line>,
    stripe_size: usize,
    count_max: usize,
    dirty_count: usize,
}

/// What a read found.
#[derive(Debug)]
pub(super) enum Found {
    /// Everything, and nothing contradicts the checksums.
    Whole(Bytes),
    /// This block, counted within the stripe, had the wrong checksum and was dropped.
    Damaged(u32),
    /// Some bytes are not here.
    Missing,
}

/// The line that goes next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Victim {
    /// May be dropped at once.
    Clean(u64),
    /// Must be written back first.
    Dirty(u64),
}

impl Lines {
    /// No lines; at most `count_max` of `stripe_size` bytes.
    pub(super) fn new(stripe_size: usize, count_max: usize) -> Self {
        Self { by_stripe: Lru::default(), stripe_size, count_max, dirty_count: 0 }
    }

    /// How many lines there are.
    pub(super) fn count(&self) -> usize {
        self.by_stripe.len()
    }

    /// How many of them are dirty.
    pub(super) fn dirty_count(&self) -> usize {
        self.dirty_count
    }

    /// How many lines there may be.
    pub(super) fn count_max(&self) -> usize {
        self.count_max
    }

    /// The line of `stripe`, to look at.
    pub(super) fn get(&self, stripe: u64) -> Option<&Line> {
        self.by_stripe.get(stripe)
    }

    /// The dirty lines' stripes, least recently used first.
    pub(super) fn dirty(&self) -> impl Iterator<Item = (u64, &Line)> {
        self.by_stripe.iter().filter(|(_, line)| line.is_dirty())
    }

    /// The stripes of which the disk has bytes that it may lose.
    pub(super) fn given(&self) -> impl Iterator<Item = u64> {
        self.by_stripe.iter().filter(|(_, line)| line.is_given()).map(|(stripe, _)| stripe)
    }

    /// Reads from the line of `stripe`, if it has all of `range`.
    pub(super) fn read(&mut self, stripe: u64, range: &Range<u32>, expect: &[u32]) -> Found {
        let Some(line) = self.by_stripe.touch(stripe).filter(|line| line.has(range)) else {
            return Found::Missing;
        };
        match line.check(range.start, expect) {
            Some(block) => Found::Damaged(block),
            None => Found::Whole(line.slice(range)),
        }
    }

    /// Makes the line of `stripe` the most recently used one, a new one if there is none; false if
    /// the budget or the pool has no room for it.
    pub(super) fn ensure(&mut self, stripe: u64, pool: &Pool) -> bool {
        if self.by_stripe.touch(stripe).is_some() {
            return true;
        }
        if self.by_stripe.len() >= self.count_max {
            return false;
        }
        let buffer = pool.take(self.stripe_size);
        buffer.map(|buffer| self.by_stripe.insert(stripe, Line::new(buffer))).is_some()
    }

    /// Changes the line of `stripe`; `None` if there is none. A line about which nothing is known
    /// any more is dropped. The order of use stays.
    pub(super) fn change<R>(
        &mut self,
        stripe: u64,
        change: impl FnOnce(&mut Line) -> R,
    ) -> Option<R> {
        let line = self.by_stripe.get_mut(stripe)?;
        let was_dirty = line.is_dirty();
        let result = change(line);
        let (is_dirty, is_useless) = (line.is_dirty(), line.is_useless());
        self.dirty_count = self.dirty_count + usize::from(is_dirty) - usize::from(was_dirty);
        if is_useless {
            self.by_stripe.remove(stripe);
        }
        Some(result)
    }

    /// The line to drop next: the least recently used clean one, else the least recently used
    /// dirty one; `None` if all are in use.
    pub(super) fn victim(&self) -> Option<Victim> {
        let mut free = self.by_stripe.iter().filter(|(_, line)| !line.is_pinned()).peekable();
        let oldest = free.peek().map(|&(stripe, _)| stripe)?;
        let clean = free.find(|(_, line)| !line.is_dirty());
        Some(clean.map_or(Victim::Dirty(oldest), |(stripe, _)| Victim::Clean(stripe)))
    }

    /// Drops a line that [`victim`](Self::victim) called clean; true if the disk was given bytes
    /// of it.
    pub(super) fn evict(&mut self, stripe: u64) -> bool {
        let line = self.by_stripe.remove(stripe);
        assert!(line.as_ref().is_some_and(|line| !line.is_dirty()), "only clean lines are dropped");
        line.is_some_and(|line| line.is_given())
    }

    /// Lets a line be the last victim: it could not be written back now.
    pub(super) fn postpone(&mut self, stripe: u64) {
        self.by_stripe.touch(stripe);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SIZE: usize = 4096;

    fn lines(count: u64, pool: &Pool) -> Lines {
        let mut lines = Lines::new(SIZE, 3);
        assert!((0..count).all(|stripe| lines.ensure(stripe, pool)));
        lines
    }

    fn write(lines: &mut Lines, stripe: u64) {
        let written = lines.change(stripe, |line| line.write_zeros(0..1, Duration::ZERO));
        written.unwrap().unwrap();
    }

    #[test]
    fn a_clean_line_goes_before_an_older_dirty_one_and_a_pinned_one_never() {
        let pool = Pool::new(1 << 20);
        let mut lines = lines(3, &pool);
        assert!(!lines.ensure(3, &pool), "the budget is full");
        write(&mut lines, 0);
        lines.change(1, Line::pin);
        assert_eq!(lines.victim(), Some(Victim::Clean(2)));
        lines.change(2, Line::pin);
        assert_eq!(lines.victim(), Some(Victim::Dirty(0)));
        lines.change(0, Line::pin);
        assert_eq!(lines.victim(), None);
    }

    #[test]
    fn the_dirty_are_counted_and_useless_lines_vanish() {
        let pool = Pool::new(2 * SIZE);
        let mut lines = lines(2, &pool);
        assert!(!lines.ensure(2, &pool), "the pool is empty");
        write(&mut lines, 0);
        write(&mut lines, 0);
        write(&mut lines, 1);
        assert_eq!(lines.dirty_count(), 2);
        assert_eq!(lines.dirty().map(|(stripe, _)| stripe).collect::<Vec<_>>(), [0, 1]);
        lines.change(0, |line| line.forget(&(0..4096)));
        assert_eq!((lines.dirty_count(), lines.count()), (1, 1));
        assert_eq!(pool.used_bytes(), SIZE);
    }
}
