//! The write throttle: the more lines are dirty, the slower new ones may become so, down to the
//! rate of the disks, so that a burst larger than the cache slows down smoothly.
//!
//! A virtual clock advances by the cost of each admitted line. The cost is zero while at most one
//! line in [`FREE_OF`] is dirty. From there to the full budget it grows with the square of the
//! distance, to four times what the disks of this node take for a line: half way it is what they
//! take. So the number of dirty lines settles half way, and a burst that ends before loses little
//! time. Rewriting a dirty line is free.

use std::cell::Cell;
use std::time::Duration;

/// One line in this many of the budget may become dirty without a pause.
const FREE_OF: usize = 2;

/// A smaller budget is not throttled: it would fill up within one pause.
const PACED_FROM: usize = 32;

/// A request waits no longer than this for its turn.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// Shorter pauses are saved up: a timer takes as long.
const PAUSE_MIN: Duration = Duration::from_millis(1);

/// Weight of the past: each new observation replaces one part in this many of the average.
const MEMORY: u32 = 4;

/// The write throttle of one node.
#[derive(Debug, Default)]
pub(super) struct WriteThrottle {
    /// Recently written lines, in thousandths, and how long the disks took for them: many together
    /// take hardly longer than one.
    late: Cell<(u64, Duration)>,
    /// When the next line may become dirty.
    next: Cell<Duration>,
}

impl WriteThrottle {
    /// Notes that the disks took `took` for `lines` lines.
    pub(super) fn note(&self, lines: usize, took: Duration) {
        let (known, known_took) = self.late.get();
        let known = known - known / u64::from(MEMORY);
        let known_took = known_took * (MEMORY - 1) / MEMORY;
        self.late.set((known + 1000 * lines as u64, known_took + took));
    }

    /// What the disks take for one line.
    fn per_line(&self) -> Duration {
        let (thousandths, took) = self.late.get();
        Duration::from_nanos((took.as_nanos() as u64).saturating_mul(1000) / thousandths.max(1))
    }

    /// Dirty lines, of a budget of `most`, that cost their writers nothing.
    pub(super) fn share(most: usize) -> usize {
        if most < PACED_FROM { most } else { most / FREE_OF }
    }

    /// How long one more line waits before it becomes dirty, when `dirty` are of a budget of
    /// `most`.
    pub(super) fn pause(&self, now: Duration, dirty: usize, most: usize) -> Duration {
        let share = Self::share(most);
        if dirty <= share || most <= share {
            return Duration::ZERO;
        }
        let (above, room) = ((dirty - share) as u32, (most - share) as u32);
        let step = self.per_line() * 4 * above / room * above / room;
        let next = self.next.get().max(now) + step.min(PAUSE_MAX);
        let next = next.min(now + PAUSE_MAX);
        self.next.set(next);
        let pause = next.saturating_sub(now);
        if pause < PAUSE_MIN { Duration::ZERO } else { pause }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paced(micros: u64) -> WriteThrottle {
        let pace = WriteThrottle::default();
        (0..100).for_each(|_| pace.note(10, Duration::from_micros(10 * micros)));
        pace
    }

    #[test]
    fn half_way_to_the_budget_lines_come_as_fast_as_they_go() {
        let pace = paced(2000);
        let (mut now, mut lines) = (Duration::ZERO, 0);
        while now < Duration::from_secs(1) {
            now += pace.pause(now, 60, 80);
            lines += 1;
        }
        assert!((495..=515).contains(&lines), "{lines} lines in a second of 500");
    }

    #[test]
    fn a_line_that_went_alone_counts_as_one() {
        let pace = WriteThrottle::default();
        pace.note(1, Duration::from_millis(20));
        pace.note(39, Duration::from_millis(25));
        let micros = pace.per_line().as_micros();
        assert!((900..1100).contains(&micros), "{micros} us for each of 40");
    }

    #[test]
    fn within_their_share_lines_cost_nothing_and_the_longest_pause_is_bounded() {
        let pace = paced(1_000_000);
        assert_eq!(pace.pause(Duration::ZERO, 40, 80), Duration::ZERO);
        for _ in 0..10 {
            assert_eq!(pace.pause(Duration::ZERO, 80, 80), PAUSE_MAX);
        }
        assert_eq!(pace.pause(Duration::from_secs(1), 4, 4), Duration::ZERO);
    }
}
