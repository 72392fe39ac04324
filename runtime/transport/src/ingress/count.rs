//! How many clients a process has, for one that ends when the last of them has gone.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// The clients of one process; once it is closed no more come.
///
/// A client waits for its server to come back, for ever if it is a mount: one that was let in just
/// before the process ends for good would hang.
#[derive(Debug, Default)]
pub struct ClientCount(Mutex<CountState>);

#[derive(Debug, Default)]
struct CountState {
    connected: usize,
    is_closed: bool,
    waker: Option<Waker>,
}

impl ClientCount {
    fn state(&self) -> MutexGuard<'_, CountState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more; `None` once it is closed.
    pub(super) fn enter(self: &Arc<Self>) -> Option<CountedClient> {
        let mut state = self.state();
        if state.is_closed {
            return None;
        }
        state.connected += 1;
        drop(state);
        Some(CountedClient(self.clone()))
    }

    /// Clients that are connected.
    pub fn connected(&self) -> usize {
        self.state().connected
    }

    /// Lets no more in.
    pub fn close(&self) {
        self.state().is_closed = true;
    }

    /// Closes if no client is connected; true if it is closed.
    pub fn close_if_empty(&self) -> bool {
        let mut state = self.state();
        state.is_closed |= state.connected == 0;
        state.is_closed
    }

    /// Waits until no client is connected. One may wait at a time. A client that has only lost its
    /// connection is back in a moment.
    pub async fn emptied(&self) {
        poll_fn(|task| {
            let mut state = self.state();
            if state.connected > 0 {
                state.waker = Some(task.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
    }
}

/// A client that is connected.
#[derive(Debug)]
pub(super) struct CountedClient(Arc<ClientCount>);

impl Drop for CountedClient {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.connected -= 1;
        let waker = if state.connected == 0 { state.waker.take() } else { None };
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn it_closes_when_the_last_client_has_gone_and_lets_none_in_after_that() {
        let count = Arc::new(ClientCount::default());
        let [one, other] = [count.enter(), count.enter()];
        let mut emptied = count.emptied().boxed();
        assert_eq!((&mut emptied).now_or_never(), None);
        drop(one);
        assert_eq!((&mut emptied).now_or_never(), None);
        drop(other);
        assert_eq!(emptied.now_or_never(), Some(()));
        let late = count.enter();
        assert!(late.is_some() && !count.close_if_empty(), "one has come back");
        drop(late);
        assert!(count.close_if_empty() && count.enter().is_none());
        assert_eq!(count.connected(), 0);
    }
}
