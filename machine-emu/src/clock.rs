//! What a node believes the time to be.

use std::time::Duration;

use runtime::seed::Rng;

/// The unix time at which each world begins: 2026-01-01, in days.
const WORLD_BEGINS_UNIX: Duration = Duration::from_hours(20_454 * 24);

/// Monotonic clocks begin somewhere below this, so that nobody compares those of two nodes.
const MONOTONIC_START_MAX_NS: u64 = 3_600_000_000_000;

/// The clocks of one node.
#[derive(Debug)]
pub(crate) struct Clock {
    monotonic_start_ns: u64,
    unix_offset_ns: i64,
}

impl Clock {
    /// A clock that is right, and a monotonic one that starts anywhere.
    pub(crate) fn new(rng: &mut Rng) -> Self {
        Self { monotonic_start_ns: rng.below(MONOTONIC_START_MAX_NS), unix_offset_ns: 0 }
    }

    /// The node starts again: a new monotonic clock, the same wall clock.
    pub(crate) fn restart(&mut self, rng: &mut Rng) {
        self.monotonic_start_ns = rng.below(MONOTONIC_START_MAX_NS);
    }

    /// Moves the wall clock by `by_ns`, either way.
    pub(crate) fn jump(&mut self, by_ns: i64) {
        self.unix_offset_ns = self.unix_offset_ns.saturating_add(by_ns);
    }

    /// Time since an arbitrary start.
    pub(crate) fn monotonic(&self, now_ns: u64) -> Duration {
        Duration::from_nanos(self.monotonic_start_ns + now_ns)
    }

    /// Time since 1970 as the node has it; never before 1970.
    pub(crate) fn unix(&self, now_ns: u64) -> Duration {
        let right = WORLD_BEGINS_UNIX + Duration::from_nanos(now_ns);
        let offset = Duration::from_nanos(self.unix_offset_ns.unsigned_abs());
        if self.unix_offset_ns < 0 { right.saturating_sub(offset) } else { right + offset }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wall_clock_jumps_and_the_monotonic_one_does_not() {
        let mut clock = Clock::new(&mut Rng::new(1));
        let (wall, monotonic) = (clock.unix(5), clock.monotonic(5));
        clock.jump(-7_000_000_000);
        assert_eq!(clock.unix(5) + Duration::from_secs(7), wall);
        assert_eq!(clock.monotonic(5), monotonic);
        clock.jump(i64::MIN);
        assert!(clock.unix(5) < wall);
    }
}
