//! Panics as values: a violation is reported once, by the caller of the case.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    static CATCHING: Cell<bool> = const { Cell::new(false) };
    static TOLD: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The result of `work`, or what it panicked with first, and where. Panics of other threads are not
/// caught.
pub fn catch<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOKED: Once = Once::new();
    HOOKED.call_once(keep_panics_of_cases);
    let before = CATCHING.replace(true);
    // What a panic leaves half done is in the world of the case, which is not used again.
    let outcome = catch_unwind(AssertUnwindSafe(work));
    CATCHING.set(before);
    outcome.map_err(|_| TOLD.take().unwrap_or_else(|| "a panic without a message".to_owned()))
}

fn keep_panics_of_cases() {
    let otherwise = take_hook();
    set_hook(Box::new(move |panic| {
        if !CATCHING.get() {
            return otherwise(panic);
        }
        let message = panic.payload_as_str().unwrap_or("a panic without a message");
        let place = panic.location().map(|place| format!(" ({place})")).unwrap_or_default();
        // The first one is the cause.
        TOLD.with_borrow_mut(|told| {
            told.get_or_insert_with(|| format!("{message}{place}"));
        });
    }));
}
