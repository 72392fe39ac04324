//! How fast new lines may become dirty once many are: by and by as slowly as the disks take them, so that a
//! burst larger than the cache is slowed down smoothly and does not meet a wall.
//!
//! A clock runs ahead of the real one by what each admitted line costs: nothing as long as dirty lines are
//! within their share, half way from there to the budget as much time as the disks take for a line of this
//! node, below that hardly anything and above it four times as much at last, by the square of the way. So the number
//! of dirty lines settles half way, and a burst that is over by then has lost little. To rewrite a dirty line costs
//! nothing.

use std::cell::Cell;
use std::time::Duration;

/// Of so many lines in the budget one may become dirty for nothing (ADR 52 has what other shares cost).
const FREE_OF: usize = 2;

/// A budget of fewer lines has no pace: each line is so much of it that the wall is met within a pause.
const PACED_FROM: usize = 32;

/// A request waits no longer than this for its turn.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// Shorter pauses are saved up: a timer takes as long.
const PAUSE_MIN: Duration = Duration::from_millis(1);

/// Of so many parts of what is known of the disks one is forgotten with each new observation.
const MEMORY: u32 = 4;

/// The pace of one node.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Lines written back of late, in thousandths, and how long the disks took for them: many that go together
    /// take hardly longer than one.
    late: Cell<(u64, Duration)>,
    /// When the next line may become dirty, at the pace of the disks.
    next: Cell<Duration>,
}

impl Pace {
    /// Notes that the disks took so many lines in so long.
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

    /// How long one more line waits before it becomes dirty, when `dirty` are of a budget of `most`.
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

    fn paced(micros: u64) -> Pace {
        let pace = Pace::default();
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
        let pace = Pace::default();
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
