//! How the layer above sends requests: to the node that owns them, and again later if that node was
//! busy or down, or if the reply to a request with a call id was lost.

use std::sync::Arc;
use std::time::Duration;

use meta::SharedAttrCache;
use runtime::protocol::Undelivered;
use runtime::{Call, NodeId, Retry, SharedServer, Spawn};

use crate::hash;
use crate::protocol::{DELEGATION_LEASE, Error, FileIo, GetAttributes, Lookup, Reply, Request};
use crate::rules;

/// A node that is busy or away is asked at most this many times before the caller gets an error.
pub const BUSY_TRIES_MAX: u32 = 12;

/// The first pause before asking it again; each later one is twice as long.
const BUSY_PAUSE: Duration = Duration::from_micros(200);

/// Rounds of [`send_with_retries`], each of almost half a second if a node is down: together longer
/// than a fail-over or the restart of a server takes.
pub const RETRY_ROUNDS_MAX: u32 = 20;
// And than a change waits after a crash.
const _: () = assert!(400 * RETRY_ROUNDS_MAX as u128 > DELEGATION_LEASE.as_millis());

/// The pause after a round whose reply was lost; each later one is twice as long, up to the last.
const LOST_PAUSE: Duration = Duration::from_millis(10);
const LOST_PAUSE_MAX: Duration = Duration::from_millis(640);

/// As [`ask`], for programs that do not retry: keeps trying while a node is down and, if the retry
/// class allows it, while replies are lost. A write whose reply was lost is not sent again, unless
/// the server that may have executed it is gone: executed late, it could undo what others wrote in
/// between.
pub async fn send_with_retries<S, C>(from: &S, call: C) -> Result<C::Reply, Error>
where
    S: Spawn,
    C: Call<Protocol = FileIo> + Clone,
{
    send_at(from, None, call).await
}

/// The same for a call that goes to the node that the caller chooses.
pub async fn send_to_with_retries<S, C>(from: &S, to: NodeId, call: C) -> Result<C::Reply, Error>
where
    S: Spawn,
    C: Call<Protocol = FileIo> + Clone,
{
    send_at(from, Some(to), call).await
}

async fn send_at<S, C>(from: &S, to: Option<NodeId>, call: C) -> Result<C::Reply, Error>
where
    S: Spawn,
    C: Call<Protocol = FileIo> + Clone,
{
    match ask_at(from, to, call.clone()).await {
        Err(Error::Undelivered { why }) if why.is_transient() => {
            Box::pin(retry_rounds(from, to, call, why)).await
        }
        answer => answer,
    }
}

/// The rounds after the first, which came to `why`.
async fn retry_rounds<S, C>(
    from: &S,
    to: Option<NodeId>,
    call: C,
    mut why: Undelivered,
) -> Result<C::Reply, Error>
where
    S: Spawn,
    C: Call<Protocol = FileIo> + Clone,
{
    let is_done_once = C::RETRY == Retry::ByCallId;
    let (mut was_lost, mut pause) = (false, LOST_PAUSE);
    let mut round = 1;
    while round < RETRY_ROUNDS_MAX || from.waits_for_ever() {
        round += 1;
        if why.is_lost() {
            if C::RETRY == Retry::Never && why != Undelivered::Gone {
                break;
            }
            was_lost = is_done_once;
            from.sleep(pause).await;
            pause = LOST_PAUSE_MAX.min(2 * pause);
        }
        why = match ask_at(from, to, call.clone()).await {
            Err(Error::Undelivered { why }) if why.is_transient() => why,
            answer => return answer,
        };
    }
    // Not in the last round, but perhaps before.
    Err(if was_lost { Undelivered::Lost } else { why }.into())
}

/// Asks the node that owns `call`, in turn as often as [`BUSY_TRIES_MAX`] while it is busy or away;
/// a request with a call id also if its reply was lost. After [`Undelivered::Lost`] a request with
/// a call id can be sent once more, as it is: it was done, or will be then.
pub async fn ask<S, C>(from: &S, call: C) -> Result<C::Reply, Error>
where
    S: Spawn,
    C: Call<Protocol = FileIo> + Clone,
{
    ask_at(from, None, call).await
}

/// Asks `to`, or the node that owns `call`.
async fn ask_at<S, C>(from: &S, to: Option<NodeId>, call: C) -> Result<C::Reply, Error>
where
    S: Spawn,
    C: Call<Protocol = FileIo> + Clone,
{
    // Nothing else is answered from shared memory; a write need not be cloned for it.
    if C::RETRY == Retry::Idempotent
        && let Some(reply) = from.try_shared::<FileIo>(&call.clone().into())
    {
        return C::answer(reply);
    }
    let to = to.unwrap_or_else(|| hash::owner(call.route(), from.fs_nodes()));
    let is_done_once = C::RETRY == Retry::ByCallId;
    match from.spawn(to, call.clone()).await {
        Err(error) if error.not_applied() || (error.is_lost() && is_done_once) => {
            // Boxed: what is rare would be moved with each request.
            Box::pin(retry_busy(from, to, call, is_done_once, error.is_lost())).await
        }
        answer => answer,
    }
}

/// Answers from the attribute cache of the process, without a message.
#[derive(Debug)]
pub struct SharedFileServer(pub Arc<SharedAttrCache>);

impl SharedServer<FileIo> for SharedFileServer {
    fn try_now(&self, request: &Request) -> Option<Reply> {
        let Self(shared_attrs) = self;
        match request {
            Request::GetAttributes(GetAttributes { file }) => {
                let shown = shared_attrs.attributes(file.ino, file.generation)?;
                Some(Reply::GetAttributes(Ok(shown)))
            }
            Request::Lookup(Lookup { who, directory, name }) => {
                let above = shared_attrs.attributes(directory.ino, directory.generation)?;
                if let Err(refused) = rules::check_search(who, &above) {
                    return Some(Reply::Lookup(Err(refused)));
                }
                let found = shared_attrs.dentry(directory.ino, name)?;
                Some(Reply::Lookup(Ok(shared_attrs.attributes(found.ino, found.generation)?)))
            }
            _ => None,
        }
    }
}

/// The tries after the first.
async fn retry_busy<S, C>(
    from: &S,
    to: NodeId,
    call: C,
    is_done_once: bool,
    mut was_lost: bool,
) -> Result<C::Reply, Error>
where
    S: Spawn,
    C: Call<Protocol = FileIo> + Clone,
{
    let lost = Error::Undelivered { why: Undelivered::Lost };
    let mut pause = BUSY_PAUSE;
    for _ in 2..BUSY_TRIES_MAX {
        from.sleep(pause).await;
        pause *= 2;
        match from.spawn(to, call.clone()).await {
            Err(error) if error.not_applied() => {}
            Err(error) if error.is_lost() && is_done_once => was_lost = true,
            answer => return answer,
        }
    }
    from.sleep(pause).await;
    match from.spawn(to, call).await {
        // Not this time, but perhaps before.
        Err(error) if error.not_applied() && was_lost => Err(lost),
        answer => answer,
    }
}
