//! How fast the nodes of one process move data between disks, together.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use blockio::MovePolicy;

/// A process has other work if a node of it had a request within this time.
const BUSY_FOR: Duration = Duration::from_millis(300);
/// Bytes that may move ahead of the rate: what was not used is not saved up for longer.
const AHEAD: Duration = Duration::from_millis(50);

/// The rate at which the nodes of a process move data: while it has other work the floor of the
/// policy, else the ceiling.
#[derive(Debug, Default)]
pub struct MovePace {
    /// When it was seen last that there is other work.
    busy_at_ns: AtomicU64,
    /// When the next bytes may move.
    next_ns: AtomicU64,
}

impl MovePace {
    /// A node has had other work just `now`.
    pub(crate) fn note_work(&self, now: Duration) {
        self.busy_at_ns.store(nanoseconds(now), Relaxed);
    }

    /// How long to wait before `bytes` more may move.
    pub(crate) fn wait(&self, policy: MovePolicy, bytes: u64, now: Duration) -> Duration {
        let now = nanoseconds(now);
        let busy_at = self.busy_at_ns.load(Relaxed);
        let is_busy = busy_at > 0 && now.saturating_sub(busy_at) < nanoseconds(BUSY_FOR);
        let rate = if is_busy { policy.floor_bytes() } else { policy.ceiling_bytes() };
        if rate == u64::MAX {
            return Duration::ZERO;
        }
        let takes = (u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1))) as u64;
        let earliest = now.saturating_sub(nanoseconds(AHEAD));
        let after = |next: u64| Some(next.max(earliest).saturating_add(takes));
        let begins = self.next_ns.fetch_update(Relaxed, Relaxed, after).unwrap_or(now);
        Duration::from_nanos(begins.saturating_sub(now))
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn other_work_slows_moves_down_to_the_floor_of_the_policy() {
        let (pace, policy) = (MovePace::default(), MovePolicy::Balanced {});
        let mut now = Duration::from_secs(100);
        assert_eq!(pace.wait(policy, 1 << 40, now), Duration::ZERO, "nothing else to do");
        pace.note_work(now);
        let begin = now;
        for _ in 0..64 {
            now += pace.wait(policy, MIB, now);
            pace.note_work(now);
        }
        let took = now.saturating_sub(begin).as_secs_f64();
        assert!((1.8..2.1).contains(&took), "{took} s for 64 MiB at 32 MiB/s");
        now += BUSY_FOR;
        assert_eq!(pace.wait(policy, 1 << 40, now), Duration::ZERO, "the others have gone");
        pace.note_work(now);
        assert_eq!(pace.wait(MovePolicy::Fast {}, 1 << 40, now), Duration::ZERO);
    }
}
