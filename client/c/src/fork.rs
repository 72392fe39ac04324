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

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::fd::FromRawFd as _;

    use client::blocking::random_client;

    /// What `draw` returns in a forked child.
    fn in_child(draw: fn() -> u64) -> u64 {
        let mut ends = [0; 2];
        // SAFETY: the child calls nothing but `draw`, `write` and `_exit`; the parent owns both
        // ends of the pipe.
        let (child, mut reader) = unsafe {
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
            let child = libc::fork();
            if child == 0 {
                let drawn = draw().to_ne_bytes();
                libc::write(ends[1], drawn.as_ptr().cast(), drawn.len());
                libc::_exit(0);
            }
            libc::close(ends[1]);
            (child, std::fs::File::from_raw_fd(ends[0]))
        };
        let mut drawn = [0; 8];
        reader.read_exact(&mut drawn).expect("the number of the child");
        // SAFETY: no status is asked for.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        u64::from_ne_bytes(drawn)
    }

    #[test]
    fn forked_children_draw_client_numbers_of_their_own() {
        let drawn = [random_client(), in_child(random_client), in_child(random_client)];
        assert!(drawn[0] != drawn[1] && drawn[1] != drawn[2] && drawn[0] != drawn[2], "{drawn:?}");
    }
}
