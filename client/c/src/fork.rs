//! `fork`: the child has a copy of all memory, but not the threads that work on it.

use std::ffi::c_void;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::failure::CApiFailure;
use crate::tables;

/// How many forks lie between the first process and this one. A handle is good in one generation.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// The generation that this process is.
pub(crate) fn generation() -> u64 {
    GENERATION.load(Ordering::Relaxed)
}

/// Refuses what a parent has opened.
pub(crate) fn check(opened_by: u64) -> Result<(), CApiFailure> {
    if opened_by == generation() {
        return Ok(());
    }
    let text = "it was opened before this process was forked, by its parent; mount the volume \
        again in the child";
    Err(CApiFailure::new(libc::ENOTCONN, text))
}

/// Registers the handlers of forks and of the exit. Once is enough.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the functions do only what is allowed between `fork` and `exec`, and at exit. If
        // the C library has no memory left for three pointers, forks go unnoticed.
        unsafe {
            libc::pthread_atfork(Some(before), Some(after_in_parent), Some(after_in_child));
            libc::atexit(at_exit);
        }
    });
}

/// No other thread is inside the tables when memory is copied.
unsafe extern "C" fn before() {
    tables::lock();
}

unsafe extern "C" fn after_in_parent() {
    tables::unlock();
}

unsafe extern "C" fn after_in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    tables::unlock();
}

/// Works on another thread, since this one has lost its thread-local variables by now.
extern "C" fn at_exit() {
    let mut thread = 0;
    // SAFETY: both pointers are good until the end of the call; no attributes, no argument.
    unsafe {
        let made = libc::pthread_create(&raw mut thread, ptr::null(), leave, ptr::null_mut());
        // Without a thread nothing can be done or reported.
        if made == 0 {
            libc::pthread_join(thread, ptr::null_mut());
        }
    }
}

extern "C" fn leave(_: *mut c_void) -> *mut c_void {
    // A bug here shall not keep the process from ending.
    let _ = std::panic::catch_unwind(tables::finish_all);
    ptr::null_mut()
}
