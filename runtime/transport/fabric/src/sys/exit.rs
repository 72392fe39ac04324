//! The end of the process: no thread is in libfabric when the library's own end runs.
//!
//! A program may just exit while threads work for it. The destructors of libfabric and of the
//! libraries below it then free what those threads use.

#![allow(unsafe_code, reason = "registers a function with the C library")]

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// How long the end of the process waits for one thread that does not come out.
const WAIT_MAX: u32 = 500;
const PAUSE: Duration = Duration::from_millis(1);

/// The process ends: a thread that polls again and again goes in no more.
static IS_ENDING: AtomicBool = AtomicBool::new(false);
static GATES: Mutex<Vec<Weak<Mutex<()>>>> = Mutex::new(Vec::new());

/// The gate of one thread: it is inside of libfabric only behind it.
#[derive(Debug)]
pub struct ExitGate(Arc<Mutex<()>>);

impl Default for ExitGate {
    fn default() -> Self {
        let gate = Arc::new(Mutex::new(()));
        let mut gates = GATES.lock().unwrap_or_else(PoisonError::into_inner);
        gates.retain(|gate| gate.strong_count() > 0);
        gates.push(Arc::downgrade(&gate));
        drop(gates);
        // Anew each time: libraries that libfabric loads register themselves too, and the last one
        // runs first.
        // SAFETY: the function is always there, and unwinds not.
        if unsafe { libc::atexit(close_gates) } != 0 {
            tracing::debug!("the end of the process will not wait for libfabric");
        }
        Self(gate)
    }
}

impl ExitGate {
    /// Goes in, for as long as what is returned lives. From the end of the process on it does not
    /// return.
    #[allow(clippy::disallowed_methods, reason = "the process ends")]
    pub fn enter(&self) -> MutexGuard<'_, ()> {
        while IS_ENDING.load(Relaxed) {
            std::thread::park();
        }
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[allow(clippy::disallowed_methods, reason = "the process ends")]
extern "C" fn close_gates() {
    // It is registered for each gate.
    if IS_ENDING.swap(true, Relaxed) {
        return;
    }
    // Held by a thread that adds one: it may go on.
    let Ok(gates) = GATES.try_lock() else { return };
    for gate in gates.iter().filter_map(Weak::upgrade) {
        for _ in 0..WAIT_MAX {
            if let Ok(closed) = gate.try_lock() {
                std::mem::forget(closed);
                break;
            }
            std::thread::sleep(PAUSE);
        }
        std::mem::forget(gate);
    }
}
