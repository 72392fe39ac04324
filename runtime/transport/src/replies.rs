//! Replies on their way out of a connection.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use bytes::Bytes;
use runtime::net::StreamWriter;
use runtime::sync::Event;

/// Replies on their way out. Bounded by the outstanding requests of the connection.
#[derive(Default)]
pub(crate) struct ReplyQueue {
    waiting: RefCell<VecDeque<Vec<Bytes>>>,
    /// Bytes of those that are not sent yet.
    bytes: Cell<usize>,
    closed: Cell<bool>,
    changed: Event,
    sent: Event,
}

impl ReplyQueue {
    pub(crate) fn push(&self, parts: Vec<Bytes>) {
        self.bytes.set(self.bytes.get() + length_of(&parts));
        self.waiting.borrow_mut().push_back(parts);
        self.changed.tell();
    }

    /// What waits is still sent, and then the connection ends.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        self.changed.tell();
    }

    /// Bytes that wait.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.get()
    }

    /// Resolves when something was sent.
    pub(crate) fn sent(&self) -> impl Future<Output = ()> + 'static {
        self.sent.next()
    }

    pub(crate) async fn send(self: Rc<Self>, mut writer: Box<dyn StreamWriter>) {
        loop {
            let changed = self.changed.next();
            // Everything that waits goes out in one call.
            let parts: Vec<Bytes> = self.waiting.take().into_iter().flatten().collect();
            if parts.is_empty() {
                if self.closed.get() {
                    return;
                }
                changed.await;
                continue;
            }
            let bytes = length_of(&parts);
            let written = writer.write(parts).await;
            self.bytes.set(self.bytes.get() - bytes);
            self.sent.tell();
            if written.is_err() {
                // The reading side notices the broken stream too and ends the connection.
                return;
            }
        }
    }
}

fn length_of(parts: &[Bytes]) -> usize {
    parts.iter().map(Bytes::len).sum()
}
