//! How an ordinary thread waits for an answer of the machine: it looks for it for a moment, and
//! only then lets itself be parked. What is in memory is answered sooner than a parked thread is
//! woken.
//!
//! A thread that looks takes a core from those who work, so few look at a time, each look offers
//! the core to others, and a thread whose answers come late (from disks) looks rarely.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{
    AtomicU8, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// How long a thread spins for its answer before it is parked.
const LOOK_TIME: Duration = Duration::from_micros(50);

/// Cores per thread that may spin.
const CORES_PER_SPINNER: usize = 2;

/// After this many late answers in a row a thread spins only once in as many waits.
const MISSES_MAX: u32 = 8;

const RUNNING: u8 = 0;
const WOKEN: u8 = 1;
const PARKED: u8 = 2;

/// Threads that spin now.
static SPINNERS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static PARKER: RefCell<Option<Arc<Parker>>> = const { RefCell::new(None) };
    static MISSES: Cell<u32> = const { Cell::new(0) };
}

/// Where one thread waits.
struct Parker {
    thread: Thread,
    state: AtomicU8,
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.swap(WOKEN, AcqRel) == PARKED {
            self.thread.unpark();
        }
    }
}

/// Runs `future` to its end on this thread, which is none of a machine.
pub fn wait<F: Future>(future: F) -> F::Output {
    let taken = PARKER.with(RefCell::take);
    let fresh = || Parker { thread: std::thread::current(), state: AtomicU8::new(RUNNING) };
    let parker = taken.unwrap_or_else(|| Arc::new(fresh()));
    let waker = Waker::from(parker.clone());
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        parker.state.store(RUNNING, Relaxed);
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            PARKER.set(Some(parker));
            return output;
        }
        if !parker.look() {
            parker.park();
        }
    }
}

impl Parker {
    fn is_woken(&self) -> bool {
        self.state.load(Acquire) == WOKEN
    }

    /// Looks for a moment; true if there was something.
    #[allow(clippy::disallowed_methods, reason = "the machine's own wait for the machine")]
    fn look(&self) -> bool {
        let misses = MISSES.get();
        if misses >= MISSES_MAX && !misses.is_multiple_of(MISSES_MAX) {
            MISSES.set(misses + 1);
            return self.is_woken();
        }
        let Some(_looker) = SpinPermit::new() else { return self.is_woken() };
        let until = Instant::now() + LOOK_TIME;
        while Instant::now() < until {
            if self.is_woken() {
                MISSES.set(0);
                return true;
            }
            std::thread::yield_now();
        }
        MISSES.set(misses.wrapping_add(1));
        self.is_woken()
    }

    fn park(&self) {
        if self.state.compare_exchange(RUNNING, PARKED, AcqRel, Acquire).is_err() {
            return;
        }
        while !self.is_woken() {
            std::thread::park();
        }
    }
}

/// The right to spin.
struct SpinPermit;

impl SpinPermit {
    fn new() -> Option<Self> {
        static SPINNERS_MAX: OnceLock<usize> = OnceLock::new();
        let most = SPINNERS_MAX.get_or_init(|| {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            cores / CORES_PER_SPINNER
        });
        let another = |lookers: usize| (lookers < *most).then_some(lookers + 1);
        SPINNERS.fetch_update(Relaxed, Relaxed, another).ok().map(|_| Self)
    }
}

impl Drop for SpinPermit {
    fn drop(&mut self) {
        SPINNERS.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[test]
    #[allow(clippy::disallowed_methods, reason = "the test is about threads")]
    fn an_answer_is_heard_whether_it_comes_at_once_soon_or_late() {
        for micros in [0, 10, 30, 50, 70, 2_000, 20_000] {
            for _ in 0..20 {
                let (tell, told) = oneshot::channel();
                let teller = std::thread::spawn(move || {
                    if micros > 0 {
                        std::thread::sleep(Duration::from_micros(micros));
                    }
                    tell.send(micros)
                });
                assert_eq!(wait(told), Ok(micros));
                teller.join().unwrap().unwrap();
            }
        }
        assert_eq!(SPINNERS.load(Relaxed), 0);
    }

    #[test]
    fn a_wait_within_a_wait_has_a_parker_of_its_own() {
        let inner = wait(async {
            let (tell, told) = oneshot::channel();
            tell.send(wait(async { 7 })).unwrap();
            told.await
        });
        assert_eq!(inner, Ok(7));
    }
}
