//! A one-shot event.

use std::cell::Cell;

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
