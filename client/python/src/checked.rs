//! What belongs to one process: after a fork the child has a copy of the memory, but not the
//! threads that work on it. So the child makes it again.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::{PyResult, Python};

/// A thing that each process makes for itself: a forked child never uses or ends that of its
/// parent.
#[derive(Debug)]
pub(crate) struct PerProcess<T> {
    // Locked only under Python's lock, which a thread that forks has: it is free in the child.
    current: Mutex<OwnedThing<T>>,
}

/// A thing and the process that made it.
#[derive(Debug)]
struct OwnedThing<T> {
    process: u32,
    thing: Arc<T>,
}

impl<T> OwnedThing<T> {
    fn new(thing: Arc<T>) -> Self {
        Self { process: std::process::id(), thing }
    }

    fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }
}

impl<T> Drop for OwnedThing<T> {
    fn drop(&mut self) {
        if !self.is_ours() {
            // It shares what only the parent may end.
            mem::forget(self.thing.clone());
        }
    }
}

impl<T> PerProcess<T> {
    /// `thing`, of this process.
    pub(crate) fn new(thing: T) -> Self {
        Self { current: Mutex::new(OwnedThing::new(Arc::new(thing))) }
    }

    /// The thing of this process; made by `again` from that of the parent, if there is none yet.
    pub(crate) fn get(
        &self,
        py: Python<'_>,
        again: impl FnOnce(Python<'_>, &T) -> PyResult<T>,
    ) -> PyResult<Arc<T>> {
        let (thing, is_ours) = {
            let current = self.current();
            (current.thing.clone(), current.is_ours())
        };
        if is_ours {
            return Ok(thing);
        }
        let made = Arc::new(again(py, &thing)?);
        let mut current = self.current();
        // Another thread may have been quicker.
        if !current.is_ours() {
            *current = OwnedThing::new(made);
        }
        Ok(current.thing.clone())
    }

    /// The thing of this process, if it has made one.
    pub(crate) fn get_own(&self) -> Option<Arc<T>> {
        let current = self.current();
        current.is_ours().then(|| current.thing.clone())
    }

    fn current(&self) -> MutexGuard<'_, OwnedThing<T>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
