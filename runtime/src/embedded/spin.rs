//! Keeping a thread awake for a moment after work: to wake a parked thread costs more than a small
//! request itself.
//!
//! Work is a request that came from another thread, or one that went to another thread and will be
//! answered. As long as there was some within [`SPIN_TIME`], a task of the thread polls for more
//! instead of letting the thread park; between polls it yields the core to other threads. Then the
//! task ends: a thread without work sleeps.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::thread;

/// How long a thread stays awake after its last work: longer than another thread takes for a small
/// request, or to copy a large transfer; short against the time slices of the host.
pub(super) const SPIN_TIME: Duration = Duration::from_micros(100);

/// Whether one thread spins.
#[derive(Debug, Default)]
pub(super) struct SpinState {
    /// There was work since the task looked last.
    worked: Cell<bool>,
    /// The task runs.
    looking: Cell<bool>,
}

impl SpinState {
    /// To be called at each piece of work.
    #[allow(clippy::disallowed_methods, reason = "the machine itself runs the tasks")]
    pub(super) fn note_work(self: &Rc<Self>) {
        self.worked.set(true);
        if !self.looking.replace(true) {
            actix::spawn(look(self.clone()));
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "the machine itself gives the time")]
async fn look(spin: Rc<SpinState>) {
    thread::wake_inbox();
    let mut until = Instant::now();
    loop {
        let came = thread::empty_inbox();
        let now = Instant::now();
        if spin.worked.replace(false) || came {
            until = now + SPIN_TIME;
        } else if now >= until && thread::leave_inbox() {
            return spin.looking.set(false);
        }
        // The core first goes to any other thread that waits for one, then this thread looks at its
        // sockets, timers and mail.
        std::thread::yield_now();
        tokio::task::yield_now().await;
    }
}
