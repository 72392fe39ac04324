//! A one-shot event, and the waker of a task.

use std::cell::{Cell, RefCell};
use std::task::Waker;

use runtime::sync::Event;

/// An event that is raised once and stays raised.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    raised: Cell<bool>,
    event: Event,
}

impl Signal {
    /// Raises it and wakes all waiting tasks.
    pub(crate) fn raise(&self) {
        self.raised.set(true);
        self.event.tell();
    }

    /// Is it raised?
    pub(crate) fn is_raised(&self) -> bool {
        self.raised.get()
    }

    /// Waits until it is raised.
    pub(crate) async fn wait(&self) {
        while !self.raised.get() {
            self.event.next().await;
        }
    }
}

/// The waker of a task that sleeps until there is something to do.
#[derive(Debug, Default)]
pub(crate) struct WakerSlot(RefCell<Option<Waker>>);

impl WakerSlot {
    /// Wakes the task of `waker` next time.
    pub(crate) fn set(&self, waker: &Waker) {
        *self.0.borrow_mut() = Some(waker.clone());
    }

    /// Wakes the task, if it sleeps.
    pub(crate) fn wake(&self) {
        let waker = self.0.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
