//! How a failed call is reported to C: by its value, by `errno`, and in words.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct CApiFailure {
    pub(crate) errno: c_int,
    pub(crate) text: String,
}

impl CApiFailure {
    /// With this number, and words that name thing, cause and next step.
    pub(crate) fn new(errno: c_int, text: impl Into<String>) -> Self {
        Self { errno, text: text.into() }
    }
}

impl From<client::Error> for CApiFailure {
    fn from(error: client::Error) -> Self {
        Self::new(error.cause.errno(), error.to_string())
    }
}

thread_local! {
    /// In words, why the last call of this thread that failed did so.
    static LAST: RefCell<CString> = RefCell::default();
}

/// Does `work`; if that fails, records why and returns `failed`. `errno` is left alone otherwise.
pub(crate) fn answer<T>(failed: T, work: impl FnOnce() -> Result<T, CApiFailure>) -> T {
    // What a panic leaves behind is behind locks that check, or lost with the call.
    let outcome = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(CApiFailure::new(
            libc::EIO,
            "libmdfs has a bug and gave this call up; please report it",
        ))
    });
    outcome.unwrap_or_else(|failure| {
        record(&failure);
        failed
    })
}

/// As [`answer`], for functions that return the error's number and leave `errno` alone.
pub(crate) fn number_of(work: impl FnOnce() -> Result<(), CApiFailure>) -> c_int {
    let mut number = 0;
    answer((), || work().inspect_err(|failure| number = failure.errno));
    number
}

/// Sets `errno` and the words of [`mdfs_error`].
pub(crate) fn record(failure: &CApiFailure) {
    // A text with a zero byte in it is cut there by C anyway.
    let text = failure.text.split('\0').next().unwrap_or_default();
    LAST.with_borrow_mut(|last| *last = CString::new(text).unwrap_or_default());
    // SAFETY: the C library gives each thread a number of its own, which lives as long as it.
    unsafe { *libc::__errno_location() = failure.errno };
}

/// In words: what the last call of this thread that failed was to do, why it could not, and what
/// to do about it. Empty if none failed. Valid until the next call of this thread that fails.
#[unsafe(no_mangle)]
pub extern "C" fn mdfs_error() -> *const c_char {
    LAST.with_borrow(|last| last.as_ptr())
}

/// Prints `prefix`, a colon and `mdfs_error` to the standard error output, as `perror` does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_perror(prefix: *const c_char) {
    let text = LAST.with_borrow(|last| last.to_string_lossy().into_owned());
    if prefix.is_null() {
        eprintln!("{text}");
    } else {
        // SAFETY: C vouches for a string.
        let prefix = unsafe { CStr::from_ptr(prefix) };
        eprintln!("{}: {text}", prefix.to_string_lossy());
    }
}
