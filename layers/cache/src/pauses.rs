//! Waiting and trying again, a bounded number of times.

use std::time::Duration;

use runtime::Context;

/// Pauses that double, until there are no more of them.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
    left: u32,
}

impl Backoff {
    /// `count` pauses, of which the first takes about `first`.
    pub(crate) fn new(first: Duration, count: u32) -> Self {
        Self { next: first, left: count }
    }

    /// Pauses; false, at once, if the pauses are used up.
    ///
    /// A random part keeps callers that were refused together from retrying together.
    pub(crate) async fn pause(&mut self, context: &Context) -> bool {
        if self.left == 0 {
            return false;
        }
        let half = self.next / 2;
        let jitter_micros = context.random() % (half.as_micros() as u64 + 1);
        self.left -= 1;
        self.next *= 2;
        context.sleep(half + Duration::from_micros(jitter_micros)).await;
        true
    }
}
