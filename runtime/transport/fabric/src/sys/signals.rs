//! What the process does at signals, kept while libfabric would change it: psm3 ends the process
//! with code 1 at SIGTERM as soon as it is loaded, shm takes SIGTERM, SIGINT and SIGBUS with its
//! first endpoint (both seen in 1.17).

use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

/// Signals that a process may handle, but for those of real time.
const SIGNALS: std::ops::Range<c_int> = 1..32;

/// Does `work` and restores the signal handlers afterwards. The program must not change signal
/// handlers meanwhile.
pub(crate) fn kept<T>(work: impl FnOnce() -> T) -> T {
    // Two at a time would take each other's for those of the process.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let before = all();
    let done = work();
    for ((signal, was), (_, now)) in before.iter().zip(all()) {
        if was.sa_sigaction != now.sa_sigaction {
            // SAFETY: what the process itself has set before, or the default.
            unsafe { libc::sigaction(*signal, was, std::ptr::null_mut()) };
        }
    }
    done
}

/// What is done at each signal.
fn all() -> Vec<(c_int, libc::sigaction)> {
    let of = |signal: c_int| {
        // SAFETY: a record of plain numbers, for which zero is a value.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: nothing is changed, and `action` takes what there is.
        let code = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
        (code == 0).then_some((signal, action))
    };
    SIGNALS.filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{EndpointOptions, Fabric, Provider};

    #[test]
    fn signals_stay_as_they_were_whatever_providers_do() {
        let actions = || all().into_iter().map(|(_, action)| action.sa_sigaction);
        let before: Vec<_> = actions().collect();
        for provider in Provider::TESTED {
            let endpoint = Fabric::open(&EndpointOptions::new(provider)).unwrap();
            assert_eq!(actions().collect::<Vec<_>>(), before, "{provider:?}");
            drop(endpoint);
        }
    }
}
