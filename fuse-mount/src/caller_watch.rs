//! Operations that wait for a server are given up when the calling program is killed.
//!
//! The kernel lets a killed program end only when its request is answered, and `fuser` does not
//! pass on the kernel's interrupts. So the callers of operations that take long are polled.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures::channel::oneshot;
use futures::future::{Either, select};
use futures::task::AtomicWaker;
use runtime::{Spawn, Table};

use crate::caller::CallerProcess;

/// The interval between two looks at the callers.
const INTERVAL: Duration = Duration::from_millis(500);

/// Looks that an operation has seen before its caller is polled: most end within a second.
const YOUNG_LOOKS: u64 = 2;

/// The operations of one worker, with their callers.
#[derive(Debug, Default)]
pub(crate) struct CallerWatch {
    // Bounded by the kernel: each is a request that a process waits for.
    operations: RefCell<Table<u64, WatchedOperation>>,
    /// The number of the last operation.
    last: Cell<u64>,
    /// How often the callers were looked at.
    looks: Cell<u64>,
    /// Woken by the first operation.
    idle: AtomicWaker,
}

#[derive(Debug)]
struct WatchedOperation {
    caller: CallerProcess,
    /// How often the callers had been looked at when it began.
    begun: u64,
    killed: oneshot::Sender<()>,
}

/// Removes an operation that has ended.
struct Registration<'a> {
    watch: &'a CallerWatch,
    number: u64,
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        self.watch.operations.borrow_mut().remove(&self.number);
    }
}

impl CallerWatch {
    /// Waits for `operation`; `None` if its caller is killed before. [`look`](Self::look) must run
    /// meanwhile.
    pub(crate) async fn until_killed<F: Future + Unpin>(
        &self,
        caller: CallerProcess,
        operation: F,
    ) -> Option<F::Output> {
        let (killed, is_killed) = oneshot::channel();
        let number = self.last.get() + 1;
        self.last.set(number);
        let watched = WatchedOperation { caller, begun: self.looks.get(), killed };
        self.operations.borrow_mut().insert(number, watched);
        let _registration = Registration { watch: self, number };
        self.idle.wake();
        match select(operation, pin!(is_killed)).await {
            Either::Left((done, _)) => Some(done),
            Either::Right(_) => None,
        }
    }

    /// Looks at the callers now and then, as long as there are operations. Never ends.
    pub(crate) async fn look<S: Spawn>(&self, machine: &S) {
        loop {
            poll_fn(|context| {
                self.idle.register(context.waker());
                let is_idle = self.operations.borrow().is_empty();
                if is_idle { Poll::Pending } else { Poll::Ready(()) }
            })
            .await;
            machine.sleep(INTERVAL).await;
            self.looks.set(self.looks.get() + 1);
            self.end_killed(CallerProcess::is_killed);
        }
    }

    /// Ends the operations whose callers are killed.
    fn end_killed(&self, is_killed: impl Fn(CallerProcess) -> bool) {
        let looks = self.looks.get();
        let is_over = |operation: &WatchedOperation| {
            operation.begun + YOUNG_LOOKS <= looks && is_killed(operation.caller)
        };
        let mut operations = self.operations.borrow_mut();
        let over: Vec<u64> = operations
            .iter()
            .filter_map(|(number, operation)| is_over(operation).then_some(*number))
            .collect();
        for operation in over.iter().filter_map(|number| operations.remove(number)) {
            // It may end at this very moment.
            let _ = operation.killed.send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use futures::executor::block_on;
    use futures::future::{pending, ready};

    use super::*;

    #[test]
    fn an_operation_ends_when_its_caller_is_killed_and_not_before_it_is_old() {
        let watch = CallerWatch::default();
        let caller = CallerProcess::numbered(7);
        let mut operation = Box::pin(watch.until_killed(caller, pending::<()>()));
        for look in 0..YOUNG_LOOKS {
            watch.end_killed(|_| true);
            assert_eq!(operation.as_mut().now_or_never(), None, "look {look}");
            watch.looks.set(look + 1);
        }
        watch.end_killed(|_| false);
        assert_eq!(operation.as_mut().now_or_never(), None);
        watch.end_killed(|_| true);
        assert_eq!(operation.now_or_never(), Some(None));
        assert_eq!(block_on(watch.until_killed(caller, ready(3))), Some(3));
        assert!(watch.operations.borrow().is_empty());
    }
}
