//! How fast new lines may become dirty once many are: by and by as slowly as the disks take them, so that a
//! burst larger than the cache is slowed down smoothly and does not meet a wall.
//!
//! A clock runs ahead of the real one by what each admitted line costs: nothing as long as dirty lines are
//! within their share, half way from there to the budget as much time as the disks take for a line of this
//! node, and above that more. So the number of dirty lines settles half way. To rewrite a dirty line costs
//! nothing.

use std::cell::Cell;
use std::time::Duration;

/// Of so many lines in the budget the last may become dirty at the pace of the disks only: a burst as
/// large as the cache is hardly slowed down, and the wall is far enough for all who come at once.
const LINES_PER_PACED_LINE: usize = 8;

/// A request waits no longer than this for its turn.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// Shorter pauses are saved up: a timer takes as long.
const PAUSE_MIN: Duration = Duration::from_millis(1);

/// Of so many parts of what is known of the disks a new observation is one.
const MEMORY: u32 = 4;

/// The pace of one node.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// What the disks took for each of the lines written back of late.
    per_line: Cell<Duration>,
    /// When the next line may become dirty, at the pace of the disks.
    next: Cell<Duration>,
}

impl Pace {
    /// Notes that the disks took so many lines in so long.
    pub(super) fn note(&self, lines: usize, took: Duration) {
        let lines = u32::try_from(lines).unwrap_or(u32::MAX).max(1);
        let known = self.per_line.get() * (MEMORY - 1) / MEMORY;
        self.per_line.set(known + took / lines / MEMORY);
    }

    /// Dirty lines, of a budget of `most`, that cost their writers nothing.
    pub(super) fn share(most: usize) -> usize {
        most - most / LINES_PER_PACED_LINE
    }

    /// How long one more line waits before it becomes dirty, when `dirty` are of a budget of `most`.
    pub(super) fn pause(&self, now: Duration, dirty: usize, most: usize) -> Duration {
        let share = Self::share(most);
        if dirty <= share || most <= share {
            return Duration::ZERO;
        }
        let (above, room) = ((dirty - share) as u32, (most - share) as u32);
        let step = self.per_line.get() * 2 * above / room;
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
            now += pace.pause(now, 75, 80);
            lines += 1;
        }
        assert!((495..=515).contains(&lines), "{lines} lines in a second of 500");
    }

    #[test]
    fn within_their_share_lines_cost_nothing_and_the_longest_pause_is_bounded() {
        let pace = paced(1_000_000);
        assert_eq!(pace.pause(Duration::ZERO, 70, 80), Duration::ZERO);
        for _ in 0..10 {
            assert_eq!(pace.pause(Duration::ZERO, 80, 80), PAUSE_MAX);
        }
        assert_eq!(pace.pause(Duration::from_secs(1), 4, 4), Duration::ZERO);
    }
}
