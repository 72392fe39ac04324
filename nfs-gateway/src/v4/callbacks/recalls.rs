//! Recalls delegations (RFC 8881 section 10.4.6): those that the nodes of their files want back,
//! and those that are in the way of another client of this gateway.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use client::delegations::EndedDelegation;
use futures::StreamExt as _;
use futures::future::{Either, LocalBoxFuture, pending, select};
use futures::stream::FuturesUnordered;

use super::send::send;
use super::wire::{CallbackError, CallbackOperation};
use crate::v4::limits::{RECALL_TIMEOUT, RECALLS_CONCURRENCY_MAX};
use crate::v4::state::Nfs4State;

/// The pause before a recall is sent again, at first; it doubles up to the maximum.
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(100);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Recalls under way.
type RunningRecalls = FuturesUnordered<LocalBoxFuture<'static, ()>>;

/// All recalls of a gateway.
struct Recaller {
    state: Rc<Nfs4State>,
    /// States whose recall is not sent yet.
    queue: VecDeque<u64>,
    /// When each state is revoked, in order.
    deadlines: VecDeque<(Duration, u64)>,
    running: RunningRecalls,
}

/// Starts to recall delegations, once for the gateway.
pub(crate) fn start(state: &Rc<Nfs4State>) {
    if state.is_recalling.replace(true) {
        return;
    }
    let mut recaller = Recaller {
        state: state.clone(),
        queue: VecDeque::new(),
        deadlines: VecDeque::new(),
        running: FuturesUnordered::new(),
    };
    state.ctx.task(async move { recaller.run().await });
}

impl Recaller {
    async fn run(&mut self) {
        let holder = self.state.tables().holder.clone();
        let mut from_nodes = Box::pin(holder.next_recalls());
        loop {
            let begun = self.state.tables().states.recall_begun.next();
            self.start_recalls();
            let state = self.state.clone();
            let deadline = self.deadlines.front().map(|(deadline, _)| *deadline);
            let wakes = select(
                Box::pin(select(Box::pin(begun), Box::pin(at(&state, deadline)))),
                Box::pin(next_finished(&mut self.running)),
            );
            if let Either::Left((ended, _)) = select(&mut from_nodes, wakes).await {
                for ended in ended {
                    note_ended(&state, ended);
                }
                from_nodes = Box::pin(holder.next_recalls());
            }
            self.revoke_overdue();
        }
    }

    /// Starts the recalls that wait, as far as the limit allows.
    fn start_recalls(&mut self) {
        let deadline = self.state.ctx.now() + RECALL_TIMEOUT;
        for number in self.state.tables_mut().states.take_recalls() {
            self.queue.push_back(number);
            self.deadlines.push_back((deadline, number));
        }
        while self.running.len() < RECALLS_CONCURRENCY_MAX
            && let Some(number) = self.queue.pop_front()
        {
            self.running.push(Box::pin(recall(self.state.clone(), number)));
        }
    }

    //= rfc8881 10.4.6: "the server MAY revoke" what is not returned in time
    /// Revokes what its client has not returned in time.
    fn revoke_overdue(&mut self) {
        let now = self.state.ctx.now();
        while let Some((_, number)) = self.deadlines.pop_front_if(|(deadline, _)| *deadline <= now)
        {
            let mut tables = self.state.tables_mut();
            if let Some(file) = tables.states.revoke(number) {
                tracing::warn!(target: "mdfs::nfs", ino = file.ino, "an NFS client has not returned a delegation, it is revoked");
                tables.release_undelegated(&self.state.ctx, file);
            }
        }
    }
}

/// A node wants a file back, or has taken it away.
fn note_ended(state: &Nfs4State, ended: EndedDelegation) {
    let EndedDelegation { file, is_over } = ended;
    let mut tables = state.tables_mut();
    // What is over is recalled, too: its clients shall not trust it any longer.
    tables.states.begin_recall(file, None);
    if is_over {
        tables.states.revoke_all(file);
    }
    tables.release_undelegated(&state.ctx, file);
}

/// Resolves at `deadline`, if there is one.
async fn at(state: &Nfs4State, deadline: Option<Duration>) {
    match deadline {
        Some(deadline) => state.ctx.sleep(deadline.saturating_sub(state.ctx.now())).await,
        None => pending().await,
    }
}

/// Resolves when one of `running` ends.
async fn next_finished(running: &mut RunningRecalls) {
    if running.is_empty() {
        pending::<()>().await;
    }
    running.next().await;
}

/// Sends `CB_RECALL` until the client has answered, or its time is over. Any error may be
/// temporary: a client that has not received the reply to its OPEN knows neither stateid nor file.
async fn recall(state: Rc<Nfs4State>, number: u64) {
    let deadline = state.ctx.now() + RECALL_TIMEOUT;
    let mut pause = RETRY_PAUSE_MIN;
    while let Some(Err(error)) = recall_once(&state, number).await {
        if state.ctx.now() + pause >= deadline {
            tracing::warn!(target: "mdfs::nfs", %error, "a delegation cannot be recalled");
            return;
        }
        state.ctx.sleep(pause).await;
        pause = (2 * pause).min(RETRY_PAUSE_MAX);
    }
}

/// Sends `CB_RECALL` once; `None` if there is nothing to recall any more.
async fn recall_once(state: &Nfs4State, number: u64) -> Option<Result<(), CallbackError>> {
    let (stateid, recalled, granted_by) = {
        let tables = state.tables();
        let recalled = tables.states.recalled(number)?.clone();
        let granted_by = Some(recalled.granted_by);
        let granted_by = granted_by.filter(|request| tables.sessions.is_last_request(request));
        (tables.states.stateid(number), recalled, granted_by)
    };
    let handle = &recalled.handle[..];
    let operation = CallbackOperation::Recall { stateid, handle, granted_by };
    Some(send(state, recalled.client, operation).await.map(|_| ()))
}
