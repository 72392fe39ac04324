//! Connections whose other side has not introduced itself yet.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;

use futures::future::{AbortHandle, Abortable};

/// Connections of one listener that have not introduced themselves yet, at most.
const PENDING_MAX: usize = 256;

/// Those that are waited for: the oldest goes when there are too many.
#[derive(Default)]
pub(crate) struct PendingConnections {
    next: Cell<u64>,
    waiting: RefCell<VecDeque<(u64, AbortHandle)>>,
}

impl PendingConnections {
    /// Waits for `introduction`; `None` if too many others came meanwhile.
    pub(crate) async fn wait_for<T>(&self, introduction: impl Future<Output = T>) -> Option<T> {
        let number = self.next.replace(self.next.get() + 1);
        let (abort, aborted) = AbortHandle::new_pair();
        self.add(number, abort);
        let introduced = Abortable::new(introduction, aborted).await;
        self.waiting.borrow_mut().retain(|(other, _)| *other != number);
        introduced.ok()
    }

    /// One that comes when there are too many takes the place of the oldest.
    fn add(&self, number: u64, abort: AbortHandle) {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.len() >= PENDING_MAX
            && let Some((_, oldest)) = waiting.pop_front()
        {
            oldest.abort();
        }
        waiting.push_back((number, abort));
    }
}
