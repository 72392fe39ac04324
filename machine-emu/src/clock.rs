//! What a node believes the time to be.

use std::time::Duration;

use runtime::seed::Rng;

/// The unix time at which each world begins: 2026-01-01, in days.
const WORLD_BEGINS_UNIX: Duration = Duration::from_hours(20_454 * 24);

/// Monotonic clocks begin somewhere below this, so that those of two nodes are not comparable.
const MONOTONIC_START_MAX_NS: u64 = 3_600_000_000_000;

/// Clocks are wrong by so much, at most.
const DRIFT_PPM_MAX: i32 = 500_000;

const MILLION: i128 = 1_000_000;

/// The clocks of one node.
#[derive(Debug)]
pub(crate) struct Clock {
    monotonic_start_ns: u64,
    /// The instant of the world at which the monotonic clock showed its start.
    begun_ns: u64,
    /// The monotonic clock runs so much too fast, in parts per million.
    drift_ppm: i32,
    unix_offset_ns: i64,
}

impl Clock {
    /// A clock that is right, and a monotonic one that starts anywhere.
    pub(crate) fn new(rng: &mut Rng) -> Self {
        let monotonic_start_ns = rng.below(MONOTONIC_START_MAX_NS);
        Self { monotonic_start_ns, begun_ns: 0, drift_ppm: 0, unix_offset_ns: 0 }
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
        let passed_ns = now_ns.saturating_sub(self.begun_ns);
        Duration::from_nanos(self.monotonic_start_ns + self.seen_ns(passed_ns))
    }

    /// From now on the monotonic clock, and timers with it, run so much too fast.
    pub(crate) fn drift(&mut self, ppm: i32, now_ns: u64) {
        self.monotonic_start_ns = self.monotonic(now_ns).as_nanos() as u64;
        self.begun_ns = now_ns;
        self.drift_ppm = ppm.clamp(-DRIFT_PPM_MAX, DRIFT_PPM_MAX);
    }

    /// What this clock shows for so much time of the world.
    fn seen_ns(&self, passed_ns: u64) -> u64 {
        let rate = (MILLION + i128::from(self.drift_ppm)).unsigned_abs();
        (u128::from(passed_ns) * rate / MILLION.unsigned_abs()) as u64
    }

    /// What so much time on this clock takes in the world.
    pub(crate) fn takes_ns(&self, seen_ns: u64) -> u64 {
        let rate = (MILLION + i128::from(self.drift_ppm)).unsigned_abs();
        u64::try_from(u128::from(seen_ns) * MILLION.unsigned_abs() / rate).unwrap_or(u64::MAX)
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

    #[test]
    fn a_clock_that_drifts_goes_on_from_where_it_was() {
        let mut clock = Clock::new(&mut Rng::new(1));
        let second = 1_000_000_000;
        let begin = clock.monotonic(0);
        clock.drift(20_000, second);
        assert_eq!(clock.monotonic(second), begin + Duration::from_secs(1));
        assert_eq!(clock.monotonic(2 * second), begin + Duration::from_millis(2_020));
        assert_eq!(clock.takes_ns(1_020_000_000), second);
        clock.drift(-20_000, 2 * second);
        assert_eq!(clock.monotonic(3 * second), begin + Duration::from_secs(3));
    }
}
