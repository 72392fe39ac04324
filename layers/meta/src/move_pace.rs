//! How fast the nodes of one process move data between disks, together.
//!
//! The rate follows the *load*: the share of the recent time in which some node of the process had
//! a request of the file layer to do. It is the floor of the policy divided by the load, up to the
//! ceiling of the policy: the floor while there is always such a request, and the ceiling while
//! there is none. Bytes that move are owed, and paid off at that rate; the next may move when
//! nothing is owed any more. So a change of the load counts at once, also for those who wait.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use blockio::MovePolicy;
use runtime::Context;
use runtime::sync::lock;

/// What is recent: the load forgets the past at this pace.
const RECENT: Duration = Duration::from_millis(100);
/// The load where there is always a request.
const ALL: u64 = 1_000_000_000;
/// The load where nothing is known of it yet.
const UNKNOWN: u64 = ALL / 4;
/// What a request counts that was answered from memory, at once.
const AT_ONCE: Duration = Duration::from_micros(100);
/// Who would wait for less does not: a timer takes as long.
const WAIT_MIN: Duration = Duration::from_millis(1);

/// The longest nap on the way to the time when bytes may move: load and policy may have changed.
const NAP_MAX: Duration = Duration::from_millis(50);

/// The rate at which the nodes of a process move data.
#[derive(Debug, Default)]
pub struct MovePace {
    /// Nodes that move something. Load counts only meanwhile.
    movers: AtomicU32,
    load: Mutex<Load>,
    debt: Mutex<Debt>,
}

/// How much the process has to do for others.
#[derive(Debug, Default)]
struct Load {
    /// Requests that are being answered.
    running: u32,
    /// Of the recent time, the part in which there were some, of [`ALL`].
    share: u64,
    /// Up to when that is known.
    at: Duration,
}

/// What has moved too early.
#[derive(Debug, Default)]
struct Debt {
    bytes: u64,
    /// Up to when it is paid off.
    at: Duration,
}

impl Load {
    /// Follows the time up to `now`, of which requests that were answered at once took `at_once`.
    fn follow(&mut self, now: Duration, at_once: Duration) {
        let passed = now.saturating_sub(self.at);
        self.at = self.at.max(now);
        let running = if self.running > 0 { ALL } else { 0 };
        self.approach(running, passed.saturating_sub(at_once));
        self.approach(ALL, passed.min(at_once));
    }

    fn approach(&mut self, share: u64, passed: Duration) {
        let passed = passed.min(RECENT).as_nanos();
        let step = u128::from(share.abs_diff(self.share)) * passed / RECENT.as_nanos();
        let step = u64::try_from(step).unwrap_or(ALL);
        self.share = if share > self.share { self.share + step } else { self.share - step };
    }
}

/// Bytes per second at a load.
fn rate(policy: MovePolicy, load: u64) -> u64 {
    let (floor, ceiling) = (policy.floor_bytes(), policy.ceiling_bytes());
    let rate = (u128::from(floor) * u128::from(ALL)).checked_div(u128::from(load));
    let rate = rate.and_then(|rate| u64::try_from(rate).ok()).unwrap_or(u64::MAX);
    rate.clamp(floor, ceiling)
}

impl MovePace {
    /// A node moves something as long as the value lives. The first one finds the load out.
    pub(crate) fn begin_moves(self: &Arc<Self>, now: Duration) -> Mover {
        if self.movers.fetch_add(1, Relaxed) == 0 {
            let mut load = lock(&self.load);
            (load.share, load.at) = (UNKNOWN, now);
        }
        Mover(self.clone())
    }

    /// A request begins to be answered; `None` while nothing moves.
    pub fn begin_request(self: &Arc<Self>, now: Duration) -> Option<OtherWork> {
        if self.movers.load(Relaxed) == 0 {
            return None;
        }
        let mut load = lock(&self.load);
        load.follow(now, Duration::ZERO);
        load.running += 1;
        Some(OtherWork { pace: self.clone(), ended: None })
    }

    /// A request was answered at once.
    pub fn note_answer(&self, now: Duration) {
        if self.movers.load(Relaxed) > 0 {
            let mut load = lock(&self.load);
            load.follow(now, AT_ONCE);
        }
    }

    /// Waits until `bytes` more may move, by the policy that holds then.
    pub(crate) async fn wait(
        &self,
        context: &Context,
        policy: impl Fn() -> MovePolicy,
        bytes: u64,
    ) {
        while let Err(left) = self.take(policy(), bytes, context.now()) {
            context.sleep(left.min(NAP_MAX)).await;
        }
    }

    /// Lets `bytes` more move, or tells when to ask again.
    fn take(&self, policy: MovePolicy, bytes: u64, now: Duration) -> Result<(), Duration> {
        let share = {
            let mut load = lock(&self.load);
            load.follow(now, Duration::ZERO);
            load.share
        };
        let rate = rate(policy, share);
        let mut debt = lock(&self.debt);
        let passed = now.saturating_sub(debt.at).as_nanos();
        debt.at = debt.at.max(now);
        let paid = u128::from(rate) * passed / 1_000_000_000;
        debt.bytes = debt.bytes.saturating_sub(u64::try_from(paid).unwrap_or(u64::MAX));
        let left = u128::from(debt.bytes) * 1_000_000_000 / u128::from(rate);
        let left = Duration::from_nanos(u64::try_from(left).unwrap_or(u64::MAX));
        if left >= WAIT_MIN {
            return Err(left);
        }
        debt.bytes = debt.bytes.saturating_add(bytes);
        Ok(())
    }
}

/// A node moves something.
pub(crate) struct Mover(Arc<MovePace>);

impl Drop for Mover {
    fn drop(&mut self) {
        self.0.movers.fetch_sub(1, Relaxed);
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub struct OtherWork {
    pace: Arc<MovePace>,
    ended: Option<Duration>,
}

impl OtherWork {
    /// It is answered.
    pub fn end(mut self, now: Duration) {
        self.ended = Some(now);
    }
}

impl Drop for OtherWork {
    fn drop(&mut self) {
        let mut load = lock(&self.pace.load);
        // The time is not known where the node has ended.
        if let Some(now) = self.ended {
            load.follow(now, Duration::ZERO);
        }
        load.running -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const STEP: Duration = Duration::from_millis(1);

    /// MiB per second that move while each 10 ms begin with a request of `busy_ms`.
    fn moved(policy: MovePolicy, busy_ms: u32) -> u64 {
        let (pace, mut now) = (Arc::new(MovePace::default()), Duration::from_secs(100));
        let _mover = pace.begin_moves(now);
        let mut work = None;
        let (mut moved, mut next) = (0, now);
        for step in 0..4000_u32 {
            if step % 10 == 0 && busy_ms > 0 {
                work = pace.begin_request(now);
            }
            if step % 10 == busy_ms
                && let Some(work) = work.take()
            {
                work.end(now);
            }
            while next <= now {
                match pace.take(policy, MIB / 4, now) {
                    // The first two seconds are to find out.
                    Ok(()) if step < 2000 => next += STEP / 4,
                    Ok(()) => (moved, next) = (moved + 1, next + STEP / 4),
                    Err(wait) => next = now + wait,
                }
            }
            now += STEP;
        }
        moved / 8
    }

    #[test]
    fn the_rate_goes_from_the_ceiling_to_the_floor_as_the_load_grows() {
        let gentle = MovePolicy::Gentle {};
        let rates = [0, 1, 3, 5, 9].map(|busy_ms| moved(gentle, busy_ms));
        assert!((230..=257).contains(&rates[0]), "the ceiling is 256 MiB/s: {rates:?}");
        assert!(rates.is_sorted_by(|fewer, more| fewer > more), "{rates:?}");
        assert!((7..=10).contains(&rates[4]), "the floor is 8 MiB/s: {rates:?}");
        assert!((13..=19).contains(&rates[3]), "twice the floor at half the load: {rates:?}");
        assert!((25..=37).contains(&moved(MovePolicy::Balanced {}, 9)));
        assert!(moved(MovePolicy::Balanced {}, 0) > 900, "it has no ceiling");
        assert!(moved(MovePolicy::Fast {}, 9) > 900, "it has no floor");
    }

    #[test]
    fn answers_from_memory_are_load_and_its_end_counts_for_those_who_wait() {
        let (pace, policy) = (Arc::new(MovePace::default()), MovePolicy::Balanced {});
        let mut now = Duration::from_secs(100);
        let _mover = pace.begin_moves(now);
        assert_eq!(pace.take(policy, 64 * MIB, now), Ok(()));
        for _ in 0..5000 {
            now += AT_ONCE;
            pace.note_answer(now);
        }
        let wait = pace.take(policy, MIB, now).unwrap_err();
        assert!(wait > Duration::from_millis(1300), "{wait:?} for 48 of 64 MiB");
        now += 2 * RECENT;
        assert_eq!(pace.take(policy, MIB, now), Ok(()), "there is no load any more");
    }

    #[test]
    fn a_request_of_a_node_that_ended_does_not_run_for_ever() {
        let (pace, now) = (Arc::new(MovePace::default()), Duration::from_secs(100));
        assert!(pace.begin_request(now).is_none(), "nothing moves");
        let _mover = pace.begin_moves(now);
        drop(pace.begin_request(now));
        let gentle = MovePolicy::Gentle {};
        assert_eq!(pace.take(gentle, 256 * MIB, now + RECENT), Ok(()));
        assert_eq!(pace.take(gentle, MIB, now + 11 * RECENT), Ok(()));
    }
}
