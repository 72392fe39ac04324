//! What belongs to one process: after a fork the child has a copy of the memory, but not the
//! threads that work on it.

use pyo3::PyResult;

use crate::failure::not_ours;

/// A thing that only the process that made it may use, or end.
#[derive(Debug)]
pub(crate) struct CheckedHandle<T> {
    process: u32,
    /// Some, but in `drop`.
    thing: Option<T>,
}

impl<T> CheckedHandle<T> {
    /// `thing`, of this process.
    pub(crate) fn new(thing: T) -> Self {
        Self { process: std::process::id(), thing: Some(thing) }
    }

    /// The thing, in the process that made it.
    pub(crate) fn get(&self) -> PyResult<&T> {
        let here = self.process == std::process::id();
        self.thing.as_ref().filter(|_| here).ok_or_else(not_ours)
    }
}

impl<T> Drop for CheckedHandle<T> {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // It shares what only the parent may end.
            std::mem::forget(self.thing.take());
        }
    }
}
