//! Which changes of a file are there: their numbers, over losses and lives of a node (ADR 73).

/// The numbers of changes of content begin at the epoch times two to this (as in ADR 57).
pub const EPOCH_SHIFT: u32 = 40;

runtime::record! {
    /// Changes of a file that were answered and lost: those with numbers between `after` and
    /// `before`. What of them came again since has a later number.
    #[derive(Copy)]
    pub struct SequenceGap {
        /// Up to this one all are there.
        after: u64,
        /// From this one on, too.
        before: u64,
        /// The highest order of a change since: the number under which it was answered first.
        top_order: u64,
    }
}

runtime::record! {
    /// Which changes of a file's content are there, by their numbers (ADR 73).
    #[derive(Default)]
    pub struct CommitMark {
        /// Those up to this number; 0 if none was numbered.
        sequence: u64,
        /// But not these, in ascending order; of [`GAPS_MAX`] gaps and more the last ones.
        missing: Vec<SequenceGap>,
    }
}

/// Gaps that one record names, at most. Of numbers before that many nothing is known.
pub const GAPS_MAX: usize = 4;

impl CommitMark {
    /// Is the change with this number there? `None` if that is not known.
    pub fn covers(&self, sequence: u64) -> Option<bool> {
        if sequence > self.sequence {
            return Some(false);
        }
        for gap in self.missing.iter().rev() {
            if sequence >= gap.before {
                return Some(true);
            }
            if sequence > gap.after {
                return Some(false);
            }
        }
        if self.missing.len() >= GAPS_MAX {
            // There may have been others before.
            return None;
        }
        // Of earlier lives of the node all is lost.
        Some(self.is_of_first_life(sequence))
    }

    /// The highest order of a change that is there and was made after the one with this number,
    /// which is lost. `u64::MAX` if that is not known.
    pub fn top_order_after(&self, sequence: u64) -> u64 {
        if sequence > self.sequence {
            return 0;
        }
        let since = self.missing.partition_point(|gap| gap.before <= sequence);
        match self.missing.get(since) {
            Some(gap) if sequence > gap.after => {
                self.missing[since..].iter().map(|gap| gap.top_order).max().unwrap_or(u64::MAX)
            }
            _ => u64::MAX,
        }
    }

    /// That after a change with a higher number, which was answered first under `order`. In this
    /// life of the node `begin` was the first number.
    #[must_use]
    pub fn next(&self, sequence: u64, order: u64, begin: u64) -> Self {
        let mut next = Self { sequence, missing: self.missing.clone() };
        if self.sequence < begin && (self.sequence > 0 || order < begin) {
            next.push_gap(SequenceGap { after: self.sequence, before: begin, top_order: order });
        } else if let Some(last) = next.missing.last_mut() {
            last.top_order = last.top_order.max(order);
        }
        next
    }

    /// That of a file which is as this mark has it again, after the changes up to `lost`.
    #[must_use]
    pub fn after_loss(&self, lost: u64) -> Self {
        let mut mark = Self { sequence: lost, missing: self.missing.clone() };
        mark.push_gap(SequenceGap { after: self.sequence, before: lost + 1, top_order: 0 });
        mark
    }

    /// The changes of both are there, which were made side by side in one life of the node.
    pub fn join(&mut self, mut other: Self) {
        if other.sequence > self.sequence {
            std::mem::swap(self, &mut other);
        }
        for gap in &mut self.missing {
            let same = other.missing.iter().find(|same| same.before == gap.before);
            gap.top_order = gap.top_order.max(same.map_or(0, |same| same.top_order));
        }
    }

    fn push_gap(&mut self, gap: SequenceGap) {
        if self.missing.len() >= GAPS_MAX {
            self.missing.remove(0);
        }
        self.missing.push(gap);
    }

    /// Is it of the life of the node with the first changes that are known?
    fn is_of_first_life(&self, sequence: u64) -> bool {
        let first = self.missing.first().map_or(self.sequence, |gap| gap.after);
        sequence >> EPOCH_SHIFT == first >> EPOCH_SHIFT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(epoch: u64, count: u64) -> u64 {
        (epoch << EPOCH_SHIFT) + count
    }

    #[test]
    fn a_mark_knows_what_was_lost_and_what_came_since() {
        let begin = |epoch| number(epoch, 1);
        let new = CommitMark::default();
        assert_eq!(new.covers(number(1, 5)), Some(false));
        // An ordinary change of a new file needs no gap: of earlier lives there is nothing.
        let first = new.next(number(2, 5), number(2, 5), begin(2));
        assert_eq!(first.missing, []);
        assert_eq!(first.covers(number(2, 5)), Some(true));
        assert_eq!(first.covers(number(1, 5)), Some(false));
        assert_eq!(first.top_order_after(number(1, 5)), u64::MAX, "this is not noted");
        // A replay is noted.
        let again = new.next(number(2, 5), number(1, 7), begin(2));
        assert_eq!(again.top_order_after(number(1, 8)), number(1, 7));
        assert_eq!(again.covers(number(1, 8)), Some(false));
        // In the next life one more comes again, and a new one.
        let next = first.next(number(3, 2), number(2, 9), begin(3));
        assert_eq!(next.covers(number(2, 9)), Some(false));
        assert_eq!(next.covers(number(3, 2)), Some(true));
        assert_eq!(next.top_order_after(number(2, 8)), number(2, 9));
        let next = next.next(number(3, 3), number(3, 3), begin(3));
        assert_eq!(next.top_order_after(number(2, 8)), number(3, 3));
        assert_eq!(next.top_order_after(number(3, 3)), u64::MAX, "it is not lost");
        assert_eq!(next.top_order_after(number(3, 4)), 0, "nothing is later");
        assert_eq!(next.covers(number(2, 5)), Some(true));
    }

    #[test]
    fn a_mark_after_a_loss_lacks_what_was_lost_whatever_comes_later() {
        let committed = CommitMark { sequence: number(1, 10), missing: Vec::new() };
        let mark = committed.after_loss(number(1, 20));
        assert_eq!(mark.covers(number(1, 10)), Some(true));
        assert_eq!(mark.covers(number(1, 11)), Some(false));
        assert_eq!(mark.covers(number(1, 20)), Some(false));
        assert_eq!(mark.top_order_after(number(1, 15)), 0);
        let mark = mark.next(number(1, 21), number(1, 14), number(1, 1));
        assert_eq!(mark.covers(number(1, 21)), Some(true));
        assert_eq!(mark.covers(number(1, 20)), Some(false));
        assert_eq!(mark.top_order_after(number(1, 15)), number(1, 14));
        // Once more before a commit: it is one gap.
        let mark = committed.after_loss(number(1, 21));
        assert_eq!((mark.missing.len(), mark.covers(number(1, 21))), (1, Some(false)));
    }

    #[test]
    fn of_gaps_that_are_forgotten_nothing_is_known() {
        let mut mark = CommitMark { sequence: number(1, 10), missing: Vec::new() };
        for epoch in 2..=1 + GAPS_MAX as u64 {
            assert_eq!(mark.covers(number(1, 5)), Some(true));
            assert_eq!(mark.covers(number(0, 5)), Some(false));
            mark = mark.next(number(epoch, 10), number(epoch, 10), number(epoch, 1));
        }
        assert_eq!(mark.covers(number(1, 5)), None, "there may have been gaps before");
        mark = mark.next(number(9, 10), number(9, 10), number(9, 1));
        assert_eq!(mark.missing.len(), GAPS_MAX);
        assert_eq!(mark.covers(number(1, 5)), None);
        assert_eq!(mark.covers(number(2, 5)), None);
        assert_eq!(mark.covers(number(3, 5)), Some(true));
        assert_eq!(mark.covers(number(2, 11)), Some(false));
    }

    #[test]
    fn changes_side_by_side_are_joined_in_any_order() {
        let before = CommitMark { sequence: number(1, 10), missing: Vec::new() };
        let (begin, old) = (number(2, 1), number(1, 30));
        let one = before.next(number(2, 5), old, begin);
        let other = before.next(number(2, 6), number(1, 20), begin);
        let mut joined = one.clone();
        joined.join(other.clone());
        let mut turned = other;
        turned.join(one);
        assert_eq!(joined, turned);
        assert_eq!(joined.sequence, number(2, 6));
        assert_eq!(joined.top_order_after(number(1, 12)), old);
    }
}
