//! The lines of one node: look-up, order of use, room.

use std::collections::BTreeSet;
use std::ops::Range;

use blockio::BLOCK_SIZE;
use blockio::checksum::unit_bytes;
use bytes::Bytes;
use runtime::Table;
use runtime::buffer::Pool;

use crate::line::Line;
use crate::protocol::Extent;
use crate::replacement::Replacement;

/// The lines of one node. The only way to change a line is through here, so that the count of
/// dirty lines is always right.
#[derive(Debug)]
pub(super) struct Lines {
    /// Look-ups only.
    by_stripe: Table<u64, LineEntry>,
    order: Replacement,
    stripe_size: u32,
    count_max: usize,
    dirty_count: usize,
}

#[derive(Debug)]
struct LineEntry {
    line: Line,
    /// In the order of replacement.
    place: usize,
}

/// What a read found.
#[derive(Debug)]
pub(super) enum LineLookup<T> {
    /// Everything, and nothing contradicts the checksums.
    Whole(T),
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
    pub(super) fn new(stripe_size: u32, count_max: usize) -> Self {
        let (by_stripe, order) = (Table::default(), Replacement::default());
        Self { by_stripe, order, stripe_size, count_max, dirty_count: 0 }
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
        self.by_stripe.get(&stripe).map(|entry| &entry.line)
    }

    /// See [`Line::is_fragmented`].
    pub(super) fn is_fragmented(&self, stripe: u64) -> bool {
        self.get(stripe).is_some_and(Line::is_fragmented)
    }

    /// The lines in the order in which they would go.
    fn iter(&self) -> impl Iterator<Item = (u64, &Line)> {
        self.order.keys().filter_map(|stripe| Some((stripe, self.get(stripe)?)))
    }

    /// The dirty lines' stripes, in the order in which they would go.
    pub(super) fn dirty(&self) -> impl Iterator<Item = (u64, &Line)> {
        self.iter().filter(|(_, line)| line.is_dirty())
    }

    /// The stripes of which the disk has bytes that it may lose.
    pub(super) fn given(&self) -> impl Iterator<Item = u64> {
        self.iter().filter(|(_, line)| line.is_given()).map(|(stripe, _)| stripe)
    }

    fn touch(&mut self, stripe: u64) -> Option<&mut Line> {
        let entry = self.by_stripe.get_mut(&stripe)?;
        self.order.hit(entry.place);
        Some(&mut entry.line)
    }

    fn remove(&mut self, stripe: u64) -> Option<LineEntry> {
        let entry = self.by_stripe.remove(&stripe)?;
        self.order.remove(entry.place);
        Some(entry)
    }

    /// Reads from the line of `stripe`, if it has all of `range`, which consists of as many logical
    /// blocks as `expect` has checksums.
    pub(super) fn read(
        &mut self,
        stripe: u64,
        range: &Range<u32>,
        expect: &[u32],
    ) -> LineLookup<Bytes> {
        let Some(line) = self.touch(stripe).filter(|line| line.has(range)) else {
            return LineLookup::Missing;
        };
        let unit = unit_bytes(range, expect.len()).unwrap_or(BLOCK_SIZE);
        match line.check(range.start, expect, unit as u32) {
            Some(block) => LineLookup::Damaged(block),
            None => LineLookup::Whole(line.slice(range)),
        }
    }

    /// Reads `extents` from the line of `stripe`, if it has all of their logical blocks, of `unit`
    /// bytes, which are `ranges`.
    pub(super) fn read_list(
        &mut self,
        stripe: u64,
        (extents, ranges): (&[Extent], &[Range<u32>]),
        (mut expect, unit): (&[u32], u32),
        pool: &Pool,
    ) -> LineLookup<Vec<Bytes>> {
        let has_all = |line: &&mut Line| ranges.iter().all(|range| line.has(range));
        let Some(line) = self.touch(stripe).filter(has_all) else { return LineLookup::Missing };
        for range in ranges {
            let (these, rest) = expect.split_at((range.len() / unit as usize).min(expect.len()));
            expect = rest;
            if let Some(block) = line.check(range.start, these, unit) {
                return LineLookup::Damaged(block);
            }
        }
        LineLookup::Whole(line.gather(extents, pool))
    }

    /// Notes a use of the line of `stripe`, a new one if there is none; false if the budget has no
    /// room for it.
    pub(super) fn ensure(&mut self, stripe: u64) -> bool {
        if self.touch(stripe).is_some() {
            return true;
        }
        if self.by_stripe.len() >= self.count_max {
            return false;
        }
        let entry =
            LineEntry { line: Line::new(self.stripe_size), place: self.order.insert(stripe) };
        self.by_stripe.insert(stripe, entry);
        true
    }

    /// Changes the line of `stripe`; `None` if there is none. A line about which nothing is known
    /// any more is dropped. The order of use stays.
    pub(super) fn change<R>(
        &mut self,
        stripe: u64,
        change: impl FnOnce(&mut Line) -> R,
    ) -> Option<R> {
        let line = &mut self.by_stripe.get_mut(&stripe)?.line;
        let was_dirty = line.is_dirty();
        let result = change(line);
        let (is_dirty, is_useless) = (line.is_dirty(), line.is_useless());
        self.dirty_count = self.dirty_count + usize::from(is_dirty) - usize::from(was_dirty);
        if is_useless {
            self.remove(stripe);
        }
        Some(result)
    }

    /// If the line of `stripe` is dirty as a whole, for the first time since it was synced: its
    /// [state](Line::whole_state).
    pub(super) fn note_whole(&mut self, stripe: u64) -> Option<u64> {
        let line = &mut self.by_stripe.get_mut(&stripe)?.line;
        if line.was_whole {
            return None;
        }
        let state = line.whole_state()?;
        line.was_whole = true;
        Some(state)
    }

    /// These stripes were synced. Blocks that a record names are not rewritten
    /// (ADR 5), so the next writes there belong to another file.
    pub(super) fn note_synced(&mut self, stripes: &BTreeSet<u64>) {
        for stripe in stripes {
            if let Some(entry) = self.by_stripe.get_mut(stripe) {
                entry.line.was_whole = false;
            }
        }
    }

    /// The line to drop next: the first in turn that is clean, else the first that is dirty; `None`
    /// if all are in use.
    pub(super) fn victim(&mut self) -> Option<Victim> {
        let Self { by_stripe, order, .. } = self;
        let is_free = |stripe: u64, dirty: bool| {
            let line = by_stripe.get(&stripe).map(|entry| &entry.line);
            line.is_some_and(|line| !line.is_pinned() && line.is_dirty() == dirty)
        };
        if let Some((stripe, _)) = order.next(|stripe| is_free(stripe, false)) {
            return Some(Victim::Clean(stripe));
        }
        order.next(|stripe| is_free(stripe, true)).map(|(stripe, _)| Victim::Dirty(stripe))
    }

    /// Drops a line that [`victim`](Self::victim) called clean; true if the disk was given bytes
    /// of it.
    pub(super) fn evict(&mut self, stripe: u64) -> bool {
        let Some(LineEntry { line, place }) = self.by_stripe.remove(&stripe) else { return false };
        assert!(!line.is_dirty(), "only clean lines are dropped");
        self.order.evict(place);
        line.is_given()
    }

    /// Lets a line be the last victim: it could not be written back now.
    pub(super) fn postpone(&mut self, stripe: u64) {
        if let Some(entry) = self.by_stripe.get(&stripe) {
            self.order.postpone(entry.place);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SIZE: u32 = 4096;

    fn lines(count: u64) -> Lines {
        let mut lines = Lines::new(SIZE, 3);
        assert!((0..count).all(|stripe| lines.ensure(stripe)));
        lines
    }

    fn write(lines: &mut Lines, stripe: u64, pool: &Pool) {
        let written = lines.change(stripe, |line| line.write_zeros(0..1, pool, Duration::ZERO));
        written.unwrap().unwrap();
    }

    #[test]
    fn a_clean_line_goes_before_an_older_dirty_one_and_a_pinned_one_never() {
        let pool = Pool::new(1 << 20);
        let mut lines = lines(3);
        assert!(!lines.ensure(3), "the budget is full");
        write(&mut lines, 0, &pool);
        lines.change(1, Line::pin);
        assert_eq!(lines.victim(), Some(Victim::Clean(2)));
        lines.change(2, Line::pin);
        assert_eq!(lines.victim(), Some(Victim::Dirty(0)));
        lines.change(0, Line::pin);
        assert_eq!(lines.victim(), None);
    }

    #[test]
    fn the_dirty_are_counted_and_useless_lines_vanish() {
        let pool = Pool::new(2 * SIZE as usize);
        let mut lines = lines(2);
        write(&mut lines, 0, &pool);
        write(&mut lines, 0, &pool);
        write(&mut lines, 1, &pool);
        assert_eq!(lines.dirty_count(), 2);
        assert_eq!(lines.dirty().map(|(stripe, _)| stripe).collect::<Vec<_>>(), [0, 1]);
        lines.change(0, |line| line.forget(&(0..4096)));
        assert_eq!((lines.dirty_count(), lines.count()), (1, 1));
        assert_eq!(pool.used_bytes(), SIZE as usize);
    }
}
