//! Tells clients that a lock for which they wait is free (RFC 8881 section 20.11).

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use fileio::client::ask;
use fileio::protocol::{Error, TestLock};
use futures::future::{Either, select};
use futures::{StreamExt as _, stream};

use super::send::send;
use super::wire::{CallbackError, CallbackOperation};
use crate::v4::state::{AwaitedLock, LockWaiter, Nfs4State};

/// How often the nodes are asked: locks of clients elsewhere are released without a word.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Concurrent requests to nodes.
const CHECKS_CONCURRENCY_MAX: usize = 16;

/// Starts to look after clients that wait for a lock, as long as there are any.
pub(crate) fn start(state: &Rc<Nfs4State>) {
    if state.is_notifying.replace(true) {
        return;
    }
    let state = state.clone();
    state.ctx.clone().task(async move {
        let mut release = Box::pin(state.tables().lock_waiters.lock_released.next());
        while !state.tables().lock_waiters.is_empty() {
            let interval = pin!(state.ctx.sleep(CHECK_INTERVAL));
            let is_release = matches!(select(&mut release, interval).await, Either::Left(_));
            if is_release {
                release = Box::pin(state.tables().lock_waiters.lock_released.next());
            }
            check(&state, is_release).await;
        }
        state.is_notifying.set(false);
    });
}

/// Looks once which locks are free, of all files or of those with a lock that was released here.
async fn check(state: &Rc<Nfs4State>, only_released: bool) {
    let due = state.tables_mut().lock_waiters.take_due(state.ctx.now(), only_released);
    let checks = due.into_iter().map(|(waiter, lock)| async move {
        let AwaitedLock { owner, range, kind, .. } = lock;
        let conflict = ask(&state.ctx, TestLock { file: waiter.file, owner, range, kind }).await;
        // If the file is gone the client shall learn that. A node that is away tells nothing.
        let is_answered = !matches!(conflict, Ok(Some(_)) | Err(Error::Undelivered { .. }));
        if is_answered && state.tables_mut().lock_waiters.remove(&waiter) {
            notify(state.clone(), waiter, lock);
        }
    });
    stream::iter(checks).buffer_unordered(CHECKS_CONCURRENCY_MAX).collect::<()>().await;
}

/// Sends `CB_NOTIFY_LOCK` in the background. A client that is busy waits on.
fn notify(state: Rc<Nfs4State>, waiter: LockWaiter, lock: AwaitedLock) {
    let ctx = state.ctx.clone();
    ctx.task(async move {
        let LockWaiter { client, ref owner, .. } = waiter;
        let operation = CallbackOperation::NotifyLock { handle: &lock.handle, client, owner };
        match send(&state, client, operation).await {
            Err(CallbackError::Busy | CallbackError::Delayed) => {
                state.tables_mut().lock_waiters.add(waiter, lock);
                start(&state);
            }
            Err(error) => {
                tracing::debug!(target: "mdfs::nfs", %error, "a client is not told that a lock is free");
            }
            Ok(_) => {}
        }
    });
}
