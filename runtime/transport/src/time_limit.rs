//! Limits of time that all listeners share.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::time::Duration;

use futures::future::{Either, select};
use runtime::context::Context;

/// Time limit for a connection to introduce itself.
pub(crate) const HELLO_TIME_MAX: Duration = Duration::from_secs(2);
/// The pause after a connection could not be accepted, as where the process has too many open
/// files.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The result of `work`, or `TimedOut` after `duration`.
pub(crate) async fn within<T>(
    context: &Context,
    duration: Duration,
    work: impl Future<Output = T>,
) -> io::Result<T> {
    match select(pin!(work), context.sleep(duration)).await {
        Either::Left((done, _)) => Ok(done),
        Either::Right(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}
