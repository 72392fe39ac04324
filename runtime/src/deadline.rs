//! Until when a process may answer at all.
//!
//! A process of a cluster answers only while its lease holds for sure (ADR 37). One that stood
//! still for longer finds its memory as it was, while others have taken over and gone on: whatever
//! it answers from there may be old. No timer and no task can be trusted to stop it in time, so
//! each answer looks at the clock before it leaves (ADR 48). One that is too late waits: a lease
//! that is renewed after all makes it good, and one that is lost makes its node one that is gone.

use std::future::poll_fn;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// No end: no other process takes over.
const NEVER: u64 = u64::MAX;
/// It has come, for good.
const OVER: u64 = 0;

/// An instant that all threads of a process look at.
#[derive(Debug)]
pub(crate) struct Deadline {
    end: AtomicU64,
    /// Those who wait for a later one.
    waiting: Mutex<Vec<Waker>>,
}

impl Default for Deadline {
    fn default() -> Self {
        Self { end: AtomicU64::new(NEVER), waiting: Mutex::default() }
    }
}

impl Deadline {
    /// From now on it is `rest` after `begin`, which [`now`](Self::now) has told, unless it has
    /// [ended](Self::end). To be called by one thread.
    pub(crate) fn set(&self, begin: Duration, rest: Duration) {
        if !self.has_ended() {
            let end = u64::try_from((begin + rest).as_nanos()).unwrap_or(NEVER);
            self.end.store(end.max(OVER + 1), Relaxed);
            self.wake();
        }
    }

    /// It is over for good: a process that others have taken over from may get another lease, but
    /// what its nodes have in memory is old. The nodes that begin afterwards have another deadline.
    pub(crate) fn end(&self) {
        self.end.store(OVER, Relaxed);
        self.wake();
    }

    /// Waits while it is over and may be set anew; false once it is over for good.
    pub(crate) async fn renewed(&self) -> bool {
        poll_fn(|cx| {
            // First, so that one that comes now is not missed.
            let mut waiting = self.waiting();
            if self.has_ended() {
                return Poll::Ready(false);
            }
            if !self.is_over() {
                return Poll::Ready(true);
            }
            if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    fn wake(&self) {
        let waiting = std::mem::take(&mut *self.waiting());
        waiting.into_iter().for_each(Waker::wake);
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Waker>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Is it over for good?
    pub(crate) fn has_ended(&self) -> bool {
        self.end.load(Relaxed) == OVER
    }

    /// Is it over? A load where it never is; else a clock too, some nanoseconds.
    pub(crate) fn is_over(&self) -> bool {
        let end = self.end.load(Relaxed);
        end != NEVER && Self::now().as_nanos() >= u128::from(end)
    }

    /// The host's clock that never goes back, as of its last tick: up to 10 ms late, which the
    /// margin of a lease bears, and a fraction of the cost of the exact one.
    pub(crate) fn now() -> Duration {
        let now = clock_gettime(ClockId::MonotonicCoarse);
        Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
    }
}

/// Says whether the entries that one instance of a node has published may still be used.
#[derive(Clone, Debug)]
pub struct ValidityToken {
    is_over: Arc<AtomicBool>,
    deadline: Arc<Deadline>,
}

impl ValidityToken {
    pub(crate) fn until(deadline: Arc<Deadline>) -> Self {
        Self { is_over: Arc::default(), deadline }
    }

    /// True if an entry that was read before this call was valid (ADR 48).
    pub fn holds(&self) -> bool {
        !self.is_over.load(Acquire) && !self.deadline.is_over()
    }

    pub(crate) fn end(&self) {
        self.is_over.store(true, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_over_when_its_time_has_come_and_not_before_it_is_set() {
        let deadline = Deadline::default();
        assert!(!deadline.is_over());
        deadline.set(Deadline::now(), Duration::from_mins(1));
        assert!(!deadline.is_over());
        deadline.set(Duration::ZERO, Duration::from_nanos(1));
        assert!(deadline.is_over());
        deadline.set(Deadline::now(), Duration::from_mins(1));
        assert!(!deadline.is_over(), "the lease was renewed in time, and this told late");
    }

    #[test]
    fn who_was_fenced_answers_nothing_any_more() {
        let deadline = Deadline::default();
        deadline.end();
        assert!(deadline.is_over());
        deadline.set(Deadline::now(), Duration::from_mins(1));
        assert!(deadline.is_over(), "another lease is for other nodes");
    }

    #[test]
    fn published_entries_are_valid_until_the_node_or_the_lease_ends() {
        let deadline = Arc::<Deadline>::default();
        let (first, second) =
            (ValidityToken::until(deadline.clone()), ValidityToken::until(deadline.clone()));
        let seen = first.clone();
        first.end();
        assert!(!seen.holds() && second.holds());
        deadline.set(Deadline::now(), Duration::ZERO);
        assert!(!second.holds());
        deadline.set(Deadline::now(), Duration::from_mins(1));
        assert!(second.holds(), "the lease was renewed, and nothing was taken over");
        deadline.end();
        assert!(!second.holds());
    }
}
