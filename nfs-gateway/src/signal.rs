//! Something that happens once, and stays so.

use std::cell::Cell;

use runtime::sync::Event;

/// Raised once; whoever waits, or comes later, goes on.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    raised: Cell<bool>,
    event: Event,
}

impl Signal {
    /// Lets everybody go on.
    pub(crate) fn raise(&self) {
        self.raised.set(true);
        self.event.tell();
    }

    /// Has it happened?
    pub(crate) fn is_raised(&self) -> bool {
        self.raised.get()
    }

    /// Resolves once it has happened.
    pub(crate) async fn wait(&self) {
        while !self.raised.get() {
            self.event.next().await;
        }
    }
}
